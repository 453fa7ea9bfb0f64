"""A worker: what :mod:`millrace.worker` says and does, without threads, sockets and user code.

The buffers of its lanes are the real ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.planning.split_table import summaries
from millrace.policies.caching.io_cost import TransferCost
from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import BlocksKnown, MeasureStore, StoreCost, StoreMeasured
from millrace.protocol.reports import NodeMeasure, Told
from millrace.simulation.caching import Catalogs
from millrace.simulation.invariants import Checks
from millrace.simulation.lane import Lane
from millrace.simulation.pipelines import Pipeline
from millrace.simulation.virtual_network import Connection, Process, World
from millrace.wire.backoff import delays

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import Town

AHEAD_S = 2.0
READS = TransferCost((1 << 20,), (0.01,))
WRITES = TransferCost((1 << 20,), (0.02,))
ANSWER_S = 10.0
"""For another worker to say what it keeps."""


@dataclass
class Left:
    """What a task left to its tail."""

    lease: int
    consumer: int
    elements: list[int]


@dataclass
class Ask:
    """A question to another worker; ``found`` is None until it has answered or will not."""

    found: dict[msg.TaskRef, list[int] | None] | None = None
    waiting: list[Lane] = field(default_factory=list)


class Worker(Process):
    """One life of a worker process.

    Args:
        world: where it lives.
        name: its id.
        host: where it runs.
        checks: what must hold.
        town: finds the dispatcher, other workers and pipelines.
        only: the job that it is local to.
    """

    def __init__(self, world: World, name: str, host: str, checks: Checks, town: Town, only: str = "") -> None:
        super().__init__(world, name)
        self.host = host
        self.address = f"{name}:1"
        self.only = only
        self.checks = checks
        self.town = town
        self.speed = world.rng.uniform(0.5, 2.0)
        self.buffer = world.rng.choice((2, 4, 8, 64))
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.left: dict[msg.TaskRef, Left] = {}
        self.session: Connection | None = None
        self.jobs: dict[str, msg.OpenJob] = {}
        self.inside: dict[Lane, str] = {}
        self.catalogs = Catalogs(town.store)
        self._measures: dict[str, tuple[int, int, float]] = {}
        self._want = 2
        self._took: deque[float] = deque(maxlen=20)
        self._busy_s = 0.0
        self._leaving = False
        self._until = 0.0
        self.careful: Lane | None = None
        self.obeying = False
        self._heartbeat_s = 5.0
        self._told_before = Told()
        self._current = ""
        self._pauses = delays_of(world)
        self._serving: dict[Connection, Lane] = {}
        self._asked: dict[Connection, Ask] = {}
        self._words: dict[type, Callable[[Any], None]] = {
            msg.WorkerWelcome: self._welcome,
            msg.StopWorker: lambda _: self.stop(),
            msg.LeaseTask: self._lease,
            msg.RevokeTask: self._revoke,
            msg.ForgetTasks: self._forget,
            msg.OutputsReceived: self._spare,
            msg.TaskGoOn: self._go_on,
            msg.OpenJob: self._open,
            msg.CloseJob: lambda message: self._close(message.job),
            msg.ListSources: self._list,
            msg.ChooseSharding: self._choose,
            BlocksKnown: self.catalogs.known,
            MeasureStore: self._measure,
        }
        self.after(world.delay(), self._connect)
        self.after(self._heartbeat_s, self._beat)

    # -- the session ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        dispatcher = self.town.dispatcher
        if dispatcher is None or not self.world.reachable(self, dispatcher):
            self.after(next(self._pauses), self._connect)
            return
        self.session = Connection(self.world, self, dispatcher, "session")
        hello = msg.WorkerHello(
            *(self.name, self.address, self.host, 1, 1),
            held=self.held(),
            only=self.only,
            buffer_bytes=self.buffer,
            told=self._told_before,
        )
        self.session.send(self, hello)
        if self._leaving:
            self.session.send(self, msg.WorkerLeaving(max(self._until - self.world.now, 0.001)))

    def held(self) -> list[msg.HeldTask]:
        """Everything that is leased to this worker or kept by it."""
        held = {
            left.lease: msg.HeldTask(ref, left.lease, left.consumer, finished=True, leftovers=True)
            for ref, left in self.left.items()
        }
        held.update((entry.lease, entry) for lane in self.lanes.values() for entry in lane.held())
        return list(held.values())

    def tell(self, message: msg.FromWorker) -> None:
        """Says it to the dispatcher, if there is a session."""
        if self.session is not None:
            self.session.send(self, message)
        if self.want != self._want:
            self._report()

    def heard(self, connection: Connection, message: Any) -> None:
        """A word of the dispatcher, a consumer, or another worker."""
        if connection is self.session:
            self._told(message)
        elif isinstance(message, data_messages.Open):
            job = self.jobs.get(message.job)
            current = job is not None and job.generation == message.generation
            lane = self.lane(message.job, message.consumer) if current else None
            if lane is None:
                connection.close(self)
            else:
                self._serving[connection] = lane
                lane.attach(connection)
        elif isinstance(message, list):
            found = {ref: left.elements if (left := self.left.get(ref)) is not None else None for ref in message}
            connection.send(self, found)
        elif isinstance(message, dict):
            connection.close(self)
            self._answered(connection, message)
        elif connection in self._serving:
            self._serving[connection].told(connection, message)

    def broken(self, connection: Connection) -> None:
        """A connection has ended."""
        if connection is self.session:
            self.session = None
            self._end_if_alone()
            self.after(next(self._pauses), self._connect)
        elif connection in self._serving:
            self._serving.pop(connection).detach(connection)
            self._end_if_alone()
        elif connection in self._asked:
            self._answered(connection, {})

    def _told(self, message: Any) -> None:
        obey = self._words.get(type(message))
        self.obeying = True
        if obey is not None:  # else it is why the session ends
            obey(message)
        self.obeying = False
        self.see_off()

    def _welcome(self, message: msg.WorkerWelcome) -> None:
        self._pauses = delays_of(self.world)
        self._heartbeat_s = message.heartbeat_s
        self._told_before = self._told_before.let_in(message.told)
        self._drop(message.stale)
        for lane in self.lanes.values():
            if lane.said is not None:
                self.tell(lane.said)
        self._report()

    def _lease(self, message: msg.LeaseTask) -> None:
        self._current = message.ref.job
        self._told_before = self._told_before.hears_of(message.lease)
        lane = None if self._leaving else self.lane(message.ref.job, message.consumer)
        if lane is None:
            self.tell(msg.TaskReturned(message.ref, message.lease))
        else:
            lane.submit(message)

    def _revoke(self, message: msg.RevokeTask) -> None:
        ref = message.ref
        if all(lane.revoke((ref.epoch, ref.task), message.lease) for lane in self._lanes_of(ref.job)):
            self._drop_left([message.lease])
            self.tell(msg.TaskReturned(ref, message.lease))

    def _forget(self, message: msg.ForgetTasks) -> None:
        for ref in message.refs:
            for lane in self._lanes_of(ref.job):
                lane.forget((ref.epoch, ref.task))
            self.left.pop(ref, None)

    def _spare(self, message: msg.OutputsReceived) -> None:
        for ref in message.refs:
            for lane in self._lanes_of(ref.job):
                lane.spare((ref.epoch, ref.task))

    def _go_on(self, message: msg.TaskGoOn) -> None:
        for lane in self._lanes_of(message.ref.job):
            lane.go_on(message)

    def _list(self, message: msg.ListSources) -> None:
        self.after(self.world.rng.uniform(0.05, 1.0), self._listed, message.job)

    def _choose(self, message: msg.ChooseSharding) -> None:
        self.after(self.world.rng.uniform(0.05, 0.5), self._chosen, message)

    def _measure(self, message: MeasureStore) -> None:
        cost = StoreCost(READS, READS, WRITES, 1e-10, 2)
        self.after(self.world.rng.uniform(0.1, 2.0), self.tell, StoreMeasured(message.path, cost))

    def _drop(self, leases: Container[int]) -> None:
        for lane in self.lanes.values():
            lane.drop(leases)
        self._drop_left(leases)

    def _drop_left(self, leases: Container[int]) -> None:
        self.left = {ref: left for ref, left in self.left.items() if left.lease not in leases}

    def _open(self, message: msg.OpenJob) -> None:
        self._current = message.job
        known = self.jobs.get(message.job)
        if known is not None and known.generation != message.generation:
            self._close(message.job)  # another job has got the name
        self.jobs[message.job] = message

    def _close(self, name: str) -> None:
        self.jobs.pop(name, None)
        for key in [key for key in self.lanes if key[0] == name]:
            self.lanes.pop(key).close()
        self._share_out()
        self.left = {ref: left for ref, left in self.left.items() if ref.job != name}

    def _listed(self, name: str) -> None:
        job = self.jobs.get(name)
        if job is not None:
            pipeline, dispatcher = self.pipeline(name), self.town.dispatcher
            digest, data = pipeline.packed_tables
            if dispatcher is None or not self.world.reachable(self, dispatcher):
                self.after(self.world.rng.uniform(0.5, 2.0), self._listed, name)
                return
            dispatcher.disk.blobs[digest] = data  # by a call of its own, before it is said
            points, generation = pipeline.points(job.seed), job.generation
            listed = msg.SourcesListed(
                name, summaries(pipeline.tables), points=points, digest=digest, generation=generation
            )
            self.after(self.world.delay(), self.tell, listed)

    def _chosen(self, message: msg.ChooseSharding) -> None:
        if message.job in self.jobs:
            owners = [(task * 7 + message.epoch) % len(message.workers) for task in range(message.tasks)]
            self.tell(msg.ShardingChosen(message.job, message.epoch, owners))

    # -- lanes ---------------------------------------------------------------------------------------------------------

    def pipeline(self, job: str) -> Pipeline:
        """What a job runs."""
        return self.town.pipelines[self.jobs[job].spec.structure]

    def _lanes_of(self, job: str) -> list[Lane]:
        return [lane for (name, _), lane in self.lanes.items() if name == job]

    def lane(self, name: str, consumer: int) -> Lane | None:
        """The lane of a job's consumer; None if the job is not open here."""
        lane = self.lanes.get((name, consumer))
        job = self.jobs.get(name)
        if lane is None and job is not None:
            lane = self.lanes[name, consumer] = Lane(self, name, consumer, in_order=job.spec.deterministic)
            self._share_out()
        return lane

    def _share_out(self) -> None:
        for lane in self.lanes.values():
            lane.resize(max(1, self.buffer // len(self.lanes)))

    def poke(self) -> None:
        """A lane has left, or was told to stop: those that wait for their turn look again."""
        for lane in self.lanes.values():
            lane.wake()
        self.see_off()

    def ask(self, address: str, refs: list[msg.TaskRef], lane: Lane) -> Ask:
        """Asks another worker, or this one, for leftovers."""
        if address == self.address:
            return Ask({ref: left.elements if (left := self.left.get(ref)) is not None else None for ref in refs})
        ask = Ask(waiting=[lane])
        holder = self.town.workers.get(address)
        if holder is None or not holder.alive:
            self.after(self.world.delay(), self._give_up, ask)
        elif not self.world.reachable(self, holder):
            self.after(ANSWER_S, self._give_up, ask)
        else:
            connection = Connection(self.world, self, holder, "leftovers")
            self._asked[connection] = ask
            connection.send(self, refs)
        return ask

    def _answered(self, connection: Connection, found: dict[msg.TaskRef, list[int] | None]) -> None:
        ask = self._asked.pop(connection, None)
        if ask is not None:
            ask.found = found
            for lane in ask.waiting:
                lane.wake()

    def _give_up(self, ask: Ask) -> None:
        ask.found = {}
        for lane in ask.waiting:
            lane.wake()

    def hang_up(self, connection: Connection) -> None:
        """Ends a consumer's connection."""
        self._serving.pop(connection, None)
        connection.close(self)

    def keep(self, lease: msg.LeaseTask, elements: list[int]) -> None:
        """What a task leaves to its tail."""
        self.left[lease.ref] = Left(lease.lease, lease.consumer, elements)

    def took(self, seconds: float) -> None:
        """A task was computed in so many seconds."""
        self._took.append(seconds)
        self._busy_s += seconds

    def measured(self, job: str, units: int, outputs: int, seconds: float) -> None:
        """What a run of a job did."""
        before = self._measures.get(job, (0, 0, 0.0))
        self._measures[job] = before[0] + units, before[1] + outputs, before[2] + seconds

    def _nodes(self, job: str) -> list[NodeMeasure]:
        """As if all that takes time were what is above the source."""
        units, outputs, seconds = self._measures.get(job, (0, 0, 0.0))
        nodes = self.pipeline(job).graph.nodes
        return [
            NodeMeasure(
                number,
                str(node),
                outputs if number == len(nodes) - 1 else units,
                units << 21,
                seconds if number == 1 else 0.0,
                threads=1,
            )
            for number, node in enumerate(nodes)
        ]

    def hurry(self) -> None:
        """What was measured is wanted soon."""
        self._report()

    # -- what the dispatcher hears -------------------------------------------------------------------------------------

    @property
    def want(self) -> int:
        """Leases to hold."""
        if not self._took:
            return 2
        return max(2, min(16, math.ceil(AHEAD_S * len(self._took) / max(sum(self._took), 1e-6))))

    def _beat(self) -> None:
        self._report()
        self.after(self._heartbeat_s, self._beat)

    def _report(self) -> None:
        self._want = self.want
        name = self._current if self._current in self.jobs else ""
        lanes = [lane.report() for (job, _), lane in self.lanes.items() if job == name]
        nodes = self._nodes(name) if name else []
        if self.session is not None:
            self.session.send(self, msg.WorkerReport(self._want, name, lanes, nodes, busy_s=self._busy_s))

    # -- the end -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Leaves in good order; the second time at once."""
        if self._leaving:
            self.end()
            return
        self._leaving = True
        within = self.world.rng.choice((3.0, 30.0))
        self._until = self.world.now + within
        self.tell(msg.WorkerLeaving(within))
        for lane in self.lanes.values():
            for lease in lane.unstarted():
                self.tell(msg.TaskReturned(lease.ref, lease.lease))
        self.after(within, self.end)
        self._end_if_alone()
        self.see_off()

    def see_off(self) -> None:
        """Once it is leaving and nothing of it is needed any more, it ends."""
        if self._leaving and not self.left and all(lane.idle for lane in self.lanes.values()):
            self.end()

    def _end_if_alone(self) -> None:
        if self._leaving and self.session is None and not self._serving:
            self.end()

    def end_badly(self) -> None:
        """An element has ended the process."""
        self.town.fired["worker ended by an element"] += 1
        self.die()
        self.town.worker_over(self)

    def end(self) -> None:
        """The process is over."""
        if self.alive:
            self.die()
            self.town.worker_over(self)


def delays_of(world: World) -> Iterator[float]:
    """As :func:`millrace.wire.backoff.delays`, drawn from the world's generator."""
    return delays(draw=world.rng.random)
