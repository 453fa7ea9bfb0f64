"""Access: may this caller do that? Nothing here changes anything; a refusal names the right that is missing."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millrace.control.membership.admission import Refused
from millrace.control.state.state import Job, State
from millrace.protocol.caller import UNSAID_TENANT, Caller, Scope
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import JoinJob, WorkerHello


def lacking(caller: Caller, right: str, doing: str) -> Refused:
    """Make the refusal of who lacks a right, such as ``join = "tenant"``, for what it is ``doing``."""
    whose = f" of tenant {caller.tenant!r}" if caller.tenant else ""
    return Refused.because(
        "AccessDeniedError",
        f"{caller.name!r}{whose} may not {doing}: its token lacks the right {right}. Whoever runs the service can add "
        "it where the token's name is in the file of tokens",
    )


def own_tenant(caller: Caller, message: JoinJob, there: Job | None) -> JoinJob:
    """Make the job of who asks one of the caller's tenant, or of that of the job ``there`` that the caller may join.

    To ask for a job of another tenant is an administrator's.
    """
    asked, tenant = message.spec.tenant, caller.tenant
    if there is not None and tenant and caller.covers(caller.rights.join, there.owner, there.spec.tenant):
        tenant = there.spec.tenant
    if not tenant or asked == tenant or (caller.admin and asked != UNSAID_TENANT):
        return message
    if asked != UNSAID_TENANT:
        raise Refused.because(
            "AccessDeniedError",
            f"{caller.name!r} is of tenant {caller.tenant!r}, and asks for a job of tenant {asked!r}, which takes the "
            "right admin: leave tenant= out, or use a token of that tenant",
        )
    return msgspec.structs.replace(message, spec=msgspec.structs.replace(message.spec, tenant=tenant))


def check_begin(caller: Caller, spec: JobSpec, there: Job | None = None, doing: str = "begin anew") -> None:
    """Refuse who may not send functions; or, if another life of the job is ``there``, who may not end that one."""
    if not caller.runs:
        raise lacking(caller, "run = true", f"begin job {spec.name!r}")
    if there is not None:
        check_control(caller, there, doing)


def check_join(caller: Caller, job: Job) -> None:
    """Refuse who may not be a consumer of the job."""
    if not caller.covers(caller.rights.join, job.owner, job.spec.tenant):
        raise lacking(caller, _needed("join", caller, job), f"join job {job.name!r}{_whose(job)}")


def check_control(caller: Caller, job: Job, doing: str) -> None:
    """Refuse who may not have others lose the job."""
    if not caller.covers(caller.rights.control, job.owner, job.spec.tenant):
        raise lacking(caller, _needed("control", caller, job), f"{doing} job {job.name!r}{_whose(job)}")


def check_place(caller: Caller, job: Job | None, number: int, message: JoinJob) -> None:
    """Refuse who may not take a consumer's place, by a state, from a process that reads there."""
    holder = job.consumers.get(number) if job is not None and message.states else None
    if job is not None and holder is not None and holder.client != message.client:
        check_control(caller, job, "take the place of another process in")


def check_group(caller: Caller, job: Job | None, spec: JobSpec, reads: list[str]) -> None:
    """Refuse who may not be a member of a group, which belongs to a tenant: who may begin it may join it.

    ``reads``: tenants whose blocks the caller may read. Those that the group reads have to be among them.
    """
    if job is None:
        check_begin(caller, spec)
        return
    if caller.admin:
        return
    if job.spec.tenant != caller.tenant or not (caller.runs or caller.rights.join in {"tenant", "all"}):
        raise lacking(caller, 'run = true, or join = "tenant",', f"share in job {job.name!r}{_whose(job)}")
    missing = [name for name in job.may_read if name not in reads]
    if missing:
        raise lacking(caller, f"read = {missing!r}", f"share in job {job.name!r}, which reads what others have kept,")


def check_worker(caller: Caller, state: State, message: WorkerHello) -> None:
    """Refuse who may not be a worker; beside a training whoever may read its job may start workers for it."""
    if caller.works:
        return
    if not message.only:
        raise lacking(caller, "work = true", "be a worker")
    job = state.jobs.get(message.only)
    if job is None:  # it may come back, as a dispatcher without a journal forgets it until its training does
        raise Refused.because("ServiceError", f"job {message.only!r} is not there, and this worker is for it alone")
    check_join(caller, job)
    check_begin(caller, job.spec)


def check_cache_server(caller: Caller) -> None:
    """Refuse who may not be a cache server, which is sent what all tenants' jobs read."""
    if not caller.works:
        raise lacking(caller, "work = true", "be a cache server")


def check_removal(caller: Caller, state: State, places: Iterable[str]) -> None:
    """Refuse who may not delete what is kept of these points."""
    for name in places:
        point = state.caches.points.get(name)
        if point is not None and not caller.removes(point.writer):
            scope = "tenant" if point.writer and point.writer == caller.tenant else "all"
            raise lacking(caller, f'remove = "{scope}"', f"delete what tenant {point.writer!r} has kept")


def sees(caller: Caller, owner: str, tenant: str) -> bool:
    """Whether the status shows a job to the caller."""
    return caller.covers(caller.rights.status, owner, tenant)


def _needed(right: str, caller: Caller, job: Job) -> str:
    """Say which value of a right the caller would need for a job."""
    if not job.owner:
        return "admin = true"
    scope: Scope = "all" if job.spec.tenant != caller.tenant else "own" if job.owner == caller.name else "tenant"
    return f'{right} = "{scope}"'


def _whose(job: Job) -> str:
    owner = f"{job.owner!r}" if job.owner else "nobody known"
    return f", which is of tenant {job.spec.tenant!r} and was begun by {owner}"
