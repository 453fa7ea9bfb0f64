"""Cachew's Figure 8 as a model: which mode is chosen as computing gets more expensive, beside how long each one takes.

    python -m benchmarks.papers.figure8_model [--json FILE]

Read, autocache, inflate by 2.5, sleep for t, autocache, batch. The source gives a batch in 350 ms and the cache has 2.2
times its bandwidth, so that reading an inflated batch from the cache takes 398 ms: the curves of the paper cross at 350
and at 400 ms. Everything runs beside everything else. The policy is given what a profile measures, and no more; the
times that it is compared with are worked out here, without it. What Cachew's sum of reading and computing would choose
from the same measures is beside it: never to compute, though that is fastest or within 3 % of it in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.papers.report import main
from millrace.policies.caching.autocache import PROFILE_BATCHES, CandidatePoint, choose_mode
from millrace.policies.caching.cache_cost_model import Passed, Profile, Stage, StoreModel

SOURCE, FULL = 1, 4
"""Node ids of the points: after reading, and after all else."""
NAMES = {None: "compute", SOURCE: "source cache", FULL: "full cache"}
BATCH_BYTES = 100_000_000
READ_S = 0.350
INFLATED = 2.5
FASTER = 2.2
EPOCH_BATCHES = 10_000


class Throttled(msgspec.Struct, frozen=True):
    """A store of so many bytes per second."""

    bytes_per_s: float

    def seconds(self, size: int, /) -> float:
        """Of one read or write."""
        return size / self.bytes_per_s


CACHE = Throttled(FASTER * BATCH_BYTES / READ_S)


def takes(sleep_s: float) -> dict[str, float]:
    """Seconds of a batch in each mode."""
    return {
        "compute": max(READ_S, sleep_s),
        "source cache": max(READ_S / FASTER, sleep_s),
        "full cache": READ_S * INFLATED / FASTER,
    }


def added(sleep_s: float) -> str:
    """What has the least sum of reading and computing (Cachew 4.4)."""
    sums = {
        "compute": READ_S + sleep_s,
        "source cache": READ_S / FASTER + sleep_s,
        "full cache": READ_S * INFLATED / FASTER,
    }
    return min(sums, key=sums.__getitem__)


def profile(sleep_s: float) -> Profile:
    """What is measured in 300 batches: a thread reads, the one that pulls sleeps."""
    batch_s = takes(sleep_s)["compute"]
    count, size = PROFILE_BATCHES, PROFILE_BATCHES * BATCH_BYTES
    stages = (
        Stage(count * READ_S, threads=1, under=(SOURCE, FULL)),
        Stage(count * sleep_s, under=(FULL,)),
    )
    passed = {SOURCE: Passed(count, size), FULL: Passed(count, round(INFLATED * size))}
    return Profile(count, stages, passed, batch_s, wait_s=batch_s)


def chosen(sleep_s: float) -> tuple[str, str]:
    """The mode that the policy chooses, and why."""
    points = (
        CandidatePoint(SOURCE, "read", whole=EPOCH_BATCHES * BATCH_BYTES),
        CandidatePoint(FULL, "map(work)", whole=round(EPOCH_BATCHES * INFLATED * BATCH_BYTES)),
    )
    store = StoreModel(CACHE, CACHE, room=10 * EPOCH_BATCHES * BATCH_BYTES)
    decision = choose_mode(points, store, profile=profile(sleep_s))
    return NAMES[decision.value.point], decision.reason


def measure(step_ms: int = 5, most_ms: int = 600) -> Mapping[str, Any]:
    """Every mode's time and the chosen one, for each t."""
    rows: list[dict[str, Any]] = []
    for sleep_ms in range(0, most_ms + 1, step_ms):
        times = takes(sleep_ms / 1000)
        mode, reason = chosen(sleep_ms / 1000)
        of_fastest = times[mode] / min(times.values())
        sum_of_fastest = times[added(sleep_ms / 1000)] / min(times.values())
        rows.append(
            {
                "sleep_s": sleep_ms / 1000,
                "batch_s": times,
                "chosen": mode,
                "of_fastest": of_fastest,
                "reason": reason,
                "chosen_by_sum": added(sleep_ms / 1000),
                "sum_of_fastest": sum_of_fastest,
            }
        )
        if sleep_ms % 50 == 0 or mode != rows[max(0, len(rows) - 2)]["chosen"]:
            print(f"{sleep_ms:4} ms: {mode:13}{of_fastest:6.3f} of the fastest: {reason}")
    worst = max(row["of_fastest"] for row in rows)
    print(f"modes: {', '.join(dict.fromkeys(row['chosen'] for row in rows))}; at most {worst:.3f} of the fastest")
    print(f"by the sum: at most {max(row['sum_of_fastest'] for row in rows):.3f} of the fastest")
    return {"results": rows}


if __name__ == "__main__":
    main(
        "benchmarks.papers.figure8_model", "Is the mode that is chosen the fastest, whatever computing costs?", measure
    )
