"""What a task adds to a cache point is written beside it: whole, in order, and within bounds."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from millrace.blocks.block_format import MESSAGE_BYTES
from millrace.blocks.block_keys import Keys
from millrace.blocks.block_reader import BlockReader
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.engine.cache import cache_writer as kept_module
from millrace.engine.cache.cache_writer import CacheWriter
from millrace.testing.block_store_suite import POINT

KEYS = [hashlib.blake2b(bytes([number]), digest_size=16).digest() for number in range(100)]
ROOM = 1 << 40


class SlowStore(MemoryStore):
    """Writes nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    @contextmanager
    def draft(self) -> Iterator[Any]:
        assert self.go.wait(30)
        with super().draft() as draft:
            yield draft


def read(store: MemoryStore, kept: CacheWriter) -> dict[bytes, list[Any]]:
    found: dict[bytes, list[Any]] = {}
    for info in kept.blocks:
        reader = BlockReader(store.open(POINT, info.name))
        keys = [key.tobytes() for key in reader.index.keys]
        found.update(zip(keys, reader.read(range(len(keys))), strict=True))
    return found


def test_what_was_added_may_be_changed_afterwards():
    store = SlowStore()
    kept = CacheWriter(store, POINT, ROOM)
    small, huge, inner = np.zeros(3), np.zeros(MESSAGE_BYTES), [1]
    with closing(kept):
        kept.add([(KEYS[0], [{"small": small, "list": inner}, huge])])
        small[:], huge[:] = 9, 9
        inner.append(2)
        store.go.set()
        kept.finish()
    first, second = read(store, kept)[KEYS[0]]
    assert first["list"] == [1]
    assert not first["small"].any()
    assert not second.any()


def test_items_go_on_from_one_hand_over_to_the_next(monkeypatch):
    monkeypatch.setattr(kept_module, "_HANDED_BYTES", 100)
    store = MemoryStore()
    kept = CacheWriter(store, POINT, ROOM)
    with closing(kept):
        with kept.writing() as writing:
            for number in range(100):
                writing.add([(KEYS[number], [])])
                for part in range(number % 5):
                    writing.add([(None, [f"{number} {part}"] * part)])
        kept.finish()
    expected = {
        KEYS[number]: [f"{number} {part}" for part in range(number % 5) for _ in range(part)] for number in range(100)
    }
    assert read(store, kept) == expected


def test_whoever_makes_more_waits_for_what_is_being_written(monkeypatch):
    monkeypatch.setattr(kept_module, "_WAITING_BYTES", 5 << 20)
    store = SlowStore()
    waiting = []

    class Watched(CacheWriter):
        def _wait(self, most: int) -> None:
            if self._bytes > 5 << 20:
                store.go.set()
            super()._wait(most)
            waiting.append(self._bytes)

    kept = Watched(store, POINT, ROOM)
    with closing(kept):
        for number in range(20):
            kept.add([(KEYS[number], [bytes(2 << 20)])])
        kept.finish()
    assert [each >> 21 for each in waiting[:2]] == [1, 2]
    assert max(waiting) <= 5 << 20
    assert len(read(store, kept)) == 20


def test_what_is_broken_off_is_not_kept_and_what_was_whole_is():
    store = MemoryStore()
    kept = CacheWriter(store, POINT, ROOM)
    with pytest.raises(KeyError), kept.writing() as writing:
        writing.add([(KEYS[0], [])])
        raise KeyError
    with kept.writing() as writing:
        writing.add([(KEYS[1], [1])])
    kept.finish()
    assert read(store, kept) == {KEYS[1]: [1]}


def test_what_goes_wrong_while_writing_is_said_and_an_unknown_error_is_raised(monkeypatch):
    store = MemoryStore(capacity=1000)
    kept = CacheWriter(store, POINT, ROOM)
    kept.add([(KEYS[0], [bytes(100_000)])])
    kept.finish()
    assert "has room for 1,000 bytes" in kept.error
    assert not kept.blocks

    monkeypatch.setattr(store, "draft", None)
    kept = CacheWriter(store, POINT, ROOM)
    kept.add([(KEYS[0], [])])
    with closing(kept), pytest.raises(TypeError):
        kept.finish()


def test_what_there_is_room_for_is_kept_if_items_are_whole():
    store = MemoryStore()
    kept = CacheWriter(store, POINT, 60_000)
    for number in range(10):
        kept.add([(KEYS[number], [bytes(10_000)])])
    kept.finish()
    assert not kept.error
    assert list(read(store, kept)) == KEYS[:5]
    assert sum(info.nbytes for info in kept.blocks) <= 60_000
    assert kept.wanted > sum(info.nbytes for info in kept.blocks)


def test_nothing_is_kept_of_what_does_not_fit_if_an_item_may_be_broken_off():
    store = MemoryStore()
    kept = CacheWriter(store, POINT, 60_000)
    with kept.writing() as writing:
        for number in range(10):
            writing.add([(KEYS[number], [bytes(10_000)])])
    kept.finish()
    assert "no room" in kept.error
    assert not kept.blocks


def keys(numbers: list[int]) -> Keys:
    return np.frombuffer(b"".join(KEYS[number] for number in numbers), np.uint8).reshape(-1, 16)


def test_what_the_task_asks_for_again_is_published_at_once():
    store = MemoryStore()
    kept = CacheWriter(store, POINT, ROOM)
    with closing(kept):
        for number in range(3):
            kept.add([(KEYS[number], [number])])
        assert kept.again(keys([5, 6])) == []
        assert not store.blocks()
        assert kept.again(keys([5, 1])) == [kept.blocks[0].name]
        assert read(store, kept) == {KEYS[number]: [number] for number in range(3)}
        assert kept.again(keys([1])) == []
        kept.add([(KEYS[3], [3])])
        kept.finish()
    assert read(store, kept) == {KEYS[number]: [number] for number in range(4)}


def test_a_few_items_are_no_block_of_their_own():
    kept = CacheWriter(MemoryStore(), POINT, ROOM)
    with closing(kept):
        kept.add([(key, [1]) for key in KEYS[:80]])
        assert kept.again(keys([0]))
        kept.add([(key, [1]) for key in KEYS[80:89]])
        assert not kept.again(keys([80]))
        kept.add([(KEYS[89], [1])])
        assert kept.again(keys([80]))
    assert [block.items for block in kept.blocks] == [80, 10]


def test_an_item_that_may_go_on_is_not_published_when_it_is_asked_for():
    store = MemoryStore()
    kept = CacheWriter(store, POINT, ROOM)
    with closing(kept):
        with kept.writing() as writing:
            writing.add([(KEYS[0], [0])])
            assert kept.again(keys([0])) == []
            writing.add([(None, [1])])
        assert kept.again(keys([0]))
        with pytest.raises(KeyError), kept.writing() as writing:
            writing.add([(KEYS[1], [0])])
            raise KeyError
        assert kept.again(keys([1])) == []
        kept.finish()
    assert read(store, kept) == {KEYS[0]: [0, 1]}
