"""Place of a saved dataset, a folder or a prefix of a bucket: who is saving there, and what is published or removed.

In a folder a saver holds a lock on a file of its own as long as it lives, so that others can tell what a process left
that died. A bucket has no locks. There a saver's progress file says that it is at work; whoever comes takes the work
over by removing that file, which the other one notices at its next complete file. Of two that publish, the second is
refused in either: by the file system's lock on the folder, or by the store's conditional write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import IO, NamedTuple

from millrace.elements.encode_columns import Piece
from millrace.errors import MillraceError, SourceError, SourceNotFoundError
from millrace.sources import storage
from millrace.sources.saved_manifest import MANIFEST, at

ABANDONED_S = 86_400.0
"""Seconds after which files go whose saver cannot be asked whether it lives: it would have written others."""
_OF_SAVERS = re.compile(r"(?:\d{6,}-|saving-|measuring-)([0-9a-f]{16})(?:[./].*)?")
"""Names of what savers write, with the token of the saver."""
_NO_ROOM = {
    errno.ENOSPC: "; free some room there, and save again",
    errno.EDQUOT: "; the quota is used up: raise it, and save again",
    errno.EFBIG: "; a file may not be so large here: raise ulimit -f, or let files be smaller (file_bytes=)",
}


class ConflictError(Exception):
    """Somebody else has published, or has taken the work over."""


class Version(NamedTuple):
    """Published manifest as it was looked at.

    Attributes:
        raw: its bytes; None: there is none.
        known_as: by what the store knows it, an etag or a version or both; empty in a folder, or where there is none.
    """

    raw: bytes | None = None
    known_as: Mapping[str, str] = {}


class SavedPlace:
    """Folder or prefix, as one saver sees it.

    Args:
        path: absolute, or a URL.

    Attributes:
        token: 16 hexadecimal digits that are in the names of all that this saver writes.
        remote: whether it is in an object store.
    """

    def __init__(self, path: str) -> None:
        self.path, self.token, self.remote = path, secrets.token_hex(8), storage.is_remote(path)
        self._lock: int | None = None

    def location(self, name: str) -> str:
        """Location of a file."""
        return at(self.path, name)

    def _local(self, name: str) -> str:
        return storage.local_path(self.location(name))

    @property
    def progress(self) -> str:
        """Name of this saver's progress file."""
        return _progress(self.token)

    # -- who is there --------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Announce this saver."""
        if self.remote:
            return
        with _errors(self._local("")):
            os.makedirs(storage.local_path(self.path), exist_ok=True)
            self._lock = os.open(self._local(_lock(self.token)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.suppress(OSError):  # a file system without locks, where age decides
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def leave(self, *, unfinished: bool = False) -> None:
        """Take the announcement back. Idempotent.

        Args:
            unfinished: what was written stays, for a later save to go on with.
        """
        handle, self._lock = self._lock, None
        if handle is not None:
            if not unfinished:
                with contextlib.suppress(OSError):
                    os.unlink(self._local(_lock(self.token)))
            os.close(handle)

    def savers(self, published: Collection[str]) -> tuple[list[str], dict[str, list[str]]]:
        """Look who else is saving here: the tokens of those that live, and by token what others left behind.

        Of those who cannot be asked whether they live nobody is told of, and what they wrote within a day is not
        either.

        Args:
            published: names of files that a manifest lists.
        """
        now, left, newest = time.time(), dict[str, list[str]](), dict[str, float]()
        for name, written in self._names():
            found = _OF_SAVERS.fullmatch(name)
            if found is not None and found[1] != self.token and name not in published:
                left.setdefault(found[1], []).append(name)
                newest[found[1]] = max(newest.get(found[1], 0.0), written)
        lives = {token: self._lives(token, names) for token, names in left.items()}
        for token, living in lives.items():
            if living or (living is None and now - newest[token] < ABANDONED_S):
                del left[token]
        return sorted(token for token, living in lives.items() if living), left

    def _lives(self, token: str, names: Collection[str]) -> bool | None:
        """Whether a saver lives that has written these files; None: nobody can tell.

        One that has written a progress file to a bucket is taken not to, as it notices when its work is taken over.
        """
        if self.remote:
            return False if _progress(token) in names else None
        try:
            handle = os.open(self._local(_lock(token)), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return None
        finally:
            os.close(handle)
        return False

    def _names(self) -> Iterator[tuple[str, float]]:
        """Names of what is here, with the time at which each was written last."""
        if not self.remote:
            with contextlib.suppress(FileNotFoundError), os.scandir(storage.local_path(self.path)) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        yield entry.name, entry.stat(follow_symlinks=False).st_mtime
            return
        import obstore

        with storage.remote(self.location("")) as (store, prefix):
            for page in obstore.list(store, prefix or None):
                for meta in page:
                    yield meta["path"].removeprefix(prefix), meta["last_modified"].timestamp()

    def is_mine(self) -> bool:
        """Whether nobody has taken the work over: the progress file is where it was written."""
        return bool(storage.existing([self.location(self.progress)]))

    # -- files ---------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def draft(self, name: str) -> Iterator[DraftFile]:
        """File that is here under its name, wholly, once this ends well.

        For an object store it is a temporary file until then, and no part of it is held in memory.

        Raises:
            SourceError: it cannot be written.
        """
        location = self.location(name)
        if self.remote:
            with _spooling(location):
                spool = tempfile.TemporaryFile(prefix="millrace-save-")  # noqa: SIM115  # what the body raises is its own
            with spool:
                yield DraftFile(spool, _spooling, location)
                with _spooling(location):
                    spool.seek(0)
                storage.write(location, spool)
            return
        path = self._local(name)
        partial = f"{path}.{uuid.uuid4().hex}.draft"
        try:
            with _errors(path):
                file = open(partial, "wb")  # noqa: SIM115  # as above
            try:
                yield DraftFile(file, _errors, path)
                with _errors(path):
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                with contextlib.suppress(OSError):  # said when it was flushed, or the body has failed before
                    file.close()
            with _errors(path):
                os.replace(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def put(self, name: str, data: bytes) -> None:
        """Write a small file, wholly or not at all."""
        if self.remote:
            storage.write(self.location(name), data)
            return
        with self.draft(name) as file:
            file.write(data)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that may be there. Their absence is no error."""
        for name in names:
            if self.remote:
                with contextlib.suppress(SourceNotFoundError):
                    storage.delete(self.location(name))
                continue
            path = self._local(name)
            with _errors(path), contextlib.suppress(FileNotFoundError):
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)

    # -- the manifest --------------------------------------------------------------------------------------------------

    def published(self) -> Version:
        """Look at the manifest."""
        location = self.location(MANIFEST)
        try:
            if not self.remote:
                return Version(storage.read(location))
            import obstore

            with storage.remote(location) as (store, key):
                answer = obstore.get(store, key)
                meta = answer.meta
                told = {"e_tag": meta["e_tag"], "version": meta["version"]}  # stores compare the one or the other
                return Version(bytes(answer.bytes()), {name: value for name, value in told.items() if value})
        except SourceNotFoundError:
            return Version()

    def publish(self, data: bytes, seen: Version) -> None:
        """Replace the manifest that was seen, or write the first one, for everybody and at once.

        Raises:
            ConflictError: it is another one meanwhile.
            SourceError: it cannot be written.
        """
        if self.remote:
            self._publish_remotely(data, seen)
            return
        folder = storage.local_path(self.path)
        with _errors(folder):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # without locks two that replace at the same moment are not told apart
                fcntl.flock(handle, fcntl.LOCK_EX)
            if self.published().raw != seen.raw:
                raise ConflictError
            if seen.raw is None:
                self._link(data)
            else:
                self.put(MANIFEST, data)
        finally:
            os.close(handle)

    def _link(self, data: bytes) -> None:
        """Publish the first manifest, also where the file system has no locks."""
        name = f"saving-{self.token}.manifest"
        self.put(name, data)
        path = self._local(MANIFEST)
        try:
            with _errors(path):
                os.link(self._local(name), path)
        except SourceError as error:
            if isinstance(error.__cause__, FileExistsError):
                raise ConflictError from None
            raise
        finally:
            self.remove([name])

    def _publish_remotely(self, data: bytes, seen: Version) -> None:
        import obstore
        from obstore import exceptions

        location = self.location(MANIFEST)
        if seen.raw is not None and not seen.known_as:  # a store that cannot compare
            if self.published().raw != seen.raw:
                raise ConflictError
            storage.write(location, data)
            return
        with storage.remote(location) as (store, key):
            try:
                obstore.put(store, key, data, mode="create" if seen.raw is None else {**seen.known_as})
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                raise ConflictError from None


class DraftFile:
    """File that is being written; what its system says is raised as millrace's errors."""

    def __init__(self, file: IO[bytes], errors: Callable[[str], AbstractContextManager[None]], location: str) -> None:
        self._file, self._errors, self._location = file, errors, location

    def write(self, data: Piece, /) -> None:
        """Append all of ``data``."""
        with self._errors(self._location):
            self._file.write(data)


def _progress(token: str) -> str:
    return f"saving-{token}.json"


def _lock(token: str) -> str:
    return f"saving-{token}.lock"


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Raise the system's errors as millrace's, with the path and what to do."""
    try:
        yield
    except MillraceError:
        raise
    except OSError as error:
        advice = _NO_ROOM.get(error.errno or 0, "")
        raise SourceError(f"{path} cannot be written: {error.strerror or error}{advice}") from error


@contextlib.contextmanager
def _spooling(location: str) -> Iterator[None]:
    try:
        yield
    except MillraceError:
        raise
    except OSError as error:
        raise SourceError(
            f"a file of {location} cannot be written to {tempfile.gettempdir()} first: {error.strerror or error}; free "
            "some room there, set TMPDIR to another disk, or let files be smaller (file_bytes=)"
        ) from error
