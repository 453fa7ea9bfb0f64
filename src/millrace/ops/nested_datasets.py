"""Nested datasets: the datasets and iterables that users' functions make of elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.ops.operator import Context

_DONE = object()


def read_ahead(
    elements: Iterator[Any], count: int, parent: Chunk, context: Context
) -> tuple[list[Any], bool, Exception | None]:
    """Read up to ``count`` more of the ``elements`` made of ``parent`` (a chunk of one), and whether they have ended.

    If they fail, the elements before the failure stay and they have ended: with the failure, which the caller raises
    once the others have been yielded, or, if the pipeline's ``on_error`` goes on, with the replacement that it gives.
    """
    taken: list[Any] = []

    def advance() -> object:
        for element in islice(elements, count):
            taken.append(element)  # noqa: PERF402 - a failure must not lose what came before it
        return _DONE

    try:
        kept, value = context.guard(parent, 0, advance)
    except Exception as failure:  # noqa: BLE001 - raised by the caller
        return taken, True, failure
    if value is _DONE:
        return taken, len(taken) < count, None
    if kept:
        taken.append(value)
    return taken, True, None


def close(elements: Iterator[Any]) -> None:
    """Close the iterator, if it can be closed."""
    closing = getattr(elements, "close", None)
    if closing is not None:
        closing()
