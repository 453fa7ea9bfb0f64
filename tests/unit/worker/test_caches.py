"""What a worker knows of blocks follows from what it was told."""

from pathlib import Path

import numpy as np
import pytest

from millrace.blocks.directory import DirectoryStore
from millrace.blocks.keys import block_name
from millrace.blocks.writer import BlockWriter
from millrace.control.cache_messages import BlocksKnown, CacheUse
from millrace.control.messages import LeaseTask, TaskRef
from millrace.worker.caches import Caches

POINT = "ab" * 16
LEASE = LeaseTask(TaskRef("job", 0, 0), 1, 0, cache=CacheUse(0, POINT, random=False, room=1 << 20))


@pytest.fixture
def caches(tmp_path: Path) -> Caches:
    """With three blocks in the store, of an item each."""
    store = DirectoryStore(str(tmp_path))
    for letter in "abc":
        with store.draft() as draft:
            writer = BlockWriter(draft)
            writer.add(key(letter).tobytes(), [1])
            draft.publish(POINT, writer.finish().name)
    found = Caches()
    found.location = str(tmp_path)
    return found


def key(letter: str) -> np.ndarray:
    return np.full((1, 16), ord(letter), np.uint8)


def names(letters: str) -> list[str]:
    return [block_name(key(letter).tobytes()) for letter in letters]


def known(caches: Caches) -> str:
    with caches.using(LEASE) as (using, _):
        assert using.point is not None
        return "".join(letter for letter in "abc" if using.point.catalog.find(key(letter)).block[0] >= 0)


def test_news_are_added_and_what_is_gone_is_forgotten(caches: Caches):
    assert known(caches) == ""
    caches.known(BlocksKnown(POINT, names("ab")))
    caches.known(BlocksKnown(POINT, names("c"), gone=names("b")))
    assert known(caches) == "ac"
    caches.known(BlocksKnown(POINT, gone=names("a")))
    assert known(caches) == "c"


def test_all_that_there_is_takes_the_place_of_what_was_known(caches: Caches):
    caches.known(BlocksKnown(POINT, names("ab")))
    assert known(caches) == "ab"
    caches.known(BlocksKnown(POINT, names("a")))
    caches.known(BlocksKnown(POINT, names("bc"), whole=True))
    assert known(caches) == "bc"
    caches.known(BlocksKnown(POINT, names("a")))
    caches.known(BlocksKnown(POINT, [], whole=True))
    assert known(caches) == ""
