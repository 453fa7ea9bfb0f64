"""View of a service's status that a caller may have: jobs that its right is about, and what all may know."""

from __future__ import annotations

from typing import Any

from millrace.control.membership.access import sees
from millrace.control.state.state import State
from millrace.protocol.caller import Caller

HIDDEN = "serves a job that is not shown to you"


def shown_to(caller: Caller, state: State, report: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a report what the caller may not see: others' jobs, what they have kept, and that they are over."""
    if caller.admin or caller.rights.status == "all":
        return report
    seen = {name for name, job in state.jobs.items() if sees(caller, job.owner, job.spec.tenant)}
    return {
        **report,
        "jobs": [job for job in report["jobs"] if job["name"] in seen],
        "workers": [_worker(row, seen) for row in report["workers"]],
        "finished": [],  # whose they were is not known any more
        "cache": report["cache"] and _cache(report["cache"], caller, seen),
        "source_cache": {
            "servers": [],
            "rooms": [],
            "data": [],
        },  # counts would tell whether another tenant has what one inserts
    }


def _cache(cache: dict[str, Any], caller: Caller, seen: set[str]) -> dict[str, Any]:
    points = [point for point in cache["points"] if point["writer"] in (None, caller.tenant)]
    shown = [{**point, "jobs": [name for name in point["jobs"] if name in seen]} for point in points]
    tenants = [each for each in cache["tenants"] if each["tenant"] == caller.tenant]
    return {**cache, "points": shown, "tenants": tenants}


def _worker(row: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    if row["job"] is None or row["job"] in seen:
        return row
    return {**row, "job": None, "lanes": [], "assigned": HIDDEN, "why": HIDDEN}
