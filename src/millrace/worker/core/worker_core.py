"""The worker's core: a pure function of what it was told, which decides all that a worker decides.

Its shell feeds it inputs, one at a time, and does the actions in their order; neither waits for anything. User code
runs in the shell, asks through :class:`RunAsks` and waits for :class:`Resume`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.group_messages import Audience, DropLeftovers
from millrace.protocol.job_spec import MOST_CONSUMERS
from millrace.protocol.reports import Told
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.lane import Lane
from millrace.worker.core.lease_demand import LeaseDemand
from millrace.worker.core.leftover_table import LeftoverTable
from millrace.worker.core.outbox import ReaderOutbox, key_of
from millrace.worker.core.run_control import RunControl
from millrace.worker.core.run_state import Announced, Blocked, Delivering, Entering, Reentering


class WorkerCore:
    """All that a worker holds: jobs, lanes with leases and outputs, leftovers; and whom it talks to.

    Args:
        buffer_bytes: for outputs that wait to be read, all slots together.
        now: seconds of the caller's clock, as in :meth:`handle`.

    Attributes:
        jobs: those that are open, as the dispatcher has said.
        lanes: of open jobs, by job and slot.
        leftovers: what tasks have left to their parents.
        control: the runs.
    """

    def __init__(self, buffer_bytes: int, now: float) -> None:
        self.jobs: dict[str, msg.OpenJob] = {}
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.leftovers = LeftoverTable()
        self._demand = LeaseDemand(now)
        self.control = RunControl(buffer_bytes, self.leftovers, self._demand)
        self._buffer_bytes = buffer_bytes
        self._now = now
        self._numbers = 0
        self._current = ""
        self._members: dict[str, dict[int, int]] = {}  # of groups: by reader, the first epoch that it reads
        self._peers: dict[inp.Peer, list[tuple[Lane, ReaderOutbox]]] = {}
        self._told_before = Told()
        self._want_said = 0
        self._until: float | None = None
        self._ended = False

    # -- inputs --------------------------------------------------------------------------------------------------------

    def handle(self, item: inp.Input, now: float) -> list[act.Action]:
        """Take one input in; return what is to be done then, in this order.

        Args:
            item: what happened.
            now: in seconds; never less than before.
        """
        self._now, control = now, self.control
        match item:
            case inp.RunAsks(lane=number, want=want):
                control.asks(control.lanes[number], want, now)
            case inp.PeerSaid(peer=peer, message=message):
                self._peer_said(peer, message)
            case inp.RunEnded(lane=number, outcome=outcome, told=told):
                for each in told:
                    control.tell(each)
                control.ended(control.lanes[number], outcome, now)
            case inp.Heard(message=heard):
                self._heard(heard)
            case inp.PeerLeft(peer=peer):
                self._peer_left(peer)
            case inp.CodeWanted(who=who, job=job):
                control.wants_code(who, job)
            case inp.CodeDone(who=who):
                control.leaves_code(who, now)
            case _:
                self._session_or_process(item)
        while control.touched:
            number = next(iter(control.touched))
            del control.touched[number]
            lane = control.lanes.get(number)
            if lane is not None:
                control.advance(lane, now)
        self._see_off()
        actions, control.actions = control.actions, []
        if self._demand.want != self._want_said and any(isinstance(each, act.TellDispatcher) for each in actions):
            actions.append(act.HurryReport())  # the next tasks depend on it
        return actions

    def _session_or_process(self, item: inp.Input) -> None:
        match item:
            case inp.Say(message=message):
                self.control.tell(message)
            case inp.HeartbeatDue(measured=measured):
                self._report(measured)
            case inp.SessionOpened(hello=hello):
                # What ended before is in the list of what is held, what ends after is told on this session.
                self.control.online = True
                self.control.tell(msgspec.structs.replace(hello, held=self.held(), told=self._told_before))
                if self._until is not None:
                    self.control.tell(msg.WorkerLeaving(max(self._until - self._now, 0.001)))
            case inp.SessionClosed():
                self.control.online = False
            case inp.Drain(within_s=within_s):
                self._leave(within_s)
            case inp.TimeUp():
                self._end(in_time=False)
            case inp.CloseAll():
                for name in list(self.jobs):
                    self._close(name)

    # -- the dispatcher ------------------------------------------------------------------------------------------------

    def _heard(self, message: msg.ToWorker) -> None:
        match message:  # one that is none of these is of a later version
            case msg.LeaseTask():
                self._lease(message)
            case msg.RevokeTask(ref=ref, lease=lease):
                self._revoke(ref, lease)
            case msg.ForgetTasks() | DropLeftovers():
                self._forget(message)
            case msg.OutputsReceived():
                self._spare(message)
            case msg.ProbeAck():
                for lane in self._lanes_of(message.ref.job):
                    self.control.noted(lane, message)
            case msg.OpenJob():
                self._open(message)
            case Audience():
                self._audience(message)
            case msg.CloseJob(job=job):
                self._close(job)
            case msg.ListSources(job=job) | msg.ChooseSharding(job=job) if job in self.jobs:
                self.control.actions.append(act.PrepareJob(message))
            case msg.WorkerWelcome():
                self._welcome(message)

    def _welcome(self, message: msg.WorkerWelcome) -> None:
        """Drop leases that became somebody else's while the dispatcher was away, and say again where runs are."""
        self._told_before = self._told_before.let_in(message.told)
        for lane in self.lanes.values():
            lane.drop(message.stale)
            self.control.touch(lane)
            if lane.run is not None and isinstance(lane.run.state, Announced):
                self.control.tell(lane.run.state.message)
        self.leftovers.drop(lambda _, left: left.lease in message.stale)
        self.control.actions.append(act.HurryReport())

    def _lease(self, message: msg.LeaseTask) -> None:
        self._current = message.ref.job
        self._told_before = self._told_before.hears_of(message.lease)
        job = self.jobs.get(message.ref.job)
        if job is None or self._until is not None:
            self.control.tell(msg.TaskReturned(message.ref, message.lease))
        else:
            lane = self._lane(job, message.consumer)
            lane.submit(message)
            self.control.touch(lane)

    def _revoke(self, ref: msg.TaskRef, lease: int) -> None:
        if all(lane.revoke(key_of(ref), lease) for lane in self._lanes_of(ref.job)):
            self.leftovers.drop(lambda _, left: left.lease == lease)  # it may just have finished
            self.control.tell(msg.TaskReturned(ref, lease))

    def _forget(self, message: msg.ForgetTasks | DropLeftovers) -> None:
        for ref in message.refs if isinstance(message, msg.ForgetTasks) else ():
            for lane in self._lanes_of(ref.job):
                lane.forget(key_of(ref))
        self.leftovers.drop(lambda ref, _: ref in message.refs)

    def _spare(self, message: msg.OutputsReceived) -> None:
        for ref in message.refs:
            for lane in self._lanes_of(ref.job):
                lane.spare(key_of(ref), message.readers)

    def _open(self, message: msg.OpenJob) -> None:
        self._current = message.job
        known = self.jobs.get(message.job)
        if known is not None and not _same(known, message):
            self._close(message.job)  # another job has got the name
        self.jobs[message.job] = message
        self.control.actions.append(act.PrepareJob(message))

    def _audience(self, message: Audience) -> None:
        """Add the members of a group that have come, and let go of what those who have gone alone lacked."""
        if message.job not in self.jobs:
            return
        members = self._members[message.job] = message.members
        for lane in self._lanes_of(message.job):
            outboxes = lane.buffer.outboxes
            for reader in [each for each in outboxes if each not in members]:
                self._replace([outboxes[reader]], None)
                self._peers = {
                    peer: [] if (lane, outboxes[reader]) in served else served for peer, served in self._peers.items()
                }
                lane.buffer.leave(reader)
            for reader in [each for each in members if each not in outboxes]:
                lane.join(reader, members[reader])
            lane.look(self._now)

    def _close(self, name: str) -> None:
        if self.jobs.pop(name, None) is None:
            return
        self._members.pop(name, None)
        lanes = [self.lanes.pop(key) for key in list(self.lanes) if key[0] == name]
        for lane in lanes:
            lane.close()
            if lane.run is None:
                del self.control.lanes[lane.number]
                self.control.actions.append(act.EndLane(lane.number))
            self.control.touch(lane)
        self._replace([outbox for lane in lanes for outbox in lane.buffer.outboxes.values()], None)
        self._share_out()
        self.leftovers.drop(lambda ref, _: ref.job == name)
        self.control.actions.append(act.ClosePipeline(name, [lane.number for lane in lanes]))

    def held(self) -> list[msg.HeldTask]:
        """List everything that is leased to this worker or kept by it."""
        # Of what was read to its end, leftovers may be all that is left; first, so that a lane's word counts.
        held = {entry.lease: entry for entry in self.leftovers.held()}
        lanes = self.lanes.values()
        held.update((entry.lease, entry) for lane in lanes for entry in lane.held(self.leftovers.__contains__))
        return list(held.values())

    @property
    def current(self) -> str:
        """Name of the job that is reported about; empty: none."""
        return self._current if self._current in self.jobs else ""

    def _report(self, measured: msg.WorkerReport) -> None:
        self._want_said = self._demand.want
        job = self.current
        report = msgspec.structs.replace(
            measured,
            want=self._want_said,
            job=job,
            lanes=[lane.report(self._now) for lane in self._lanes_of(job)],
            nodes=measured.nodes if measured.job == job else [],
            busy_s=self._demand.busy_s(self._now),
        )
        self.control.tell(report)
        if self._demand.rests(self._now):
            self.control.actions.append(act.Rest())

    # -- lanes and peers -----------------------------------------------------------------------------------------------

    def _lanes_of(self, job: str) -> list[Lane]:
        """List the lanes of a job, about to be told something."""
        lanes = [lane for (name, _), lane in self.lanes.items() if name == job]
        for lane in lanes:
            self.control.touch(lane)
        return lanes

    def _lane(self, job: msg.OpenJob, slot: int) -> Lane:
        """Find or make the lane of a job's slot."""
        lane = self.lanes.get((job.job, slot))
        if lane is None:
            self._numbers += 1
            audience = audience_of(job, slot)
            lane = Lane(self._numbers, job.job, slot, audience, job.spec, now=self._now)
            for reader, since in self._members.get(job.job, {}).items():
                lane.buffer.join(reader, since)
            self.lanes[job.job, slot] = self.control.lanes[lane.number] = lane
            self._share_out()
        return lane

    def _share_out(self) -> None:
        for lane in self.lanes.values():
            lane.buffer.resize(self._buffer_bytes // len(self.lanes))
            self.control.touch(lane)

    def _peer_said(self, peer: inp.Peer, message: data_messages.ToServer) -> None:
        if isinstance(message, data_messages.Open):
            self._attach(peer, message)
            return
        if isinstance(message, data_messages.FetchLeftovers):
            self._peers.setdefault(peer, [])
            self.control.actions.append(act.SendLeftovers(peer, message.ref, self.leftovers.get(message.ref)))
            return
        served = self._peers.get(peer)
        if not served or served[0][1].peer is not peer:
            return  # it has been replaced
        at = message.slot if isinstance(message, data_messages.Credit) else message.task
        lane, outbox = served[at % len(served)]
        match message:
            case data_messages.Credit(bytes=count, share=share):
                outbox.credit.grant(count, share)
            case data_messages.Read(epoch=epoch, task=task, lease=lease, start=start):
                if lane.buffer.lacks((epoch, task), lease, start, outbox):
                    self._revoke(msg.TaskRef(lane.job, epoch, task), lease)
                else:
                    lane.buffer.read(outbox, (epoch, task), lease, start)
            case data_messages.Received(epoch=epoch, task=task, upto=upto, complete=complete):
                lane.buffer.received(outbox, (epoch, task), upto, complete=complete)
                lane.look(self._now)
        self.control.touch(lane)

    def _attach(self, peer: inp.Peer, opening: data_messages.Open) -> None:
        job, reader = self.jobs.get(opening.job), opening.consumer
        unknown = job is not None and not self._may_read(job, reader)
        if job is None or job.generation != opening.generation or unknown:
            # It has joined a job that is over, or one that this worker is about to hear of.
            self.control.actions.append(act.HangUp(peer))
            return
        lanes = [self._lane(job, slot) for slot in slots_of(job, reader)]
        served = [(lane, lane.buffer.outboxes.get(reader) or lane.buffer.join(reader)) for lane in lanes]
        for number, (_, outbox) in enumerate(served):
            outbox.credit.slot = number
        self._peers[peer] = served
        self._replace([outbox for _, outbox in served], peer)
        for lane in lanes:
            self.control.touch(lane)

    def _may_read(self, job: msg.OpenJob, reader: int) -> bool:
        """Whether a consumer is one of a job's: for each that is let in there is a lane, or several."""
        if job.spec.sharing:
            return reader in self._members.get(job.job, ())
        return 0 <= reader < (job.spec.num_consumers or MOST_CONSUMERS)

    def _replace(self, outboxes: Iterable[ReaderOutbox], peer: inp.Peer | None) -> None:
        """Give readers another connection, or none, and end those before."""
        older = dict.fromkeys(outbox.attach(peer) for outbox in outboxes)
        self.control.actions.extend(act.HangUp(each) for each in older if each is not None)

    def _peer_left(self, peer: inp.Peer) -> None:
        for lane, outbox in self._peers.pop(peer, ()):
            if outbox.peer is peer:
                outbox.attach(None)
                self.control.touch(lane)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _leave(self, within_s: float) -> None:
        """Take nothing on any more, give back what has not begun, and end once the rest was read."""
        if self._until is not None:
            self._end(in_time=True)
            return
        self._until = self._now + within_s
        self.control.tell(msg.WorkerLeaving(within_s))
        for lane in self.lanes.values():
            for lease in lane.unstarted():
                self.control.tell(msg.TaskReturned(lease.ref, lease.lease))

    def _see_off(self) -> None:
        """End, once it is leaving and nothing of it is needed any more, or nobody is left to need it."""
        if self._until is None or self._ended:
            return
        drained = not self.leftovers and all(lane.idle for lane in self.lanes.values())
        if drained or not (self.control.online or self._peers):
            self._end(in_time=True)

    def _end(self, *, in_time: bool) -> None:
        if not self._ended:
            self._ended = True
            self.control.actions.append(act.EndProcess(in_time))

    # -- for whoever checks --------------------------------------------------------------------------------------------

    def stopping(self) -> set[int]:
        """List the leases whose runs were told to stop and have not ended."""
        return {lane.run.lease.lease for lane in self.control.lanes.values() if lane.run is not None and lane.halted}

    def validate(self) -> None:
        """Check what holds between any two inputs.

        Raises:
            AssertionError: something does not.
        """
        control = self.control
        assert not control.touched
        assert set(self.lanes.values()) == {lane for lane in control.lanes.values() if not lane.closed}
        for lane in self.lanes.values():
            for outbox in lane.buffer.outboxes.values():
                assert outbox.peer is None or (lane, outbox) in self._peers.get(outbox.peer, ())
        runs = {lane.number: lane.run for lane in control.lanes.values() if lane.run is not None}
        going = [lane for lane in control.lanes.values() if not (lane.closed or lane.buffer.paused)]
        assert all(lane.run is not None or not lane.pending for lane in going)
        waiting = control.turns.waiting.keys() | control.probes.waiting.keys()
        computing = 0
        for number, run in runs.items():
            awaits = isinstance(run.state, Entering | Reentering)
            assert awaits == (number in waiting), f"lane {number} is {run.state}, and waits for a turn, or neither"
            still = isinstance(run.state, Entering | Reentering | Blocked | Delivering)
            assert not (still and run.active), f"lane {number} is {run.state}, and computes"
            computing += run.active
        inside = control.turns.inside
        jobs = {control.lanes[who].job for who in inside if isinstance(who, int)}
        assert jobs <= {control.turns.name}, f"code of jobs {jobs} runs at a time"
        assert len(control.probes.inside) <= 1
        assert {who for who in inside | waiting if isinstance(who, int)} <= runs.keys()
        assert computing == self._demand.active
        for lane in control.lanes.values():
            lane.buffer.validate()


def slots_of(job: msg.OpenJob, reader: int) -> Sequence[int]:
    """List the slots that a consumer of a job reads: one of its own, or all of them where several read each."""
    return range(job.spec.cycle_length) if job.spec.coordinated or job.spec.sharing else (reader,)


def audience_of(job: msg.OpenJob, slot: int) -> Sequence[int]:
    """List the consumers of a job that read a slot, as :func:`slots_of` has it; members of groups come later."""
    if job.spec.sharing:
        return ()
    return range(job.spec.num_consumers or 1) if job.spec.coordinated else (slot,)


def _same(known: msg.OpenJob, opened: msg.OpenJob) -> bool:
    """Whether it is the same job, of which at most more is known."""
    if (known.generation, known.spec, known.seed) != (opened.generation, opened.spec, opened.seed):
        return False
    return known.tables in ("", opened.tables)
