"""Cache writer: a task's items are encoded on a thread of its own, beside their making, and written on another."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.blocks.async_writer import AsyncWriter, write_async
from millrace.blocks.block_format import BlockInfo
from millrace.blocks.block_keys import Keys, as_bytes
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.block_store import BlockStore
from millrace.elements.tree import nbytes_of, tree_map
from millrace.errors import CacheError, CodecError
from millrace.wire.data.compression import Compression

BLOCK_BYTES = 250 << 20
"""Bytes at which a block is ended (Cachew, section 5.1)."""
_WAITING_BYTES = 32 << 20
"""Most bytes of elements that wait to be written; whoever makes more waits, too."""
_HANDED_BYTES = 1 << 20
_HANDED_ITEMS = 1024
"""Most items of a handover; small elements are handed over together, as a handover costs as much as writing
kilobytes."""
_LARGE_BYTES = 64 << 10
_SPARE_BYTES = 4096
"""Most bytes of an item beside its elements: a key, and the heads of a message and of the block."""

_SOME = 8
"""Divisor: items that a task has made and asks for again become a block of their own if they are at least one part in
so many of those that became blocks for that before. So blocks are few, and hardly anything is made twice."""

Added = list[tuple[bytes | None, list[Any]]]
"""Keys of items with elements; without a key they belong to the item before."""


class CacheWriter:
    """Writer of what one task adds to a point: blocks in a store, of a bounded number of bytes together. Thread-safe.

    Whatever goes wrong with it, the task goes on. Who uses it calls :meth:`finish` at the task's end, or :meth:`close`.

    Args:
        store: store of the blocks.
        point: the point that they belong to.
        room: bytes that they may have together.
        compression: compression of messages that become smaller by it.
        writer: tenant whose name is on them; empty where there are no tenants.

    Attributes:
        blocks: those that are published.
        error: why nothing more is kept, nor what is not published yet; empty: all is.
        lasting: whether what ended the keeping does so in other tasks, too.
        wanted: bytes for which there was no room, with all that was kept; 0: there was. Then what came before is kept.
    """

    def __init__(
        self, store: BlockStore, point: str, room: int, compression: Compression | None = None, writer: str = ""
    ) -> None:
        self._store, self._point, self._room = store, point, room
        self.compression, self.writer = compression, writer
        self._lock = threading.Lock()
        self._idle: list[_Writing] = []
        self._writings: list[_Writing] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millrace-keep")  # it has no thread until one is needed
        self.files = ThreadPoolExecutor(1, thread_name_prefix="millrace-write")  # likewise
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._bytes = self._again = 0
        self.blocks: list[BlockInfo] = []
        self.error, self.lasting = "", False
        self.wanted = 0

    def add(self, items: Added) -> None:
        """Add whole items, one after the other; several threads may add some at a time.

        Args:
            items: with a key each. Their elements may be changed afterwards.
        """
        with self._borrowed(whole=True) as writing:
            writing.add(items)

    @contextmanager
    def writing(self) -> Iterator[_Writing]:
        """Open a writer for items that may go on in the next addition; the last one is whole if the body ends well."""
        with self._borrowed(whole=False) as writing:
            try:
                yield writing
            except BaseException:
                writing.drop()
                raise

    @contextmanager
    def _borrowed(self, *, whole: bool) -> Iterator[_Writing]:
        with self._lock:
            writing = self._idle.pop() if self._idle else None
            if writing is None:
                writing = _Writing(self, self._store, self._point)
                self._writings.append(writing)
        writing.whole = whole
        try:
            yield writing
        finally:
            with self._lock:
                self._idle.append(writing)

    def again(self, keys: Keys) -> list[str]:
        """Publish items that the task has made itself and asks for again.

        Args:
            keys: keys of items that are not kept.

        Returns:
            Names of all blocks that are published, if there are new ones because of this.
        """
        with self._lock:
            idle, self._idle = self._idle, []
        try:
            count = sum(len(writing.keys) for writing in idle)
            if not count or _SOME * count < self._again:
                return []
            asked = as_bytes(keys)
            if all(writing.keys.isdisjoint(asked) for writing in idle):
                return []
            self._again += count
            for writing in idle:
                writing.keys.clear()
                writing.hand_over()
                self.later(writing.publish, 0)
            self._wait(-1)
            return [info.name for info in self.blocks]
        finally:
            with self._lock:
                self._idle += idle

    def later(self, action: Callable[[], None], nbytes: int) -> None:
        """Run ``action()`` on the thread that writes, after all earlier ones; wait while much is under way.

        Args:
            action: what to do.
            nbytes: bytes that it holds until it is done.
        """
        with self._lock:
            self._waiting.append((self._pool.submit(action), nbytes))
            self._bytes += nbytes
        self._wait(_WAITING_BYTES)

    def _wait(self, most: int) -> None:
        """Wait until no more than so many bytes wait."""
        while True:
            with self._lock:
                if not self._waiting or (self._bytes <= most and not self._waiting[0][0].done()):
                    return
                first, nbytes = self._waiting.popleft()
                self._bytes -= nbytes
            first.result()

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for so many bytes more; if not, there is none for what follows either."""
        with self._lock:
            written = sum([writing.nbytes for writing in self._writings])
            written += sum([info.nbytes for info in self.blocks])
        if written + nbytes > self._room:
            self.wanted = 2 * (written + nbytes)  # how much more there is nobody knows
        return not self.wanted

    def finish(self) -> None:
        """Publish what was added: all items are complete."""
        for writing in self._writings:
            writing.hand_over()
            if writing.begun:
                self.later(writing.publish, 0)
        self._wait(-1)
        self.close()

    def give_up(self, reason: str, *, lasting: bool = True) -> None:
        """Keep nothing more; blocks that are published stay. ``lasting``: other tasks would fare no better."""
        if not self.error:
            self.error, self.lasting = reason, lasting

    def close(self) -> None:
        """Throw away what is not published."""
        self._pool.shutdown(cancel_futures=True)
        for writing in self._writings:
            writing.close()
        self._writings.clear()
        self.files.shutdown()


class _Writing:
    """Writer of one block after the other, of whole items.

    One thread at a time adds to it; elements that it added may be changed afterwards. All else happens on the thread
    that writes.
    """

    def __init__(self, cache: CacheWriter, store: BlockStore, point: str) -> None:
        self._cache, self._store, self._point = cache, store, point
        self.whole = False
        """What was added last is complete."""
        self.keys: set[bytes] = set()
        """Keys of the blocks that were added, unless they are published because somebody asked for them."""
        self.begun = False
        """Something was added, ever: there is work for the other thread."""
        self._stack = ExitStack()
        self._draft: AsyncWriter | None = None
        self._writer: BlockWriter | None = None
        self._added: Added = []
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        writer = self._writer
        return 0 if writer is None else writer.nbytes

    # -- on the thread that makes --------------------------------------------------------------------------------------

    def add(self, items: Added) -> None:
        """Add items, or more of the one that was added last; all but the last are whole."""
        for key, elements in items:
            if self._cache.error or self._cache.wanted:
                return
            self.begun = True
            if key is not None:
                self.keys.add(key)
            try:
                self._added.append((key, [tree_map(_copied, element) for element in elements]))
            except Exception as error:  # noqa: BLE001 - a leaf's own code; without a cache nobody would have copied it
                self._cache.give_up(f"an element has a leaf that cannot be copied: {type(error).__name__}: {error}")
                return
            self._bytes += nbytes_of(elements)
            if self._bytes >= _HANDED_BYTES or len(self._added) >= _HANDED_ITEMS:
                self.hand_over()

    def hand_over(self) -> None:
        """Hand what was added to the thread that writes."""
        added, nbytes = self._added, self._bytes
        self._added, self._bytes = [], 0
        if added:
            self._cache.later(lambda: self._write(added), nbytes)

    def drop(self) -> None:
        """Throw away what is not published, as its last item is not complete."""
        self._added, self._bytes = [], 0
        self.keys.clear()
        if self.begun:
            self._cache.later(self.close, 0)

    # -- on the thread that writes -------------------------------------------------------------------------------------

    def _write(self, added: Added) -> None:
        with self._careful():
            for key, elements in added:
                if self._cache.error or not self._cache.fits(nbytes_of(elements) + _SPARE_BYTES):
                    if not self.whole:
                        self._cache.give_up("there is no room for all that the task has")
                    return
                if key is not None:
                    self._begin(key)
                if self._writer is not None:
                    self._writer.extend(elements)

    def _begin(self, key: bytes) -> None:
        if self._writer is not None and self._writer.nbytes >= BLOCK_BYTES:
            self.publish()
        if self._writer is None:
            draft = self._stack.enter_context(self._store.draft())
            self._draft = self._stack.enter_context(write_async(draft, self._cache.files))
            self._writer = BlockWriter(self._draft, self._cache.compression, self._cache.writer)
        self._writer.begin(key)

    def publish(self) -> None:
        """Publish the block, as it is."""
        if self._cache.error:
            return
        with self._careful():
            if self._writer is not None and self._draft is not None:
                info = self._writer.finish()
                self._draft.publish(self._point, info.name)
                self._cache.blocks.append(info)
        self.close()

    def close(self) -> None:
        """Throw away what is not published."""
        self._stack.close()
        self._draft = self._writer = None

    @contextmanager
    def _careful(self) -> Iterator[None]:
        try:
            yield
        except (CacheError, CodecError) as error:
            self._cache.give_up(str(error))
            self.close()


def _copied(leaf: Any) -> Any:
    """Copy a leaf that can be changed."""
    if type(leaf) is np.ndarray:
        if leaf.nbytes < _LARGE_BYTES or leaf.dtype.hasobject:
            return leaf.copy()
        # Arrow's allocator hands out again what has died: to find new memory takes longer than to copy.
        copied = np.ndarray(leaf.shape, leaf.dtype, pa.allocate_buffer(leaf.nbytes))
        np.copyto(copied, leaf)
        return copied
    changes = hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__")
    return copy.deepcopy(leaf) if changes and not isinstance(leaf, np.generic) else leaf
