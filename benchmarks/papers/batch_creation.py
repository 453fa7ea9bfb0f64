"""OneAccess's Table 2: how fast batches are created from JPEG files that are cropped and resized.

    python -m benchmarks.papers.batch_creation [--pictures DIR] [--count N] [--rounds N] [--json FILE]

Each picture is decoded, its middle is cropped to a square and resized to 224 x 224, and batches have 32, in a random
order over all of the data. A torch DataLoader does so in each epoch, with 1, 2 and 4 workers. millrace keeps what was
made in a folder: the first epoch makes it, which is the one-time cost, and the three after it read it, the first of
these with every checksum looked at. Each reads in a process of its own, from which imports do not count, in turns; a
DataLoader's workers are there before its epoch is timed. The files are those below ``--pictures DIR``, CIFAR-10's say,
or of :mod:`benchmarks.pictures`.

The paper's system is 3.6 and 1.9 times as fast as a DataLoader with 1 and with 2 workers, on larger pictures and
another machine. It fails where millrace is less than 10 and 5 times as fast after the first epoch.
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.papers.report import answer, verdict
from benchmarks.pictures import folder_of

QUESTION = "How fast are batches created from JPEG files that are cropped and resized?"
SIDE = 224
BATCH = 32
COUNT = 4000
EPOCHS = 3
"""After the first."""
WORKERS = (1, 2, 4)
ASKED = {1: 10.0, 2: 5.0}
PAPER = {1: 3.6, 2: 1.9}
FIRST, LATER = "millrace, the first epoch", "millrace, epochs after it"


def cropped(content: bytes) -> np.ndarray:
    """Decodes a picture, and resizes the square in its middle; uint8 (224, 224, 3)."""
    from PIL import Image

    picture = Image.open(io.BytesIO(content)).convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    return np.asarray(square)


class Pictures:
    """Map-style dataset of files."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        import torch

        with open(self._paths[index], "rb") as file:
            return torch.from_numpy(cropped(file.read()).copy())


def files_in(folder: str, count: int) -> list[str]:
    """Paths of so many JPEG files, from all over the folders below.

    Raises:
        SystemExit: there are fewer.
    """
    paths = sorted(
        os.path.join(place, name) for place, _, names in os.walk(folder) for name in names if name.endswith(".jpg")
    )
    if len(paths) < count:
        sys.exit(f"there are {len(paths)} JPEG files below {folder}, and {count} are asked for")
    return paths[:: len(paths) // count][:count]


def loader_rate(paths: Sequence[str], workers: int) -> dict[str, float]:
    """Pictures a second of a DataLoader, after its first epoch."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader
    batches = loader(Pictures(paths), BATCH, shuffle=True, num_workers=workers, persistent_workers=True)
    rates = [_rate(batches, len(paths)) for _ in range(1 + EPOCHS)][1:]
    return {f"torch DataLoader, {workers} workers": statistics.harmonic_mean(rates)}


def millrace_rates(paths: Sequence[str]) -> dict[str, float]:
    """Pictures a second of the first epoch, which keeps them, and of those after it; and the bytes kept, in MB."""
    import millrace as mr

    with tempfile.TemporaryDirectory() as folder:
        kept = mr.Dataset.from_files(list(paths)).map(lambda file: cropped(file["bytes"])).cache(folder)
        batches = kept.shuffle(len(paths)).batch(BATCH)
        first = _rate(batches, len(paths))
        found = {FIRST: first, LATER: statistics.harmonic_mean([_rate(batches, len(paths)) for _ in range(EPOCHS)])}
        size = sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)
    return {**found, "MB kept": size / 1e6}


def _rate(batches: Iterable[Any], count: int) -> float:
    began, seen = time.perf_counter(), 0
    for batch in batches:
        seen += len(batch)
    if seen != count:
        raise ValueError(f"{seen} pictures of {count} came")
    return seen / (time.perf_counter() - began)


WAYS: Mapping[str, Callable[[Sequence[str]], dict[str, float]]] = {
    **{str(workers): functools.partial(loader_rate, workers=workers) for workers in WORKERS},
    "millrace": millrace_rates,
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of all rounds, a table, and what was aimed at."""
    folder = options.pictures or folder_of(options.count)
    rounds = []
    for number in range(options.rounds):
        found: dict[str, float] = {}
        for way in sorted(WAYS, reverse=number % 2 == 1):
            command = [sys.executable, "-m", "benchmarks.papers.batch_creation", "--way", way]
            command += ["--count", str(options.count), "--pictures", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found |= json.loads(done.stdout.splitlines()[-1])
        rounds.append(found)
        print("  " + ", ".join(f"{name}: {value:,.0f}" for name, value in found.items()), flush=True)
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    size = medians.pop("MB kept")
    faster = {
        workers: statistics.median(each[LATER] / each[f"torch DataLoader, {workers} workers"] for each in rounds)
        for workers in WORKERS
    }
    rows = [
        [name, f"{rate:,.0f}", f"{options.count / rate:.1f}", _against(name, faster)] for name, rate in medians.items()
    ]
    return {
        "rounds": rounds,
        "results": medians,
        "MB kept": size,
        "table": [["", "pictures/s", "seconds of an epoch", "as fast as it, millrace after the first epoch"], *rows],
        "aims": [
            {
                "aim": f"pictures/s after the first epoch, of a DataLoader with {workers} workers",
                "value": faster[workers],
                "asked": asked,
                "met": faster[workers] >= asked,
            }
            for workers, asked in ASKED.items()
        ],
    }


def _against(name: str, faster: Mapping[int, float]) -> str:
    """Times as fast as a DataLoader, beside what the paper has."""
    workers = next((each for each in WORKERS if name == f"torch DataLoader, {each} workers"), None)
    if workers is None:
        return ""
    paper = f" (the paper: {PAPER[workers]:g})" if workers in PAPER else ""
    return f"{faster[workers]:.1f} times{paper}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all rounds; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.batch_creation", description=QUESTION)
    parser.add_argument("--pictures", default="", metavar="DIR", help="folder of JPEG files; else some are made")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    told, _ = parser.parse_known_args(arguments)
    if told.way:
        print(json.dumps(WAYS[told.way](files_in(told.pictures, told.count))))
        return 0
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
