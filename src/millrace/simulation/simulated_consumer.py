"""A consumer: a user that takes elements at a pace, and the network, around the core that consumers have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.client.consumer_progress import EpochProgress
from millrace.client.epoch_buffer import EpochBuffer
from millrace.client.own_epoch import OwnEpoch
from millrace.errors import MillraceError, ProtocolError
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import Checkpoint, graph_digest, said
from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.weight_messages import WeightsSet
from millrace.simulation.drawn_failures import OF_THE_DATA
from millrace.simulation.pipelines import Output
from millrace.simulation.simulated_worker import delays_of
from millrace.simulation.virtual_network import Connection, Process, Violation
from millrace.wire.error_codec import error_of, failure_of

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster

SOON_S, JOIN_S = 0.02, 10.0
STALL_S = 200.0
"""For which a job that shares its computation stands still, unless it is detached before."""


class SimulatedConsumer(Process):
    """One process that reads a job's epochs, then leaves.

    Args:
        name: of its client.
        spec: of its job.
        consumer: index among the job's consumers.
        stops: by epoch, the number of elements after which it breaks off.
        cluster: finds the dispatcher and workers.
        born: when its process was started, be it long before it joins.
        states: where all ranks of the job go on.

    Attributes:
        core: decides.
        done: it has left.
        failure: its user got this error.
    """

    def __init__(
        self,
        name: str,
        spec: JobSpec,
        consumer: int,
        stops: Mapping[int, int],
        cluster: SimulatedCluster,
        born: float,
        states: Sequence[Checkpoint] = (),
    ) -> None:
        network = cluster.network
        super().__init__(network, name)
        self._loaded = states
        self._born = born
        self.spec, self.consumer, self.client = spec, consumer, name
        self._epochs = spec.epochs
        self._stall = cluster.members.stall(spec, name) if not consumer else -1
        self.done = self.outlived = False
        self.failure: msg.Failure | None = None
        self.stops = stops
        self._cluster = cluster
        everybody = cluster.invariants
        shared = everybody.windows if spec.sharing == "window" else everybody.members
        shared = everybody.round_windows if spec.sharing == "window" and spec.coordinated else shared
        self._invariants = shared if spec.sharing else everybody
        self._slow = network.rng.choice((0.0, 0.01, 0.1, 0.4))
        self._buffer = network.rng.choice((1, 4, 16, 100))
        self.core = self._new_core()
        self.session: Connection | None = None
        self._joining: Connection | None = None
        self._awaiting: Connection | None = None
        self._pauses = delays_of(network)
        self._own = OwnEpoch() if spec.sharing and spec.visitation == "zero_once_or_more" else None
        self._owned = 0  # epochs of its own that it has read
        self._begun = -1  # the epoch that the user knows to have begun
        self._waiting = False  # for that, or for elements
        self._since = 0.0
        self._report_due = False
        self._readers: dict[str, Iterator[float]] = {}
        self._connections: dict[str, Connection] = {}
        self._attempt = 0
        self._kept_out = False  # its tenant had as many jobs as it may have
        self.after(0.0, self._join)

    def _new_core(self) -> ConsumerCore:
        who = msg.JoinJob(self.spec, self.client, self.consumer, states=[*self._loaded])
        return ConsumerCore(who, self._buffer, decode=list)

    def _handle(self, item: io.Input) -> io.Answer | None:
        """Feed the core, and do what it says; return what the user gets."""
        answer = None
        actions = self.core.handle(item, self.network.now)
        while actions:
            action = actions.popleft()
            match action:
                case io.Tell(message=message):
                    if self.session is not None:
                        self.session.send(self, message)
                case io.TellWorker(address=address, message=word):
                    if address in self._connections:
                        self._connections[address].send(self, word)
                case io.Connect(address=address, again=again):
                    self._connect_soon(address, again=again)
                case io.Disconnect(address=address):
                    if (connection := self._connections.get(address)) is not None:
                        connection.close(self)
                        self._lost_worker(connection)
                case io.ReportSoon():
                    self._report_soon()
                case io.Decode() | io.HandedOut() | io.Over() | io.Refuse():
                    answer = action
                case io.EpochLeft() | io.Warn():
                    pass
        return answer

    def _hears(self, item: io.Input) -> None:
        self._handle(item)
        if isinstance(item, WeightsSet) and item.number >= 0:
            self._cluster.mixtures.answered(self, item)
        if self._waiting:
            self._go_on()
        elif self._stall == 0 and self.core.failure is not None:
            self._fail(self.core.failure)  # who stands still looks up only then

    # -- the session ---------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        dispatcher = self._cluster.dispatcher
        if self.done:
            return
        if dispatcher is None or not self.network.reachable(self, dispatcher):
            self._again()
            return
        self._joining = Connection(self.network, self, dispatcher, "session")
        self._joining.send(self, self.core.join(self.network.now - self._born))
        self.after(JOIN_S if self.joined is None else self.core.heartbeat_s, self._too_long, self._joining)

    def _hurry(self, connection: Connection) -> None:
        if self._joining is connection:
            connection.close(self)
            self._joining = None
            self._again()

    def _too_long(self, connection: Connection) -> None:
        """End a session in which nobody has answered."""
        if self._awaiting is not connection:
            self._hurry(connection)

    def _again(self) -> None:
        """Join again in a while; a new process is started again by whoever runs the training."""
        if not self.done:
            self.after(next(self._pauses), self._join)

    def heard(self, connection: Connection, message: Any) -> None:
        """Take a message of the dispatcher or a worker."""
        if connection is self._joining:
            self._answered(connection, message)
        elif connection is self.session:
            self._pauses = delays_of(self.network)
            self._hears(message)
        elif isinstance(message, tuple):
            self._arrived(connection, *message)
        elif isinstance(message, data_messages.Short):
            self._hears(io.TooSmall(connection.label, message))
        elif isinstance(message, data_messages.Skipped):
            self._cluster.invariants.windows.skipped(self, message)
            self._hears(io.OutputsMissed(connection.label, message))

    def broken(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        if connection is self._joining:
            self._joining = None
            self._again()
        elif connection is self.session:
            self.session = None
            self._handle(io.SessionLost())
            self._again()
        else:
            self._lost_worker(connection)

    def _answered(self, connection: Connection, message: Any) -> None:
        if isinstance(message, msg.Notice):
            self._awaiting = connection  # the dispatcher has answered: others are to come first
        elif isinstance(message, msg.JobJoined):
            self._joining, self.session = None, connection
            first = self.joined is None
            self._cluster.older_journal.let_in(self)
            self._handle(message)
            if first:
                if self._kept_out:
                    self._cluster.let_in_late()
                self.after(message.heartbeat_s, self._beat)
                self._begin(message.epoch + 1)
        elif isinstance(message, msg.JobFailed) and (self.joined is not None or message.failure.kind in OF_THE_DATA):
            self._hurry(connection)
            self._waiting = self._waiting or self.joined is None
            self._hears(io.Broke(error_of(message.failure)))
        elif isinstance(message, msg.JobFailed) and "is too late" in message.failure.message:
            self._invariants.too_late(self)
            self.failure = message.failure
            self.leave()
        elif isinstance(message, (msg.JobFailed, msg.Failure)):
            # The place is taken, its tenant has as many jobs as it may have, or the disk is full: another process tries
            # again. Ranks of one job come all again.
            if "--quota-jobs" in str(message):
                self._cluster.fired["job beyond a quota"] += 1
                self._kept_out = True
            if "start all of them again" in str(message):
                self._cluster.run_again(self.spec.name)
            self._attempt += 1
            self.client = f"{self.name}.{self._attempt}"
            self.core = self._new_core()
            self._hurry(connection)

    @property
    def joined(self) -> msg.JobJoined | None:
        """Answer of the dispatcher as it was let in first."""
        return self.core.joined

    @property
    def inbox(self) -> EpochBuffer | None:
        """Outputs that it holds of an epoch."""
        return self.core.inbox

    @property
    def states(self) -> Sequence[Checkpoint]:
        """States that whoever takes its place loads, as long as it has not joined."""
        return self._loaded if self.joined is None else ()

    @property
    def reading(self) -> int:
        """The epoch that it reads; -1 between two."""
        inbox = self.inbox
        return self._begun if inbox is not None and inbox.number == self._begun == self.core.wanted else -1

    def state(self) -> Checkpoint:
        """Return the state that its user would save now."""
        assert self.core.reading is not None
        return self.core.reading.state(self.core.spec, self.consumer, graph_digest(unpack(self.spec.structure)))

    def _beat(self) -> None:
        if not self.done:
            self._handle(io.Beat())
            self.after(self.core.heartbeat_s, self._beat)

    def _report_soon(self) -> None:
        if not self._report_due:
            self._report_due = True
            self.after(SOON_S, self._reported)

    def _reported(self) -> None:
        self._report_due = False
        if not self.done:
            self._handle(io.Beat())

    # -- the user ------------------------------------------------------------------------------------------------------

    def _begin(self, epoch: int) -> None:
        assert self.joined is not None
        first = self.joined.epoch + 1 if self.spec.sharing else 0
        if self.done or (self._own is None and epoch >= first + (self._epochs or 1)):
            self.leave()
            return
        known = self._loaded and not self.spec.coordinated  # else the dispatcher says where to begin
        self._handle(io.EpochWanted(epoch, EpochProgress(epoch, said(self._loaded, epoch)) if known else None))
        self._waiting = True
        self._go_on()

    def _go_on(self) -> None:
        """Have the user who waits look again, as something has happened."""
        core = self.core
        if self.done:
            return
        if core.begun is None or core.begun.epoch != core.wanted:
            if core.failure is not None:
                self._fail(core.failure)
        elif self._begun != core.wanted:
            self._begun = core.wanted
            self._invariants.began(self, self._begun, core.begun.reused)
            if self._own is not None:
                self._own.begin(0)
            self._wait()
        else:
            self._take()

    def _wait(self) -> None:
        self._waiting, self._since = True, self.network.now
        self._take()

    def _take(self) -> None:
        core = self.core
        if self._own is not None and core.reading is not None:
            core.reading.most = self._own.most
        ask = io.MoreWanted(self._begun, self._since, core.ready)
        answer = self._handle(ask)
        if isinstance(answer, io.Decode):
            answer = self._handle(io.Decoded(ask, answer.arrival, answer.arrival.decoded()))
        match answer:
            case io.HandedOut(first=first):
                self._waiting = False
                self._use(first=first)
            case io.Over(unread=unread):
                assert core.reading is not None
                self._waiting = False
                self._invariants.told(self, self._begun, unread)
                self._invariants.ended(self, self._begun, core.reading.used)
                if self._own is not None and self.inbox is not None:
                    self._own.group_ended(self.inbox.outputs)
                    self._count()
                self._end()
            case io.Refuse(error=error):
                self._fail(error)

    def _use(self, *, first: bool) -> None:
        reading = self.core.reading
        assert reading is not None
        if first:
            self._handle(io.Used())
        outputs: list[Output] = list(reading.current)
        self._invariants.yielded(self, reading.number, reading.task, outputs)
        self._count()
        if self.done:
            return
        weights = self._cluster.mixtures.next(self)
        if weights is not None:
            self._handle(io.WeightsWanted(reading.number, weights))
        self._stall -= 1
        if self._stall == 0:
            self._cluster.stands_still(STALL_S)
            self.after(STALL_S, self._stalled)
            return
        self.after(self._slow * self.network.rng.uniform(0.5, 1.5) * len(outputs), self._next)

    def _count(self) -> None:
        """Count outputs where epochs are its own: one has as many as the data, and the next goes on behind it."""
        reading = self.core.reading
        if self._own is None or reading is None:
            return
        self._own.count(reading.used)
        if self._own.over:
            self._cluster.invariants.windows.ended_own(self, self._own, self._begun)
            self._end_own(reading.used)

    def _end_own(self, there: int) -> None:
        self._owned, self._own = self._owned + 1, OwnEpoch()
        self._own.begin(there)
        if self._owned == (self._epochs or 1):
            self.leave()

    def _stalled(self) -> None:
        """Go on after having stood still, which the others were not to wait for."""
        self._stall = -1
        self._cluster.invariants.members.stood_still(
            self, [each for each in self._cluster.consumers if each.waits_since]
        )
        self._next()

    @property
    def stands_still(self) -> bool:
        """Whether it has stopped for a long time."""
        return self._stall == 0 and self.alive and not self.done

    @property
    def waits_since(self) -> float:
        """Second in which it came for elements that it has not got; 0: it does not wait."""
        return self._since if self._waiting and self.alive and not self.done else 0.0

    def _next(self) -> None:
        reading = self.core.reading
        assert reading is not None
        if self.inbox is not None and not self.done and reading.used >= self.stops.get(reading.number, 1 << 60):
            self._invariants.abandoned(self, reading.number)
            goes_on = self._own is not None and self.stops[reading.number] % 2 == 1  # else as who loads a state
            if self._own is not None:
                self._cluster.invariants.windows.left_own(self, reading.number + (not goes_on))
                if goes_on:
                    reading.hand_on()  # the next epoch of its own begins where this one was left
                    self.stops = {epoch: stop for epoch, stop in self.stops.items() if epoch != reading.number}
                self._end_own(reading.used)
            if not (goes_on or self.done):
                self._end()
            if not goes_on:
                return
        if not self.done:
            self._wait()

    def _end(self) -> None:
        self._handle(io.End(self._begun))
        self._begin(self._begun + 1)

    def _fail(self, error: MillraceError) -> None:
        if not self.done:
            self.failure = failure_of(error)
            self._invariants.failed(self, self.failure)
            self.leave()

    def leave(self) -> None:
        """Close the session and leave the job."""
        if self.done:
            return
        self.done = True
        if self.failure is not None:
            self._invariants.abandoned(self, max(self.core.wanted, 0))
        self._handle(io.Leave())
        for connection in (self.session, self._joining):
            if connection is not None:
                connection.close(self)
        self._cluster.consumer_over(self)

    def die(self, *, silently: bool = False) -> None:
        """End the process, with what it had not yielded."""
        if not self.done:
            self._invariants.abandoned(self, max(self.core.wanted, 0))
        super().die(silently=silently)

    # -- workers -------------------------------------------------------------------------------------------------------

    def _connect_soon(self, address: str, *, again: bool) -> None:
        if not again and address in self._readers:
            return  # it tries already
        pauses = self._readers.setdefault(address, delays_of(self.network))
        self.after(next(pauses) if again else self.network.delay(), self._connect, address)

    def _connect(self, address: str) -> None:
        worker = self._cluster.workers.get(address)
        if worker is not None and self.network.reachable(self, worker) and not self.done:
            connection = self._connections[address] = Connection(self.network, self, worker, address)
            connection.send(self, self.core.opening()[0])
            self._handle(io.Connected(address))
        else:
            self._unreachable(address)

    def _unreachable(self, address: str) -> None:
        self._handle(io.Disconnected(address))
        if not self.core.wants(address):
            self._readers.pop(address, None)

    def _lost_worker(self, connection: Connection) -> None:
        address = connection.label
        if self._connections.get(address) is connection:
            del self._connections[address]
            self._unreachable(address)
            if self._waiting:
                self._go_on()  # who waited for that one may let another one send

    def _arrived(self, connection: Connection, header: data_messages.Delivery, outputs: list[Output]) -> None:
        inbox = self.inbox
        held = inbox.holds(header.task)[0] if inbox is not None else 0
        before = self.core.arrived[0]
        try:
            self._handle(io.Delivered(connection.label, header, outputs, len(outputs)))
        except ProtocolError as error:
            raise Violation(f"{self.name}: {error}") from error
        if self.core.arrived[0] > before:
            self._invariants.received(self, header.epoch, outputs[max(held - header.index, 0) :])
        if self.core.differed and not self._cluster.older_journal.refused:
            raise Violation(f"task {header.task} of {self.spec.name} gave something else when run again")
        if self._waiting:
            self._go_on()
