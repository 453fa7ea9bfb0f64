"""``millrace demo``: real pictures, decoded and augmented by an embedded service, teach a model to read digits.

scikit-learn ships 1,797 handwritten digits and two photographs. The demo writes the digits, each over a piece of a
photograph, as JPEG files, and then does what a training script does.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from millrace.dataset import Dataset
from millrace.errors import MillraceError

_SIZE = 96
_CLASSES = 10
_EPOCHS = 12
_BATCH = 64
_WORKERS = 2


def main() -> int:
    """Run the demo; return the exit code."""
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
        _say(console, f"{train} images to learn from and {test} to test on, as JPEG files of {_SIZE} x {_SIZE}")
        _train(console, folder)
    return 0


def _say(console: Any, text: str) -> None:
    """One line, whatever the terminal's width: a log or a pipe gets it unbroken."""
    console.print(text, soft_wrap=not console.is_terminal, markup=False)


# -- the pipeline: what a user would write -----------------------------------------------------------------------------


def decode(element: dict[str, Any]) -> dict[str, Any]:
    """Decode a JPEG file to a picture, uint8 of shape (96, 96, 3), and the label that its folder names."""
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(element["bytes"])).convert("RGB"))
    return {"picture": picture, "label": int(os.path.basename(os.path.dirname(element["path"])))}


def augment(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Move the picture a little, and make it lighter or darker."""
    picture = element["picture"]
    down, right = rng.integers(-4, 5, size=2)
    moved = np.roll(picture, (int(down), int(right)), axis=(0, 1))
    lit = np.clip(moved * rng.uniform(0.8, 1.2), 0, 255).astype(np.uint8)
    return {"picture": lit, "label": element["label"]}


def features(element: dict[str, Any]) -> dict[str, Any]:
    """Features that the model sees: brightness of 16 x 16 tiles, float32 of shape (256,)."""
    gray = element["picture"].astype(np.float32).mean(axis=2)
    tiles = gray.reshape(16, _SIZE // 16, 16, _SIZE // 16).mean(axis=(1, 3))
    centred = (tiles - tiles.mean()) / (tiles.std() + 1e-6)
    return {"x": centred.ravel().astype(np.float32), "y": element["label"]}


def training_data(folder: str) -> Dataset:
    """Random batches of augmented pictures, endlessly different, the same for the same seed."""
    return (
        Dataset.from_files(f"{folder}/train/*/*.jpg")
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
    from sklearn.neural_network import MLPClassifier
    from threadpoolctl import threadpool_limits

    test = next(iter(Dataset.from_files(f"{folder}/test/*/*.jpg").map(decode).map(features).batch(10_000)))
    model = MLPClassifier((256,), learning_rate_init=3e-4, random_state=0)
    meter = Meter()
    # numpy's threads would spin on the cores that the workers need.
    with threadpool_limits(1), training_data(folder).distribute(workers=_WORKERS) as batches:
        # On a terminal the last line is alive; elsewhere there is one line an epoch.
        with Live(console=console, auto_refresh=False, transient=True) as live:
            for epoch in range(1, _EPOCHS + 1):
                for batch in meter.measured(batches):
                    model.partial_fit(batch["x"], batch["y"], classes=np.arange(_CLASSES))
                    if not meter.workers:
                        meter.workers = len(batches.status()["workers"])
                        _say(
                            console, f"a service with {_workers(meter.workers)}: first batch after {meter.first:.1f} s"
                        )
                    live.update(_one_line(f"epoch {epoch:2}/{_EPOCHS}  {meter.line()}"), refresh=console.is_terminal)
                accuracy = float((model.predict(test["x"]) == test["y"]).mean())
                meter.workers = len(batches.status()["workers"])
                _say(console, f"epoch {epoch:2}/{_EPOCHS}  accuracy {accuracy:5.1%}  {meter.line()}")
                meter.epoch_ends()
        _say(console, f"Bottleneck: {batches.status()['bottleneck']['reason']}.")


def _one_line(text: str) -> Any:
    from rich.text import Text

    return Text(text, no_wrap=True, overflow="ellipsis")


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


class Rate:
    """Images that a loop took, and where its seconds went."""

    def __init__(self) -> None:
        self.images = 0
        self.waited = 0.0
        self.worked = 0.0

    @property
    def share(self) -> float:
        """Share of the loop's time spent waiting."""
        return self.waited / max(self.waited + self.worked, 1e-9)

    @property
    def per_second(self) -> float:
        """Images per second of the loop."""
        return self.images / max(self.waited + self.worked, 1e-9)


class Meter:
    """Meter of the loop: images per second and the share of waiting, of the epoch and in all.

    Attributes:
        workers: as the service says.
        first: seconds until the first batch of all; starting a service is not waiting for data, and neither that time
            nor that batch is in the rates.
    """

    def __init__(self) -> None:
        self.total, self.epoch = Rate(), Rate()
        self.workers = 0
        self.first = 0.0

    def measured(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield the batches of an epoch, and note the time until each came and the time the loop then took."""
        iterator = None
        while True:
            asked = time.perf_counter()
            iterator = iterator or iter(batches)
            batch = next(iterator, None)
            got = time.perf_counter()
            started, self.first = bool(self.first), self.first or got - asked
            if started:
                self._add(0, got - asked, 0.0)
            if batch is None:
                return
            yield batch
            if started:
                self._add(len(batch["y"]), 0.0, time.perf_counter() - got)

    def _add(self, images: int, waited: float, worked: float) -> None:
        for rate in (self.total, self.epoch):
            rate.images += images
            rate.waited += waited
            rate.worked += worked

    def epoch_ends(self) -> None:
        """Begin anew: the next line is about the next epoch."""
        self.epoch = Rate()

    def line(self) -> str:
        """Rates of this epoch."""
        return f"{self.epoch.per_second:5.0f} images/s  waited {self.epoch.share:4.0%}  {_workers(self.workers)}"


# -- the pictures ------------------------------------------------------------------------------------------------------


def _write_pictures(folder: str) -> tuple[int, int]:
    """Write ``train/<digit>/<n>.jpg`` and ``test/...``; return how many of each."""
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
