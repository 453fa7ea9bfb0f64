"""Observations of the dispatcher's peers, noted with each input, before anything is decided."""

from __future__ import annotations

from millrace.control.inputs import ConsumerSaid, Input, JoinRequested, WorkerSaid
from millrace.control.state.observed import WINDOW_S, ClientObservation, Observed, WorkerObservation
from millrace.protocol import messages as msg


def observe(observed: Observed, item: Input, now: float) -> None:
    """Note when each peer was seen and what it reported."""
    if isinstance(item, WorkerSaid):
        observation = observed.workers.setdefault(item.worker, WorkerObservation(now))
        observation.last_seen = now
        if isinstance(item.message, msg.ProbeReport):
            observation.at[item.message.lease] = item.message
        elif isinstance(item.message, msg.TaskFinished | msg.TaskReturned | msg.TaskFailed):
            observation.at.pop(item.message.lease, None)
        if isinstance(item.message, msg.WorkerReport):
            if observation.report is not None and now > observation.reported:
                busy = item.message.busy_s - observation.report.busy_s
                observation.busy_share = min(1.0, max(0.0, busy / (now - observation.reported)))
            if observation.report is None or observation.report.job != item.message.job:
                observation.then = observation.next = None
            elif observation.next is None or now - observation.next_at >= WINDOW_S:
                observation.then, observation.next, observation.next_at = observation.next, item.message, now
            observation.report = item.message
            observation.reported = now
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
