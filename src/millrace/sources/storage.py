"""Stored bytes: local paths, ``file://``, and object stores through obstore. All reading of sources goes through here.

A location is a path or a URL: ``s3://bucket/key``, ``gs://bucket/key``, ``az://container/key``, ``http(s)://host/path``
or ``memory://key`` (a store inside this process, for tests). Endpoints and credentials come from the environment, as
the stores' own tools read them (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ``AWS_SKIP_SIGNATURE=true`` for public
buckets, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, ...). Local files are read with plain
system calls. obstore retries transient errors (5xx, timeouts, broken connections, also in the middle of a body); an
error that remains raises :class:`millrace.errors.SourceError` and is never skipped.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from stat import S_ISDIR, S_ISREG
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote, unquote_to_bytes

from millrace.errors import PipelineError, SourceError, SourceNotFoundError
from millrace.sources.concurrent_calls import concurrently
from millrace.sources.stores import StoreAccessDeniedError, store_errors, store_of

if TYPE_CHECKING:
    from obstore import GetOptions
    from typing_extensions import Buffer

READ_AHEAD_BYTES = 1 << 20
"""Bytes that a sequential reader of an object store asks for at a time."""
LOCAL_BUFFER_BYTES = 256 << 10
_LIST_PAGE = 1000
_MOST_BELOW = 10_000
"""Most objects in the folders below a folder that are skipped to find those right in it."""
_BUCKETS = ("s3", "gs", "az")
_HTTP = ("http", "https")
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
T = TypeVar("T")
R = TypeVar("R")


class FileInfo(NamedTuple):
    """File of a listing: its location, its size in bytes, and its version.

    The version is an etag, or mtime and size; it is empty if the store gives neither.
    """

    location: str
    size: int
    version: str


# -- locations ---------------------------------------------------------------------------------------------------------


def scheme_of(location: str) -> str:
    """Scheme of a location: ``s3``, ``http``, ... or empty for a local path.

    Raises:
        PipelineError: the scheme is none that can be read.
    """
    match = _SCHEME.match(location)
    scheme = match[1].lower() if match else ""
    if scheme in ("", "file"):
        return ""
    if scheme not in (*_BUCKETS, *_HTTP, "memory"):
        raise PipelineError(
            f"{location}: cannot read {scheme}://. Use a local path, or s3://, gs://, az://, http(s):// or memory://"
        )
    return scheme


def is_remote(location: str) -> bool:
    """Whether reading ``location`` waits for a network (or ``memory://``), so that several reads at once pay off."""
    return scheme_of(location) != ""


def is_far(location: str) -> bool:
    """Whether reading ``location`` asks another machine."""
    return scheme_of(location) not in ("", "memory")


def local_path(location: str) -> str:
    """Path of a local location: without ``file://``, with ``~`` expanded."""
    if _SCHEME.match(location):
        return unquote(location[len("file://") :])
    return os.path.expanduser(location) if location.startswith("~") else location


def absolute(location: str) -> str:
    """Make a location independent of the working folder."""
    return location if is_remote(location) else os.path.abspath(local_path(location))


def bare(location: str) -> str:
    """Strip the query that a web address may have, so that its ending can be read."""
    return location.partition("?")[0] if scheme_of(location) in _HTTP else location


def split_url(location: str) -> tuple[str, str]:
    """Split a URL into (root of the store, key in it); the two joined are the location."""
    scheme = scheme_of(location)
    start = len(scheme) + len("://")
    if scheme == "memory":
        return location[:start], location[start:]
    slash = location.find("/", start)
    if slash in (-1, start):
        example = f"{scheme}://{'host' if scheme in _HTTP else 'bucket'}/path"
        raise PipelineError(f"{location} names no file; write {example}")
    return location[: slash + 1], location[slash + 1 :]


@contextlib.contextmanager
def remote(location: str, *, retries: bool = True) -> Iterator[tuple[Any, str]]:
    """Open the store that a URL is in, as (client, key there); its errors are raised as millrace's."""
    scheme, name, key = _address(location)
    with store_errors(location, scheme, name):
        yield store_of(scheme, name, retries=retries), key


def _address(location: str) -> tuple[str, str, str]:
    """Parse a location into (scheme, name of the store, key in it)."""
    root, key = split_url(location)
    scheme = scheme_of(root)
    if scheme in _HTTP:
        # The query (a signature, say) belongs to every request of this store: obstore keeps it on the base URL.
        key, mark, query = key.partition("?")
        if _is_plain(key):
            return scheme, root + mark + query, unquote(key)
        return scheme, root + key + mark + query, ""  # obstore would write the key in another way
    return scheme, root[len(scheme) + len("://") : -1], key


def _is_plain(key: str) -> bool:
    """Whether the path of a URL means the same after it was read as text and written anew."""
    try:
        unquote_to_bytes(key).decode()
    except UnicodeDecodeError:
        return False
    return "%2f" not in key.lower()


@contextlib.contextmanager
def _local_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"{path} does not exist") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error


def for_each(function: Callable[[T], R], items: list[T], location: Callable[[T], str]) -> list[R]:
    """Call ``function`` on each item, in order; at once if the location of any is remote."""
    remote = any(is_remote(location(item)) for item in items)
    return concurrently(function, items) if remote else [function(item) for item in items]


# -- reading -----------------------------------------------------------------------------------------------------------


def stat(location: str) -> FileInfo:
    """Look up the size and version of one file.

    Raises:
        SourceNotFoundError: it does not exist, or is a folder.
    """
    if not is_remote(location):
        return stat_local(local_path(location))
    import obstore

    with remote(location) as (store, key):
        return _found(location, obstore.head(store, key))


def stat_readable(location: str) -> FileInfo:
    """Look up a file as :func:`stat` does; if that is denied by reading a byte: some URLs are signed for that alone."""
    try:
        return stat(location)
    except StoreAccessDeniedError as denied:
        if not scheme_of(location).startswith("http"):
            raise
        try:
            return _stat_by_reading(location)
        except (SourceError, NotImplementedError):
            raise denied from None


def _stat_by_reading(location: str) -> FileInfo:
    import obstore

    with remote(location) as (store, key):
        return _found(location, obstore.get(store, key, options={"range": (0, 1)}).meta)


def stat_local(path: str) -> FileInfo:
    """Look up a path as :func:`stat` does."""
    try:
        info = os.stat(path)
    except OSError:
        with _local_errors(path):
            raise
    if S_ISDIR(info.st_mode):
        raise SourceNotFoundError(f"{path} is a folder; for the files in it write {os.path.join(path, '*')!r}")
    if not S_ISREG(info.st_mode):
        raise SourceError(
            f"{path} is no file but a pipe, a socket or a device, which cannot be read in parts by several processes, "
            "and again: copy what it gives to a file"
        )
    return FileInfo(path, info.st_size, f"{info.st_mtime_ns}-{info.st_size}")


def _found(location: str, meta: Any) -> FileInfo:
    return FileInfo(location, meta["size"], version_of(meta))


def version_of(meta: Any) -> str:
    """Version of a file by what its store says about it: the etag, else when it was written, and its size.

    Empty if the store says neither, as web servers may: obstore has 1970 for a time that it wasn't told.
    """
    return meta["e_tag"] or (modified_and_size(meta) if meta["last_modified"].timestamp() else "")


def modified_and_size(meta: Any) -> str:
    """Version of a file in a store that gives no etag."""
    return f"{meta['last_modified']:%Y%m%d%H%M%S}-{meta['size']}"


def existing(locations: list[str]) -> list[FileInfo]:
    """Find those of ``locations`` that exist and may be read, in order; remote ones are asked for at once."""

    def look(location: str) -> FileInfo | None:
        try:
            return stat(location)
        except (SourceNotFoundError, StoreAccessDeniedError):
            return None

    return [item for item in for_each(look, locations, str) if item is not None]


def read(location: str) -> bytes:
    """Read a whole file."""
    if not is_remote(location):
        return read_local(local_path(location))
    import obstore

    with remote(location) as (store, key):
        return bytes(obstore.get(store, key).bytes())


def read_local(path: str) -> bytes:
    """Read a whole file at a path."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(file).st_size
            data = os.read(file, size + 1)  # one more says whether it was all
            if len(data) == size > 0:
                return data
            parts = [data]  # it is larger than what one call reads, or has no size, as in /proc
            while data and (data := os.read(file, max(size - sum(map(len, parts)), READ_AHEAD_BYTES))):
                parts.append(data)
            return b"".join(parts)
        finally:
            os.close(file)
    except OSError:
        with _local_errors(path):
            raise


def read_range(location: str, start: int, stop: int) -> bytes:
    """Read bytes ``start`` to ``stop`` of a file; fewer if it ends before."""
    if stop <= start:
        return b""
    if not is_remote(location):
        with open_range(location, start, stop, buffer_bytes=1) as stream:
            return stream.read()
    import obstore

    with remote(location) as (store, key):
        return bytes(obstore.get_range(store, key, start=start, end=stop))


def open_range(
    location: str, start: int = 0, stop: int = -1, *, buffer_bytes: int = LOCAL_BUFFER_BYTES
) -> io.BufferedReader:
    """Open a file to be read in sequence from byte ``start`` to ``stop`` (-1: the end).

    ``tell()`` and ``seek()`` count from the start of the whole file. At most ``buffer_bytes`` (local), or
    :data:`READ_AHEAD_BYTES` twice and what the network has under way (remote), are held.

    Raises:
        SourceNotFoundError: it does not exist.
    """
    if is_remote(location):
        return io.BufferedReader(_RemoteRange(location, start, stop), READ_AHEAD_BYTES)
    return io.BufferedReader(_LocalRange(local_path(location), start, stop), buffer_bytes)


class Stream(io.RawIOBase):
    """Readable stream whose position, ``at`` bytes from the start, says what its ``readinto`` reads."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self.at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to ``offset`` bytes from the start or, with ``SEEK_CUR``, from here; return the new position."""
        self._go(offset + (self.at if whence == os.SEEK_CUR else 0))
        return self.at

    def _go(self, target: int) -> None:
        self.at = target


class _LocalRange(Stream):
    def __init__(self, path: str, start: int, stop: int) -> None:
        super().__init__(start)
        self._fd = -1
        with _local_errors(path):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._path = path
        self._stop = stop

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        if self._stop >= 0:
            view = view[: max(0, self._stop - self.at)]
        try:
            count = os.preadv(self._fd, [view], self.at)
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error
        self.at += count
        return count

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        super().close()


class _RemoteRange(Stream):
    """One request whose body is read as it comes; a seek beyond what has come ends it and begins another."""

    def __init__(self, location: str, start: int, stop: int) -> None:
        super().__init__(start)
        self._location = location
        self._stop = stop
        self._size = -1
        self._stream: Iterator[bytes] | None = None
        self._chunk = memoryview(b"")

    def _go(self, target: int) -> None:
        ahead = target - self.at
        if 0 <= ahead <= len(self._chunk):
            self._chunk = self._chunk[ahead:]
        else:
            self._stream, self._chunk = None, memoryview(b"")
        self.at = target

    def readinto(self, buffer: Any) -> int:
        if not self._chunk:
            self._chunk = self._next()
        view = memoryview(buffer)
        count = min(len(view), len(self._chunk))
        view[:count] = self._chunk[:count]
        self._chunk = self._chunk[count:]
        self.at += count
        return count

    def _next(self) -> memoryview:
        if self._size < 0 and self._stop < 0 and self.at > 0:
            self._size = stat(self._location).size  # stores refuse a range that begins at the end
        end = self._size if self._stop < 0 else self._stop
        if 0 <= end <= self.at:
            return memoryview(b"")
        with remote(self._location) as (store, key):
            if self._stream is None:
                self._stream = self._request(store, key)
            return memoryview(next(self._stream, b""))

    def _request(self, store: Any, key: str) -> Iterator[bytes]:
        import obstore

        options: GetOptions = {}
        if self._stop >= 0:
            options["range"] = (self.at, self._stop)
        elif self.at > 0:
            options["range"] = {"offset": self.at}
        answer = obstore.get(store, key, options=options)
        self._size = answer.meta["size"]
        return iter(answer.stream(min_chunk_size=READ_AHEAD_BYTES))

    def close(self) -> None:
        self._stream, self._chunk = None, memoryview(b"")
        super().close()


def read_ranges(location: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
    """Read bytes ``start`` to ``stop`` of the file at a URL for each of ``ranges``, all at once; fewer if it ends."""
    import obstore

    asked = [each for each in ranges if each[0] < each[1]]
    with remote(location) as (store, key):
        starts, stops = [start for start, _ in asked], [stop for _, stop in asked]
        found = iter(obstore.get_ranges(store, key, starts=starts, ends=stops))
    return [next(found) if start < stop else b"" for start, stop in ranges]


# -- writing -----------------------------------------------------------------------------------------------------------


def write(location: str, data: bytes | IO[bytes]) -> None:
    """Store ``data``, or the rest of a file from its position on, at a URL; it is there wholly or not at all."""
    import obstore

    with remote(location) as (store, key):
        obstore.put(store, key, data)


def delete(location: str) -> None:
    """Remove the file at a URL.

    Raises:
        SourceNotFoundError: it does not exist, and the store is one that says so.
    """
    import obstore

    with remote(location) as (store, key):
        obstore.delete(store, key)


# -- listing -----------------------------------------------------------------------------------------------------------


def list_folder(folder: str, *, recursive: bool) -> Iterable[FileInfo]:
    """List objects below a remote folder (a URL with its slash), in no order; without ``recursive`` those right in it.

    Millions come page by page. Only if a folder has many files below it are those right in it asked for all at once, as
    stores give no other choice; then some come twice.
    """
    import obstore

    root, _ = split_url(folder)
    with remote(folder) as (store, prefix):
        below = 0
        for page in obstore.list(store, prefix or None, chunk_size=_LIST_PAGE):
            for meta in page:
                if not recursive and "/" in meta["path"][len(prefix) :]:
                    below += 1
                elif recursive or meta["size"] or _is_file(store, meta["path"]):
                    yield _found(root + meta["path"], meta)
            if below > _MOST_BELOW:
                break
        else:
            return
        answer = obstore.list_with_delimiter(store, prefix or None)
        yield from (_found(root + meta["path"], meta) for meta in answer["objects"])


def _is_file(store: Any, key: str) -> bool:
    """Whether there is an empty object of this name; else it has a slash more, by which consoles mark a folder."""
    import obstore

    try:
        obstore.head(store, key)
    except FileNotFoundError:
        return False
    return True
