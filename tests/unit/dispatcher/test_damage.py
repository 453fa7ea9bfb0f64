"""Whatever becomes of a file of the work_dir: a start has the full state, or refuses with a sentence."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.unit.control.control_driver import STRUCTURE

from millrace.control.journal.consumer_events import ConsumerJoined
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobCreated
from millrace.control.journal.replay import apply
from millrace.control.journal.snapshot import dump
from millrace.control.journal.worker_events import WorkerJoined
from millrace.control.state.state import State
from millrace.dispatcher.blob_store import BlobFolder
from millrace.dispatcher.journal_file import HighWaterMark, SqliteJournal
from millrace.dispatcher.recovery import restore
from millrace.dispatcher.shortage import ShortageError, UnwritableError
from millrace.dispatcher.work_dir import WorkDir
from millrace.errors import ServiceError
from millrace.protocol.job_spec import JobSpec
from millrace.wire.control.blob_transfer import digest_of

FUNCTIONS = bytes(range(256)) * 16
GROUPS = 40
FILES = ("journal.db", "journal.db-wal", "journal.db-last", f"blobs/{digest_of(FUNCTIONS)}")


def live(journal: SqliteJournal, state: State, first: int, last: int, *, snapshot: int = -1) -> None:
    for number in range(first, last):
        events: list[Event] = [WorkerJoined(f"w{number}", f"w{number}:1", host="h" * 50)]
        if number == 0:
            spec = JobSpec("job", STRUCTURE, digest_of(FUNCTIONS))
            events += [JobCreated(spec, 1, "d", True, 0.0), ConsumerJoined("job", 0, "c", -1)]
        for event in events:
            apply(state, event)
        kept = dump(state) if number == snapshot else None
        journal.write(len(events), float(number), msgspec.msgpack.encode(events), kept)


def journalled(path: Path, *, killed: bool) -> Path:
    """A work_dir as a dispatcher leaves it, that was killed or ended in good order."""
    work_dir = WorkDir(str(path / "alive"))
    journal, state, _ = restore(work_dir, State, recover=False)
    BlobFolder(work_dir.blobs).write(digest_of(FUNCTIONS), FUNCTIONS)
    live(journal, state, 0, GROUPS, snapshot=GROUPS // 2)
    if killed:
        shutil.copytree(work_dir.path, path / "left")
    journal.close()
    work_dir.close()
    if not killed:
        shutil.copytree(work_dir.path, path / "left")
    return path / "left"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in which syncs cost nothing, as each start makes some."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as path:
        yield Path(path)


@pytest.fixture(scope="module", params=["killed", "ended"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return journalled(tmp_path_factory.mktemp("left"), killed=request.param == "killed")


def started(path: Path, *, recover: bool = False) -> State:
    work_dir = WorkDir(str(path))
    try:
        journal, state, _ = restore(work_dir, State, recover=recover)
        journal.close()
        return state
    finally:
        work_dir.close()


def full(state: State) -> bool:
    return len(state.workers) == GROUPS and list(state.jobs) == ["job"]


def flip(at: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        if data:
            data[int(at * len(data))] ^= 0x41
        path.write_bytes(data)

    return damage


def cut(at: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(at * path.stat().st_size))


DAMAGES: dict[str, list[Callable[[Path], object]]] = {
    "removed": [os.unlink],
    "emptied": [cut(0.0)],
    "cut off": [cut(part / 40) for part in range(1, 40)],
    "flipped": [flip(part / 200) for part in range(200)],
    "something else": [lambda path: path.write_bytes(b"something else " * 1000)],
}


def test_what_is_whole_starts(left, tmp_path):
    assert full(started(shutil.copytree(left, tmp_path / "copy")))


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize(
    ("left", "name"),
    [(life, name) for life in ("killed", "ended") for name in FILES if life == "killed" or not name.endswith("-wal")],
    indirect=["left"],
)
def test_a_start_has_the_full_state_or_refuses(left, memory, name, kind):
    refused = 0
    for number, damage in enumerate(DAMAGES[kind]):
        copy = shutil.copytree(left, memory / str(number))
        damage(copy / name)
        try:
            found = started(copy)
        except ServiceError as error:
            refused += str(copy) in str(error)
        else:
            assert full(found), f"{name} was {kind} ({number}), and an older state was taken for the newest"
        shutil.rmtree(copy)
    if name != "journal.db-last" or kind != "removed":  # journals of before have none
        assert refused


@pytest.mark.parametrize("names", [FILES[:2], FILES[:3], FILES[1:3]], ids=str)
def test_several_files_that_are_gone_are_missed(left, tmp_path, names):
    """But for a log together with the mark that tells of it."""
    copy = shutil.copytree(left, tmp_path / "copy")
    for name in names:
        (copy / name).unlink(missing_ok=True)
    if names == FILES[1:3]:
        assert started(copy).jobs  # what there was by the last checkpoint
        return
    with pytest.raises(ServiceError, match=r"is damaged: (it is gone, though|it ends after event 0)"):
        started(copy)


def test_an_older_copy_is_refused_and_gone_on_with_by_choice(tmp_path, caplog):
    left = journalled(tmp_path, killed=False)
    copy = shutil.copy(left / "journal.db", tmp_path / "older.db")
    work_dir = WorkDir(str(left))
    journal, state, _ = restore(work_dir, State, recover=False)
    live(journal, state, GROUPS, GROUPS + 5)
    journal.close()
    work_dir.close()
    shutil.copy(copy, left / "journal.db")
    with pytest.raises(ServiceError, match=r"ends after event 42, and 47 were durable: it is an older one.*--recover"):
        started(left)
    with caplog.at_level(logging.WARNING):
        assert full(started(left, recover=True))
    assert "Lost: 5 events behind it" in caplog.text
    assert full(started(left))  # from now on it is the newest


def test_a_folder_that_was_restored_as_a_whole_starts(tmp_path):
    left = journalled(tmp_path, killed=True)
    assert full(started(shutil.copytree(left, tmp_path / "restored")))


def test_a_journal_without_a_mark_gets_one(left, tmp_path):
    """Those of before had none."""
    copy = shutil.copytree(left, tmp_path / "copy")
    (copy / "journal.db-last").unlink()
    assert full(started(copy))
    os.truncate(copy / "journal.db", 0)
    with pytest.raises(ServiceError, match="it is empty, though"):
        started(copy)


def test_a_full_disk_at_the_first_mark_leaves_the_journal_as_it_was(left, tmp_path, monkeypatch):
    copy = shutil.copytree(left, tmp_path / "copy")
    (copy / "journal.db-last").unlink()
    write = os.pwrite

    def full_disk(file, data, offset):
        if len(data) == 24:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full_disk)
        with pytest.raises(ShortageError, match="No space left"):
            started(copy)
    assert not [path for path in copy.iterdir() if path.name.startswith("journal.db-last")]
    assert full(started(copy))


def test_a_damaged_mark_costs_no_events(left, tmp_path, caplog):
    copy = shutil.copytree(left, tmp_path / "copy")
    (copy / "journal.db-last").write_bytes(bytes(24))
    with pytest.raises(ServiceError, match=r"is damaged: .*journal\.db-last is not what was written.*--recover"):
        started(copy)
    with caplog.at_level(logging.WARNING):
        assert full(started(copy, recover=True))
    assert full(started(copy))


def test_a_mark_that_cannot_be_read_now_is_read_later(left, tmp_path, monkeypatch):
    copy = shutil.copytree(left, tmp_path / "copy")

    def no_descriptor(_mark):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(HighWaterMark, "read", no_descriptor)
        with pytest.raises(ShortageError, match="Too many open files"):
            started(copy)
    assert full(started(copy))


@pytest.mark.parametrize("damaged", [True, False])
def test_a_full_disk_while_recovering_keeps_the_old_journal_in_its_place(left, tmp_path, monkeypatch, damaged):
    copy = shutil.copytree(left, tmp_path / "copy")
    if damaged:
        (copy / "journal.db-last").write_bytes(bytes(24))
    (copy / "journal.db.draft").write_bytes(b"of an attempt before")

    def full_disk(*_args):
        raise UnwritableError("the journal cannot be written: database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteJournal, "write", full_disk)
        with pytest.raises(ShortageError, match="disk is full"):
            started(copy, recover=True)
    assert full(started(copy, recover=True))
    assert full(started(copy))
    assert (copy / "journal.db.damaged-1").exists() == damaged
    assert not (copy / "journal.db.damaged-2").exists()


class CrashError(BaseException):
    pass


def crash_at(number: int) -> Callable[[str, str], None]:
    """A rename that ends the process the so manieth time."""
    calls = itertools.count()
    rename = os.rename

    def crashing(source: str, target: str) -> None:
        if next(calls) >= number:
            raise CrashError
        rename(source, target)

    return crashing


def test_a_crash_while_one_journal_takes_the_place_of_another_loses_neither(left, memory, monkeypatch, caplog):
    adopted = 0
    for number in itertools.count():
        copy = shutil.copytree(left, memory / str(number))
        (copy / "journal.db-last").write_bytes(bytes(24))
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", crash_at(number))
            try:
                started(copy, recover=True)
            except CrashError:
                done = False
            else:
                done = True
        caplog.clear()
        try:
            assert full(started(copy)), f"after rename {number} an older state is taken for the newest"
        except ServiceError:
            assert not (copy / "journal.db.damaged-1").exists()
            assert full(started(copy, recover=True))
        adopted += "was to take its place" in caplog.text
        assert full(started(copy))
        assert (copy / "journal.db.damaged-1").exists()
        assert not list(copy.glob("journal.db.new*"))
        if done:
            break
    assert adopted >= 3


def test_a_job_whose_functions_are_damaged_ends_and_others_go_on(left, tmp_path, caplog):
    copy = shutil.copytree(left, tmp_path / "copy")
    flip(0.5)(copy / FILES[3])
    with pytest.raises(ServiceError, match=r"the functions of job 'job' are lost: blob .* is damaged"):
        started(copy)
    with caplog.at_level(logging.WARNING):
        state = started(copy, recover=True)
    assert not state.jobs
    assert len(state.workers) == GROUPS
    assert "jobs that cannot go on: job" in caplog.text


def test_little_is_in_the_log_after_a_start_and_after_a_snapshot(tmp_path):
    work_dir = WorkDir(str(tmp_path / "alive"))
    log = Path(f"{work_dir.journal}-wal")
    journal, state, _ = restore(work_dir, State, recover=False)
    BlobFolder(work_dir.blobs).write(digest_of(FUNCTIONS), FUNCTIONS)
    live(journal, state, 0, 10)
    assert log.stat().st_size
    journal.write(0, 1.0, b"", dump(state))
    assert not log.stat().st_size
    live(journal, state, 10, 20)
    copy = shutil.copytree(work_dir.path, tmp_path / "copy")
    journal.close()
    work_dir.close()
    again = WorkDir(str(copy))
    journal, _, _ = restore(again, State, recover=False)
    assert not Path(f"{again.journal}-wal").stat().st_size
    journal.close()
    again.close()
