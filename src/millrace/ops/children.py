"""Reading the datasets and iterables that users' functions make of elements."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.ops.contract import Context

_DONE = object()


def read(elements: Iterator[Any], count: int, parent: Chunk, context: Context) -> tuple[list[Any], bool]:
    """Up to ``count`` more of the ``elements`` made of ``parent`` (a chunk of one), and whether they have ended.

    If they fail and the pipeline's ``on_error`` goes on, what came before the failure stays, followed by what
    ``on_error`` gives for the element that failed, and they have ended.
    """
    taken: list[Any] = []

    def advance() -> object:
        for element in islice(elements, count):
            taken.append(element)  # noqa: PERF402 - a failure must not lose what came before it
        return _DONE

    kept, value = context.guard(parent, 0, advance)
    if value is _DONE:
        return taken, len(taken) < count
    if kept:
        taken.append(value)
    return taken, True


def close(elements: Iterator[Any]) -> None:
    """Closes what ``elements`` reads from, if it can be closed."""
    closing = getattr(elements, "close", None)
    if closing is not None:
        closing()
