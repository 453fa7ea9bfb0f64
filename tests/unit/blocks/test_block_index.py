"""Items are found in whatever block they are, and what is gone is not found any more."""

import hashlib
import os
from contextlib import closing

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.blocks import block_index
from millrace.blocks.block_index import PointIndex
from millrace.blocks.block_keys import KEY_BYTES, Keys
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.block_store import BlockStore
from millrace.blocks.stores.file_store import FileStore
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.errors import CacheError
from millrace.testing.block_store_suite import POINT, put

KEYS = [hashlib.blake2b(bytes([number]), digest_size=KEY_BYTES).digest() for number in range(200)]


def keys_of(numbers: list[int]) -> Keys:
    return np.frombuffer(b"".join(KEYS[number] for number in numbers), np.uint8).reshape(-1, KEY_BYTES)


def write(store: BlockStore, numbers: list[int]) -> str:
    """A block with an item for each number: as often the number as its last digit says."""
    with store.draft() as draft:
        writer = BlockWriter(draft)
        for number in numbers:
            writer.add(KEYS[number], [number] * (number % 10))
        info = writer.finish()
        draft.publish(POINT, info.name)
    return info.name


def read(known: PointIndex, numbers: list[int]) -> dict[int, list[int] | None]:
    found = known.find(keys_of(numbers))
    there = found.block >= 0
    some = block_index.ItemLocations(found.block[there], found.item[there])
    return dict(zip(np.array(numbers)[there].tolist(), known.read(some), strict=True))


blocks = st.lists(st.lists(st.integers(0, 199), unique=True, min_size=1, max_size=4), max_size=8)


@settings(max_examples=20)
@given(blocks, st.data())
def test_any_blocks_are_one(blocks, data):
    store = MemoryStore()
    with closing(PointIndex(store, POINT)) as known:
        names = {}
        for numbers in blocks:
            name = write(store, numbers)
            names[name] = numbers
            known.learn([name, *data.draw(st.lists(st.sampled_from(sorted(names)), max_size=2))])
        gone = data.draw(st.lists(st.sampled_from(sorted(names)), unique=True)) if names else []
        known.forget(gone[::2])
        for name in gone[1::2]:
            store.delete(POINT, name)
        left = {number for name, numbers in names.items() if name not in gone for number in numbers}
        removed = {number for name in gone[1::2] for number in names[name]}
        for _ in range(2):
            for number, elements in read(known, list(range(200))).items():
                assert elements == [number] * (number % 10) or (elements is None and number in removed)
        assert read(known, list(range(200))).keys() >= left - removed
        assert set(known.take_lost()) <= set(gone[1::2])
        assert not known.take_lost()


def test_a_block_that_cannot_be_read_is_lost_once_and_may_come_back():
    store = MemoryStore()
    known = PointIndex(store, POINT)
    name = write(store, [1, 2])
    known.learn([name, "0123"])
    assert known.take_lost() == ["0123"]
    store.delete(POINT, name)
    assert read(known, [1, 2, 3]) == {1: None, 2: None}
    assert read(known, [1, 2, 3]) == {}
    assert known.take_lost() == [name]
    assert write(store, [1, 2]) == name
    known.learn([name])
    assert read(known, [2, 1]) == {2: [2, 2], 1: [1]}
    assert known.take_lost() == []


def test_a_block_that_cannot_be_read_just_now_is_not_lost(monkeypatch):
    store = MemoryStore()
    known, late = PointIndex(store, POINT), PointIndex(store, POINT)
    names = [write(store, [1, 2]), write(store, [3])]
    known.learn(names)

    def refused(_point, _name):
        raise CacheError("the store cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(store, "open", refused)
        late.learn(names)
        assert read(known, [1, 3]) == {1: None, 3: None}
    assert read(late, [1, 3]) == read(known, [1, 3]) == {}
    assert known.take_lost() == late.take_lost() == []
    for index in (known, late):
        index.learn([])
        assert read(index, [1, 3]) == {1: [1], 3: [3, 3, 3]}


def test_a_block_that_can_never_be_read_keeps_no_other_from_being_used(monkeypatch):
    store = MemoryStore()
    known = PointIndex(store, POINT)
    names = [write(store, [number]) for number in (1, 2, 3)]
    opened = store.open

    def refused(point, name):
        if name == names[0]:
            raise CacheError("permission denied")
        return opened(point, name)

    monkeypatch.setattr(store, "open", refused)
    known.learn(names)
    for _ in range(3):
        known.learn([])
    assert read(known, [1, 2, 3]) == {2: [2, 2], 3: [3, 3, 3]}
    assert known.take_lost() == []


def test_a_damaged_block_is_lost():
    store = MemoryStore()
    known = PointIndex(store, POINT)
    name = write(store, [9])
    known.learn([name])
    with closing(store.open(POINT, name)) as block:
        whole = block.read([(0, block.nbytes)])[0]
    whole[200] ^= 255
    put(store, name, whole.tobytes())
    assert read(known, [9]) == {9: None}
    assert known.take_lost() == [name]


def test_a_block_that_is_damaged_after_it_was_read_is_lost(tmp_path):
    store = FileStore(str(tmp_path))
    known = PointIndex(store, POINT)
    name = write(store, [9])
    known.learn([name])
    assert read(known, [9]) == {9: [9] * 9}
    path = tmp_path / POINT / name
    with open(path, "r+b") as file:
        os.pwrite(file.fileno(), b"x", path.read_bytes().index(np.full(9, 9).tobytes()))  # 120 and eight times 9
        os.utime(file.fileno(), ns=(0, 0))  # as time goes by
    assert read(known, [9]) == {9: None}
    assert known.take_lost() == [name]


def test_few_blocks_are_open_at_a_time(monkeypatch):
    monkeypatch.setattr(block_index, "_OPEN_BLOCKS", 2)
    store = MemoryStore()
    opened = []
    open_block = store.open

    def counted(point, name):
        block = open_block(point, name)
        opened.append(name)
        monkeypatch.setattr(block, "close", lambda: opened.remove(name))
        return block

    known = PointIndex(store, POINT)
    known.learn([write(store, [number]) for number in range(1, 9)])
    monkeypatch.setattr(store, "open", counted)
    assert read(known, list(range(1, 9))) == {number: [number] * number for number in range(1, 9)}
    assert len(opened) == 2
    known.close()
    assert not opened


def test_an_item_is_found_in_another_block_when_one_is_forgotten():
    store = MemoryStore()
    with closing(PointIndex(store, POINT)) as known:
        names = [write(store, [1]), write(store, [2, 1])]
        for name in names:
            known.learn([name])  # one table has both
        known.forget(names[1:])
        assert read(known, [1, 2]) == {1: [1]}
        known.learn(names[1:])
        known.forget(names[:1])
        assert read(known, [1, 2]) == {1: [1], 2: [2, 2]}
