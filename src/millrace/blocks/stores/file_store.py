"""File store: blocks in a folder of any mounted file system, such as a local disk, NFS or GlusterFS."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import platform
import re
import stat
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from io import FileIO

import numpy as np
import pyarrow as pa

from millrace.blocks.stores.block_store import FULL, NAME, check_names
from millrace.elements.encode_columns import Piece
from millrace.elements.file_mapping import OpenFile, snapshot, stays_readable
from millrace.elements.layout import ALIGNMENT
from millrace.elements.recycled_arrays import Bytes
from millrace.errors import BlockDamagedError, BlockMissingError, CacheError, MillraceError, StoreFullError
from millrace.private_folder import make_private, private

_DRAFTS = ".drafts"
_ABANDONED_S = 86_400.0
"""Seconds after which a draft that nobody has written to is taken to be left, whatever host its writer was on."""
_NO_FILE = {errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENODEV}
"""Errors of opening a link, a socket, or a device that is not there."""
_POINT = re.compile(r"[0-9a-f]{32}(-[0-9a-f]{16})?")
_MOST_RANGES = 512
"""Most ranges of one read: systems take 1,024 buffers, and between two ranges may be some bytes that are skipped."""
_SKIPPED = memoryview(bytearray(4 << 10))
"""Destination of the bytes between ranges. The head before the one element of a message is no longer, and a call costs
more than they do."""
_WRITTEN_BYTES = 2 << 20
"""Bytes to write at once, at multiples of it: systems then keep a file in pages of that size, if they can, which are
mapped and unmapped as one."""
_MAPPED_BYTES = 1 << 20
"""Bytes from which it costs less to map than to copy (some 40 us; half of it to make a mapping and to undo it)."""
_COPIED_BYTES = 80 << 10
"""Largest bytes of messages that hold several elements; each of their elements is copied anyway."""


def is_own(name: str) -> bool:
    """Whether a store makes a folder of this name in its own."""
    return name == _DRAFTS or bool(_POINT.fullmatch(name))


class FileStore:
    """Store (:class:`~millrace.blocks.stores.block_store.BlockStore`) in a folder, with a folder for each point.

    A draft is a file of the folder ``.drafts``, named by host and process, and locked by who writes it. So drafts of a
    process of this host that died are told from those that another one is writing, and are removed when the store is
    opened; those of other hosts, which may be gone for ever, once nobody has written to them for a day. A block that
    the machine's end left incomplete is found damaged when it is read, and computed again: that costs less than a sync
    for each.

    Args:
        path: of the folder; it is made if it isn't there, and becomes its owner's alone, unless it holds other files.
    """

    def __init__(self, path: str) -> None:
        self.location = os.path.abspath(path)
        self._drafts = os.path.join(self.location, _DRAFTS)
        with _errors(self.location):
            make_private(self.location, is_own)
            make_private(self._drafts)
            self._sweep()

    def _sweep(self) -> None:
        """Remove drafts whose writer is gone."""
        for name in os.listdir(self._drafts):
            path = os.path.join(self._drafts, name)
            with contextlib.suppress(OSError), FileIO(_opened(path)) as file:  # what cannot be locked is somebody's
                foreign = name.rsplit(".", 2)[0] != platform.node()
                if foreign and time.time() - os.fstat(file.fileno()).st_mtime < _ABANDONED_S:
                    continue  # locks may say nothing of other hosts
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)

    @contextlib.contextmanager
    def draft(self) -> Iterator[FileDraft]:
        """Begin a draft: a file in the folder for drafts."""
        draft = FileDraft(self.location, self._drafts)
        try:
            yield draft
        finally:
            draft.discard()

    def open(self, point: str, name: str) -> FileBlock:
        """Open the block; it holds one file descriptor, and can be read when it has been deleted."""
        check_names(point, name)
        path = os.path.join(self.location, point, name)
        with _errors(path):
            return FileBlock(name, path, OpenFile(_opened(path)))

    def blocks(self, point: str | None = None) -> dict[tuple[str, str], int]:
        """List the bytes of each block as (point, name)."""
        with _errors(self.location):
            points = [each for each in os.listdir(self.location) if NAME.fullmatch(each)] if point is None else [point]
            check_names(*points)
            return {(each, name): size for each in points for name, size in self._sizes(each)}

    def _sizes(self, point: str) -> Iterator[tuple[str, int]]:
        with (
            contextlib.suppress(FileNotFoundError, NotADirectoryError),  # of a point that has no blocks
            os.scandir(os.path.join(self.location, point)) as entries,
        ):
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    if NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        yield entry.name, entry.stat(follow_symlinks=False).st_size

    def delete(self, point: str, name: str) -> None:
        """Remove a block, if it is there."""
        check_names(point, name)
        path = os.path.join(self.location, point, name)
        with _errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    def free_bytes(self) -> int | None:
        """Bytes that the file system has left for this user."""
        with _errors(self.location):
            found = os.statvfs(self.location)
        return found.f_bavail * found.f_frsize


class FileDraft:
    """Draft (:class:`~millrace.blocks.stores.block_store.Draft`) in a file that nobody else sees."""

    def __init__(self, root: str, folder: str) -> None:
        self._root = root
        self._waiting: deque[memoryview] = deque()
        self._count = 0  # of their bytes
        while True:
            self._path = os.path.join(folder, f"{platform.node()}.{os.getpid()}.{uuid.uuid4().hex}")
            with _errors(self._path):
                os.makedirs(folder, mode=0o700, exist_ok=True)  # somebody may have cleared the store
                self._file = FileIO(self._path, "x", opener=private)
                with contextlib.suppress(OSError):  # a file system without locks, where nothing is swept either
                    fcntl.flock(self._file, fcntl.LOCK_EX)
                if os.fstat(self._file.fileno()).st_nlink:
                    break
                self._file.close()  # taken for one that was left, before it was locked

    def write(self, data: Piece, /) -> None:
        """Append ``data``, which may not change until the draft is published."""
        self._waiting.append(memoryview(data))
        self._count += len(data)
        if self._count >= _WRITTEN_BYTES:
            self._flush(self._count - self._count % _WRITTEN_BYTES)

    def _flush(self, count: int) -> None:
        """Write ``count`` of the bytes that wait."""
        self._count -= count
        while count:
            some = list(itertools.islice(self._waiting, _MOST_RANGES))
            over = sum(map(len, some)) - count
            if over > 0:
                some[-1] = some[-1][: len(some[-1]) - over]
            with _errors(self._path):
                written = os.writev(self._file.fileno(), some)
            count -= written
            while written:  # a disk may take less than it is given
                first = self._waiting.popleft()
                if len(first) > written:
                    self._waiting.appendleft(first[written:])
                written -= min(written, len(first))

    def publish(self, point: str, name: str) -> None:
        """End the draft: the block is there, in the place of one that was."""
        path = self._finish(point, name)
        with _errors(path):
            os.rename(self._path, path)
            self._file.close()

    def publish_new(self, point: str, name: str) -> bool:
        """End the draft, if there is no such block yet: else that one stays, which was made of the same items."""
        path = self._finish(point, name)
        with _errors(path):
            try:
                os.link(self._path, path, follow_symlinks=False)
            except FileExistsError:
                return False
            os.unlink(self._path)
            self._file.close()
        return True

    def _finish(self, point: str, name: str) -> str:
        """Write the rest, and return the path of the block."""
        check_names(point, name)
        folder = os.path.join(self._root, point)
        path = os.path.join(folder, name)
        self._flush(self._count)
        with _errors(path):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        return path

    def discard(self) -> None:
        """Remove the draft, if it was not published."""
        with contextlib.suppress(OSError):  # some file systems say only now what could not be written
            self._file.close()
        with contextlib.suppress(OSError):  # it was published, or what cannot be removed now is swept later
            os.unlink(self._path)


class FileBlock:
    """Open block (:class:`~millrace.blocks.stores.block_store.OpenBlock`) in a file.

    Args:
        name: without its point.
        path: of the file, for messages.
        file: the file, which this process may not be able to open by its path.
    """

    def __init__(self, name: str, path: str, file: OpenFile) -> None:
        self.name = name
        self.location = path
        self._open: OpenFile | None = file
        with _errors(path):
            self.nbytes = os.fstat(file.fd).st_size
            self._stays = stays_readable(file.fd)

    def fileno(self) -> int:
        """Return the descriptor, to be passed to another process."""
        return self._file.fd

    @property
    def _file(self) -> OpenFile:
        if self._open is None:
            raise CacheError(f"{self.location} was closed")
        return self._open

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Read bytes ``start`` to ``stop`` of each range, or fewer where the file ends before."""
        found: list[Bytes] = []
        with _errors(self.location):
            while len(found) < len(ranges):
                first = last = len(found)
                while last + 1 < min(len(ranges), first + _MOST_RANGES) and (
                    0 <= ranges[last + 1][0] - ranges[last][1] <= len(_SKIPPED)
                ):
                    last += 1
                found += self._together(ranges[first : last + 1])
        return found

    def _together(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Read adjacent or nearly adjacent ranges in one call; cut to what there is."""
        begin, end = ranges[0][0], ranges[-1][1]
        large = end - begin >= _MAPPED_BYTES and max(stop - start for start, stop in ranges) > _COPIED_BYTES
        if large and self._stays and not any(start % ALIGNMENT for start, _ in ranges):
            whole = snapshot(self._file, begin, end)
            if whole is not None:
                return [whole[start - begin : stop - begin] for start, stop in ranges]
        # Arrow's allocator hands out again what has died: to find new memory can cost more than to read.
        found = [np.frombuffer(pa.allocate_buffer(stop - start), np.uint8) for start, stop in ranges]
        at = begin
        views = []
        for (start, stop), buffer in zip(ranges, found, strict=True):
            if start > at:
                views.append(_SKIPPED[: start - at])
            views.append(buffer.data)
            at = stop
        end = begin + os.preadv(self._file.fd, views, begin)
        if end == at:
            return found
        return [
            self._rest(buffer, start, max(0, min(stop, end) - start))
            for (start, stop), buffer in zip(ranges, found, strict=True)
        ]

    def _rest(self, buffer: Bytes, start: int, count: int) -> Bytes:
        """Complete a buffer of which ``count`` bytes were read, if more can be read."""
        while count < len(buffer) and (more := os.preadv(self._file.fd, [buffer.data[count:]], start + count)):
            count += more
        return buffer[:count]

    def version(self) -> object:
        """Token that differs once the file is another one, or was written to."""
        with _errors(self.location):
            found = os.fstat(self._file.fd)
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def drop(self) -> bool:
        """Have the system give up what it holds of the file in memory."""
        with _errors(self.location):
            os.fsync(self._file.fd)  # only pages that are on the disk can be given up
            os.posix_fadvise(self._file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return True

    def close(self) -> None:
        """End reading; what was read stays."""
        self._open = None


def _opened(path: str) -> int:
    """Open a file to be read; whatever else lies in its place, such as a pipe without a writer, does not block."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise BlockDamagedError(f"{path}: this is no file, so it is no block: {error.strerror}") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BlockDamagedError(f"{path}: this is no file, so it is no block")
    return handle


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Raise the system's errors as millrace's, with the path and what to do."""
    try:
        yield
    except MillraceError:
        raise
    except FileNotFoundError as error:
        raise BlockMissingError(f"{path} does not exist, or not any more") from error
    except OSError as error:
        if error.errno == errno.ESTALE:  # how NFS says that a file that is open was deleted elsewhere
            raise BlockMissingError(f"{path} does not exist any more") from error
        advice = FULL.get(error.errno or 0)
        if advice:
            raise StoreFullError(f"{path} cannot be written: {error.strerror}; {advice}") from error
        raise CacheError(f"{path}: {error.strerror or error}") from error
