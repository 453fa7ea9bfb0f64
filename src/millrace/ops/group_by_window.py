"""Operator ``group_by_window``: windows of elements of one key, each reduced to a dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.errors import PipelineError
from millrace.graph.nodes import GroupByWindow
from millrace.ops.collecting import Outbox, with_leftovers, with_outbox
from millrace.ops.nested_datasets import close, read_ahead
from millrace.ops.operator import Context


@dataclass(slots=True)
class _Window:
    """Window of elements of one key, until it has ``size`` of them.

    Attributes:
        first: the first element alone, for messages and random keys.
        arrivals: number of each element among all.
    """

    size: int
    first: Chunk
    elements: list[Any] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)


@with_outbox
def run(outbox: Outbox, node: GroupByWindow, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield the elements of ``node.reduce_fn(key, elements)`` for each full window; at the end for the others, by key.

    ``reduce_fn`` gets the window's elements as a list and returns a dataset or an iterable. Keys are hashable; numpy
    scalars and arrays of one number count as that number.

    Raises:
        PipelineError: if a key is not hashable, a window's size is no positive int, or ``reduce_fn`` returns neither
            dataset nor iterable.
    """
    reduced = _Reduced(node, context, outbox)
    windows: dict[Any, _Window] = {}
    arrived = 0
    for chunk in with_leftovers(inputs[0], context):
        indices, results, failure = context.call(node.key_fn, chunk)
        for index, result in zip(range(len(chunk)) if indices is None else indices, results, strict=failure is None):
            key = _key(result, context.label)
            window = windows.get(key)
            if window is None:
                window = _begin(node, key, chunk.slice(index, index + 1), context)
                if window is None:
                    continue
                windows[key] = window
            window.elements.append(chunk.elements[index])
            window.arrivals.append(arrived)
            arrived += 1
            if len(window.elements) == window.size:
                yield from reduced.reduce(key, windows.pop(key))
        if failure is not None:
            raise failure
        yield from outbox.flush()
    waiting = [pair for window in windows.values() for pair in zip(window.arrivals, window.elements, strict=True)]
    waiting.sort(key=lambda pair: pair[0])
    if waiting and not context.leave([element for _, element in waiting]):
        for key in _in_order(windows):
            yield from reduced.reduce(key, windows[key])
        yield from outbox.flush()


class _Reduced:
    """Chunks of the elements that ``reduce_fn`` makes of windows."""

    def __init__(self, node: GroupByWindow, context: Context, outbox: Outbox) -> None:
        self._reduce: Callable[[Any, list[Any]], Any] = node.reduce_fn.value
        self._context = context
        self._origin = context.mixed()
        self._position = 0
        self._outbox = outbox

    def reduce(self, key: Any, window: _Window) -> Iterator[Chunk]:
        context, parent = self._context, window.first

        kept, result = context.guard(parent, 0, lambda: self._reduce(key, window.elements))
        if not kept:
            return
        elements = context.elements_of(result, parent, 0)
        ended = False
        try:
            while not ended:
                some, ended, failure = read_ahead(elements, max(1, context.chunk_size()), parent, context)
                for element in some:
                    yield from self._outbox.add(element, self._origin, self._position)
                    self._position += 1
                if failure is not None:
                    raise failure
        finally:
            close(elements)


def _begin(node: GroupByWindow, key: Any, first: Chunk, context: Context) -> _Window | None:
    size_of = node.window_size_fn
    if size_of is None:
        kept, size = True, node.window_size
    else:
        kept, size = context.guard(first, 0, lambda: size_of.value(key))
    if not kept:
        return None
    number = _plain(size)
    if type(number) is not int or number < 1:
        raise PipelineError(
            f"{context.label}: the window size for key {key!r} is {number!r}. It must be an int above 0."
        )
    return _Window(number, first)


def _key(result: Any, label: str) -> Any:
    key = _plain(result)
    if isinstance(key, float) and math.isnan(key):
        key = math.nan  # one object: others would be as many keys
    try:
        hash(key)
    except TypeError:
        raise PipelineError(
            f"{label}: the key function returned a {type(key).__name__}, which is not hashable. Return a number, a str "
            "or a tuple of them."
        ) from None
    return key


def _plain(value: Any) -> Any:
    """Convert a numpy scalar, or an array of one number without dimensions, to Python's type."""
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value


def _in_order(windows: dict[Any, _Window]) -> list[Any]:
    # By key as in tf.data; keys that have no order come as they came.
    try:
        return sorted(windows)
    except TypeError:
        return list(windows)
