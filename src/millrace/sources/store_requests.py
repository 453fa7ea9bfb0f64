"""Requests for ranges of files in object stores and on web servers: one after the other until one is answered.

A request that fails for a reason that may pass is made again (:mod:`millrace.policies.read_retries`), within a budget
that all requests share. What comes is compared with what was listed: size, version and length.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from millrace.errors import SourceChangedError, SourceError, SourceNotFoundError
from millrace.planning.split_table import stamp_of
from millrace.policies import read_retries
from millrace.policies.read_retries import RetryBudget
from millrace.sources import storage
from millrace.sources.stores import PassingError

_TIMES_MISSED = 3
"""Requests after which a file that was listed is taken to be gone: some stores are late to show one."""


class Entry(NamedTuple):
    """Range of a file, as it was listed.

    Attributes:
        location: path or URL of the file.
        start: first byte.
        stop: one past the last; -1: the end, where nobody listed the size.
        version: of the file as listed, or its stamp (:func:`~millrace.planning.split_table.stamp_of`); empty or 0 if
            nobody knows it.
        size: bytes of the whole file as listed; -1 if nobody knows it.
        content: SHA-256 of the bytes of the range, as a digest has it; empty if nobody knows it.
        item: number of the item that it is among those of its source; -1: it is none, or a part of one.
    """

    location: str
    start: int = 0
    stop: int = -1
    version: str | int = ""
    size: int = -1
    content: bytes = b""
    item: int = -1

    @property
    def bytes(self) -> int:
        """Number of bytes; 0 if nobody knows it."""
        return self.stop - self.start if self.stop >= 0 else 0

    @property
    def whole(self) -> bool:
        """Whether it is all of the file."""
        return self.start == 0 and self.stop in (-1, self.size)

    def part(self, start: int, stop: int) -> Entry:
        """Another range of the same file."""
        return Entry(self.location, start, stop, self.version, self.size)


class AbandonedError(Exception):
    """Nobody waits for the answer any more."""


class RequestWatch(Protocol):
    """Reader who waits for the answer to a request, as those see it who make the request."""

    @property
    def second(self) -> bool:
        """Whether a request for the same entry is under way, and takes long."""
        ...

    def abandoned(self) -> bool:
        """Whether the answer is no longer wanted."""
        ...

    def began(self) -> None:
        """Hear that the store is asked now."""

    def again(self, *, slow_down: bool) -> None:
        """Hear that the request has failed and will be made again, and whether the store asked to slow down."""


class StoreRequests:
    """Requests of one process, which share a budget of repetitions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._budget = RetryBudget()
        self._closed = threading.Event()

    def read(self, entry: Entry, watch: RequestWatch) -> bytes:
        """Read the bytes of ``entry``.

        Args:
            entry: in a store or on a web server.
            watch: who waits for the answer.

        Raises:
            SourceError: the reason why it can't be read, or could not for three minutes.
            AbandonedError: nobody wanted it any more.
        """
        failures, since = 0, 0.0
        watch.began()
        while True:
            try:
                found = _once(entry, lambda: watch.abandoned() or self._closed.is_set())
            except (PassingError, SourceNotFoundError) as error:
                failures += 1
                now = time.monotonic()
                since = since or now
                if not _may_pass(entry, error, failures, now - since):
                    raise _told(entry, error, failures) from error
                watch.again(slow_down=isinstance(error, PassingError) and error.slow_down)
                self._pause(failures, watch.abandoned)
            else:
                with self._lock:
                    self._budget = read_retries.answered(self._budget, repeated=failures > 0)
                return found

    def _pause(self, failures: int, abandoned: Callable[[], bool]) -> None:
        """Wait until a request may be made again after so many failures."""
        wait_s = read_retries.backoff_s(failures, random.random())
        while wait_s > 0:
            if self._closed.wait(wait_s) or abandoned():
                raise AbandonedError
            with self._lock:
                self._budget, wait_s = read_retries.take(self._budget, time.monotonic())

    def close(self) -> None:
        """Give up the requests that wait to be made again, and make no others."""
        self._closed.set()


def _once(entry: Entry, abandoned: Callable[[], bool]) -> bytes:
    import obstore

    if abandoned():
        raise AbandonedError
    with storage.remote(entry.location, retries=False) as (store, key):
        answer = obstore.get(store, key, options={} if entry.whole else {"range": (entry.start, entry.stop)})
        _check(entry, answer.meta)
        if abandoned():
            raise AbandonedError
        data = bytes(answer.bytes())
    expected = (entry.stop if entry.stop >= 0 else answer.meta["size"]) - entry.start
    if len(data) < expected:
        raise PassingError(f"{entry.location}: {len(data)} bytes came of the {expected} from byte {entry.start} on")
    return data


def _check(entry: Entry, meta: Any) -> None:
    """Compare what is there with what was listed."""
    same_size, same = entry.size in (-1, meta["size"]), _same_version(entry.version, meta)
    if same is None:  # nobody can tell
        same = same_size
    if not same:
        listed = f"{entry.size} bytes" if entry.size >= 0 else "another version"
        if isinstance(entry.version, str) and entry.version:
            listed += f", version {entry.version}"
        found = f"{meta['size']} bytes, version {storage.version_of(meta)}"
        raise SourceChangedError(
            f"{entry.location} has changed since it was listed: it had {listed}, and has {found}. {LIST_ANEW}"
        )
    if not same_size:  # an answer that was cut on its way
        raise PassingError(f"{entry.location}: the store sent {meta['size']} of its {entry.size} bytes")


LIST_ANEW = (
    "Data must stay as they are while they are read: put it back, or write what is new under new names; to read what "
    "is there now, list it anew by making the dataset again (on a service, as a job of another name)"
)


def _same_version(version: str | int, meta: Any) -> bool | None:
    """Whether the file has the version that was listed; None if nobody can tell."""
    if not version:
        return None
    tag = meta["e_tag"]
    # One store writes an etag in different ways in its listing and its answers: with or without quotes, weak or not.
    plain = tag.removeprefix("W/").strip('"') if tag else None
    forms = {tag, plain, f'"{plain}"', f'W/"{plain}"'} if plain else set()
    forms.add(storage.modified_and_size(meta))
    known = version in forms if isinstance(version, str) else version in map(stamp_of, forms)
    return True if known else (False if tag else None)


def _may_pass(entry: Entry, error: SourceError, failures: int, seconds: float) -> bool:
    if isinstance(error, SourceNotFoundError):
        return bool(entry.version or entry.size >= 0) and failures < _TIMES_MISSED
    return seconds < read_retries.PATIENCE_S


def _told(entry: Entry, error: SourceError, failures: int) -> SourceError:
    """Make the error that says what was tried."""
    if isinstance(error, SourceNotFoundError):
        if entry.size < 0 and not entry.version:
            return error
        size = f" with {entry.size} bytes" if entry.size >= 0 else ""
        return SourceNotFoundError(
            f"{error}, though it was listed{size}: it was deleted, or never became visible. {LIST_ANEW}"
        )
    return SourceError(f"{error}. It was asked for {failures} times in {read_retries.PATIENCE_S:.0f} s and more")
