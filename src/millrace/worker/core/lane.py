"""A lane: the leases of one slot, the run of one of them, and what waits for the readers of the slot."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Sequence

import msgspec

from millrace.graph import nodes as g
from millrace.graph import serialize
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.reports import LaneReport
from millrace.worker.core.outbox import TaskKey, key_of
from millrace.worker.core.run_state import Stop, TaskRun
from millrace.worker.core.slot_buffer import SlotBuffer
from millrace.worker.core.window_buffer import WindowBuffer

_HANDING_ON = (g.FlatMap, g.GroupByWindow, g.Interleave, g.Scan, g.SlidingWindow)


class Lane:
    """A worker's work for one slot of a job.

    Args:
        number: of the lane, never used again.
        job: name of the job.
        slot: number of the slot.
        audience: the readers of the slot.
        spec: of the job.
        now: in seconds.

    Attributes:
        pending: leases that have not begun, in the order in which they will.
        run: what runs, or waits for a reader; None: nothing.
        buffer: outputs that a reader lacks, or that lie in the slot's window.
        shared: several readers get the same outputs, or will once they join; or one array may be part of several
            outputs. What a reader writes into its own is nobody else's then.
        closed: the job is over; what runs is told to stop.
    """

    def __init__(
        self,
        number: int,
        job: str,
        slot: int,
        audience: Iterable[int],
        spec: JobSpec,
        *,
        now: float,
    ) -> None:
        self.number = number
        self.job = job
        self.slot = slot
        self.pending: list[msg.LeaseTask] = []
        self.run: TaskRun | None = None
        self.buffer = _buffer_of(spec, audience)
        self.shared = bool(spec.sharing) or _hands_on(spec.structure)
        self.closed = False
        self._in_order = spec.deterministic
        self._began = now
        self._filled_since: float | None = None
        self._computed_s = self._filled_s = 0.0

    # -- leases --------------------------------------------------------------------------------------------------------

    def submit(self, lease: msg.LeaseTask) -> None:
        """Take a lease on. Those of earlier epochs come first: a reader reads nothing else until it has them."""
        self.pending.append(lease)
        self.pending.sort(key=lambda each: (each.ref.epoch, each.ref.task if self._in_order else 0))

    def revoke(self, key: TaskKey, lease: int) -> bool:
        """Give a lease up; return False if it runs: then the end of the run will say so."""
        if self.run is not None and self.run.lease.lease == lease:
            self.run.stop = Stop.RETURN
            return False
        self.pending = [each for each in self.pending if each.lease != lease]
        self.buffer.revoke(key, lease)
        return True

    def forget(self, key: TaskKey) -> None:
        """Drop what is kept of a task, and stop it if it runs."""
        self.buffer.forget(key)
        self.pending = [each for each in self.pending if key_of(each.ref) != key]
        if self.run is not None and self.run.key == key:
            self.run.stop = Stop.FORGET

    def spare(self, key: TaskKey, readers: Sequence[int] = ()) -> None:
        """Keep no more outputs of a task for these readers, or for all; its run goes on for what it leaves over."""
        self.buffer.spare(key, readers)
        if self.run is not None and self.run.key == key:
            without = self._without(self.run.lease, readers)
            self.run.spared |= without.received < 0
            self.run.lease = self.run.lease if self.run.spared else without
        self.pending = [self._without(each, readers) if key_of(each.ref) == key else each for each in self.pending]

    def _without(self, lease: msg.LeaseTask, readers: Sequence[int]) -> msg.LeaseTask:
        """Change a lease so that its outputs are not for these readers, or for none."""
        lacking = [each for each in lease.readers or self.buffer.outboxes if each not in readers] if readers else []
        return msgspec.structs.replace(lease, readers=lacking, received=lease.received if lacking else -1)

    def join(self, reader: int, since: int) -> None:
        """Add a reader of the epochs ``since`` this one; what was leased for some readers is for it, too."""
        self.pending = [self._with(each, reader, since) for each in self.pending]
        if self.run is not None:
            self.run.lease = self._with(self.run.lease, reader, since)
        self.buffer.join(reader, since)

    @staticmethod
    def _with(lease: msg.LeaseTask, reader: int, since: int) -> msg.LeaseTask:
        """Change a lease that is not for all, so that its outputs are for this reader as well."""
        if not lease.readers or lease.ref.epoch < since:
            return lease
        return msgspec.structs.replace(lease, readers=[*lease.readers, reader])

    def drop(self, leases: Container[int]) -> None:
        """Drop leases that are not this worker's any more; nobody wants to hear of them."""
        self.pending = [each for each in self.pending if each.lease not in leases]
        for key in [task.key for task in self.buffer.ended() if task.lease in leases]:
            self.buffer.forget(key)
        if self.run is not None and self.run.lease.lease in leases:
            self.run.stop = Stop.FORGET

    def unstarted(self) -> list[msg.LeaseTask]:
        """Give away the leases that have not begun."""
        pending, self.pending = self.pending, []
        return pending

    def held(self, leftovers: Callable[[msg.TaskRef], bool]) -> list[msg.HeldTask]:
        """List all leases of this lane."""
        held = [msg.HeldTask(each.ref, each.lease, self.slot) for each in self.pending]
        if self.run is not None:
            held.append(msg.HeldTask(self.run.lease.ref, self.run.lease.lease, self.slot))
        for kept in self.buffer.ended():
            ref = msg.TaskRef(self.job, *kept.key)
            end = kept.end, leftovers(ref), kept.nothing, kept.left_out
            held.append(msg.HeldTask(ref, kept.lease, self.slot, True, *end))
        return held

    def close(self) -> None:
        """Drop all; what runs is to stop."""
        self.closed = True
        self.pending = []
        for key in list(self.buffer.tasks):
            self.buffer.forget(key)

    # -- the run -------------------------------------------------------------------------------------------------------

    def start(self, now: float) -> TaskRun:
        """Take up the next lease."""
        self.run = TaskRun(self.pending.pop(0), now)
        return self.run

    @property
    def halted(self) -> Stop | None:
        """Reason for which the run is to stop; None: it is not."""
        assert self.run is not None
        return Stop.FORGET if self.closed else self.run.stop

    @property
    def overtaken(self) -> bool:
        """Whether the run is of a later epoch than what came in meanwhile: nobody reads it before that is done."""
        assert self.run is not None
        return bool(self.pending) and self.pending[0].ref.epoch < self.run.lease.ref.epoch

    def waited(self, seconds: float) -> None:
        """Note that the run waited so long for a reader."""
        assert self.run is not None
        self.run.waited_s += seconds
        self._computed_s -= seconds  # of the time of the run, which is added at its end

    def over(self, now: float, *, keep: bool) -> None:
        """End the run; what it put out is dropped unless it is to ``keep``."""
        run = self.run
        assert run is not None
        self._computed_s += now - run.started
        if not keep and self.buffer.has(run.key, run.lease.lease):
            self.buffer.forget(run.key)
        self.run = None

    # -- measures ------------------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Count the time in which something lies ready; whenever that may have changed."""
        if self.buffer.filled:
            self._filled_since = now if self._filled_since is None else self._filled_since
        elif self._filled_since is not None:
            self._filled_s += now - self._filled_since
            self._filled_since = None

    def report(self, now: float) -> LaneReport:
        """Report how this lane fares."""
        self.look(now)
        run = self.run
        since = None if run is None else run.blocked_since
        blocked_s = 0.0 if since is None else now - since
        running_s = 0.0 if run is None else now - run.started
        filled_s = 0.0 if self._filled_since is None else now - self._filled_since
        return LaneReport(
            self.slot,
            run is not None,
            blocked_s,
            self.buffer.bytes,
            now - self._began,
            max(0.0, self._computed_s + running_s - blocked_s),
            self._filled_s + filled_s,
            self.buffer.hits,
        )

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits, and no reader lacks anything that is kept."""
        return self.run is None and not self.pending and self.buffer.idle


@functools.lru_cache(maxsize=64)
def _hands_on(structure: bytes) -> bool:
    """Whether operators of the graph may give one array in several elements: windows that overlap, say, or echoes."""
    return bool(structure) and any(isinstance(node, _HANDING_ON) for node in serialize.unpack(structure).nodes)


def _buffer_of(spec: JobSpec, audience: Iterable[int]) -> SlotBuffer:
    """Make the buffer of a slot of such a job; it has no room until it is resized."""
    if spec.sharing == "window" and not spec.coordinated:
        return WindowBuffer(0, audience, window=spec.window_bytes or None, in_order=spec.deterministic)
    return SlotBuffer(0, audience, in_order=spec.deterministic)
