"""Quotas of jobs: how many a tenant may have at once. A refusal changes nothing, and says what to do.

A member of a group that is detached is the same job where it goes on alone. It comes to that once it has used what it
has, so that its place is kept until then, as long as the place of a job that nobody reads. What is kept is observed.
"""

from __future__ import annotations

from millrace.control.journal.transaction import Transaction
from millrace.control.membership import access
from millrace.control.membership.admission import Refused
from millrace.control.membership.late_joins import span
from millrace.control.state.observed import KeptPlace
from millrace.control.state.state import Job
from millrace.protocol.caller import Caller
from millrace.protocol.job_spec import ALONE, JobSpec

NAMED = 5
"""Of the tenant's jobs that a refusal names."""


def check_begin(
    tx: Transaction, caller: Caller, spec: JobSpec, there: Job | None = None, doing: str = "begin anew"
) -> None:
    """Refuse who may not begin the job, or not one more; with another life of it ``there``, in that one's place."""
    access.check_begin(caller, spec, there, doing)
    check_room(tx, spec.tenant, (spec.name, ""))


def check_room(tx: Transaction, tenant: str, job: tuple[str, str]) -> None:
    """Refuse a job, or a member of a group, if its tenant has as many as it may have besides."""
    quota = tx.state.settings.job_quotas.get(tenant)
    if quota is None:
        return
    there = jobs_of(tx, tenant)
    for own in (job, *_places(tx, tenant, *job)):
        there.pop(own, None)
    if len(there) >= quota:
        names = [f"{name!r}{why}" for name, why in sorted(there.values())]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise Refused.because(
            "AccessDeniedError",
            f"tenant {tenant!r} has {len(names)} job{'s' if len(names) > 1 else ''} and may have {quota} at once "
            f"(--quota-jobs {tenant}={quota} of the dispatcher): {', '.join(names[:NAMED])}{more}. End one of them, or "
            "wait until one is over; whoever runs the service can allow more",
        )


def jobs_of(tx: Transaction, tenant: str) -> dict[tuple[str, str], tuple[str, str]]:
    """List a tenant's jobs, by job and member: what a user calls each, and what else is to be said of it.

    Each member of a group is a job, from when its first rank has come. Those that have failed are none any more.
    """
    found = {}
    for job in tx.state.jobs.values():
        if job.spec.tenant != tenant or job.failure is not None:
            continue
        if not job.spec.sharing:
            found[job.name, ""] = job.name, _deserted(tx, job)
        for place in job.consumers.values() if job.spec.sharing else ():
            found[job.name, place.member] = place.member, ""
    for (group, member), kept in tx.observed.kept_places.items():
        if kept.tenant == tenant and kept.until > tx.now and (group, member) not in found:
            alone = "it was detached from those that it shared with, and may go on alone within"
            found[group, member] = member, f" ({alone} {span(kept.until - tx.now)})"
    for (group, member), waiting in tx.observed.gathering.items():
        if any(each.message.spec.tenant == tenant for each in waiting.ranks.values()):
            found[group, member] = member, ""
    return found


def keep_place(tx: Transaction, job: Job, member: str) -> None:
    """Keep the place of a member of a group that is being detached; forget those that were kept for long enough."""
    kept = {key: each for key, each in tx.observed.kept_places.items() if each.until > tx.now}
    kept[job.name, member] = KeptPlace(job.spec.tenant, tx.now + tx.state.settings.job_gc_timeout_s)
    tx.observed.kept_places = kept


def take_place(tx: Transaction, tenant: str, job: str, member: str = "") -> None:
    """Keep no place any more for who has gone on: with a job of its own, or as a member of its group."""
    for key in _places(tx, tenant, job, member):
        del tx.observed.kept_places[key]


def _places(tx: Transaction, tenant: str, job: str, member: str) -> list[tuple[str, str]]:
    """List the places that are kept for a tenant's job, or for a member of a group."""
    kept = [key for key, place in tx.observed.kept_places.items() if place.tenant == tenant]
    return [key for key in kept if key == (job, member) or (not member and job.startswith(f"{key[1]}{ALONE}"))]


def _deserted(tx: Transaction, job: Job) -> str:
    """Say until when a job is kept that nobody reads now; empty if somebody does."""
    lost = [place.lost_at for place in job.consumers.values() if place.lost_at is not None]
    if len(lost) < len(job.consumers):
        return ""
    since = max(lost, default=tx.now if job.kept_at is None else job.kept_at)
    settings = tx.state.settings
    grace = min(settings.anonymous_grace_s, settings.job_gc_timeout_s) if job.anonymous else settings.job_gc_timeout_s
    left = max(1.0, since + grace - tx.now)
    return f" (nobody reads it now, and it is over in {span(left)} if nobody comes back)"
