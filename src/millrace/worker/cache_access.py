"""Cache access: the caches that a worker reads from and adds to, for all of its jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.control.state.cache_state import split_place
from millrace.errors import MillraceError
from millrace.protocol.cache_messages import BlocksKnown, CacheUse, CacheUsed, KeptBlock, StoreCost, StoreMeasured
from millrace.protocol.messages import LeaseTask

if TYPE_CHECKING:
    from millrace.blocks.block_index import PointIndex
    from millrace.blocks.stores.block_store import BlockStore
    from millrace.engine.cache.cache_writer import CacheWriter
    from millrace.engine.cache.cached_items import ActivePoint
    from millrace.wire.broker.brokered_store import BrokeredStore
    from millrace.wire.data.compression import Compression

_CALIBRATION_S = 1.0

_logger = logging.getLogger(__name__)


@dataclass
class RunCache:
    """Share of one run in a cache: for :meth:`millrace.engine.run.program.Program.run`.

    Attributes:
        point: the cache point; None: there is no cache, or it cannot be used; then all is made.
        writer: writer of what is made; None: nothing is added.
        catalogs: indexes that are read from, by place.
        whole: the run has come to its end: what was made may be kept.
    """

    point: ActivePoint | None = None
    writer: CacheWriter | None = None
    catalogs: Mapping[str, PointIndex] = field(default_factory=dict)
    whole: bool = False


class CacheAccess:
    """Stores and indexes, opened when they are first needed. Thread-safe.

    Attributes:
        location: of the service's store; the dispatcher says it.
        compression: of blocks; the dispatcher says it.
        broker: the service's store, if it is a folder that this process may not look into.
    """

    def __init__(self) -> None:
        self.location = ""
        self.compression: Compression | None = None
        self.broker: BrokeredStore | None = None
        self._lock = threading.Lock()
        self._stores: dict[str, BlockStore] = {}
        self._catalogs: dict[str, PointIndex] = {}
        self._news: dict[str, list[str]] = {}
        self._failed: set[str] = set()

    def located(self, location: str, compression: Compression | None) -> None:
        """Take in where the service's store is."""
        self.location, self.compression = location, compression
        if self.broker is not None:
            try:
                self.broker.use(location)
            except MillraceError as error:
                _logger.warning("the cache cannot be used: %s", error)

    def known(self, message: BlocksKnown) -> None:
        """Take in what the dispatcher tells of blocks. Their indexes are read by the next run that needs them."""
        gone = set(message.gone)
        with self._lock:
            before = [] if message.whole else self._news.get(message.place, [])
            self._news[message.place] = [name for name in [*before, *message.names] if name not in gone]
            catalog = self._catalogs.get(message.place)
        if catalog is not None:
            catalog.forget(message.gone)
            if message.whole:
                catalog.forget(catalog.names() - set(message.names))

    def point(self, lease: LeaseTask) -> ActivePoint | None:
        """Open the cache point of a lease to see what it has; None: there is none, or its run will complain of it."""
        if lease.cache is None:
            return None
        try:
            return self._open(lease.cache, add=False).point
        except MillraceError:
            return None

    @contextmanager
    def using(self, lease: LeaseTask, tell: Callable[[CacheUsed], object]) -> Iterator[RunCache]:
        """Open the cache of a lease for its run; behind the body ``tell`` gets what is to be told about it.

        A cache that cannot be used is none: that is told, and never fails the run.
        """
        if lease.cache is None:
            yield RunCache()
            return
        try:
            using = self._open(lease.cache, add=not lease.probe_level)
        except MillraceError as error:
            self._complain(lease.cache.place, error)
            tell(CacheUsed(lease.ref.job, lease.lease, lease.cache.place, error=str(error)))
            yield RunCache()
            return
        try:
            yield using
        finally:
            for used in self._end(lease, lease.cache.place, using):
                tell(used)

    def _open(self, use: CacheUse, *, add: bool) -> RunCache:
        from millrace.blocks.block_index import MergedIndex
        from millrace.engine.cache.cache_writer import CacheWriter
        from millrace.engine.cache.cached_items import ActivePoint

        fingerprint, folder, path = split_place(use.place)
        store = self.store(path)
        writers = {use.place: use.writer, **use.also}
        catalogs = {place: self._catalog(store, place, writer) for place, writer in writers.items()}
        mine = catalogs[use.place]
        point = ActivePoint(
            use.node, bytes.fromhex(fingerprint), use.random, MergedIndex([*catalogs.values()]) if use.also else mine
        )
        writer = CacheWriter(store, folder, use.room, self.compression, use.writer) if use.room and add else None
        return RunCache(point, writer, catalogs)

    def _catalog(self, store: BlockStore, place: str, writer: str) -> PointIndex:
        """Find the index of a place, up to date."""
        from millrace.blocks.block_index import PointIndex

        _, folder, path = split_place(place)
        first = False
        with self._lock:
            catalog = self._catalogs.get(place)
            if catalog is None:
                catalog = self._catalogs[place] = PointIndex(store, folder, writer)
                first = True
            news, self._news[place] = self._news.get(place, []), []
        if first and path:  # of the user's own: the dispatcher does not list it
            news += [name for _, name in store.blocks(folder)]
        catalog.learn(news)
        return catalog

    def store(self, path: str) -> BlockStore:
        """Open the store at a path; "" is the service's.

        Raises:
            CacheError: it cannot be opened.
        """
        from millrace.blocks.stores.open_store import open_store
        from millrace.sources.storage import is_remote

        with self._lock:
            store = self._stores.get(path)
            if store is None:
                brokered = not path and self.broker is not None and not is_remote(self.location)
                store = self.broker if brokered else open_store(path or self.location)
                assert store is not None
                self._stores[path] = store
            return store

    def _end(self, lease: LeaseTask, place: str, using: RunCache) -> list[CacheUsed]:
        point, writer = using.point, using.writer
        assert point is not None
        blocks: list[KeptBlock] = []
        error, wanted = "", 0
        if writer is not None:
            if using.whole:
                writer.finish()
            else:
                writer.close()
            blocks = [KeptBlock(info.name, info.nbytes, info.items) for info in writer.blocks]
            error, wanted = writer.error, writer.wanted
            if error and not wanted:
                self._complain(place, error)
        with self._lock:  # the next run may begin before the dispatcher tells of them
            self._news.setdefault(place, []).extend(block.name for block in blocks)
        taken = [catalog.reads.take() for catalog in using.catalogs.values()]
        lost = {place: names for place, catalog in using.catalogs.items() if (names := catalog.take_lost())}
        for where, names in lost.items():
            _logger.warning("%d blocks of cache point %s could not be read: their elements are made", len(names), where)
        used = CacheUsed(
            lease.ref.job,
            lease.lease,
            place,
            blocks,
            lost.pop(place, []),
            point.hits,
            point.misses,
            sum(reads for reads, _, _ in taken),
            sum(read_bytes for _, read_bytes, _ in taken),
            sum(read_s for _, _, read_s in taken),
            error,
            wanted,
        )
        return [used, *(CacheUsed(lease.ref.job, lease.lease, where, lost=names) for where, names in lost.items())]

    def _complain(self, place: str, error: object) -> None:
        with self._lock:
            first = place not in self._failed
            self._failed.add(place)
        if first:
            _logger.warning("the cache of point %s cannot be used as it should: %s", place, error)

    def measure(self, path: str, room: int) -> StoreMeasured:
        """Measure what reads and writes of a store take here with no more than ``room`` bytes in it."""
        from millrace.blocks.store_benchmark import LARGEST, SMALLEST, calibrate
        from millrace.host_limits import memory_bytes, usable_cores

        threads = min(4, usable_cores())
        largest = max(SMALLEST, min(LARGEST, room))
        try:
            found = calibrate(self.store(path), seconds=_CALIBRATION_S, threads=threads, largest=largest)
        except MillraceError as error:
            return StoreMeasured(path, why=str(error))
        memory = memory_bytes()
        return StoreMeasured(path, StoreCost(found.read, found.cold, found.write, found.cpu_s, found.threads, memory))

    def close(self) -> None:
        """Close what is open. What is known of blocks stays, as the dispatcher tells it once."""
        with self._lock:
            catalogs = list(self._catalogs.values())
        for catalog in catalogs:
            catalog.close()
