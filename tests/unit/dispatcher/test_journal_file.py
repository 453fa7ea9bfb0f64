"""What a journal was given it gives back, or says what is wrong with it."""

import logging
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pytest
from tests.unit.control.control_driver import STRUCTURE, FakePlan, Service
from tests.unit.dispatcher.golden_journal import GOLDEN, live, plain

from millrace.control.journal.job_events import JobCreated, TableRecorded
from millrace.control.journal.replay import AnyEvent, apply
from millrace.control.journal.snapshot import dump
from millrace.control.journal.worker_events import WorkerAssigned, WorkerJoined, WorkerLost
from millrace.control.state.state import State
from millrace.dispatcher import recovery
from millrace.dispatcher.blob_store import BlobFolder, BlobStore
from millrace.dispatcher.journal_file import SCHEMA, SqliteJournal
from millrace.dispatcher.recovery import restore
from millrace.dispatcher.work_dir import WorkDir
from millrace.errors import ServiceError
from millrace.planning.split_table import TableSummary, pack_tables, positions_table, summaries
from millrace.protocol.job_spec import JobSpec
from millrace.wire.control.blob_transfer import digest_of


def give(journal, events, at=0.0, snapshot=None):
    journal.write(len(events), at, msgspec.msgpack.encode(events), snapshot)


def joined(*names):
    return [WorkerJoined(name, f"{name}:1") for name in names]


@pytest.fixture(autouse=True)
def _no_functions(monkeypatch):
    """The jobs of these journals have none that are kept; test_damage.py has some."""
    monkeypatch.setattr(recovery, "_functions_lost", lambda job, blobs: "")


@pytest.fixture
def work_dir(tmp_path):
    work_dir = WorkDir(str(tmp_path))
    yield work_dir
    work_dir.close()


def written(work_dir, *, snapshots=False):
    """Three groups of two workers each."""
    journal = SqliteJournal(work_dir.journal)
    state = State()
    for number in range(3):
        events = joined(f"a{number}", f"b{number}")
        for event in events:
            apply(state, event)
        give(journal, events, float(number), dump(state) if snapshots else None)
    journal.close()


def reopened(work_dir, *, recover=False):
    journal, state, at = restore(work_dir, State, recover=recover)
    journal.close()
    return sorted(state.workers), at


def spoil(work_dir, statement):
    with sqlite3.connect(work_dir.journal) as db:
        assert db.execute(statement).rowcount == 1
    db.close()


def test_events_come_back_in_order_with_the_clock(work_dir):
    written(work_dir)
    assert reopened(work_dir) == (["a0", "a1", "a2", "b0", "b1", "b2"], 2.0)
    journal, _, _ = restore(work_dir, State, recover=False)
    give(journal, joined("c"), 7.5)
    journal.close()
    assert reopened(work_dir) == (["a0", "a1", "a2", "b0", "b1", "b2", "c"], 7.5)


def test_a_snapshot_takes_the_place_of_events_and_the_one_before_stays(work_dir):
    written(work_dir, snapshots=True)
    with sqlite3.connect(work_dir.journal) as db:
        assert [row[0] for row in db.execute("SELECT sequence FROM snapshots ORDER BY 1")] == [4, 6]
        assert [row[0] for row in db.execute("SELECT first FROM groups")] == [5]
    db.close()
    assert reopened(work_dir) == (["a0", "a1", "a2", "b0", "b1", "b2"], 2.0)


@pytest.mark.parametrize(
    ("statement", "sentence", "kept"),
    [
        ("UPDATE groups SET body = x'90' WHERE first = 3", "events 3 to 4 are not what was written", "a0 b0"),
        ("UPDATE groups SET at = 9 WHERE first = 5", "events 5 to 6 are not what was written", "a0 a1 b0 b1"),
        ("DELETE FROM groups WHERE first = 1", "events 1 to 2 are missing", ""),
        ("DELETE FROM groups WHERE first = 3", "events 3 to 4 are missing", "a0 b0"),
    ],
)
def test_what_is_damaged_is_refused_and_recovered_up_to_there(work_dir, caplog, statement, sentence, kept):
    written(work_dir)
    spoil(work_dir, statement)
    with pytest.raises(ServiceError, match=rf"journal {work_dir.journal} is damaged: {sentence}\. .* with --recover"):
        reopened(work_dir)
    with caplog.at_level(logging.WARNING):
        assert reopened(work_dir, recover=True)[0] == kept.split()
    lost = 6 - len(kept.split())
    assert f"Lost: {lost} events behind it" in caplog.text
    assert Path(f"{work_dir.journal}.damaged-1").exists()
    assert reopened(work_dir)[0] == kept.split()


def test_with_a_damaged_snapshot_the_one_before_it_serves(work_dir):
    written(work_dir, snapshots=True)
    spoil(work_dir, "UPDATE snapshots SET body = x'80' WHERE sequence = 6")
    with pytest.raises(ServiceError, match="the snapshot after event 6 is not what was written"):
        reopened(work_dir)
    assert reopened(work_dir, recover=True) == (["a0", "a1", "a2", "b0", "b1", "b2"], 2.0)


def test_a_file_that_is_no_journal(work_dir, caplog):
    Path(work_dir.journal).write_bytes(b"something else, and long enough to be looked at" * 100)
    with pytest.raises(ServiceError, match="is damaged: file is not a database"):
        reopened(work_dir)
    assert reopened(work_dir, recover=True) == ([], 0.0)
    assert "Lost: what was behind it" in caplog.text


def test_a_page_in_the_middle_is_damaged(work_dir):
    journal = SqliteJournal(work_dir.journal)
    for number in range(200):
        give(journal, joined(*(f"{number} {i}" for i in range(40))))
    journal.close()
    raw = bytearray(Path(work_dir.journal).read_bytes())
    middle = len(raw) // 2 // 4096 * 4096
    raw[middle : middle + 4096] = bytes(4096)
    Path(work_dir.journal).write_bytes(raw)
    with pytest.raises(ServiceError, match="is damaged: "):
        reopened(work_dir)
    kept, _ = reopened(work_dir, recover=True)
    assert 0 < len(kept) < 8000
    assert len(kept) % 40 == 0


def test_events_that_contradict_one_another(work_dir):
    journal = SqliteJournal(work_dir.journal)
    give(journal, [*joined("a"), WorkerLost("nobody", ""), *joined("b")])
    journal.close()
    with pytest.raises(ServiceError, match=r"event 2 \(WorkerLost\) contradicts those before: KeyError\('nobody'\)"):
        reopened(work_dir)
    assert reopened(work_dir, recover=True)[0] == ["a"]


def test_a_journal_of_a_newer_version_is_refused_even_to_be_recovered(work_dir):
    written(work_dir)
    db = sqlite3.connect(work_dir.journal)
    db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    with pytest.raises(ServiceError, match=r"written by a newer version of millrace \(format 2, this one knows 1\)"):
        reopened(work_dir, recover=True)


def test_a_work_dir_has_one_dispatcher(work_dir, tmp_path):
    with pytest.raises(ServiceError, match=rf"work_dir {tmp_path} is in use by another dispatcher, process \d+; end"):
        WorkDir(str(tmp_path))
    with pytest.raises(ServiceError, match=r"work_dir .*lock cannot be used: File exists"):
        WorkDir(str(tmp_path / "lock"))


def test_only_its_own_files_of_a_work_dir_become_private(tmp_path):
    names = ("lock", "journal.db", "journal.db-wal", "journal.db.damaged-1", "run.sh", ".profile")
    for name in names:
        (tmp_path / name).touch(mode=0o755)
        (tmp_path / name).chmod(0o755)
    tmp_path.chmod(0o755)
    first = WorkDir(str(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o755  # it holds run.sh
    assert (tmp_path / "blobs").stat().st_mode & 0o777 == 0o700
    found = {name for name in names if (tmp_path / name).stat().st_mode & 0o777 == 0o600}
    assert found == {"lock", "journal.db", "journal.db-wal", "journal.db.damaged-1"}
    (tmp_path / "journal.db").chmod(0o640)
    with pytest.raises(ServiceError, match="in use by another"):
        WorkDir(str(tmp_path))
    assert (tmp_path / "journal.db").stat().st_mode & 0o777 == 0o640
    first.close()


# -- blobs -------------------------------------------------------------------------------------------------------------


def with_tables_elsewhere(work_dir):
    """A job whose split tables are in the folder of blobs; returns their digest."""
    tables = {0: positions_table(100)}
    data = pack_tables(tables)
    digest = digest_of(data)
    BlobFolder(work_dir.blobs).write(digest, data)
    state = State()
    journal = SqliteJournal(work_dir.journal)
    events = [
        *joined("w"),
        JobCreated(JobSpec("a", STRUCTURE, "bundle"), 1, "", anonymous=False, at=0.0),
        WorkerAssigned("w", "a", 0.0, ""),
        TableRecorded("a", summaries(tables), digest, 3),
    ]
    for event in events:
        apply(state, event)
    give(journal, events, snapshot=dump(state))
    journal.close()
    return digest


def test_what_plans_are_made_of_comes_back(work_dir):
    with_tables_elsewhere(work_dir)
    journal, state, _ = restore(work_dir, State, recover=False)
    journal.close()
    assert state.jobs["a"].tables == {0: TableSummary(cheap=True, count=100)}


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_job_whose_split_tables_are_lost_is_given_up(work_dir, how, caplog):
    path = Path(work_dir.blobs, with_tables_elsewhere(work_dir))
    path.unlink() if how == "missing" else path.write_bytes(b"other")
    wrong = "cannot be read: No such file" if how == "missing" else "is damaged"
    with pytest.raises(ServiceError, match=f"the split tables of job 'a' are lost: blob {path} {wrong}"):
        reopened(work_dir)
    journal, state, _ = restore(work_dir, State, recover=True)
    journal.close()
    assert not state.jobs
    assert not state.workers["w"].open
    assert "jobs that cannot go on: a." in caplog.text


def test_blobs_that_nobody_needs_are_removed_at_the_start(work_dir):
    folder = BlobFolder(work_dir.blobs)
    for data in (b"needed", b"not needed"):
        folder.write(digest_of(data), data)
    Path(work_dir.blobs, "half.written").write_bytes(b"ha")
    store = BlobStore(100, folder)
    store.adopt([("a", digest_of(b"needed")), ("b", "missing")])
    assert digest_of(b"needed") in store
    assert "missing" not in store
    assert list(folder.sizes()) == [digest_of(b"needed")]
    assert folder.read(digest_of(b"needed")) == b"needed"


# -- journals of all versions ------------------------------------------------------------------------------------------


def within(expected, actual):
    """``actual`` has all that ``expected`` has; it may have fields that are newer."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            key in actual and within(value, actual[key]) for key, value in expected.items()
        )
    if isinstance(expected, list) and expected and isinstance(actual, list) and len(actual) > len(expected):
        return actual[: len(expected)] == expected  # a struct kept as an array
    return expected == actual


KEPT = sorted(GOLDEN.glob("*.db"))


def summed_up(state):
    """A state of a version that kept whole split tables, with what plans are made of in their place."""
    for job in state["jobs"].values():
        tables = msgspec.convert(job["tables"], dict[int, TableSummary] | None, strict=False)
        job["tables"] = msgspec.json.decode(msgspec.json.encode(tables))
    return state


@pytest.mark.parametrize("snapshot", [True, False])
@pytest.mark.parametrize("golden", KEPT, ids=lambda path: path.stem)
def test_a_journal_of_an_earlier_version_is_understood(work_dir, golden, snapshot, monkeypatch):
    monkeypatch.setattr(BlobFolder, "read", lambda _folder, _digest: b"")  # blobs are not kept with the journals
    shutil.copy(golden, work_dir.journal)
    if not snapshot:
        spoil(work_dir, "DELETE FROM snapshots")
    fresh = Service(FakePlan(13, 4)).fresh_state
    journal, state, _ = restore(work_dir, fresh, recover=False)
    journal.close()
    expected = summed_up(msgspec.json.decode(golden.with_suffix(".json").read_bytes()))
    assert within(expected, plain(state))


def test_some_kept_journal_has_every_kind_of_event(work_dir):
    kinds = set()
    for golden in KEPT:
        with sqlite3.connect(f"file:{golden}?mode=ro", uri=True) as db:
            for (body,) in db.execute("SELECT body FROM groups"):
                kinds |= {event["type"] for event in msgspec.msgpack.decode(body)}
        db.close()
    assert kinds == {kind.__struct_config__.tag for kind in AnyEvent.__args__}


def test_a_life_is_the_same_read_from_its_journal():
    service = live()
    assert plain(service.replayed()) == plain(service.state) == plain(service.restored())
