"""Packing of a task's outputs into messages of some mebibytes. Pure but for the codec, which is handed in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millrace.elements.tree import nbytes
from millrace.errors import CodecError
from millrace.worker.core.slot_buffer import LEAST_BYTES
from millrace.worker.core.worker_inputs import OutputMessage, Share

MOST = 1 << 17
"""Most elements of a message: None and {} travel as next to nothing, and are objects again in the training process."""

_MOST_WAITING = 64 << 20
"""Most bytes of elements that wait for a message to be full, if all are as large as the newest one."""

_PAUSE_S = 0.05
"""Seconds of a chunk, lately, from which nothing is held back that a reader would take: the next may take as long."""

Encode = Callable[[list[Any]], list[Any]]
"""Function from elements to bytes-like objects that together are one codec message."""


class Packer:
    """Packer of elements into messages; an element is never split.

    How many elements make a message is learnt from the message before, as asking each element for its size would
    cost more than an estimate that is off now and then. Of each chunk one is asked, so that a task of pictures behind
    one of labels does not wait for a message of thousands.

    Args:
        encode: see :data:`Encode`.
        start: number of the first element.
        batch: elements of the first message, as a task before this one has taught.

    Attributes:
        batch: elements of the next message.
        target: bytes of a message, about; no more than twice as many, unless one element has more.
    """

    def __init__(self, encode: Encode, start: int = 0, target: int = LEAST_BYTES, batch: int = 1) -> None:
        self._encode = encode
        self._index = start
        self.target = target
        self._elements: list[Any] = []
        self.batch = batch

    def add(self, elements: list[Any]) -> None:
        """Add more outputs of the task, in order."""
        self._elements = self._elements + elements if self._elements else elements
        size = nbytes(self._elements[-1]) if self._elements else 0
        if len(self._elements) * size > _MOST_WAITING:  # larger elements than those before
            self.batch = max(1, min(self.batch, self.target // size))

    def messages(self, *, flush: bool) -> Iterator[OutputMessage]:
        """Yield the messages that are full; with ``flush`` also what is left."""
        while len(self._elements) >= self.batch or (flush and self._elements):
            group, self._elements = self._elements[: self.batch], self._elements[self.batch :]
            yield from self._pack(group)

    def _pack(self, group: list[Any]) -> Iterator[OutputMessage]:
        middle = len(group) // 2
        try:
            buffers = self._encode(group)
        except CodecError:
            if not middle:
                raise
            yield from self._pack(group[:middle])  # those before the one that cannot be encoded come first
            yield from self._pack(group[middle:])
            return
        size = size_of(buffers)
        self.batch = max(1, min(self.target * len(group) // max(size, 1), 4 * self.batch + 16, MOST))
        if size > 2 * self.target and len(group) > 1:  # larger elements than those before
            yield from self._pack(group[:middle])
            yield from self._pack(group[middle:])
            return
        yield OutputMessage(self._index, len(group), buffers, size)
        self._index += len(group)


class RoundPacker:
    """Packer of batches into rounds, each a message with a batch for every reader.

    Args:
        encode: see :data:`Encode`.
        ranks: batches of a round.
        start: number of the first round.

    Attributes:
        batch: rounds of the next message, always one; ``target`` changes nothing. Both as in :class:`Packer`.
    """

    def __init__(self, encode: Encode, ranks: int, start: int = 0) -> None:
        self._encode, self._ranks, self._index = encode, ranks, start
        self._batches: list[Any] = []
        self.batch = self.target = 1

    def add(self, batches: list[Any]) -> None:
        """Add more batches of the task, in order."""
        self._batches = self._batches + batches if self._batches else batches

    def messages(self, *, flush: bool) -> Iterator[OutputMessage]:
        """Yield the rounds that are whole."""
        while len(self._batches) >= self._ranks:
            batches, self._batches = self._batches[: self._ranks], self._batches[self._ranks :]
            encoded = [self._encode([batch]) for batch in batches]
            shares = tuple(Share(buffers, size_of(buffers)) for buffers in encoded)
            yield OutputMessage.of_round(self._index, shares)
            self._index += 1


def is_due(*, waiting: bool, hungry: bool, slowest_s: float) -> bool:
    """Whether what has been made is to be sent although it fills no message.

    While a message is on its way the next one grows, as in Nagle's algorithm (RFC 896): a reader that is slower than
    its workers gets few large messages rather than one for each element. But what would lie here while the next chunk
    takes long is sent before.

    Args:
        waiting: a reader would take it at once.
        hungry: nothing is on its way to that reader.
        slowest_s: seconds of the slowest chunk lately.
    """
    return hungry or (waiting and slowest_s > _PAUSE_S)


def size_of(buffers: list[Any]) -> int:
    """Count the bytes of some buffers."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)
