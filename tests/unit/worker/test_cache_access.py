"""What a worker knows of blocks follows from what it was told."""

from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from millrace.blocks.block_keys import block_name
from millrace.blocks.block_reader import read_index
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.file_store import FileStore
from millrace.control.state.cache_state import place_of
from millrace.protocol.cache_messages import BlocksKnown, CacheUse, CacheUsed
from millrace.protocol.messages import LeaseTask, TaskRef
from millrace.worker.cache_access import CacheAccess

POINT = "ab" * 16
LEASE = LeaseTask(TaskRef("job", 0, 0), 1, 0, cache=CacheUse(0, POINT, random=False, room=1 << 20))


@pytest.fixture
def caches(tmp_path: Path) -> CacheAccess:
    """With three blocks in the store, of an item each."""
    store = FileStore(str(tmp_path))
    for letter in "abc":
        with store.draft() as draft:
            writer = BlockWriter(draft)
            writer.add(key(letter).tobytes(), [1])
            draft.publish(POINT, writer.finish().name)
    found = CacheAccess()
    found.location = str(tmp_path)
    return found


def key(letter: str) -> np.ndarray:
    return np.full((1, 16), ord(letter), np.uint8)


def names(letters: str) -> list[str]:
    return [block_name(key(letter).tobytes()) for letter in letters]


def known(caches: CacheAccess, lease: LeaseTask = LEASE) -> str:
    with caches.using(lease, list[CacheUsed]().append) as using:
        assert using.point is not None
        return "".join(letter for letter in "abc" if using.point.catalog.find(key(letter)).block[0] >= 0)


def test_news_are_added_and_what_is_gone_is_forgotten(caches: CacheAccess):
    assert known(caches) == ""
    caches.known(BlocksKnown(POINT, names("ab")))
    caches.known(BlocksKnown(POINT, names("c"), gone=names("b")))
    assert known(caches) == "ac"
    caches.known(BlocksKnown(POINT, gone=names("a")))
    assert known(caches) == "c"


def test_a_lease_that_comes_sees_what_its_run_would_see(caches: CacheAccess):
    caches.known(BlocksKnown(POINT, names("b")))
    point = caches.point(LEASE)
    assert point is not None
    assert [point.catalog.find(key(letter)).block[0] for letter in "abc"] == [-1, 0, -1]
    assert caches.point(msgspec.structs.replace(LEASE, cache=None)) is None


def test_a_cache_that_cannot_be_opened_is_left_to_the_run_to_complain_of(tmp_path: Path):
    caches = CacheAccess()
    (tmp_path / "file").write_bytes(b"")
    caches.location = str(tmp_path / "file" / "folder")
    assert caches.point(LEASE) is None
    told: list[CacheUsed] = []
    with caches.using(LEASE, told.append) as using:
        assert using.point is None
    assert told[0].error


def test_all_that_there_is_takes_the_place_of_what_was_known(caches: CacheAccess):
    caches.known(BlocksKnown(POINT, names("ab")))
    assert known(caches) == "ab"
    caches.known(BlocksKnown(POINT, names("a")))
    caches.known(BlocksKnown(POINT, names("bc"), whole=True))
    assert known(caches) == "bc"
    caches.known(BlocksKnown(POINT, names("a")))
    caches.known(BlocksKnown(POINT, [], whole=True))
    assert known(caches) == ""


def one_run(caches: CacheAccess, letter: str = "z", lease: LeaseTask = LEASE, *, whole: bool = True) -> CacheUsed:
    """What is told about a run that made one item, of one element."""
    told: list[CacheUsed] = []
    with caches.using(lease, told.append) as using:
        if using.writer is not None:
            using.writer.add([(key(letter).tobytes(), [np.zeros(1000)])])
        using.whole = whole
    (used,) = told
    return used


def test_what_a_run_adds_is_told_and_only_if_the_run_came_to_its_end(caches: CacheAccess):
    used = one_run(caches)
    assert [(block.name, block.items) for block in used.blocks] == [(names("z")[0], 1)]
    assert used.error == ""
    assert one_run(caches, "y", whole=False).blocks == []


def test_what_a_run_has_added_is_known_to_the_next_before_the_dispatcher_tells_of_it(caches: CacheAccess):
    for letter in "yz":
        one_run(caches, letter)
    with caches.using(LEASE, list[CacheUsed]().append) as using:
        assert using.point is not None
        assert using.point.catalog.find(np.concatenate([key("y"), key("z")])).block.tolist() == [0, 1]


def test_a_run_with_care_adds_nothing(caches: CacheAccess):
    assert one_run(caches, lease=msgspec.structs.replace(LEASE, probe_level=1)).blocks == []


def test_a_run_without_room_says_how_much_it_wants(caches: CacheAccess):
    small = msgspec.structs.replace(LEASE, cache=CacheUse(0, POINT, random=False, room=100))
    used = one_run(caches, lease=small)
    assert used.blocks == []
    assert used.wanted > 8000


def test_a_store_that_cannot_be_opened_is_told_and_fails_no_run(caches: CacheAccess, tmp_path: Path, caplog):
    (tmp_path / "file").write_text("")
    caches.location = str(tmp_path / "file" / "cache")
    for _ in range(3):
        used = one_run(caches)
        assert "Not a directory" in used.error
        assert used.blocks == []
    assert caplog.text.count("cannot be used as it should") == 1


def test_damaged_blocks_are_told_once_and_not_known_any_more(caches: CacheAccess, tmp_path: Path):
    for path in (tmp_path / POINT).iterdir():
        path.write_bytes(b"something else")
    caches.known(BlocksKnown(POINT, names("ab")))
    assert sorted(one_run(caches).lost) == sorted(names("ab"))
    assert one_run(caches, "y").lost == []
    assert known(caches) == ""


# -- tenants -----------------------------------------------------------------------------------------------------------

RED, BLUE = (place_of(POINT, "", tenant) for tenant in ("red", "blue"))
OF_BLUE = msgspec.structs.replace(LEASE, cache=CacheUse(0, BLUE, False, 1 << 20, "blue"))
TRUSTING = msgspec.structs.replace(LEASE, cache=CacheUse(0, BLUE, False, 1 << 20, "blue", {RED: "red"}))


def put(folder: Path, place: str, writer: str, letter: str) -> str:
    """A block of one item, in a folder and in the name of whomever."""
    with FileStore(str(folder)).draft() as draft:
        items = BlockWriter(draft, writer=writer)
        items.add(key(letter).tobytes(), [letter])
        info = items.finish()
        draft.publish(place, info.name)
    return info.name


def read(caches: CacheAccess, letter: str, lease: LeaseTask) -> object:
    with caches.using(lease, list[CacheUsed]().append) as using:
        assert using.point is not None
        return using.point.catalog.read(using.point.catalog.find(key(letter)))[0]


def test_what_a_run_adds_bears_the_name_of_its_tenant_and_lies_in_its_place(caches: CacheAccess, tmp_path: Path):
    (block,) = one_run(caches, lease=OF_BLUE).blocks
    with closing(FileStore(str(tmp_path)).open(BLUE, block.name)) as there:
        assert read_index(there).writer == "blue"
    caches.known(BlocksKnown(BLUE, [block.name]))
    assert read(caches, "z", OF_BLUE) is not None


def test_a_run_reads_only_what_the_lease_names(caches: CacheAccess, tmp_path: Path):
    caches.known(BlocksKnown(RED, [put(tmp_path, RED, "red", "a")]))
    assert known(caches, TRUSTING) == "a"
    assert read(caches, "a", TRUSTING) == ["a"]
    assert known(caches, OF_BLUE) == ""
    caches.known(BlocksKnown(BLUE, [put(tmp_path, BLUE, "blue", letter) for letter in "ab"]))
    assert known(caches, OF_BLUE) == known(caches, TRUSTING) == "ab"


@pytest.mark.parametrize("forger", ["", "red", "blue "])
def test_a_block_in_a_place_that_is_not_its_writers_is_lost(caches: CacheAccess, tmp_path: Path, forger: str):
    name = put(tmp_path, BLUE, forger, "a")
    caches.known(BlocksKnown(BLUE, [name]))
    assert one_run(caches, lease=OF_BLUE).lost == [name]
    assert known(caches, OF_BLUE) == ""


def test_what_is_lost_of_others_is_told_apart(caches: CacheAccess, tmp_path: Path):
    mine, theirs = put(tmp_path, BLUE, "", "a"), put(tmp_path, RED, "green", "b")
    caches.known(BlocksKnown(BLUE, [mine]))
    caches.known(BlocksKnown(RED, [theirs]))
    told: list[CacheUsed] = []
    with caches.using(TRUSTING, told.append):
        pass
    assert [(used.place, used.lost) for used in told] == [(BLUE, [mine]), (RED, [theirs])]
