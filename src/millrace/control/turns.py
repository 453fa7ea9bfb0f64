"""Which job each worker serves: a worker serves one at a time and changes at a task's end.

Two steps. :func:`yielding` says which workers get no more tasks of their job because another job should have them;
:func:`assign_workers` gives those that have nothing in hand to the job that policy names. What a worker keeps for
consumers that have not read it yet stays where it is, and is served beside the new job.
"""

from __future__ import annotations

import heapq

from millrace.control import events as ev
from millrace.control.jobs import open_message
from millrace.control.leasing import take_back
from millrace.control.messages import CloseJob
from millrace.control.state import Job, Worker
from millrace.control.supply import active, by_worker, newest, offer
from millrace.control.turn import Turn
from millrace.policies.assignment import JobNeed, assign

SPARE_CAP = 4


def serving(turn: Turn, job: Job) -> list[Worker]:
    """Workers that serve the job and can be given something."""
    return turn.state.crew.by_job.get(job.name, [])


def unread_cap(turn: Turn, job: Job) -> int:
    """Tasks that may lie unread at workers for one consumer: twice what the job's workers compute at a time."""
    return turn.state.once(
        job.name,
        "cap",
        lambda: max(SPARE_CAP, 2 * sum(turn.observed.want(worker.id) for worker in serving(turn, job))),
    )


def planning(job: Job, worker: Worker) -> bool:
    """The worker lists the job's sources or chooses its shares."""
    return job.lister == worker.id or any(epoch.chooser == worker.id for epoch in job.epochs.values())


def runnable(turn: Turn, job: Job, worker: Worker) -> bool:
    """The job has something for this worker to do now, the next epoch's preparation aside."""
    if job.failure is not None or not job.consumers:
        return False
    if job.tables is None:
        return job.lister in {"", worker.id}
    if by_worker(job) and _unowned(job):
        return True
    cap = unread_cap(turn, job)
    if worker.job != job.name:
        cap += 2 * turn.observed.want(worker.id)
    return turn.state.once(
        job.name,
        (cap, worker.id if by_worker(job) else ""),  # otherwise one worker is as good as another
        lambda: any(offer(turn.state, job, worker, c, cap=cap, ahead=False) is not None for c in active(job)),
    )


def _unowned(job: Job) -> bool:
    """An epoch that is read waits for its shares to be fixed."""
    last = newest(job)
    return any(n <= last and not epoch.owners and not epoch.settled for n, epoch in job.epochs.items())


def yielding(turn: Turn) -> set[str]:
    """Workers that get no more tasks of their job, as many as other jobs wait for."""
    crew, jobs = turn.state.crew, turn.state.jobs
    if len(jobs) < 2 or not crew.workers or "" in crew.by_job or not (crew.short or crew.sharded):
        return set()
    someone = crew.workers[0]  # all are alike, or nearly so
    waiting_jobs = [jobs[name] for name in crew.sharded]
    waiting_jobs += [
        job for job in map(jobs.__getitem__, crew.short) if not by_worker(job) and runnable(turn, job, someone)
    ]
    counts = dict.fromkeys(jobs, 0) | {name: len(workers) for name, workers in crew.by_job.items()}
    chosen: set[str] = set()
    donors: list[tuple[int, float, str]] | None = None
    for waiting in sorted(waiting_jobs, key=lambda job: (counts[job.name], job.served, job.name)):
        few = counts[waiting.name]
        if by_worker(waiting) and waiting.tables is not None and (few or not _unowned(waiting)):
            # Only the owners of its shares are of use to it, wherever they are now.
            useful = [
                worker
                for worker in _owners(turn, waiting)
                if worker.id not in chosen and _had_turn(turn, worker) and runnable(turn, waiting, worker)
            ]
            chosen.update(worker.id for worker in useful)
            continue
        if donors is None:
            donors = [(-counts[worker.job], worker.turn_began, worker.id) for worker in crew.workers]
            heapq.heapify(donors)
        donor = _donor(turn, donors, counts, chosen)
        if donor is not None and (not few or counts[donor.job] - few >= 2) and runnable(turn, waiting, donor):
            chosen.add(donor.id)
            counts[donor.job] -= 1
    return chosen


def _owners(turn: Turn, job: Job) -> list[Worker]:
    """Workers elsewhere that own shares of the job."""
    names = {name for epoch in job.epochs.values() for name in epoch.owned}
    owners = (turn.state.workers.get(name) for name in sorted(names))
    return [w for w in owners if w is not None and w.job != job.name and w.lost_at is None and not w.retiring]


def _donor(turn: Turn, donors: list[tuple[int, float, str]], counts: dict[str, int], chosen: set[str]) -> Worker | None:
    """The worker to go next: of the job with the most workers, longest with it. The heap is put right on the way."""
    while donors:
        size, began, name = donors[0]
        worker = turn.state.workers[name]
        if name in chosen or not _had_turn(turn, worker):
            heapq.heappop(donors)
        elif size != -counts[worker.job]:
            heapq.heapreplace(donors, (-counts[worker.job], began, name))
        else:
            return worker
    return None


def _had_turn(turn: Turn, worker: Worker) -> bool:
    job = turn.state.jobs.get(worker.job)
    if job is None or job.failure is not None:
        return True
    few = max(1, len(active(job)))
    long = worker.turn_leases >= 4 * few or turn.now - worker.turn_began >= turn.state.settings.turn_s
    return (long and worker.turn_leases >= few) or not runnable(turn, job, worker)


def revoke_blocked(turn: Turn, leaving: set[str]) -> None:
    """Take tasks from workers that others wait for and that would not come to a task's end in time."""
    settings = turn.state.settings
    for name in sorted(leaving):
        worker = turn.state.workers[name]
        job = turn.state.jobs.get(worker.job)
        if job is None or not worker.unfinished:
            continue
        held = [key for key in worker.unfinished.values() if key[0] == job.name]
        sight = turn.observed.workers.get(name)
        report = sight.report if sight is not None else None
        if sight is not None and report is not None and report.job == job.name and sight.reported > worker.turn_began:
            lanes = [lane for lane in report.lanes if lane.running or lane.blocked_s > 0]
            blocked = bool(lanes) and all(lane.blocked_s > settings.blocked_s for lane in lanes)
        else:
            blocked = False
        late = turn.now - worker.turn_began > settings.turn_limit_s * 2.0 ** min(job.cuts, 20)
        if late and not blocked:
            turn.emit(ev.TurnCut(job.name))
        for _, number, task in held:
            place = job.consumers.get(job.epochs[number].live[task].consumer)
            if blocked or late:
                why = "its consumers do not read" if blocked else "its task is too long for one turn"
                take_back(turn, job, number, task, f"{why}, and another job waits for worker {name}")
            elif place is not None and place.epoch < number:
                take_back(turn, job, number, task, f"prepared ahead, and another job waits for worker {name}")


def assign_workers(turn: Turn, leaving: set[str]) -> None:
    """Give workers that have nothing in hand to the job that should have them."""
    crew = turn.state.crew
    nothing_for: set[tuple[str, int, bool]] = set()
    for worker in crew.workers:
        if worker.unfinished:
            continue
        job = turn.state.jobs.get(worker.job)
        young = turn.now - worker.turn_began < turn.state.settings.turn_s
        alike = (worker.job, turn.observed.want(worker.id), young)
        if alike in nothing_for and worker.id not in leaving:
            continue
        if job is not None and planning(job, worker):
            continue
        if job is not None and worker.id not in leaving and runnable(turn, job, worker):
            turn.touched.add(job.name)
            continue
        needs = [
            JobNeed(
                need.name,
                _helpers(turn, need, worker),
                _served(turn, need, worker),
                runnable(turn, need, worker),
            )
            for need in turn.state.jobs.values()
            if need.failure is None
        ]
        serves = worker.job if job is not None and job.failure is None else ""
        if serves and worker.id not in leaving and young:
            # Changing has its price (functions are loaded anew): not for a moment without work, unless a job waits.
            needs = [need for need in needs if need.workers == 0 or need.job == serves]
        decision = assign(needs, serves)
        if decision.value and decision.value != worker.job:
            _switch(turn, worker, decision.value, decision.reason)
            nothing_for.clear()
        elif not crew.sharded and worker.id not in leaving:
            nothing_for.add(alike)  # nor is there for others like it
        leaving.discard(worker.id)  # its turn begins, be it with the same job
        turn.touched.add(worker.job)


def _served(turn: Turn, job: Job, worker: Worker) -> int:
    if job.name == worker.job:
        return turn.state.turns + 1  # now
    return worker.served.get(job.name, 0) if by_worker(job) else job.served


def _helpers(turn: Turn, job: Job, worker: Worker) -> int:
    if by_worker(job) and any(worker.id in epoch.owners for epoch in job.epochs.values()):
        return 0  # nobody else can run what is this worker's share
    return len(serving(turn, job)) - (worker.job == job.name)


def _switch(turn: Turn, worker: Worker, name: str, reason: str) -> None:
    known = name in worker.open
    turn.emit(ev.WorkerAssigned(worker.id, name, turn.now, reason))
    if not known:
        turn.to_worker(worker.id, open_message(turn.state.jobs[name]))


def dismiss_idle(turn: Turn) -> None:
    """Close jobs at workers that no longer serve them, once nothing is kept there."""
    for worker in turn.state.crew.open_to_several:
        used = {name for name, _, _ in [*worker.kept.values(), *worker.unfinished.values()]}
        for name in [name for name in worker.open if name != worker.job and name not in used]:
            turn.to_worker(worker.id, CloseJob(name))
            turn.emit(ev.WorkerDismissed(worker.id, name))
