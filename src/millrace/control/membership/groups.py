"""Groups: jobs that are alike and share one computation. Each is a member, which is a reader of the group's slot.

A group is one job of the control plane. Its name follows from what has to be alike, so that nobody has to agree on it.
Members come and go at any time; each has an index that nobody had before. All get all of an epoch that they begin, as
nothing is let go of before all have it (``docs/design/0017-sharing.md``).
"""

from __future__ import annotations

import hashlib

import msgspec

from millrace.control.actions import EndService
from millrace.control.inputs import JoinRequested
from millrace.control.journal.consumer_events import ConsumerJoined
from millrace.control.journal.transaction import Transaction
from millrace.control.membership import testimony
from millrace.control.membership.admission import (
    Refused,
    check_failed,
    check_generation,
    check_new,
    check_spec,
)
from millrace.control.membership.jobs import consumer_gone, create, refuse, remove_job, tell_audience
from millrace.control.state.state import Job
from millrace.control.tasks.epochs import send_epoch
from millrace.control.tasks.leases import revoke
from millrace.graph import serialize
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec

DIGITS = 16
"""Of a group's key that are in its name."""


def group_key(spec: JobSpec) -> str:
    """Make the key of the group that a job with this specification is a member of, in hexadecimal digits.

    All that a job asks for has to be alike, but for its name and for how many epochs it reads: who computes with other
    priorities, or for other tenants, computes for itself. Files are named by the sources' parameters; what is in them
    is known once somebody has listed them, which happens once for the group.
    """
    bundle = "" if spec.functions else spec.bundle
    alike = msgspec.structs.replace(spec, name="", structure=b"", bundle=bundle, epochs=None)
    parts = msgspec.msgpack.encode([serialize.digest(spec.structure), alike])
    return hashlib.blake2b(parts, digest_size=32).hexdigest()


def group_spec(spec: JobSpec) -> JobSpec:
    """Make the specification of the group: its own name, and as many epochs as its members come to read."""
    name = f"{spec.sharing}-{group_key(spec)[:DIGITS]}"
    return msgspec.structs.replace(spec, name=name, num_consumers=None, epochs=None)


def join(tx: Transaction, item: JoinRequested) -> None:
    """Let a client be a member of the group that its job belongs to: begin the group or join it, or refuse."""
    message = item.message
    older = testimony.of_consumer(tx.state, message)
    if older:
        tx.act(EndService(older))
        return
    name = message.spec.name or item.job
    try:
        check_spec(tx.state.settings, message)
        spec = message.spec if message.resume else group_spec(message.spec)
        job = _group_there(tx, spec, message)
        number = _find_member(tx, job, name, message)
    except Refused as refused:
        refuse(tx, message.client, refused.failure)
        return
    if number is not None and job is not None:
        _came_back(tx, job, number, message)
        return
    former = None if job is None else next((i for i, each in job.consumers.items() if each.member == name), None)
    if job is not None and former is not None:
        consumer_gone(tx, job, former, "was lost, and another process came under its name")
        job = tx.state.jobs.get(spec.name)  # which may have been over with it
    if job is None:
        job = create(tx, spec, item)
    first, number = first_epoch(job), max([*job.consumers, *job.left], default=-1) + 1
    there = msg.JoinJob(spec, message.client, number, host=message.host, pid=message.pid)
    tx.emit(
        ConsumerJoined(job.name, number, there.client, first - 1, there.host, there.pid, past=first - 1, member=name)
    )
    for epoch in [each for each in job.epochs if first <= each <= job.newest]:
        for task, live in list(job.epochs[epoch].live.items()):
            if live.worker:  # what others have of it may have been let go of
                revoke(tx, job, epoch, task, f"member {number} came, and lacks what others have")
    tell_audience(tx, job)
    _let_in(tx, job, number)


def first_epoch(job: Job) -> int:
    """Find the epoch that a member begins with who comes now: one of which nothing is over.

    Of the newest epoch that somebody has begun some tasks may have been read by all; who comes then could not have
    them, and begins with the next one.
    """
    epoch = job.epochs.get(job.newest)
    return max(0, job.newest + (epoch is not None and epoch.done > 0))


def _group_there(tx: Transaction, spec: JobSpec, message: msg.JoinJob) -> Job | None:
    """Find the group that a client joins; None if it begins one."""
    job = tx.state.jobs.get(spec.name)
    if job is not None and job.failure is not None:
        check_failed(job, message)
        remove_job(tx, job, "it had failed and was started again")
        job = None
    if job is None:
        check_new(tx.state.settings, spec, message)
        return None
    check_generation(job, message)
    return job


def _find_member(tx: Transaction, job: Job | None, name: str, message: msg.JoinJob) -> int | None:
    """Find the member that a client is already; None if it becomes a new one.

    Raises:
        Refused: another process is this member, or the client is none any more.
    """
    places = {} if job is None else job.consumers
    for number, place in places.items():
        if place.client == message.client:
            return number
    if message.resume:
        raise Refused.because(
            "JobFailedError",
            f"this process was away from job {message.spec.name!r} for too long, and the others have read on without "
            "it; load its state, and it goes on alone, or start its training loop again",
        )
    for place in places.values():
        if place.member == name and place.lost_at is None:
            raise Refused.because(
                "ConsumerConflictError",
                f"job {name!r} is being read already by process {place.pid} on {place.host or 'another host'}, in "
                "a group of jobs that share their computation; give each job a job_name of its own, or close the "
                "other one",
            )
    return None


def _came_back(tx: Transaction, job: Job, number: int, message: msg.JoinJob) -> None:
    """Go on with a member whose session broke."""
    place = job.consumers[number]
    where = place.epoch, message.host, message.pid
    tx.emit(ConsumerJoined(job.name, number, message.client, *where, past=place.past, member=place.member))
    _let_in(tx, job, number)
    send_epoch(tx, job, number)


def _let_in(tx: Transaction, job: Job, number: int) -> None:
    settings, epoch = tx.state.settings, job.consumers[number].epoch
    joined = msg.JobJoined(job.name, number, job.seed, settings.heartbeat_s, epoch, job.generation)
    tx.to_consumer(job, number, msgspec.structs.replace(joined, told=testimony.told(tx.state, tx.now)))
