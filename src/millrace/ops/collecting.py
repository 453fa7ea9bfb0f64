"""Collecting operators' shared parts: grouping of elements, leftovers of a task, and output chunks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from typing import Any, Concatenate, ParamSpec

from millrace.elements.chunk import Chunk, Origin, Positions
from millrace.elements.tree import nbytes
from millrace.errors import PipelineError
from millrace.ops.operator import Context
from millrace.ops.stacking import MismatchError

P = ParamSpec("P")

_CHUNK_BYTES = 1 << 20


def with_outbox(operator: Callable[Concatenate[Outbox, P], Iterator[Chunk]]) -> Callable[P, Iterator[Chunk]]:
    """Give each run of an operator an outbox; if the run fails, the outbox's content comes before the error."""

    @functools.wraps(operator)
    def run(*args: P.args, **kwargs: P.kwargs) -> Iterator[Chunk]:
        outbox = Outbox()
        try:
            yield from operator(outbox, *args, **kwargs)
        except Exception:
            yield from outbox.flush()
            raise

    return run


@with_outbox
def run_groups(
    outbox: Outbox,
    chunks: Iterator[Chunk],
    context: Context,
    size: int,
    drop_remainder: bool,
    build: Callable[[list[Any]], Any],
) -> Iterator[Chunk]:
    """Apply ``build`` to each ``size`` consecutive elements; to other numbers where they were planned."""
    planned = context.outputs()
    if planned is None:
        mixed = context.mixed()
        planned = ((mixed, position, size) for position in count())
        chunks = with_leftovers(chunks, context)
        rest_is_planned = False
    else:
        rest_is_planned = True
    pending: list[Any] = []
    places: list[tuple[Origin, Positions]] = []  # of the pending elements, stretch by stretch
    current = next(planned, None)
    for chunk in chunks:
        elements, start = chunk.elements, 0
        while current is not None and len(pending) + len(elements) - start >= current[2]:
            origin, position, wanted = current
            stop = start + wanted - len(pending)
            group = [*pending, *elements[start:stop]] if pending else elements[start:stop]
            places.append((chunk.origin, chunk.positions[start:stop]))
            yield from outbox.add(build_batch(build, group, places, context), origin, position)
            pending, places, start = [], [], stop
            current = next(planned, None)
        pending += elements[start:]
        places.append((chunk.origin, chunk.positions[start:]))
        yield from outbox.flush()
        if current is None:
            return
    if current is None or not pending or (not rest_is_planned and context.leave(pending)):
        return
    if not drop_remainder:
        origin, position, _ = current
        yield from outbox.add(build_batch(build, pending, places, context), origin, position)
        yield from outbox.flush()


def build_batch(
    build: Callable[[list[Any]], Any],
    elements: list[Any],
    places: Iterable[tuple[Origin, Positions]],
    context: Context,
) -> Any:
    """Call ``build(elements)``; its errors name the elements of the data that do not fit together.

    Raises:
        PipelineError: if the elements differ.
    """
    try:
        return build(elements)
    except MismatchError as error:
        names = (context.name_of(origin, int(position)) for origin, positions in places for position in positions)
        named = list(islice(names, error.index + 1))
        first = "" if error.index == 0 else f"the batch's first element is {named[0]}, and "
        raise PipelineError(f"{error} Here {first}element {error.index} is {named[error.index]}.") from None


def with_leftovers(chunks: Iterator[Chunk], context: Context) -> Iterator[Chunk]:
    """Chain the leftovers of earlier tasks and ``chunks``."""

    def left() -> Iterator[Chunk]:
        leftovers, position = iter(context.leftovers()), 0
        while elements := list(islice(leftovers, max(1, context.chunk_size()))):
            yield Chunk(elements, context.mixed(), range(position, position + len(elements)))
            position += len(elements)

    return chain(left(), chunks)


class Outbox:
    """Outputs of one input chunk on their way into an output chunk of at most about 1 MiB.

    So nothing that is ready waits for input that isn't, there are never more chunks than came in without reason, and
    few large batches are held at a time.
    """

    def __init__(self) -> None:
        self._elements: list[Any] = []
        self._origin = Origin(-1, 0)
        self._start = 0
        self._bytes = 0

    def add(self, element: Any, origin: Origin, position: int) -> Iterator[Chunk]:
        """Take an output; yield a chunk when it is time for one."""
        if origin != self._origin or position != self._start + len(self._elements):
            yield from self.flush()
            self._origin, self._start = origin, position
        self._elements.append(element)
        self._bytes += nbytes(element)
        if self._bytes > _CHUNK_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Chunk]:
        """Yield a chunk of the outputs that wait, if any do."""
        if self._elements:
            stop = self._start + len(self._elements)
            yield Chunk(self._elements, self._origin, range(self._start, stop))
            self._elements, self._start, self._bytes = [], stop, 0
