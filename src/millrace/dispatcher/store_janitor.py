"""Store janitor: lists and clears the service's store on a thread, and feeds the results to the dispatcher's core."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from millrace.blocks import store_benchmark
from millrace.blocks.block_reader import BlockIndex, read_index
from millrace.blocks.stores.block_store import BlockStore
from millrace.blocks.stores.open_store import open_store
from millrace.control import inputs as inp
from millrace.control.actions import DeleteBlocks, ListStore
from millrace.control.state.cache_state import place_of, split_place
from millrace.errors import BlockDamagedError, BlockMissingError, CacheError, MillraceError, ServiceError
from millrace.protocol.cache_messages import KeptBlock

_logger = logging.getLogger(__name__)


class StoreJanitor:
    """Janitor that does one action at a time, in the order in which they came. Belongs to the event loop.

    Args:
        location: path or URL of the store.
        feed: takes the result of an action.
    """

    def __init__(self, location: str, feed: Callable[[inp.Input], None]) -> None:
        self._location, self._feed = location, feed
        self._store: BlockStore | None = None
        self._failed = False
        self._stay: set[tuple[str, str]] = set()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="millrace-store")
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the store."""
        if self._location.startswith("memory:"):
            raise ServiceError(f"cache_dir {self._location}: the memory of one process is no place that workers share")
        try:
            self._store = await asyncio.get_running_loop().run_in_executor(self._pool, self._opened)
        except MillraceError as error:
            raise ServiceError(f"cache_dir {self._location}: {error}") from error

    def _opened(self) -> BlockStore:
        store = open_store(self._location)
        for point, name in store.blocks(store_benchmark.POINT):
            store.delete(point, name)  # left behind by a worker that died as it measured
        return store

    def do(self, action: ListStore | DeleteBlocks) -> None:
        """Do an action in the background, and feed its result."""
        task = asyncio.ensure_future(self._do(action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, action: ListStore | DeleteBlocks) -> None:
        self._feed(await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, action))

    def _answer(self, action: ListStore | DeleteBlocks) -> inp.Input:
        return self._list(action) if isinstance(action, ListStore) else self._delete(action)

    def _list(self, action: ListStore) -> inp.Input:
        assert self._store is not None
        found: dict[str, list[KeptBlock]] = {}
        writers: dict[str, str] = {}
        try:
            blocks = self._store.blocks()
        except CacheError as error:
            if not self._failed:  # it is asked for again and again
                _logger.warning("the cache cannot be listed: %s", error)
            self._failed = True
            return inp.StoreListed(None)
        self._failed = False
        for (point, name), size in blocks.items():
            if point == store_benchmark.POINT:
                continue
            if action.known.get(point, {}).get(name) == size:
                found.setdefault(point, []).append(KeptBlock(name, size))
            elif (index := self._index(point, name)) is not None:
                found.setdefault(point, []).append(KeptBlock(name, size, len(index)))
                writers[point] = index.writer
        return inp.StoreListed(found, action.leases, writers)

    def _index(self, point: str, name: str) -> BlockIndex | None:
        """Read a block's index; None if it can't be.

        A block is removed that is none, or lies where only others write.
        """
        assert self._store is not None
        try:
            with closing(self._store.open(point, name)) as block:
                index = read_index(block)
            fingerprint, _, _ = split_place(point)
            if place_of(fingerprint, "", index.writer) == point:
                return index
            _logger.warning("%s bears the name of %r, who does not write there", block.location, index.writer)
        except (BlockDamagedError, BlockMissingError) as error:
            _logger.warning("%s", error)
        except CacheError as error:
            _logger.warning("a block is left as it is: %s", error)
            return None
        self._remove(point, name)
        return None

    def _delete(self, action: DeleteBlocks) -> inp.Input:
        stay = [name for name in action.names if not self._remove(action.place, name)]
        return inp.BlocksGone(action.place, [name for name in action.names if name not in stay], stay)

    def _remove(self, point: str, name: str) -> bool:
        assert self._store is not None
        try:
            self._store.delete(point, name)
        except CacheError as error:
            if (point, name) not in self._stay:  # it is tried again and again
                _logger.warning("block %s/%s stays: %s", point, name, error)
            self._stay.add((point, name))
            return False
        self._stay.discard((point, name))
        return True

    async def close(self) -> None:
        """Wait for the actions under way."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
