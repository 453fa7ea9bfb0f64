import contextlib
import errno
import fcntl
import os
import platform
import uuid

import numpy as np
import pyarrow as pa
import pytest

from millrace.blocks.stores import file_store
from millrace.blocks.stores.file_store import FileStore
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.blocks.stores.object_store import ObjectStore
from millrace.blocks.stores.open_store import open_store
from millrace.elements import file_mapping
from millrace.errors import BlockMissingError, CacheError, PipelineError, StoreFullError
from millrace.sources import storage
from millrace.testing.block_store_suite import POINT, BlockStoreSuite, get, put


class TestMemory(BlockStoreSuite):
    reads_after_deletion = True

    @pytest.fixture
    def store(self):
        return MemoryStore()


class TestDirectory(BlockStoreSuite):
    reads_after_deletion = True

    @pytest.fixture
    def store(self, tmp_path):
        return FileStore(str(tmp_path / "new" / "cache"))

    @pytest.fixture
    def again(self, store):
        return FileStore(store.location)


class TestObjects(BlockStoreSuite):
    @pytest.fixture
    def store(self):
        return ObjectStore(f"memory://{uuid.uuid4().hex}")

    @pytest.fixture
    def again(self, store):
        return ObjectStore(store.location)


def test_open_store_by_location(tmp_path, monkeypatch):
    assert isinstance(open_store("memory://prefix/"), ObjectStore)
    assert isinstance(open_store("s3://bucket/prefix"), ObjectStore)
    assert isinstance(open_store(str(tmp_path / "a")), FileStore)
    put(open_store(f"file://{tmp_path}/b%20c"), "b1", b"1")
    assert (tmp_path / "b c" / POINT / "b1").read_bytes() == b"1"
    monkeypatch.chdir(tmp_path)
    assert open_store("here").location == str(tmp_path / "here")
    for nowhere in ("https://host/path", "ftp://host/path"):
        with pytest.raises(PipelineError, match=nowhere):
            open_store(nowhere)


# -- memory ------------------------------------------------------------------------------------------------------------


def test_the_capacity_of_memory_is_never_exceeded():
    store = MemoryStore(capacity=100)
    put(store, "b1", bytes(60))
    with store.draft() as draft:
        draft.write(bytes(40))
        with pytest.raises(StoreFullError, match=r"room for 100 bytes of blocks, and 100 are in use"):
            draft.write(b"x")
        assert store.free_bytes() == 0
    assert store.free_bytes() == 40
    put(store, "b1", bytes(30))
    assert store.free_bytes() == 70
    store.delete(POINT, "b1")
    assert store.free_bytes() == 100


# -- directories -------------------------------------------------------------------------------------------------------


def drafts(store):
    return sorted(os.listdir(os.path.join(store.location, ".drafts")))


def test_a_draft_says_whose_it_is_and_goes(tmp_path):
    store = FileStore(str(tmp_path))
    with store.draft() as draft:
        (name,) = drafts(store)
        assert name.startswith(f"{platform.node()}.{os.getpid()}.")
        FileStore(str(tmp_path))  # does not take it for one that was left
        assert drafts(store) == [name]
        draft.publish(POINT, "b1")
    with store.draft():
        assert len(drafts(store)) == 1
    assert drafts(store) == []


def test_what_others_left_is_theirs_to_remove(tmp_path):
    store = FileStore(str(tmp_path))
    for host in (platform.node(), f"{platform.node()}.elsewhere", "elsewhere"):
        (tmp_path / ".drafts" / f"{host}.17.{uuid.uuid4().hex}").write_bytes(b"half a block")
    FileStore(str(tmp_path))
    assert {name.rsplit(".", 2)[0] for name in drafts(store)} == {f"{platform.node()}.elsewhere", "elsewhere"}
    [lives] = (path for path in (tmp_path / ".drafts").iterdir() if path.name.startswith("elsewhere"))
    for path in (tmp_path / ".drafts").iterdir():
        os.utime(path, (0, 0))
    with lives.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        FileStore(str(tmp_path))
    assert drafts(store) == [lives.name], "the other host may be gone for ever"


def test_what_is_no_block_is_not_listed(tmp_path):
    store = FileStore(str(tmp_path))
    put(store, "b1", b"1")
    (tmp_path / "README").write_text("")
    (tmp_path / "file").write_text("")
    (tmp_path / POINT / "b1.bak").write_text("")
    assert store.blocks() == {(POINT, "b1"): 1}
    assert store.blocks("file") == {}


def pipe(path):
    os.mkfifo(path)


def link(path):
    os.symlink("/dev/zero", path)


def loop(path):
    os.symlink(path, path)


@pytest.mark.parametrize("made", [pipe, link, loop, os.mkdir])
def test_what_is_in_the_place_of_a_block_is_none(tmp_path, made):
    """And nobody waits for what comes out of it, or reads for ever."""
    store = FileStore(str(tmp_path))
    put(store, "b1", b"1")
    made(tmp_path / POINT / "b2")
    made(tmp_path / ".drafts" / f"{platform.node()}.17.left")
    FileStore(str(tmp_path))
    assert store.blocks() == {(POINT, "b1"): 1}
    with pytest.raises(CacheError, match=f"{tmp_path}/{POINT}/b2: "):
        store.open(POINT, "b2")


@pytest.mark.parametrize("made", [pipe, link, loop])
def test_a_block_takes_the_place_of_what_is_none(tmp_path, made):
    store = FileStore(str(tmp_path))
    put(store, "b1", b"1")
    for name in ("b2", "b3"):
        made(tmp_path / POINT / name)
    put(store, "b2", b"2")
    assert get(store, "b2") == b"2"
    store.delete(POINT, "b3")
    assert sorted(os.listdir(tmp_path / POINT)) == ["b1", "b2"]


def fails(code):
    def failing(*_):
        raise OSError(code, os.strerror(code))

    return failing


def test_a_draft_that_cannot_be_removed_any_more_is_let_lie(tmp_path, monkeypatch):
    store = FileStore(str(tmp_path))
    with monkeypatch.context() as patch, store.draft() as draft:
        draft.write(b"1")
        patch.setattr(os, "unlink", fails(errno.EROFS))
    assert len(drafts(store)) == 1
    FileStore(str(tmp_path))
    assert not drafts(store)


def test_an_open_block_that_is_gone_elsewhere_is_missing(tmp_path, monkeypatch):
    store = FileStore(str(tmp_path))
    put(store, "b1", b"1")
    with contextlib.closing(store.open(POINT, "b1")) as block, monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fails(errno.ESTALE))
        with pytest.raises(BlockMissingError, match="does not exist any more"):
            block.version()


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for place in ("file", "file/below"):
        with pytest.raises(CacheError, match=rf"{tmp_path}/{place}.*: (File exists|Not a directory)") as caught:
            FileStore(str(tmp_path / place))
        assert not isinstance(caught.value, BlockMissingError)


def test_memory_that_was_read_into_is_arrows_until_the_last_view_of_it_has_died(tmp_path):
    store = FileStore(str(tmp_path))
    put(store, "b1", bytes(1_000_000))
    before = pa.total_allocated_bytes()
    with contextlib.closing(store.open(POINT, "b1")) as block:
        (found,) = block.read([(0, 1_000_000)])
    view = found[10:20].view(np.int16)
    del found
    assert pa.total_allocated_bytes() >= before + 1_000_000
    view[:] = 1
    del view
    assert pa.total_allocated_bytes() < before + 1_000_000


@pytest.mark.skipif(not file_mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
def test_much_of_a_block_is_not_copied(tmp_path):
    store = FileStore(str(tmp_path))
    put(store, "b1", bytes(3 << 20))
    before = pa.total_allocated_bytes()
    with contextlib.closing(store.open(POINT, "b1")) as block:
        found = block.read([(0, 2 << 20), (2 << 20, 3 << 20)])
        assert pa.total_allocated_bytes() == before
        (copied,) = block.read([(1, 3 << 20)])  # whose arrays would not be aligned
        assert pa.total_allocated_bytes() > before
    assert [len(each) for each in (*found, copied)] == [2 << 20, 1 << 20, (3 << 20) - 1]


def test_where_a_file_system_may_fail_much_is_copied_too(tmp_path, monkeypatch):
    monkeypatch.setattr(file_store, "stays_readable", lambda fd: False)
    store = FileStore(str(tmp_path))
    put(store, "b1", bytes(3 << 20))
    before = pa.total_allocated_bytes()
    with contextlib.closing(store.open(POINT, "b1")) as block:
        found = block.read([(0, 3 << 20)])
    assert pa.total_allocated_bytes() > before
    assert len(found[0]) == 3 << 20


def test_a_large_block_that_was_cut_short_ends_before(tmp_path):
    store = FileStore(str(tmp_path))
    put(store, "b1", bytes(6 << 20))
    with contextlib.closing(store.open(POINT, "b1")) as block:
        os.truncate(block.location, (3 << 20) + 10)
        assert [len(each) for each in block.read([(0, 2 << 20), (2 << 20, 4 << 20)])] == [2 << 20, (1 << 20) + 10]
        assert [len(each) for each in block.read([(4 << 20, 6 << 20)])] == [0]


def test_what_is_written_at_once_begins_at_large_pages(tmp_path, monkeypatch):
    written, writev = [], os.writev

    def noted(fd, views):
        written.append(os.lseek(fd, 0, os.SEEK_CUR))
        if len(views) == 1:
            views = [views[0][: 3 << 20]]  # a disk may take less than it is given
        return writev(fd, views)

    monkeypatch.setattr(os, "writev", noted)
    store = FileStore(str(tmp_path))
    data = np.arange(9 << 20, dtype=np.uint32).view(np.uint8)[: 9 << 20].tobytes()
    with store.draft() as draft:
        for start, stop in [(0, 5), (5, 100_000), (100_000, 2 << 20), (2 << 20, 8_500_000), (8_500_000, 9 << 20)]:
            draft.write(memoryview(data)[start:stop])
        draft.publish(POINT, "b1")
    assert get(store, "b1") == data
    assert written == [0, 2 << 20, 5 << 20, 8 << 20]


def test_free_bytes_of_a_folder_are_those_of_its_file_system(tmp_path):
    free = FileStore(str(tmp_path)).free_bytes()
    assert free is not None
    assert free > 0


# -- objects -----------------------------------------------------------------------------------------------------------


def test_objects_lie_where_they_are_said_to(monkeypatch):
    root = f"memory://{uuid.uuid4().hex}"
    put(ObjectStore(root), "b1", b"12")
    assert storage.read(f"{root}/{POINT}/b1") == b"12"
    storage.write(f"{root}/{POINT}/deeper/b1", b"")
    storage.write(f"{root}/readme", b"")
    assert ObjectStore(root + "/").blocks() == {(POINT, "b1"): 2}
    assert get(ObjectStore(root), "b1", 1, 2) == b"2"


def test_errors_of_who_writes_stay_as_they_are():
    with pytest.raises(ConnectionError, match="of the pipeline"), ObjectStore("memory://errors").draft():
        raise ConnectionError("of the pipeline")


def test_a_temporary_disk_that_cannot_be_used_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(CacheError, match=rf"{tmp_path}/gone first: .*set TMPDIR"), ObjectStore("memory://x").draft():
        pass
