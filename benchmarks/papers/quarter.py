"""A cache of a quarter of what a job reads, on a service: what of an epoch is still made, beside the ideal and LRU.

    python -m benchmarks.papers.quarter [--json FILE]

Every epoch reads all elements once, in another random order. The least that has to be made is three quarters; the
function leaves a word in a file for every element that it makes, so that this is counted and not believed. ``saved``
is the share that was not made, over the capacity's share of all bytes; what was aimed at is 0.95. LRU is simulated (see
:mod:`benchmarks.papers.eviction`). One service, two workers, and a point whose cache is used in any case: whether it
is worth it is another question. The first three epochs don't count: they write, and fill what was left.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from benchmarks.papers import eviction
from benchmarks.papers.report import main
from benchmarks.papers.throttled import Work, made_so_far
from millrace import Dataset, LocalService

QUESTION = "How much does a cache save that holds a quarter?"
ELEMENTS = 3000
NBYTES = 64 << 10
SHARE = 0.25
MADE_S = 0.005
EPOCHS = 9
BEGUN = 3
TASKS = 200


def run() -> list[dict[str, Any]]:
    """What was made in each epoch, and how much the cache held then."""
    epochs, before = [], 0
    with tempfile.TemporaryDirectory(prefix="millrace-quarter-") as folder:
        log = os.path.join(folder, "made")
        dataset = (
            Dataset.range(ELEMENTS)
            .map(Work(log, MADE_S, NBYTES), num_parallel_calls=2)
            .autocache("cache")
            .shuffle(ELEMENTS)
            .batch(1)
        )
        limit = int(SHARE * ELEMENTS * NBYTES)
        with (
            LocalService(2, 2, cache_dir=os.path.join(folder, "cache"), cache_bytes=limit) as service,
            dataset.distribute(service.address, tasks=TASKS, workers=2) as served,
        ):
            for _ in range(EPOCHS):
                if sum(1 for _ in served) != ELEMENTS:
                    raise RuntimeError("an epoch has not all elements")
                status = service.status()
                made = len(made_so_far(log))
                cache = status["cache"]
                (job,) = status["jobs"]
                epochs.append(
                    {
                        "mode": job["mode"],
                        "why": job["cache"]["why"],
                        "made": made - before,
                        "bytes": cache["bytes"],
                        "limit": limit,
                    }
                )
                print(f"  {job['mode']:8} made {made - before}, {cache['bytes']:,} bytes kept: {job['cache']['why']}")
                before = made
                if cache["bytes"] > limit:
                    raise RuntimeError(f"{cache['bytes']} bytes are kept, and {limit} were allowed")
    return epochs


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    epochs = run()
    made = [each["made"] / ELEMENTS for each in epochs[BEGUN:]]
    saved = (1 - sum(made) / len(made)) / SHARE
    job = eviction.ONE[0]
    lru = eviction.hit_ratios(eviction.Recent(round(SHARE * job.blocks)), [job])[job.name] / SHARE
    print(f"made: {', '.join(f'{each:.3f}' for each in made)} of all; saved {saved:.3f} of the ideal, LRU {lru:.3f}")
    rows = [["", "saved, of the ideal"], ["millrace, on a service", f"{saved:.3f}"], ["LRU, simulated", f"{lru:.3f}"]]
    return {"share": SHARE, "rounds": [{"service": {"saved": saved}}], "table": rows, "results": epochs}


if __name__ == "__main__":
    main("benchmarks.papers.quarter", QUESTION, measure)
