"""Status report: what the service is doing and who waits for what, as plain values for ``millrace status``."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from millrace.control.caching import byte_quotas, source_chunks, source_rooms
from millrace.control.caching.cache_capacity import benefits
from millrace.control.caching.profiling import measures, summed
from millrace.control.reasons import division_of, files_listed, kept, why_consumer, why_job, why_worker
from millrace.control.scaling.job_placement import told
from millrace.control.state.ended_jobs import FinishedJob
from millrace.control.state.observed import CacheObservation, Observed, ResourceUsage, SourceObservation
from millrace.control.state.state import PROBE_EACH, Epoch, Job, State, UnreadShare, Worker
from millrace.control.tasks import job_progress
from millrace.control.tasks.job_load import load_of, operator_rows, window_of
from millrace.control.tasks.task_queue import off_walk
from millrace.control.tasks.unread import said, shares
from millrace.dispatcher.group_report import group_of
from millrace.dispatcher.spent_report import spent_by_dispatcher, spent_rows
from millrace.host_limits import resident_bytes
from millrace.policies.bottleneck import bottleneck
from millrace.policies.scaling.scaling_policies import kind_of
from millrace.protocol.crash_sites import Poison

_MOST_COUNTED = 100_000
"""Most tasks of an epoch without sharding for which the parts of the data that they read are counted."""
STALE_S = 20.0
"""Seconds after which a worker's or consumer's report says nothing about the present."""


def status(
    state: State,
    observed: Observed,
    now: float,
    *,
    work_dir: str | None = None,
    unwritable: str = "",
    plan: int = 0,
    requested: int = 0,
    why: str = "",
    dispatcher: ResourceUsage | None = None,
) -> dict[str, Any]:
    """Report everything, ready for JSON.

    Args:
        state: of the dispatcher.
        observed: reports of workers and consumers.
        now: of the clock of the reports, in seconds.
        work_dir: where the journal is, None without one.
        unwritable: why it cannot be written, empty if it can.
        plan: workers that there should be, 0 if nobody plans.
        requested: workers that a cluster was asked for and that have not ended.
        why: a sentence about the difference, if there is something to say.
        dispatcher: use of this process itself so far, as one worker's.
    """
    jobs = [state.jobs[name] for name in sorted(state.jobs)]
    here = sum(worker.lost_at is None and not worker.pinned_job for worker in state.workers.values())
    return {
        "version": state.settings.version,
        "heartbeat_s": state.settings.heartbeat_s,
        "jobs": [_job(state, observed, job, now, plan, requested) for job in jobs],
        "workers": [_worker(state, observed, state.workers[name], now) for name in sorted(state.workers)],
        "finished": [_finished(each, now) for each in reversed(state.finished)],
        "scaling_policy": state.settings.scaling_policy,
        "dispatcher": None if dispatcher is None else spent_by_dispatcher(state, dispatcher),
        "prices": None if state.settings.prices is None else msgspec.to_builtins(state.settings.prices),
        "fleet": {"plan": plan, "requested": requested, "observed": here, "why": why or state.fleet.reason},
        "journal": {"work_dir": work_dir, "why": _why_journal(work_dir, unwritable)},
        "cache": _cache(state, now),
        "source_cache": {
            "servers": _cache_servers(observed, now),
            "rooms": _rooms(state, observed),
            "data": _in_chunks(state),
        },
    }


def _cache_servers(observed: Observed, now: float) -> list[dict[str, Any]]:
    """Report the cache servers that are there, by address."""
    servers = sorted(observed.cache_servers.items(), key=lambda item: item[1].address)
    return [
        {
            "name": name,
            "address": each.address,
            "host": each.host,
            "pid": each.pid,
            "zone": each.zone,
            "most_bytes": each.most_bytes,
            "seen_s": max(0.0, now - each.last_seen),
            "counts": msgspec.structs.asdict(each.counts),
        }
        for name, each in servers
    ]


def _rooms(state: State, observed: Observed) -> list[dict[str, Any]]:
    """Report how much of each data set cache servers keep, why, and what was measured of the jobs that read it."""
    read = source_rooms.data_read(state)
    return [
        {
            "data": data,
            "bytes": given.bytes,
            "room": given.room,
            "why": given.reason,
            "jobs": {job.name: _measured(observed, job.name) for job in read[data].jobs} if data in read else {},
        }
        for data, given in state.caches.rooms.items()
    ]


def _measured(observed: Observed, job: str) -> dict[str, Any]:
    """Report what a batch of a job takes without the source cache, and with it, in seconds; None: not measured."""
    observation = observed.sources.get(job, SourceObservation())
    return {
        "miss_s": observation.miss_s,
        "hit_s": observation.hit_s,
        "estimated": observation.estimated,
        "two_chunks_s": observation.two_chunks_s,
        "probing": observation.past,
    }


def _in_chunks(state: State) -> list[dict[str, Any]]:
    """Report the data sets that are read in chunks: which ones cache servers keep, and which one each job reads."""
    return [
        {
            "data": data,
            "chunks": known.chunks,
            "kept": known.kept,
            "jobs": jobs,
            "why": known.reason,
            "why_chunks": source_chunks.why(state, data),
        }
        for data, known in state.caches.source_chunks.items()
        if (jobs := source_chunks.readers(state, data))
    ]


def own_use(alive_s: float) -> ResourceUsage:
    """Measure what this process has used in ``alive_s`` seconds, as one worker's; its memory counts as it is now."""
    return ResourceUsage(worker_s=alive_s, core_s=time.process_time(), gib_s=resident_bytes() / (1 << 30) * alive_s)


def _finished(job: FinishedJob, now: float) -> dict[str, Any]:
    """Report a job that is over."""
    return {
        "name": job.name,
        "ended_s": max(0.0, now - job.at),
        "why": job.why,
        "seconds": job.seconds,
        "epochs": job.epochs,
        "elements": job.elements,
        "wait_share": min(1.0, job.pace.waited_s / job.pace.read_s) if job.pace.read_s > 0 else None,
        "bottleneck": job.bottleneck,
        "failure": job.failure,
    }


def _why_journal(work_dir: str | None, unwritable: str) -> str:
    if unwritable:
        return f"the service stands still: {unwritable}"
    if work_dir is None:
        return "nothing outlives the dispatcher: it was started without a work_dir"
    return f"what is going on outlives the dispatcher, in {work_dir}"


def _job(state: State, observed: Observed, job: Job, now: float, plan: int, requested: int) -> dict[str, Any]:
    serving = [worker for worker in state.workers.values() if worker.job == job.name and worker.lost_at is None]
    readers = [(index, place, observed.report(place.client)) for index, place in sorted(job.consumers.items())]
    reports = [report for _, _, report in readers if report is not None]
    times = [report.batch_time_s for report in reports if report.batch_time_s > 0]
    waits = [min(1.0, report.wait_s / report.batch_time_s) for report in reports if report.batch_time_s > 0]
    number = job.newest
    epoch = job.epochs.get(number, Epoch())
    leased = sum(1 for live in epoch.live.values() if live.worker and not live.complete)
    read_but_kept = sum(live.complete for live in epoch.live.values())
    window = window_of(observed, job.name)
    found = bottleneck(load_of(state, observed, job, window, plan, requested))
    operators = summed(measures(observed, job.name), {})
    unread = _shares(state, observed, job)
    return {
        "name": job.name,
        "epoch": number,
        "mode": job.caching.kind,
        "cache": _caching(state, observed, job),
        "sharding": job.spec.sharding,
        "workers": _scaling(job, len(serving)),
        "where": {
            "target": job.spec.target_workers,
            "local": sum(bool(worker.pinned_job) for worker in serving),
            "remote": sum(not worker.pinned_job for worker in serving),
            "why": told(state, job),
        },
        "division": division_of(state, observed, job, now),
        "group": group_of(state, observed, job, now),
        "accelerators": job.spec.accelerators,
        "spent": spent_rows(state, job, observed.usage.get(job.name, {})),
        "batch_time_s": sum(times) / len(times) if times else None,
        "wait_share": sum(waits) / len(waits) if waits else None,
        "consumers": [
            {
                "index": index,
                "host": place.host,
                "pid": place.pid,
                "member": place.member or None,
                "epoch": place.epoch,
                "connected": place.lost_at is None,
                "batches": report.batches if report is not None else 0,
                "why": why_consumer(job, index, now),
            }
            for index, place, report in readers
        ],
        "operators": operator_rows(operators, window.nodes, window.seconds),
        "progress": job_progress.progress(state, observed, job, now),
        "epochs": job_progress.epochs(observed, job),
        "tasks": {"total": job.tasks_of(epoch), "done": epoch.done + read_but_kept - epoch.dropped, "leased": leased},
        "skipped": _skipped(job),
        "reruns": {
            "compared": sum(report.reruns for report in reports),
            "differed": sum(report.differed for report in reports),
        },
        "listed": files_listed(observed, job),
        "failure": job.failure.message if job.failure is not None else None,
        "bottleneck": msgspec.to_builtins(found),
        "kept": kept(state, job, now),
        "unread": [_unread(share) for share in unread],
        "why": why_job(state, observed, job, serving, found, now),
        "left_out": sum(report.left_out for report in reports) + _undivided(state, job, number) + _unfilled(job),
        "lost": {"tasks": job.lost, "elements": job.lost_elements},
        "poison": [poison.where for poison in _poison(job)],
        "notes": [
            *_notes(job, [report.impure for report in reports]),
            *_visits(state, job, number),
            *([said(job, unread)] if unread else []),
        ],
    }


def _unread(share: UnreadShare) -> dict[str, Any]:
    return {
        "epoch": share.epoch,
        "consumer": share.consumer,
        "tasks": share.tasks,
        "elements": share.elements if share.elements >= 0 else None,
        "why": f"consumer {share.consumer} {share.why}",
    }


def _shares(state: State, observed: Observed, job: Job) -> list[UnreadShare]:
    """Find what nobody reads of the job's epochs that are settled, or consumers that are not there."""
    found = [share for share in job.unread if share.epoch not in job.epochs or share.epoch > job.newest]
    for number in sorted(each for each in job.epochs if each <= job.newest):
        found += shares(state, observed, job, number)
    return found


def _scaling(job: Job, serving: int) -> dict[str, Any]:
    """Report how many workers the job has, how many it is to have, and why."""
    scaling = job.scaling
    if scaling is None:
        return {"plan": None, "observed": serving, "why": "their number is not the service's affair", "history": []}
    return {
        "plan": scaling.scale.workers,
        "observed": serving,
        "phase": scaling.scale.phase,
        "policy": kind_of(scaling.search),
        "why": scaling.reason,
        "history": [{"at": at, "workers": workers, "why": why} for at, workers, why in scaling.history],
    }


_NOT_LISTED = "its data is not listed yet"
_NO_POINT = "the pipeline has no cache point that this service could use"


def _caching(state: State, observed: Observed, job: Job) -> dict[str, Any]:
    """Report what the job does about its cache points, and why."""
    observation = observed.caching.get(job.name, CacheObservation())
    labels = {point.node: point.label for point in job.points}
    return {
        "point": labels.get(job.caching.node),
        "why": job.caching.reason or (_NOT_LISTED if job.tables is None else _NO_POINT),
        "history": [{"epoch": epoch, "mode": kind} for epoch, kind in job.caching.history],
        "unused": [{"point": point.label, "why": point.why} for point in job.points if point.why],
        "trusts": state.settings.trust.get(job.spec.tenant, []),
        "hits": observation.hits,
        "misses": observation.misses,
        "lost": observation.lost,
        "trouble": observation.trouble or (byte_quotas.full(state, job.spec.tenant) if observation.full else ""),
    }


def _cache(state: State, now: float) -> dict[str, Any] | None:
    """Report what is kept, and what it is worth."""
    if not state.settings.cache:
        return None
    worth = benefits(state, now)
    return {
        "location": state.settings.cache,
        "bytes": sum(cached.bytes for cached in state.caches.points.values() if not cached.path),
        "taken": state.caches.taken,
        "limit": state.settings.cache_bytes,
        "measured": "" in state.caches.costs,
        "tenants": [
            {"tenant": tenant, "taken": state.caches.taken_by(tenant), "quota": quota}
            for tenant, quota in sorted(state.settings.byte_quotas.items())
        ],
        "points": [
            {
                "point": name,
                "writer": cached.writer or None,
                "label": cached.label,
                "bytes": cached.bytes,
                "blocks": len(cached.blocks),
                "items": cached.items,
                "whole": cached.whole or None,
                "saves_per_gib": worth[name] * (1 << 30),
                "jobs": sorted(job for job in cached.uses if job in state.jobs),
            }
            for name, cached in sorted(state.caches.points.items())
        ],
    }


def _poison(job: Job) -> list[Poison]:
    """Find what ended workers and is not touched any more."""
    lives = [live for epoch in job.epochs.values() for live in epoch.live.values()]
    return [*job.poison, *(poison for live in lives for poison in live.poison)]


def _notes(job: Job, impure: list[str]) -> list[str]:
    """Write sentences that the job's user should read."""
    notes = [f"{poison.where} ended the workers that came to it, and is not tried again" for poison in _poison(job)]
    careful = sum(epoch.live[task].deaths >= PROBE_EACH for epoch in job.epochs.values() for task in epoch.suspected)
    if careful:
        notes.append(f"{careful} tasks ended {PROBE_EACH} workers each and are run element by element, to find out why")
    return list(dict.fromkeys(filter(None, [*impure, *notes])))


def _undivided(state: State, job: Job, number: int) -> int:
    """Count the elements of an epoch that nobody gets, so that all consumers get equally many."""
    return state.plan(job, number).left_out if job.tables is not None and job.failure is None else 0


def _skipped(job: Job) -> int:
    """Count the elements that ``on_error`` left out of all epochs that somebody has begun."""
    return job.skipped - sum(epoch.skipped for number, epoch in job.epochs.items() if number > job.newest)


def _unfilled(job: Job) -> int:
    """Count the elements that filled no round of all ranks, of all epochs that somebody has begun."""
    read = [epoch for number, epoch in job.epochs.items() if number <= job.newest]
    return job.left_out + sum(count for epoch in read for count in epoch.left_out.values())


def _visits(state: State, job: Job, number: int) -> list[str]:
    """Say what a weaker guarantee has cost so far."""
    if job.lost:
        elements = f", at most {job.lost_elements} elements" if job.lost_elements else ""
        choice = f"Visitation.{job.spec.visitation.upper()}"
        return [f"{job.lost} tasks went with their workers{elements}; they are not run again, by {choice}"]
    epoch = job.epochs.get(number)
    if epoch is None or job.spec.sharding != "off" or job.length is None:
        return []
    walks = [step for name, step in epoch.cursors.items() if name.startswith("off:")]
    plan = state.plan(job)
    dealt = f"without sharding {sum(walks)} tasks of epoch {number} were dealt"
    if sum(walks) > _MOST_COUNTED:
        return [dealt]
    runs = [off_walk(plan, job.seed, number, i, np.arange(step) % job.length) for i, step in enumerate(walks)]
    seen = len(np.unique(np.concatenate(runs))) if runs else 0
    return [f"{dealt}: {seen} of {job.length} parts of the data"]


def _worker(state: State, observed: Observed, worker: Worker, now: float) -> dict[str, Any]:
    observation = observed.workers.get(worker.id)
    report = observation.report if observation is not None else None
    fresh = observation is not None and now - observation.reported < STALE_S
    lanes = report.lanes if report is not None and fresh else []
    return {
        "id": worker.id,
        "address": worker.address,
        "host": worker.host,
        "pid": worker.pid,
        "cores": worker.cores,
        "zone": observed.cache_clients.get(worker.id, ""),
        "job": worker.job or None,
        "local": bool(worker.pinned_job),
        "leases": len(worker.unfinished),
        "kept": len(worker.kept),
        "lanes": [
            {
                "consumer": lane.consumer,
                "running": lane.running,
                "blocked_s": lane.blocked_s,
                "buffered_bytes": lane.buffered_bytes,
            }
            for lane in lanes
        ],
        "busy_share": observation.busy_share if observation is not None and fresh and worker.job else None,
        "assigned": worker.reason,
        "why": why_worker(state, worker, lanes, now),
    }
