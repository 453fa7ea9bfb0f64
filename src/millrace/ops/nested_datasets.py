"""Nested datasets: the datasets and iterables that users' functions make of elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.errors import ElementError
from millrace.ops.operator import Context

_DONE = object()


def read_ahead(
    elements: Iterator[Any], count: int, parent: Chunk, context: Context, *, all_data: bool = False
) -> tuple[list[Any], bool, Exception | None]:
    """Read up to ``count`` more of the ``elements`` made of ``parent`` (a chunk of one), and whether they have ended.

    If they fail, the elements before the failure stay and they have ended: with the failure, which the caller raises
    once the others have been yielded, or, if the pipeline's ``on_error`` goes on, with the replacement that it gives.
    With ``all_data`` they are all that a source has, so that no ``on_error`` can go on.
    """
    taken: list[Any] = []
    lost: list[Exception] = []

    def advance() -> object:
        try:
            for element in islice(elements, count):
                taken.append(element)  # noqa: PERF402 - a failure must not lose what came before it
        except Exception as error:
            lost.append(error)
            raise
        return _DONE

    try:
        kept, value = context.guard(parent, 0, advance)
    except Exception as failure:  # noqa: BLE001 - raised by the caller
        return taken, True, failure
    if value is _DONE:
        return taken, len(taken) < count, None
    if all_data and lost:
        over = ElementError(
            f"{context.label} failed with {type(lost[0]).__name__}: {lost[0]}. What it would have given after that is "
            "unknown, so that on_error cannot leave it out: catch the error in the generator, and go on there"
        )
        over.__cause__ = lost[0]
        return taken, True, over
    if kept:
        taken.append(value)
    return taken, True, None


def close(elements: Iterator[Any]) -> None:
    """Close the iterator, if it can be closed."""
    closing = getattr(elements, "close", None)
    if closing is not None:
        closing()
