"""The whole state as bytes, and back: what a journal keeps in the place of the events that led there.

Fields may be added with a default, as in events; a field never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millrace.control.state.cache_state import Caches
from millrace.control.state.scaling_state import FleetPlan
from millrace.control.state.state import EndedJob, Job, Life, State, Worker
from millrace.planning.split_table import summaries, unpack_tables


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
    service: str = ""
    life: Life = Life()


_decoder = msgspec.msgpack.Decoder(Snapshot)


def dump(state: State) -> bytes:
    """The state as msgpack."""
    return msgspec.msgpack.encode(Snapshot(**{name: getattr(state, name) for name in Snapshot.__struct_fields__}))


def load(state: State, data: bytes) -> None:
    """Gives a fresh state what :func:`dump` wrote.

    Raises:
        msgspec.MsgspecError: these are not the bytes of a snapshot.
    """
    snapshot = _decoder.decode(data)
    for name in Snapshot.__struct_fields__:
        setattr(state, name, getattr(snapshot, name))


def fill_in(job: Job, read: Callable[[str], bytes]) -> None:
    """Makes sure of a job's split tables. Snapshots of before left it to these to say what plans are made of.

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
