"""Groups: jobs that are alike and share one computation. Each is a member, which is a reader of the group's slot.

A group is one job of the control plane. Its name follows from what has to be alike, so that nobody has to agree on it.
Members come and go at any time; each has an index that nobody had before. All get all of an epoch that they begin, as
nothing is let go of before all have it (``docs/design/0017-sharing.md``). Where reads are coordinated a member has a
reader for each of its ranks. They come and go together: who comes first waits until all are there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from millrace.control.inputs import JoinRequested
from millrace.control.journal.consumer_events import ConsumerJoined
from millrace.control.journal.transaction import Transaction
from millrace.control.membership import access, gathering, job_quotas, testimony
from millrace.control.membership.admission import (
    Refused,
    check_failed,
    check_generation,
    check_new,
    check_spec,
    known_place,
)
from millrace.control.membership.jobs import consumer_gone, create, refuse, remove_job, tell_audience
from millrace.control.state.state import Epoch, Job
from millrace.control.tasks import group_progress
from millrace.control.tasks.epochs import close_epochs, send_epoch
from millrace.control.tasks.leases import discard_outputs, revoke, stays_over
from millrace.graph import serialize
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec

DIGITS = 16
"""Of a group's key that are in its name."""


def group_key(spec: JobSpec, reads: Sequence[str] = ()) -> str:
    """Make the key of the group that a job with this specification is a member of, in hexadecimal digits.

    ``reads``: tenants whose blocks it may read beside those that its tenant trusts.

    All that a job asks for has to be alike, but for its name and for how many epochs it reads: who computes with other
    priorities, or for other tenants, computes for itself. Files are named by the sources' parameters; what is in them
    is known once somebody has listed them, which happens once for the group.
    """
    bundle = "" if spec.functions else spec.bundle
    alike = msgspec.structs.replace(spec, name="", structure=b"", bundle=bundle, epochs=None)
    parts = msgspec.msgpack.encode([serialize.digest(spec.structure), alike, *sorted(reads)])
    return hashlib.blake2b(parts, digest_size=32).hexdigest()


def group_spec(spec: JobSpec, reads: Sequence[str] = ()) -> JobSpec:
    """Make the specification of the group: its own name, and as many epochs as its members come to read."""
    name = f"{spec.sharing}-{group_key(spec, reads)[:DIGITS]}"
    ranks = spec.num_consumers if spec.coordinated else None
    return msgspec.structs.replace(spec, name=name, num_consumers=ranks, epochs=None)


def join(tx: Transaction, item: JoinRequested) -> None:
    """Let a client be a member of the group that its job belongs to: begin the group or join it, or refuse."""
    caller = item.caller
    name = item.message.spec.name or item.job
    try:
        message = access.own_tenant(caller, item.message, None)
        check_spec(tx.state.settings, message)
        spec = message.spec if message.resume else group_spec(message.spec, caller.rights.read)
        access.check_group(caller, tx.state.jobs.get(spec.name), spec, list(caller.rights.read))
        job = _group_there(tx, spec, message)
        number = _find_member(tx, job, name, message)
        if number is None:
            job_quotas.check_room(tx, spec.tenant, (spec.name, name))
    except Refused as refused:
        refuse(tx, item.message.client, _detached(tx, item.message) or refused.failure)
        return
    if number is not None and job is not None:
        _came_back(tx, job, number, message)
        return
    _void(tx, job, name, message.consumer if spec.coordinated else None)
    ranks = gathering.gather(tx, spec, name, msgspec.structs.replace(item, message=message))
    if ranks:
        _begin(tx, spec, name, ranks)


def _void(tx: Transaction, job: Job | None, name: str, rank: int | None) -> None:
    """Take the place from who was this member, and was lost, with all its ranks."""
    while job is not None and job.name in tx.state.jobs:
        places = job.consumers.items()
        lost = [i for i, each in places if each.member == name and rank in (None, job.spec.rank(i))]
        if not lost:
            return
        consumer_gone(tx, job, lost[0], "was lost, and another process came under its name")


def _begin(tx: Transaction, spec: JobSpec, name: str, ranks: Sequence[JoinRequested]) -> None:
    """Have a member read that has come with all its ranks."""
    _void(tx, tx.state.jobs.get(spec.name), name, None)  # what was left of it when others came
    job = tx.state.jobs.get(spec.name) or create(tx, spec, ranks[0])
    first, newest, late = first_epoch(job), job.newest, is_late(job)
    gone = [] if job.windowed else _let_go_of(job, first)
    numbers = range(-(-_unused(job) // len(ranks)) * len(ranks), 1 << 62)
    readers = list(zip(numbers, ranks, strict=False))
    for number, item in readers:
        there = item.message
        tx.emit(
            ConsumerJoined(
                job.name,
                number,
                there.client,
                first - 1,
                there.host,
                there.pid,
                past=first - 1,
                member=name,
                since=tx.now,
            )
        )
        group_progress.joined(tx, job, number)
    # What lay in windows, kept for whoever might come, may be of epochs before the one where this member begins.
    close_epochs(tx, job)
    skipped = [(each, task) for each in job.epochs for task in job.epochs[each].skips.get(readers[0][0], ())]
    for epoch, task in gone:
        if (epoch, task) not in skipped:
            revoke(tx, job, epoch, task, f"member {readers[0][0]} came, and lacks what others have")
    job_quotas.take_place(tx, spec.tenant, spec.name, name)
    tell_audience(tx, job)
    for epoch, task in skipped:
        discard_outputs(tx, job, epoch, task)
    for number, _ in readers:
        _let_in(tx, job, number, newest, late=late)


def _let_go_of(job: Job, first: int) -> list[tuple[int, int]]:
    """List (epoch, task) of what workers have, from this epoch on, of which all members there are have outputs.

    These are gone, or will not come, as they were leased for what is behind these. What workers let go of besides that
    they know before anybody else does: they give it back when a member asks for it.
    """
    tasks = [(number, task, live) for number, epoch in job.epochs.items() for task, live in epoch.live.items()]
    had = ((number, task) for number, task, live in tasks if live.worker and (live.complete or live.received))
    return [(number, task) for number, task in had if number >= first]


def _unused(job: Job) -> int:
    """Find the lowest index from which on nobody has had any."""
    return max([*job.consumers, *job.left], default=-1) + 1


def _detached(tx: Transaction, message: msg.JoinJob) -> msg.Failure | None:
    """Word for a member that comes back to a group which has gone on, or is over: it can go on alone."""
    job = tx.state.jobs.get(message.spec.name)
    if not message.resume or (job is not None and job.failure is not None):
        return None
    return msg.Failure(
        "DetachedError",
        "this process was away for too long from the jobs that it shares its computation with: they have gone on "
        "without it, or are over",
    )


def first_epoch(job: Job) -> int:
    """Find the epoch that a member begins with who comes now: one of which nothing is over.

    Of the newest epoch that somebody has begun some tasks may have been read by all; who comes then could not have
    them, and begins with the next one. With a window it has what is left, if some is still to come: who came for the
    last few outputs alone would have an epoch that is hardly one. Where that is made up for from the next one, they do.
    """
    epoch = job.epochs.get(job.newest)
    if epoch is None:
        return max(0, job.newest)
    over = epoch.done > 0
    if job.windowed:
        kept = job.spec.visitation == "zero_once_or_more" and bool(epoch.live)
        over = epoch.settled and not kept and not any(_to_come(job, epoch, task) for task in epoch.live)
    if job.skipping and job.tasks_of(epoch) is not None:
        over = over and epoch.settled  # who comes skips what workers have
    return max(0, job.newest + over)


def _to_come(job: Job, epoch: Epoch, task: int) -> bool:
    """Whether something of a task of a window is still to be computed.

    Its worker may not have said yet that the run has ended, of which a member has all, or had before it left.
    """
    return not (stays_over(job, epoch.live[task]) or task in epoch.outputs)


def is_late(job: Job) -> bool:
    """Whether who comes now has to wait until others have read the epoch that is under way, if it is to share."""
    epoch = job.epochs.get(job.newest)
    waits = job.spec.sharing == "lockstep" or (job.skipping and job.length is None)
    return waits and first_epoch(job) > job.newest >= 0 and epoch is not None and bool(epoch.live or not epoch.settled)


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
    known = known_place(places, message, "the others have read on without it; load its state, and it goes on alone, or")
    if known is not None:
        return known
    for number, place in places.items():
        rank = message.consumer if message.spec.coordinated else 0
        if place.member == name and place.lost_at is None and job is not None and job.spec.rank(number) == rank:
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
    tx.emit(
        ConsumerJoined(
            job.name,
            number,
            message.client,
            *where,
            past=place.past,
            member=place.member,
            since=place.since,
        )
    )
    _let_in(tx, job, number)
    send_epoch(tx, job, number)


def _let_in(tx: Transaction, job: Job, number: int, newest: int = -1, *, late: bool = False) -> None:
    settings, epoch = tx.state.settings, job.consumers[number].epoch
    there = {"newest": newest, "late": late}
    joined = msg.JobJoined(job.name, number, job.seed, settings.heartbeat_s, epoch, job.generation)
    tx.to_consumer(job, number, msgspec.structs.replace(joined, told=testimony.told(tx.state, tx.now), **there))
