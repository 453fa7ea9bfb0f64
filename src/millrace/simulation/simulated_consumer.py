"""A consumer: what :mod:`millrace.client` says and does, without threads and sockets, and the loop that reads from it.

What it holds of an epoch, and who may send it how much, are the real thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from millrace.client.credit import CreditPool
from millrace.client.epoch_buffer import EpochInbox, Outcome
from millrace.errors import ProtocolError
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import Checkpoint, graph_digest, said
from millrace.planning.progress import Progress, TaskSet
from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.reports import Pace, Told
from millrace.simulation.failing import OF_THE_DATA
from millrace.simulation.invariants import Checks
from millrace.simulation.pipelines import Output
from millrace.simulation.simulated_worker import delays_of
from millrace.simulation.virtual_network import Connection, Process, Violation, World

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import Town

SOON_S, JOIN_S = 0.02, 10.0


class Consumer(Process):
    """One process that reads a job's epochs, then leaves.

    Args:
        world: where it lives.
        name: of its client.
        spec: of its job.
        consumer: index among the job's consumers.
        stops: by epoch, the number of elements after which it breaks off.
        checks: what must hold.
        town: finds the dispatcher and workers.
        born: when its process was started, be it long before it joins.
        states: where all ranks of the job go on.
    """

    def __init__(
        self,
        world: World,
        name: str,
        spec: JobSpec,
        consumer: int,
        stops: Mapping[int, int],
        checks: Checks,
        town: Town,
        born: float,
        states: Sequence[Checkpoint] = (),
    ) -> None:
        super().__init__(world, name)
        self._loaded = states
        self._progress, self._alone = Progress(), TaskSet()
        self._told_of: msg.EpochBegun | None = None
        self._born = born
        self.spec = spec
        self.consumer = consumer
        self.client = name
        self.done = False
        self.failure: msg.Failure | None = None
        self._error: msg.Failure | None = None
        self.joined: msg.JobJoined | None = None
        self.inbox: EpochInbox | None = None
        self.stops = stops
        self._checks = checks
        self._town = town
        self._slow = world.rng.choice((0.0, 0.01, 0.1, 0.4))
        self._pool = CreditPool(world.rng.choice((1, 4, 16, 100)))
        self.session: Connection | None = None
        self._joining: Connection | None = None
        self._pauses = delays_of(world)
        self._heartbeat_s = 5.0
        self._wanted = self._begun = -1
        self._heard = Told()
        self._left: tuple[int, list[msg.TaskProgress]] = (-1, [])
        self._allowed: tuple[int, bool] | None = None
        self._task = self._until = -1
        self._surplus: list[Output] = []  # of that task, held until all ranks have as much
        self._taken = 0
        self._ended = -1
        self._unused = 0
        self._unread = -1, ""
        self._since = 0.0
        self._waited_s = 0.0
        self._waiting = False
        self._waiting_since = 0.0
        self._report_due = False
        self._readers: dict[str, Iterator[float]] = {}
        self._connections: dict[str, Connection] = {}
        self._attempt = 0
        self.after(0.0, self._join)

    # -- the session ---------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        dispatcher = self._town.dispatcher
        if self.done:
            return
        if dispatcher is None or not self.world.reachable(self, dispatcher):
            self._again()
            return
        self._joining = Connection(self.world, self, dispatcher, "session")
        resume = self.joined is not None
        generation = self.joined.generation if self.joined is not None else 0
        join = msg.JoinJob(self.spec, self.client, self.consumer, resume=resume, generation=generation)
        join = replace(join, states=[*self.states], told=replace(self._heard, epoch=self._begun))
        self._joining.send(self, replace(join, age_s=self.world.now - self._born))
        self.after(self._heartbeat_s if resume else JOIN_S, self._hurry, self._joining)

    def _hurry(self, connection: Connection) -> None:
        if self._joining is connection:
            connection.close(self)
            self._joining = None
            self._again()

    def _again(self) -> None:
        """Who was in comes back by itself; a new process is started again by whoever runs the training."""
        if not self.done:
            self.after(next(self._pauses), self._join)

    def heard(self, connection: Connection, message: Any) -> None:
        """A word of the dispatcher or a worker."""
        if connection is self._joining:
            self._answered(connection, message)
        elif connection is self.session:
            self._pauses = delays_of(self.world)
            self._told(message)
        elif isinstance(message, tuple):
            self._arrived(connection, *message)
        elif isinstance(message, data_messages.Short):
            self._route(self._pool.short(connection.label, message.size, message.returned))
            self._wake()

    def broken(self, connection: Connection) -> None:
        """A connection has ended."""
        if connection is self._joining:
            self._joining = None
            self._again()
        elif connection is self.session:
            self.session = None
            self._again()
        else:
            self._lost_worker(connection)

    def _answered(self, connection: Connection, message: Any) -> None:
        if isinstance(message, msg.JobJoined):
            self._joining, self.session = None, connection
            first, self.joined = self.joined is None, message
            self._heard = self._heard.let_in(message.told)
            self._town.witnesses.let_in(self)
            self._heartbeat_s = message.heartbeat_s
            if first:
                self.after(self._heartbeat_s, self._beat)
                self._begin(message.epoch + 1)
                return
            self._report(everything=True)
            if self._wanted >= 0:
                self._say(msg.BeginEpoch(self._wanted))
        elif isinstance(message, msg.JobFailed) and (self.joined is not None or message.failure.kind in OF_THE_DATA):
            self._hurry(connection)
            self._over(message.failure)
        elif isinstance(message, msg.JobFailed) and "is too late" in message.failure.message:
            self._checks.too_late(self)
            self.failure = message.failure
            self.leave()
        elif isinstance(message, (msg.JobFailed, msg.Failure)):
            # The place is taken, or the disk is full: another process tries again.
            self._attempt += 1
            self.client = f"{self.name}.{self._attempt}"
            self._hurry(connection)

    @property
    def states(self) -> Sequence[Checkpoint]:
        """What who takes its place loads, as long as it has not joined."""
        return self._loaded if self.joined is None else ()

    @property
    def reading(self) -> int:
        """The epoch that it reads; -1 between two."""
        return self._begun if self.inbox is not None and self.inbox.number == self._begun == self._wanted else -1

    def _count_from(self, begun: msg.EpochBegun) -> None:
        """What it says from now on was read of an epoch."""
        self._progress, self._alone = Progress(), TaskSet()
        if not begun.anew and self._loaded:
            read = said(self._loaded, begun.epoch)
            self._alone = read.tasks_alone()
            self._progress.resume(read.tasks_done(), dict(read.begun))

    def state(self) -> Checkpoint:
        """What its user would save now."""
        begun, inbox, joined = self._told_of, self.inbox, self.joined
        assert begun is not None
        assert inbox is not None
        assert joined is not None
        for task, outputs in inbox.ended():
            self._progress.ends(task, outputs)
        done, parts = self._progress.now()
        return Checkpoint(
            seed=joined.seed,
            epoch=begun.epoch,
            graph=graph_digest(unpack(self.spec.structure)),
            sources=begun.sources,
            tasks=begun.tasks,
            done=done.low,
            later=done.text(),
            begun=parts,
            rank=self.consumer,
            ranks=self.spec.num_consumers or 1,
            reused=begun.reused,
            alone=(self._alone.low, self._alone.text()),
            shares=begun.shares,
            pieces=begun.pieces,
        )

    def _say(self, message: msg.FromConsumer) -> None:
        if self.session is not None:
            self.session.send(self, message)

    def _told(self, message: Any) -> None:
        match message:
            case msg.ReadTasks(epoch=epoch, reads=reads, alone=alone):
                self._heard = self._heard.hears_of(max((read.lease for read in reads), default=0))
                self._assign(epoch, reads, alone)
            case msg.EpochEnds(epoch=epoch, tasks=tasks, unread=unread):
                self._unread = epoch, unread
                self._all_known(epoch, tasks)
            case msg.StepsReady(epoch=epoch, steps=steps, last=last):
                self._may_use(epoch, steps, last=last)
            case msg.EpochBegun():
                self._epoch_begun(message)
            case msg.JobFailed(failure=failure):
                self._over(failure)

    def _all_known(self, epoch: int, tasks: list[int]) -> None:
        if self.inbox is not None and self.inbox.number == epoch:
            self.inbox.ends(tasks)
            if self.spec.equal_steps:
                self._report_soon()  # others may wait to hear that this is all
            self._wake()

    def _may_use(self, epoch: int, steps: int, *, last: bool) -> None:
        current = self.inbox is not None and self.inbox.number == epoch
        if current and self._allowed is not None and not self._allowed[1]:
            self._allowed = max(self._allowed[0], steps), last
            self._wake()

    def _epoch_begun(self, message: msg.EpochBegun) -> None:
        epoch = message.epoch
        if epoch != self._wanted:
            return
        if self.inbox is None or self.inbox.number != epoch:
            self.inbox = EpochInbox(epoch, in_order=self.spec.deterministic, decode=list)
            self._allowed, self._surplus = (0, False) if message.held else None, []
            self._route(self._pool.clear())
        if self._begun != epoch:
            self._begun, self._told_of = epoch, message
            self._count_from(message)
            self._taken, self._since, self._waited_s = 0, self.world.now, 0.0
            self._checks.began(self, epoch, message.reused)
            self._wait()

    def _over(self, failure: msg.Failure) -> None:
        """The job is over; its user hears of it behind all that has arrived."""
        self._error = self._error or failure
        self._wake() if self.reading >= 0 else self._fail(failure)

    def _fail(self, failure: msg.Failure) -> None:
        if not self.done:
            self.failure = failure
            self._checks.failed(self, failure)
            self.leave()

    def _beat(self) -> None:
        if not self.done:
            self._report()
            self.after(self._heartbeat_s, self._beat)

    def _report(self, *, everything: bool = False) -> None:
        epoch, tasks = -1, []
        if self.inbox is not None:
            epoch, tasks = self.inbox.number, self.inbox.progress(everything=everything)
        elif everything:
            epoch, tasks = self._left
        each = (self.world.now - self._since) / self._taken if self._taken else 0.0
        number = max(self._wanted, 0) if epoch < 0 else epoch
        arrived, all_here = (0, False) if self.inbox is None else (self.inbox.arrived, self.inbox.all_here)
        pace = Pace(self._taken, self.world.now - self._since, self._waited_s)
        wait_s = max(0.0, each - self._slow)
        ended = number == self._ended
        report = msg.ConsumerReport(number, tasks, self._taken, each, wait_s, arrived=arrived, pace=pace, ended=ended)
        self._say(replace(report, all_here=all_here) if self.spec.equal_steps else report)

    def _report_soon(self) -> None:
        if not self._report_due:
            self._report_due = True
            self.after(SOON_S, self._reported)

    def _reported(self) -> None:
        self._report_due = False
        if not self.done:
            self._report()

    # -- the loop that reads -------------------------------------------------------------------------------------------

    def _begin(self, epoch: int) -> None:
        if epoch >= (self.spec.epochs or 1):
            self.leave()
            return
        self._wanted = epoch
        self._say(msg.BeginEpoch(epoch))

    def _wait(self) -> None:
        self._waiting, self._waiting_since = True, self.world.now
        self._take()

    def _wake(self) -> None:
        if self._waiting:
            self._take()

    def _take(self) -> None:
        inbox = self.inbox
        if self.done or inbox is None or inbox.number != self._begun:
            return
        arrival = None if self._surplus else inbox.take()
        if arrival is not None:
            self._task, self._until, self._surplus = arrival.task.number, arrival.end, arrival.decoded()
            self._route(self._pool.used(arrival.worker, arrival.size))
        count = len(self._surplus) if self._allowed is None else self._allowed[0] - self._taken
        fresh: list[Output] = self._surplus[: max(0, count)]
        if fresh:
            self._surplus = self._surplus[len(fresh) :]
            self._waiting = False
            self._waited_s += self.world.now - self._waiting_since
            self._checks.yielded(self, inbox.number, self._task, fresh)
            first, self._taken = not self._taken, self._taken + len(fresh)
            self._progress.yielded(self._task, self._until - len(self._surplus))
            if first:
                self._report()
            self.after(self._slow * self.world.rng.uniform(0.5, 1.5) * len(fresh), self._next)
        elif self._error is not None:
            self._fail(self._error)
        elif self._surplus:
            if self._allowed is not None and self._allowed[1]:
                self._waiting = False
                self._end(read=True)  # others have no more
        elif inbox.finished:
            self._waiting = False
            self._end(read=True)
        else:
            self._route(self._pool.force(inbox.needed()))

    def _next(self) -> None:
        inbox = self.inbox
        if inbox is not None and not self.done and self._taken >= self.stops.get(inbox.number, 1 << 60):
            self._end(read=False)
        else:
            self._wait()

    def _end(self, *, read: bool) -> None:
        inbox = self.inbox
        assert inbox is not None
        if read:
            self._ended = inbox.number
            self._checks.told(self, inbox.number, self._unread[1] if self._unread[0] == inbox.number else "")
            self._checks.ended(self, inbox.number, self._taken)
        else:
            self._checks.abandoned(self, inbox.number)
        self._report()
        self._left = inbox.number, inbox.progress(everything=True)
        self._unused = 0 if read else inbox.arrived - self._taken
        self._surplus = []
        if not inbox.finished:
            self.inbox = None
            self._route(self._pool.clear())
            for connection in list(self._connections.values()):
                self._hang_up(connection)
        self._begin(inbox.number + 1)

    def leave(self) -> None:
        """Closes the session and leaves the job."""
        if self.done:
            return
        self.done = True
        if self.failure is not None:
            self._checks.abandoned(self, max(self._wanted, 0))
        self._report()
        inbox = self.inbox
        broken_off = inbox is not None and inbox.number == self._begun != self._ended
        self._say(msg.LeaveJob(inbox.arrived - self._taken if inbox is not None and broken_off else self._unused))
        for connection in [*self._connections.values(), self.session, self._joining]:
            if connection is not None:
                connection.close(self)
        self._town.consumer_over(self)

    def die(self, *, silently: bool = False) -> None:
        """It is gone, with what it had not yielded."""
        if not self.done:
            self._checks.abandoned(self, max(self._wanted, 0))
        super().die(silently=silently)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _assign(self, epoch: int, reads: list[msg.TaskRead], alone: list[int]) -> None:
        inbox = self.inbox
        if inbox is None or inbox.number != epoch:
            return
        for task in alone:
            self._alone.add(task)
        orders: dict[str, list[data_messages.Read]] = {}
        for read in reads:
            start = inbox.assign(read.task, read.lease, read.address, read.start)
            if inbox.wanted(read.task):
                orders.setdefault(read.address, []).append(data_messages.Read(epoch, read.task, read.lease, start))
        for address, words in orders.items():
            connection = self._connections.get(address)
            if connection is not None:
                for word in words:
                    connection.send(self, word)
            elif address not in self._readers:
                self._readers[address] = delays_of(self.world)
                self.after(self.world.delay(), self._connect, address)
        self._wake()

    def _connect(self, address: str) -> None:
        if address not in self._readers or address in self._connections:
            return
        worker = self._town.workers.get(address)
        inbox = self.inbox
        if worker is None or not self.world.reachable(self, worker):
            self._retry(address)
        elif inbox is None or self.done:
            del self._readers[address]
        else:
            connection = self._connections[address] = Connection(self.world, self, worker, address)
            assert self.joined is not None
            generation = self.joined.generation
            connection.send(self, data_messages.Open(self.spec.name, self.consumer, self.client, generation))
            self._route(self._pool.join(address))
            for task, lease, start in inbox.unfinished(address):
                connection.send(self, data_messages.Read(inbox.number, task, lease, start))

    def _retry(self, address: str) -> None:
        if self.done or self.inbox is None or not self.inbox.unfinished(address):
            del self._readers[address]
        else:
            self.after(next(self._readers[address]), self._connect, address)

    def _lost_worker(self, connection: Connection) -> None:
        address = connection.label
        if self._connections.get(address) is connection:
            del self._connections[address]
            self._route(self._pool.leave(address))
            self._retry(address)
            self._wake()  # as in Feed._receive: who waited for that one may let another one send

    def _hang_up(self, connection: Connection) -> None:
        connection.close(self)
        self._lost_worker(connection)

    def _arrived(self, connection: Connection, header: data_messages.Delivery, outputs: list[Output]) -> None:
        address, size = connection.label, len(outputs)
        self._pool.arrived(address, size)
        inbox = self.inbox
        fresh = complete = False
        if inbox is not None and inbox.number == header.epoch:
            held, _ = inbox.holds(header.task)
            try:
                fresh = inbox.accept(header.task, header.index, header.count, outputs, size, address, last=header.last)
            except ProtocolError as error:
                raise Violation(f"{self.name}: {error}") from error
            if fresh:
                self._checks.received(self, header.epoch, outputs[max(held - header.index, 0) :])
            for rerun in inbox.reruns:
                if rerun.outcome is not Outcome.SAME and self.spec.runs_again and not self._town.witnesses.refused:
                    raise Violation(f"task {rerun.task} of {self.spec.name} gave {rerun.outcome.value} when run again")
            inbox.reruns.clear()
            upto, complete = inbox.holds(header.task)
            connection.send(self, data_messages.Received(header.epoch, header.task, upto, complete))
        if not fresh:
            self._route(self._pool.used(address, size))
        if complete:
            self._report_soon()
        self._wake()

    def _route(self, grants: Mapping[str, int]) -> None:
        for address, amount in grants.items():
            if amount:
                self._connections[address].send(self, data_messages.Credit(amount))
