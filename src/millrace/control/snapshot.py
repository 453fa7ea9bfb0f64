"""The whole state as bytes, and back: what a journal keeps in the place of the events that led there.

Fields may be added with a default, as in events; a field never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import msgspec

from millrace.control.cached import Caches
from millrace.control.scaled import FleetPlan
from millrace.control.state import EndedJob, Job, State, Worker
from millrace.planning.tables import SplitTable


class Snapshot(msgspec.Struct):
    """Everything in :class:`~millrace.control.state.State` that follows from events."""

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
    service: str = ""


_decoder = msgspec.msgpack.Decoder(Snapshot)
_tables = msgspec.msgpack.Decoder(dict[int, SplitTable])


def dump(state: State, stored: Container[str] = ()) -> bytes:
    """The state as msgpack.

    Args:
        state: of the dispatcher.
        stored: digests of split tables that are kept elsewhere; only their digests are written, as tables are large
            and never change.
    """
    jobs = {
        name: msgspec.structs.replace(job, tables=None) if job.tables_digest in stored else job
        for name, job in state.jobs.items()
    }
    fields = {name: getattr(state, name) for name in Snapshot.__struct_fields__ if name != "jobs"}
    return msgspec.msgpack.encode(Snapshot(jobs, **fields))


def load(state: State, data: bytes) -> None:
    """Gives a fresh state what :func:`dump` wrote; tables kept elsewhere are still to be filled in.

    Raises:
        msgspec.MsgspecError: these are not the bytes of a snapshot.
    """
    snapshot = _decoder.decode(data)
    for name in Snapshot.__struct_fields__:
        setattr(state, name, getattr(snapshot, name))


def fill_in(job: Job, read: Callable[[str], bytes]) -> None:
    """Gives a job its split tables, if they are kept elsewhere.

    Args:
        job: of a restored state.
        read: bytes by digest.

    Raises:
        msgspec.MsgspecError: these are not the bytes of split tables.
    """
    if job.tables is None and job.tables_digest:
        job.tables = _tables.decode(read(job.tables_digest))
