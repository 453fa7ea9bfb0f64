"""Probe reporter: the dispatcher knows where a probed run is, and so what ended the process."""

from __future__ import annotations

from collections.abc import Callable

from millrace.engine.user_code.crash_probe import BEGINNING, CrashProbe, between
from millrace.protocol.crash_sites import CrashSite
from millrace.protocol.messages import LeaseTask
from millrace.worker.core.run_state import PROBED
from millrace.worker.core.worker_inputs import Announce


class ProbeReporter:
    """Reporter of where one run is, as far as its lease asks for that.

    Args:
        lease: what is run.
        announce: returns once the dispatcher knows.

    Attributes:
        outputs: of the run so far.
    """

    def __init__(self, lease: LeaseTask, announce: Callable[[Announce], object]) -> None:
        self._lease = lease
        self._announce = announce
        self._steps = 0
        self.outputs = 0

    def begin(self) -> CrashProbe | None:
        """Begin the run; return what the engine is to look at."""
        lease = self._lease
        places = [poison.place for poison in lease.poison]
        if lease.probe_level < PROBED:
            if lease.probe_level:
                self._announce(Announce(BEGINNING, "beginning"))
            return CrashProbe(places, None) if places else None
        self._announce(Announce(BEGINNING, f"beginning task {lease.ref.task}, before its first element,"))
        return CrashProbe(places, self._step)

    def between(self) -> tuple[CrashSite, str]:
        """CrashSite of the run between two steps, also in words."""
        # With the steps: many lie within one output, and two workers that were stopped from outside while it was
        # made would else seem to have ended at the same place.
        what = f"output {self.outputs} of task {self._lease.ref.task}"
        return between(self.outputs, self._steps), f"putting {what} together, which is no function of the pipeline,"

    def _step(self, place: CrashSite, where: str) -> None:
        if place:
            self._steps += 1
            self._announce(Announce(place, where))
        else:
            self._announce(Announce(*self.between()))
