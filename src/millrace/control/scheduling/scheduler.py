"""After each input: workers to jobs, sources to list, shares to fix, tasks to lease."""

from __future__ import annotations

from collections.abc import Collection

from millrace.control.journal.epoch_events import OwnersAsked, OwnersFixed
from millrace.control.journal.job_events import ListingAsked
from millrace.control.journal.task_events import TaskMoved
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.jobs import fail_job
from millrace.control.membership.resume import make_up
from millrace.control.membership.workers import release_drained
from millrace.control.scheduling.allocation import assign_workers, divide, preemptible, revoke_blocked
from millrace.control.scheduling.backlog import serving, unread_cap
from millrace.control.scheduling.shared_listings import await_listing, begin_listing, touch_waiting
from millrace.control.state.state import Job, Worker
from millrace.control.tasks.epochs import open_next
from millrace.control.tasks.leases import in_the_way, lease
from millrace.control.tasks.slots import active, round_robin, starving, unread, unread_alike
from millrace.control.tasks.task_queue import Candidate, candidate_for, must_rerun, some_pending
from millrace.protocol.messages import ChooseSharding, Failure, ListSources, ShardingChosen


def schedule(tx: Transaction) -> None:
    """Bring the jobs that ``tx`` has touched, and the workers that are free, up to date with the state."""
    touch_waiting(tx)
    for name in sorted(tx.state.index.touched & tx.state.jobs.keys()):
        _adopt_reruns(tx, tx.state.jobs[name])
    for _ in range(1 + len(tx.state.workers)):
        leaving = preemptible(tx)
        useless = revoke_blocked(tx, leaving)
        assign_workers(tx, leaving, useless)
        before = len(tx.events)
        jobs = tx.state.jobs
        touched = sorted((jobs[name] for name in tx.state.index.touched if name in jobs), key=_came)
        tx.state.index.touched.clear()
        for job in touched:
            if job.failure is None:
                _serve(tx, job, leaving)
        if len(tx.events) == before:
            break
    divide(tx)  # which holds from now on
    release_drained(tx)


def _came(job: Job) -> tuple[int, str]:
    """In this order jobs came."""
    return job.generation, job.name


def _serve(tx: Transaction, job: Job, leaving: set[str]) -> None:
    """Plan and lease whatever there is to; that was all if nothing of the job has changed since."""
    workers = tx.state.workers
    barred = frozenset(name for name in leaving if workers[name].job == job.name and workers[name].turn_leases)

    def serve() -> None:
        _plan(tx, job)
        make_up(tx, job)
        _lease_all(tx, job, barred)

    tx.state.index.until_changed(job.name, ("served", barred, await_listing(tx, job)), serve)


def _adopt_reruns(tx: Transaction, job: Job) -> None:
    """Give what runs again for its leftovers alone to the slot of its tail: nobody else waits for it.

    Who has read it may have left, or stopped reading, so that its lanes stand still.
    """
    if job.failure is not None or job.spec.sharding == "off":
        return
    for number, epoch in job.epochs.items():
        for slot, tasks in list(epoch.pending.items()):
            for task in sorted(tasks):
                if epoch.live[task].complete and must_rerun(tx.state, job, number, task):
                    heir = _slot_of_tail(tx, job, number, task)
                    if heir != slot:
                        tx.emit(TaskMoved(job.name, number, task, heir))


def _slot_of_tail(tx: Transaction, job: Job, number: int, task: int) -> int:
    """Find the slot that gets what becomes of the task's leftovers; if none does yet, one whose readers are there."""
    there, epoch = active(job), job.epochs[number]
    parent = tx.state.plan(job, number).task(task).parent
    while parent in epoch.live:
        tail = epoch.live[parent]
        if not tail.complete and tail.slot in there:
            return tail.slot
        parent = tx.state.plan(job, number).task(parent).parent
    mine = epoch.live[task].slot
    return mine if mine in there or not there else there[0]


def _plan(tx: Transaction, job: Job) -> None:
    """Have sources listed and shares fixed, where that is still to be done."""
    workers = serving(tx, job)
    if not workers:
        return
    if job.tables is None:
        if not job.lister and not await_listing(tx, job):
            worker = min(workers, key=lambda w: (len(w.unfinished), w.id))
            tables = begin_listing(tx, job)
            tx.emit(ListingAsked(job.name, worker.id, tables))
            tx.to_worker(worker.id, ListSources(job.name, tables))
        return
    open_next(tx, job)
    if not job.spec.statically_owned:
        return
    for number, epoch in list(job.epochs.items()):
        if epoch.owners or epoch.chooser or epoch.settled:
            continue
        names = [worker.id for worker in workers]
        if job.spec.sharding == "static":
            tx.emit(OwnersFixed(job.name, number, names))
        elif (length := job.tasks_of(epoch)) is not None and job.spec.sharding == "static_contiguous":
            tx.emit(OwnersFixed(job.name, number, names, contiguous=length))
        elif length is not None:
            tx.emit(OwnersAsked(job.name, number, names[0], names))
            tx.to_worker(names[0], ChooseSharding(job.name, number, length, names))


def sharding_chosen(tx: Transaction, worker: str, message: ShardingChosen) -> None:
    """Fix shares as the user's function says, if they can be so."""
    job = tx.state.jobs.get(message.job)
    epoch = job.epochs.get(message.epoch) if job is not None else None
    if job is None or epoch is None or epoch.chooser != worker:
        return
    count = len(epoch.candidates)
    wrong = ""
    if len(message.owners) != job.tasks_of(epoch):
        wrong = f"{len(message.owners)} answers for {job.tasks_of(epoch)} tasks"
    else:
        bad = next(((task, o) for task, o in enumerate(message.owners) if not 0 <= o < count), None)
        if bad is not None:
            wrong = f"worker {bad[1]} for task {bad[0]}, and there are {count} workers, 0 to {count - 1}"
    if wrong:
        text = f"the sharding function of job {job.name!r} gave {wrong}; it returns the index of a worker for each task"
        fail_job(tx, job, Failure("PipelineError", text))
        return
    tx.emit(OwnersFixed(job.name, message.epoch, epoch.candidates, message.owners))


def _lease_all(tx: Transaction, job: Job, barred: Collection[str]) -> None:
    if job.tables is None or not job.epochs:
        return
    workers = [worker for worker in serving(tx, job) if worker.id not in barred]
    if not workers:
        return
    for slot in active(job):
        # A slot with nothing to read gets a task although no worker has room: lanes are per slot, and those that fill
        # the room may be waiting for readers that do not read.
        if starving(job, slot):
            for worker in _by_room(job, workers):
                cap = unread_cap(tx, job, worker)
                found = candidate_for(tx.state, job, worker, slot, cap=cap, ahead=False)
                if found is not None:
                    lease(tx, job, worker, slot, found)
                if found is not None or _alike(tx, job):
                    break
        _make_room(tx, job, workers, slot)
    progress = True
    while progress and any(_takes_more(tx, job, slot, workers) for slot in active(job)):
        progress = False
        open_next(tx, job)
        for worker in _by_room(job, _with_room(tx, job, barred)):
            leased = _lease_one(tx, job, worker, workers)
            progress = progress or bool(leased)
            if leased is None and _alike(tx, job):
                return  # nor is there anything for another one


def _with_room(tx: Transaction, job: Job, barred: Collection[str]) -> list[Worker]:
    """Workers that want to have more of the job in hand."""
    known = tx.state.index.with_room(job.name, tx.observed.want)
    return [worker for worker in known if worker.id not in barred]


def _by_room(job: Job, workers: list[Worker]) -> list[Worker]:
    """Sort by what is in hand, the least first, but local ones before all others, unless any will do."""
    alike = job.spec.target_workers == "any"
    return sorted(workers, key=lambda worker: (not (alike or worker.pinned_job), len(worker.unfinished), worker.id))


def _alike(tx: Transaction, job: Job) -> bool:
    """Whether any of the job's workers could run what any other could."""
    return not job.spec.statically_owned and job.name not in tx.state.index.serving.local


def _takes_more(tx: Transaction, job: Job, slot: int, workers: list[Worker]) -> bool:
    """Something could be leased for the slot, to whichever worker."""
    if job.spec.deterministic or some_pending(tx.state, job, slot):
        return True
    # A local one and another, if there are both.
    kinds = (workers[0], workers[-1]) if job.name in tx.state.index.serving.local else workers[:1]
    return any(unread_alike(tx.state, job, slot, each) < unread_cap(tx, job, each) for each in kinds)


def _make_room(tx: Transaction, job: Job, workers: list[Worker], slot: int) -> None:
    """Lease tails and what runs again although no worker has room, where what fills the room is read later."""
    if not job.spec.deterministic and not some_pending(tx.state, job, slot):
        return
    while True:
        offers = []
        for worker in sorted(workers, key=lambda w: len(w.unfinished)):
            item = candidate_for(tx.state, job, worker, slot, cap=0, ahead=False)
            if item is not None:
                if len(worker.unfinished) < tx.observed.want(worker.id):
                    return
                offers.append((worker, item))
            elif _alike(tx, job):
                return  # nor is there anything for another one
        if not offers:
            return
        best = [(worker, item) for worker, item in offers if in_the_way(job, worker, slot, item)]
        if not best:
            # What fills the room is for others, who may be waiting for this; its own lane would run it at once.
            best = [(worker, item) for worker, item in offers if not _runs_for(job, worker, slot)]
        if not best:
            return
        worker, item = min(best, key=lambda pair: (len(in_the_way(job, pair[0], slot, pair[1])), pair[0].id))
        lease(tx, job, worker, slot, item)


def _runs_for(job: Job, worker: Worker, slot: int) -> bool:
    """Whether the worker has a task in hand for this slot."""
    held = worker.unfinished.values()
    mine = (job.epochs[number].live[task] for name, number, task in held if name == job.name)
    return any(task.slot == slot for task in mine)


def _lease_one(tx: Transaction, job: Job, worker: Worker, workers: list[Worker]) -> bool | None:
    """Whether the worker got a task; None if there was none."""
    nothing, cap = True, unread_cap(tx, job, worker)
    slots = sorted(active(job), key=lambda c: (unread(job, c), c))
    for ahead in (False, True):
        for slot in slots:
            found = candidate_for(tx.state, job, worker, slot, cap=cap, ahead=ahead)
            if found is None or (ahead and _greedy(job, slot, found)):
                continue
            nothing = False
            if not _better_elsewhere(tx, job, worker, workers, slot, found):
                lease(tx, job, worker, slot, found)
                return True
    return None if nothing else False


def _greedy(job: Job, slot: int, found: Candidate) -> bool:
    """Whether the task is of an epoch that nobody has begun, and other slots have been dealt fewer tasks of it.

    Who is first, be it by a moment, is not to find all of a small epoch prepared for it alone.
    """
    if round_robin(job):
        return False
    dealt = job.epochs[found.epoch].dealt
    return any(dealt.get(rival, 0) < dealt.get(slot, 0) for rival in active(job))


def _better_elsewhere(
    tx: Transaction, job: Job, worker: Worker, workers: list[Worker], slot: int, found: Candidate
) -> bool:
    """Another worker with room could run it without throwing away what it has computed for later."""
    if found.fresh or not in_the_way(job, worker, slot, found):
        return False
    return any(
        len(other.unfinished) < tx.observed.want(other.id)
        and not in_the_way(job, other, slot, found)
        and candidate_for(tx.state, job, other, slot, cap=0, ahead=False) == found
        for other in workers
        if other is not worker
    )
