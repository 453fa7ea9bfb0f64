"""Cachew's Figure 11 without scaling: two jobs with the same pipeline, of which the second finds what the first kept.

    python -m benchmarks.papers.figure11 [--json FILE]

The first job measures, writes and reads: modes profile, put, get and get. The second one begins after the first has
written (``after``), or in the middle of that (``meanwhile``), and reads from its first epoch on. The function leaves a
word in a file for every element that it makes, so that what is computed is counted and not believed; and the blocks
that lie in the store when the second job begins are read, to count what is made again of their elements
(``made again``, which has to be 0). A mode is the one at an epoch's first element. One service, two workers; every
element takes 20 ms to make.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.papers.report import main
from benchmarks.papers.throttled import Work, made_so_far
from millrace import Dataset, LocalService
from millrace.blocks.block_reader import BlockReader
from millrace.blocks.stores.open_store import open_store

QUESTION = "Does a second job read what the first one keeps, from its first epoch on?"
ELEMENTS = 1200
NBYTES = 64 << 10
MADE_S = 0.020
EPOCHS = 4
TASKS = 30
CACHE_BYTES = 4 << 30


class Reader:
    """A job's epochs, one after the other, with their times and modes."""

    def __init__(self, service: LocalService, dataset: Dataset, name: str, epochs: int) -> None:
        self._service, self._name, self._epochs = service, name, epochs
        self._dataset = dataset
        self.epochs: list[dict[str, Any]] = []
        self.halfway = threading.Event()
        """The half of an epoch that began with writing has been read."""

    def read(self) -> None:
        """Reads all of them."""
        with self._dataset.distribute(self._service.address, job_name=self._name, tasks=TASKS) as served:
            for _ in range(self._epochs):
                began, seen, mode = time.perf_counter(), 0, ""
                for _ in served:
                    seen += 1
                    if seen == 1:
                        mode = self._mode()
                    elif seen == ELEMENTS // 2 and mode == "put":
                        self.halfway.set()
                if seen != ELEMENTS:
                    raise RuntimeError(f"{seen} elements came out of {ELEMENTS}")
                self.epochs.append({"mode": mode, "seconds": time.perf_counter() - began})

    def _mode(self) -> str:
        mode: str = next(job["mode"] for job in self._service.status()["jobs"] if job["name"] == self._name)
        return mode


def run(*, meanwhile: bool) -> dict[str, Any]:
    """Both jobs: what each did in each epoch, and what the second one computed."""
    with tempfile.TemporaryDirectory(prefix="millrace-figure11-") as folder:
        log = os.path.join(folder, "made")
        dataset = (
            Dataset.range(ELEMENTS)
            .map(Work(log, MADE_S, NBYTES), num_parallel_calls=2)
            .autocache()
            .shuffle(ELEMENTS)
            .batch(1)
        )
        cache = os.path.join(folder, "cache")
        with LocalService(2, 2, cache_dir=cache, cache_bytes=CACHE_BYTES) as service:
            first = Reader(service, dataset, "first", EPOCHS)
            second = Reader(service, dataset, "second", EPOCHS if not meanwhile else 2)
            thread = threading.Thread(target=first.read, name="first")
            thread.start()
            if not meanwhile:
                thread.join()
            elif not first.halfway.wait(300):
                raise RuntimeError("the first job did not write")
            kept, before = _kept(cache), made_so_far(log)
            second.read()
            thread.join()
            made = made_so_far(log)
    return {
        "first": first.epochs,
        "second": second.epochs,
        "made before": len(before),
        "kept before": len(kept),
        "made since": len(made) - len(before),
        "made again": len(kept.intersection(made[len(before) :])),
    }


def _kept(folder: str) -> set[int]:
    """Numbers of all elements that lie in a store."""
    store, found = open_store(folder), set[int]()
    for point, name in store.blocks():
        with contextlib.closing(store.open(point, name)) as block:
            reader = BlockReader(block)
            found.update(int(element[0]) for item in reader.read(range(len(reader.index))) for element in item)
    return found


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    found = {}
    for name, meanwhile in (("after", False), ("meanwhile", True)):
        found[name] = run(meanwhile=meanwhile)
        print(f"the second job begins {name}:")
        for job in ("first", "second"):
            print(f"  {job:6}", ", ".join(f"{each['mode']} {each['seconds']:.1f} s" for each in found[name][job]))
        counts = {key: value for key, value in found[name].items() if isinstance(value, int)}
        print("  items:", ", ".join(f"{key} {value}" for key, value in counts.items()), flush=True)
    again = sum(each["made again"] for each in found.values())
    return {"elements": ELEMENTS, "rounds": [{"service": {"again": again}}], "table": _table(found), "results": found}


def _table(found: Mapping[str, Any]) -> list[list[str]]:
    """For the page of figures."""
    head = [
        "the second job begins",
        "job",
        *(f"epoch {number}" for number in range(EPOCHS)),
        "kept before",
        "made again",
    ]
    rows = [head]
    for name, each in found.items():
        for job in ("first", "second"):
            epochs = [f"{epoch['mode']}, {epoch['seconds']:.1f} s" for epoch in each[job]]
            counts = [f"{each[count]:,}" if job == "second" else "" for count in ("kept before", "made again")]
            rows.append([name, job, *epochs, *[""] * (EPOCHS - len(epochs)), *counts])
    return rows


if __name__ == "__main__":
    main("benchmarks.papers.figure11", QUESTION, measure)
