"""Calibration of stores whose time is made up."""

import contextlib
import threading
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.blocks.store_benchmark import LARGEST, SMALLEST, Calibration, calibrate
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.errors import CacheError, StoreFullError

MIB = 1 << 20


class Slow:
    """A store that takes as long as it is told, on a clock of its own, and keeps no bytes."""

    location = "nowhere"

    def __init__(self, latency=1e-3, bandwidth=1e9, cold=1.0, room=None):
        self.now = 0.0
        self.latency, self.bandwidth, self.cold, self.room = latency, bandwidth, cold, room
        self.size, self.reads, self.in_memory, self.there = 0, [], True, False
        self.lock = threading.Lock()

    def clock(self):
        return self.now

    def free_bytes(self):
        return self.room

    @contextlib.contextmanager
    def draft(self):
        self.size = 0
        yield self

    def write(self, data):
        self.size += len(data)
        self.now += len(data) / self.bandwidth

    def publish(self, point, name):
        self.now += self.latency
        self.there = True

    def open(self, point, name):
        assert self.there
        self.in_memory = True
        return self

    @property
    def nbytes(self):
        return self.size

    def read(self, ranges):
        ((start, stop),) = ranges
        assert 0 <= start < stop <= self.size
        with self.lock:
            self.reads.append(stop - start)
            self.now += (self.latency + (stop - start) / self.bandwidth) * (1 if self.in_memory else self.cold)
        return [np.empty(0, np.uint8)]

    def version(self):
        return None

    def drop(self):
        self.in_memory = False
        return True

    def close(self):
        pass

    def delete(self, point, name):
        self.there = False


@pytest.mark.parametrize(
    ("latency", "bandwidth", "cold"),
    [(1e-5, 5e9, 3), (1e-3, 1e9, 3), (2e-2, 1e8, 2), (0.1, 1e7, 1)],
    ids=["memory", "disk", "far", "slow"],
)
def test_any_store_is_measured_in_about_the_time_that_is_given(latency, bandwidth, cold):
    store: Any = Slow(latency, bandwidth, cold)
    found = calibrate(store, clock=store.clock)
    assert store.now < 3
    assert not store.there
    assert found.read.sizes[0] == SMALLEST
    for size in (SMALLEST, 50_000, MIB, 10 * MIB, LARGEST):
        expected = latency + size / bandwidth
        assert found.read.seconds(size) == pytest.approx(expected, rel=0.25)
        assert found.cold.seconds(size) == pytest.approx(cold * expected, rel=0.25)
    assert found.write.seconds(100 * MIB) == pytest.approx(100 * MIB / bandwidth, rel=0.4)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Calibration) == found


def test_reads_that_take_turns_take_as_long_as_all_of_them_on_any_number_of_threads():
    store: Any = Slow(1e-3, 1e8, 2)
    found = calibrate(store, threads=4, clock=store.clock)
    for size in (SMALLEST, MIB, 10 * MIB):
        assert found.read.seconds(size) == pytest.approx(4 * (1e-3 + size / 1e8), rel=0.25)


def test_a_fast_store_is_measured_up_to_the_largest_reads():
    store: Any = Slow(1e-5, 5e9)
    calibrate(store, clock=store.clock)
    assert max(store.reads) == store.size == LARGEST
    assert store.reads.count(SMALLEST) == 1 + 2 * 26


def test_what_the_first_one_pays_for_is_not_counted():
    store: Any = Slow(1e-3, 1e9)
    publish = store.publish

    def connect(point, name):
        store.now += 0.7
        store.publish = publish
        publish(point, name)

    store.publish = connect
    found = calibrate(store, clock=store.clock)
    assert store.now < 3
    assert found.write.seconds(100 * MIB) == pytest.approx(0.1, rel=0.4)


def test_where_there_is_no_disk_behind_it_all_reads_count():
    store: Any = Slow(1e-3, 1e9)
    store.drop = lambda: False
    found = calibrate(store, clock=store.clock)
    assert found.read == found.cold
    assert found.read.seconds(MIB) == pytest.approx(1e-3 + MIB / 1e9, rel=0.1)


def test_what_a_byte_takes_is_not_told_by_small_reads_that_differ_by_chance():
    store: Any = Slow(0.2, 1e8)
    store.drop = lambda: False
    read = store.read

    def differs(ranges):
        ((start, stop),) = ranges
        store.now += 0.02 * (stop - start > SMALLEST)
        return read(ranges)

    store.read = differs
    found = calibrate(store, seconds=0.5, clock=store.clock)
    assert max(store.reads) < MIB
    assert found.read.seconds(LARGEST) < 0.3 + found.write.seconds(LARGEST)  # 54 s by the line through these


def test_small_reads_that_take_longer_than_large_ones_leave_time_for_these():
    """As where a small answer waits in the server for what would fill its packet."""
    store: Any = Slow(1e-3, 1e9)
    store.drop = lambda: False
    read = store.read

    def waits(ranges):
        ((start, stop),) = ranges
        store.now += 0.044 * (stop - start < 100_000)
        return read(ranges)

    store.read = waits
    found = calibrate(store, seconds=1.0, clock=store.clock)
    assert store.now < 5
    for size in (SMALLEST, 4 * SMALLEST, 16 * SMALLEST):
        assert found.read.seconds(size) == pytest.approx(0.045, rel=0.05)
    for size in (64 * SMALLEST, 10 * MIB):
        assert found.read.seconds(size) == pytest.approx(1e-3 + size / 1e9, rel=0.1)


def test_a_store_that_takes_long_for_anything_is_measured_all_the_same():
    store: Any = Slow(latency=30.0)
    found = calibrate(store, clock=store.clock)
    assert store.reads == [SMALLEST] * 3
    assert found.read.seconds(LARGEST) > found.read.seconds(SMALLEST) == pytest.approx(30, rel=0.1)


def test_no_more_than_a_quarter_of_the_room_is_taken():
    store: Any = Slow(1e-5, 5e9, room=40 * MIB)
    calibrate(store, clock=store.clock)
    assert store.size == 10 * MIB
    with pytest.raises(StoreFullError):
        calibrate(MemoryStore(capacity=100))


def test_nothing_is_left_where_reading_fails():
    store: Any = Slow()

    def fail(ranges):
        raise CacheError("it is gone")

    store.read = fail
    with pytest.raises(CacheError, match="it is gone"):
        calibrate(store, clock=store.clock)
    assert not store.there


def test_a_real_store_with_several_threads():
    store = MemoryStore()
    found = calibrate(store, seconds=0.02, threads=3, largest=MIB)
    assert found.threads == 3
    assert 0 < found.read.seconds(10_000) < found.read.seconds(100 * MIB)
    assert 0 < found.cpu_s < 1e-6
    assert store.blocks() == {}
