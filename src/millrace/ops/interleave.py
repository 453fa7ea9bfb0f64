"""Operators ``flat_map`` and ``interleave``: datasets made of elements, one after the other or several in turn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import FlatMap, Interleave, Opaque
from millrace.ops import nested_datasets, slow_functions
from millrace.ops.operator import Context


def run_flat_map(node: FlatMap, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield the elements of ``node.fn`` of each element, one input after the other."""
    return _in_turn(node.fn, 1, sys.maxsize, inputs[0], context)


def run_interleave(node: Interleave, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield ``node.block_length`` elements of each of ``node.cycle_length`` datasets in turn, in tf.data's order.

    A dataset is found to have ended when its turn comes and it has fewer elements than the block; its place is taken by
    the next input when that place's turn comes again.
    """
    return _in_turn(node.fn, node.cycle_length, node.block_length, inputs[0], context)


def _in_turn(
    function: Opaque, cycle_length: int, block_length: int, chunks: Iterator[Chunk], context: Context
) -> Iterator[Chunk]:
    # Functions are called when their dataset's turn comes and not for a whole chunk, as they may open files.
    parents = (chunk.slice(index, index + 1) for chunk in chunks for index in range(len(chunk)))
    places: list[_Children | None] = [None] * cycle_length
    turn, opened, more_parents = 0, 0, True
    out = _ChunkBuilder(context)
    try:
        while more_parents or opened:
            children = places[turn]
            if children is None and more_parents:
                parent = next(parents, None)
                if parent is None:
                    more_parents = False
                    continue
                children = places[turn] = _open(function, parent, context, cycle_length)
                if children is None:
                    continue
                opened += 1
            if children is not None:
                wanted = block_length
                while wanted:
                    asked = min(wanted, out.room)
                    elements, position = children.take(asked)
                    yield from out.add(elements, children, position)
                    wanted -= len(elements)
                    if len(elements) < asked and children.over:
                        children.check()
                        places[turn] = None
                        opened -= 1
                        break
            turn = (turn + 1) % cycle_length
        yield from out.flush()
    except Exception:
        yield from out.flush()
        raise
    finally:
        for children in places:
            if children is not None:
                children.close()


class _Children:
    """Elements made of one element, read a little ahead so that a turn costs little."""

    def __init__(self, elements: Iterator[Any], parent: Chunk, context: Context, sharing: int) -> None:
        self.origin = parent.origin
        self._elements = elements
        self._parent = parent
        self._context = context
        self._sharing = sharing
        self._position = context.children(parent, 0)
        self._buffer: list[Any] = []
        self._at = 0
        self._ended = False
        self._failure: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether all were taken."""
        return self._ended and self._at == len(self._buffer)

    def take(self, count: int) -> tuple[list[Any], int]:
        """Take up to ``count`` elements, fewer only if there are no more or they take long; the position of the first.

        None of them is taken only if there are no more.
        """
        if not self._ended and len(self._buffer) - self._at < count:
            self._read(count)
        taken = self._buffer[self._at : self._at + count]
        position = self._position
        self._at += len(taken)
        self._position += len(taken)
        return taken, position

    def check(self) -> None:
        """Raise the failure that ended them, if one did; for after the last element."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        nested_datasets.close(self._elements)

    def _read(self, wanted: int) -> None:
        count = max(wanted, self._context.chunk_size() // self._sharing)
        elements, self._ended, self._failure = nested_datasets.read_ahead(
            self._elements, count, self._parent, self._context
        )
        self._buffer, self._at = self._buffer[self._at :] + elements, 0


def _open(function: Opaque, parent: Chunk, context: Context, sharing: int) -> _Children | None:
    _, results, failure = context.call(function, parent)
    if failure is not None:
        raise failure
    if not results:
        return None
    return _Children(context.elements_of(results[0], parent, 0), parent, context, sharing)


class _ChunkBuilder:
    """Elements on their way into a chunk."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._size, self._until = context.chunk_size(), slow_functions.clock() + slow_functions.LONG_S
        self._elements: list[Any] = []
        self._positions: list[int] = []
        self._children: _Children | None = None

    @property
    def room(self) -> int:
        """Number of elements that still go into the chunk; at least 1."""
        return self._size - len(self._elements)

    def add(self, elements: list[Any], children: _Children, position: int) -> Iterator[Chunk]:
        if self._children is not None and self._children.origin != children.origin:
            yield from self.flush()
        self._children = children
        self._elements += elements
        self._positions.extend(range(position, position + len(elements)))
        if len(self._elements) >= self._size or slow_functions.clock() > self._until:
            yield from self.flush()

    def flush(self) -> Iterator[Chunk]:
        if self._elements and self._children is not None:
            yield Chunk(self._elements, self._children.origin, np.array(self._positions, dtype=np.int64))
        self._size, self._until = max(1, self._context.chunk_size()), slow_functions.clock() + slow_functions.LONG_S
        self._elements, self._positions = [], []
