"""Runs of a worker's lanes: whose turn it is, what each waits for, and what its end means."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from millrace.protocol import messages as msg
from millrace.protocol.crash_sites import CrashSite
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.code_turns import CodeTurns
from millrace.worker.core.lane import Lane
from millrace.worker.core.lease_demand import LeaseDemand
from millrace.worker.core.leftover_table import LeftoverTable
from millrace.worker.core.outbox import Parcel
from millrace.worker.core.run_state import (
    Announced,
    Blocked,
    Delivering,
    Entering,
    Reentering,
    Starting,
    Stop,
    TaskRun,
    Working,
)


class RunControl:
    """Control of when runs begin, wait, go on and stop.

    Args:
        limit: bytes of outputs that the worker may keep for all lanes.
        leftovers: what finished runs leave over.
        demand: how long runs take.

    Attributes:
        lanes: by number; those of closed jobs too, as long as something runs on them.
        touched: lanes to :meth:`advance`.
        actions: what the shell is to do; whoever reads them takes them off.
        turns: of the code of different jobs; ``probes``: of probed runs.
    """

    def __init__(self, limit: int, leftovers: LeftoverTable, demand: LeaseDemand) -> None:
        self.lanes: dict[int, Lane] = {}
        self.touched: dict[int, None] = {}
        self.actions: list[act.Action] = []
        self.turns, self.probes = CodeTurns(), CodeTurns()
        self.online = False
        """Whether there is a session; else the dispatcher hears from :class:`WorkerHello` what it has to know."""
        self._limit = limit
        self._leftovers = leftovers
        self._demand = demand

    def tell(self, message: msg.FromWorker) -> None:
        """Tell the dispatcher, if it is there."""
        if self.online:
            self.actions.append(act.TellDispatcher(message))

    def touch(self, lane: Lane) -> None:
        """Have the lane looked at: what its run waits for may have come."""
        self.touched[lane.number] = None

    # -- what a run asks -----------------------------------------------------------------------------------------------

    def asks(self, lane: Lane, want: inp.Want, now: float) -> None:
        """Answer what a run asks, at once or when what it waits for has come."""
        run = lane.run
        assert run is not None
        assert isinstance(run.state, Starting | Working), f"a run asks while it is {run.state}"
        if lane.halted is not None:
            self._halt(lane, run)
            return
        match want:
            case inp.Enter():
                run.state = Entering()
                if self.turns.want(lane.number, lane.job):
                    self._inside(lane, now)
            case inp.BeginOutputs(first=first, changed=changed):
                run.began = now
                lane.buffer.begin(run.key, run.lease.lease, first, changed, run.lease.readers)
                if run.spared:
                    lane.buffer.spare(run.key)
                self._go_on(lane, run)
            case inp.Step():
                self._go_on(lane, run)
            case inp.Announce(place=place, where=where):
                self._announce(run, place, where)
            case inp.Put():
                self._put(lane, run, want, now)

    def _inside(self, lane: Lane, now: float) -> None:
        """Have a run begin, once no other job's code runs; a probed one in its turn."""
        run = lane.run
        assert run is not None
        if not run.probed or self.probes.want(lane.number, f"lane {lane.number}"):
            self._compute(run, now)
            self._go_on(lane, run)

    def _put(self, lane: Lane, run: TaskRun, put: inp.Put, now: float) -> None:
        message = put.message
        if message.size > self._limit and message.count == 1:
            run.state = Working()
            self.actions.append(act.Resume(lane.number, act.TooLarge(self._limit)))
        elif self._has_room(lane, run, put):
            lane.buffer.put(run.key, run.lease.lease, message)
            lane.look(now)
            self.touch(lane)
            self._go_on(lane, run)
        else:
            run.state = Blocked(put, now)
            self._pause(run, now)
            if run.probed:  # if the process ends meanwhile it is not by this one
                self.tell(self._message(run, (), ""))
                self._grant(self.probes.leave(lane.number), now)
            self.touch(lane)

    def _has_room(self, lane: Lane, run: TaskRun, put: inp.Put) -> bool:
        return lane.buffer.spared(run.key) or lane.buffer.room(run.lease.ref.epoch, put.message.size)

    def _announce(self, run: TaskRun, place: CrashSite, where: str) -> None:
        message = self._message(run, place, where)
        run.state = Announced(message)
        self.tell(message)

    @staticmethod
    def _message(run: TaskRun, place: CrashSite, where: str) -> msg.ProbeReport:
        run.number += 1
        return msg.ProbeReport(run.lease.ref, run.lease.lease, run.number, place, where)

    def noted(self, lane: Lane, message: msg.ProbeAck) -> None:
        """Have a run go on, as the dispatcher knows where it is."""
        run = lane.run
        if run is None or not isinstance(run.state, Announced):
            return
        said = run.state.message
        if (said.lease, said.number) == (message.lease, message.number):
            self._go_on(lane, run)

    def _go_on(self, lane: Lane, run: TaskRun) -> None:
        run.state = Working()
        buffer = lane.buffer
        verdict = act.GoOn(tuple(lane.pending), buffer.waiting, buffer.hungry, buffer.message_bytes)
        self.actions.append(act.Resume(lane.number, verdict))

    def _halt(self, lane: Lane, run: TaskRun) -> None:
        run.state = Working()
        self.turns.waiting.pop(lane.number, None)
        self.probes.waiting.pop(lane.number, None)
        self.actions.append(act.Resume(lane.number, act.Halt()))

    # -- turns ---------------------------------------------------------------------------------------------------------

    def wants_code(self, who: Hashable, job: str) -> None:
        """Note that a thread beside the lanes is about to run code of a job."""
        if self.turns.want(who, job):
            self.actions.append(act.CodeGranted(who))

    def leaves_code(self, who: Hashable, now: float) -> None:
        """Note that it has run it."""
        self._grant(self.turns.leave(who), now)

    def _grant(self, granted: list[Hashable], now: float) -> None:
        for who in granted:
            lane = self.lanes.get(who) if isinstance(who, int) else None
            if lane is None:
                self.actions.append(act.CodeGranted(who))
            elif lane.run is not None and isinstance(lane.run.state, Reentering):
                put = lane.run.state.put
                self._compute(lane.run, now)
                self._announce(lane.run, put.place, put.where)
            else:
                self._inside(lane, now)

    def _compute(self, run: TaskRun, now: float) -> None:
        run.active = True
        self._demand.enter(now)

    def _pause(self, run: TaskRun, now: float) -> None:
        if run.active:
            run.active = False
            self._demand.leave(now)

    # -- time goes on --------------------------------------------------------------------------------------------------

    def advance(self, lane: Lane, now: float) -> None:
        """Start the next lease of a lane, have its run go on if it can, and send what readers let it send."""
        run = lane.run
        if run is None:
            if lane.pending and not (lane.closed or lane.buffer.paused):
                run = lane.start(now)
                self.actions.append(act.StartRun(lane.number, lane.job, lane.slot, run.lease))
        elif isinstance(run.state, Delivering):
            self._deliver(lane, run, run.state, now)
        elif lane.halted is not None:
            if isinstance(run.state, Blocked):
                lane.waited(now - run.state.since)
            if not isinstance(run.state, Starting | Working):
                self._halt(lane, run)
        elif isinstance(run.state, Blocked):
            self._unblock(lane, run, run.state, now)
        self._send(lane)

    def _unblock(self, lane: Lane, run: TaskRun, blocked: Blocked, now: float) -> None:
        put = blocked.put
        if self._has_room(lane, run, put):
            lane.waited(now - blocked.since)
            lane.buffer.put(run.key, run.lease.lease, put.message)
            lane.look(now)
            if not run.probed:
                self._compute(run, now)
                self._go_on(lane, run)
                return
            run.state = Reentering(put)
            if self.probes.want(lane.number, f"lane {lane.number}"):
                self._grant([lane.number], now)
        elif lane.overtaken:
            lane.waited(now - blocked.since)
            run.stop = Stop.RETURN
            self._halt(lane, run)

    def _deliver(self, lane: Lane, run: TaskRun, delivering: Delivering, now: float) -> None:
        if lane.halted is None and lane.overtaken:
            run.stop = Stop.RETURN
        if lane.halted is not None or not lane.buffer.waits(run.key, run.lease.lease):
            lane.waited(now - delivering.since)
            self._conclude(lane, run, delivering.outcome, now)

    def _send(self, lane: Lane) -> None:
        for outbox in lane.buffer.outboxes.values():
            while outbox.peer is not None and (parcel := outbox.credit.next(outbox)) is not None:
                if isinstance(parcel, Parcel):
                    if parcel.skipped is not None:
                        self.actions.append(act.Send(outbox.peer, parcel.skipped))
                    buffers = () if parcel.share is None else parcel.share.buffers
                    self.actions.append(act.Send(outbox.peer, parcel.header, buffers, lane.shared))
                else:
                    self.actions.append(act.Send(outbox.peer, parcel))

    # -- the end of a run ----------------------------------------------------------------------------------------------

    def ended(self, lane: Lane, outcome: Any, now: float) -> None:
        """End a run; if it failed, its readers get what came before that first."""
        run = lane.run
        assert run is not None
        assert isinstance(run.state, Starting | Working), f"a run ends while it is {run.state}"
        self._pause(run, now)
        self._grant(self.probes.leave(lane.number), now)
        self.leaves_code(lane.number, now)
        if isinstance(outcome, inp.RunFailed) and not outcome.failure.needs:
            run.state = Delivering(outcome, now)
            self._deliver(lane, run, run.state, now)
        else:
            self._conclude(lane, run, outcome, now)
        self.touch(lane)

    def _conclude(self, lane: Lane, run: TaskRun, outcome: Any, now: float) -> None:
        """Say what came of a run."""
        lease, halted = run.lease, lane.halted
        keep = halted is None and isinstance(outcome, inp.RunFinished) and self._keeps(lane, lease)
        lane.over(now, keep=keep)
        if halted is not None or isinstance(outcome, inp.Stopped):
            if halted is not Stop.FORGET:
                self.tell(msg.TaskReturned(lease.ref, lease.lease))
        else:
            self.tell(self._said_of(lane, run, outcome, now))
        if lease.measure:
            self.actions.append(act.HurryReport())
        if lane.closed:
            del self.lanes[lane.number]
            self.actions.append(act.EndLane(lane.number))
        self.touch(lane)

    @staticmethod
    def _keeps(lane: Lane, lease: msg.LeaseTask) -> bool:
        """Whether what a run puts out is kept, or at least how much it was, for readers that may ask for it."""
        return lease.received >= 0 or lane.buffer.keeps_ends

    def _said_of(self, lane: Lane, run: TaskRun, outcome: Any, now: float) -> msg.FromWorker:
        lease, ref = run.lease, run.lease.ref
        match outcome:
            case inp.Missing(tasks=tasks):
                return msg.LeftoversLost(ref, lease.lease, tasks)
            case inp.RunFailed(failure=failure):
                return msg.TaskFailed(ref, lease.lease, failure)
        assert isinstance(outcome, inp.RunFinished)
        if self._keeps(lane, lease):
            nothing, left_out = outcome.nothing, outcome.left_out
            kept = lane.buffer.finish(
                run.key, lease.lease, outcome.outputs, outcome.skipped, nothing=nothing, left_out=left_out
            )
            assert kept, "whoever forgets a running task stops it"
        if outcome.leftovers is not None:
            self._leftovers.keep(lease, outcome.leftovers)
        if run.began is not None and not (run.probed or lease.poison):  # else it says nothing of other tasks
            self._demand.took(now - run.began - run.waited_s)
        return msg.TaskFinished(
            ref,
            lease.lease,
            outcome.outputs,
            outcome.skipped,
            outcome.leftovers is not None,
            list(outcome.passed),
            nothing=outcome.nothing,
            left_out=outcome.left_out,
        )
