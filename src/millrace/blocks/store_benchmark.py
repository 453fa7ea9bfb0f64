"""Store benchmark: times reads of every size, and writes."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from zlib import crc32

import msgspec
import numpy as np

from millrace.blocks.stores.block_store import BlockStore, OpenBlock
from millrace.policies.caching.io_cost import TransferCost, fit, proportional

POINT = "calibration"
SMALLEST = 4 << 10
LARGEST = 256 << 20
_STEP = 4
"""Factor from one size to the next."""
_WRITING = 0.4
"""Share of the time that writing may take; reading has the rest, half of it from the disk."""
_PIECE = 1 << 20
_READS_MAX = 25
"""Most reads of one size, beside the first."""
_BURST_S = 1e-3
"""Least seconds for which reads on several threads are timed together, as threads don't begin at the same moment."""
_FAR = 3
"""Factor on the time for a store that is not on a disk: network times differ more, and take longer to measure."""
_BEYOND_NOISE = 2
"""Ratio of the times of two sizes from which the larger one says what a byte takes; less may be chance."""
_FREE_SHARE = 0.25
"""Largest share of the free room that is used."""


class Calibration(msgspec.Struct, frozen=True):
    """Measured cost of a store, for reads (or writes) by as many threads at once.

    Attributes:
        read: seconds of a read as it is: from the system's memory where the store is a disk and has room there.
        cold: seconds of a read from the disk itself, as far as that can be had; elsewhere the same as ``read``.
        write: seconds of appending to a block, publishing included.
        cpu_s: processor seconds to check and copy one byte.
        threads: number of threads that read at once.
    """

    read: TransferCost
    cold: TransferCost
    write: TransferCost
    cpu_s: float
    threads: int


def calibrate(
    store: BlockStore,
    *,
    seconds: float = 2.0,
    threads: int = 1,
    largest: int = LARGEST,
    clock: Callable[[], float] = time.perf_counter,
) -> Calibration:
    """Measure a store: write a block, read from anywhere in it, and remove it.

    The block is as large as fits into the time, so that on a slow store the largest sizes are not measured but
    extrapolated.

    Args:
        store: the store to measure.
        seconds: time to take, about, and three times as long for a store behind a network; a small write and a few
            small reads are made whatever they take.
        threads: number of threads that read at once, as a worker's do; a read then takes longer, and all together less.
        largest: bytes of a read, and of the block.
        clock: seconds, for tests.
    """
    name = uuid.uuid4().hex
    free = store.free_bytes()
    largest = min(largest, LARGEST if free is None else max(SMALLEST, int(_FREE_SHARE * free)))
    try:
        has_disk = _warm_up(store, name)
        if not has_disk:
            seconds *= _FAR
        size, took = _write(store, name, largest, _WRITING * seconds, clock)
        left = (seconds - took) / 2
        pool = ThreadPoolExecutor(threads, thread_name_prefix="millrace-calibration")
        with closing(store.open(POINT, name)) as block, pool:
            samples = list(_reads(pool, block, size, left, threads, clock, cold=False))
            others = list(_reads(pool, block, size, left, threads, clock, cold=has_disk))
        if not has_disk:
            samples = others = samples + others
        read, cold = fit(samples), fit(others)
    finally:
        store.delete(POINT, name)
    read, cold = _extended(read, took / size), _extended(cold, took / size)
    return Calibration(read, cold, proportional(size, took), _checking(clock), threads)


def _warm_up(store: BlockStore, name: str) -> bool:
    """Write and read a little, as the first access also pays for names, connections and credentials.

    The result is whether the store is on a disk.
    """
    with store.draft() as draft:
        draft.write(bytes(SMALLEST))
        draft.publish(POINT, name)
    with closing(store.open(POINT, name)) as block:
        block.read([(0, SMALLEST)])
        return block.drop()


def _write(store: BlockStore, name: str, largest: int, limit_s: float, clock: Callable[[], float]) -> tuple[int, float]:
    """Write, a little at first to see how much there is time for; return (bytes, seconds)."""
    piece = np.random.default_rng(0).integers(0, 256, min(largest, _PIECE), np.uint8).data
    count = 1
    while True:
        start = clock()
        with store.draft() as draft:
            for _ in range(count):
                draft.write(piece)
            draft.publish(POINT, name)
        took = max(clock() - start, 1e-9)
        more = min(largest // len(piece), int(limit_s / took))
        if count > 1 or more <= 1:
            return count * len(piece), took
        count = more


def _reads(
    pool: ThreadPoolExecutor,
    block: OpenBlock,
    largest: int,
    limit_s: float,
    threads: int,
    clock: Callable[[], float],
    *,
    cold: bool,
) -> Iterator[tuple[int, float]]:
    """Time reads from anywhere in a block as (bytes, seconds), small ones first, as many as there is time for."""
    together = threading.Barrier(threads)

    def read(starts: list[int], size: int) -> tuple[float, float]:
        together.wait()
        began = clock()
        for start in starts:
            block.read([(start, start + size)])
        return began, clock()

    choice = random.Random(largest)

    def burst(size: int, count: int) -> list[tuple[int, float]]:
        """Time reads of one size, ``count`` on each thread: seconds of one of them while all threads were reading.

        The time is from the first one's begin to the last one's end: where they take turns, the first end too early.
        """
        places = [[choice.randrange(largest - size + 1) for _ in range(count)] for _ in range(threads)]
        begins, ends = zip(*pool.map(read, places, [size] * threads), strict=True)
        return [(size, max((max(ends) - min(begins)) / count, 1e-9))]

    began = clock()
    first: dict[int, list[tuple[int, float]]] = {}
    for size in [*(SMALLEST * _STEP**step for step in range(9) if SMALLEST * _STEP**step < largest), largest]:
        if cold:
            block.drop()
        first[size] = burst(size, 1)
        if clock() - began + _STEP * first[size][0][1] > 0.75 * limit_s:
            break
    for number, (size, found) in enumerate(first.items()):
        if cold:
            block.drop()
        share = (limit_s - (clock() - began)) / (len(first) - number)
        # From the disk, no more than leaves most of the block out of memory.
        most = min(_READS_MAX, largest // 16 // (size * threads)) if cold else _READS_MAX
        each = min(took for other in first if other >= size for _, took in first[other])
        # The first read of a size also had to find memory for it, so it only counts if there is no time for another.
        count = max(0, min(most, int(share / each)))
        some = max(1, min(count, int(_BURST_S / each)))
        until = clock() + share
        more: list[tuple[int, float]] = []
        # A small read may take longer than a large one, and is not to have the others' time.
        while len(more) < count // some and clock() < until:
            more += burst(size, some)
        yield from more or found


def _extended(cost: TransferCost, per_byte: float) -> TransferCost:
    """Extrapolate to the sizes that there was no time for: linearly from the last two, or at ``per_byte`` seconds.

    Where all that was measured took about as long, the line may be chance, and no byte takes longer than ``per_byte``.
    """
    sizes, times = list(cost.sizes), list(cost.times)
    slope = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
    if slope <= 0:
        slope = per_byte
    elif times[-1] < _BEYOND_NOISE * times[-2]:
        slope = min(slope, per_byte)
    while sizes[-1] < LARGEST:
        size = min(LARGEST, sizes[-1] * _STEP)
        times.append(times[-1] + (size - sizes[-1]) * slope)
        sizes.append(size)
    return TransferCost(tuple(sizes), tuple(times))


def _checking(clock: Callable[[], float]) -> float:
    data = np.zeros(_PIECE, np.uint8)
    took = []
    for _ in range(5):
        start = clock()
        crc32(data.data)
        data.copy()
        took.append(clock() - start)
    return min(took) / _PIECE
