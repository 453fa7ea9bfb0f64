"""Cached tasks: at a cache point above task-local operators, the output of one whole task is kept.

Such elements cannot be told apart one by one: which batch an element is in depends on all others of its task. So the
item is the task's, under this plan, and has as many parts as there were chunks; each part is an item of its own, so
that reading holds no more than a few of them. One more, the head, says how many there are, and holds the leftovers of
the operators below. A head is written last, so an item that was broken off is not found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine.cache.cache_writer import CacheWriter
from millrace.engine.cache.cached_items import ActivePoint, Make
from millrace.engine.run import index_streams
from millrace.engine.run.element_names import first_made
from millrace.engine.run.index_streams import Feed
from millrace.graph.operator_graph import Graph

if TYPE_CHECKING:
    from millrace.blocks.block_keys import Keys
    from millrace.engine.run.task import NodeContext, RunningTask

Chunks = Iterator[Chunk]

_BLOCKS = 32
"""Most arrays of a feed whose task is kept: over a million units."""
_NOWHERE = Origin(0, 0)


class TaskItem:
    """Item of one running task at one point.

    Args:
        task: as it is below the point.
        number: of the point's node.
        context: of that node.
        make: chunks of the node's input for a feed of its units.
        point: the active point, if it is this one.
        writer: writer of what is made; None: it is not kept.
    """

    def __init__(
        self,
        task: RunningTask,
        number: int,
        context: NodeContext,
        make: Make,
        point: ActivePoint | None,
        writer: CacheWriter | None,
    ) -> None:
        self._task, self._number, self._context, self._make = task, number, context, make
        self._point, self._writer = point, writer
        self._below = {task.units.graph.id_of(node) for node in Graph(task.units.graph.nodes[number]).nodes}

    def chunks(self, feed: Feed) -> Chunks:
        """Yield the elements, named by the point: the same whether they are read or made."""
        blocks = list(islice(feed, _BLOCKS))  # of one task: a few thousand numbers, unless it has no end
        more = next(feed, None)
        first = int(blocks[0][0]) if blocks else 0
        count = first_made(self._task.units.graph.keys[self._number], first)
        endless = self._make(chain(blocks, [] if more is None else [more], feed))
        for chunk in self._unnamed(blocks) if more is None else endless:
            yield Chunk(chunk.elements, self._context.mixed(), np.arange(count, count + len(chunk)))
            count += len(chunk)

    def missing(self, feed: Feed) -> Feed:
        """Yield the units of the item, unless it is kept now."""
        blocks = list(islice(feed, _BLOCKS))
        more = next(feed, None)
        if more is None and self._point is not None:
            head = self._point.catalog.find(_keys(self._key(self._point, blocks), [-1]))
            if head.block[0] >= 0:
                return
        yield from chain(blocks, [] if more is None else [more], feed)

    def _unnamed(self, blocks: list[index_streams.Array]) -> Chunks:
        if self._point is None:
            return self._make(iter(blocks))
        key = self._key(self._point, blocks)
        head = self._head(self._point, key)
        if head is None:
            self._point.misses += 1
            return self._keeping(key, blocks)
        self._point.hits += 1
        return self._read(self._point, key, head, blocks)

    def _key(self, point: ActivePoint, blocks: list[index_streams.Array]) -> bytes:
        """Key of the task's item: a hash of all that decides what the task has there."""
        units, task = self._task.units, self._task.task
        told = msgspec.msgpack.encode([units.plan_digest, task.index, task.parent >= 0])
        digest = hashlib.blake2b(point.fingerprint + told, digest_size=16)
        for block in blocks:
            digest.update(block.tobytes())
        return digest.digest()

    # -- made ----------------------------------------------------------------------------------------------------------

    def _keeping(self, key: bytes, blocks: list[index_streams.Array]) -> Chunks:
        """Make the item, and keep it from now on."""
        if self._writer is None:
            yield from self._make(iter(blocks))
            return
        left, out = self._task.left, self._task.left_out
        out_before = out.total()
        before = {node: len(elements) for node, elements in left.items()}
        parts = 0
        with self._writer.writing() as writing:
            for chunk in self._make(iter(blocks)):
                if self._context.skipped:
                    self._writer.give_up("an element was skipped, as on_error says", lasting=False)
                writing.add([(_part(key, parts), chunk.elements)])
                parts += 1
                yield chunk
            if self._context.skipped:
                self._writer.give_up("an element was skipped, as on_error says", lasting=False)
            leaves = {node: left[node][before.get(node, 0) :] for node in sorted(left) if node in self._below}
            head = {"parts": parts, "left": [[node, len(elements)] for node, elements in leaves.items()]}
            if out.total() > out_before:
                head["left_out"] = out.total() - out_before
            writing.add([(_part(key, -1), [head, *chain.from_iterable(leaves.values())])])

    # -- read ----------------------------------------------------------------------------------------------------------

    def _head(self, point: ActivePoint, key: bytes) -> list[Any] | None:
        """Read the head, if it is kept."""
        return point.catalog.read(point.find(_keys(key, [-1]), self._writer))[0]

    def _read(self, point: ActivePoint, key: bytes, head: list[Any], blocks: list[index_streams.Array]) -> Chunks:
        """Read part by part; from a lost part on, make the rest."""
        first, *left = head
        yielded = 0
        for chunk in self._context.in_order(_reading(point, key), _parts(int(first["parts"])), self._context.AUTOTUNE):
            if chunk is None:
                yield from self._made_from(yielded, blocks)
                return
            yielded += len(chunk)
            yield chunk
        at = 0
        for node, count in first["left"]:
            self._task.left.setdefault(int(node), []).extend(left[at : at + int(count)])
            at += int(count)
        self._task.left_out[self._number] += int(first.get("left_out", 0))

    def _made_from(self, start: int, blocks: list[index_streams.Array]) -> Chunks:
        """Make the item without its first elements, which were read."""
        for chunk in self._make(iter(blocks)):
            if start < len(chunk):
                yield chunk.slice(start, len(chunk)) if start else chunk
            start = max(0, start - len(chunk))


def _reading(point: ActivePoint, key: bytes) -> Callable[[Chunk], Chunk | None]:
    def read(chunk: Chunk) -> Chunk | None:
        found = point.catalog.read(point.catalog.find(_keys(key, list(chunk.positions))))
        elements: list[Any] = []
        for part in found:
            if part is None:
                return None
            elements += part
        return Chunk(elements, chunk.origin, range(len(elements)))

    return read


def _parts(count: int) -> Chunks:
    for part in range(count):
        yield Chunk([part], _NOWHERE, range(part, part + 1))  # stands for its elements


def _part(key: bytes, number: int) -> bytes:
    return hashlib.blake2b(key + number.to_bytes(8, "little", signed=True), digest_size=16).digest()


def _keys(key: bytes, numbers: list[int]) -> Keys:
    return np.frombuffer(b"".join(_part(key, number) for number in numbers), np.uint8).reshape(-1, 16)
