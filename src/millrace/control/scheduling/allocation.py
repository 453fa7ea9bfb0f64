"""Which job each worker serves: a worker serves one at a time and changes at a task's end.

Three steps. :func:`divide` says how many workers each job is to have, and what it had of that; :func:`preemptible`
which workers get no more tasks of their job because another job should have them; :func:`assign_workers` gives those
that have nothing in hand to the job that policy names. What a worker keeps for consumers that have not read it yet
stays where it is, and is served beside the new job.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from millrace.control.journal.job_events import TurnCut
from millrace.control.journal.transaction import Transaction
from millrace.control.journal.worker_events import WorkerAssigned, WorkerDismissed
from millrace.control.membership.jobs import open_at
from millrace.control.scaling.job_placement import wanted
from millrace.control.scheduling.backlog import able_to_take, having_work, planning, runnable, unowned
from millrace.control.state.index import SERVICE
from millrace.control.state.observed import Division
from millrace.control.state.serving_index import fits
from millrace.control.state.state import Job, Worker
from millrace.control.tasks.leases import paused, revoke, revoke_paused
from millrace.control.tasks.slots import active, readers_of
from millrace.policies.scheduling.fair_share import Accounts, Need, Standing, gives, share
from millrace.policies.scheduling.worker_assignment import JobNeed, assign
from millrace.protocol.messages import CloseJob


def _workers_of(tx: Transaction, job: Job) -> list[Worker]:
    """Workers of the service that serve the job and can be given something."""
    return tx.state.index.serving.by_job.get(job.name, [])


def divide(tx: Transaction) -> Division:
    """How the workers are divided among the jobs; worked out anew when who serves what, or has work, has changed."""
    serving, known = tx.state.index.serving, tx.observed.division
    if known is not None and known.serving is serving and _with_work(tx, known.unserved) == known.unserved - known.idle:
        return known
    jobs = {name: job for name, job in tx.state.jobs.items() if job.failure is None}
    counts = {name: len(serving.by_job.get(name, ())) for name in jobs}
    unserved = frozenset(name for name in jobs if not counts[name])
    idle = unserved - _with_work(tx, unserved)
    needs = [
        Need(name, job.spec.tenant, job.spec.priority, wanted(tx.state, job))
        for name, job in jobs.items()
        if name not in idle
    ]
    waited = {} if known is None else known.waiting
    shares = share(needs, len(serving.workers), tx.state.settings.quotas)
    before = {} if known is None else {name: known.standing(name, tx.now).ahead for name in jobs}
    tx.observed.division = Division(
        serving,
        tx.now,
        shares,
        counts,
        before,
        {need.job: waited.get(need.job, tx.now) for need in needs if not counts[need.job]},
        unserved,
        idle,
        [name for name, each in shares.items() if counts[name] > each.value],
        Accounts({name: Standing(counts[name], each.value, before.get(name, 0.0)) for name, each in shares.items()}),
    )
    return tx.observed.division


def _with_work(tx: Transaction, names: AbstractSet[str]) -> set[str]:
    """Subset of these jobs, which nobody serves, that have use for a worker."""
    state, workers = tx.state, tx.state.index.serving.workers
    if not names or not workers:
        return set()
    found = having_work(tx, workers[0], names)
    for job in [state.jobs[name] for name in state.index.serving.sharded if name in names]:
        if any(runnable(tx, job, worker) for worker in [workers[0], *_owners(tx, job)]):
            found.add(job.name)
    return {name for name in found if wanted(state, state.jobs[name]) != 0}


def _admits(tx: Transaction, job: Job, worker: Worker) -> bool:
    """Whether the job and its tenant may have this worker, besides the others that they have.

    What is a worker's share can be run by no other, so it comes back to it in any case.
    """
    if not fits(job, worker) or _too_small(tx, job, worker):
        return False
    return _owns(job, worker) or not (_at_target(tx, job, worker) or _full(tx, job.spec.tenant, worker))


def _too_small(tx: Transaction, job: Job, worker: Worker) -> bool:
    """Whether the tenant's last place is for a larger worker, which is free: a job that had less waits for that."""
    tenant, jobs, serving = job.spec.tenant, tx.state.jobs, tx.state.index.serving
    quota = tx.state.settings.quotas.get(tenant)
    if quota is None or sum(other is not worker for other in _of_tenant(tx, tenant)) < quota - 1:
        return False
    division, free = divide(tx), serving.by_job.get("", ())
    waiting = [jobs[name] for name in division.waiting if name in jobs and not fits(jobs[name], worker)]
    had = division.standing(job.name, tx.now).ahead
    return any(
        other.spec.tenant == tenant
        and any(fits(other, each) for each in free)
        and division.standing(other.name, tx.now).ahead <= had
        for other in waiting
    )


def _owns(job: Job, worker: Worker) -> bool:
    return job.spec.statically_owned and any(worker.id in epoch.owned for epoch in job.epochs.values())


def _at_target(tx: Transaction, job: Job, besides: Worker | None = None) -> bool:
    """Whether the job has all the workers that it wants."""
    most = wanted(tx.state, job)
    return most is not None and sum(worker is not besides for worker in _workers_of(tx, job)) >= most


def _full(tx: Transaction, tenant: str, besides: Worker | None = None) -> bool:
    """Whether the tenant has all the workers that it may have."""
    quota = tx.state.settings.quotas.get(tenant)
    return quota is not None and sum(worker is not besides for worker in _of_tenant(tx, tenant)) >= quota


def _of_tenant(tx: Transaction, tenant: str) -> list[Worker]:
    jobs, by_job = tx.state.jobs, tx.state.index.serving.by_job
    return [worker for name in by_job if name in jobs and jobs[name].spec.tenant == tenant for worker in by_job[name]]


def _surplus(tx: Transaction) -> set[str]:
    """Workers beyond what their jobs want, or their tenants may have; those that own shares aside."""
    return set(tx.state.index.memoize(SERVICE, "surplus", lambda: _find_surplus(tx)))


def _find_surplus(tx: Transaction) -> set[str]:
    chosen: set[str] = set()
    jobs, quotas = tx.state.jobs.values(), tx.state.settings.quotas
    limited = [(_workers_of(tx, job), most) for job in jobs if (most := wanted(tx.state, job)) is not None]
    limited += [(_of_tenant(tx, tenant), quota) for tenant, quota in quotas.items()]
    for workers, most in limited:
        if len(workers) > most:
            there = [worker for worker in workers if worker.id not in chosen]
            free = [worker for worker in there if not _owns(tx.state.jobs[worker.job], worker)]
            free.sort(key=lambda worker: (worker.turn_began, worker.id))
            chosen.update(worker.id for worker in free[: max(0, len(there) - most)])
    return chosen


def preemptible(tx: Transaction) -> set[str]:
    """Workers that get no more tasks of their job, as others are to have them."""
    serving, jobs, division = tx.state.index.serving, tx.state.jobs, divide(tx)
    chosen = _surplus(tx) | _exchanged(tx, division)
    if not serving.workers or len(division.shares) < 2 or not (division.givers or serving.sharded):
        return chosen
    chosen |= _useless(tx, division, chosen)
    able = able_to_take(tx, division.accounts.takers(tx.now - division.at))
    takers = [name for name in division.shares if name in able or name in serving.sharded] if serving.sharded else able
    if not takers:
        return chosen
    standings = {name: division.standing(name, tx.now) for name in {*division.givers, *takers}}
    givers = sorted(
        division.givers,
        key=lambda name: (math.floor(standings[name].share - standings[name].workers), -standings[name].ahead),
    )

    @functools.cache
    def ready(giver: str) -> list[Worker]:
        there = [worker for worker in serving.by_job[giver] if worker.id not in chosen and _had_turn(tx, worker)]
        return sorted(there, key=lambda worker: (worker.turn_began, worker.id))

    free = serving.by_job.get("", [])
    for name in sorted(takers, key=lambda name: (not standings[name].short, standings[name].ahead, jobs[name].served)):
        job = jobs[name]
        if job.spec.statically_owned and job.tables is not None and (standings[name].workers or not unowned(job)):
            # Only the owners of its shares are of use to it, wherever they are now.
            owners = [worker for worker in _owners(tx, job) if worker.id not in chosen and _had_turn(tx, worker)]
            chosen.update(worker.id for worker in owners if runnable(tx, job, worker))
        elif not _at_target(tx, job):
            full = _full(tx, job.spec.tenant)
            if free and not full and runnable(tx, job, free[0]):
                free = free[1:]
            else:
                own = [giver for giver in givers if jobs[giver].spec.tenant == job.spec.tenant] if full else givers
                # Where a free one is of use to it, all that it lacks is a place.
                place = full and any(runnable(tx, job, worker) for worker in free)
                _take(tx, job, own, standings, chosen, ready, place=place)
    return chosen


def _useless(tx: Transaction, division: Division, chosen: AbstractSet[str]) -> set[str]:
    """Workers whose consumers don't read, one for each job that has none and waits, whoever had more than its share."""
    jobs, found = tx.state.jobs, set[str]()
    waiting = [jobs[name] for name in sorted(division.waiting) if name in jobs]
    there = [each for each in tx.state.index.serving.workers if each.id not in chosen] if waiting else []
    blocked = [each for each in there if _is_blocked(tx, each) and not _owns(jobs[each.job], each)]
    free = tx.state.index.serving.by_job.get("", [])
    for job in waiting if blocked else ():
        if job.spec.statically_owned or _at_target(tx, job) or _full(tx, job.spec.tenant):
            continue
        if any(runnable(tx, job, each) for each in free):
            continue
        able = (each for each in blocked if each.id not in found and runnable(tx, job, each))
        if (worker := next(able, None)) is not None:
            found.add(worker.id)
    return found


def _is_blocked(tx: Transaction, worker: Worker) -> bool:
    """Whether all that a worker runs has waited for a while for consumers that don't read."""
    observation = tx.observed.workers.get(worker.id)
    report = observation.report if observation is not None else None
    if observation is None or report is None or report.job != worker.job or observation.reported <= worker.turn_began:
        return False
    lanes = [lane for lane in report.lanes if lane.running or lane.blocked_s > 0]
    return bool(lanes) and all(lane.blocked_s > tx.state.settings.blocked_s for lane in lanes)


def _exchanged(tx: Transaction, division: Division) -> set[str]:
    """Workers that jobs could do without, as smaller ones are free, and that are large enough for jobs that wait."""
    serving, jobs, chosen = tx.state.index.serving, tx.state.jobs, set[str]()
    free = serving.by_job.get("", ())
    if not free:
        return chosen
    for job in [jobs[name] for name in sorted(division.waiting) if name in jobs and jobs[name].needs]:
        if job.spec.statically_owned or _full(tx, job.spec.tenant) or any(fits(job, worker) for worker in free):
            continue
        for worker in serving.workers:
            serves = jobs.get(worker.job)
            if serves is None or _owns(serves, worker) or worker.id in chosen or not runnable(tx, job, worker):
                continue
            if any(fits(serves, other) for other in free) and _had_turn(tx, worker):
                chosen.add(worker.id)
                break
    return chosen


def _owners(tx: Transaction, job: Job) -> list[Worker]:
    """Workers elsewhere that own shares of the job."""
    names = {name for epoch in job.epochs.values() for name in epoch.owned}
    owners = (tx.state.workers.get(name) for name in sorted(names))
    return [
        w
        for w in owners
        if w is not None and w.job != job.name and w.lost_at is None and not (w.draining or w.pinned_job)
    ]


def _take(
    tx: Transaction,
    job: Job,
    givers: list[str],
    standings: Mapping[str, Standing],
    chosen: set[str],
    ready: Callable[[str], list[Worker]],
    *,
    place: bool,
) -> None:
    """Have workers of the givers that are ready to leave do so for the job: all that it is short of, or else one.

    Those that can run it, or any, if it is only their ``place`` that it needs.
    """
    has = standings[job.name]
    for giver in list(givers):
        while gives(standings[giver], has):
            there = ready(giver)
            able = (each for each in there if each.id not in chosen and (place or runnable(tx, job, each)))
            first = next(able, None)
            if first is None:
                if not there:
                    givers.remove(giver)  # nor has it anybody for those that come next
                break
            there.remove(first)
            chosen.add(first.id)
            standings[giver].workers -= 1
            has.workers += 1
            if not has.short:
                return


def _had_turn(tx: Transaction, worker: Worker) -> bool:
    """Whether its job has had some of this worker: its workers together a task of each slot, or the time for that."""
    job = tx.state.jobs.get(worker.job)
    if job is None or job.failure is not None:
        return True
    slots = tx.state.index.memoize(job.name, "few", lambda: max(1, len(active(job))))
    few = math.ceil(slots / max(1, len(tx.state.index.serving.by_job.get(job.name, ()))))
    turn_s, settings = tx.now - worker.turn_began, tx.state.settings
    long = worker.turn_leases >= 4 * few or turn_s >= settings.turn_s
    # A task may take for ever, and it is cut once this worker is to leave.
    enough = worker.turn_leases >= few or turn_s >= settings.turn_s + settings.turn_limit_s
    return (long and enough) or not runnable(tx, job, worker)


def revoke_blocked(tx: Transaction, leaving: set[str]) -> set[str]:
    """Take tasks from workers that others wait for and that would not come to a task's end in time.

    Returns:
        Workers whose jobs have no use for them, as their consumers do not read.
    """
    settings, before, useless = tx.state.settings, tx.observed.leaving, set[str]()
    tx.observed.leaving = {name: before.get(name, tx.now) for name in leaving}
    for name in sorted(leaving):
        worker = tx.state.workers[name]
        job = tx.state.jobs.get(worker.job)
        if job is None or not worker.unfinished:
            continue
        if paused(tx.state, worker):
            if _sought(tx, worker, taken=True):
                revoke_paused(tx, worker, f"another job waits for worker {name}")
            continue
        held = [key for key in worker.unfinished.values() if key[0] == job.name]
        blocked = _is_blocked(tx, worker)
        late = tx.now - tx.observed.leaving[name] > settings.turn_limit_s * 2.0 ** min(job.cuts, 20)
        if late and not blocked:
            tx.emit(TurnCut(job.name))
        if blocked:
            useless.add(name)
        for _, number, task in held:
            readers = readers_of(job, job.epochs[number].live[task].slot)
            if blocked or late:
                why = "its consumers do not read" if blocked else "its task is too long for one turn"
                revoke(tx, job, number, task, f"{why}, and another job waits for worker {name}")
            elif readers and max(place.epoch for place in readers) < number:
                revoke(tx, job, number, task, f"prepared ahead, and another job waits for worker {name}")
    return useless


def assign_workers(tx: Transaction, leaving: set[str], useless: AbstractSet[str] = frozenset()) -> None:
    """Give workers that have nothing in hand to the job that should have them.

    Args:
        tx: the transaction.
        leaving: workers that others wait for.
        useless: of these, those that go to another job if one can run something, whatever shares are.
    """
    _take_in(tx)
    serving = tx.state.index.serving
    nothing_for: set[tuple[str, int, bool, int]] = set()
    division, standings = None, dict[str, Standing]()
    for _, worker in sorted(serving.empty_handed.items()):
        job = tx.state.jobs.get(worker.job)
        young = tx.now - worker.turn_began < tx.state.settings.turn_s
        alike = (worker.job, tx.observed.want(worker.id), young, worker.buffer_bytes)
        if alike in nothing_for and worker.id not in leaving:
            continue
        if job is not None and planning(job, worker):
            continue
        if job is not None and worker.id not in leaving and runnable(tx, job, worker):
            tx.state.index.touched.add(job.name)
            continue
        if worker.id not in leaving and _stays(tx, worker, young=young):
            if not serving.sharded:
                nothing_for.add(alike)
            tx.state.index.touched.add(worker.job)
            continue
        if divide(tx) is not division:
            division = divide(tx)
            standings = {name: division.standing(name, tx.now) for name in tx.state.jobs}
        needs = [
            JobNeed(need.name, _as_seen(standings[need.name], need, worker), _served(tx, need, worker))
            for need in tx.state.jobs.values()
            if need.failure is None and _admits(tx, need, worker)
        ]
        serves = worker.job if any(need.job == worker.job for need in needs) else ""
        if serves and worker.id not in leaving and young:
            # Changing has its price (functions are loaded anew): not for a moment without work, unless a job waits.
            needs = [need for need in needs if need.standing.workers == 0 or need.job == serves]
        if worker.id in useless:
            needs = [need for need in needs if need.job != serves and _can_run(tx, worker, need.job)] or needs
        decision = assign(needs, functools.partial(_can_run, tx, worker), serves)
        if decision.value != worker.job:
            _switch(tx, worker, decision.value, decision.reason)
            nothing_for.clear()
        elif not serving.sharded and worker.id not in leaving:
            nothing_for.add(alike)  # nor is there for others like it
        leaving.discard(worker.id)  # its turn begins, be it with the same job
        tx.state.index.touched.add(worker.job)


def _stays(tx: Transaction, worker: Worker, *, young: bool) -> bool:
    """Its job, which has nothing for it, may keep it, and no other job that may have it has anything for it."""
    job = tx.state.jobs.get(worker.job)
    if job is None or job.failure is not None or not _admits(tx, job, worker):
        return False
    return not _sought(tx, worker, young=young)


def _sought(tx: Transaction, worker: Worker, *, young: bool = False, taken: bool = False) -> bool:
    """Whether another job that may have the worker has anything for it.

    Of a ``young`` turn, one that has no worker; if something is ``taken`` by that, one that can have no free worker.
    """
    state, serving = tx.state, tx.state.index.serving
    free = serving.by_job.get("", ()) if taken else ()
    others = having_work(tx, worker, divide(tx).unserved if young else state.jobs.keys())
    mine = [state.jobs[name] for name in others if name != worker.job]
    sharded = [state.jobs[name] for name in serving.sharded if name != worker.job]
    return any(_admits(tx, other, worker) and not any(fits(other, each) for each in free) for other in mine) or any(
        runnable(tx, other, worker) for other in sharded
    )


def _take_in(tx: Transaction) -> None:
    """Local workers serve the job that they are local to, as soon as there is one."""
    serving = tx.state.index.serving
    for name in sorted(serving.local.keys() & tx.state.jobs.keys()):
        if tx.state.jobs[name].failure is None:
            for worker in serving.local[name]:
                if worker.job != name:
                    _switch(tx, worker, name, f"it is local to {name}")
                    tx.state.index.touched.add(name)


def _served(tx: Transaction, job: Job, worker: Worker) -> int:
    if job.name == worker.job:
        return tx.state.turns + 1  # now
    return worker.served.get(job.name, 0) if job.spec.statically_owned else job.served


def _can_run(tx: Transaction, worker: Worker, name: str) -> bool:
    return runnable(tx, tx.state.jobs[name], worker)


def _as_seen(has: Standing, job: Job, worker: Worker) -> Standing:
    """How the job stands without this worker."""
    if _owns(job, worker):
        return Standing(0, has.share, min(0.0, has.ahead))  # nobody else can run what is this worker's share
    return Standing(has.workers - 1, has.share, has.ahead) if worker.job == job.name else has


def _switch(tx: Transaction, worker: Worker, name: str, reason: str) -> None:
    known = name in worker.open
    tx.emit(WorkerAssigned(worker.id, name, tx.now, reason))
    if name and not known:
        open_at(tx, worker.id, tx.state.jobs[name])


def dismiss_idle(tx: Transaction) -> None:
    """Close jobs at workers that no longer serve them, once nothing is kept there."""
    for worker in tx.state.index.serving.open_to_several:
        used = {name for name, _, _ in [*worker.kept.values(), *worker.unfinished.values()]}
        for name in [name for name in worker.open if name != worker.job and name not in used]:
            tx.to_worker(worker.id, CloseJob(name))
            tx.emit(WorkerDismissed(worker.id, name))
