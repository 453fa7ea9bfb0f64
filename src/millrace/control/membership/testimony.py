"""Peers as witnesses of a journal's age: what they were told became durable before, so that the journal has to know it.

A worker or consumer says which service and which life of its dispatcher it belonged to last, and what it knows from
there. All of that was so before the present life began, or the journal is an older one.
"""

from __future__ import annotations

from millrace.control.state.state import State
from millrace.protocol.messages import JoinJob, WorkerHello
from millrace.protocol.reports import Told


def told(state: State, now: float = 0.0) -> Told:
    """Make what a peer that is let in is to say when it comes back; ``now``: that it was let in is journalled."""
    return Told(state.service, state.life.name, at=now)


def of_worker(state: State, hello: WorkerHello) -> str:
    """Why the service must not go on, as a worker knows better; empty if it doesn't."""
    who = f"worker {hello.worker}"
    return _older(state, who, _lease_unknown(state, hello.told)) if _counts(state, hello.told) else ""


def of_consumer(state: State, join: JoinJob) -> str:
    """Why the service must not go on, as a consumer that comes back knows better; empty if it doesn't."""
    if not join.resume or not _counts(state, join.told):
        return ""
    who = f"consumer {join.consumer} of job {join.spec.name!r}"
    return _older(state, who, _unknown(state, join) or _lease_unknown(state, join.told))


def _counts(state: State, known: Told) -> bool:
    """Whether it was a peer of this service, and in a life before this one."""
    return bool(known.service) and known.service == state.service and known.life != state.life.name


def _lease_unknown(state: State, known: Told) -> str:
    first = state.life.first_lease
    return f"heard of lease {known.lease}, and the journal ended before lease {first}" if known.lease >= first else ""


def _unknown(state: State, join: JoinJob) -> str:
    if join.told.at > state.started:
        return f"was let in {join.told.at - state.started:.3g} s after the journal's end"
    job = state.jobs.get(join.spec.name)
    place = job.consumers.get(join.consumer) if job is not None and join.consumer is not None else None
    if job is None or place is None or job.generation != join.generation or place.client != join.client:
        return ""  # why it is refused
    if place.epoch < join.told.epoch:
        return f"has begun epoch {join.told.epoch}, and the journal knows of epoch {place.epoch} at most"
    return ""


def _older(state: State, who: str, why: str) -> str:
    if not why:
        return ""
    return (
        f"the journal is older than what this service has done since: {who} {why}. Was the folder restored from a "
        "copy? What came to consumers since would be read again. Put the newest journal in its place, or go on with "
        "this one all the same by --recover"
    )
