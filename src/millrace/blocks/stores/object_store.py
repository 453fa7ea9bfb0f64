"""Object store: blocks under a URL."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import numpy as np

from millrace.blocks.stores.block_store import FULL, NAME, OpenBlock, check_names
from millrace.blocks.stores.recent_segments import RecentSegments
from millrace.elements.encode_columns import Piece
from millrace.elements.recycled_arrays import Bytes
from millrace.errors import (
    BlockMissingError,
    CacheError,
    PipelineError,
    SourceError,
    SourceNotFoundError,
    StoreFullError,
)
from millrace.sources import storage


class ObjectStore:
    """Store (:class:`~millrace.blocks.stores.block_store.BlockStore`) under a URL.

    The name of a block is known when it is complete, and objects cannot be renamed. So a draft is a temporary file
    without a name (in ``TMPDIR``), which is uploaded when it is published.

    Args:
        location: ``s3://``, ``gs://`` or ``az://`` with a bucket, and a prefix if wanted; or ``memory://PREFIX``.
    """

    def __init__(self, location: str) -> None:
        if storage.scheme_of(location) in ("", "http", "https"):
            raise PipelineError(f"{location}: blocks can be kept in a folder, or at s3://, gs://, az:// or memory://")
        self.location = location if location.endswith("/") else location + "/"
        self._recent = RecentSegments()

    @contextlib.contextmanager
    def draft(self) -> Iterator[_Draft]:
        """Begin a draft: a temporary file."""
        with _spooling(self.location):
            file = tempfile.TemporaryFile()  # noqa: SIM115  # what happens in the context is not its matter
        with file:
            yield _Draft(self.location, file)

    def open(self, point: str, name: str) -> _Block:
        """Open the block, whose size is asked for."""
        check_names(point, name)
        location = f"{self.location}{point}/{name}"
        with _errors(location):
            found = storage.stat(location)
        return _Block(name, location, found.size, found.version, self._recent)

    def blocks(self, point: str | None = None) -> dict[tuple[str, str], int]:
        """List the bytes of each block as (point, name)."""
        check_names(*([] if point is None else [point]))
        folder = self.location if point is None else f"{self.location}{point}/"
        with _errors(folder):
            found = {
                tuple(each.location.removeprefix(self.location).split("/")): each.size
                for each in storage.list_folder(folder, recursive=True)
            }
        return {
            (key[0], key[1]): size for key, size in found.items() if len(key) == 2 and all(map(NAME.fullmatch, key))
        }

    def delete(self, point: str, name: str) -> None:
        """Remove a block, if it is there."""
        check_names(point, name)
        location = f"{self.location}{point}/{name}"
        with _errors(location), contextlib.suppress(SourceNotFoundError):
            storage.delete(location)

    def free_bytes(self) -> int | None:
        """Return None: object stores don't say."""
        return None


class _Draft:
    def __init__(self, root: str, file: IO[bytes]) -> None:
        self._root = root
        self._file = file

    def write(self, data: Piece, /) -> None:
        with _spooling(self._root):
            self._file.write(data)

    def publish(self, point: str, name: str) -> None:
        check_names(point, name)
        location = f"{self._root}{point}/{name}"
        with _spooling(self._root):
            self._file.seek(0)
        with _errors(location):
            storage.write(location, self._file)


class _Block(OpenBlock):
    def __init__(self, name: str, location: str, size: int, version: str, recent: RecentSegments) -> None:
        self.name = name
        self.location = location
        self.nbytes = size
        self._version = version
        self._recent = recent

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        bounded = [(min(start, self.nbytes), min(stop, self.nbytes)) for start, stop in ranges]
        with _errors(self.location):
            found = self._recent.read((self.location, self._version), self.nbytes, bounded, self._fetch)
        return [np.array(memoryview(each), np.uint8) for each in found]  # copied, as elements are to be writable

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        return [memoryview(each) for each in storage.read_ranges(self.location, ranges)]

    def version(self) -> object:
        return self._version


@contextlib.contextmanager
def _spooling(root: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StoreFullError if error.errno in FULL else CacheError
        raise kind(
            f"a block for {root} cannot be written to {tempfile.gettempdir()} first: {error.strerror}; free some room "
            "there, or set TMPDIR to another disk"
        ) from error


@contextlib.contextmanager
def _errors(location: str) -> Iterator[None]:
    try:
        yield
    except SourceNotFoundError as error:
        raise BlockMissingError(f"{location} does not exist, or not any more") from error
    except SourceError as error:
        raise CacheError(str(error)) from error
