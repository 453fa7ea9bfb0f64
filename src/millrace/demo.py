"""``millrace demo``: real pictures, decoded and augmented by an embedded service, teach a model to read digits.

scikit-learn ships 1,797 handwritten digits and two photographs. The demo writes the digits, each over a piece of a photograph,
as JPEG files, and then does what a training script does.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from typing import Any

import numpy as np

from millrace.dataset import Dataset
from millrace.distributed import DistributedDataset
from millrace.errors import MillraceError

_SIZE = 96
_CLASSES = 10
_EPOCHS = 5
_BATCH = 64
_REPEATS = 2


def main() -> int:
    """Runs the demo; returns the exit code."""
    try:
        import sklearn  # noqa: F401
        from PIL import Image  # noqa: F401
        from rich.console import Console
    except ImportError as error:
        raise MillraceError(
            f"the demo needs {error.name}: pip install 'millrace[demo]', or `make demo` in a clone"
        ) from error
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="millrace-demo-") as folder:
        with console.status("writing pictures"):
            train, test = _write_pictures(folder)
        console.print(f"{train} pictures to learn from, {test} to test on, as JPEG files of {_SIZE} x {_SIZE}")
        _train(console, folder)
    return 0


# -- the pipeline: what a user would write -----------------------------------------------------------------------------


def decode(element: dict[str, Any]) -> dict[str, Any]:
    """A JPEG file as a picture, uint8 of shape (96, 96, 3), and the label that its folder names."""
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(element["bytes"])).convert("RGB"))
    return {"picture": picture, "label": int(os.path.basename(os.path.dirname(element["path"])))}


def augment(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Moves the picture a little, and makes it lighter or darker."""
    picture = element["picture"]
    down, right = rng.integers(-4, 5, size=2)
    moved = np.roll(picture, (int(down), int(right)), axis=(0, 1))
    lit = np.clip(moved * rng.uniform(0.8, 1.2), 0, 255).astype(np.uint8)
    return {"picture": lit, "label": element["label"]}


def features(element: dict[str, Any]) -> dict[str, Any]:
    """What the model sees: brightness of 16 x 16 tiles, float32 of shape (256,)."""
    gray = element["picture"].astype(np.float32).mean(axis=2)
    tiles = gray.reshape(16, _SIZE // 16, 16, _SIZE // 16).mean(axis=(1, 3))
    centred = (tiles - tiles.mean()) / (tiles.std() + 1e-6)
    return {"x": centred.ravel().astype(np.float32), "y": element["label"]}


def training_data(folder: str) -> Dataset:
    """Random batches of augmented pictures, endlessly different, the same for the same seed."""
    return (
        Dataset.from_files(f"{folder}/train/*/*.jpg")
        .repeat(_REPEATS)
        .map(decode)
        .autocache()
        .map(augment)
        .map(features)
        .shuffle(10_000, seed=7)
        .batch(_BATCH, drop_remainder=True)
    )


# -- the loop ----------------------------------------------------------------------------------------------------------


def _train(console: Any, folder: str) -> None:
    from rich.live import Live
    from rich.text import Text
    from sklearn.neural_network import MLPClassifier

    test = next(iter(Dataset.from_files(f"{folder}/test/*/*.jpg").map(decode).map(features).batch(10_000)))
    model = MLPClassifier((128,), learning_rate_init=2e-3, random_state=0)
    began = time.perf_counter()
    meter = _Meter()
    with training_data(folder).distribute(workers=2) as batches, Live(Text(), console=console) as live:
        for epoch in range(_EPOCHS):
            for batch in meter.measured(batches):
                model.partial_fit(batch["x"], batch["y"], classes=np.arange(_CLASSES))
                live.update(Text(meter.line(epoch, began)))
            accuracy = float((model.predict(test["x"]) == test["y"]).mean())
            live.console.print(f"epoch {epoch + 1}: accuracy {accuracy:.1%} on pictures it has not seen")
        workers = _workers(batches)
    console.print(meter.verdict(workers))


def _workers(batches: DistributedDataset) -> int:
    status = batches.status()
    return len(status["workers"])


class _Meter:
    """Rates of the loop, and its share of waiting."""

    def __init__(self) -> None:
        self.pictures = 0
        self.waited = 0.0
        self.worked = 0.0
        self.first = 0.0

    def measured(self, batches: Any) -> Any:
        """The batches, with the time until each came and the time the loop then took."""
        iterator = iter(batches)
        while True:
            began = time.perf_counter()
            batch = next(iterator, None)
            arrived = time.perf_counter()
            if batch is None:
                return
            if not self.first:
                self.first = arrived - began  # starting the service is not waiting for data
            else:
                self.waited += arrived - began
            self.pictures += len(batch["y"])
            yield batch
            self.worked += time.perf_counter() - arrived

    @property
    def share(self) -> float:
        """Share of the loop's time spent waiting."""
        return self.waited / max(self.waited + self.worked, 1e-9)

    def line(self, epoch: int, began: float) -> str:
        rate = self.pictures / max(self.waited + self.worked, 1e-9)
        elapsed = time.perf_counter() - began
        return f"epoch {epoch + 1}/{_EPOCHS}  {rate:6.0f} pictures/s  waited {self.share:4.0%}  2 workers  {elapsed:4.1f} s"

    def verdict(self, workers: int) -> str:
        """The bottleneck, in one sentence."""
        if self.share < 0.1:
            return (
                f"Bottleneck: the model; it waited {self.share:.0%} of its time for data, so more than {workers} workers "
                "would gain nothing."
            )
        return (
            f"Bottleneck: the input data; the model waited {self.share:.0%} of its time for {workers} workers, "
            "so more of them, or cheaper functions, would make it faster."
        )


# -- the pictures ------------------------------------------------------------------------------------------------------


def _write_pictures(folder: str) -> tuple[int, int]:
    """Writes ``train/<digit>/<n>.jpg`` and ``test/...``; returns how many of each."""
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_images

    digits = load_digits()
    photographs = load_sample_images().images
    rng = np.random.default_rng(0)
    counts = {"train": 0, "test": 0}
    for number, (digit, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        part = "test" if number % 5 == 0 else "train"
        photograph = photographs[number % len(photographs)]
        top, left = rng.integers(0, photograph.shape[0] - _SIZE), rng.integers(0, photograph.shape[1] - _SIZE)
        ground = photograph[top : top + _SIZE, left : left + _SIZE] * 0.35
        ink = np.asarray(Image.fromarray((digit * 255 / 16).astype(np.uint8)).resize((_SIZE, _SIZE)), np.float32)
        picture = np.clip(ground + ink[:, :, None] * 0.8, 0, 255).astype(np.uint8)
        os.makedirs(f"{folder}/{part}/{label}", exist_ok=True)
        Image.fromarray(picture).save(f"{folder}/{part}/{label}/{number}.jpg", quality=90)
        counts[part] += 1
    return counts["train"], counts["test"]
