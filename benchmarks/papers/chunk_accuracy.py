"""Quiver's Figure 2 for data chunks: does a training learn as well from one chunk after the other as from all shuffled?

    python -m benchmarks.papers.chunk_accuracy --cifar DIR [--seeds N] [--epochs N] [--json FILE]

DIR has CIFAR-10 as files ``train/<class>/<number>.jpg`` and ``test/<class>/<number>.jpg``, which a pipeline would list
class after class. A ResNet-9 learns them in three orders, with the same initial weights and the same
augmentations, step by step, for each seed:

- "all shuffled": each epoch is a permutation of all images, as the plan of a service has it without chunks;
- "chunks": the same plan in ten chunks (``ChunkedPlan``, ``ChunkedPermutation``). In which order a job takes them is
  what `policies/caching/kept_chunks.py` says where two jobs of the same speed have begun before, at another place for
  each seed, and read on meanwhile;
- "sorted stretches": the control. Each chunk is a tenth of the sorted listing, which is one class, and they come in
  turn: mixed within, and not with one another.

Images are decoded once and lie on the accelerator, if there is one, where they are also augmented; no service runs, as
what is asked for is the effect of the order alone.

It fails where the mean difference between "chunks" and "all shuffled", paired by seed, is clearly not 0: larger than
its 95 % confidence interval (Student's t) reaches, and than the standard deviation between seeds; where that interval
is so wide that nothing would be seen; where "all shuffled" learns badly; or where the control is not told apart.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import millrace as mr
from benchmarks.intervals import chance, interval
from benchmarks.machine import cores
from benchmarks.papers.report import answer, verdict
from millrace.graph.notation import graph_of
from millrace.planning.chunks import shuffle_in_chunks
from millrace.planning.orders import EpochOrders, FullPermutation, Order
from millrace.planning.plan import ChunkedPlan, make_plan
from millrace.planning.random_keys import derive
from millrace.planning.split_table import SplitTable
from millrace.planning.units import UnitMap
from millrace.policies.caching.kept_chunks import LEAST_CHUNKS, choose_kept, next_chunk

QUESTION = "Does a training learn as well from data in chunks as from a shuffle of all data?"
SHUFFLED, CHUNKS, SORTED = WAYS = ("all shuffled", "chunks", "sorted stretches")
CLASSES = 10
MARGIN = 4
"""Pixels by which an image is moved at most."""
PEAK_RATE, WARM = 0.4 / 512, 0.2
"""Learning rate at its peak, for each image of a step, and share of the steps after which it is there."""
LEAST_ACCURACY = 88.0
MOST_REACH = 0.5
"""Percentage points to which the interval may reach to each side: less than what an order that is worse would cost."""
_AT_ONCE = 1000

Numbers = npt.NDArray[np.int64]


# -- orders ------------------------------------------------------------------------------------------------------------


class Orders:
    """Orders in which a service would deal the images of a pipeline, by way, seed and epoch.

    Args:
        count: number of images.
        batch: images of a step.
    """

    def __init__(self, count: int, batch: int) -> None:
        self._count, self._batch = count, batch
        files = mr.Dataset.from_files("s3://cifar10/train/*/*.jpg").map(_decode)
        graph = graph_of(files.shuffle(count).batch(batch))
        assert graph is not None
        self._units = UnitMap(graph, {number: SplitTable(cheap=True, count=count) for number, _ in graph.sources()})
        shuffle = shuffle_in_chunks(self._units)
        assert shuffle is not None, "such a pipeline is read in chunks"
        self._shuffle = shuffle
        self._whole = make_plan(graph, self._units.tables)
        plan = make_plan(graph, self._units.tables, chunks=LEAST_CHUNKS)
        assert isinstance(plan, ChunkedPlan)
        self._chunked = plan

    def epochs(self, way: str, seed: int, epochs: int) -> list[list[Numbers]]:
        """Numbers of the images of each batch of each epoch, in the listing's order.

        Raises:
            RuntimeError: an epoch has not each image once.
        """
        turns = chunk_orders(self._chunked, epochs, seed) if way == CHUNKS else [[*range(LEAST_CHUNKS)]] * epochs
        found = [self._epoch(way, seed, epoch, turns[epoch]) for epoch in range(epochs)]
        for batches in found:
            if not np.array_equal(np.sort(np.concatenate(batches)), np.arange(self._count)):
                raise RuntimeError(f"an epoch of {way} has not each image once")
        return found

    def _epoch(self, way: str, seed: int, epoch: int, turns: Sequence[int]) -> list[Numbers]:
        order = self._order(way, seed, epoch)
        if way == SHUFFLED:
            assert self._whole.length is not None
            tasks = [*range(self._whole.length)]
            parts = [self._whole.task(index) for index in tasks]
        else:
            parts = [self._chunked.task(index) for chunk in turns for index in range(*self._chunked.chunk(chunk))]
        units = (unit for part in parts for unit in range(part.start, part.stop))
        bounds = ((unit * self._batch, min((unit + 1) * self._batch, self._count)) for unit in units)
        return [order.at(np.arange(start, stop)) for start, stop in bounds]

    def _order(self, way: str, seed: int, epoch: int) -> Order:
        orders = EpochOrders(self._units, seed, epoch, LEAST_CHUNKS if way == CHUNKS else 0)
        if way == SORTED:
            return SortedStretches(self._count, orders.key(self._shuffle, 0), LEAST_CHUNKS)
        return orders.of(self._shuffle, 0)


class SortedStretches:
    """Order of stretches of ``range(count)``, one after the other, each permuted as a key chooses."""

    windowed = False

    def __init__(self, count: int, key: int, stretches: int) -> None:
        self._bounds = np.arange(stretches + 1) * count // stretches
        sizes = np.diff(self._bounds).tolist()
        self._orders = [FullPermutation(size, derive(key, number)) for number, size in enumerate(sizes)]

    def at(self, positions: Numbers) -> Numbers:
        """Units at these positions."""
        which = np.searchsorted(self._bounds, positions, side="right") - 1
        found = np.empty_like(positions)
        for stretch in np.unique(which).tolist():
            chosen, start = np.flatnonzero(which == stretch), self._bounds[stretch]
            found[chosen] = start + self._orders[stretch].at(positions[chosen] - start)
        return found

    def stretches(self, positions: Numbers) -> Any:
        """Units at these positions, in one go."""
        yield self.at(positions)


class _Reader:
    """A job's place in its epoch."""

    def __init__(self) -> None:
        self.begun = list[int]()
        self.to_deal = 0

    def left(self, plan: ChunkedPlan, chunk: int) -> float:
        """Share of a chunk's tasks that are still to be dealt in this epoch."""
        if chunk not in self.begun:
            return 1.0
        first, stop = plan.chunk(chunk)
        return self.to_deal / (stop - first) if chunk == self.begun[-1] else 0.0


def chunk_orders(plan: ChunkedPlan, epochs: int, seed: int) -> list[list[int]]:
    """Play the policies of chunks for three jobs that read equally fast, and return the last one's chunks by epoch.

    Two have begun together before it: so many tasks as the seed says, of an epoch at most.
    """
    assert plan.length is not None
    jobs, last = [_Reader(), _Reader()], _Reader()
    kept: list[int] = []
    found = list[list[int]]()
    before = derive(seed) % plan.length
    for turn in range(before + epochs * plan.length):
        reading = [*jobs, last] if turn >= before else jobs
        for reader in reading:
            if not reader.to_deal:
                if len(reader.begun) in (0, plan.chunks):
                    reader.begun = []
                    if reader is last:
                        found.append(reader.begun)
                fresh = set(range(plan.chunks)) - set(reader.begun)
                others = [each.begun[-1] for each in reading if each.to_deal]
                reader.begun.append(next_chunk(plan.chunks, reader.begun[-1:], fresh, kept, others))
                start, stop = plan.chunk(reader.begun[-1])
                reader.to_deal = stop - start
            reader.to_deal -= 1
            read = {each.begun[-1] for each in reading if each.to_deal}
            left = {chunk: [each.left(plan, chunk) for each in reading] for chunk in {*kept, *read}}
            midst = {chunk: [each.left(plan, chunk) for each in reading if chunk in each.begun] for chunk in kept}
            kept = choose_kept(kept, left, read, midst).value
    return found


# -- images ------------------------------------------------------------------------------------------------------------


def read_pictures(folder: str, limit: int = 0) -> tuple[npt.NDArray[np.uint8], Numbers]:
    """Decode the pictures of a folder, sorted by class and name.

    Args:
        folder: of files ``<class>/<number>.jpg``, all of 32 times 32 pixels.
        limit: so many of them at most, equally far apart in the listing; 0: all.

    Returns:
        uint8 of shape (n, 32, 32, 3), and the number of each one's class.
    """
    files = sorted(Path(folder).glob("*/*.jpg"))
    classes = {name: number for number, name in enumerate(sorted({file.parent.name for file in files}))}
    if limit:
        files = [files[at * len(files) // limit] for at in range(min(limit, len(files)))]
    with ThreadPoolExecutor(cores()) as pool:
        images = np.stack(list(pool.map(_decode, (file.read_bytes() for file in files))))
    return images, np.array([classes[file.parent.name] for file in files])


def _decode(data: bytes) -> npt.NDArray[np.uint8]:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


class Images:
    """All images, on the device that trains.

    Args:
        folder: of the folders ``train`` and ``test``.
        limit: as of :func:`read_pictures`, of each of them.
    """

    def __init__(self, folder: str, limit: int) -> None:
        import torch

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        images, labels = read_pictures(os.path.join(folder, "train"), limit)
        edges = ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0))
        self.padded = torch.from_numpy(np.pad(images, edges, "reflect")).to(self.device)
        self.labels = torch.from_numpy(labels).to(self.device)
        tests, answers = read_pictures(os.path.join(folder, "test"), limit)
        self.tests, self.answers = torch.from_numpy(tests).to(self.device), torch.from_numpy(answers).to(self.device)
        self._mean = torch.tensor(images.mean((0, 1, 2)), dtype=torch.float32, device=self.device)
        self._spread = torch.tensor(images.std((0, 1, 2)), dtype=torch.float32, device=self.device)

    @property
    def name(self) -> str:
        """Name of the device."""
        import torch

        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    def augmented(self, numbers: Any, moved: Any, mirrored: Any) -> Any:
        """Images of these numbers, each moved and mirrored as it is said: as :meth:`pixels` gives them."""
        import torch

        steps = torch.arange(32, device=self.device)
        rows = moved[:, :1] + steps
        columns = moved[:, 1:] + torch.where(mirrored[:, None], 31 - steps, steps)
        return self.pixels(self.padded[numbers[:, None, None], rows[:, :, None], columns[:, None, :]])

    def pixels(self, images: Any) -> Any:
        """float32 of shape (n, 3, 32, 32) from uint8 of shape (n, 32, 32, 3); in memory the channels stay last."""
        return ((images.float() - self._mean) / self._spread).permute(0, 3, 1, 2)


# -- a training --------------------------------------------------------------------------------------------------------


def network(width: int) -> Any:
    """ResNet-9 (D. Page, "How to Train Your ResNet", 2019); ``width``: channels of its first convolution, 64 there."""
    import torch
    from torch import nn

    def convolution(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.inner = nn.Sequential(*convolution(channels, channels), *convolution(channels, channels))

        def forward(self, given: torch.Tensor) -> Any:
            return given + self.inner(given)

    class Scaled(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return given / 8

    layers = convolution(3, width)
    for before, after, residual in ((1, 2, True), (2, 4, False), (4, 8, True)):
        layers += [*convolution(before * width, after * width), nn.MaxPool2d(2)]
        layers += [Residual(after * width)] if residual else []
    return nn.Sequential(
        *layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(8 * width, CLASSES, bias=False), Scaled()
    ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train(images: Images, epochs: Sequence[Sequence[Numbers]], seed: int, width: int) -> dict[str, Any]:
    """Train once.

    Args:
        images: all of them.
        epochs: numbers of the images of each batch of each epoch.
        seed: of the initial weights and of what augments.
        width: of the network.

    Returns:
        percentage of the test images that the model knows after each epoch, and the seconds of it all.
    """
    import torch
    from torch.autograd import backward
    from torch.nn.functional import cross_entropy

    torch.manual_seed(seed)
    model = network(width).to(images.device)
    on_gpu = images.device.type == "cuda"
    torch.backends.cudnn.benchmark = on_gpu
    half = torch.autocast(images.device.type, torch.bfloat16, enabled=on_gpu)
    random = torch.Generator(images.device).manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps, done, peak = sum(map(len, epochs)), 0, PEAK_RATE * len(epochs[0][0])
    curve = []
    began = time.perf_counter()
    for batches in epochs:
        model.train()
        numbers = torch.from_numpy(np.concatenate(batches)).to(images.device)
        moved = torch.randint(0, 2 * MARGIN + 1, (len(numbers), 2), generator=random, device=images.device)
        mirrored = torch.rand(len(numbers), generator=random, device=images.device) < 0.5
        bounds = [0, *itertools.accumulate(len(batch) for batch in batches)]
        for start, stop in itertools.pairwise(bounds):
            each, by, mirror = numbers[start:stop], moved[start:stop], mirrored[start:stop]
            share = (done + 1) / steps
            for group in optimizer.param_groups:
                group["lr"] = peak * min(share / WARM, (1 - done / steps) / (1 - WARM))
            with half:
                found = model(images.augmented(each, by, mirror))
            loss = cross_entropy(found.float(), images.labels[each], label_smoothing=0.1)
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            done += 1
        model.eval()
        with torch.no_grad(), half:
            right = sum(
                (model(images.pixels(images.tests[at : at + _AT_ONCE])).argmax(1) == images.answers[at : at + _AT_ONCE])
                .sum()
                .item()
                for at in range(0, len(images.tests), _AT_ONCE)
            )
        curve.append(100 * right / len(images.tests))
    return {"curve": curve, "seconds": time.perf_counter() - began}


# -- what came of it ---------------------------------------------------------------------------------------------------


def aims(accuracies: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it, of the accuracy of each seed in each order; two seeds at least."""
    mean, reach = interval(_gaps(accuracies, CHUNKS))
    spread = statistics.stdev(accuracies[SHUFFLED])
    control, control_reach = interval(_gaps(accuracies, SORTED))
    known = statistics.fmean(accuracies[SHUFFLED])
    most = max(reach, min(spread, MOST_REACH))
    rows = (
        ("all shuffled: test accuracy, %", known, known >= LEAST_ACCURACY, f">= {LEAST_ACCURACY:g}"),
        (
            "chunks against all shuffled, points",
            mean,
            abs(mean) <= most,
            f"within {most:.2f} of 0: the interval's {reach:.2f}, or the {spread:.2f} between seeds",
        ),
        ("interval of this difference, points to each side", reach, reach <= MOST_REACH, f"<= {MOST_REACH:g}"),
        (
            "sorted stretches against all shuffled, at most, points",
            control + control_reach,
            control < -control_reach,
            "< 0",
        ),
    )
    return [{"aim": aim, "value": value, "asked": asked, "met": met} for aim, value, met, asked in rows]


def _gaps(accuracies: Mapping[str, Sequence[float]], way: str) -> list[float]:
    """Differences to a shuffle of all, by seed."""
    return [mine - other for mine, other in zip(accuracies[way], accuracies[SHUFFLED], strict=True)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Trains and prints."""
    images = Images(options.cifar, options.limit)
    count = len(images.labels)
    orders = Orders(count, options.batch)
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way, found in results.items():
            found.append(train(images, orders.epochs(way, seed, options.epochs), seed, options.width))
            last = found[-1]
            print(f"seed {seed}  {way:17} {last['curve'][-1]:6.2f} %  {last['seconds']:6.1f} s", flush=True)
    accuracies = {way: [each["curve"][-1] for each in found] for way, found in results.items()}
    several = options.seeds > 1
    head = [
        "",
        "test accuracy, %",
        "against all shuffled",
        "p",
        "of each seed",
        f"seconds of a training, {images.name}",
    ]
    table = [head]
    for way, values in accuracies.items():
        cells = [f"{statistics.fmean(values):.2f}", "", ""]
        if several:
            cells[0] += f" ± {interval(values)[1]:.2f}"
        if several and way != SHUFFLED:
            mean, reach = interval(_gaps(accuracies, way))
            cells[1:] = [f"{mean:+.2f} ± {reach:.2f}", f"{chance(_gaps(accuracies, way)):.2g}"]
        seconds = statistics.median(each["seconds"] for each in results[way])
        table.append([way, *cells, ", ".join(f"{value:.2f}" for value in values), f"{seconds:.1f}"])
    return {
        "modelled": "no service deals these orders: they are computed from its plan and its policies of chunks",
        "device": images.name,
        "images": count,
        "size": {name: getattr(options, name) for name in ("epochs", "seeds", "batch", "width")},
        "rounds": [
            {way: {"accuracy": values[seed]} for way, values in accuracies.items()} for seed in range(options.seeds)
        ],
        "results": results,
        "table": table,
        "aims": aims(accuracies) if several else [],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.chunk_accuracy", description=QUESTION)
    parser.add_argument(
        "--cifar", required=True, metavar="DIR", help="CIFAR-10: train/<class>/*.jpg and test/<class>/*.jpg"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=5, help="with one, nothing is aimed at")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--width", type=int, default=64, help="channels of the network's first convolution")
    parser.add_argument("--limit", type=int, default=0, help="images of each set, at most (default: all)")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
