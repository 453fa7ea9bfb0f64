"""Blocks under Hypothesis: what was put in comes out; what was damaged is found out, whatever it is."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millrace.blocks.block_format import MESSAGE_BYTES, TRAILER
from millrace.blocks.block_keys import KEY_BYTES, KeyTable, block_name
from millrace.blocks.block_reader import BlockReader, ReadCounter, read_index
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.block_store import BlockStore
from millrace.blocks.stores.file_store import FileStore
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.elements import file_mapping
from millrace.elements.tree import flatten
from millrace.errors import BlockDamagedError, CodecError, StoreFullError
from millrace.testing.block_store_suite import POINT, get, put

KEYS = [hashlib.blake2b(bytes([number]), digest_size=KEY_BYTES).digest() for number in range(200)]
COMPRESSIONS = [None, "lz4", "zstd"]

arrays: st.SearchStrategy[np.ndarray] = hnp.arrays(
    st.sampled_from(["u1", "<f4", "<i8"]).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=5),
)
leaves = st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=9) | st.none() | arrays
elements = leaves | st.dictionaries(st.text(max_size=3), leaves, max_size=3) | st.lists(leaves, max_size=3)
large = st.integers(MESSAGE_BYTES - 200, 2 * MESSAGE_BYTES).map(lambda size: np.arange(size, dtype=np.uint8))
medium = st.integers(1000, MESSAGE_BYTES // 2).map(bytes)
blocks = st.lists(st.lists(elements | large | medium, max_size=4), max_size=12)


def write(store: BlockStore, items: Sequence[Sequence[Any]], compression: Any = None) -> str:
    """Publishes a block of ``items``, one for each key; its name."""
    with store.draft() as draft:
        writer = BlockWriter(draft, compression)
        for key, some in zip(KEYS, items, strict=False):
            writer.add(key, some)
        assert writer.items == len(items)
        info = writer.finish()
        draft.publish(POINT, info.name)
    assert store.blocks()[POINT, info.name] == info.nbytes == writer.nbytes_written
    assert info.items == len(items)
    return info.name


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return type(found) is type(expected) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, np.ndarray):
        return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    return type(found) is type(expected) and found == expected


@given(blocks, st.sampled_from(COMPRESSIONS), st.data())
def test_any_items_come_back(items, compression, data):
    store = MemoryStore()
    reader = BlockReader(store.open(POINT, write(store, items, compression)))
    asked = data.draw(st.lists(st.integers(0, len(items) - 1), max_size=20)) if items else []
    for numbers in (range(len(items)), asked):
        assert same(reader.read(numbers), [list(items[number]) for number in numbers])


@settings(max_examples=200)
@given(blocks, st.sampled_from(COMPRESSIONS), st.data())
def test_any_byte_that_changed_is_found_out(items, compression, data):
    store = MemoryStore()
    name = write(store, items, compression)
    whole = get(store, name)
    damaged = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1) | st.integers(max(0, len(whole) - 64), len(whole) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    put(store, name, bytes(damaged))
    with pytest.raises(BlockDamagedError, match=rf"{name} is damaged: .*computed again"):
        BlockReader(store.open(POINT, name)).read(range(len(items)))


@given(blocks, st.sampled_from(COMPRESSIONS), st.data())
def test_a_block_cut_short_or_with_a_hole_is_found_out(items, compression, data):
    store = MemoryStore()
    name = write(store, items, compression)
    whole = get(store, name)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.just(len(whole)) | st.integers(start + 1, len(whole)))
    put(store, name, whole[:start] + whole[stop:])
    with pytest.raises(BlockDamagedError):
        BlockReader(store.open(POINT, name)).read(range(len(items)))


@given(st.binary(max_size=300))
def test_any_bytes_are_no_block(data):
    store = MemoryStore()
    put(store, "b1", data)
    with pytest.raises(BlockDamagedError):
        read_index(store.open(POINT, "b1"))


def test_a_checksum_is_looked_at_once(monkeypatch):
    store = MemoryStore()
    name = write(store, [[bytes(30_000)]] * 10)
    reader = BlockReader(store.open(POINT, name))
    computed = []

    def counted(data):
        computed.append(len(data))
        return crc32(data)

    monkeypatch.setattr("millrace.blocks.block_reader.crc32", counted)
    reader.read([0, 9])
    assert len(computed) == 2
    reader.read([0, 2, 9])
    assert len(computed) == 3
    BlockReader(store.open(POINT, name), reader.index).read([0, 2, 9])
    assert len(computed) == 3


def test_a_block_under_another_name_is_found_out():
    store = MemoryStore()
    name = write(store, [[1]])
    put(store, "b1", get(store, name))
    with pytest.raises(BlockDamagedError, match=f"it holds the items of block {name}"):
        read_index(store.open(POINT, "b1"))


def test_a_block_of_another_version_is_named():
    store = MemoryStore()
    name = write(store, [[1]])
    whole = bytearray(get(store, name))
    whole[-TRAILER.size + 8] = 7
    put(store, name, bytes(whole))
    with pytest.raises(BlockDamagedError, match="it is of format 7, and this millrace reads format 1"):
        read_index(store.open(POINT, name))


# -- what is where -----------------------------------------------------------------------------------------------------


class Counted:
    """A block that notes what is read of it."""

    def __init__(self, block):
        self._block = block
        self.name, self.location, self.nbytes = block.name, block.location, block.nbytes
        self.ranges = []

    def read(self, ranges):
        self.ranges.append([stop - start for start, stop in ranges])
        return self._block.read(ranges)

    def version(self):
        return self._block.version()

    def drop(self):
        return False

    def close(self):
        pass


def test_small_elements_share_messages_and_large_ones_are_alone():
    store = MemoryStore()
    small, huge = np.zeros(1000, np.uint8), np.zeros(MESSAGE_BYTES, np.uint8)
    index = read_index(store.open(POINT, write(store, [[small]] * 100 + [[huge, huge]] + [[small]] * 10)))
    rows = np.diff(index.rows).tolist()
    assert rows == [58, 42, 1, 1, 10]
    assert index.counts.tolist() == [1] * 100 + [2] + [1] * 10
    assert (np.diff(index.offsets) < MESSAGE_BYTES + 2000).all()


def test_only_the_messages_of_what_is_asked_for_are_read():
    store = MemoryStore()
    name = write(store, [[np.full(30_000, number, np.uint8)] for number in range(100)])
    block = Counted(store.open(POINT, name))
    reader = BlockReader(block)
    assert len(block.ranges) == 1, "the index, in one read"
    (one,), (other,) = reader.read([71, 3])
    assert (one[0], other[0]) == (71, 3)
    assert len(block.ranges) == 2
    assert len(block.ranges[1]) == 2
    assert reader.read([]) == []
    assert BlockReader(store.open(POINT, write(store, [[]]))).read([0]) == [[]]


MADE_OF = {
    "array": lambda array, number: array,
    "dict": lambda array, number: {"image": array, "label": number},
    "nested": lambda array, number: ([array, None, number / 7], {"": (number % 2 == 0, array.T.copy())}),
    "scalar": lambda array, number: np.float32(number),
    "complex": lambda array, number: number * 1j,
}
uniform = st.tuples(
    st.sampled_from(list(MADE_OF)),
    st.sampled_from(["u1", "<f4", "<M8[s]"]),
    hnp.array_shapes(min_dims=0, max_dims=2, max_side=40),
    st.integers(1, 90),
)


@given(uniform, st.sampled_from(COMPRESSIONS), st.data())
def test_elements_that_are_alike_come_back_one_by_one(uniform, compression, data):
    kind, dtype, shape, count = uniform
    made = [MADE_OF[kind](np.full(shape, number).astype(dtype), number) for number in range(count)]
    store = MemoryStore()
    reader = BlockReader(store.open(POINT, write(store, [[element] for element in made], compression)))
    everything = reader.read(range(count))
    for _ in range(3):
        asked = data.draw(st.lists(st.integers(0, count - 1), max_size=6, unique=True))
        found = [element for (element,) in reader.read(asked)]
        assert same(found, [made[number] for number in asked])
        for leaf in flatten(found)[0]:
            if isinstance(leaf, np.ndarray):
                leaf[...] = np.zeros((), dtype)
    assert same([element for (element,) in everything], made), "they share no memory"
    assert same([element for (element,) in reader.read(range(count))], made)


def test_of_arrays_that_are_alike_only_those_are_read_once_their_message_was_found_right():
    store = MemoryStore()
    block = Counted(store.open(POINT, write(store, [[np.full(1000, number, np.uint8)] for number in range(100)])))
    reader = BlockReader(block)
    for wanted in ([71, 3], [70, 4, 71]):
        assert [array[0] for (array,) in reader.read(wanted)] == wanted
    assert min(block.ranges[1]) > 30_000, "a message is read whole at first"
    assert block.ranges[2:] == [[1000, 1000, 1000]]
    reader.read(range(50))
    assert min(block.ranges[3]) > 30_000, "and where most of it is wanted"


@pytest.mark.skipif(not file_mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
def test_of_a_local_disk_large_elements_are_views_of_what_the_system_has(tmp_path):
    store = FileStore(str(tmp_path))
    made = [{"image": np.full(150_001, number, np.uint8), "label": np.int64(number)} for number in range(20)]
    with contextlib.closing(store.open(POINT, write(store, [[element] for element in made]))) as block:
        reader = BlockReader(block)
        before = pa.total_allocated_bytes()
        for _ in range(2):  # looked at for the first time, and known
            found = reader.read(range(20))
            assert same(found, [[element] for element in made])
            assert pa.total_allocated_bytes() == before
            for (element,) in found:
                element["image"][:] = 0
        apart = reader.read([1, 7, 13])
    assert same(apart, [[made[number]] for number in (1, 7, 13)])
    assert pa.total_allocated_bytes() > before, "where little lies together it is copied"


def test_what_was_written_to_since_is_looked_at_again(tmp_path):
    store = FileStore(str(tmp_path))
    name = write(store, [[np.full(1000, number, np.uint8)] for number in range(100)])
    with contextlib.closing(store.open(POINT, name)) as block:
        reader = BlockReader(block)
        reader.read(range(100))
        path = tmp_path / POINT / name
        path.write_bytes(path.read_bytes().replace(bytes([7]) * 1000, bytes([8]) * 1000))
        os.utime(path, ns=(1, 1))  # the clock of a file system may stand still for a while
        with pytest.raises(BlockDamagedError, match="checksum"):
            reader.read([7])


def test_a_long_index_takes_two_reads(monkeypatch):
    monkeypatch.setattr("millrace.blocks.block_reader._TAIL_BYTES", 100)
    store = MemoryStore()
    block = Counted(store.open(POINT, write(store, [[number] for number in range(100)])))
    assert len(read_index(block)) == 100
    assert len(block.ranges) == 2


def test_elements_are_writable_and_share_nothing():
    store = MemoryStore()
    items = [[{"a": np.zeros(size)}, {"a": np.ones(size)}] for size in (3, 3, MESSAGE_BYTES)]
    reader = BlockReader(store.open(POINT, write(store, items)))
    found = [leaf for item in reader.read([0, 1, 2, 2, 0]) for leaf in flatten(item)[0]]
    for number, array in enumerate(found):
        array[:] = 10 + number
    assert [array[-1] for array in found] == [10 + number for number in range(10)]
    assert same(reader.read([0, 1, 2]), items)


def test_elements_hold_no_more_memory_than_they_have():
    store = MemoryStore()
    reader = BlockReader(store.open(POINT, write(store, [[np.zeros(100)]] * 50)))
    ((array,),) = reader.read([7])
    assert array.base is None


def test_the_size_is_known_while_writing():
    store = MemoryStore()
    with store.draft() as draft:
        writer = BlockWriter(draft)
        for key in KEYS:
            writer.add(key, [np.zeros(2000, np.uint8)])
        expected = writer.nbytes
        info = writer.finish()
    assert info.nbytes <= expected <= 1.1 * info.nbytes


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_is_of_what_shrinks(compression):
    store = MemoryStore()
    noise = np.random.default_rng(1).integers(0, 256, MESSAGE_BYTES, np.uint8)
    zeros = np.zeros(MESSAGE_BYTES, np.uint8)
    index = read_index(store.open(POINT, write(store, [[zeros], [noise]], compression)))
    sizes = np.diff(index.offsets)
    assert sizes[0] < MESSAGE_BYTES / 50
    assert sizes[1] > MESSAGE_BYTES
    assert index.lengths[0] > MESSAGE_BYTES
    assert index.lengths[1] == 0


def test_names_are_those_of_the_keys_in_order():
    store = MemoryStore()
    assert write(store, [[1], [2]]) == write(store, [[3], []], "lz4") == block_name(KEYS[0] + KEYS[1])
    assert block_name(KEYS[1] + KEYS[0]) != block_name(KEYS[0] + KEYS[1])
    assert len(block_name(b"")) == 32


def test_what_cannot_be_written_is_told_to_who_writes():
    store = MemoryStore(capacity=100_000)
    with store.draft() as draft:
        writer = BlockWriter(draft)
        with pytest.raises(ValueError, match="an item key of 3 bytes, where 16 are needed"):
            writer.add(b"key", [])
        with pytest.raises(StoreFullError):
            writer.add(KEYS[0], [bytes(60_000)] * 3)
        with pytest.raises(CodecError, match=r'\["what"\] is of type object'):
            writer.add(KEYS[0], [{"what": object()}] * 10_000)
    assert store.free_bytes() == 100_000


def test_threads_read_at_once():
    store = MemoryStore()
    items = [[np.full(5000, number, np.uint16)] for number in range(100)]
    reader = BlockReader(store.open(POINT, write(store, items, "lz4")))
    together = threading.Barrier(4, timeout=60)

    def work(seed):
        together.wait()
        for some in np.random.default_rng(seed).permutation(100).reshape(10, 10):
            assert same(reader.read(some), [items[number] for number in some])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# -- keys --------------------------------------------------------------------------------------------------------------


def as_keys(rows):
    return np.array([list(row) for row in rows], np.uint8).reshape(-1, KEY_BYTES)


alike = st.builds(lambda head, tail: bytes([head]) * 8 + bytes([tail]) * 8, st.integers(0, 3), st.integers(0, 3))
any_keys = st.lists(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES) | alike, max_size=30)


@given(any_keys, any_keys)
def test_keys_are_found_where_they_are(there, asked):
    asked = there + asked
    found = KeyTable(as_keys(there)).find(as_keys(asked)).tolist()
    assert [row >= 0 for row in found] == [key in there for key in asked]
    assert [there[row] for row in found if row >= 0] == [key for key in asked if key in there]


def test_time_in_which_several_reads_are_under_way_counts_once():
    now = [0.0]
    reads = ReadCounter(lambda: now[0])
    first, second = reads.reading(1, 10), reads.reading(2, 20)
    with first:
        now[0] = 2.0
        with second:
            now[0] = 5.0
        now[0] = 6.0
    now[0] = 100.0
    assert reads.take() == (3, 30, 6.0)
    assert reads.take() == (0, 0, 0.0)
