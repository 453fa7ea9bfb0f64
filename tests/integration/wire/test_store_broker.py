"""The store of a worker of another user: it does what a store does, and no more than that worker needs."""

import contextlib
import os
import socket
import stat
import threading

import msgspec
import pytest

from millrace.blocks.store_benchmark import POINT as MEASURED
from millrace.blocks.store_benchmark import calibrate
from millrace.blocks.stores.file_store import FileStore
from millrace.errors import BlockMissingError, CacheError
from millrace.testing.block_store_suite import POINT, BlockStoreSuite, get, put
from millrace.wire.broker import broker_messages as msg
from millrace.wire.broker.brokered_store import BrokeredStore
from millrace.wire.broker.store_broker import MOST_DRAFTS, StoreBroker, socket_pair


class Listed(BrokeredStore):
    """One whose blocks are listed by the folder's owner."""

    def blocks(self, point=None):
        return FileStore(self.location).blocks(point)


@contextlib.contextmanager
def brokered(location, **options):
    mine, its = socket_pair()
    thread = threading.Thread(target=StoreBroker(mine, **options).serve)
    thread.start()
    store = Listed(its.detach())
    try:
        if location is not None:
            store.use(str(location))
        yield store
    finally:
        store.close()
        thread.join()


@pytest.fixture
def store(tmp_path):
    with brokered(tmp_path / "cache") as store:
        yield store


class TestBrokeredStore(BlockStoreSuite):
    reads_after_deletion = True

    @pytest.fixture
    def store(self, tmp_path):
        with brokered(tmp_path / "cache", scratch=POINT) as store:
            yield store


def test_who_asks_gets_a_descriptor_for_reading_alone(store):
    put(store, "b1", b"precious")
    with contextlib.closing(store.open(POINT, "b1")) as block:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(block.fileno(), b"x")
        assert not os.get_inheritable(block.fileno())


def test_what_is_published_stays_as_it_is_whoever_did_it(store, tmp_path):
    put(FileStore(str(tmp_path / "cache")), "b1", b"precious")
    put(store, "b2", b"precious")
    for name in ("b1", "b2"):
        put(store, name, b"poison")
        store.delete(POINT, name)
        assert get(store, name) == b"precious"
    assert os.listdir(tmp_path / "cache" / ".drafts") == []


def test_it_can_be_measured_and_nothing_is_left_of_that(store, tmp_path):
    found = calibrate(store, seconds=0.05, largest=1 << 20)
    assert found.read.times
    assert FileStore(str(tmp_path / "cache")).blocks() == {}


def test_blocks_of_other_measurements_stay(store, tmp_path):
    put(FileStore(str(tmp_path / "cache")), "b1", b"precious", point=MEASURED)
    put(store, "b1", b"poison", point=MEASURED)
    store.delete(MEASURED, "b1")
    assert get(store, "b1", point=MEASURED) == b"precious"


def test_the_first_folder_that_is_told_is_the_only_one(store, tmp_path):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "key").write_text("secret")
    with pytest.raises(CacheError, match="the first that it was told of"):
        store.use(str(tmp_path))
    store.use(str(tmp_path / "cache"))
    with pytest.raises(BlockMissingError):
        store.open("secrets", "key")


def test_without_a_cache_there_is_none_ever(tmp_path):
    with brokered("") as store:
        with pytest.raises(CacheError, match="the first that it was told of"):
            store.use(str(tmp_path))
        with pytest.raises(CacheError, match="told of no folder"):
            store.open(POINT, "b1")


@pytest.mark.parametrize("name", ["..", "../b1", "/etc/passwd", "", "B1", "a/b"])
def test_no_name_leads_out_of_the_store(store, name):
    for point, block in ((POINT, name), (name, "b1")):
        with pytest.raises(CacheError, match="is no name of a point or block"):
            store.open(point, block)
        with pytest.raises(CacheError, match="is no name of a point or block"), store.draft() as draft:
            draft.publish(point, block)


def test_no_link_is_followed(store, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "cache" / POINT).mkdir(parents=True)
    (tmp_path / "cache" / POINT / "b1").symlink_to(tmp_path / "secret")
    with pytest.raises(CacheError, match="Too many levels of symbolic links"):
        store.open(POINT, "b1")


def test_nothing_is_listed(store):
    with pytest.raises(CacheError, match="does not list"):
        BrokeredStore.blocks(store)


def test_drafts_are_bounded_in_number_and_go_with_the_worker(tmp_path):
    with brokered(tmp_path) as store, contextlib.ExitStack() as stack:
        for _ in range(MOST_DRAFTS):
            stack.enter_context(store.draft()).write(b"x" * 10)
        with pytest.raises(CacheError, match=f"more than {MOST_DRAFTS} drafts"):
            stack.enter_context(store.draft())
        stack.pop_all()  # it ends without a word
    assert os.listdir(tmp_path / ".drafts") == []


def test_a_draft_of_somebody_else_is_none(store):
    put(store, "b1", b"x")
    with pytest.raises(CacheError, match="there is no draft 77"):
        store._ask(msg.WriteDraft(77, b"x"))


@pytest.mark.parametrize(
    "packet",
    [b"x", msgspec.msgpack.encode({"type": "open", "point": 1}), b"\x81" * 1000, b"\x91" * 100_000],
)
def test_who_says_what_no_worker_says_is_hung_up_on(packet, caplog):
    mine, its = socket_pair()
    thread = threading.Thread(target=StoreBroker(mine).serve)
    thread.start()
    with its:
        its.send(packet)
        assert its.recv(100) == b""
    thread.join()
    assert "hung up on a worker of another user" in caplog.text


def test_descriptors_that_come_uncalled_for_are_not_kept(store):
    before = len(os.listdir("/proc/self/fd"))
    reader, writer = os.pipe()
    with store._lock:
        socket.send_fds(store._sock, [msgspec.msgpack.encode(msg.AskRoom())], [reader] * 50)
        store._sock.recv(100)
    os.close(reader)
    os.close(writer)
    assert len(os.listdir("/proc/self/fd")) <= before  # of tests before this one some may be closed only now


def test_a_broker_that_has_ended_is_an_error_of_the_cache(tmp_path):
    mine, its = socket_pair()
    store = BrokeredStore(its.detach())
    mine.close()
    with contextlib.closing(store), pytest.raises(CacheError, match="does not answer"):
        store.use(str(tmp_path))


def test_blocks_are_their_owners_alone(store, tmp_path):
    put(store, "b1", b"x")
    path = tmp_path / "cache" / POINT / "b1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_nlink == 1
