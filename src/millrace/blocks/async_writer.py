"""Asynchronous block writer: a draft is written on another thread, while further elements are encoded and summed up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millrace.elements.encode_columns import Piece

if TYPE_CHECKING:
    from millrace.blocks.stores.block_store import Draft

_HANDOVER_BYTES = 1 << 20
"""Bytes that are handed to the thread at once: a handover costs as much as writing some kilobytes."""
_UNDER_WAY = 8
"""Most handovers that may wait to be written."""


class AsyncWriter:
    """Draft (:class:`~millrace.blocks.stores.block_store.Draft`) written on another thread; for use by one thread.

    Args:
        draft: the draft to write; the data given to it may not change.
        threads: an executor of one thread, so that all is written in order.
    """

    def __init__(self, draft: Draft, threads: Executor) -> None:
        self._draft, self._threads = draft, threads
        self._pieces: list[Piece] = []
        self._bytes = 0
        self._waiting: deque[Future[None]] = deque()

    def write(self, data: Piece, /) -> None:
        """Append all of ``data``, sooner or later."""
        self._pieces.append(data)
        self._bytes += len(data)
        if self._bytes >= _HANDOVER_BYTES:
            self._hand_over()
            self._wait(_UNDER_WAY)

    def publish(self, point: str, name: str) -> None:
        """End the draft, once all is written."""
        self._hand_over()
        self._wait(0)
        self._draft.publish(point, name)

    def _hand_over(self) -> None:
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        self._waiting.append(self._threads.submit(_write, self._draft, pieces))

    def _wait(self, most: int) -> None:
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def drop(self) -> None:
        """Cancel what waits; return when nothing is being written."""
        for waiting in self._waiting:
            if not waiting.cancel():
                waiting.exception()
        self._waiting.clear()


def _write(draft: Draft, pieces: list[Piece]) -> None:
    for piece in pieces:
        draft.write(piece)


@contextmanager
def write_async(draft: Draft, threads: Executor) -> Iterator[AsyncWriter]:
    """Write the draft on ``threads``; after the body nothing of it is written any more."""
    made = AsyncWriter(draft, threads)
    try:
        yield made
    finally:
        made.drop()
