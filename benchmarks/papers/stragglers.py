"""Stragglers (MinatoLoader's problem): a few elements take fifty times as long as the others.

    python -m benchmarks.papers.stragglers [--elements N] [--rounds N] [--json FILE]

Of a hundred elements two take 100 ms and the others 2 ms, in an order drawn by a seed; eight are made at a time, and
batches have 32. An element's work is a wait, so that eight workers do not need eight cores: that is modelled, and all
else is not. The ideal is a pool of eight threads that hands on whatever is there. Everybody else keeps the order but
tf.data with ``deterministic=False``. Each reads one epoch in a process of its own, from which imports do not count, in
turns; the medians of rates are compared within a round.

It fails where millrace reaches less than 0.85 of the ideal, or less than a peer that keeps the order.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.papers.report import answer, verdict
from benchmarks.papers.throttled import pause

QUESTION = "How fast are elements made of which a few take fifty times as long?"
AT_A_TIME = 8
BATCH = 32
USUAL_S, SLOW_S, SHARE = 0.002, 0.1, 0.02
REACHED = 0.85
IDEAL, OURS, UNORDERED = "pool of threads, no order", "millrace, in process", "tf.data, deterministic=False"


class Work:
    """Function that waits as long as an element takes, and map-style dataset of what it returns.

    Args:
        elements: how many there are.
    """

    def __init__(self, elements: int) -> None:
        self.count = elements
        slow = np.random.default_rng(0).permutation(elements)[: int(SHARE * elements)]
        self._slow = frozenset(slow.tolist())

    def __call__(self, number: int) -> int:
        """Makes an element."""
        pause(SLOW_S if int(number) in self._slow else USUAL_S)
        return number

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        return self(number)


def pool(work: Work) -> Iterable[Any]:
    """Hands on elements as they are made."""
    from concurrent.futures import as_completed

    with ThreadPoolExecutor(AT_A_TIME) as threads:
        for done in as_completed([threads.submit(work, number) for number in range(len(work))]):
            yield [done.result()]


def millrace(work: Work) -> Iterable[Any]:
    """A pipeline in this process."""
    import millrace as mr

    return mr.Dataset.range(len(work)).map(work, num_parallel_calls=AT_A_TIME, key="work").batch(BATCH)


def torch(work: Work) -> Iterable[Any]:
    """A DataLoader, each batch of which one worker makes."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader
    batches: Iterable[Any] = loader(work, batch_size=BATCH, num_workers=AT_A_TIME)
    return batches


def tf_data(work: Work, *, deterministic: bool) -> Iterable[Any]:
    """A map of a Python function."""
    import tensorflow as tf

    def call(number: Any) -> Any:
        return tf.numpy_function(lambda each: np.int64(work(each)), [number], tf.int64)

    options = tf.data.Options()
    options.threading.private_threadpool_size = AT_A_TIME + 2  # else as many threads as there are cores
    made = tf.data.Dataset.range(len(work)).map(call, AT_A_TIME, deterministic=deterministic).batch(BATCH)
    batches: Iterable[Any] = made.prefetch(2).with_options(options).as_numpy_iterator()
    return batches


WAYS: Mapping[str, Callable[[Work], Iterable[Any]]] = {
    IDEAL: pool,
    OURS: millrace,
    "torch DataLoader": torch,
    "tf.data": lambda work: tf_data(work, deterministic=True),
    UNORDERED: lambda work: tf_data(work, deterministic=False),
}


def read(way: str, elements: int) -> float:
    """Reads one epoch; returns its elements a second.

    Raises:
        ValueError: not every element came once.
    """
    work = Work(elements)
    batches = WAYS[way](work)
    began = time.perf_counter()
    seen = np.concatenate([np.asarray(batch) for batch in batches])
    seconds = time.perf_counter() - began
    if sorted(seen.tolist()) != list(range(elements)):
        raise ValueError(f"{way} gave {len(seen)} elements, not each of {elements} once")
    return elements / seconds


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Figures of all rounds, a table, and what was aimed at."""
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(options.rounds):
        found = {}
        for way in sorted(WAYS, reverse=number % 2 == 1):
            command = [sys.executable, "-m", "benchmarks.papers.stragglers", "--way", way]
            command += ["--elements", str(options.elements)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[way] = {"elements": json.loads(done.stdout.splitlines()[-1])}
            print(f"  {way}: {found[way]['elements']:,.0f} elements/s", flush=True)
        for rate in found.values():
            rate["of the ideal"] = rate["elements"] / found[IDEAL]["elements"]
        rounds.append(found)
    medians = {
        way: {figure: statistics.median(each[way][figure] for each in rounds) for figure in rounds[0][way]}
        for way in WAYS
    }
    ordered = {way: medians[way]["elements"] for way in WAYS if way not in {IDEAL, OURS, UNORDERED}}
    reached, ahead = medians[OURS]["of the ideal"], medians[OURS]["elements"] / max(ordered.values())
    return {
        "modelled": "an element's work (a wait)",
        "rounds": rounds,
        "results": medians,
        "table": [
            ["", "elements/s", "of the ideal"],
            *([way, f"{each['elements']:,.0f}", f"{each['of the ideal']:.2f}"] for way, each in medians.items()),
        ],
        "aims": [
            {"aim": "elements/s, of the ideal", "value": reached, "asked": REACHED, "met": reached >= REACHED},
            {"aim": "the same, of the best peer that keeps the order", "value": ahead, "asked": 1, "met": ahead >= 1},
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all rounds; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.stragglers", description=QUESTION)
    parser.add_argument("--elements", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    told, _ = parser.parse_known_args(arguments)
    if told.way:
        print(json.dumps(read(told.way, told.elements)))
        return 0
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
