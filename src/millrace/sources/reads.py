"""Reads: the one door between sources and where their bytes lie.

A source asks for ranges of files (:class:`~millrace.sources.store_requests.Entry`): by :meth:`Reads.fetch` for all of
their bytes, by :meth:`Reads.open` for a stream. What lies on this machine is read at once. What lies far away is read
by requests that are under way together, bounded in bytes, as many as pay, and ahead of who asks for it where that was
announced (:mod:`millrace.sources.read_scheduler`); requests that fail are made again, and what comes is compared with
what was listed (:mod:`millrace.sources.store_requests`). A cache of the stored bytes is a ``tier`` before the requests:
then everybody asks for the same ranges of a file, whatever else they read of it.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Self

from millrace.planning import byte_ranges
from millrace.policies.read_concurrency import InFlight
from millrace.sources import storage
from millrace.sources.read_queues import Feed, Key, Queue, ReadAccount, ScheduledRead
from millrace.sources.read_scheduler import ReadScheduler, Request, SourceTier, clock
from millrace.sources.store_requests import Entry, StoreRequests
from millrace.sources.stores import NoRangesError

_PASSED_OVER = 1 << 20
"""Bytes at a time that are read to come to others behind them, of a server that gives files from the beginning."""
_BUDGET_BYTES = 64 << 20
_BLOCKS = 8
"""Blocks that the budget has room for, at least: several are under way while one is read."""
_LEAST_BLOCK_BYTES = 16 << 10


class ReadMeter(threading.local):
    """Time that this thread's reads took.

    Attributes:
        waited_s: seconds in which the thread waited for bytes.
        reading_s: seconds that the requests took, on whatever threads.
        cpu_s: of these, seconds of processor time.
    """

    waited_s = reading_s = cpu_s = 0.0


class _Asker(threading.local):
    """For which queue this thread asks; None: for none that was announced."""

    queue: Queue | None = None


def is_far(location: str) -> bool:
    """Whether reading ``location`` asks another machine, so that several reads at once pay."""
    return "://" in location and storage.is_far(location)


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="millrace-read", daemon=True).start()


class Reads:
    """Reads of a pipeline in one process, or those of one of its sources (see :meth:`part`). Thread-safe.

    Args:
        start: runs a function without arguments on a thread; by default each on a thread of its own.
        chosen: reads at once; None: as many as pay.
        budget: bytes that may be under way and waiting for who asks.
        request: reads the bytes of an entry that is far away; None: by requests to its store.
        tier: a cache that is asked before the stores; None: there is none.

    Attributes:
        account: what is held, and what was done so far.
        meter: of the thread that looks at it.
    """

    def __init__(
        self,
        start: Callable[[Callable[[], None]], None] = _on_a_thread,
        *,
        chosen: int | None = None,
        budget: int = _BUDGET_BYTES,
        request: Request | None = None,
        tier: SourceTier | None = None,
    ) -> None:
        self._start, self._requests = start, StoreRequests()
        self._scheduler = ReadScheduler(start, request or self._requests.read, chosen, tier)
        self.account = ReadAccount(budget)
        self.meter = ReadMeter()
        self._asker = _Asker()

    def part(self, budget: int) -> Reads:
        """Make the reads of one source, which are bounded and counted on their own."""
        part = object.__new__(Reads)
        part._start, part._requests, part._scheduler = self._start, self._requests, self._scheduler
        part.meter, part._asker = self.meter, self._asker
        part.account = ReadAccount(budget)
        return part

    @property
    def in_flight(self) -> InFlight:
        """Limit on reads under way at once, and the reason."""
        return self._scheduler.in_flight

    # -- reading -------------------------------------------------------------------------------------------------------

    def fetch(self, entries: Sequence[Entry]) -> list[bytes]:
        """Read the bytes of each entry, in their order.

        Those of one file that lie close together are read by one request, unless there is a cache.

        Raises:
            SourceNotFoundError: a file does not exist, or not any more.
            SourceChangedError: a file is another one than when it was listed.
            SourceError: a store does not answer, or not so that its answer could be used.
        """
        far = [is_far(entry.location) for entry in entries]
        if not any(far):
            return [_at_hand(entry) for entry in entries]
        if len(entries) == 1:
            return self._take(entries, self._asker.queue)
        asked = [entry for entry, away in zip(entries, far, strict=True) if away]
        asked = list(dict.fromkeys(asked)) if self._scheduler.cached else joined(asked)
        found = dict(zip(asked, self._take(asked, self._asker.queue), strict=True))
        within = {entry.location: list[Entry]() for entry in asked}
        for entry in asked:
            within[entry.location].append(entry)
        return [
            _cut(entry, within[entry.location], found) if away else _at_hand(entry)
            for entry, away in zip(entries, far, strict=True)
        ]

    def _take(self, entries: Sequence[Entry], queue: Queue | None) -> list[bytes]:
        """Read entries that are far away, for the stream or task of ``queue``."""
        claimed = [self._scheduler.claim(self.account, entry, queue) for entry in entries]
        found: list[bytes] = []
        try:
            for read in claimed:
                found.append(self._wait(read))  # noqa: PERF401 - their number says which are to be dropped
        finally:
            for read in claimed[len(found) + 1 :]:
                self._scheduler.drop(read)
        return found

    def _wait(self, read: ScheduledRead) -> bytes:
        began = clock()
        try:
            return self._scheduler.wait(read)
        finally:
            self.meter.waited_s += clock() - began
            self.meter.reading_s += read.seconds
            self.meter.cpu_s += read.cpu_s

    def open(
        self,
        entry: Entry,
        *,
        buffer_bytes: int = storage.LOCAL_BUFFER_BYTES,
        block_bytes: int = byte_ranges.BLOCK_BYTES,
    ) -> io.BufferedReader:
        """Open a range of a file to be read in sequence; ``tell()`` and ``seek()`` count from the start of the file.

        Args:
            entry: a range of any size.
            buffer_bytes: of it that are held; more where it is far away, as it is read ahead then.
            block_bytes: that one request asks for, at most.

        Raises:
            SourceNotFoundError: it does not exist; if it is far away, the first read says so.
        """
        if is_far(entry.location):
            return io.BufferedReader(_FarStream(self, entry, block_bytes), buffer_bytes)
        return storage.open_range(entry.location, entry.start, entry.stop, buffer_bytes=buffer_bytes)

    def blocks(self, entry: Entry, block_bytes: int = byte_ranges.BLOCK_BYTES) -> Iterator[Entry]:
        """Cut a range into the entries that a stream of it reads, one after the other."""
        if self._scheduler.cached:
            for start, stop in byte_ranges.aligned_blocks(entry.start, entry.stop):
                yield entry.part(start, stop)
            return
        most = max(_LEAST_BLOCK_BYTES, min(block_bytes, self.account.budget // _BLOCKS))
        for start, stop in byte_ranges.blocks(entry.start, entry.stop, most):
            yield entry.part(start, stop)

    # -- reading ahead -------------------------------------------------------------------------------------------------

    def expect(self, owner: Hashable, tasks: Iterable[tuple[Key, Feed]]) -> None:
        """Announce the tasks that come next, in order, in place of those that ``owner`` announced before.

        Args:
            owner: who runs them one after the other.
            tasks: by a name of the task, the entries that it will ask for; the one that runs is the first of them.
        """
        self._scheduler.expect(self.account, owner, tasks)

    def beside(self, work: Callable[[], None]) -> None:
        """Run ``work()``, which raises nothing, beside the reads; at once where the system has no thread for it."""
        try:
            self._start(work)
        except (RuntimeError, MemoryError):
            work()

    def announce(self, owner: Hashable, key: Key, feed: Feed) -> AnnouncedReads:
        """Begin a task that will ask for these entries, in this order; close what is returned."""
        return AnnouncedReads(self._scheduler, self._scheduler.begin_task(self.account, owner, key, feed), self._asker)

    def close(self) -> None:
        """Begin no more reads, and give up those that wait to be made again."""
        self._scheduler.close()
        self._requests.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AnnouncedReads:
    """Announced reads of a running task; a context manager that lets go of what nobody asked for."""

    def __init__(self, scheduler: ReadScheduler, queue: Queue, asker: _Asker) -> None:
        self._scheduler, self._queue, self._asker = scheduler, queue, asker

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """Have what this thread asks for in the body be what was announced."""
        before, self._asker.queue = self._asker.queue, self._queue
        try:
            yield
        finally:
            self._asker.queue = before

    def go_on(self) -> None:
        """Look further ahead, if what is known is running out; on the thread that runs the task."""
        self._scheduler.top_up(self._queue)

    def close(self) -> None:
        """End reading ahead. Idempotent."""
        self._scheduler.leave(self._queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def joined(entries: Iterable[Entry]) -> list[Entry]:
    """Join entries of one file that lie close together, in the order in which the files are first named."""
    files: dict[str, list[Entry]] = {}
    for entry in entries:
        files.setdefault(entry.location, []).append(entry)
    found: list[Entry] = []
    for some in files.values():
        if len(some) == 1 or some[0].stop < 0:
            found += dict.fromkeys(some)
        else:
            ranges = byte_ranges.joined([(entry.start, entry.stop) for entry in some])
            found += [some[0].part(start, stop) for start, stop in ranges]
    return found


def _cut(entry: Entry, candidates: Sequence[Entry], found: dict[Entry, bytes]) -> bytes:
    """Cut the bytes of an entry out of those that were read for it among others."""
    if entry in found:
        return found[entry]
    around = next(each for each in candidates if each.start <= entry.start and entry.stop <= each.stop)
    return found[around][entry.start - around.start : entry.stop - around.start]


def _at_hand(entry: Entry) -> bytes:
    """Read an entry on this machine; fewer bytes if the file ends before."""
    location = entry.location
    if not entry.whole:
        return storage.read_range(location, entry.start, entry.stop)
    return storage.read(location) if "://" in location else storage.read_local(storage.local_path(location))


class _FarStream(storage.Stream):
    """Stream of a range that is far away: some blocks of it are under way while one is read."""

    def __init__(self, reads: Reads, entry: Entry, block_bytes: int) -> None:
        super().__init__(entry.start)
        if entry.stop < 0:
            size = entry.size if entry.size >= 0 else storage.stat(entry.location).size
            entry = entry._replace(stop=size, size=size)
        self._reads, self._entry, self._most = reads, entry, block_bytes
        self._whole: io.BufferedReader | None = None
        self._task = reads._asker.queue  # noqa: SLF001 - this class is part of it
        self._queue: Queue | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin at the start of the range."""
        self._leave()
        scheduler, account = self._reads._scheduler, self._reads.account  # noqa: SLF001 - as above
        self._blocks = self._reads.blocks(self._entry, self._most)
        self._block, self._data = self._entry.part(self._entry.start, self._entry.start), memoryview(b"")
        self._queue = scheduler.begin_stream(account, self._reads.blocks(self._entry, self._most), self._task)

    def _leave(self) -> None:
        if self._queue is not None:
            self._reads._scheduler.leave(self._queue)  # noqa: SLF001 - as above
        self._queue = None

    def _go(self, target: int) -> None:
        if target < self._block.start:
            self._begin()
        self.at = target

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        if self.at >= self._entry.stop:
            return 0
        if self._whole is None and self.at >= self._block.stop:
            self._read_block()
        if self._whole is not None:
            self._seek_whole(self.at)
            assert self._whole is not None
            count = self._whole.readinto(view[: self._entry.stop - self.at])
        else:
            part = self._data[self.at - self._block.start :][: len(view)]
            count = len(part)
            view[:count] = part
        self.at += count
        return count

    def _seek_whole(self, at: int) -> None:
        """Read on to a position, from the beginning if that is behind it: the server has nothing else."""
        assert self._whole is not None
        if at < self._whole.tell():
            self._whole.close()
            self._whole = storage.open_range(self._entry.location)
        while (missing := at - self._whole.tell()) > 0 and self._whole.read(min(missing, _PASSED_OVER)):
            pass

    def _read_block(self) -> None:
        """Read the block that the position lies in."""
        scheduler = self._reads._scheduler  # noqa: SLF001 - as above
        assert self._queue is not None
        scheduler.top_up(self._queue)
        self._data = memoryview(b"")  # makes room before the next one comes
        for block in self._blocks:
            if block.stop > self.at:
                break
            scheduler.pass_over(block, self._queue)
        else:
            raise AssertionError("the position lies within the range")
        try:
            (data,) = self._reads._take([block], self._queue)  # noqa: SLF001 - as above
        except NoRangesError:
            if self._entry.start:
                raise
            # A server that has whole files only: they are read as they come.
            self._whole = storage.open_range(self._entry.location)
            self._leave()
        else:
            self._block, self._data = block, memoryview(data)

    def close(self) -> None:
        self._leave()
        if self._whole is not None:
            self._whole.close()
        self._data = memoryview(b"")
        super().close()
