"""Recovery of a dispatcher's state from its work_dir."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sqlite3
from collections.abc import Callable

from millrace.control.journal.replay import apply
from millrace.control.journal.snapshot import dump, fill_in, load
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.jobs import remove_job
from millrace.control.state.observed import Observed
from millrace.control.state.state import Job, State
from millrace.dispatcher.blob_store import BlobFolder
from millrace.dispatcher.journal_file import JournalContents, SqliteJournal, move_journal, remove_journal, set_aside
from millrace.dispatcher.shortage import ShortageError, UnwritableError, unusable
from millrace.dispatcher.work_dir import WorkDir
from millrace.errors import ProtocolError, ServiceError

NUMBERS_SKIPPED = 1 << 32
"""Numbers of leases and turns to skip where a journal may be older than what was done since: none comes twice."""
NEW_SUFFIX = ".new"
"""Suffix of the name of a journal that is to take another one's place."""

_logger = logging.getLogger(__name__)


def restore(work_dir: WorkDir, fresh: Callable[[], State], *, recover: bool) -> tuple[SqliteJournal, State, float]:
    """Restore (journal to go on with, state that it gives, the dispatcher's clock at its end in seconds).

    Args:
        work_dir: folder of the journal.
        fresh: returns an empty state.
        recover: of a damaged journal keep what is good up to the first thing that is wrong; the damaged file is
            renamed and stays.

    Raises:
        ShortageError: there is no room for it now, or no descriptor.
        ServiceError: the journal is damaged, or of a newer version.
    """
    blobs = BlobFolder(work_dir.blobs)
    try:
        _finish_exchange(work_dir.journal)
    except OSError as error:
        raise _unwritable(work_dir, error) from error
    gone = _journal_lost(work_dir.journal, blobs)
    journal, past = _open(work_dir.journal)
    past.damage = gone or past.damage
    try:
        state, damage = rebuild(fresh, past)
        damage = past.damage or damage
        missing = {job.name: why for job in state.jobs.values() if (why := _missing(job, blobs))}
        if recover:
            fence_off_newer(state)
        if journal is not None and not (damage or missing):
            journal.begin()
            if recover:
                journal.write(0, past.at, b"", dump(state))
            return journal, state, past.at
    except BaseException as error:
        if journal is not None:
            journal.close()
        if isinstance(error, OSError | UnwritableError):
            raise _unwritable(work_dir, error) from error
        raise
    if journal is not None:
        journal.close()
    damage = damage or next(iter(missing.values()))
    if not recover:
        raise ServiceError(
            f"the journal {work_dir.journal} is damaged: {damage}. Start the dispatcher with --recover to keep what is "
            f"good up to there, with another --work-dir to start anew, or put a copy of the file in its place"
        )
    for name, why in missing.items():
        remove_job(Transaction(state, Observed(), past.at), state.jobs[name], why)
    try:
        journal, aside = _replace_journal(work_dir.journal, past.at, dump(state))
    except (OSError, sqlite3.Error, UnwritableError) as error:
        raise _unwritable(work_dir, error) from error
    _logger.warning(
        "the journal was damaged: %s. Kept: everything before that, with %d jobs (%s). Lost: %s; jobs that cannot go "
        "on: %s. The damaged file is now %s",
        damage,
        len(state.jobs),
        ", ".join(state.jobs) or "none",
        f"{past.lost} events behind it" if past.lost else "what was behind it, if anything was",
        ", ".join(missing) or "none",
        aside,
    )
    return journal, state, past.at


def _replace_journal(path: str, at: float, snapshot: bytes) -> tuple[SqliteJournal, str]:
    """Make a journal of this snapshot in the place of the one there; return it with the new name of the other one.

    The other one moves once the new one is whole, which it is from when it has its second name; a start that finds it
    under that name goes on with it.
    """
    draft = f"{path}.draft"
    remove_journal(draft)
    try:
        journal = SqliteJournal(draft)
        try:
            journal.begin()
            journal.write(0, at, b"", snapshot)
        finally:
            journal.close()
    except BaseException:
        with contextlib.suppress(OSError):
            remove_journal(draft)
        raise
    move_journal(draft, path + NEW_SUFFIX)
    aside = _exchange(path)
    journal = SqliteJournal(path)
    try:
        journal.read()
        journal.begin()
    except BaseException:
        journal.close()
        raise
    return journal, aside


def _exchange(path: str) -> str:
    """Put the new journal in the place of the one there, if that still is; return that one's new name, or ""."""
    aside = set_aside(path) if os.path.exists(path) else ""
    move_journal(path + NEW_SUFFIX, path)
    return aside


def _finish_exchange(path: str) -> None:
    """Finish putting a new journal in the place of a damaged one, which an earlier dispatcher did not."""
    if os.path.exists(path + NEW_SUFFIX):
        aside = _exchange(path)
        _logger.warning(
            "%s was to take its place when the dispatcher that was to go on with it (--recover) ended: it is now %s%s",
            path + NEW_SUFFIX,
            path,
            f", and the damaged one {aside}" if aside else "",
        )


def _unwritable(work_dir: WorkDir, error: OSError | sqlite3.Error | UnwritableError) -> ServiceError:
    what = f"work_dir {work_dir.path} cannot be written"
    return ShortageError(f"{what}: {error}") if isinstance(error, UnwritableError) else unusable(what, error)


def _journal_lost(path: str, blobs: BlobFolder) -> str:
    """Say that there was a journal and is none any more; empty if there is one, or never was."""
    if os.path.exists(path) and os.path.getsize(path):
        return ""
    traces = [name for name in (f"{path}-wal", f"{path}-last") if os.path.exists(name)]
    if not (traces or blobs.sizes()):
        return ""
    return f"it is {'empty' if os.path.exists(path) else 'gone'}, though {(traces or [blobs.path])[0]} is there"


def _open(path: str) -> tuple[SqliteJournal | None, JournalContents]:
    try:
        journal = SqliteJournal(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise unusable(f"the journal {path} cannot be opened", error) from error
    except sqlite3.DatabaseError as error:
        return None, JournalContents(damage=str(error))
    try:
        return journal, journal.read()
    except OSError as error:
        journal.close()
        raise unusable(f"the journal {path} cannot be read", error) from error


def fence_off_newer(state: State) -> None:
    """Make whatever was done since this state another service's, which proves nothing to this one."""
    state.next_lease += NUMBERS_SKIPPED
    state.turns += NUMBERS_SKIPPED
    state.service = ""


def rebuild(fresh: Callable[[], State], past: JournalContents) -> tuple[State, str]:
    """Rebuild the state from what is good; return it with what is wrong with the first thing that isn't."""
    state = fresh()
    try:
        if past.snapshot is not None:
            load(state, past.snapshot)
    except ProtocolError as error:
        return fresh(), f"the snapshot after event {past.base} is not understood: {error}"
    events = [event for group in past.events for event in group]
    for number, event in enumerate(events):
        try:
            apply(state, event)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            # It may have been applied by half.
            good, _ = rebuild(fresh, dataclasses.replace(past, events=[events[:number]]))
            return good, f"event {past.base + number + 1} ({type(event).__name__}) contradicts those before: {error!r}"
    return state, ""


def _missing(job: Job, blobs: BlobFolder) -> str:
    """Say what the job needs and is not in the work_dir; empty if all is there."""
    return _lost("split tables", job, lambda: fill_in(job, blobs.read)) or _functions_lost(job, blobs)


def _functions_lost(job: Job, blobs: BlobFolder) -> str:
    """Look for functions now: nothing else reads them before a worker asks, which may be long after."""
    return _lost("functions", job, lambda: blobs.read(job.spec.bundle))


def _lost(what: str, job: Job, look: Callable[[], object]) -> str:
    try:
        look()
    except ShortageError:
        raise
    except ServiceError as error:
        return f"the {what} of job {job.name!r} are lost: {error}"
    return ""
