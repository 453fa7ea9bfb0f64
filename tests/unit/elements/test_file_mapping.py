"""Snapshots of files: nobody's bytes but one's own, and no signal where there are none."""

import fcntl
import gc
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.elements import file_mapping
from millrace.elements.file_mapping import OpenFile, map_or_read, mapped_ranges, snapshot, stays_readable
from millrace.errors import ProtocolError

pytestmark = pytest.mark.skipif(not file_mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
PAGE = 4096
DATA = np.random.default_rng(0).integers(0, 256, 5 << 20, np.uint8)


def opened(path):
    return OpenFile(os.open(path, os.O_RDONLY))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA.tobytes())
    return opened(path)


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, 1), (1, PAGE), (PAGE - 1, PAGE + 1), (5, 3 << 20), (2 << 20, 4 << 20), (3_000_000, 5 << 20)],
)
def test_any_part_of_a_file(file, start, stop):
    found = snapshot(file, start, stop)
    assert found is not None
    assert np.array_equal(found, DATA[start:stop])


def test_writing_to_one_changes_nothing_else(file):
    one, other = snapshot(file, 100, 1 << 20), snapshot(file, 100, 1 << 20)
    assert one is not None
    assert other is not None
    one[:] = 0
    assert np.array_equal(other, DATA[100 : 1 << 20])
    assert os.pread(file.fd, 10, 100) == DATA[100:110].tobytes()


def test_it_outlives_the_descriptor_and_the_name(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA.tobytes())
    opening = opened(path)
    found = snapshot(opening, 0, len(DATA))
    handle = opening.fd
    del opening
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    path.unlink()
    assert found is not None
    assert np.array_equal(found, DATA)


def test_memory_goes_with_the_last_view(file):
    gc.collect()
    before = len(file_mapping._snapshots)
    found = snapshot(file, 0, 1 << 20)
    assert found is not None
    view = found[PAGE:].reshape(-1, 2)[3]
    del found
    assert len(file_mapping._snapshots) == before + 1
    assert np.array_equal(view, DATA[PAGE + 6 : PAGE + 8])
    del view
    assert len(file_mapping._snapshots) <= before


def test_what_lies_behind_the_end_is_none_and_no_signal(file, tmp_path):
    assert snapshot(file, 0, len(DATA) + PAGE) is None
    assert snapshot(file, 64 << 20, 65 << 20) is None
    empty = tmp_path / "empty"
    empty.touch()
    assert snapshot(opened(empty), 0, 10) is None


def test_there_are_not_too_many(file, monkeypatch):
    monkeypatch.setattr(file_mapping, "_MOST", len(file_mapping._snapshots) + 2)
    held = [snapshot(file, 0, 10) for _ in range(3)]
    assert [each is None for each in held] == [False, False, True]
    del held
    assert snapshot(file, 0, 10) is not None


def test_what_cannot_be_mapped_is_none():
    reader, writer = map(OpenFile, os.pipe())
    assert snapshot(reader, 0, 10) is None
    del writer


def test_only_disks_of_this_machine_are_trusted():
    with open("/proc/self/status") as status:
        assert not stays_readable(status.fileno())
    reader, writer = os.pipe()
    assert not stays_readable(reader)
    os.close(reader)
    os.close(writer)
    assert not stays_readable(reader), "a descriptor that is none"


# -- shown to another process ------------------------------------------------------------------------------------------


def mapped(file, start, stop):
    found = snapshot(file, start, stop)
    assert found is not None
    return found


def shown(*views):
    """(start, size, views) of the ranges in which these lie."""
    return [each[1:] for each in mapped_ranges(enumerate(views))]


def test_views_that_lie_together_share_a_range(file):
    found = mapped(file, 1000, 5 << 20)
    at = 1000
    views = [found[: 300 << 10], found[(300 << 10) + 64 : 600 << 10], found[3 << 20 : 4 << 20]]
    assert shown(*views) == [
        (at, 600 << 10, [(0, 0), (1, (300 << 10) + 64)]),
        (at + (3 << 20), 1 << 20, [(2, 0)]),
    ]
    assert shown(views[2], np.zeros(1 << 20, np.uint8), views[0]) == [
        (at + (3 << 20), 1 << 20, [(0, 0)]),
        (at, 300 << 10, [(2, 0)]),
    ]
    assert shown(found[: 100 << 10], found[4 << 20 :][: 100 << 10]) == [], "little is copied sooner"
    assert shown(views[1], views[0]) == [(at + (300 << 10) + 64, (300 << 10) - 64, [(0, 0)]), (at, 300 << 10, [(1, 0)])]


def test_arrays_of_any_kind_are_found(file):
    found = mapped(file, 0, 1 << 20)
    assert shown(np.frombuffer(memoryview(found.reshape(4, -1)).cast("B"), np.uint8)) == [(0, 1 << 20, [(0, 0)])]
    rows = np.ndarray((256, 512), "<f8", found)[64:192]
    assert shown(np.frombuffer(rows.data.cast("B"), np.uint8)) == [(256 << 10, 512 << 10, [(0, 0)])]
    assert shown(np.frombuffer(bytes(1 << 20), np.uint8)) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the file is only read
@given(st.lists(st.tuples(st.integers(0, (3 << 20) - 1), st.integers(1, 3 * PAGE)), max_size=4))
def test_what_was_written_to_is_shown_by_no_file(file, writes):
    path = f"/proc/self/fd/{file.fd}"
    found = mapped(opened(path), 0, 3 << 20)
    assert shown(found) == [], "nobody has the file open any more"
    opening = opened(path)
    found = mapped(opening, 0, 3 << 20)
    expected = DATA[: 3 << 20].copy()
    for start, count in writes:
        found[start : start + count] += 1
        expected[start : start + count] += 1
    parts = [found[at : at + (512 << 10)] for at in range(0, 3 << 20, 512 << 10)]
    for at, part in zip(range(0, 3 << 20, 512 << 10), parts, strict=True):
        for start, size, _ in shown(part):
            assert np.array_equal(map_or_read(opening, start, start + size), part)
        touched = any(start // PAGE * PAGE < at + (512 << 10) and start + count > at for start, count in writes)
        assert touched or shown(part), "what nobody touched need not be copied"
    assert np.array_equal(found, expected)


def test_without_the_kernels_word_nothing_is_shown(file, monkeypatch):
    found = mapped(file, 0, 1 << 20)
    assert shown(found)

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(file_mapping, "open", refuse, raising=False)
    assert not shown(found)


@pytest.mark.parametrize("mapped", [True, False])
def test_somebody_elses_file_is_mapped_or_read(file, monkeypatch, mapped):
    monkeypatch.setattr(file_mapping, "_MOST", 4096 if mapped else 0)
    found = map_or_read(file, 100, 3 << 20)
    assert np.array_equal(found, DATA[100 : 3 << 20])
    assert found.ctypes.data % 64 == 100 % 64
    found[:] = 0
    assert np.array_equal(map_or_read(file, 100, 3 << 20), DATA[100 : 3 << 20])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("owner", [0, 54321])
def test_a_file_that_another_user_could_cut_short_is_read(tmp_path, file, owner):
    """Its reader would end by a signal."""
    os.chown(tmp_path / "file", owner, owner)
    found = map_or_read(file, 0, 3 << 20)
    os.truncate(tmp_path / "file", 0 if owner else len(DATA))
    assert np.array_equal(found, DATA[: 3 << 20])
    assert bool(shown(found)) is (owner == 0)


def test_what_the_system_does_not_let_map_is_read(file, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(file_mapping, "snapshot", refuse)
    assert np.array_equal(map_or_read(file, 100, 3 << 20), DATA[100 : 3 << 20])


@pytest.mark.parametrize(("start", "stop"), [(0, len(DATA) + 1), (-1, 10), (10, 10), (20, 10), (1 << 62, 1 << 63)])
def test_a_file_that_has_not_so_much_is_refused(file, start, stop):
    with pytest.raises(ProtocolError, match="does not hold"):
        map_or_read(file, start, stop)


def test_what_is_no_file_is_refused(tmp_path):
    reader, writer = map(OpenFile, os.pipe())
    for other in (reader, opened("/dev/zero"), opened(tmp_path)):
        with pytest.raises(ProtocolError, match="does not hold"):
            map_or_read(other, 0, 1)
    del writer


def memory(seals):
    """A memfd that holds DATA."""
    made = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.write(made, DATA.tobytes())
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return OpenFile(made)


def test_memory_that_can_be_cut_short_is_read():
    """A page of a mapping that is no more would end the reader by SIGBUS."""
    lent = memory(fcntl.F_SEAL_GROW)
    before = len(file_mapping._snapshots)
    found = map_or_read(lent, 100, 3 << 20)
    assert len(file_mapping._snapshots) <= before
    os.ftruncate(lent.fd, 0)
    assert np.array_equal(found, DATA[100 : 3 << 20])


def test_memory_that_is_sealed_is_mapped():
    lent = memory(fcntl.F_SEAL_SHRINK)
    before = len(file_mapping._snapshots)
    found = map_or_read(lent, 100, 3 << 20)
    assert len(file_mapping._snapshots) == before + 1
    with pytest.raises(PermissionError):
        os.ftruncate(lent.fd, 0)
    assert np.array_equal(found, DATA[100 : 3 << 20])


def test_files_of_another_host_are_read(file, monkeypatch):
    monkeypatch.setattr(file_mapping, "_SAFE", frozenset())
    before = len(file_mapping._snapshots)
    assert np.array_equal(map_or_read(file, 100, 3 << 20), DATA[100 : 3 << 20])
    assert len(file_mapping._snapshots) <= before
