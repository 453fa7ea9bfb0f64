"""Nested datasets: the datasets and iterables that users' functions make of elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.ops import slow_functions
from millrace.ops.operator import Context

_ENDED, _MORE = object(), object()


def read_ahead(
    elements: Iterator[Any], count: int, parent: Chunk, context: Context
) -> tuple[list[Any], bool, Exception | None]:
    """Read up to ``count`` more of the ``elements`` made of ``parent`` (a chunk of one), and whether they have ended.

    They are fewer where they take long, as those of a stream from outside do; at least one if they have not ended.

    If they fail, the elements before the failure stay and they have ended: with the failure, which the caller raises
    once the others have been yielded, or, if the pipeline's ``on_error`` goes on, with the replacement that it gives.
    """
    taken: list[Any] = []

    def advance() -> object:
        until = slow_functions.clock() + slow_functions.LONG_S
        for element in islice(elements, count):
            taken.append(element)
            if slow_functions.clock() > until:
                return _MORE
        return _MORE if len(taken) == count else _ENDED

    try:
        kept, value = context.guard(parent, 0, advance)
    except Exception as failure:  # noqa: BLE001 - raised by the caller
        return taken, True, failure
    if value is _MORE or value is _ENDED:
        return taken, value is _ENDED, None
    if kept:
        taken.append(value)
    return taken, True, None


def close(elements: Iterator[Any]) -> None:
    """Close the iterator, if it can be closed."""
    closing = getattr(elements, "close", None)
    if closing is not None:
        closing()
