"""Running a lease with care: the dispatcher knows where the run is, so that it knows what ended the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from millrace.engine.user_code.crash_probe import BEGINNING, Watch, between
from millrace.protocol.crash_sites import Place
from millrace.protocol.messages import FromWorker, LeaseTask, TaskAt
from millrace.worker.consumer_lane import Lane
from millrace.worker.job_lock import Gate

ALONE = 2
"""From this :attr:`LeaseTask.care` on each step is announced, and one lease at a time is run in that way."""


class Steps:
    """Says where one run is, as far as its lease asks for that.

    Args:
        lane: that runs it.
        lease: what is run.
        tell: sends a message to the dispatcher.
        gate: lets one run with care do something at a time.

    Attributes:
        outputs: of the run so far.
    """

    def __init__(self, lane: Lane, lease: LeaseTask, tell: Callable[[FromWorker], None], gate: Gate) -> None:
        self._lane, self._lease, self._tell, self._gate = lane, lease, tell, gate
        self._name = f"lease {lease.lease}"
        self._number = 0
        self._steps = 0
        self.outputs = 0

    @contextmanager
    def running(self) -> Iterator[Watch | None]:
        """The body is the run; yields what the engine is to look at."""
        lease = self._lease
        places = [poison.place for poison in lease.poison]
        if lease.care < ALONE:
            if lease.care:
                self._at(BEGINNING, "beginning")
            yield Watch(places, None) if places else None
            return
        with self._gate.inside(self._name, self._lane.check):
            self._at(BEGINNING, f"beginning task {lease.ref.task}, before its first element,")
            yield Watch(places, self._step)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The body waits for the consumer: meanwhile others may run, and if the process ends it is not by this one."""
        if self._lease.care < ALONE:
            yield
            return
        self._tell(self._message((), ""))
        with self._gate.outside(self._name):
            yield
        self._step((), "")

    def _step(self, place: Place, where: str) -> None:
        if place:
            self._steps += 1
            self._at(place, where)
        else:
            # With the steps: many lie within one output, and two workers that were stopped from outside while it was
            # made would else seem to have ended at the same place.
            what = f"output {self.outputs} of task {self._lease.ref.task}"
            self._at(
                between(self.outputs, self._steps), f"putting {what} together, which is no function of the pipeline,"
            )

    def _at(self, place: Place, where: str) -> None:
        self._lane.announce(self._message(place, where), self._tell)

    def _message(self, place: Place, where: str) -> TaskAt:
        self._number += 1
        return TaskAt(self._lease.ref, self._lease.lease, self._number, place, where)
