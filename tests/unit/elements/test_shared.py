import contextlib
import fcntl
import gc
import logging
import mmap
import os
import resource

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.elements import shared
from millrace.elements.shared import LEAST_BYTES, MAX_SEGMENTS, Arena, BorrowedSegments
from millrace.errors import ProtocolError

pytestmark = pytest.mark.skipif(not shared.AVAILABLE, reason="this platform cannot pass memory")

SIZE = 512 << 10


def taken(arena):
    """A segment's memory, which there is."""
    memory = arena.take(SIZE)
    assert memory is not None
    return memory


class Reader:
    """A consumer at the other end of a connection, without the connection; ``private``: others are lent the same."""

    def __init__(self, arena, *, private=False):
        self.arena, self.private = arena, private
        self.window = BorrowedSegments()
        self.loans = {}
        self.shown = set()

    def receive(self, view):
        """What the consumer sees of ``view``; None if it can't be lent."""
        found = self.arena.lend(view, self.window if self.private else None)
        if found is None:
            return None
        segment, start = found
        if segment.number not in self.shown:
            self.shown.add(segment.number)
            self.window.adopt(segment.number, segment.size, os.dup(segment.fd), private=self.private)
        number = len(self.loans)
        self.loans[number] = segment
        return self.window.view(segment.number, number)[start : start + view.nbytes]

    def give_back(self):
        for retire, numbers in zip((False, True), self.window.take_ended(), strict=True):
            for number in numbers:
                self.arena.take_back(self.loans.pop(number), retire=retire)

    def end(self):
        """The connection ends."""
        while self.loans:
            self.arena.take_back(self.loans.popitem()[1], retire=True)
        self.window = BorrowedSegments()
        self.shown.clear()


def descriptors():
    links = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    return sum(os.path.islink(link) and "memfd:millrace" in os.readlink(link) for link in links)


def test_small_arrays_and_objects_are_ordinary_memory():
    arena = Arena(1 << 20)
    assert arena.allocate((LEAST_BYTES - 1,), np.dtype(np.uint8)).flags.owndata
    assert arena.allocate((LEAST_BYTES,), np.dtype(object)).flags.owndata
    assert arena.bytes == 0


def test_an_array_has_the_shape_and_dtype_asked_for():
    array = Arena(4 << 20).allocate((4, 1000, 100), np.dtype(">f8"))
    assert array.shape == (4, 1000, 100)
    assert array.dtype == ">f8"
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_both_sides_see_the_same_memory():
    arena = Arena(1 << 20)
    reader = Reader(arena)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 1
    seen = reader.receive(array)
    array[5] = 77
    assert seen[5] == 77
    seen[6] = 78
    assert array[6] == 78


def test_a_segment_is_written_again_when_nobody_looks_at_it():
    arena = Arena(SIZE)
    reader = Reader(arena)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    address = array.ctypes.data
    part = reader.receive(array)[10:20].reshape(2, 5)
    assert arena.take(SIZE) is None
    del array
    assert arena.take(SIZE) is None, "the consumer has a view"
    del part
    assert arena.take(SIZE) is None, "nobody has said so yet"
    reader.give_back()
    assert taken(arena).ctypes.data == address


def test_what_one_owner_had_no_other_one_gets():
    """Who was lent it may have kept a mapping, and read or write it as long as he likes."""
    arena = Arena(4 * SIZE)
    one, two = object(), object()
    reader = Reader(arena)
    array = arena.allocate((SIZE,), np.dtype(np.uint8), one)
    address = array.ctypes.data
    reader.receive(array)
    del array
    reader.give_back()
    other = arena.take(SIZE, two)
    assert other is not None
    assert other.ctypes.data != address
    again = arena.take(SIZE, one)
    assert again is not None
    assert again.ctypes.data == address


def test_what_lies_free_of_one_owner_makes_room_for_another():
    arena = Arena(SIZE)
    assert arena.take(SIZE, object()) is not None
    assert arena.bytes == SIZE
    assert arena.take(SIZE, object()) is not None
    assert arena.bytes == SIZE


def test_what_is_lent_to_several_none_of_them_can_write():
    arena = Arena(4 * SIZE)
    reader = Reader(arena, private=True)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 7
    seen = reader.receive(array)
    (segment,) = reader.loans.values()
    with pytest.raises(PermissionError):
        mmap.mmap(segment.fd, SIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(segment.fd, b"x", 0)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    seen[:] = 8
    assert (array == 7).all()
    array[:] = 9
    alone = Reader(arena)
    assert alone.receive(array) is None, "who alone is sent something gets a copy that he can write to"


def test_without_such_a_seal_what_several_are_sent_is_copied(monkeypatch):
    """Linux before 5.1."""
    monkeypatch.setattr(shared, "_FUTURE_WRITE", 1 << 20)
    arena = Arena(4 * SIZE)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    assert Reader(arena, private=True).receive(array) is None
    assert Reader(arena).receive(array) is not None


def test_a_view_of_a_view_keeps_the_loan():
    torch = pytest.importorskip("torch")
    arena = Arena(SIZE)
    reader = Reader(arena)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 3
    tensor = torch.from_numpy(reader.receive(array))[100:].view(-1)
    del array
    gc.collect()
    reader.give_back()
    assert arena.take(SIZE) is None
    assert int(tensor[0]) == 3
    del tensor
    reader.give_back()
    assert arena.take(SIZE) is not None


def test_nothing_is_lent_twice():
    arena = Arena(4 << 20)
    reader = Reader(arena)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    assert reader.receive(array[:1000]) is not None
    assert reader.receive(array[1000:2000]) is not None, "other bytes"
    assert reader.receive(array[999:1001]) is None
    assert reader.receive(array) is None


def test_what_several_are_lent_each_is_lent_once():
    arena = Arena(4 << 20)
    one, two = Reader(arena, private=True), Reader(arena, private=True)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    assert one.receive(array) is not None
    assert two.receive(array[:1000]) is not None
    assert one.receive(array[:1000]) is None
    alone = Reader(arena)
    assert alone.receive(array) is None, "it would write to what others see"
    other = arena.allocate((SIZE,), np.dtype(np.uint8))
    assert alone.receive(other) is not None
    assert one.receive(other) is None, "it may have been written to"


def test_what_one_writes_to_bytes_of_several_no_other_one_sees():
    arena = Arena(SIZE)
    one, two = Reader(arena, private=True), Reader(arena, private=True)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 9
    first = one.receive(array)
    first[:] = 1
    second = two.receive(array)
    second[:5000] = 2
    assert (array == 9).all()
    assert (first == 1).all()
    assert (second[5000:] == 9).all()
    del array, first, second
    one.give_back()
    assert arena.take(SIZE) is None, "the other one has not given it back"
    two.give_back()
    again = taken(arena)
    again[:] = 5
    for reader in one, two:
        assert (reader.receive(again) == 5).all(), "what was written before is gone"


def test_parts_of_one_segment_are_reverted_once_all_are_given_back():
    arena = Arena(SIZE)
    reader = Reader(arena, private=True)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 9
    first, second = reader.receive(array[:5000]), reader.receive(array[5000:])
    first[:] = 1
    second[:] = 2
    del first
    reader.give_back()
    assert (second == 2).all()


def test_foreign_memory_is_not_lent():
    arena = Arena(4 << 20)
    reader = Reader(arena)
    assert reader.receive(np.zeros(SIZE, np.uint8)) is None
    array = arena.take(SIZE)
    assert reader.receive(np.zeros(SIZE, np.uint8)) is None
    assert reader.receive(array) is not None


def test_what_was_lent_on_a_connection_that_ended_is_never_written_again():
    arena = Arena(SIZE)
    reader = Reader(arena)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 9
    kept = reader.receive(array)
    reader.end()
    del array
    for _ in range(3):
        other = taken(arena)
        other[:] = 0
        del other
    assert (kept == 9).all()
    assert arena.bytes <= SIZE


def test_what_a_forked_child_may_see_is_never_written_again():
    arena = Arena(SIZE)
    reader = Reader(arena)
    array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 9
    seen = reader.receive(array)
    in_child = reader.window  # a child has a copy of everything; here it is the mapping that counts
    shared._forked()
    del array, seen
    reader.give_back()
    other = taken(arena)
    other[:] = 0
    assert (in_child.view(0, 0) == 9).all()


def test_nothing_stays_open():
    before = descriptors()
    arena = Arena(4 * SIZE)
    reader = Reader(arena)
    for _ in range(20):
        array = arena.allocate((SIZE,), np.dtype(np.uint8))
        reader.receive(array)
        reader.end()
        del array
    arena.take(SIZE)  # hears of the last one
    assert descriptors() - before <= 1


def test_room_is_made_for_another_size():
    arena = Arena(4 << 20)
    held = [arena.take(1 << 20) for _ in range(4)]
    assert arena.take(1 << 20) is None
    held.clear()
    assert arena.take(3 << 20) is not None
    assert arena.bytes <= 4 << 20


def test_a_full_arena_gives_ordinary_memory_and_says_so_once(caplog):
    arena = Arena(SIZE)
    held = arena.allocate((SIZE,), np.dtype(np.uint8))
    with caplog.at_level(logging.WARNING):
        assert arena.allocate((SIZE,), np.dtype(np.uint8)).flags.owndata
        assert arena.allocate((SIZE,), np.dtype(np.uint8)).flags.owndata
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "shared memory" in caplog.text
    assert "--buffer-bytes" in caplog.text
    del held
    assert not arena.allocate((SIZE,), np.dtype(np.uint8)).flags.owndata


def test_an_arena_of_as_many_pieces_as_there_may_be_blames_no_bytes(caplog):
    arena = Arena(1 << 30)
    with caplog.at_level(logging.INFO):
        held = [arena.take(4096) for _ in range(MAX_SEGMENTS)]
        assert all(each is not None for each in held)
        assert arena.take(4096) is None
        assert arena.take(4096) is None
    (record,) = caplog.records
    assert record.levelname == "INFO"  # nothing is to be done about it
    assert f"{MAX_SEGMENTS} pieces" in record.message
    assert "--buffer-bytes" not in record.message
    held.clear()
    assert arena.take(4096) is not None


@contextlib.contextmanager
def limited(which, soft):
    before = resource.getrlimit(which)
    resource.setrlimit(which, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def test_a_machine_that_gives_no_memory_is_no_end(caplog):
    arena, before = Arena(1 << 30), descriptors()
    with limited(resource.RLIMIT_FSIZE, 4096), caplog.at_level(logging.WARNING):
        array = arena.allocate((SIZE,), np.dtype(np.uint8))
    array[:] = 1
    assert array.flags.owndata
    assert "cannot allocate" in caplog.text
    assert "are in use" not in caplog.text
    assert descriptors() == before
    assert arena.bytes == 0


def test_no_descriptor_is_no_end(caplog):
    arena = Arena(1 << 30)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    with limited(resource.RLIMIT_NOFILE, highest), caplog.at_level(logging.WARNING):
        spare = []
        with contextlib.suppress(OSError):
            while True:
                spare.append(os.open("/dev/null", os.O_RDONLY))
        array = arena.allocate((SIZE,), np.dtype(np.uint8))
        for each in spare:
            os.close(each)
    assert array.flags.owndata


def test_memory_that_could_shrink_is_refused():
    fd = os.memfd_create("theirs", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, SIZE)
    with pytest.raises(ProtocolError, match="for good"):
        BorrowedSegments().adopt(0, SIZE, fd)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_memory_that_is_too_small_is_refused():
    fd = os.memfd_create("theirs", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(ProtocolError, match="does not hold"):
        BorrowedSegments().adopt(0, SIZE + 1, fd)


def test_segments_that_were_not_passed_are_refused():
    with pytest.raises(ProtocolError, match="segment 3"):
        BorrowedSegments().view(3, 0)


def test_what_is_free_can_be_given_up():
    arena = Arena(4 * SIZE)
    held = [arena.take(SIZE) for _ in range(3)]
    before = descriptors()
    del held[1:]
    arena.trim()
    assert arena.bytes == SIZE
    assert descriptors() == before - 2


class Lending(RuleBasedStateMachine):
    """A worker that writes batches and lends them, and consumers that keep some and write to them, in any order."""

    private = False

    def __init__(self):
        super().__init__()
        self.arena = Arena(4 * LEAST_BYTES)
        self.readers = [Reader(self.arena, private=self.private), Reader(self.arena, private=self.private)]
        self.written = []
        self.kept = []
        self.stamp = 0

    @rule(quarters=st.integers(4, 9))
    def write(self, quarters):
        array = self.arena.allocate((quarters * LEAST_BYTES // 4,), np.dtype(np.uint8))
        self.stamp += 1
        array[::4096] = self.stamp % 251
        self.written.append((array, self.stamp % 251))

    @precondition(lambda self: self.written)
    @rule(data=st.data(), reader=st.integers(0, 1))
    def lend(self, data, reader):
        array, stamp = self.written[data.draw(st.integers(0, len(self.written) - 1))]
        view = self.readers[reader].receive(array)
        if view is not None:
            self.kept.append((view[4096:], stamp))

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def drop_in_worker(self, data):
        self.written.pop(data.draw(st.integers(0, len(self.written) - 1)))

    @precondition(lambda self: self.private and self.kept)
    @rule(data=st.data())
    def write_in_consumer(self, data):
        number = data.draw(st.integers(0, len(self.kept) - 1))
        view, _ = self.kept[number]
        self.stamp += 1
        view[::4096] = self.stamp % 251
        self.kept[number] = view, self.stamp % 251

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def drop_in_consumer(self, data):
        self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))

    @rule(reader=st.integers(0, 1))
    def give_back(self, reader):
        self.readers[reader].give_back()

    @rule(reader=st.integers(0, 1))
    def end(self, reader):
        self.readers[reader].end()

    @rule()
    def fork(self):
        shared._forked()

    @invariant()
    def nothing_changes_under_a_view(self):
        for view, stamp in (*self.written, *self.kept):
            assert (view[::4096] == stamp).all()

    @invariant()
    def within_the_limit(self):
        assert 0 <= self.arena.bytes <= self.arena.limit


class SharedLending(Lending):
    """The same, of batches that both consumers may be lent."""

    private = True


TestSharedLending = SharedLending.TestCase
TestSharedLending.settings = settings(max_examples=60, stateful_step_count=40)
TestLending = Lending.TestCase
TestLending.settings = settings(max_examples=60, stateful_step_count=40)


def passed(size, *, pages=True):
    """A segment of a peer, which may have no pages."""
    fd = os.memfd_create("theirs", os.MFD_ALLOW_SEALING)
    if pages:
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def test_memory_without_pages_is_refused():
    """Sparse segments cost a peer nothing: 3 TiB were mapped for one."""
    with pytest.raises(ProtocolError, match="does not hold"):
        BorrowedSegments().adopt(0, 1 << 30, passed(1 << 30, pages=False))


def test_a_peer_has_so_many_bytes_mapped_at_most():
    window = BorrowedSegments(3 * SIZE)
    for number in range(3):
        window.adopt(number, SIZE, passed(SIZE))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ProtocolError, match="at most"):
        window.adopt(3, SIZE, passed(SIZE))
    assert len(os.listdir("/proc/self/fd")) <= before
    seen = window.view(0, 0)
    window.forget(0)
    with pytest.raises(ProtocolError, match="at most"):
        window.adopt(3, SIZE, passed(SIZE))  # somebody looks at the first still
    del seen
    window.take_ended()
    window.adopt(3, SIZE, passed(SIZE))


def test_a_peer_has_so_many_segments_mapped_at_most():
    window = BorrowedSegments()
    for number in range(shared.MOST_BORROWED_SEGMENTS):
        window.adopt(number, 4096, passed(4096))
    with pytest.raises(ProtocolError, match="at most"):
        window.adopt(-1, 4096, passed(4096))
