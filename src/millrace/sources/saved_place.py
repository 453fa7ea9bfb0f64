"""Place of a saved dataset, a folder or a prefix of a bucket: who is saving there, and what is published or removed.

In a folder a saver holds a lock on a file of its own as long as it lives, so that others can tell what a process left
that died; it enters, and looks who else is there, under the lock on the folder. A bucket has no locks. There a saver's
progress file says that it is at work; whoever comes later takes the work over, once it has written something, by
removing that file, which the other one notices at its next complete file. Of two that publish, the second is refused in
either: by the file system's lock on the folder, or by the store's conditional write.
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
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, NamedTuple

from millrace.elements.encode_columns import Piece
from millrace.errors import MillraceError, SourceError, SourceNotFoundError
from millrace.folder_lock import folder_lock
from millrace.sources import storage
from millrace.sources.saved_manifest import MANIFEST, at

if TYPE_CHECKING:
    from obstore import UpdateVersion

ABANDONED_S = 86_400.0
"""Seconds after which files go whose saver cannot be asked whether it lives: it would have written others."""
_OF_SAVERS = re.compile(r"(?:\d{6,}-|saving-|measuring-|saved\.json\.)([0-9a-f]{16})(?:[./].*)?")
"""Names of what savers write, with the token of the saver."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""Errors of file systems without hard links."""
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
        known_as: by what the store knows it, an etag or a version or both; None in a folder, or where there is none.
    """

    raw: bytes | None = None
    known_as: UpdateVersion | None = None


class Others(NamedTuple):
    """Other savers of a folder or prefix, by their tokens.

    Attributes:
        living: those that are at work.
        left: names of what others left behind that are gone, or whose work can be taken over.
        unsure: names of what others wrote within a day, of whom nobody can tell whether they live.
        old: of all these, those that wrote nothing within a day.
    """

    living: list[str]
    left: dict[str, list[str]]
    unsure: dict[str, list[str]]
    old: set[str]


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
        return progress_of(self.token)

    # -- who is there --------------------------------------------------------------------------------------------------

    def enter(self, published: Collection[str]) -> Others:
        """Announce this saver, unless another one lives; look who else is or was here, with nobody coming between.

        Args:
            published: names of files that a manifest lists.
        """
        if self.remote:
            return self._others(published)
        with _errors(self._local("")):
            os.makedirs(storage.local_path(self.path), exist_ok=True)
        with self.alone(published) as others:
            if not others.living:
                with _errors(self._local("")):
                    self._lock = os.open(self._local(_lock(self.token)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                with contextlib.suppress(OSError):  # a file system without locks, where age decides
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return others

    @contextlib.contextmanager
    def alone(self, published: Collection[str]) -> Iterator[Others]:
        """Look who else is or was here; in a folder nobody enters meanwhile. ``published`` is that of :meth:`enter`."""
        if self.remote:
            yield self._others(published)
            return
        with self._folder_lock():
            yield self._others(published)

    @contextlib.contextmanager
    def _folder_lock(self) -> Iterator[None]:
        folder = storage.local_path(self.path)
        with contextlib.ExitStack() as held:
            with _errors(folder):
                held.enter_context(folder_lock(folder))
            yield

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

    def _others(self, published: Collection[str]) -> Others:
        now, left, newest = time.time(), dict[str, list[str]](), dict[str, float]()
        for name, written in self._names():
            found = _OF_SAVERS.fullmatch(name)
            if found is not None and found[1] != self.token and name not in published:
                left.setdefault(found[1], []).append(name)
                newest[found[1]] = max(newest.get(found[1], 0.0), written)
        living, unsure, old = list[str](), dict[str, list[str]](), set[str]()
        for token, names in [*left.items()]:
            lives, is_old = self._lives(token, names), now - newest[token] >= ABANDONED_S
            if is_old:
                old.add(token)
            if lives:
                living.append(token)
                del left[token]
            elif lives is None and not is_old:
                unsure[token] = left.pop(token)
        return Others(sorted(living), left, unsure, old)

    def _lives(self, token: str, names: Collection[str]) -> bool | None:
        """Whether a saver lives that has written these files; None: nobody can tell.

        One that has written a progress file to a bucket is taken not to, as it notices when its work is taken over.
        """
        if self.remote:
            return False if progress_of(token) in names else None
        try:
            handle = os.open(self._local(_lock(token)), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
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
        partial = f"{path}.{self.token}.draft"
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
                known: UpdateVersion = {}  # stores compare the one or the other
                if meta["e_tag"]:
                    known["e_tag"] = meta["e_tag"]
                if meta["version"]:
                    known["version"] = meta["version"]
                return Version(bytes(answer.bytes()), known or None)
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
        with self._folder_lock():
            if self.published().raw != seen.raw:
                raise ConflictError
            if seen.raw is None:
                self._link(data)
            else:
                self.put(MANIFEST, data)

    def _link(self, data: bytes) -> None:
        """Publish the first manifest, also where the file system has no locks."""
        name = f"saving-{self.token}.manifest"
        self.put(name, data)
        path = self._local(MANIFEST)
        try:
            with _errors(path):
                os.link(self._local(name), path)
        except SourceError as error:
            cause = error.__cause__
            if isinstance(cause, FileExistsError):
                raise ConflictError from None
            if not isinstance(cause, OSError) or cause.errno not in _NO_LINKS:
                raise
            with _errors(path):  # the lock on the folder is all that holds others off here
                os.replace(self._local(name), path)
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
                obstore.put(store, key, data, mode="create" if seen.raw is None else seen.known_as)
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


def progress_of(token: str) -> str:
    """Name of a saver's progress file."""
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
