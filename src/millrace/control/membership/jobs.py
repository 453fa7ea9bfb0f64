"""Jobs and their consumers: created, joined, read, left, broken, removed."""

from __future__ import annotations

import msgspec

from millrace.control import experiments
from millrace.control.actions import CloseClient, DropBlobs, SendToClient
from millrace.control.caching import cache_mode
from millrace.control.inputs import JoinRequested
from millrace.control.journal.consumer_events import (
    ConsumerDisconnected,
    ConsumerJoined,
    ConsumerLeft,
    EpochBegan,
    Progressed,
)
from millrace.control.journal.job_events import JobBroke, JobCreated, JobKept, JobRemoved, ShareUnread, TableRecorded
from millrace.control.journal.transaction import Transaction
from millrace.control.journal.worker_events import WorkerDismissed
from millrace.control.membership import access, job_quotas, late_joins, testimony
from millrace.control.membership.admission import (
    Refused,
    check_failed,
    check_generation,
    check_new,
    check_spec,
    find_place,
    same_job,
)
from millrace.control.membership.handover import (
    give_again,
    hand_on,
    has_ended,
    nothing_used,
    record_unused,
    tell_doubt,
)
from millrace.control.membership.resume import check_awaited, check_data, check_states, load, same_load, void
from millrace.control.scaling import job_scaling
from millrace.control.state.state import Consumer, Job
from millrace.control.tasks import group_progress, job_progress
from millrace.control.tasks.epochs import (
    close_epochs,
    open_epoch,
    send_epoch,
    settle_epoch,
    tell_absence,
    tell_read,
    tell_steps,
    unsettle,
)
from millrace.control.tasks.leases import choose_mode, discard_outputs, forgo, leave_behind, revoke_paused, settle
from millrace.control.tasks.slots import missing, unread_by
from millrace.control.tasks.task_queue import epoch_length, held_back
from millrace.control.tasks.unread import said as said_of
from millrace.errors import MillraceError
from millrace.graph import serialize
from millrace.planning.checkpoint import name_of
from millrace.protocol import messages as msg
from millrace.protocol.caller import Caller
from millrace.protocol.group_messages import Audience
from millrace.protocol.job_spec import JobSpec

LEFT = "left"
"""Why a consumer has gone that closed its session."""
WITH_RANK = "went with rank"
"""Why a rank of a member has gone whose member goes as it has lost another one."""


def join(tx: Transaction, item: JoinRequested) -> None:
    """Let a client read that wants to: create the job or let it join, or refuse with a sentence."""
    message, caller = item.message, item.caller
    try:
        message = access.own_tenant(caller, message, tx.state.jobs.get(message.spec.name))
        check_spec(tx.state.settings, message)
        message = check_states(message)
        name = message.spec.name or item.job
        spec = msgspec.structs.replace(message.spec, name=name)
        job, said = _job_there(tx, spec, message, caller)
        number = find_place(tx.state, job, spec, message, tx.now)
        access.check_place(caller, job, number, message)
    except Refused as refused:
        refuse(tx, message.client, refused.failure)
        return
    if job is None:
        job = create(tx, spec, item, anonymous=not message.spec.name)
    known = job.consumers.get(number)
    if message.states and known is not None and known.client != message.client:
        refuse(tx, known.client, void(job, message))
    epoch, lost = _goes_on(tx, job, number, message)
    anew = number in job.left
    first = number in missing(job) and job.first is not None
    past = -1 if known is None or known.client == message.client or message.states else epoch
    if anew and late_joins.goes_behind(job, message):
        past, said = epoch, said or (late_joins.behind(job, number, epoch) if epoch >= 0 else "")
    tx.emit(ConsumerJoined(name, number, message.client, epoch, message.host, message.pid, anew, past, message.lingers))
    if lost is not None:
        said = _replaced(tx, job, number, lost) or said
    if anew:
        unsettle(tx, job, number)
    if known is not None:
        tell_absence(tx, job, number)
    failure = load(tx, job, message.states) if message.states else None
    if failure is not None:
        fail_job(tx, job, failure)
        return
    epoch, heartbeat_s = job.consumers[number].epoch, tx.state.settings.heartbeat_s
    states = name_of(job.states.values()) if first and job.states else ""
    joined = msg.JobJoined(name, number, job.seed, heartbeat_s, epoch, job.generation, job.first is None, states)
    tx.to_consumer(job, number, msgspec.structs.replace(joined, told=testimony.told(tx.state, tx.now)))
    if said:
        tx.to_consumer(job, number, msg.Notice(said))
    if known is not None and known.client == message.client:
        send_epoch(tx, job, number)


def _job_there(tx: Transaction, spec: JobSpec, message: msg.JoinJob, caller: Caller) -> tuple[Job | None, str]:
    """Find the job that a client joins (None if it begins one, be it in another's place), and what to tell it."""
    job = tx.state.jobs.get(spec.name)
    if job is not None and message.states and not same_load(job, message):
        job_quotas.check_begin(tx, caller, spec, job, "load a state into")
        begin_anew(tx, job, message)
        return None, ""
    if job is not None and job.failure is not None:
        access.check_join(caller, job)
        check_failed(job, message)
        job_quotas.check_begin(tx, caller, spec, job)
        remove_job(tx, job, "it had failed and was started again")
        return None, ""
    if job is None:
        check_new(tx.state.settings, spec, message)
        job_quotas.check_begin(tx, caller, spec)
        return None, late_joins.late_for(tx.state, spec, message, tx.now)
    anew = late_joins.another_run(job, spec, message)
    if anew:
        job_quotas.check_begin(tx, caller, spec, job)
        remove_job(tx, job, "it was started again")
        return None, anew
    access.check_join(caller, job)
    same_job(job, spec)
    check_generation(job, message)
    check_awaited(job, message)
    return job, ""


def create(tx: Transaction, spec: JobSpec, item: JoinRequested, *, anonymous: bool = False) -> Job:
    """Begin the job that a client wants to read."""
    states = item.message.states
    seed = item.seed if spec.seed is None else spec.seed
    if states and states[0].seed is not None:
        seed = states[0].seed
    owner, reads = item.caller.name, list(item.caller.rights.read)
    tx.emit(JobCreated(spec, seed, serialize.digest(spec.structure), anonymous, tx.now, owner, reads))
    job = tx.state.jobs[spec.name]
    job_quotas.take_place(tx, spec.tenant, spec.name)
    job_progress.begun(tx, job)
    return job


def _goes_on(tx: Transaction, job: Job, number: int, message: msg.JoinJob) -> tuple[int, Consumer | None]:
    """Find the last epoch begun at the place that a client takes, and whose reading breaks off with that, if so."""
    known = job.consumers.get(number)
    if known is None:
        if number in missing(job):
            return (job.first or 0) - 1, None  # a share is its, and was kept, since the first epoch
        if late_joins.goes_behind(job, message):
            return max(job.epochs, default=job.newest), None
        return late_joins.epoch_of_late(job) - 1, None
    if known.client == message.client or message.states or message.lingers:
        return known.epoch, None
    if known.past >= known.epoch >= 0 and not job.spec.coordinated:
        return known.epoch, None  # it had gone behind that one, and not begun another
    if nothing_used(tx, job, number, known) and not _gone_behind(tx, job, known.epoch):
        give_again(tx, job, number, known.epoch)
        return known.epoch - 1, None  # nobody has read anything of it, so that it is the new one's
    return known.epoch, known


def _gone_behind(tx: Transaction, job: Job, number: int) -> bool:
    """Whether rounds of an epoch will lack a rank whose process used some of it, and is gone for good."""
    for index, place in job.consumers.items() if job.spec.coordinated else ():
        gone = place.lost_at is not None and not tx.state.may_return(place.lost_at, tx.now)
        used = place.epoch > number or (place.epoch == number and not nothing_used(tx, job, index, place))
        if place.past >= number or (gone and used):
            return True
    return False


def _replaced(tx: Transaction, job: Job, consumer: int, lost: Consumer) -> str:
    """Give others what a lost process had not read, and word it for the process that goes on in its place."""
    if lost.epoch < 0 or has_ended(tx, lost, lost.epoch):
        return ""
    epoch = job.epochs.get(lost.epoch)
    before = len(tx.events)
    why = f"was lost in epoch {lost.epoch}, and the process in its place goes on behind it"
    tell_doubt(tx, job, consumer, lost, why)
    moved = hand_on(tx, job, consumer, why, [number for number in job.epochs if number <= lost.epoch])
    rest = said_of(job, [event.share for event in tx.events[before:] if isinstance(event, ShareUnread)])
    if epoch is None or not (moved or rest):
        return ""
    given = f"; {moved} tasks go to other consumers" if moved else ""
    return (
        f"consumer {consumer} of job {job.name!r} was read by process {lost.pid} on {lost.host or 'another host'} up "
        f"to epoch {lost.epoch}, which it did not end; this one goes on with epoch {lost.epoch + 1}{given}"
        f"{'. ' if rest else ''}{rest}. To go on in the middle of an epoch load a saved state; to begin anew say "
        "another job_name"
    )


def refuse(tx: Transaction, client: str, failure: msg.Failure) -> None:
    """End a client's session with an error."""
    tx.act(SendToClient(client, msg.JobFailed(failure)))
    tx.act(CloseClient(client, failure))


def begin_anew(tx: Transaction, job: Job, message: msg.JoinJob) -> None:
    """Go on from saved states: whatever the job has become since is void, and who reads it is told so."""
    failure = void(job, message)
    for place in job.consumers.values():
        if place.client != message.client:
            refuse(tx, place.client, failure)
    remove_job(tx, job, "it was begun anew from saved states")


def begin_epoch(tx: Transaction, job: Job, consumer: int, message: msg.BeginEpoch) -> None:
    """Let a consumer read an epoch; what it had not read of earlier ones is dropped."""
    place = job.consumers[consumer]
    number = place.epoch + 1 if message.epoch is None else message.epoch
    if number < place.epoch:
        text = f"consumer {consumer} of job {job.name!r} is at epoch {place.epoch} and cannot go back to {number}"
        tx.to_consumer(job, consumer, msg.JobFailed(msg.Failure("PipelineError", text)))
        return
    if number > place.epoch:
        first = number > job.newest
        tx.emit(EpochBegan(job.name, consumer, number))
        if first and job.tables is not None:
            choose_mode(tx, job, cache_mode.epoch_began)
        if first and job.windowed:
            leave_behind(tx, job)
        for earlier in [n for n in job.epochs if n < number and not job.windowed]:
            # What is left became its when it had ended, so that it never heard of it; or the others have fewer steps.
            if has_ended(tx, place, earlier) and not held_back(job):
                hand_on(tx, job, consumer, "had ended the epoch before they became its", [earlier])
                tell_absence(tx, job, consumer)
            for task in unread_by(job, job.epochs[earlier], consumer):
                if task in job.epochs[earlier].live:  # else it went with another one
                    forgo(tx, job, earlier, task, consumer)
        if job.tables is not None:
            open_epoch(tx, job, number)
        close_epochs(tx, job)
    send_epoch(tx, job, consumer)


def refused_report(tx: Transaction, job: Job, consumer: int, message: msg.ConsumerReport) -> bool:
    """Whether a report is of an epoch that nobody can read yet: it counts for nothing, and its sender is told.

    That of the next one may come before the word that it begins.
    """
    last = job.newest
    if 0 <= message.epoch <= last + 1:
        return False
    text = f"consumer {consumer} of job {job.name!r} reports about epoch {message.epoch}, and the job has begun "
    begun = f"epoch {last} at most" if last >= 0 else "none"
    if message.batches or message.tasks:  # else it is about to begin it
        tx.to_consumer(job, consumer, msg.Notice(f"{text}{begun}: the report does not count"))
    return True


def progressed(tx: Transaction, job: Job, consumer: int, message: msg.ConsumerReport) -> None:
    """Note what a consumer says that it has."""
    epoch = job.epochs.get(message.epoch)
    if epoch is None:
        return
    news: list[msg.TaskProgress] = []
    for progress in message.tasks:
        live = epoch.live.get(progress.task)
        known = live.readers.get(consumer) if live is not None else None
        if known is not None and not known.complete and (progress.complete or progress.received > known.received):
            news.append(progress)
    if news:
        tx.emit(Progressed(job.name, consumer, message.epoch, news))
        for task in sorted({each.task for each in news if each.complete}):  # a tail settles what is before it
            if task not in epoch.live:
                continue  # it went as the oldest of a window
            lost, slot = not epoch.live[task].worker, epoch.live[task].slot
            settle(tx, job, message.epoch, task)
            discard_outputs(tx, job, message.epoch, task)
            if lost:
                tell_read(tx, job, message.epoch, slot, task)
    tell_steps(tx, job, message.epoch)


def sources_listed(tx: Transaction, worker: str, message: msg.SourcesListed) -> None:
    """Plan a job whose sources are known."""
    job = tx.state.jobs.get(message.job)
    if job is None or job.lister != worker or message.generation not in (None, job.generation):
        return
    try:
        plan = tx.state.make_plan(job.spec, job.seed, message.tables, ranks=job.spec.ranks)
    except MillraceError as error:
        fail_job(tx, job, msg.Failure(type(error).__name__, str(error)))
        return
    if plan.length is None and job.spec.sharding in {"custom", "static_contiguous"}:
        text = "a sharding function is asked about every task"
        if job.spec.sharding == "static_contiguous":
            text = "ShardingPolicy.STATIC_CONTIGUOUS cuts all tasks into as many parts as there are workers"
        text += ", and this dataset has no end; add take(n), or name another policy"
        fail_job(tx, job, msg.Failure("PipelineError", text))
        return
    tx.emit(
        TableRecorded(
            job.name,
            message.tables,
            message.digest,
            epoch_length(job.spec, plan),
            message.prints,
            plan.equal,
            message.points,
        )
    )
    failure = check_data(tx.state, job, job.states.values()) or _refused_cache(tx, job)
    if failure is not None:
        fail_job(tx, job, failure)
        return
    cache_mode.begin(tx, job)
    job_scaling.begin(tx, job)
    for other in tx.state.workers.values():
        if job.name in other.open:
            open_at(tx, other.id, job)
    for consumer, place in job.consumers.items():
        for text in plan.warnings:
            tx.to_consumer(job, consumer, msg.Notice(text))
        if job.first is not None and place.epoch >= job.first:
            open_epoch(tx, job, place.epoch)
            send_epoch(tx, job, consumer)


def _refused_cache(tx: Transaction, job: Job) -> msg.Failure | None:
    """Refuse to make again what others keep and the job may not read (Cachew 7)."""
    kept = cache_mode.withheld(tx.state, job) if job.spec.untrusted_cache == "refuse" else ""
    text = f'{kept}; with untrusted_cache="recompute" it is made again'
    return msg.Failure("AccessDeniedError", text) if kept else None


def open_at(tx: Transaction, worker: str, job: Job) -> None:
    """Tell a worker what it needs to run the job's tasks."""
    tx.to_worker(worker, msg.OpenJob(job.name, job.spec, job.seed, job.tables_digest, job.generation))
    if job.spec.sharing:
        tx.to_worker(worker, _audience(job))


def tell_audience(tx: Transaction, job: Job) -> None:
    """Tell the workers of a group who its members are, as that has changed."""
    for worker in tx.state.workers.values():
        if job.name in worker.open:
            tx.to_worker(worker.id, _audience(job))


def _audience(job: Job) -> Audience:
    return Audience(job.name, {index: place.past + 1 for index, place in job.consumers.items()})


def consumer_lost(tx: Transaction, job: Job, consumer: int) -> None:
    """Its session broke."""
    if job.consumers[consumer].lost_at is None:
        tx.emit(ConsumerDisconnected(job.name, consumer, tx.now))
        tell_absence(tx, job, consumer)


def consumer_gone(
    tx: Transaction, job: Job, consumer: int, reason: str, unused: int = 0, *, kind: str = "JobFailedError"
) -> None:
    """Give others what a consumer that will not come back did not read, unless each has its share of a fixed order.

    A member of a group that loses a rank goes with all of them, which are told so.

    Args:
        tx: what follows goes there.
        job: whose consumer it is.
        consumer: its index.
        reason: goes on behind its name.
        unused: elements of its epoch that it had received and not handed out.
        kind: of the error with which other ranks of its member go: what is left of them can go on alone, or not.
    """
    for mate in job.mates(consumer) if reason != LEFT else ():
        who = f"rank {job.spec.rank(consumer)} of job {job.consumers[mate].member!r} {reason}"
        text = f"{who}, and all ranks of a job go together from those that share their computation"
        failure = msg.Failure(kind, text if kind == "DetachedError" else f"{text}: start all of them again")
        tx.to_consumer(job, mate, msg.JobFailed(failure, detached=True))
        _gone(tx, job, mate, f"{WITH_RANK} {job.spec.rank(consumer)}, which {reason}")
    _gone(tx, job, consumer, reason, unused)


def _gone(tx: Transaction, job: Job, consumer: int, reason: str, unused: int = 0) -> None:
    place = job.consumers.get(consumer)  # None: it was never seen
    if place is not None:
        tx.act(CloseClient(place.client))
        if job.spec.sharing:
            tx.observed.clients.pop(place.client, None)
            group_progress.left(tx, job, consumer)
    last = place is not None and len(job.consumers) == 1
    if last and job.windowed and job.failure is None and job.reached >= 0:
        _keep_window(tx, job, consumer, reason)
        return
    if last and not late_joins.waits_for_others(job):
        tx.emit(ConsumerLeft(job.name, consumer, reason))
        remove_job(tx, job, f"its last consumer {reason}")
        return
    if job.spec.sharing:
        _let_go(tx, job, consumer)
    else:
        if place is not None and reason != LEFT:
            tell_doubt(tx, job, consumer, place, reason)
        elif place is not None and unused:
            record_unused(tx, job, consumer, place, unused)
        hand_on(tx, job, consumer, reason)
    tx.emit(ConsumerLeft(job.name, consumer, reason))
    if job.spec.sharing:
        tell_audience(tx, job)
    for number in list(job.epochs):
        settle_epoch(tx, job, number)  # which tells the others what of it is not read
        tell_steps(tx, job, number)
    close_epochs(tx, job)
    if last:
        tx.emit(JobKept(job.name, tx.now))


def _keep_window(tx: Transaction, job: Job, member: int, reason: str) -> None:
    """Keep what lies in windows as the last member has gone, and what runs, which stops: a job may come right after."""
    tx.emit(ConsumerLeft(job.name, member, reason))
    tell_audience(tx, job)
    tx.emit(JobKept(job.name, tx.now))
    for worker in tx.state.index.serving.draining:
        revoke_paused(tx, worker)


def _let_go(tx: Transaction, job: Job, member: int) -> None:
    """Drop what a member alone lacked of the group's tasks; the others read on."""
    for number, epoch in list(job.epochs.items()):
        for task in unread_by(job, epoch, member):
            if task in epoch.live:  # else it went with another one
                forgo(tx, job, number, task, member, leaves=True)


def fail_job(tx: Transaction, job: Job, failure: msg.Failure) -> None:
    """End the job because of ``failure``; the others go on."""
    tx.emit(JobBroke(job.name, failure))
    tx.to_all(job, msg.JobFailed(failure))
    close_everywhere(tx, job.name)


def remove_job(tx: Transaction, job: Job, reason: str) -> None:
    """Forget the job."""
    summary = job_progress.summary(tx, job, reason)
    tx.emit(JobRemoved(job.name, reason, tx.now, len(missing(job)), summary))
    tx.observed.progress.pop(job.name, None)
    tx.observed.listings.pop(job.name, None)
    tx.observed.groups.pop(job.name, None)
    tx.observed.waited_for.pop(job.name, None)
    experiments.forget(tx, job)
    tx.observed.steps = {key: told for key, told in tx.observed.steps.items() if key[0] != job.name}
    close_everywhere(tx, job.name)
    tx.act(DropBlobs(job.name))


def close_everywhere(tx: Transaction, name: str) -> None:
    """Have all workers drop what belongs to the job."""
    for worker in tx.state.workers.values():
        if name in worker.open:
            tx.to_worker(worker.id, msg.CloseJob(name))
            tx.emit(WorkerDismissed(worker.id, name))


def collect(tx: Transaction) -> None:
    """Give up on consumers that have been away for too long."""
    for client in tx.observed.clients.keys() - tx.state.clients.keys():
        del tx.observed.clients[client]
    settings = tx.state.settings
    if not tx.observed.all_back and tx.now >= tx.state.returning:
        tx.observed.all_back = True  # who is not back by now after a restart is taken for lost
        for job in tx.state.jobs.values():
            tell_absence(tx, job)
    for job in list(tx.state.jobs.values()):
        over = late_joins.over_since(tx.state, job, tx.now)
        if over:
            remove_job(tx, job, over)
        grace = settings.job_gc_timeout_s
        if job.anonymous or job.failure is not None:
            grace = min(grace, settings.anonymous_grace_s)
        for number, place in list(job.consumers.items()):
            if number not in job.consumers:
                continue  # it has gone with another rank of its member
            observation = tx.observed.clients.get(place.client)
            if place.lost_at is not None and tx.now - place.lost_at > grace:
                if tx.state.may_return(place.lost_at, tx.now):
                    continue
                consumer_gone(tx, job, number, f"did not come back within {grace:g} s")
            elif place.lost_at is None and observation is not None and tx.now - observation.last_seen > grace:
                consumer_gone(tx, job, number, f"was silent for {grace:g} s")
