"""Writers of the formats, independent of the readers under test."""

import io
import struct
import tarfile
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from millrace.graph.nodes import Node
from millrace.planning.split_table import SplitTable
from millrace.sources import list_source, open_source, storage
from millrace.sources.reads import Reads


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecords(records: Iterable[bytes]) -> bytes:
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, _masked(length), record, _masked(record)]
    return b"".join(parts)


def tar(
    members: Iterable[tuple[str, bytes]], *, tar_format: int = tarfile.GNU_FORMAT, folders: Iterable[str] = ()
) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as archive:
        for name in folders:
            folder = tarfile.TarInfo(name)
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture(scope="session")
def make_tfrecords() -> Callable[..., bytes]:
    return tfrecords


@pytest.fixture(scope="session")
def make_tar() -> Callable[..., bytes]:
    return tar


@pytest.fixture(scope="session")
def reference_crc32c() -> Callable[[bytes], int]:
    return crc32c


@pytest.fixture
def bucket() -> str:
    """A folder of ``memory://`` that no other test has."""
    return f"memory://{uuid.uuid4().hex}/"


def read_splits(node: Node, table: SplitTable, chunk: int = 7, start: int = 0, stop: int = -1) -> list[Any]:
    source: Any = open_source(node, table, Reads())
    elements: list[Any] = []
    for split in table.splits:
        for some in source.read(split, start, stop, lambda: chunk):
            assert 0 < len(some) <= chunk
            elements += some
    return elements


@pytest.fixture(scope="session")
def read_all() -> Callable[..., list[Any]]:
    """All elements ``start`` to ``stop`` of every split of a table."""
    return read_splits


@pytest.fixture
def check_closes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Node], None]:
    """Checks that an iterator over a source's split, closed amid its elements, closes the files that it has opened."""
    opened: list[Any] = []
    real = storage.open_range

    def recorded(*args: Any, **options: Any) -> Any:
        opened.append(real(*args, **options))
        return opened[-1]

    def check(node: Node) -> None:
        table = list_source(node, Reads())
        source: Any = open_source(node, table, Reads())
        reading = source.read(table.splits[0], 0, -1, lambda: 3)
        next(reading)
        assert not opened[-1].closed
        reading.close()
        assert len(opened) == 2
        assert all(stream.closed for stream in opened)

    monkeypatch.setattr(storage, "open_range", recorded)
    return check
