"""Cutting a file of records into splits."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.planning.tables import Split
from millrace.sources.storage import Found

PIECE_BYTES = 4 << 20
"""About how large a piece is: small enough that a lost one costs little, large enough that opening it is nothing."""


def cut(file: Found, ends: Iterable[int], piece_bytes: int = PIECE_BYTES) -> list[Split]:
    """Splits of whole records, of ``piece_bytes`` or just above; ``ends`` are the bytes where records end."""
    splits: list[Split] = []
    start = end = first = count = 0
    for end in ends:
        count += 1
        if end - start >= piece_bytes:
            splits.append(_split(file, start, end, first, count))
            start, first, count = end, first + count, 0
    if count:
        splits.append(_split(file, start, end, first, count))
    return splits


def _split(file: Found, start: int, end: int, first: int, count: int) -> Split:
    return Split(file.location, start, end, first, count, end - start, file.version)


def whole(file: Found) -> Split:
    """A file of which only reading can tell how many records it holds."""
    return Split(file.location, first_record=0, bytes=file.size, version=file.version)
