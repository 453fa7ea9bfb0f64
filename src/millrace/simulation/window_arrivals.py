"""Jobs that share a window: they come at any time, two under one name perhaps, each with a pace of its own."""

from __future__ import annotations

import random

import msgspec

from millrace.control.membership.groups import group_spec
from millrace.simulation.member_arrivals import WINDOW_MODES, MemberArrivals, finite_pipeline, group_of, stops_of

COME_S = (0.5, 5.0, 20.0, 40.0)
"""Seconds in which the members of a simulated group with a window come, each as likely as the others."""
TWICE = 0.2
"""Share of the members whose name another process uses as well."""
BYTES = (0, 1, 3, 8)
"""That workers keep, as jobs say it; 0: their slot's part of the buffer."""
BEHIND = (1, 1, 2, 8)
"""Tasks by which a member may be behind."""
TASKS = (2, 5, 1024)
"""That the dispatcher remembers of those that lie in windows."""


def tasks_behind(seed: int) -> int:
    """Draw by how many tasks a member that shares rounds in a window may be behind before it skips any."""
    return random.Random(f"behind {seed}").choice(BEHIND)


def remembered_tasks(seed: int) -> int:
    """Draw how many tasks that lie in windows the dispatcher remembers."""
    return random.Random(f"window tasks {seed}").choice(TASKS)


class WindowArrivals(MemberArrivals):
    """Members of the group with a window of a schedule, if it has one."""

    stream = "windows"

    def _draw(self) -> None:
        cluster, rng = self._cluster, self._rng
        spec = group_of(
            rng,
            finite_pipeline(rng),
            WINDOW_MODES,
            sharing="window",
            visitation=random.Random(f"visitation {cluster.seed}").choice(("at_most_once", "zero_once_or_more")),
            window_bytes=rng.choice(BYTES),
        )
        spec = cluster.rounds.draw_window(spec, cluster.pipelines)
        cluster.tenants[group_spec(spec).name] = spec.tenant
        within = rng.choice(COME_S)
        for number in range(rng.randrange(1, 6)):
            mine = msgspec.structs.replace(spec, name=f"window-{number}", epochs=rng.randrange(1, 4))
            for _ in range(1 + (rng.random() < TWICE)):
                stops = stops_of(rng)
                self._come(mine, rng.uniform(0.0, within), stops)
