"""Saved datasets: the elements of an epoch in blocks of a folder or a bucket, and the source that reads them.

A folder has blocks, of the format of caches (:mod:`millrace.blocks.block_format`), and ``saved.json``, which lists them
and is written last: without it nothing is there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from millrace.blocks.block_format import MESSAGE_BYTES
from millrace.blocks.block_keys import KEY_BYTES
from millrace.blocks.block_reader import BlockReader
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.block_store import OpenBlock
from millrace.elements.recycled_arrays import Bytes
from millrace.elements.tree import nbytes
from millrace.errors import CacheError, PipelineError, SourceCorruptError, SourceError, SourceNotFoundError
from millrace.graph.source_nodes import Load
from millrace.planning.split_table import Split, SplitTable, splits_table
from millrace.sources import storage
from millrace.sources.digests.stored_digest import draft
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress, sliced
from millrace.sources.splitting import entry_of, foretold
from millrace.sources.store_requests import Entry

_BLOCK_BYTES = 16 << 20
"""Size in bytes of a block, which is read as a whole."""
_CONTENTS = "saved.json"
_FORMAT = 1


class _Saved(msgspec.Struct, frozen=True):
    """Block of a saved dataset: its file, its name by its keys, and its elements and bytes in number."""

    file: str
    name: str
    elements: int
    bytes: int


class _Contents(msgspec.Struct, frozen=True):
    """Contents of ``saved.json``."""

    format: int
    blocks: list[_Saved]


def save(path: str, elements: Iterator[Any]) -> None:
    """Write elements to a folder or a prefix of a bucket, holding no more of them than a block's part.

    Raises:
        PipelineError: there is a saved dataset.
        CodecError: an element has no form as bytes.
        SourceError: it cannot be written.
    """
    if not storage.is_remote(path):
        os.makedirs(storage.local_path(path), exist_ok=True)
    if storage.existing([_at(path, _CONTENTS)]):
        raise _taken(path)
    token, written = secrets.token_bytes(8), list[_Saved]()
    try:
        for first in elements:
            name = f"{len(written):06}-{token.hex()}.block"
            with draft(_at(path, name)) as file:
                written.append(_write(BlockWriter(file), name, itertools.chain([first], elements), token))
        _publish(path, msgspec.json.format(msgspec.json.encode(_Contents(_FORMAT, written))), token)
    except BaseException:
        for each in [] if storage.is_remote(path) else written:
            with contextlib.suppress(OSError):
                os.unlink(storage.local_path(_at(path, each.file)))
        raise


def _taken(path: str) -> PipelineError:
    return PipelineError(
        f"save: {path} holds a saved dataset, which others may be reading; save to another path, each rank to one of "
        "its own"
    )


def _publish(path: str, contents: bytes, token: bytes) -> None:
    """Write what was saved, unless somebody else has saved something there meanwhile.

    Raises:
        PipelineError: somebody has.
    """
    place = _at(path, _CONTENTS)
    if storage.is_remote(path):
        if storage.existing([place]):
            raise _taken(path)
        with draft(place) as file:
            file.write(contents)
        return
    own, there = _at(path, f"{token.hex()}.json"), storage.local_path(place)
    with draft(own) as file:
        file.write(contents)
    try:
        os.link(storage.local_path(own), there)
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        raise SourceError(f"{there}: {error.strerror or error}") from error
    finally:
        os.unlink(storage.local_path(own))


def _write(writer: BlockWriter, file: str, elements: Iterator[Any], token: bytes) -> _Saved:
    """Write a block of the next elements, as many as go into one."""
    count, item, held = 0, list[Any](), 0

    def flush() -> None:
        numbered = token + file.encode() + writer.items.to_bytes(4, "little")
        writer.add(hashlib.blake2b(numbered, digest_size=KEY_BYTES).digest(), item)

    for element in elements:
        item.append(element)
        count, held = count + 1, held + nbytes(element)
        if held >= MESSAGE_BYTES:
            flush()
            item, held = [], 0
            if writer.nbytes >= _BLOCK_BYTES:
                break
    if item:
        flush()
    info = writer.finish()
    return _Saved(file, info.name, count, info.nbytes)


def list_source(node: Load, reads: Reads, seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one split per block."""
    contents = _contents(node, reads)

    def look(each: _Saved) -> Split:
        found = storage.stat(_at(node.path, each.file))
        if found.size != each.bytes:
            raise SourceCorruptError(f"{found.location} has {found.size} bytes, and {_CONTENTS} says {each.bytes}")
        seen(1)
        return Split(found.location, 0, found.size, -1, each.elements, found.size, found.version)

    return splits_table(storage.for_each(look, contents.blocks, lambda each: _at(node.path, each.file)))


def open_source(node: Load, table: SplitTable, reads: Reads) -> _Blocks:
    """Make the reader of the elements."""
    return _Blocks(node, table, reads)


def _at(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _contents(node: Load, reads: Reads) -> _Contents:
    location = _at(node.path, _CONTENTS)
    try:
        found = storage.stat(location)
    except SourceNotFoundError as error:
        raise SourceNotFoundError(
            f"{node.path} holds no saved dataset, or one that is not whole: {error}. ds.save(path) makes one"
        ) from error
    (raw,) = reads.fetch([Entry(location, 0, found.size, found.version, found.size)])
    try:
        contents = msgspec.json.decode(raw, type=_Contents)
    except (msgspec.DecodeError, ValueError) as error:
        raise SourceCorruptError(f"{location} is not what save() writes: {error}") from error
    if contents.format != _FORMAT:
        raise SourceCorruptError(f"{location} is of format {contents.format}, and this millrace reads {_FORMAT}")
    return contents


class _Blocks:
    def __init__(self, node: Load, table: SplitTable, reads: Reads) -> None:
        self._node, self._splits, self._reads = node, table.splits, reads

    @functools.cached_property
    def _names(self) -> dict[str, str]:
        """Name by its keys of each file."""
        return {_at(self._node.path, each.file): each.name for each in _contents(self._node, self._reads).blocks}

    def entries(self, unit: int, _start: int = 0, _stop: int = -1) -> Iterator[Entry]:
        return foretold(self._reads, self._splits[unit], -1)

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[Any]]:
        return sliced(self._items(split), start, stop, chunk_size)

    def _items(self, split: Split) -> Iterator[list[Any]]:
        with contextlib.closing(self._reads.open(entry_of(split))) as stream:
            data = stream.read()
        try:
            reader = BlockReader(_InMemory(self._names.get(split.location, ""), split.location, data))
            for item in range(len(reader.index)):
                yield reader.read([item])[0]
        except CacheError as error:
            raise SourceCorruptError(str(error)) from error


class _InMemory(OpenBlock):
    """Block whose bytes were read."""

    def __init__(self, name: str, location: str, data: bytes) -> None:
        self.name, self.location, self.nbytes = name, location, len(data)
        self._data = data

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        return [np.frombuffer(bytearray(memoryview(self._data)[start:stop]), np.uint8) for start, stop in ranges]

    def version(self) -> object:
        return id(self._data)
