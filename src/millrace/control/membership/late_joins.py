"""Ranks that come late: jobs that are kept for them, and what is remembered of jobs that are over.

What a late rank reads is its part of every epoch that the others read, or it is told that this part is gone. It is
never dealt anew without a word, as the others would not get what it does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.control.membership.admission import Refused, same_job
from millrace.control.state.ended_jobs import EndedJob
from millrace.control.state.state import Job, State
from millrace.control.tasks.slots import missing
from millrace.control.tasks.task_queue import held_back
from millrace.control.tasks.unread import NAMED
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import Failure, JoinJob


def named(consumers: Sequence[int]) -> str:
    """``consumer 1``, ``consumers 1, 2``; of many, the first ones and how many there are."""
    some = ", ".join(map(str, consumers[:NAMED]))
    if len(consumers) > NAMED:
        return f"consumers {some}, ... ({len(consumers)} in all)"
    return f"consumer{'s' if len(consumers) != 1 else ''} {some}"


def span(seconds: float) -> str:
    """``40 s``, ``5 min``."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def waits_for_others(job: Job) -> bool:
    """Whether a job that nobody reads is kept: something was read, and expected consumers were never seen."""
    begun = bool(job.epochs or job.states) or job.newest >= 0
    return begun and bool(missing(job)) and job.failure is None and not job.anonymous


def over_since(state: State, job: Job, now: float) -> str:
    """Why a job that is kept for late ranks is removed now; empty while it is kept."""
    grace = state.settings.job_gc_timeout_s
    if job.kept_at is None or now - job.kept_at <= grace or state.may_return(job.kept_at, now):
        return ""
    who = "no other job that shares its window" if job.windowed else named(missing(job))
    return f"{who} {'came' if job.windowed else 'did not come'} within {grace:g} s after the others had left"


def another_run(job: Job, spec: JobSpec, message: JoinJob) -> str:
    """Sentence for who begins a kept job anew; empty if it is a rank that the job is kept for.

    A consumer that had left in good order and comes when nobody reads is the next run of a training script, and so is
    one that asks for something else.
    """
    if job.kept_at is None or message.resume:
        return ""
    why = f"{named([message.consumer])} had left it" if message.consumer in job.left else ""
    try:
        same_job(job, spec)
    except Refused:
        why = why or "this process asks for another pipeline or other parameters"
    if not why:
        return ""
    return (
        f"job {job.name!r} begins anew, as {why}: its former run was kept for {named(missing(job))}, which had not "
        "come yet, and is void now. Start all consumers of this run; runs side by side need a job_name each"
    )


def late_for(state: State, spec: JobSpec, message: JoinJob, now: float) -> str:
    """Sentence for who begins a job under the name of one that is over and that it may have been part of.

    Raises:
        Refused: it was part of that one without doubt, and what it was to read has gone.
    """
    ended = state.ended.get(spec.name)
    if ended is None or message.states:
        return ""
    older = message.age_s >= 0 and now - message.age_s < ended.at
    if spec.num_consumers is None:
        recent = now - ended.at <= state.settings.job_gc_timeout_s
        return _uncounted(ended, spec, now) if recent and _may_be_late(ended, message, older=older) else ""
    if not ended.absent or message.consumer in ended.readers:
        return ""
    ago = f"job {spec.name!r} ended {span(now - ended.at)} ago, as {ended.reason}"
    if older and spec.num_consumers == ended.num_consumers:
        raise Refused(
            Failure(
                "JobFailedError",
                f"{ago}: this process is too late, and what was kept for it has gone. Start all consumers again; a "
                "process that asks a second time, such as a notebook, begins the job anew. The dispatcher waits longer "
                "with --job-gc-timeout",
            )
        )
    return f"{ago}; this process begins it anew. If it belongs to that run, end it and start all consumers again"


def _may_be_late(ended: EndedJob, message: JoinJob, *, older: bool) -> bool:
    """Whether a process is a consumer that the job never had, or was there before its end and did not read it."""
    another = older and (message.host, message.pid) not in ended.readers.values()
    return another or (message.consumer is not None and message.consumer not in ended.readers)


def _uncounted(ended: EndedJob, spec: JobSpec, now: float) -> str:
    return (
        f"job {spec.name!r} had ended {span(now - ended.at)} before this process came, which begins it anew and reads "
        "all of it. If this is one of several consumers of one training, say num_consumers= in distribute(), so that "
        "the job waits for all of them; else give each run a job_name of its own"
    )


def epoch_of_late(job: Job) -> int:
    """Find the epoch with which a consumer begins that nobody expected: one that others read, and none that is over.

    Who came late itself, and has not begun it yet, has the number before it.
    """
    last = (place.epoch for place in job.consumers.values() if place.epoch >= 0)
    return min((number + _was_closed(job, number) for number in last), default=0)


def _was_closed(job: Job, epoch: int) -> bool:
    """Whether an epoch was read and closed, rather than not opened yet."""
    return epoch not in job.epochs and any(other > epoch for other in job.epochs)


def goes_behind(job: Job, message: JoinJob) -> bool:
    """Whether others take steps that were counted without who comes now, so that it has no part in their epochs."""
    return bool(job.spec.coordinated) or (held_back(job) and job.tables is not None and not message.states)


def behind(job: Job, consumer: int, epoch: int) -> str:
    """Say where a rank begins that takes the place of one that had left the others."""
    return (
        f"consumer {consumer} of job {job.name!r} had left, and the others read on without it: this process begins "
        f"with epoch {epoch + 1}, as all ranks take each step together. To begin anew end the others, or say "
        "another job_name"
    )
