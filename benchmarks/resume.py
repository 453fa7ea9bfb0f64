"""What a state costs: the time of a call to ``state_dict()`` and the bytes of what it gives, as JSON.

In process and on a service, asked after every step of a training; and for one of eight ranks that have read half of
10,000 tasks, first come, first served, as bookkeeping alone: each call after another task was read to its end.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import millrace
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from millrace.planning.checkpoint import Checkpoint, pack
from millrace.planning.progress import Progress

RANKS = 8
TASKS = 10_000


def _cost(steps: Iterable[Any], state: Callable[[], dict[str, Any]]) -> Mapping[str, float]:
    times, most = [], 0
    for _ in steps:
        began = time.perf_counter()
        found = state()
        times.append(time.perf_counter() - began)
        most = max(most, len(json.dumps(found)))
    return {"cost": 1e6 * statistics.median(times), "size": most}


def _kept(number: int) -> bool:
    return number % 3 > 0


def _pipeline(options: Options) -> millrace.Dataset:
    return millrace.Dataset.range(options["steps"] * 96).filter(_kept).shuffle(1000, seed=1).batch(64)


def _in_process(options: Options) -> Mapping[str, float]:
    elements = iter(_pipeline(options))
    return _cost(elements, elements.state_dict)


def _served(options: Options) -> Mapping[str, float]:
    with millrace.LocalService(max_workers=1) as service, _pipeline(options).distribute(service.address) as served:
        elements = iter(served)
        return _cost(elements, elements.state_dict)


def _one_of_many(options: Options) -> Mapping[str, float]:
    rng = random.Random(1)
    mine = [task for task in range(TASKS // 2) if rng.randrange(RANKS) == 0]
    progress = Progress()

    def read() -> Iterable[int]:
        for count, task in enumerate(mine):
            progress.yielded(task, 3)
            progress.ends(task, 3)
            if count >= len(mine) // 2:
                yield task

    def state() -> dict[str, Any]:
        done, begun = progress.now()
        return pack(Checkpoint(seed=1, done=done.low, later=done.text(), begun=begun, ranks=RANKS))

    return _cost(read(), state)


BENCHMARK = Benchmark(
    question="What does a saved state cost?",
    figures={
        "cost": Figure("us a call", digits=1, more_is_better=False),
        "size": Figure("bytes at most", digits=0, more_is_better=False),
    },
    contestants=(
        Contestant("in process", _in_process),
        Contestant("on a service", _served),
        Contestant("one of 8 ranks, 10,000 tasks", _one_of_many),
    ),
    reference="in process",
    sizes={"steps": Size(2_000, 50, "steps of an epoch")},
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.resume"))
