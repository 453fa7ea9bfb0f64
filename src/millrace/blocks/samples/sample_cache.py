"""Cache of samples on a local disk, for map-style datasets: bounded, shared by the processes of one host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import logging
import os
import pickle
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from millrace.blocks.disk_capacity import default_bytes
from millrace.blocks.samples.claims import Claims, place_of
from millrace.blocks.samples.counters import SampleCounters, SampleCounts, read_counts
from millrace.blocks.samples.sample_table import EVICTIONS, Eviction, SampleTable
from millrace.errors import CacheError, PipelineError
from millrace.host_limits import siblings
from millrace.private_folder import make_private, private
from millrace.whole_numbers import whole

_log = logging.getLogger(__name__)
_SAMPLES, _CLAIMS, _COUNTS, _USERS = "samples.db", "claims", "counts", "users"
_OURS = re.compile(r"samples\.db(-wal|-shm|-journal)?|claims|users|counts-[0-9a-f]{16}")
_OWN = "millrace-samples"
"""Folder in the one that a user names, which may hold other files."""
_GONE = ".gone"
"""Ends the name of a temporary folder that is being removed."""
_FAILED_AHEAD = 8
"""Samples that fail to be fetched ahead, and none that doesn't, before a process warns of it."""
_FAILING = (
    "process %d could fetch no sample ahead: the first %d failed, of which the last, sample %d, with %s: %s. The loop "
    "gets them itself, and waits for each. If it can, the dataset has what other threads or a copy in another process "
    "lack: make it open what it needs (files, connections) when it is first asked, in each process"
)


class _Kept(NamedTuple):
    """A sample that was found; it may be None."""

    value: Any


def _pickled(sample: Any) -> bytes:
    return pickle.dumps(sample, protocol=pickle.HIGHEST_PROTOCOL)


class SampleCache:
    """Samples on disk, beside a training loop that reads them from somewhere slower.

    Several processes may use one folder at a time: the ranks of a host, and the workers of their DataLoaders, to which
    the cache is pickled or forked. Samples are kept as pickles, so the folder is its owner's alone.

    Args:
        max_bytes: bytes of samples to keep at most; None: half of what the disk has free or ``folder`` holds, unless
            ``max_samples`` is given. Ranks of a host that have a temporary folder each share that half.
        max_samples: samples to keep at most; None: no bound but ``max_bytes``.
        folder: in which they are kept, in a folder of their own; None: a temporary folder, which goes when the cache
            is closed or dropped.
        keep: leave samples in ``folder`` when the cache is closed, so that the next run begins with what is there.
        eviction: which samples leave first: ``"fifo"`` those that came first, ``"lru"`` those that were read longest
            ago, ``"random"`` any.

    Raises:
        PipelineError: an argument is out of range.
        CacheError: the folder can't be used.
    """

    def __init__(
        self,
        max_bytes: int | None = None,
        *,
        max_samples: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        keep: bool = False,
        eviction: Eviction = "fifo",
    ) -> None:
        if max_bytes is not None:
            max_bytes = whole("SampleCache", "max_bytes", max_bytes, 0)
        if max_samples is not None:
            max_samples = whole("SampleCache", "max_samples", max_samples, 0)
        if eviction not in EVICTIONS:
            raise PipelineError(f"SampleCache: eviction={eviction!r} is none of {', '.join(map(repr, EVICTIONS))}")
        if keep and folder is None:
            raise PipelineError("SampleCache: keep=True needs folder=..., as a temporary folder does not stay")
        self.shared = folder is not None
        with _errors(tempfile.gettempdir() if folder is None else os.path.abspath(folder)):
            if folder is None:
                self.folder, self._use = _join_temporary()
            else:
                self.folder = os.path.join(os.path.abspath(folder), _OWN)
                make_private(self.folder, _is_ours)
                self._use = _join(self.folder, keep=keep)
            self._leave = weakref.finalize(
                self, _leave, self.folder, self._use, os.getpid(), keep=keep, whole=folder is None
            )
            if max_bytes is None and max_samples is None:
                max_bytes = default_bytes(self.folder) // (1 if self.shared else siblings())
        self.max_bytes, self.max_samples, self.eviction = max_bytes, max_samples, eviction
        self.dumps: Callable[[Any], bytes] = _pickled
        """Makes what is kept of a sample, for ``pickle.loads``; frameworks know faster ways for their own types."""
        self._open()

    def _open(self) -> None:
        with _errors(self.folder):
            self._claims = Claims(os.path.join(self.folder, _CLAIMS))
            self._counters: dict[tuple[str, int], SampleCounters] = {}
            self._table = SampleTable(
                os.path.join(self.folder, _SAMPLES),
                most_bytes=self.max_bytes,
                most_samples=self.max_samples,
                eviction=self.eviction,
            )
        self._said: set[str] = set()
        self._failed_ahead: int | None = 0  # samples, as long as none could be fetched ahead
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        settings = ("shared", "folder", "max_bytes", "max_samples", "eviction", "dumps")
        return {name: getattr(self, name) for name in settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        with _errors(self.folder):
            self._use = _join(self.folder, keep=True)  # what is there is the others'
        self._leave = weakref.finalize(self, _leave, self.folder, self._use, os.getpid(), keep=True, whole=False)
        self._open()

    def __repr__(self) -> str:
        bounds = [
            f"max_{what}={n:,}"
            for what, n in (("bytes", self.max_bytes), ("samples", self.max_samples))
            if n is not None
        ]
        return f"SampleCache({', '.join([*bounds, f'folder={self.folder!r}', f'eviction={self.eviction!r}'])})"

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, name: str, index: int, fetch: Callable[[], Any], owner: int = 0) -> Any:
        """Read a sample: from the cache, from whoever is fetching it, or by ``fetch``.

        Args:
            name: of the dataset.
            index: of the sample in it.
            fetch: gets the sample from where it comes from.
            owner: number of whom it is read for, see :meth:`reads`.

        Raises:
            Whatever ``fetch`` raises.
            CacheError: the cache was closed.
        """
        began = time.perf_counter()
        counters = self._counts(name, owner)
        kept = self._get(counters, name, index)
        if kept is not None:
            counters.add(hits=1, waited_s=time.perf_counter() - began)
            return kept.value
        sample, joined = self._fetch_or_join(counters, name, index, fetch)
        seconds = time.perf_counter() - began
        counters.add(misses=1, joined=int(joined), waited_s=seconds, missed_s=seconds)
        return sample

    def _fetch_or_join(
        self, counters: SampleCounters, name: str, index: int, fetch: Callable[[], Any]
    ) -> tuple[Any, bool]:
        place, joined = place_of(name, index), False
        while True:
            with self._claims.claim(place) as ours:
                kept = self._get(counters, name, index)
                if kept is not None:
                    return kept.value, joined
                if ours:
                    return self._fetch(counters, name, index, fetch), joined
            joined = True
            self._claims.wait(place)  # then it is there; or its owner died, failed, or could not keep it

    def fetch_ahead(self, name: str, index: int, fetch: Callable[[], Any], owner: int = 0) -> bool:
        """Fetch a sample before it is read, unless it is there or somebody is fetching it; failures are counted.

        One that is there is kept as if it had been fetched: it would else go for those that are fetched behind it.

        Returns:
            Whether it was fetched.
        """
        if self._closed:
            return False
        try:
            counters = self._counts(name, owner)
            with self._claims.claim(place_of(name, index)) as ours:
                if ours and (turn := self._renew(counters, name, index)) is not None:
                    self._fetch(counters, name, index, fetch, ahead=1, turn=turn)
                    self._failed_ahead = None  # from now on a failure is that of a sample
                    return True
        except Exception as error:  # noqa: BLE001 - whoever reads this sample tries again and raises it
            if not self._closed:
                self._counts(name, owner).add(failed=1)
                _log.info("sample %d could not be fetched ahead: %s: %s", index, type(error).__name__, error)
                self._note_failed(index, error)
        return False

    def _note_failed(self, index: int, error: Exception) -> None:
        """Count a sample that could not be fetched ahead; warn once if nothing can be, in this process."""
        if self._failed_ahead is None:
            return
        self._failed_ahead += 1
        if self._failed_ahead < _FAILED_AHEAD or _FAILING in self._said:
            return
        self._said.add(_FAILING)
        _log.warning(_FAILING, os.getpid(), self._failed_ahead, index, type(error).__name__, error)

    def _fetch(
        self,
        counters: SampleCounters,
        name: str,
        index: int,
        fetch: Callable[[], Any],
        *,
        ahead: int = 0,
        turn: int | None = None,
    ) -> Any:
        began = time.perf_counter()
        sample = fetch()
        if self._closed:  # meanwhile
            return sample
        counters.add(fetched=1, ahead=ahead, fetch_s=time.perf_counter() - began)
        try:
            value = self.dumps(sample)
            evicted = self._table.put(name, index, value, turn)
        except Exception as error:  # noqa: BLE001 - the sample is there all the same: only the cache is poorer
            self._refuse(counters, index, f"{type(error).__name__}: {error}")
            return sample
        if evicted < 0:
            self._refuse(counters, index, f"its {len(value):,} bytes are more than the cache may hold")
        else:
            counters.add(stored=1, stored_bytes=len(value), evicted=evicted)
        return sample

    def _refuse(self, counters: SampleCounters, index: int, why: str) -> None:
        counters.add(refused=1)
        self._warn("sample %d could not be kept in %s: %s; it is read without the cache", index, why)

    def _warn(self, message: str, index: int, why: str) -> None:
        """Say once what may be wrong with every sample."""
        if message not in self._said:
            self._said.add(message)
            _log.warning(message, index, self.folder, why)

    def held(self, name: str, indices: Sequence[int]) -> list[int]:
        """Look up which of these samples are there now; none where the cache can't be read.

        Args:
            name: of the dataset.
            indices: of the samples in it.

        Raises:
            CacheError: the cache was closed.
        """
        counters = self._counts(name)
        try:
            return self._table.held(name, indices)
        except CacheError as error:
            self._refuse(counters, indices[0], str(error))
            return []

    def renew(self, name: str, indices: Sequence[int]) -> None:
        """Let samples that are about to be read go no sooner than what is fetched from now on, if they are there.

        Args:
            name: of the dataset.
            indices: of the samples in it, in the order in which they will be read.

        Raises:
            CacheError: the cache was closed.
        """
        counters = self._counts(name)
        try:
            self._table.renew_all(name, indices)
        except CacheError as error:
            self._refuse(counters, indices[0], str(error))

    def _get(self, counters: SampleCounters, name: str, index: int) -> _Kept | None:
        try:
            kept = self._table.get(name, index)
            if kept is None:
                return None
            try:
                return _Kept(pickle.loads(kept))  # noqa: S301 (this user's own, where nobody else can write)
            except Exception as error:  # noqa: BLE001 - such as of a class that is not there any more
                why = f"{type(error).__name__}: {error}"
                self._warn("sample %d in %s cannot be read and is fetched again: %s", index, why)
                self._table.drop(name, index)
        except CacheError as error:
            self._refuse(counters, index, str(error))
        return None

    def _renew(self, counters: SampleCounters, name: str, index: int) -> int | None:
        """Take a turn for a sample that is not there; 0 is none."""
        try:
            return self._table.renew(name, index)
        except CacheError as error:
            self._refuse(counters, index, str(error))
            return 0

    # -- what was counted ----------------------------------------------------------------------------------------------

    def _counts(self, name: str, owner: int = 0) -> SampleCounters:
        counters = self._counters.get((name, owner))
        if self._closed:
            raise CacheError(f"{self.folder}: this SampleCache was closed")
        if counters is None:
            path = os.path.join(self.folder, f"{_COUNTS}-{place_of(name, -1):016x}")
            with _errors(path):
                counters = self._counters.setdefault((name, owner), SampleCounters(path, owner))
        return counters

    def stats(self, name: str | None = None) -> SampleCounts:
        """Sum what the processes that share this cache have counted.

        Args:
            name: of the dataset; None: of all.
        """
        if name is not None:
            return self._counts(name).read()
        return _counted_in(self.folder)

    def reads(self, name: str, owner: int = 0) -> int:
        """Count the samples of one dataset that all processes have read for one owner, such as a rank."""
        return self._counts(name, owner).reads()

    def totals(self) -> tuple[int, int]:
        """Count the (samples, bytes of them) that are kept."""
        return self._table.totals()

    def room(self) -> int | None:
        """Estimate how many samples the cache can hold, at the mean size of those it holds; None: not known yet."""
        rooms = [] if self.max_samples is None else [self.max_samples]
        if self.max_bytes is not None:
            count, size = self.totals()
            rooms += [self.max_bytes * count // size] if size else []
        return min(rooms, default=None)

    def close(self) -> None:
        """Close the files of this process; the process that made the cache removes them too, unless they are kept."""
        self._closed = True
        self._table.close()
        for counters in self._counters.values():
            counters.close()
        self._leave()


def folder_stats(folder: str) -> SampleCounts:
    """Sum what was counted for all datasets with samples in ``folder``, as given to :class:`SampleCache`.

    Raises:
        CacheError: no cache is there: none was made in it, or its last user did not keep it.
    """
    place = os.path.join(os.path.abspath(folder), _OWN)
    if not os.path.isfile(os.path.join(place, _USERS)):
        raise CacheError(
            f"{folder} has no cache of samples: give the folder=... of a SampleCache that is in use, or that was made "
            "with keep=True"
        )
    with _errors(place):
        return _counted_in(place)


def _counted_in(place: str) -> SampleCounts:
    files = [file for file in os.listdir(place) if file.startswith(_COUNTS)]
    return functools.reduce(
        SampleCounts.__add__, (read_counts(os.path.join(place, each)) for each in files), SampleCounts()
    )


def _is_ours(file: str) -> bool:
    return bool(_OURS.fullmatch(file))


def _join_temporary() -> tuple[str, int]:
    """Make a temporary folder and become its user; those that this user's processes left when killed are removed."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(f"{_OWN}-")]
    for path in found:
        with contextlib.suppress(OSError):  # somebody else's, or somebody else removes it
            _remove_unused(path)
    while True:
        folder = tempfile.mkdtemp(prefix=f"{_OWN}-")
        with contextlib.suppress(FileNotFoundError):  # taken for an unused one by another process
            return folder, _join(folder, keep=True)


def _remove_unused(folder: str) -> None:
    if os.lstat(folder).st_uid != os.geteuid():
        return
    if folder.endswith(_GONE) and all(map(_is_ours, os.listdir(folder))):  # whoever was removing it was killed
        shutil.rmtree(folder)
        return
    handle = private(os.path.join(folder, _USERS), os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    finally:
        os.close(handle)


def _remove(folder: str) -> None:
    """Remove a temporary folder; a fetch that is under way in it can make no file anew, which would have it stay."""
    os.rename(folder, folder + _GONE)
    shutil.rmtree(folder + _GONE)


def _join(folder: str, *, keep: bool) -> int:
    """Become one of those who use a folder; the first of them clears it, if what is there is not to be kept.

    Raises:
        FileNotFoundError: it isn't there, or is removed meanwhile.
    """
    handle = private(os.path.join(folder, _USERS), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not keep:
                _clear(folder)  # left by processes that were killed
        fcntl.flock(handle, fcntl.LOCK_SH)
    except BaseException:
        os.close(handle)
        raise
    if os.fstat(handle).st_nlink == 0:
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "it was removed")
    return handle


def _leave(folder: str, use: int, owner: int, *, keep: bool, whole: bool) -> None:
    """Stop using a folder; the last one removes what is there, unless it is to be kept."""
    if owner != os.getpid():  # a forked child's copy, which uses it as long as its parent does
        return
    with contextlib.suppress(OSError):
        if whole:
            _remove(folder)
        elif not keep:
            fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear(folder)
    fcntl.flock(use, fcntl.LOCK_UN)  # closing would not do where forked children have the file open too
    os.close(use)


def _clear(folder: str) -> None:
    for file in os.listdir(folder):
        if _is_ours(file) and file != _USERS:
            os.unlink(os.path.join(folder, file))


@contextlib.contextmanager
def _errors(place: str) -> Any:
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(f"{place}: {error.strerror or error}; give SampleCache another folder=...") from error
