"""The whole state as bytes, and back: what a journal keeps in the place of the events that led there.

Fields may be added with a default, as in events; a field never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.control.state.cache_state import Caches
from millrace.control.state.ended_jobs import EndedJob, FinishedJob
from millrace.control.state.scaling_state import FleetPlan
from millrace.control.state.state import Job, Life, State, Worker
from millrace.control.state.task_state import Failed, Finished, Phase, ReaderProgress, Running, TaskState, Waiting
from millrace.errors import ProtocolError
from millrace.message_budget import MALFORMED
from millrace.planning.split_table import summaries, unpack_tables
from millrace.protocol.crash_sites import CrashSite, Poison


class Snapshot(msgspec.Struct):
    """Everything in :class:`~millrace.control.state.state.State` that follows from events."""

    jobs: dict[str, Job]
    workers: dict[str, Worker]
    clients: dict[str, tuple[str, int]]
    next_lease: int
    turns: int
    address: str = ""
    started: float = 0.0
    returning: float = 0.0
    caches: Caches = msgspec.field(default_factory=Caches)
    fleet: FleetPlan = FleetPlan()
    sizes: dict[str, int] = {}
    ended: dict[str, EndedJob] = {}
    finished: list[FinishedJob] = []
    service: str = ""
    life: Life = Life()


class TaskRecord(msgspec.Struct, array_like=True):
    """A :class:`~millrace.control.state.task_state.TaskState` as snapshots hold it, in flags.

    A task that failed is one that waits, by its record; ``Epoch.failures`` tells the two apart.
    """

    consumer: int
    run: int = -1
    worker: str = ""
    lease: int = 0
    received: int = 0
    finished: bool = False
    complete: bool = False
    leftovers: bool = False
    freed: bool = False
    deaths: int = 0
    at: CrashSite = ()
    poison: list[Poison] = []
    alone: bool = False


class SharedTaskRecord(TaskRecord, array_like=True):
    """The same of a task whose audience is not the one reader with the number of the slot.

    ``consumer`` is its slot; of ``received`` and ``complete`` there is what all readers have.
    """

    readers: dict[int, ReaderProgress] | None = None


def _record(task: Any) -> TaskRecord:
    assert isinstance(task, TaskState)
    phase = task.phase
    fields = (
        task.slot,
        task.run,
        phase.worker,
        phase.lease,
        task.received,
        task.finished,
        task.complete,
        phase.leftovers,
        task.freed,
        task.deaths,
        task.at,
        task.poison,
        task.alone,
    )
    if _has_one_reader(task):
        return TaskRecord(*fields)
    return SharedTaskRecord(*fields, readers=task.readers)


def _has_one_reader(task: TaskState) -> bool:
    """Whether a task's audience is the one reader that has the number of its slot."""
    return task.readers.keys() == {task.slot}


def _task(_kind: type, fields: Any) -> TaskState:
    record = msgspec.convert(fields, SharedTaskRecord)
    phase: Phase = Waiting(record.lease)
    if record.finished:
        phase = Finished(record.worker, record.lease, record.leftovers)
    elif record.worker:
        phase = Running(record.worker, record.lease)
    alone = {record.consumer: ReaderProgress(0, record.received, record.complete)}
    return TaskState(
        record.consumer,
        alone if record.readers is None else record.readers,
        phase,
        run=record.run,
        freed=record.freed,
        alone=record.alone,
        deaths=record.deaths,
        at=record.at,
        poison=record.poison,
    )


_encoder = msgspec.msgpack.Encoder(enc_hook=_record)
_decoder = msgspec.msgpack.Decoder(Snapshot, dec_hook=_task)


def taken(state: State) -> Snapshot:
    """Take the snapshot of a state; it shares the state's parts."""
    return Snapshot(**{name: getattr(state, name) for name in Snapshot.__struct_fields__})


def plain(state: State) -> dict[str, Any]:
    """Everything that follows from the events, as plain values that can be compared and stored."""
    found: dict[str, Any] = msgspec.to_builtins(
        taken(state), builtin_types=(bytes,), order="deterministic", enc_hook=_record
    )
    return found


def dump(state: State) -> bytes:
    """Encode the state as msgpack."""
    return _encoder.encode(taken(state))


def load(state: State, data: bytes) -> None:
    """Give a fresh state what :func:`dump` wrote.

    Raises:
        ProtocolError: these are not the bytes of a snapshot.
    """
    try:
        snapshot = _decoder.decode(data)
    except MALFORMED as error:
        raise ProtocolError(f"these bytes are no snapshot: {error}") from error
    for name in Snapshot.__struct_fields__:
        setattr(state, name, getattr(snapshot, name))
    for job in state.jobs.values():
        for epoch in job.epochs.values():
            for task in epoch.live.values() if job.windowed else ():
                task.by_any = True
                task.complete = task.is_read()
            for failed in epoch.failures:
                task = epoch.live[failed]
                task.phase = Failed(task.lease)
            for number in epoch.starts.keys() & epoch.live.keys():
                task = epoch.live[number]
                if _has_one_reader(
                    task
                ):  # else it is in the record: who came later and skips the task has read nothing of it
                    task.readers[task.slot].start = epoch.starts[number]


def fill_in(job: Job, read: Callable[[str], bytes]) -> None:
    """Make sure of a job's split tables. Snapshots of before left it to these to say what plans are made of.

    Args:
        job: of a restored state.
        read: bytes by digest.

    Raises:
        ProtocolError: these are not the bytes of split tables.
    """
    if job.tables_digest:
        data = read(job.tables_digest)
        if job.tables is None:
            job.tables = summaries(unpack_tables(data))
