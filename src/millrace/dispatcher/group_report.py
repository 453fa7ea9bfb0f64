"""Report of a group of jobs that share one computation: who is in it, how far, and what that saves."""

from __future__ import annotations

from typing import Any

from millrace.control.state.observed import GroupObservation, MemberObservation, Observed
from millrace.control.state.state import Job, State
from millrace.control.tasks.group_progress import lag, saved, shares
from millrace.dispatcher.spent_report import spent_rows


def group_of(state: State, observed: Observed, job: Job, now: float) -> dict[str, Any] | None:
    """Report a group; None: the job is of its consumers alone.

    Costs are divided by how fast members read, see :func:`millrace.control.tasks.group_progress.shares`.
    """
    if not job.spec.sharing:
        return None
    observation = observed.groups.get(job.name, GroupObservation())
    given, made, saved_s = saved(observed, job)
    lanes = [
        lane
        for each in observed.workers.values()
        if each.report is not None and each.report.job == job.name
        for lane in each.report.lanes
    ]
    return {
        "sharing": job.spec.sharing,
        "fingerprint": job.name.removeprefix(f"{job.spec.sharing}-"),
        "members": _members(observed, job, observation, now),
        "detached": [
            {"member": each.member, "ago_s": max(0.0, now - each.at), "why": each.why} for each in observation.detached
        ],
        "given": given,
        "made": made,
        "readers": given / made if made else None,
        "saved_core_s": saved_s,
        "window": {"bytes": sum(lane.buffered_bytes for lane in lanes), "hits": sum(lane.hits for lane in lanes)},
        "spent": [
            {"member": name, **row}
            for name, epochs in sorted(observation.spent.items())
            for row in spent_rows(state, job, epochs)
        ],
    }


def _members(observed: Observed, job: Job, observation: GroupObservation, now: float) -> list[dict[str, Any]]:
    parts = shares(observed, job)
    rows = []
    for index, place in sorted(job.consumers.items()):
        seen = observation.members.get(index, MemberObservation())
        rows.append(
            {
                "member": place.member,
                "index": index,
                "host": place.host,
                "pid": place.pid,
                "connected": place.lost_at is None,
                "since_s": max(0.0, now - place.since),
                "epoch": place.epoch,
                "elements": seen.read + seen.batches,
                "skipped": seen.skipped + seen.missed,
                "behind": lag(job, index),
                "share": parts.get(index, 0.0),
            }
        )
    return rows
