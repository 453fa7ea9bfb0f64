"""Sentences that say what jobs, consumers and workers do or wait for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from millrace.control.membership.late_joins import named, span
from millrace.control.state.observed import Observed
from millrace.control.state.serving_index import fits
from millrace.control.state.state import Job, State, Worker
from millrace.control.tasks.job_load import load_of, window_of
from millrace.control.tasks.slots import missing, unread_by
from millrace.control.tasks.window_tasks import lies_in_window
from millrace.policies.bottleneck import Bottleneck, bottleneck
from millrace.policies.decision import Decision, listed
from millrace.policies.figures import duration
from millrace.protocol.reports import LaneReport


def kept(state: State, job: Job, now: float) -> dict[str, Any] | None:
    """Which consumers a job that nobody reads is kept for, and how many seconds more; None: somebody reads it."""
    if job.kept_at is None:
        return None
    for_s = job.kept_at + state.settings.job_gc_timeout_s - now
    return {"consumers": missing(job), "for_s": max(0.0, for_s)}


def division_of(state: State, observed: Observed, job: Job, now: float) -> dict[str, Any]:
    """Claim of the job on the workers, and whom it waits for, if it has none."""
    found: dict[str, Any] = {"tenant": job.spec.tenant, "priority": job.spec.priority, "share": None, "why": None}
    found |= {"waits_s": None, "waits_for": [], "behind": []}
    division = observed.division
    if division is None or job.name not in division.shares:
        return found
    decision = division.shares[job.name]
    found |= {"share": decision.value, "why": decision.reason}
    since = division.waiting.get(job.name)
    if since is None:
        return found
    own = [name for name in division.counts if name in state.jobs and state.jobs[name].spec.tenant == job.spec.tenant]
    full = sum(division.counts[name] for name in own) >= state.settings.quotas.get(job.spec.tenant, math.inf)
    rivals = own if full else list(division.counts)
    serving = [name for name in rivals if division.counts[name]]
    # As whoever gives workers away orders them.
    standings = {name: division.standing(name, now) for name in rivals if name in division.waiting}
    order = sorted(standings, key=lambda name: (not standings[name].short, standings[name].ahead))
    behind = order[: order.index(job.name)]
    return found | {"waits_s": max(0.0, now - since), "waits_for": sorted(serving), "behind": behind}


def why_job(
    state: State, observed: Observed, job: Job, serving: list[Worker], found: Decision[Bottleneck], now: float
) -> str:
    """Say what a job does or waits for; while it runs, also its bottleneck."""
    name = job.name
    if job.failure is not None:
        return (
            f"job {name} has failed: {job.failure.message.splitlines()[0] if job.failure.message else job.failure.kind}"
        )
    held = kept(state, job, now)
    if held is not None:
        return f"job {name} is kept for {named(held['consumers'])}, not seen yet, for {span(held['for_s'])} more"
    if not serving and job.spec.target_workers == "local":
        return f"job {name} waits for local workers, which its consumers start"
    if not serving:
        others = [worker for worker in state.workers.values() if worker.lost_at is None and not worker.pinned_job]
        if not others:
            return f"job {name} waits for a worker: none is registered"
        return why_waiting(state, observed, job, others, now)
    count = "1 worker" if len(serving) == 1 else f"{len(serving)} workers"
    if job.tables is None:
        return f"job {name} {_why_not_listed(observed, job)}"
    if job.newest < 0:
        return f"job {name} is ready and waits for a consumer to begin an epoch"
    if not any(place.lost_at is None for place in job.consumers.values()):
        return f"job {name} waits for its consumers to come back"
    asked = [epoch.chooser for epoch in job.epochs.values() if epoch.chooser]
    if asked:
        return f"job {name} waits for worker {asked[0]} to run the user's sharding function"
    shares = observed.division.shares if observed.division is not None else {}
    share = f"; {shares[name].reason}" if len(shares) > 1 and name in shares else ""
    slowed = f"; bottleneck: {found.reason}" if found.value != "unknown" else ""
    absent = missing(job) if job.spec.coordinated else []
    awaited = f"; {_absent(absent)}, and all ranks read every round" if absent else ""
    return f"job {name} runs on {count}{slowed}{share}{awaited}"


def _why_not_listed(observed: Observed, job: Job) -> str:
    files = files_listed(observed, job)
    so_far = f": {files:,} files so far" if files else ""
    if job.lister:
        return f"waits for its sources to be listed by worker {job.lister}{so_far}"
    awaited = observed.awaited_listings.get(job.name)
    return f"waits for the listing of job {awaited}, whose sources are the same" if awaited else "starts"


def why_waiting(state: State, observed: Observed, job: Job, others: list[Worker], now: float) -> str:
    """Why a job has no worker though there are some."""
    claim, name, count = division_of(state, observed, job, now), job.name, len(others)
    if claim["waits_s"] is None:
        return f"job {name} has no work for a worker now"
    there = "1 worker" if count == 1 else f"{count} workers"
    if job.spec.tenant in state.settings.quotas:
        there += f", of which tenant {job.spec.tenant} may have {state.settings.quotas[job.spec.tenant]}"
    text = f"job {name} has waited {duration(round(claim['waits_s']))} for a worker: {there}"
    if not claim["waits_for"]:
        return f"{text}, leaving"
    behind = f", after {listed(claim['behind'])}" if claim["behind"] else ""
    return f"{text}, serving {listed(claim['waits_for'])}; its turn comes at the end of a task{behind}"


def why_consumer(job: Job, index: int, now: float) -> str:
    """Say what a consumer does or waits for."""
    place = job.consumers[index]
    if place.lost_at is not None:
        return f"its session broke {duration(round(max(0.0, now - place.lost_at)))} ago; its place is kept for a while"
    if job.failure is not None:
        return "the job has failed"
    if place.epoch < 0:
        return "has joined and not begun an epoch"
    epoch = job.epochs.get(place.epoch)
    if epoch is None:
        return "waits for the job's sources to be listed"
    tasks = unread_by(job, epoch, index)
    if not tasks:
        return "has read all that is its" if epoch.settled else "waits for a task"
    ready = sum(epoch.live[task].finished for task in tasks)
    waiting = sum(len(epoch.pending.get(slot, ())) for slot in job.slots_of([index]))
    return f"{len(tasks)} tasks to read, {ready} of them computed, {waiting} waiting for a worker"


def files_listed(observed: Observed, job: Job) -> int | None:
    """Files that the worker which lists the job's sources has looked at, as it said last; None: nobody lists them."""
    if not job.lister:
        return None
    report = observed.worker_report(job.lister)
    return report.listed if report is not None and report.listing == job.name else 0


def why_worker(state: State, worker: Worker, lanes: Sequence[LaneReport], now: float) -> str:
    """Say what a worker does or waits for."""
    if worker.lost_at is not None:
        return f"its session broke {duration(round(max(0.0, now - worker.lost_at)))} ago; it may come back"
    if worker.draining:
        return "is leaving: it gets no more tasks"
    if worker.pinned_job and not worker.job:
        return f"waits for job {worker.pinned_job}, which it is local to"
    small = [job for job in state.jobs.values() if job.failure is None and not fits(job, worker)]
    if small and not worker.job:
        needs = min(job.needs for job in small)
        names = listed([job.name for job in small])
        return f"has too small a buffer for {names}: {worker.buffer_bytes:,} bytes, where {needs:,} are needed"
    if not worker.job:
        return "waits for a job" if not state.jobs else "has nothing to do: no job has work for it"
    job = state.jobs.get(worker.job)
    if job is not None and job.lister == worker.id:
        return f"lists the sources of {worker.job}"
    tasks = sum(name == worker.job for name, _, _ in worker.unfinished.values())
    if worker.unfinished and lanes and all(lane.blocked_s > 0 for lane in lanes):
        return f"has computed ahead for {worker.job} and waits for its consumers to read"
    if worker.unfinished:
        others = f", and {_tasks(len(worker.unfinished) - tasks)} of others" if tasks < len(worker.unfinished) else ""
        return f"computes {_tasks(tasks)} of {worker.job}{others}"
    if worker.kept:
        kept = sum(not lies_in_window(state, *key) for key in worker.kept.values())
        rest = f"{_tasks(kept)} still to be read" if kept else "it lies in a window for slower jobs and late ones"
        return f"has computed what it had of {worker.job}: {rest}"
    return f"serves {worker.job}, which has no task for it now"


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def why_nothing(state: State, observed: Observed, client: str, now: float) -> str:
    """Say what a consumer waits for that has had no element yet; empty: it is none."""
    place = state.clients.get(client)
    if place is None:
        return ""
    job, index = state.jobs[place[0]], place[1]
    absent = missing(job)
    if job.first is None:
        there = f", and {_absent(absent)}" if absent else ""
        return f"job {job.name} waits until all ranks have loaded their states{there}"
    serving = [worker for worker in state.workers.values() if worker.job == job.name and worker.lost_at is None]
    found = bottleneck(load_of(state, observed, job, window_of(observed, job.name)))
    why = why_job(state, observed, job, serving, found, now)
    if job.spec.equal_steps and absent:
        return f"{why}; with equal_steps=True nobody has a step before all have one, and {_absent(absent)}"
    if not serving or job.tables is None or job.failure is not None:
        return why
    return f"{why}; consumer {index}: {why_consumer(job, index, now)}"


def _absent(consumers: Sequence[int]) -> str:
    return f"{named(consumers)} {'has' if len(consumers) == 1 else 'have'} not come yet"
