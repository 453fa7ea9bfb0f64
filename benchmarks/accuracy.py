"""What the guarantees mean for a training: is it the same one when workers die, and how well does each learn?

    python examples/pack_cifar10.py cifar10/train shards/train         # cifar10/train/<class>/<name>.jpg
    python examples/pack_cifar10.py cifar10/test shards/test
    python -m benchmarks.accuracy --data shards --identical            # minutes
    python -m benchmarks.accuracy --data shards --json benchmarks/results/accuracy.json

A small convolutional network learns CIFAR-10 from tar shards on a service of two workers; images are decoded, moved and
mirrored there. ``--identical`` trains twice with one seed and ``deterministic=True``, the second time with a worker
killed every 100 steps, and compares the loss of every step and the final weights, bit for bit; the exit status is 1
if one differs, or if no worker was killed. Without it, the same and then a training for each guarantee and seed: test
accuracy with 95 % confidence intervals (Student's t), what was read, lost and repeated, and the difference to exactly
once, paired by seed, which decides the initial weights as well as what is random in the data.

A kill counts if the process was alive before SIGKILL was sent and has ended after it. CIFAR-10 is not part of this
repository; ``--quick`` makes pictures of its own and shows that everything runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import glob
import hashlib
import io
import itertools
import json
import os
import select
import shlex
import signal
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import millrace as mr
from benchmarks.intervals import chance, interval
from benchmarks.machine import machine

CLASSES = 10
MARGIN = 4
"""Pixels by which an image is moved at most."""
PEAK_RATE = 0.1
WORKERS = 2
CACHE_BYTES = 1 << 30
"""More than there is to keep."""
BUFFER_BYTES = 8 << 20
"""In the training process, so that workers are at work until the end: all of an epoch is 150 MB."""
_SEEDING = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """One way to read the data.

    Attributes:
        name: in tables.
        options: of ``distribute``.
        kills: workers are killed meanwhile.
        draws: each element is drawn from all of them.
        cache: where elements are kept, "before" or "behind" what augments them; "": nowhere.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kills: bool = False
    draws: bool = False
    cache: str = ""


GUARANTEES = (
    Guarantee("exactly once", kills=True),
    Guarantee("at most once", {"visitation": mr.Visitation.AT_MOST_ONCE}, kills=True),
    Guarantee(
        "zero, once or more",
        {"sharding": mr.ShardingPolicy.OFF, "visitation": mr.Visitation.ZERO_ONCE_OR_MORE},
    ),
    Guarantee("with replacement", draws=True),
)


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is done."""

    epochs: int
    batch: int
    tasks: int
    kill_every: int
    """Steps from one kill to the next."""
    seeds: int
    shards: int | None = None
    """Of the training data, that are read; None: all."""


FULL = Size(epochs=2, batch=128, tasks=48, kill_every=100, seeds=5)
QUICK = Size(epochs=1, batch=32, tasks=8, kill_every=16, seeds=2)


@dataclasses.dataclass
class Training:
    """What came of one training.

    Attributes:
        losses: of every step.
        weights: hash of the final ones.
        accuracy: of the test images, in percent.
        elements: read, in all epochs.
        lost: elements of an epoch that did not come, summed over epochs.
        repeated: elements that came although they had come in the same epoch.
        kills: workers killed.
        at_work: of these, how many had a task that they had not finished.
        seconds: that it took.
        pictures: different ones that came.
        kept: elements that were in the cache in the end.
    """

    losses: list[float]
    weights: str
    accuracy: float
    elements: int
    lost: int
    repeated: int
    kills: int
    at_work: int
    seconds: float
    pictures: int = 0
    kept: int = 0


# -- data --------------------------------------------------------------------------------------------------------------


class Samples:
    """Samples of tar shards by number, as ``from_webdataset`` gives them in turn.

    Args:
        paths: of the shards, whose samples are called 000000, 000001, ...
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        places: dict[str, list[tuple[int, int, int]]] = {"jpg": [], "cls": []}
        for shard, path in enumerate(self._paths):
            with tarfile.open(path) as members:
                for member in members:
                    places[member.name.partition(".")[2]].append((shard, member.offset_data, member.size))
        self._places = {extension: np.array(found, np.int64) for extension, found in places.items()}

    def __len__(self) -> int:
        return len(self._places["jpg"])

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"__key__": f"{number:06}", **{extension: self._read(extension, number) for extension in self._places}}

    def _read(self, extension: str, number: int) -> bytes:
        shard, offset, size = self._places[extension][number].tolist()
        with open(self._paths[shard], "rb") as file:
            return os.pread(file.fileno(), size, offset)


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    """An image, uint8 of shape (32, 32, 3), its class, and its number in the shards."""
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))
    return {"image": image, "label": int(sample["cls"]), "number": int(sample["__key__"])}


def augment(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Mirrors half of the images, and moves each by up to four pixels."""
    image = element["image"][:, ::-1] if rng.random() < 0.5 else element["image"]
    down, right = rng.integers(0, 2 * MARGIN + 1, size=2)
    padded = np.zeros((32 + 2 * MARGIN, 32 + 2 * MARGIN, 3), np.uint8)
    padded[MARGIN:-MARGIN, MARGIN:-MARGIN] = image
    return {**element, "image": padded[down : down + 32, right : right + 32]}


def drawn(samples: Samples) -> mr.Dataset:
    """As many samples as there are, each drawn at random from all of them."""

    def draw(_: int, rng: np.random.Generator) -> dict[str, Any]:
        return samples[int(rng.integers(len(samples)))]

    return mr.Dataset.range(len(samples)).map(draw)


def make_pictures(folder: str) -> None:
    """Writes shards of small pictures whose class is their colour: 512 for training, 128 for the test."""
    from PIL import Image

    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (CLASSES, 3))
    for name, count in (("train", 512), ("test", 128)):
        with tarfile.open(f"{folder}/{name}-000.tar", "w") as shard:
            for number in range(count):
                label = int(rng.integers(CLASSES))
                picture = np.clip(colours[label] + rng.normal(0, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
                encoded = io.BytesIO()
                Image.fromarray(picture).save(encoded, "jpeg")
                for extension, content in (("jpg", encoded.getvalue()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:06}.{extension}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))


# -- a training --------------------------------------------------------------------------------------------------------


class Lesson:
    """What is to be learnt, and how much of it at a time: everything that is alike in all trainings."""

    def __init__(self, folder: str, size: Size) -> None:
        self.size = size
        self.shards = sorted(glob.glob(f"{folder}/train-*.tar"))[: size.shards]
        self.samples = Samples(self.shards)
        tests = mr.Dataset.from_webdataset(f"{folder}/test-*.tar").map(decode).batch(500)
        self.tests = [(batch["image"], batch["label"]) for batch in tests]

    def train(self, seed: int, guarantee: Guarantee, service: mr.LocalService) -> Training:
        """Trains once, on one thread, with a worker killed now and then if the guarantee asks for it."""
        import torch

        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        with _SEEDING:
            torch.manual_seed(seed)
            model = network()
        images = self.images(guarantee)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, weight_decay=5e-4)
        losses: list[float] = []
        elements = lost = repeated = due = 0
        killed: list[int] = []
        pictures: set[int] = set()
        began = time.perf_counter()
        with images.distribute(service.address, seed=seed, tasks=self.size.tasks, **guarantee.options) as served:
            reader = served.torch()
            for _ in range(self.size.epochs):
                came = np.zeros(len(self.samples), np.int64)
                for batch in reader:
                    np.add.at(came, batch["number"].numpy(), 1)
                    pictures.update(hash(image.tobytes()) for image in batch["image"].numpy())
                    done = (elements + came.sum()) / (self.size.epochs * len(self.samples))
                    for group in optimizer.param_groups:
                        group["lr"] = PEAK_RATE * min(4 * done, (1.01 - done) / 0.75)
                    losses.append(step(model, optimizer, batch))
                    due += guarantee.kills and len(losses) % self.size.kill_every == self.size.kill_every // 2
                    if due > len(killed):
                        killed += kill_worker(service)
                elements += int(came.sum())
                lost += int((came == 0).sum())
                repeated += int(np.maximum(came - 1, 0).sum())
        seconds = time.perf_counter() - began
        weights = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.state_dict().values())).hexdigest()
        at_work = sum(tasks > 0 for tasks in killed)
        cache = service.status()["cache"]
        kept = sum(point["items"] for point in cache["points"]) if cache is not None else 0
        return Training(
            losses,
            weights,
            self.test(model),
            elements,
            lost,
            repeated,
            len(killed),
            at_work,
            seconds,
            len(pictures),
            kept,
        )

    def images(self, guarantee: Guarantee) -> mr.Dataset:
        """Batches of the training images."""
        source = drawn(self.samples) if guarantee.draws else mr.Dataset.from_webdataset(self.shards)
        images = source.map(decode)
        if guarantee.cache == "before":
            images = images.autocache("cache")
        images = images.map(augment)
        if guarantee.cache == "behind":
            images = images.cache()
        return images.shuffle(5_000).batch(self.size.batch).with_options(buffer_bytes=BUFFER_BYTES)

    def test(self, model: Any) -> float:
        """Percentage of the test images that the model knows."""
        import torch

        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(pixels(torch.from_numpy(images))).argmax(1).numpy() == labels).sum())
                for images, labels in self.tests
            )
        return 100 * right / sum(len(labels) for _, labels in self.tests)


def network() -> Any:
    """Three convolutions and a linear layer, 34,000 weights."""
    from torch import nn

    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, CLASSES))


def pixels(images: Any) -> Any:
    """float32 of shape (n, 3, 32, 32) from uint8 of shape (n, 32, 32, 3); in memory the channels stay last: faster."""
    return images.permute(0, 3, 1, 2).float() / 128 - 1


def step(model: Any, optimizer: Any, batch: Mapping[str, Any]) -> float:
    """One step of training; its loss."""
    from torch.autograd import backward
    from torch.nn.functional import cross_entropy

    optimizer.zero_grad()
    loss = cross_entropy(model(pixels(batch["image"])), batch["label"])
    backward(loss)
    optimizer.step()
    return float(loss.item())


def kill_worker(service: mr.LocalService) -> list[int]:
    """Kills the worker that has most to do, and waits until it has ended.

    Returns:
        How many tasks it had not finished; nothing if no worker is there that could be killed.
    """
    workers = [worker for worker in service.status()["workers"] if worker["job"]]
    for worker in sorted(workers, key=lambda each: each["leases"], reverse=True):
        try:
            process = os.pidfd_open(worker["pid"])
        except ProcessLookupError:
            continue  # it was killed before, and the dispatcher waits for it to come back
        try:
            if select.select([process], [], [], 0)[0]:
                continue  # likewise: it has ended, and nobody has asked for its exit status
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [])
        finally:
            os.close(process)
        return [worker["leases"]]
    return []


# -- questions ---------------------------------------------------------------------------------------------------------


def difference(one: Training, other: Training) -> str:
    """Where two trainings differ, as a sentence; "" if they are the same, bit for bit."""
    if len(one.losses) != len(other.losses):
        return f"{len(one.losses)} steps and {len(other.losses)}"
    unlike = [number for number, pair in enumerate(zip(one.losses, other.losses, strict=True)) if pair[0] != pair[1]]
    if unlike:
        first = unlike[0]
        return (
            f"{len(unlike)} losses differ, first that of step {first}: {one.losses[first]!r}, {other.losses[first]!r}"
        )
    return "" if one.weights == other.weights else "the final weights differ"


def identical(lesson: Lesson, seed: int) -> dict[str, Any]:
    """Trains with one seed undisturbed and with workers killed, and says whether that made a difference."""
    with mr.LocalService(max_workers=WORKERS, threads=1) as service:
        calm, disturbed = (
            lesson.train(seed, Guarantee("exactly once", {"deterministic": True}, kills=kills), service)
            for kills in (False, True)
        )
    differs = difference(calm, disturbed)
    if not disturbed.kills:
        differs = differs or "no worker was killed, so nothing is shown"
    print(
        f"{len(calm.losses)} steps, workers killed: {disturbed.kills} ({disturbed.at_work} at work): "
        f"{differs or 'the same losses and weights, bit for bit'}",
        flush=True,
    )
    return {
        "seed": seed,
        "steps": len(calm.losses),
        "kills": disturbed.kills,
        "at_work": disturbed.at_work,
        "seconds": disturbed.seconds,
        "difference": differs,
    }


def compare(
    lesson: Lesson, ways: Sequence[Guarantee], together: int, report: Callable[[list[dict[str, Any]]], None]
) -> None:
    """Trains once for each seed and way to read, ``together`` at a time; gives the rows so far to ``report``."""

    def row(seed: int, guarantee: Guarantee) -> dict[str, Any]:
        with (
            tempfile.TemporaryDirectory(prefix="millrace-cache-") as folder,
            mr.LocalService(max_workers=WORKERS, threads=1, cache_dir=folder, cache_bytes=CACHE_BYTES) as service,
        ):
            training = dataclasses.asdict(lesson.train(seed, guarantee, service))
        return {"guarantee": guarantee.name, "seed": seed, "steps": len(training.pop("losses")), **training}

    rows = []
    with ThreadPoolExecutor(together) as pool:
        for found in pool.map(row, *zip(*itertools.product(range(lesson.size.seeds), ways), strict=True)):
            rows.append(found)
            report(rows)
            print(
                f"seed {found['seed']}, {found['guarantee']}: {found['accuracy']:.2f} %, {found['elements']} elements "
                f"read, {found['lost']} lost, {found['repeated']} repeated, {found['steps']} steps, workers "
                f"killed: {found['kills']} ({found['at_work']} at work), {found['seconds']:.0f} s",
                flush=True,
            )


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each way to read that has two trainings or more: accuracy with its interval, against the first, and counts.

    ``accuracy`` and ``against`` are (mean, how far the 95 % interval reaches to both sides), in percent and in
    percentage points; ``chance`` is the p-value of the paired test; the counts are means of a training.
    """
    of: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of.setdefault(row["guarantee"], []).append(row)
    reference = {row["seed"]: row["accuracy"] for row in next(iter(of.values()), [])}
    found: dict[str, dict[str, Any]] = {}
    for name, runs in of.items():
        if len(runs) < 2:
            continue
        differences = [row["accuracy"] - reference[row["seed"]] for row in runs]
        found[name] = {
            "accuracy": interval([row["accuracy"] for row in runs]),
            "against": interval(differences),
            "chance": chance(differences),
            **{
                count: float(np.mean([row[count] for row in runs]))
                for count in ("elements", "lost", "repeated", "steps", "kills", "at_work", "pictures", "kept")
            },
        }
    return found


def written(report: dict[str, Any], path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Puts what was found so far into the report, and into its file, if there is to be one."""
    report["runs"], report["results"] = rows, summary(rows)
    if path:
        with open(path, "w") as file:
            json.dump(report, file, indent=2)
            file.write("\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and prints; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", metavar="DIR", help="train-*.tar and test-*.tar, of examples/pack_cifar10.py")
    parser.add_argument("--identical", action="store_true", help="only whether kills change a deterministic training")
    parser.add_argument("--quick", action="store_true", help="little to learn, from pictures made for it")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="trainings at a time, a thread for each")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    if options.quick == bool(options.data):
        parser.error("say either --data DIR (CIFAR-10, packed by examples/pack_cifar10.py) or --quick")
    size = QUICK if options.quick else FULL
    report: dict[str, Any] = {
        "benchmark": "accuracy",
        "question": (__doc__ or "").split("\n")[0],
        "command": shlex.join(["python", "-m", "benchmarks.accuracy", *(arguments or sys.argv[1:])]),
        "machine": machine(),
        "size": dataclasses.asdict(size),
        "workers": WORKERS,
    }

    write = functools.partial(written, report, options.json)
    with tempfile.TemporaryDirectory(prefix="millrace-pictures-") as made:
        if options.quick:
            make_pictures(made)
        lesson = Lesson(options.data or made, size)
        report["elements"] = len(lesson.samples)
        report["identical"] = identical(lesson, seed=0)
        write([])
        if not options.identical:
            compare(lesson, GUARANTEES, options.together, write)
    for name, found in report["results"].items():
        (mean, reach), (gap, gap_reach) = found["accuracy"], found["against"]
        print(
            f"{name:20} {mean:6.2f} +- {reach:.2f} %, against {GUARANTEES[0].name} {gap:+.2f} +- {gap_reach:.2f} "
            f"(p = {found['chance']:.2f})"
        )
    return 1 if report["identical"]["difference"] else 0


if __name__ == "__main__":
    sys.exit(main())
