"""A worker's lane: :mod:`millrace.worker.consumer_lane` and :mod:`millrace.worker.task_runner` as one generator.

The buffer is the real one; an output takes a byte of it.
"""

from __future__ import annotations

from collections.abc import Container, Generator
from typing import TYPE_CHECKING

import msgspec

from millrace.engine.user_code.crash_probe import between
from millrace.planning.plan import Task
from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.crash_sites import Place
from millrace.protocol.reports import LaneReport
from millrace.simulation.caching import Using
from millrace.simulation.failing import FailedError, OversizedError, failure_of
from millrace.simulation.pipelines import Output, Pipeline, bare, unit_of, with_values
from millrace.simulation.virtual_network import Connection
from millrace.worker.consumer_lane import Stop, StoppedError
from millrace.worker.leftovers import LeftoversMissingError
from millrace.worker.outbox import Allowance, LaneBuffer, Message, TaskKey
from millrace.worker.probe_reporter import ALONE

if TYPE_CHECKING:
    from millrace.simulation.simulated_worker import Worker

Steps = Generator[float | None, None, None]
"""Waits: for so many seconds, or (None) until the lane has changed."""


class Lane:
    """Leases, buffer and connection of one consumer.

    Args:
        worker: whose.
        job: name of the job.
        consumer: index of the consumer.
        in_order: the consumer reads tasks in plan order.
    """

    def __init__(self, worker: Worker, job: str, consumer: int, *, in_order: bool) -> None:
        self.job = job
        self.consumer = consumer
        self._worker = worker
        self._in_order = in_order
        self._buffer = LaneBuffer(1, in_order=in_order)
        self._pending: list[msg.LeaseTask] = []
        self._running: msg.LeaseTask | None = None
        self._steps: Steps | None = None
        self._parked = False
        self._stop: Stop | None = None
        self._spared = False
        self._closed = False
        self._outlet: Connection | None = None
        self._allowance = Allowance()
        self._blocked_since: float | None = None
        self.said: msg.TaskAt | None = None
        """Where the run is, if the dispatcher has not answered that yet."""
        self._number = 0
        self.using: Using | None = None
        """What the run has of a cache."""

    # -- leases --------------------------------------------------------------------------------------------------------

    def submit(self, lease: msg.LeaseTask) -> None:
        """Takes a lease on."""
        self._pending.append(lease)
        if self._in_order:
            self._pending.sort(key=lambda each: (each.ref.epoch, each.ref.task))
        else:
            self._pending.sort(key=lambda each: each.ref.epoch)
        self._changed()

    def revoke(self, key: TaskKey, lease: int) -> bool:
        """Gives a lease up; False if it runs."""
        if self._running is not None and self._running.lease == lease:
            self._stop = Stop.RETURN
            self._changed()
            return False
        self._pending = [each for each in self._pending if each.lease != lease]
        if self._buffer.has(key, lease):
            self._buffer.forget(key)
        self._changed()
        return True

    def forget(self, key: TaskKey) -> None:
        """Drops what is kept of a task, and stops it if it runs."""
        self._buffer.forget(key)
        self._pending = [each for each in self._pending if (each.ref.epoch, each.ref.task) != key]
        if self._running is not None and (self._running.ref.epoch, self._running.ref.task) == key:
            self._stop = Stop.FORGET
        self._changed()

    def spare(self, key: TaskKey) -> None:
        """The consumer takes no more outputs of a task."""
        self._buffer.spare(key)
        running = self._running
        self._spared = self._spared or (running is not None and (running.ref.epoch, running.ref.task) == key)
        self._pending = [
            msgspec.structs.replace(each, received=-1) if (each.ref.epoch, each.ref.task) == key else each
            for each in self._pending
        ]
        self._changed()

    def drop(self, leases: Container[int]) -> None:
        """Leases that are not this worker's any more."""
        self._pending = [each for each in self._pending if each.lease not in leases]
        for key in [key for key, task in self._buffer if task.finished and task.lease in leases]:
            self._buffer.forget(key)
        if self._running is not None and self._running.lease in leases:
            self._stop = Stop.FORGET
        self._changed()

    def unstarted(self) -> list[msg.LeaseTask]:
        """Leases that had not begun; they are no longer this lane's."""
        pending, self._pending = self._pending, []
        return pending

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is kept."""
        return self._running is None and not self._pending and not any(True for _ in self._buffer)

    @property
    def stopping(self) -> int:
        """The lease whose run was told to stop and has not heard of it yet; 0 for none."""
        return self._running.lease if self._running is not None and (self._stop is not None or self._closed) else 0

    def held(self) -> list[msg.HeldTask]:
        """All leases of this lane."""
        held = [msg.HeldTask(each.ref, each.lease, self.consumer) for each in self._pending]
        if self._running is not None:
            held.append(msg.HeldTask(self._running.ref, self._running.lease, self.consumer))
        for (epoch, task), kept in self._buffer:
            if kept.finished:
                ref = msg.TaskRef(self.job, epoch, task)
                end = kept.end, ref in self._worker.left, kept.nothing
                held.append(msg.HeldTask(ref, kept.lease, self.consumer, True, *end))
        return held

    def report(self) -> LaneReport:
        """How this lane fares."""
        since = self._blocked_since
        blocked = 0.0 if since is None else self._worker.world.now - since
        return LaneReport(self.consumer, self._running is not None, blocked, self._buffer.bytes)

    # -- the run -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """What the run waits for may have come."""
        if self._parked:
            self._parked = False
            self._worker.after(0.0, self._advance)

    def _changed(self) -> None:
        self.wake()
        if self._steps is None and self._pending and not self._closed:
            self._running = self._pending.pop(0)
            self._stop = None
            self._spared = False
            self.said = None
            self._number = 0
            self.using = None
            self._steps = self._attempt(self._running)
            self._worker.after(0.0, self._advance)
        self._send()

    def _advance(self) -> None:
        assert self._steps is not None
        try:
            wait = next(self._steps)
        except StopIteration:
            self._running = self._steps = None
            self._worker.poke()
            self._changed()
            return
        if wait is None:
            self._parked = True
        else:
            self._worker.after(wait, self._advance)

    def _attempt(self, lease: msg.LeaseTask) -> Steps:
        outcome: msg.FromWorker | None = None
        try:
            try:
                outcome = yield from self._alone_with(lease)
            except FailedError as error:
                self._worker.poke()  # others may run while its consumer reads what came before
                yield from self._deliver(lease)
                self._abandon(lease)
                outcome = msg.TaskFailed(lease.ref, lease.lease, error.failure)
        except StoppedError as stopped:
            self._abandon(lease)
            outcome = msg.TaskReturned(lease.ref, lease.lease) if stopped.stop is Stop.RETURN else None
        except LeftoversMissingError as error:
            self._abandon(lease)
            outcome = msg.LeftoversLost(lease.ref, lease.lease, error.tasks)
        except OversizedError as error:
            self._abandon(lease)
            failure = msg.Failure("ElementTooLargeError", str(error))
            outcome = msg.TaskFailed(lease.ref, lease.lease, failure, error.needs)
        if self.using is not None:
            for used in self.using.told():
                self._worker.tell(used)
            self.using = None
        if outcome is not None:
            self._worker.tell(outcome)
        if lease.measure:
            self._worker.hurry()

    def _alone_with(self, lease: msg.LeaseTask) -> Generator[float | None, None, msg.TaskFinished]:
        """A run while no other job's code runs."""
        inside = self._worker.inside
        while any(job != self.job for job in inside.values()):
            self._check()
            yield None
        inside[self] = self.job
        try:
            yield from self._take_care(lease)
            return (yield from self._run(lease))
        finally:
            inside.pop(self, None)
            if self._worker.careful is self:
                self._worker.careful = None

    def _run(self, lease: msg.LeaseTask) -> Generator[float | None, None, msg.TaskFinished]:
        worker, rng, ref = self._worker, self._worker.world.rng, lease.ref
        self._check()
        first = max(lease.received - 1, 0)
        self._buffer.begin((ref.epoch, ref.task), lease.lease, first)
        if self._spared:
            self._buffer.spare((ref.epoch, ref.task))
        yield rng.uniform(0.0, 0.05)
        self._check()
        assert worker.jobs[ref.job].tables, "a task was leased before the sources were listed"
        pipeline = worker.pipeline(ref.job)
        task = (
            Task(ref.task, lease.parts[0].start, lease.parts[0].stop, parts=tuple(lease.parts))
            if lease.parts
            else pipeline.plan_for(worker.jobs[ref.job].spec).task(ref.task if lease.run < 0 else lease.run)
        )
        if lease.flush:
            task = msgspec.structs.replace(task, parent=-1)
        left = (yield from self._gather(lease)) if lease.holders else []
        units, elements = yield from self._read(lease, pipeline, task)
        outputs, leaves = pipeline.put_out(task, left if task.inputs else elements)
        count_of_units = len(pipeline.units_of(task))
        share = len(units) / max(1, count_of_units)
        computed, index = 0.0, 0
        fails = worker.town.failing.after(ref)
        if fails is not None:
            fails = min(fails, len(outputs) - 1)  # one that gives nothing does not fail
        while index < len(outputs):
            count = min(rng.randrange(1, 4), len(outputs) - index)
            step = worker.speed * rng.uniform(0.05, 0.4) * count * (share if self.using is not None else 1.0)
            computed += step
            yield from self._come_to(lease, outputs[index : index + count])
            yield step
            self._check()
            self._keep(lease, pipeline, units, len(units) * (index + count) // len(outputs))
            if fails is not None and fails < index + count:
                count = fails - index
            if worker.town.needs(ref) > worker.buffer:
                worker.town.fired["output too large"] += 1
                raise OversizedError(worker.town.needs(ref))
            skip = max(min(first - index, count), 0)
            if lease.received >= 0 and skip < count:
                yield from self._put(lease, index + skip, outputs[index + skip : index + count])
            index += count
            if index == fails:
                worker.town.fired["task failed"] += 1
                raise FailedError(failure_of(ref, index))
        yield from self._come_to(lease, [tuple(leaves)])
        self._check()
        self._keep(lease, pipeline, units, len(units))
        if self.using is not None:
            self.using.finish()
        worker.measured(ref.job, count_of_units, len(outputs), computed)
        if task.parent >= 0 and leaves:
            worker.keep(lease, leaves)
        nothing = pipeline.plan.cycle > 0 and not (outputs or leaves)
        if lease.received >= 0:
            self._buffer.finish((ref.epoch, ref.task), lease.lease, len(outputs), 0, nothing=nothing)
            self._send()
        else:
            self._abandon(lease)
        self._running = None
        worker.took(computed)
        finished = msg.TaskFinished(ref, lease.lease, len(outputs), 0, task.parent >= 0 and bool(leaves))
        return msgspec.structs.replace(finished, nothing=nothing)

    def _read(
        self, lease: msg.LeaseTask, pipeline: Pipeline, task: Task
    ) -> Generator[float | None, None, tuple[list[int], list[int]]]:
        """(units that are still to be made, elements of the task) once what is kept was read."""
        epoch = pipeline.epoch_of_values(lease.ref.epoch, lease.reused)
        poison = {each.place[4] for each in lease.poison}
        values: dict[int, int] = {}
        units = pipeline.units_of(task)
        if lease.cache is not None:
            self.using = Using(self._worker.catalogs, lease, self._worker.checks)
            for unit in units:
                found = self.using.read(unit)
                if found is not None:
                    values[unit] = found
                    yield self._worker.world.rng.uniform(0.0, 0.02)
                    self._check()
        born = [element for element in pipeline.born_in(task) if element not in poison]
        elements = [with_values(element, values.get(unit_of(element), epoch)) for element in born]
        return [unit for unit in units if unit not in values], elements

    def _keep(self, lease: msg.LeaseTask, pipeline: Pipeline, units: list[int], upto: int) -> None:
        """So many of these units were made by now."""
        if self.using is not None:
            for unit in units[self.using.count : upto]:
                self.using.made(unit, pipeline.epoch_of_values(lease.ref.epoch, lease.reused))

    def _gather(self, lease: msg.LeaseTask) -> Generator[float | None, None, list[int]]:
        by_address: dict[str, list[int]] = {}
        for task, address in lease.holders:
            by_address.setdefault(address, []).append(task)
        found: dict[int, list[int]] = {}
        for address, tasks in by_address.items():
            refs = {msg.TaskRef(lease.ref.job, lease.ref.epoch, task): task for task in tasks}
            ask = self._worker.ask(address, list(refs), self)
            while ask.found is None:
                yield None
            found.update((refs[ref], elements) for ref, elements in ask.found.items() if elements is not None)
        missing = sorted({task for task, _ in lease.holders} - found.keys())
        if missing:
            raise LeftoversMissingError(missing)
        self._check()
        return [element for task in sorted(found) for element in found[task]]

    def _put(self, lease: msg.LeaseTask, index: int, outputs: list[Output]) -> Steps:
        key = (lease.ref.epoch, lease.ref.task)
        size = len(outputs)
        waited = self._blocked(lease, key, size)
        if waited and lease.care >= ALONE:
            self._tell_place(lease, (), "")
            self._worker.careful = None
            self._worker.poke()
        while self._blocked(lease, key, size):
            self._check()
            if self._pending and self._pending[0].ref.epoch < lease.ref.epoch:
                self._blocked_since = None
                raise StoppedError(Stop.RETURN)
            if self._blocked_since is None:
                self._blocked_since = self._worker.world.now
            yield None
        self._blocked_since = None
        self._check()
        if waited and lease.care >= ALONE:
            yield from self._alone()
            yield from self._announce(lease, between(index, self._number), "between two steps")
        self._buffer.put(key, lease.lease, Message(index, size, list(outputs), size))
        self._send()

    def _deliver(self, lease: msg.LeaseTask) -> Steps:
        """Until the consumer has all that a run has put out."""
        self._blocked_since = self._worker.world.now
        while self._buffer.waits((lease.ref.epoch, lease.ref.task), lease.lease):
            self._check()
            if self._pending and self._pending[0].ref.epoch < lease.ref.epoch:
                self._blocked_since = None
                raise StoppedError(Stop.RETURN)
            yield None
        self._blocked_since = None
        self._check()

    def _blocked(self, lease: msg.LeaseTask, key: TaskKey, size: int) -> bool:
        return not self._buffer.spared(key) and not self._buffer.room(lease.ref.epoch, size)

    # -- care ----------------------------------------------------------------------------------------------------------

    def _take_care(self, lease: msg.LeaseTask) -> Steps:
        if lease.care >= ALONE:
            yield from self._alone()
        if lease.care:
            yield from self._announce(lease, (-1, 0), "beginning")

    def _alone(self) -> Steps:
        """One run with care does something at a time."""
        while self._worker.careful not in {None, self}:
            self._check()
            yield None
        self._worker.careful = self

    def _come_to(self, lease: msg.LeaseTask, outputs: list[Output]) -> Steps:
        """The run deals with elements, one of which may end the process."""
        if lease.holders:
            return  # others have dealt with them
        for element in [bare(element) for output in outputs for element in output]:
            if lease.care >= ALONE:
                yield from self._announce(lease, (1, 0, 0, 0, element, 0), f"element {element}")
            if self._worker.town.deadly(lease.ref.job, element):
                self._worker.end_badly()
                yield None

    def _announce(self, lease: msg.LeaseTask, place: Place, where: str) -> Steps:
        self.said = self._tell_place(lease, place, where)
        while self.said is not None:
            self._check()
            yield None

    def _tell_place(self, lease: msg.LeaseTask, place: Place, where: str) -> msg.TaskAt:
        self._number += 1
        message = msg.TaskAt(lease.ref, lease.lease, self._number, place, where)
        self._worker.tell(message)
        return message

    def go_on(self, message: msg.TaskGoOn) -> None:
        """The dispatcher knows where the run is."""
        if self.said is not None and (self.said.lease, self.said.number) == (message.lease, message.number):
            self.said = None
            self.wake()

    def _check(self) -> None:
        if self._closed or self._stop is not None:
            self._blocked_since = None
            raise StoppedError(self._stop if self._stop is not None and not self._closed else Stop.FORGET)

    def _abandon(self, lease: msg.LeaseTask) -> None:
        key = (lease.ref.epoch, lease.ref.task)
        if self._buffer.has(key, lease.lease):
            self._buffer.forget(key)
        self._running = None

    # -- the consumer's connection -------------------------------------------------------------------------------------

    def attach(self, outlet: Connection) -> None:
        """A new connection of the consumer; an older one is closed."""
        older, self._outlet = self._outlet, outlet
        self._allowance.void()
        self._buffer.detach()
        if older is not None:
            self._worker.hang_up(older)
        self.wake()

    def detach(self, outlet: Connection) -> None:
        """A connection has ended."""
        if self._outlet is outlet:
            self._outlet = None
            self._allowance.void()
            self._buffer.detach()
        self.wake()

    def told(self, outlet: Connection, message: object) -> None:
        """What the consumer said on its connection."""
        if self._outlet is not outlet:
            return
        match message:
            case data_messages.Credit(bytes=count):
                self._allowance.grant(count)
            case data_messages.Read(epoch=epoch, task=task, lease=lease, start=start):
                self._buffer.read((epoch, task), lease, start)
            case data_messages.Received(epoch=epoch, task=task, upto=upto, complete=complete):
                self._buffer.received((epoch, task), upto, complete=complete)
        self._changed()
        self._worker.see_off()

    def _send(self) -> None:
        while self._outlet is not None and not self._closed:
            parcel = self._allowance.next(self._buffer)
            if parcel is None:
                return
            if isinstance(parcel, data_messages.Short):
                self._outlet.send(self._worker, parcel)
                continue
            message = parcel.message
            count = 0 if message is None else message.count
            (epoch, task) = parcel.key
            ref, stopping = msg.TaskRef(self.job, epoch, task), self.stopping == parcel.lease
            self._worker.checks.served(self._worker, ref, parcel.lease, stopping=stopping)
            header = data_messages.Delivery(epoch, task, parcel.lease, parcel.index, count, parcel.last)
            self._outlet.send(self._worker, (header, [] if message is None else message.buffers))

    # -- the end -------------------------------------------------------------------------------------------------------

    def resize(self, limit: int) -> None:
        """Another share of the worker's bytes."""
        self._buffer.limit = limit
        self.wake()

    def close(self) -> None:
        """Stops the run at its next step, ends the connection, drops all."""
        self._closed = True
        self._pending = []
        for key in [key for key, _ in self._buffer]:
            self._buffer.forget(key)
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            self._worker.hang_up(outlet)
        self.wake()
