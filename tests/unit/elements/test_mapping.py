"""Snapshots of files: nobody's bytes but one's own, and no signal where there are none."""

import gc
import os

import numpy as np
import pytest

from millrace.elements import mapping
from millrace.elements.mapping import snapshot, stays

pytestmark = pytest.mark.skipif(not mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
PAGE = 4096
DATA = np.random.default_rng(0).integers(0, 256, 5 << 20, np.uint8)


@pytest.fixture
def fd(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA.tobytes())
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (1, PAGE), (PAGE - 1, PAGE + 1), (5, 3 << 20), (2 << 20, 4 << 20), (3_000_000, 5 << 20)],
)
def test_any_part_of_a_file(fd, start, stop):
    found = snapshot(fd, start, stop)
    assert found is not None
    assert np.array_equal(found, DATA[start:stop])


def test_writing_to_one_changes_nothing_else(fd):
    one, other = snapshot(fd, 100, 1 << 20), snapshot(fd, 100, 1 << 20)
    assert one is not None
    assert other is not None
    one[:] = 0
    assert np.array_equal(other, DATA[100 : 1 << 20])
    assert os.pread(fd, 10, 100) == DATA[100:110].tobytes()


def test_it_outlives_the_descriptor_and_the_name(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA.tobytes())
    fd = os.open(path, os.O_RDONLY)
    found = snapshot(fd, 0, len(DATA))
    os.close(fd)
    path.unlink()
    assert found is not None
    assert np.array_equal(found, DATA)


def test_memory_goes_with_the_last_view(fd):
    gc.collect()
    before = len(mapping._snapshots)
    found = snapshot(fd, 0, 1 << 20)
    assert found is not None
    view = found[PAGE:].reshape(-1, 2)[3]
    del found
    assert len(mapping._snapshots) == before + 1
    assert np.array_equal(view, DATA[PAGE + 6 : PAGE + 8])
    del view
    assert len(mapping._snapshots) == before


def test_what_lies_behind_the_end_is_none_and_no_signal(fd, tmp_path):
    assert snapshot(fd, 0, len(DATA) + PAGE) is None
    assert snapshot(fd, 64 << 20, 65 << 20) is None
    empty = tmp_path / "empty"
    empty.touch()
    handle = os.open(empty, os.O_RDONLY)
    assert snapshot(handle, 0, 10) is None
    os.close(handle)


def test_there_are_not_too_many(fd, monkeypatch):
    monkeypatch.setattr(mapping, "_MOST", len(mapping._snapshots) + 2)
    held = [snapshot(fd, 0, 10) for _ in range(3)]
    assert [each is None for each in held] == [False, False, True]
    del held
    assert snapshot(fd, 0, 10) is not None


def test_what_cannot_be_mapped_is_none():
    reader, writer = os.pipe()
    try:
        assert snapshot(reader, 0, 10) is None
    finally:
        os.close(reader)
        os.close(writer)


def test_only_disks_of_this_machine_are_trusted(fd):
    with open("/proc/self/status") as file:
        assert not stays(file.fileno())
    reader, writer = os.pipe()
    assert not stays(reader)
    os.close(reader)
    os.close(writer)
    assert not stays(reader), "a descriptor that is none"
