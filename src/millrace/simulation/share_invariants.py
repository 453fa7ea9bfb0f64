"""Invariant of shares: who was told which tasks are all of its epoch was told so of every task that is its by now.

A consumer ends its epoch once it has what it was told of. What became its later, and it never heard of, is nobody's if
it comes last: which that is is for the network to say, so what is held against the state is what was said.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.control import actions as act
from millrace.control.state.state import State
from millrace.protocol import messages as msg
from millrace.simulation.virtual_network import Violation


class SharesTold:
    """By client, the epoch that it reads and the tasks that were said to be all of its share."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, frozenset[int]]] = {}

    def decided(self, state: State, actions: Iterable[act.Action]) -> None:
        """Take note of what is said, and hold it against the state."""
        for action in actions:
            if isinstance(action, act.SendToClient):
                if isinstance(action.message, msg.EpochEnds):
                    self._told[action.client] = action.message.epoch, frozenset(action.message.tasks)
                elif isinstance(action.message, msg.EpochBegun | msg.JobJoined):
                    self._told.pop(action.client, None)
        for client, (number, tasks) in self._told.items():
            name, consumer = state.clients.get(client, ("", -1))
            job = state.jobs.get(name)
            place = None if job is None else job.consumers.get(consumer)
            epoch = None if job is None else job.epochs.get(number)
            if job is None or place is None or epoch is None or job.failure is not None:
                continue
            unheard = {*epoch.shares.get(consumer, ())} - tasks if place.epoch == number else set[int]()
            if unheard and place.client == client and place.lost_at is None:
                raise Violation(
                    f"consumer {consumer} of job {name} was told all tasks of epoch {number}, and not of {unheard}"
                )
