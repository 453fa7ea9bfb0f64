"""Quotas of jobs: how many a tenant may have at once. Nothing here changes anything; a refusal says what to do."""

from __future__ import annotations

from millrace.control.journal.transaction import Transaction
from millrace.control.membership import access
from millrace.control.membership.admission import Refused
from millrace.control.membership.late_joins import span
from millrace.control.state.state import Job
from millrace.protocol.caller import Caller
from millrace.protocol.job_spec import JobSpec

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
    there.pop(job, None)
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
    for (group, member), waiting in tx.observed.gathering.items():
        if any(each.message.spec.tenant == tenant for each in waiting.ranks.values()):
            found[group, member] = member, ""
    return found


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
