#!/usr/bin/env python3
"""Overhead per element: a million integers, plus one, in batches of 1024, in one process.

    python benchmarks/small.py [--elements N] [--rounds N] [--json FILE]

Every contender runs the same Python function on every element and yields numpy arrays (or tensors) of 1024. They take
turns, round after round, so that whatever else the machine does strikes all of them alike; figures are medians over
rounds. Those that are slow get fewer elements, so that a round of each takes about as long. torch and TensorFlow take
part if they are installed; ``tf.data, native`` replaces the Python function by TensorFlow's own addition.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

BATCH = 1024

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


def plus_one(number: Any) -> Any:
    """What each element goes through."""
    return number + 1


def bare_loop(count: int) -> Iterable[Any]:
    """What it takes at least."""
    for start in range(0, count, BATCH):
        yield np.array([plus_one(number) for number in range(start, min(start + BATCH, count))])


def millrace(count: int) -> Iterable[Any]:
    """This project, in process."""
    from millrace import Dataset

    return Dataset.range(count).map(plus_one).batch(BATCH)


def torch_loader(count: int) -> Iterable[Any]:
    """The DataLoader of torch, in this process; workers of its own only add to its cost here."""
    from torch.utils.data import DataLoader, Dataset

    class Numbers(Dataset[int]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> int:
            return int(plus_one(index))

    return DataLoader(Numbers(), batch_size=BATCH)


def tf_python(count: int) -> Iterable[Any]:
    """tf.data with the Python function."""
    import tensorflow as tf

    def call(number: Any) -> Any:
        return tf.numpy_function(plus_one, [number], tf.int64, stateful=False)

    yield from tf.data.Dataset.range(count).map(call, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)


def tf_native(count: int) -> Iterable[Any]:
    """tf.data with an operation of its own."""
    import tensorflow as tf

    yield from tf.data.Dataset.range(count).map(plus_one, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)


CONTENDERS: dict[str, tuple[Callable[[int], Iterable[Any]], str, float]] = {
    "bare loop": (bare_loop, "numpy", 1.0),
    "millrace": (millrace, "millrace", 1.0),
    "torch DataLoader": (torch_loader, "torch", 0.2),
    "tf.data, Python function": (tf_python, "tensorflow", 0.02),
    "tf.data, native": (tf_native, "tensorflow", 0.1),
}
"""By name: what makes the batches, the library it needs, the share of elements it gets."""


def rate(make: Callable[[int], Iterable[Any]], count: int) -> float:
    """Elements per second of one pass, with all that a pass takes."""
    gc.collect()
    began = time.perf_counter()
    found = sum(len(batch) for batch in make(count))
    seconds = time.perf_counter() - began
    if found != count:
        raise RuntimeError(f"{found} elements came out of {count}")
    return count / seconds


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE", help="writes figures here, too")
    options = parser.parse_args()
    chosen = {
        name: (make, max(BATCH, int(share * options.elements)))
        for name, (make, library, share) in CONTENDERS.items()
        if importlib.util.find_spec(library) is not None
    }
    for make, _ in chosen.values():
        rate(make, BATCH)  # imports, and whatever else is done once
    rates: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(options.rounds):
        for name, (make, count) in chosen.items():
            rates[name].append(rate(make, count))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    base = medians["bare loop"]
    width = max(map(len, medians))
    for name, median in medians.items():
        low, high = min(rates[name]), max(rates[name])
        spread = f"{low / 1e6:.2f} to {high / 1e6:.2f}"
        print(f"{name:{width}}  {median / 1e6:7.2f} M elements/s  ({spread})  {median / base:6.3f} of the bare loop")
    if options.json:
        figures = {
            "benchmark": "small",
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "elements": options.elements,
            "batch": BATCH,
            "elements_per_s": {name: {"median": medians[name], "rounds": each} for name, each in rates.items()},
            "of_bare_loop": {name: median / base for name, median in medians.items()},
        }
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
