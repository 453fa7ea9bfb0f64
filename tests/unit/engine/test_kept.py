"""What a task adds to a cache point is written beside it: whole, in order, and within bounds."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from millrace.blocks.format import MESSAGE_BYTES
from millrace.blocks.memory import MemoryStore
from millrace.blocks.reader import BlockReader
from millrace.engine import kept as kept_module
from millrace.engine.kept import Kept
from millrace.testing.stores import POINT

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


def read(store: MemoryStore, kept: Kept) -> dict[bytes, list[Any]]:
    found: dict[bytes, list[Any]] = {}
    for info in kept.blocks:
        reader = BlockReader(store.open(POINT, info.name))
        keys = [key.tobytes() for key in reader.index.keys]
        found.update(zip(keys, reader.read(range(len(keys))), strict=True))
    return found


def test_what_was_added_may_be_changed_afterwards():
    store = SlowStore()
    kept = Kept(store, POINT, ROOM)
    small, huge, inner = np.zeros(3), np.zeros(MESSAGE_BYTES), [1]
    with closing(kept), kept.writing(whole=True) as writing:
        writing.begin(KEYS[0])
        writing.extend([{"small": small, "list": inner}, huge])
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
    kept = Kept(store, POINT, ROOM)
    with closing(kept), kept.writing(whole=True) as writing:
        for number in range(100):
            writing.begin(KEYS[number])
            for part in range(number % 5):
                writing.extend([f"{number} {part}"] * part)
        kept.finish()
    expected = {
        KEYS[number]: [f"{number} {part}" for part in range(number % 5) for _ in range(part)] for number in range(100)
    }
    assert read(store, kept) == expected


def test_whoever_makes_more_waits_for_what_is_being_written(monkeypatch):
    monkeypatch.setattr(kept_module, "_WAITING_BYTES", 5 << 20)
    store = SlowStore()
    waiting = []

    class Watched(Kept):
        def _wait(self, most: int) -> None:
            if self._bytes > 5 << 20:
                store.go.set()
            super()._wait(most)
            waiting.append(self._bytes)

    kept = Watched(store, POINT, ROOM)
    with closing(kept), kept.writing(whole=True) as writing:
        for number in range(20):
            writing.begin(KEYS[number])
            writing.extend([bytes(2 << 20)])
        kept.finish()
    assert [each >> 21 for each in waiting[:2]] == [1, 2]
    assert max(waiting) <= 5 << 20
    assert len(read(store, kept)) == 20


def test_what_is_broken_off_is_not_kept_and_what_was_whole_is():
    store = MemoryStore()
    kept = Kept(store, POINT, ROOM)
    with pytest.raises(KeyError), kept.writing(whole=False) as writing:
        writing.begin(KEYS[0])
        raise KeyError
    with kept.writing(whole=False) as writing:
        writing.begin(KEYS[1])
        writing.extend([1])
    kept.finish()
    assert read(store, kept) == {KEYS[1]: [1]}


def test_what_goes_wrong_while_writing_is_said_and_an_unknown_error_is_raised(monkeypatch):
    store = MemoryStore(capacity=1000)
    kept = Kept(store, POINT, ROOM)
    with kept.writing(whole=True) as writing:
        writing.begin(KEYS[0])
        writing.extend([bytes(100_000)])
    kept.finish()
    assert "has room for 1,000 bytes" in kept.error
    assert not kept.blocks

    monkeypatch.setattr(store, "draft", None)
    kept = Kept(store, POINT, ROOM)
    with kept.writing(whole=True) as writing:
        writing.begin(KEYS[0])
    with closing(kept), pytest.raises(TypeError):
        kept.finish()


def test_what_there_is_room_for_is_kept_if_items_are_whole():
    store = MemoryStore()
    kept = Kept(store, POINT, 60_000)
    with kept.writing(whole=True) as writing:
        for number in range(10):
            writing.begin(KEYS[number])
            writing.extend([bytes(10_000)])
    kept.finish()
    assert not kept.error
    assert list(read(store, kept)) == KEYS[:5]
    assert sum(info.nbytes for info in kept.blocks) <= 60_000
    assert kept.wanted > sum(info.nbytes for info in kept.blocks)


def test_nothing_is_kept_of_what_does_not_fit_if_an_item_may_be_broken_off():
    store = MemoryStore()
    kept = Kept(store, POINT, 60_000)
    with kept.writing(whole=False) as writing:
        for number in range(10):
            writing.begin(KEYS[number])
            writing.extend([bytes(10_000)])
    kept.finish()
    assert "no room" in kept.error
    assert not kept.blocks
