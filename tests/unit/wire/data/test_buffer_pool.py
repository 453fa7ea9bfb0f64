import gc
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.wire.data.buffer_pool import LEAST_BYTES, BufferPool

MIB = 1 << 20


def start(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("size", [1, LEAST_BYTES - 1, LEAST_BYTES, LEAST_BYTES + 1, 9_633_792])
def test_what_a_buffer_is(size):
    buffer = BufferPool(MIB).allocate(size)
    assert buffer.shape == (size,)
    assert buffer.dtype == np.uint8
    assert start(buffer) % 64 == 0
    assert buffer.flags.writeable
    buffer[:] = 1


def test_memory_comes_back_when_the_last_view_has_died():
    pool = BufferPool(10 * MIB)
    buffer = pool.allocate(MIB)
    address = start(buffer)
    view = buffer[100:200].view(np.int32)[::2]
    raw = buffer.data[5:]
    del buffer
    assert start(pool.allocate(MIB)) != address
    del view
    assert pool.idle_bytes == MIB  # of the one in between
    del raw
    assert pool.idle_bytes == 2 * MIB
    assert address in {start(each) for each in [pool.allocate(MIB), pool.allocate(MIB)]}


def test_messages_of_about_the_same_size_share_buffers():
    pool = BufferPool(10 * MIB)
    address = start(pool.allocate(3_000_000))
    assert start(pool.allocate(3_000_100)) == address


@given(st.lists(st.integers(LEAST_BYTES, 3 * MIB), max_size=12))
def test_what_is_idle_is_bounded(sizes):
    pool = BufferPool(4 * MIB)
    buffers = [pool.allocate(size) for size in sizes]
    total = 0
    while buffers:
        total += buffers.pop().nbytes
        assert pool.idle_bytes <= min(4 * MIB, total * 9 / 8 + 4096 * len(sizes))
    assert total < 4 * MIB or pool.idle_bytes > 0


def test_sizes_that_are_used_stay_and_others_go():
    pool = BufferPool(3 * MIB)
    large, small = pool.allocate(2 * MIB), pool.allocate(MIB)
    del large, small
    assert pool.idle_bytes == 3 * MIB
    two = pool.allocate(MIB), pool.allocate(MIB)
    del two
    assert pool.idle_bytes == 2 * MIB  # the buffer of two MiB had to go


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([LEAST_BYTES, LEAST_BYTES + 9, MIB])), max_size=40))
def test_no_buffer_is_given_out_twice(steps):
    pool = BufferPool(2 * MIB)
    held: dict[int, tuple] = {}
    for number, (slot, size) in enumerate(steps):
        held.pop(slot, None)
        buffer = pool.allocate(size)
        buffer[::1000] = number % 251
        held[slot] = buffer[::1000], number % 251
        for view, value in held.values():
            assert (view == value).all()


def test_buffers_outlive_their_pool():
    pool = BufferPool(10 * MIB)
    buffer = pool.allocate(MIB)
    buffer[:] = 7
    del pool
    gc.collect()
    assert (buffer == 7).all()


def test_any_thread_may_let_go_of_a_buffer():
    pool = BufferPool(10 * MIB)
    held = [pool.allocate(MIB)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.idle_bytes == MIB
