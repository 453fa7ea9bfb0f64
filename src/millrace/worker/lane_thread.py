"""The thread of a lane: it runs the leases that the core starts, one by one, and asks the core on their way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from millrace.engine.user_code.crash_probe import RunStoppedError
from millrace.protocol.messages import LeaseTask
from millrace.worker.core.worker_actions import GoOn, Halt, TooLarge, Verdict
from millrace.worker.core.worker_inputs import Input, RunAsks, RunEnded, Want
from millrace.worker.job_pipeline import JobPipeline


class StoppedError(RunStoppedError):
    """The core has told a run to stop; raised inside the lane's thread, caught by it."""


class LaneThread:
    """Runs leases of one consumer.

    Args:
        number: of the lane, in the core.
        consumer: index of the consumer.
        feed: gives the core an input; what it says about this lane comes through :meth:`start` and :meth:`resume`.
        run: runs a lease, and says how it went.
    """

    def __init__(
        self,
        number: int,
        consumer: int,
        feed: Callable[[Input], None],
        run: Callable[[LaneThread, JobPipeline, LeaseTask], RunEnded],
    ) -> None:
        self.number = number
        self.consumer = consumer
        self._feed = feed
        self._run = run
        self._leases: queue.SimpleQueue[tuple[JobPipeline, LeaseTask] | None] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"millrace-lane-{consumer}", daemon=True)
        self._thread.start()

    def start(self, job: JobPipeline, lease: LeaseTask) -> None:
        """Has the thread run a lease."""
        self._leases.put((job, lease))

    def resume(self, verdict: Verdict) -> None:
        """Answers what the run has asked."""
        self._verdicts.put(verdict)

    def end(self) -> None:
        """Has the thread end; nothing runs."""
        self._leases.put(None)

    def join(self, timeout: float) -> bool:
        """Waits for the thread, up to ``timeout`` seconds; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def ask(self, want: Want) -> GoOn | TooLarge:
        """Asks the core, in the run; waits for its answer.

        Raises:
            StoppedError: if the run is to stop.
        """
        self._feed(RunAsks(self.number, want))
        verdict = self._verdicts.get()
        if isinstance(verdict, Halt):
            raise StoppedError
        return verdict

    def _work(self) -> None:
        while (work := self._leases.get()) is not None:
            self._feed(self._run(self, *work))
            work = None  # what a run leaves is not kept while nothing runs
