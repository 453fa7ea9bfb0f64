"""Byte ranges: how a file is cut where it is read in sequence, and which ranges are asked for in one request. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

FIRST_BLOCK_BYTES = 256 << 10
"""Size in bytes of the first block of a range: what is read first is to come soon."""
BLOCK_BYTES = 4 << 20
"""Size in bytes of later blocks, of which sixteen fill a link of 1.7 Gbit/s at 300 ms."""
ALIGNED_BYTES = 1 << 20
"""Size in bytes of blocks that are the same wherever a range starts."""
_GAP_BYTES = 64 << 10
"""Bytes between two ranges that are read for nothing rather than by another request."""

Range = tuple[int, int]


def blocks(start: int, stop: int, most: int = BLOCK_BYTES) -> Iterator[Range]:
    """Cut bytes ``start`` to ``stop`` into the blocks in which they are read in sequence.

    Each is twice as large as the one before it, up to ``most`` bytes, and the last one has the rest.
    """
    size = min(FIRST_BLOCK_BYTES, most)
    while start < stop:
        end = min(start + size, stop)
        yield start, end
        start, size = end, min(2 * size, most)


def aligned_blocks(start: int, stop: int, size: int = ALIGNED_BYTES) -> Iterator[Range]:
    """Cut bytes ``start`` to ``stop`` at the multiples of ``size``, as others who read the file do."""
    while start < stop:
        end = min(start - start % size + size, stop)
        yield start, end
        start = end


def joined(ranges: Sequence[Range], gap: int = _GAP_BYTES, most: int = BLOCK_BYTES) -> list[Range]:
    """Join ranges of one file that lie no more than ``gap`` bytes apart, in the order of the file.

    Args:
        ranges: in any order; they may overlap.
        gap: bytes between two ranges that may be read for nothing.
        most: bytes of a joined range; one that is longer by itself stays whole.
    """
    found: list[Range] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1] + gap and (stop <= found[-1][1] or stop - found[-1][0] <= most):
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found
