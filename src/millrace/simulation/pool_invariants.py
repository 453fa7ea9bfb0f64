"""Invariants of which workers there are, and of what they can run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobBroke
from millrace.control.journal.worker_events import WorkerJoined, WorkerLost
from millrace.control.scaling.job_placement import may_serve
from millrace.control.state.state import State
from millrace.policies.scaling import respawn
from millrace.policies.scaling.capacity import DOUBLINGS
from millrace.simulation.simulated_pool import BEGIN_S
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_dispatcher import SimulatedDispatcher

STAYS_S = 10.0
"""A process that was given up has ended after so long, or is back."""
SLACK = 3
"""Waits for workers may be begun anew so often, as some come and others die."""


class PoolInvariants:
    """Hears of what one life of the dispatcher decides, and raises :class:`Violation`.

    Args:
        cluster: knows which processes run.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._life: SimulatedDispatcher | None = None
        self._given_up: dict[str, float] = {}
        self._short_since: float | None = None
        self._unregistered: dict[str, float] = {}

    def decided(self, dispatcher: SimulatedDispatcher, events: Sequence[Event]) -> None:
        """Check a state that has just been brought up to date."""
        if dispatcher is not self._life:  # what the one before had decided may never have been done
            self._life, self._given_up, self._short_since, self._unregistered = dispatcher, {}, None, {}
        for event in events:
            if isinstance(event, WorkerLost):
                self._given_up[event.worker] = self._cluster.network.now
            elif isinstance(event, WorkerJoined):
                self._given_up.pop(event.worker, None)
            elif isinstance(event, JobBroke) and event.failure.kind == "ElementTooLargeError":
                _check_too_large(dispatcher.state, event)

    def ticked(self, dispatcher: SimulatedDispatcher) -> None:
        """Time has passed."""
        if not self._cluster.owned or dispatcher.unwritable:
            self._short_since = None  # what is decided meanwhile is done later
            return
        now = self._cluster.network.now
        for worker, since in list(self._given_up.items()):
            process = self._cluster.workers[f"{worker}:1"]
            if not process.alive or process.only:
                del self._given_up[worker]
            elif now - since > STAYS_S:
                raise Violation(f"{worker} was given up {now - since:.0f} s ago, and its process is still there")
        state = dispatcher.state
        self._check_registered(state, now)
        there = len(state.index.serving.workers) + len(self._unregistered)
        if there >= max(1, state.fleet.workers) or state.fleet.workers <= state.settings.least_workers:
            self._short_since = None
            return
        self._short_since = now if self._short_since is None else self._short_since
        longest_s = SLACK * (state.settings.patience_s * 2**DOUBLINGS + BEGIN_S[1])
        if now - self._short_since > longest_s:
            raise Violation(
                f"{there} of {state.fleet.workers} workers are there for {longest_s:.0f} s, and all are still asked for"
            )

    def _check_registered(self, state: State, now: float) -> None:
        """Check that a process which hangs before it registers has ended in time."""
        known = self._unregistered
        self._unregistered = {
            name: known.get(name, now) for name in self._cluster.running() if name not in state.workers
        }
        longest_s = 2**respawn.DOUBLINGS * max(state.settings.patience_s, 3 * state.settings.heartbeat_s) + STAYS_S
        for name, since in self._unregistered.items():
            if now - since > longest_s:
                raise Violation(f"{name} has not registered for {longest_s:.0f} s, and its process is still there")


def _check_too_large(state: State, event: JobBroke) -> None:
    """No worker could have run what the job failed of."""
    job = state.jobs.get(event.job)
    if job is None:  # its last consumer has left at the same time
        return
    said = re.search(r" has ([\d,]+) bytes", event.failure.message)
    needs = job.needs if said is None else int(said[1].replace(",", ""))
    for worker in state.workers.values():
        there = worker.lost_at is None and not worker.draining and may_serve(job, worker)
        if there and worker.buffer_bytes >= needs:
            raise Violation(f"job {event.job} failed, and {worker.id} could have run it: {event.failure.message}")
