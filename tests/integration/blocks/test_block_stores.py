"""Stores of blocks with real processes, a real S3 server and disks that are full."""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from millrace.blocks.block_reader import BlockReader
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.file_store import FileStore
from millrace.blocks.stores.object_store import ObjectStore
from millrace.errors import BlockMissingError, StoreFullError
from millrace.testing.block_store_suite import POINT, BlockStoreSuite, get, put
from millrace.testing.s3 import s3_bucket


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as location:
        yield location


class TestS3(BlockStoreSuite):
    @pytest.fixture
    def store(self, bucket):
        return ObjectStore(bucket + uuid.uuid4().hex)

    @pytest.fixture
    def again(self, store):
        return ObjectStore(store.location)


def test_a_whole_bucket_is_a_store(bucket):
    store = ObjectStore(bucket.rstrip("/"))
    put(store, "b1", b"1", point="whole")
    assert store.blocks("whole") == {("whole", "b1"): 1}
    store.delete("whole", "b1")


def test_many_blocks_are_listed(bucket):
    store = ObjectStore(bucket + "many")
    for number in range(20):
        put(store, f"b{number}", bytes(number))
    assert store.blocks() == {(POINT, f"b{number}"): number for number in range(20)}


# -- processes that die ------------------------------------------------------------------------------------------------

WRITER = """
import hashlib, os, signal, sys
import numpy as np
from millrace.blocks.stores.file_store import FileStore
from millrace.blocks.block_writer import BlockWriter

folder, seed, same, stops = sys.argv[1:]
store = FileStore(folder)
number = 0
while True:
    number += 1
    with store.draft() as draft:
        writer = BlockWriter(draft)
        for item in range(20):
            key = hashlib.blake2b(f"{same or number} {item}".encode(), digest_size=16).digest()
            writer.add(key, [np.full(10_000, int(seed), np.uint8)])
            print("wrote", flush=True)
            if stops and number == 1 and item == 9:
                os.kill(os.getpid(), signal.SIGSTOP)
        draft.publish("point", writer.finish().name)
    print("published", flush=True)
"""


@contextlib.contextmanager
def writing(folder: Path, seed: int = 1, same: str = "", *, stops: bool = False) -> Iterator[subprocess.Popen]:
    """A process that publishes blocks of 200 KB as fast as it can: new ones, or the same again; killed in the end.

    It ``stops``, if it is to, in the middle of its first draft.
    """
    command = [sys.executable, "-c", WRITER, str(folder), str(seed), same, "stops" if stops else ""]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.read()


def until(process: subprocess.Popen, word: str, count: int = 1) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert any(line == word + "\n" for line in process.stdout), "it ended"


@pytest.mark.parametrize("lines", [1, 19, 20, 31])
def test_a_writer_that_is_killed_leaves_whole_blocks_and_a_draft_that_goes(tmp_path, lines):
    with writing(tmp_path) as process:
        until(process, "wrote", lines)
    store = FileStore(str(tmp_path))
    assert os.listdir(tmp_path / ".drafts") == []
    for point, name in store.blocks():
        block = store.open(point, name)
        elements = BlockReader(block).read(range(20))
        block.close()
        assert all((element == 1).all() for (element,) in elements)
    assert len(store.blocks()) >= lines // 21


def test_a_draft_of_a_living_process_stays(tmp_path):
    with writing(tmp_path, stops=True) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        (draft,) = os.listdir(tmp_path / ".drafts")
        FileStore(str(tmp_path))
        assert os.listdir(tmp_path / ".drafts") == [draft]
        os.kill(process.pid, signal.SIGCONT)
        until(process, "published", 2)


def test_a_draft_that_is_taken_for_one_that_was_left_before_it_is_locked_is_begun_again(tmp_path, monkeypatch):
    store, lock = FileStore(str(tmp_path)), fcntl.flock

    def late(file, how):
        monkeypatch.undo()
        FileStore(str(tmp_path))
        assert os.listdir(tmp_path / ".drafts") == []
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    put(store, "b1", b"1")
    assert store.blocks() == {(POINT, "b1"): 1}


def test_processes_that_write_one_name_do_not_disturb_each_other_or_readers(tmp_path):
    store = FileStore(str(tmp_path))
    seen: set[int] = set()
    with writing(tmp_path, 1, "same") as one, writing(tmp_path, 2, "same") as two:
        until(one, "published")
        until(two, "published")
        while len(seen) < 2:
            until(one, "published")
            (key,) = store.blocks()
            block = store.open(*key)
            values = np.concatenate([element for (element,) in BlockReader(block).read(range(20))])
            block.close()
            assert len(set(values.tolist())) == 1, "of one writer alone"
            seen.add(int(values[0]))
            until(two, "published")
    assert len(store.blocks()) == 1


# -- disks that are full -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system; a limit on the size of files stands for it")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextlib.contextmanager
def small_files(path: Path) -> Iterator[None]:
    """The same by a limit on the size of files."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("disk", [small_disk, small_files])
@pytest.mark.parametrize("open_store", [FileStore, lambda path: ObjectStore("memory://full")])
def test_a_full_disk_is_named_and_left_as_it_was(tmp_path, monkeypatch, disk, open_store):
    with disk(tmp_path):
        store = open_store(str(tmp_path))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        put(store, "before", bytes(500_000))

        def fill() -> None:
            with store.draft() as draft:
                writer = BlockWriter(draft)
                for number in range(100):
                    writer.add(bytes([number]) * 16, [np.zeros(100_000, np.uint8)])

        with pytest.raises(StoreFullError, match=rf"{tmp_path}.*(No space left on device|File too large); ."):
            fill()
        assert store.blocks() == {(POINT, "before"): 500_000}
        put(store, "after", bytes(400_000))
        assert len(get(store, "after")) == 400_000
        store.delete(POINT, "before")
        store.delete(POINT, "after")


def test_a_block_is_readable_as_long_as_it_is_open(tmp_path):
    store = FileStore(str(tmp_path))
    put(store, "b1", bytes(1_000_000))
    block = store.open(POINT, "b1")
    subprocess.run(["rm", "-r", tmp_path / POINT], check=True)
    assert block.read([(0, 1_000_000)])[0].tobytes() == bytes(1_000_000)
    block.close()
    with pytest.raises(BlockMissingError, match=rf"{tmp_path}/{POINT}/b1 does not exist"):
        store.open(POINT, "b1")


def test_a_folder_that_was_removed_is_made_again(tmp_path):
    store = FileStore(str(tmp_path / "cache"))
    put(store, "b1", b"1")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(BlockMissingError):
        store.open(POINT, "b1")
    put(store, "b2", b"2")
    assert store.blocks() == {(POINT, "b2"): 1}
