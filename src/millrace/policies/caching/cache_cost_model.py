"""Cache cost model: the time of an epoch with a cache at a point (Cachew 4.4), reading beside computing. Pure.

Cachew adds the time to read from the cache to the time of what is left to compute. Here they run beside each other, as
all stages of a pipeline do, so an element takes as long as the resource that is asked most (the bottleneck law of
operational analysis, Denning and Buzen 1978). There are three kinds:

* threads of a stage's own: its seconds, over its threads. Reading from the cache is such a stage, and so is writing;
* the thread that pulls: the seconds of all stages that have no threads of their own, one after the other;
* the processor: the processor time of all stages, over the cores. Reading and computing can't share it at once: copies
  and checksums of what was read take turns with the user's functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

STARVED = 0.1
"""Share of its time above which a waiting consumer has all that its workers give."""


class Stage(msgspec.Struct, frozen=True):
    """Operators that take turns on the same threads of a worker.

    Attributes:
        seconds: of work in the profile, summed over its threads, waits for a disk or a network included.
        cpu_s: of these, seconds of processor time.
        threads: number of them; 0: the one that pulls the pipeline's output.
        under: node ids of the points that are above it: with a cache there its work need not be done.
    """

    seconds: float
    cpu_s: float = 0.0
    threads: int = 0
    under: tuple[int, ...] = ()


class Passed(msgspec.Struct, frozen=True):
    """Elements (Cachew's M) and bytes that passed a point in the profile."""

    elements: int
    bytes: int


class Profile(msgspec.Struct, frozen=True):
    """Measures of a job, as it is if everything is computed.

    Measures taken while something was read from a cache have to be scaled: stages under the point to all elements, and
    the wait to what it would be. A job that hardly waits because of a cache would seem to need none.

    Attributes:
        elements: at the end of the pipeline (Cachew's N), more than 0.
        stages: of the whole pipeline, sums over its workers.
        passed: by node id of a point.
        batch_s: seconds from one element to the next as the consumer sees it, its own work included.
        wait_s: of these, seconds that it waits.
        noise: relative standard error of ``batch_s``.
        cores: number that one worker may use.
        workers: mean number of workers whose work one consumer reads; 0: unknown, and the stages are taken as they are.
    """

    elements: int
    stages: tuple[Stage, ...]
    passed: Mapping[int, Passed]
    batch_s: float
    wait_s: float
    noise: float = 0.0
    cores: int = 1
    workers: float = 0.0


class SizeCost(Protocol):
    """Cost of reads or writes of a store, as measured on the store."""

    def seconds(self, size: int, /) -> float:
        """Seconds of one read (write) of ``size`` bytes, while as many others run as a worker makes at a time."""
        ...


class StoreModel(msgspec.Struct, frozen=True):
    """Store of blocks, by its costs.

    Attributes:
        read: cost of a read.
        write: cost of a write.
        room: bytes that may still be written: free ones and those that eviction would free for this job.
        threads: of a worker that read, or write, at a time.
        message: bytes that are read or written at once at least; a larger element is read alone.
        cpu_s: processor seconds to check and copy one byte.
    """

    read: SizeCost
    write: SizeCost
    room: int
    threads: int = 1
    message: int = 1
    cpu_s: float = 0.0


class Times(msgspec.Struct, frozen=True):
    """Seconds per element of the pipeline's end, of one worker, if a point were cached as far as there is room.

    Attributes:
        computed: if everything is computed.
        got: if what is kept now is read and the rest computed.
        put: of the epoch that also writes, as far as there is room.
        after: of the epochs after that one.
        share: of the point that is kept then, between 0 and 1.
        written: bytes that are written for it, over the whole epoch.
        saves: share of the computing time that is saved if all of the point is kept; negative if reading is slower.
            What :class:`millrace.policies.caching.eviction.PointUse` asks for.
    """

    computed: float
    got: float
    put: float
    after: float
    share: float
    written: int
    saves: float


def times(profile: Profile, store: StoreModel, point: int, kept: float, whole: int) -> Times:
    """Predict the times of an epoch with a cache at a point.

    What is saved grows with the share that is kept, in a straight line. (Two stores are read at once where hits and
    computed elements mix, so a mixed epoch is faster than that, if anything.) No cache makes a job faster than its
    consumer: of computing, at most the share is saved that the consumer waits.

    Args:
        profile: of this job.
        store: where the point's blocks are.
        point: its node id.
        kept: share of the point that is in the store, between 0 and 1.
        whole: bytes that all of the point would take, known or estimated; more than 0.
    """
    passed, cores = profile.passed[point], profile.cores
    waits = min(1.0, profile.wait_s / profile.batch_s) if profile.batch_s else 1.0
    stages = _as_it_was(profile) if profile.workers and waits > STARVED else profile.stages
    above = tuple(stage for stage in stages if point not in stage.under)
    all_computed = _slowest(stages, cores)
    least = all_computed * (1 - waits)
    saved = all_computed - max(least, _slowest((*above, _moving(store, store.read, passed, 1.0)), cores))
    share = min(1.0, kept + max(0, store.room) / whole)
    writing = _moving(store, store.write, passed, share - kept)
    put = max(_slowest((*stages, writing), cores) - kept * saved, writing.seconds / store.threads)
    count = profile.elements
    return Times(
        all_computed / count,
        (all_computed - kept * saved) / count,
        put / count,
        (all_computed - share * saved) / count,
        share,
        round((share - kept) * whole),
        saved / all_computed if all_computed else 0.0,
    )


def time_without(profile: Profile, point: int) -> float:
    """Predict the seconds of a batch if nothing up to a point were waited for: what it takes of the processor remains.

    Args:
        profile: of this job.
        point: its node id.
    """
    waits = min(1.0, profile.wait_s / profile.batch_s) if profile.batch_s else 1.0
    stages = _as_it_was(profile) if profile.workers and waits > STARVED else profile.stages
    whole = _slowest(stages, profile.cores)
    rest = _slowest([_without_waits(stage) if point in stage.under else stage for stage in stages], profile.cores)
    return profile.batch_s * (max(whole * (1 - waits), rest) / whole if whole else 1.0)


def least_batch_s(profile: Profile) -> float:
    """Compute the seconds of an element if workers are never idle: for long nobody reads faster than they make it."""
    return _slowest(profile.stages, profile.cores) / profile.elements / profile.workers if profile.workers else 0.0


def _without_waits(stage: Stage) -> Stage:
    return msgspec.structs.replace(stage, seconds=min(stage.seconds, stage.cpu_s))


def _as_it_was(profile: Profile) -> tuple[Stage, ...]:
    """Scale the stages for a consumer that waits: then its time from one element to the next is what they really took.

    That is longer than the stages alone say, where they begin anew with each task, wait for one another, or share the
    machine with others; so all of them count for so much longer. No stage took longer than all together.
    """
    real = profile.batch_s * profile.workers * profile.elements
    stages = [
        msgspec.structs.replace(
            stage, seconds=min(stage.seconds, real * stage.threads) if stage.threads else stage.seconds
        )
        for stage in profile.stages
    ]
    slowest = _slowest(stages, profile.cores)
    factor = max(1.0, real / slowest) if slowest else 1.0  # nothing that was measured explains it otherwise
    return tuple(Stage(each.seconds * factor, each.cpu_s * factor, each.threads, each.under) for each in stages)


def _moving(store: StoreModel, cost: SizeCost, passed: Passed, share: float) -> Stage:
    """Model reading or writing a share of what passed a point as one more stage of the pipeline."""
    if not passed.bytes or not share:
        return Stage(0.0, threads=store.threads)
    size = max(store.message, round(passed.bytes / max(1, passed.elements)))
    moved = share * passed.bytes
    return Stage(moved / size * cost.seconds(size), moved * store.cpu_s, store.threads)


def _slowest(stages: Sequence[Stage], cores: int) -> float:
    """Seconds of the resource that the stages ask most of."""
    own = max((stage.seconds / stage.threads for stage in stages if stage.threads), default=0.0)
    pulling = sum(stage.seconds for stage in stages if not stage.threads)
    processor = sum(stage.cpu_s for stage in stages) / cores
    return max(own, pulling, processor)
