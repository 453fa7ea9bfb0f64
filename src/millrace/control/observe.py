"""Observations of the dispatcher's peers, noted with each input, before anything is decided."""

from __future__ import annotations

from millrace.control.inputs import ConsumerSaid, Input, JoinRequested, WorkerSaid
from millrace.control.state.observed import WINDOW_S, ClientObservation, Observed, WorkerObservation
from millrace.protocol import messages as msg


def observe(observed: Observed, item: Input, now: float) -> None:
    """Note when each peer was seen and what it reported."""
    if isinstance(item, WorkerSaid):
        sight = observed.workers.setdefault(item.worker, WorkerObservation(now))
        sight.last_seen = now
        if isinstance(item.message, msg.ProbeReport):
            sight.at[item.message.lease] = item.message
        elif isinstance(item.message, msg.TaskFinished | msg.TaskReturned | msg.TaskFailed):
            sight.at.pop(item.message.lease, None)
        if isinstance(item.message, msg.WorkerReport):
            if sight.report is not None and now > sight.reported:
                busy = item.message.busy_s - sight.report.busy_s
                sight.busy_share = min(1.0, max(0.0, busy / (now - sight.reported)))
            if sight.report is None or sight.report.job != item.message.job:
                sight.then = sight.next = None
            elif sight.next is None or now - sight.next_at >= WINDOW_S:
                sight.then, sight.next, sight.next_at = sight.next, item.message, now
            sight.report = item.message
            sight.reported = now
    elif isinstance(item, JoinRequested):
        observed.clients.setdefault(item.message.client, ClientObservation(now)).last_seen = now
    elif isinstance(item, ConsumerSaid):
        if isinstance(item.message, msg.LeaveJob):
            observed.clients.pop(item.client, None)
            return
        client = observed.clients.setdefault(item.client, ClientObservation(now))
        client.last_seen = now
        if isinstance(item.message, msg.ConsumerReport):
            client.report = item.message
