"""Blocks of saved datasets: elements written one after the other into files, and read back block by block.

A file has blocks of the format of caches (:mod:`millrace.blocks.block_format`) one behind the other. A block is what is
read at once, by one request, and what an epoch is cut at; the file is what has to be opened. So files can be as large
as their device likes them, and nobody holds more of one than a block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from millrace.blocks.block_format import MESSAGE_BYTES
from millrace.blocks.block_keys import KEY_BYTES
from millrace.blocks.block_reader import BlockReader
from millrace.blocks.block_writer import BlockWriter, Writable
from millrace.blocks.stores.block_store import OpenBlock
from millrace.elements.recycled_arrays import Bytes
from millrace.elements.tree import nbytes
from millrace.errors import BlockDamagedError, CacheError, SourceCorruptError
from millrace.sources.saved_manifest import FILE_NAME, SavedFile

BLOCK_BYTES = 4 << 20
"""Size in bytes of a block, as of the requests of other sources, of which several are under way at once. A task whose
edge lies within a block reads all of it, and tasks have some 32 MiB: blocks that were larger would be read twice more
often."""


def write_file(
    file: Writable, name: str, elements: Iterator[Any], file_bytes: Callable[[int], int]
) -> tuple[SavedFile, bool]:
    """Write the next elements into a file, as many as go into one; return its blocks, and whether there may be more.

    No element is taken that is not written. Some 64 KiB of elements are held, or one that is larger.

    Args:
        file: takes the bytes.
        name: of the file, as the manifest will have it.
        elements: there is one at least.
        file_bytes: size at which the file is complete, by the bytes that it has so far.
    """
    counts, sizes = list[int](), list[int]()
    start, more = 0, True
    while more:
        limit = file_bytes(start)
        most = min(BLOCK_BYTES, limit)
        if start + most // 2 > limit:
            break
        count, size, more = _write_block(file, name, start, elements, most)
        if count:
            counts.append(count)
            sizes.append(size)
            start += size
    return SavedFile(name, counts, sizes), more


def _write_block(file: Writable, name: str, start: int, elements: Iterator[Any], most: int) -> tuple[int, int, bool]:
    """Write a block of about ``most`` bytes: its elements, its bytes, and whether there may be more elements."""
    writer = BlockWriter(file)
    item, held, count = list[Any](), 0, 0
    for element in elements:
        item.append(element)
        count, held = count + 1, held + nbytes(element)
        if held >= min(MESSAGE_BYTES, most):
            writer.add(_key(name, start, writer.items), item)
            item, held = [], 0
            if writer.nbytes >= most:
                return count, writer.finish().nbytes, True
    if item:
        writer.add(_key(name, start, writer.items), item)
    return count, writer.finish().nbytes if count else 0, False


def _key(name: str, start: int, item: int) -> bytes:
    """Key of an item: it says in which file, and where, its block belongs."""
    found = FILE_NAME.fullmatch(name)
    assert found is not None, name
    place = start.to_bytes(8, "little") if start else b""  # the first format had one block a file
    numbered = bytes.fromhex(found["token"]) + name.encode() + item.to_bytes(4, "little") + place
    return hashlib.blake2b(numbered, digest_size=KEY_BYTES).digest()


def read_block(location: str, start: int, data: bytes) -> Iterator[list[Any]]:
    """Yield the elements of a block in lists.

    Args:
        location: of its file.
        start: its first byte there.
        data: its bytes.

    Raises:
        SourceCorruptError: these are not the bytes that were written there.
    """
    try:
        reader = BlockReader(_InMemory(f"{location} from byte {start} on" if start else location, data))
        keys = reader.index.keys
        if not len(keys) or keys[0].tobytes() != _key(location.rsplit("/", 1)[-1], start, 0):
            raise SourceCorruptError(f"{location} has at byte {start} a block that was not written there")
        for item in range(len(reader.index)):
            yield reader.read([item])[0]
    except CacheError as error:
        found = (isinstance(error, BlockDamagedError) and error.found) or str(error)
        raise SourceCorruptError(f'{found}. ds.save(path, if_exists="replace") makes it again') from error


class _InMemory(OpenBlock):
    """Block whose bytes were read."""

    name = ""

    def __init__(self, location: str, data: bytes) -> None:
        self.location, self.nbytes = location, len(data)
        self._data = data

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        return [np.frombuffer(bytearray(memoryview(self._data)[start:stop]), np.uint8) for start, stop in ranges]

    def version(self) -> object:
        return id(self._data)
