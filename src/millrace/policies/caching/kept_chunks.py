"""Kept chunks: into how many a data set is cut that a cache of stored bytes cannot hold, and which ones are kept.

Two chunks are kept at a time, for all jobs that read the data: one that the furthest reads, and one that others still
do (Quiver, section 5.1). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from millrace.policies.decision import Decision
from millrace.policies.figures import data_size, number

CHUNK_BYTES = 15 * 10**9
"""Most bytes of a chunk, as in Quiver's evaluation."""
LEAST_CHUNKS = 10
"""A chunk is at most a tenth of the data, as in Quiver."""
KEPT = 2
"""Chunks of a data set that are kept at a time."""
FILLED = 0.9
"""Share of the room that may be given, as segments are not filled to the last byte."""


def chunk_bytes(data_bytes: int, room: int) -> int:
    """Size of a chunk of so many bytes, of which two fit into the room of all cache servers."""
    return int(min(CHUNK_BYTES, data_bytes / LEAST_CHUNKS, room * FILLED / KEPT))


def choose_chunks(data_bytes: int, room: int, most: int, before: int = 0) -> Decision[int]:
    """Choose into how many chunks a data set is cut of which two are to be kept; 0: into none.

    Args:
        data_bytes: stored bytes of the data set.
        room: bytes that cache servers may keep together.
        most: chunks that the data can be cut into, at most.
        before: into how many it is cut where others read it now, which is kept to if two of these fit; 0: nowhere.
    """
    given = {"data_bytes": data_bytes, "room": room, "most": most, "before": before}
    data, cache = data_size(data_bytes), data_size(room)
    if LEAST_CHUNKS <= before <= most and KEPT * data_bytes / before <= room * FILLED:
        return Decision(before, f"other jobs read the data ({data}) in {before} chunks, of which two fit", given)
    size = chunk_bytes(data_bytes, room)
    count = math.ceil(data_bytes / size) if size > 0 else 0
    if not 0 < count <= most:
        return Decision(0, f"{data} in chunks of {data_size(size)} are more than the {most} that can be made", given)
    why = f"of the data ({data}) two of {count} chunks at a time are kept in the source cache ({cache})"
    return Decision(count, why, given)


def next_chunk(
    chunks: int, last: Sequence[int], fresh: Collection[int], kept: Sequence[int], others: Sequence[int]
) -> int:
    """Choose the chunk that a job begins in its epoch.

    It is the newest of those that are kept, else one that another job reads now, else the one that comes next by its
    number, where others come that have read the same.

    Args:
        chunks: number of chunks.
        last: the one that it has begun last in this epoch, if any.
        fresh: those that it has not begun; some.
        kept: those that cache servers keep, the newest last.
        others: those that other jobs read now.
    """
    before = [-1, *kept[-1:], *last][-1]
    in_turn = chain(reversed(kept), reversed(others), range(before + 1, chunks), range(before + 1))
    return next(chunk for chunk in in_turn if chunk in fresh)


def choose_kept(
    kept: Sequence[int],
    left: Mapping[int, Sequence[float]],
    read: Collection[int],
    midst: Mapping[int, Sequence[float]],
) -> Decision[list[int]]:
    """Choose the chunks that are kept from now on, the newest last.

    What is left to read of a kept chunk is what it still saves. Of one that is not kept, somebody has to fetch what is
    left in any case, so it would save what is left to all but one. The one that saves most comes in the place of the
    one that saves least, if it saves more than that, and once as much of it was read without being kept as those who
    are in the midst of the other one would lose. Before, waiting is cheaper: what was read meanwhile is fetched once
    more. So a chunk is kept until those who read it have nearly come to its end, and no longer for one that is far
    behind: reads hold that one up least, as its own steps do. A job alone has nothing saved by another chunk, and has
    those that are kept again in its next epoch.

    Args:
        kept: those that were kept so far.
        left: by chunk, of those that are kept or read, which share of it each job still has to read.
        read: those that jobs read now.
        midst: by chunk, what jobs that are in the midst of it still have to read of it.
    """
    wanted = {chunk: sum(left[chunk]) - max(left[chunk]) for chunk in sorted(read) if chunk not in kept}
    if not wanted:
        return Decision([*kept], "no job reads another chunk")
    newest = max(wanted, key=lambda chunk: wanted[chunk])
    if len(kept) < KEPT:
        return Decision([*kept, newest], f"chunk {newest} is read, and fewer than {KEPT} chunks are kept")
    oldest = min(kept, key=lambda chunk: sum(left.get(chunk, ())))
    saves, saved = wanted[newest], sum(left.get(oldest, ()))
    given = {"saves": saves, "saved": saved}
    sides = f"chunk {newest} saves {number(saves)} reads of a chunk, and chunk {oldest} {number(saved)} more"
    if saves <= saved:
        return Decision([*kept], sides, given)
    lost, missed = sum(midst.get(oldest, ())), 1 - min(left[newest])
    if missed < lost:
        waits = f"{sides}, of which {number(lost)} by who is in the midst of it; {number(missed)} was not kept so far"
        return Decision([*kept], waits, {**given, "lost": lost, "missed": missed})
    return Decision([*(chunk for chunk in kept if chunk != oldest), newest], sides, given)
