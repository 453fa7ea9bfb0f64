"""A worker under virtual time: the real core, and a shell without threads, sockets and user code."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.planning.server_zones import servers_asked
from millrace.planning.split_table import summaries
from millrace.policies.caching.io_cost import TransferCost
from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import BlocksKnown, MeasureStore, StoreCost, StoreMeasured
from millrace.protocol.cache_server_messages import CacheServersKnown
from millrace.protocol.reports import NodeMeasure
from millrace.simulation.drawn_rounds import LEAST_BUFFER
from millrace.simulation.item_reads import ItemReads, ItemsRead
from millrace.simulation.pipelines import SimulatedPipeline
from millrace.simulation.simulated_cache import KnownBlocks, SimulatedCacheUse
from millrace.simulation.simulated_run import Fetch, SimulatedRun, Steps
from millrace.simulation.virtual_network import Connection, Process, Violation, VirtualNetwork
from millrace.wire.backoff import delays
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.worker_core import WorkerCore

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster

READS = TransferCost((1 << 20,), (0.01,))
WRITES = TransferCost((1 << 20,), (0.02,))
ANSWER_S = 10.0
"""For another worker to say what it keeps."""


class SimulatedWorker(Process):
    """One life of a worker process.

    Args:
        name: its id.
        host: where it runs.
        cluster: finds the dispatcher, other workers and pipelines.
        only: the job that it is local to.
    """

    def __init__(self, name: str, host: str, cluster: SimulatedCluster, only: str = "") -> None:
        network = cluster.network
        super().__init__(network, name)
        self.host = host
        self.address = f"{name}:1"
        self.only = only
        self.cluster, self.invariants = cluster, cluster.invariants
        self.speed = network.rng.uniform(0.5, 2.0)
        self.buffer = max(network.rng.choice((2, 4, 8, 64)), LEAST_BUFFER if cluster.rounds.any else 0)
        self.core = WorkerCore(self.buffer, network.now)
        self.session: Connection | None = None
        self.known_blocks = KnownBlocks(cluster.store)
        self.item_reads = ItemReads(self)
        self.zone = cluster.sources.zone_of(name)
        self._measures: dict[str, tuple[int, int, float]] = {}
        self._heartbeat_s = 5.0
        self._pauses = delays_of(network)
        self._inputs: deque[inp.Input] = deque()
        self._handling = False
        self._runs: dict[int, tuple[SimulatedRun, Steps[inp.RunEnded]]] = {}
        self._asking: set[int] = set()
        self._closing: list[act.ClosePipeline] = []
        self._codes: dict[Hashable, Callable[[], None]] = {}
        self._peers: dict[Connection, str] = {}
        self._let: dict[Connection, int] = {}
        self._fetches: dict[Connection, Fetch] = {}
        self._does: dict[type[act.Action], Callable[[Any], None]] = {
            act.TellDispatcher: self._tell,
            act.HurryReport: lambda _: self._report(),
            act.StartRun: self._start_run,
            act.Resume: self._resume,
            act.EndLane: self._end_lane,
            act.CodeGranted: lambda action: self._codes.pop(action.who)(),
            act.Send: self._send,
            act.SendLeftovers: self._send_leftovers,
            act.HangUp: self._hang_up,
            act.PrepareJob: self._prepare,
            act.ClosePipeline: self._close_pipeline,
            act.EndProcess: lambda _: self.end(),
        }
        self.after(network.delay(), self._connect)
        self.after(self._heartbeat_s, self._beat)

    # -- the core ------------------------------------------------------------------------------------------------------

    def feed(self, item: inp.Input) -> None:
        """Has the core take one input in, and does what it says."""
        self._inputs.append(item)
        if self._handling:
            return
        self._handling = True
        while self._inputs and self.alive:
            actions = self.core.handle(self._inputs.popleft(), self.network.now)
            self.core.validate()
            for action in actions:
                does = self._does.get(type(action))
                if does is not None:  # there is no memory to give back
                    does(action)
        self._handling = False

    def _tell(self, action: act.TellDispatcher) -> None:
        if self.session is None:
            raise Violation(f"{self.name} talks to a dispatcher that is not there: {action.message}")
        self.session.send(self, action.message)

    def _start_run(self, action: act.StartRun) -> None:
        lane = action.lane
        if lane in self._runs:
            raise Violation(f"lane {lane} of {self.name} is to run two leases at a time")
        run = SimulatedRun(self, lane, action.lease)
        self._runs[lane] = run, run.steps()
        self.after(0.0, self._advance, lane, None)

    def _resume(self, action: act.Resume) -> None:
        if action.lane not in self._asking:
            raise Violation(f"the run of lane {action.lane} of {self.name} goes on, and has not asked")
        self._asking.remove(action.lane)
        self.after(0.0, self._advance, action.lane, action.verdict)

    def _end_lane(self, action: act.EndLane) -> None:
        if action.lane in self._runs:
            raise Violation(f"lane {action.lane} of {self.name} ends while something runs there")

    def _hang_up(self, action: act.HangUp) -> None:
        assert isinstance(action.peer, Connection)
        action.peer.close(self)
        self._lost(action.peer)

    def _send_leftovers(self, action: act.SendLeftovers) -> None:
        assert isinstance(action.peer, Connection)
        action.peer.send(self, (data_messages.Leftovers(action.ref, action.kept is not None), action.kept))

    def _prepare(self, action: act.PrepareJob) -> None:
        match action.message:
            case msg.ListSources(job=job):
                self._beside(job, self.network.rng.uniform(0.05, 1.0), partial(self._listed, job))
            case msg.ChooseSharding() as message:
                self._beside(message.job, self.network.rng.uniform(0.05, 0.5), partial(self._chosen, message))

    def _advance(self, lane: int, verdict: act.Verdict | None) -> None:
        _, steps = self._runs[lane]
        try:
            waits = steps.send(verdict)
        except StopIteration as end:
            del self._runs[lane]
            self._close_pipelines()
            self.feed(end.value)
            return
        if isinstance(waits, float):
            self.after(waits, self._advance, lane, None)
        elif not isinstance(waits, Fetch | ItemsRead):  # else it goes on once that is answered
            self._asking.add(lane)
            self.feed(inp.RunAsks(lane, waits))

    def _close_pipeline(self, action: act.ClosePipeline) -> None:
        self._closing.append(action)
        self._close_pipelines()

    def _close_pipelines(self) -> None:
        """Close pipelines of jobs that are over, as far as their runs have stopped."""
        self._closing, closing = [], self._closing
        for action in closing:
            if any(lane in self._runs for lane in action.lanes):
                self._closing.append(action)
            elif action.job not in self.core.jobs:  # else it is another one of that name
                self.item_reads.close_job(action.job)

    def go_on(self, lane: int) -> None:
        """Go on with a run that has what it waited for."""
        self._advance(lane, None)

    def usings(self) -> list[SimulatedCacheUse]:
        """Return what runs use of caches."""
        return [run.using for run, _ in self._runs.values() if run.using is not None]

    # -- the session ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        dispatcher = self.cluster.dispatcher
        if dispatcher is None or not self.network.reachable(self, dispatcher):
            self.after(next(self._pauses), self._connect)
            return
        self.session = Connection(self.network, self, dispatcher, "session")
        who = self.name, self.address, self.host, 1, 1
        hello = msg.WorkerHello(*who, only=self.only, buffer_bytes=self.buffer, asks_caches=True, zone=self.zone)
        self.feed(inp.SessionOpened(hello))

    def heard(self, connection: Connection, message: Any) -> None:
        """Take a message of the dispatcher, a consumer, or another worker."""
        if connection is self.session:
            self._told(message)
        elif connection in self._fetches:
            self._answered(connection, *message)
        elif isinstance(message, tuple) and self.item_reads.heard(connection, *message):
            pass
        else:
            if connection not in self._peers:
                self._peers[connection] = getattr(message, "job", "")
            if isinstance(message, data_messages.Credit):
                self._let[connection] = self._let.get(connection, 0) + message.bytes
            self.feed(inp.PeerSaid(connection, message))

    def broken(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        if connection is self.session:
            self.session = None
            self.after(next(self._pauses), self._connect)
            self.feed(inp.SessionClosed())
        elif connection in self._fetches:
            self._give_up(self._fetches.pop(connection))
        elif not self.item_reads.broken(connection):
            self._lost(connection)

    def _lost(self, peer: Connection) -> None:
        self._let.pop(peer, None)
        if self._peers.pop(peer, None) is not None:
            self.feed(inp.PeerLeft(peer))

    def _told(self, message: Any) -> None:
        match message:
            case BlocksKnown():
                self.known_blocks.known(message)
            case CacheServersKnown(addresses=addresses, past=past, zones=zones):
                self.item_reads.use(servers_asked(addresses, zones, self.zone), past)
            case MeasureStore(path=path):
                measured = StoreMeasured(path, StoreCost(READS, READS, WRITES, 1e-10, 2))
                self.after(self.network.rng.uniform(0.1, 2.0), self.feed, inp.Say(measured))
            case msg.StopWorker():
                self.stop()
            case _:
                if isinstance(message, msg.WorkerWelcome):
                    self._pauses = delays_of(self.network)
                    self._heartbeat_s = message.heartbeat_s
                self.feed(inp.Heard(message))

    def _beat(self) -> None:
        self._report()
        self.after(self._heartbeat_s, self._beat)

    def _report(self) -> None:
        job = self.core.current
        self.feed(inp.HeartbeatDue(msg.WorkerReport(job=job, nodes=self._nodes(job) if job else [])))

    # -- what runs beside the lanes ------------------------------------------------------------------------------------

    def pipeline(self, job: str) -> SimulatedPipeline:
        """Return the pipeline of a job."""
        return self.cluster.pipelines[self.core.jobs[job].spec.structure]

    def _beside(self, job: str, seconds: float, then: Callable[[], None]) -> None:
        """Run code of a job for so many seconds, once no other job's runs."""
        who = object()
        self._codes[who] = partial(self.after, seconds, self._ran, who, then)
        self.feed(inp.CodeWanted(who, job))

    def _ran(self, who: Hashable, then: Callable[[], None]) -> None:
        self.feed(inp.CodeDone(who))
        then()

    def _listed(self, name: str) -> None:
        job, dispatcher = self.core.jobs.get(name), self.cluster.dispatcher
        if job is None:
            return
        pipeline = self.pipeline(name)
        digest, data = pipeline.packed_tables
        if dispatcher is None or not self.network.reachable(self, dispatcher):
            self.after(self.network.rng.uniform(0.5, 2.0), self._listed, name)
            return
        dispatcher.disk.blobs[digest] = data  # by a call of its own, before it is said
        points, generation = pipeline.points(job.seed), job.generation
        listed = msg.SourcesListed(
            name, summaries(pipeline.tables), pipeline.prints, points, digest=digest, generation=generation
        )
        self.after(self.network.delay(), self.feed, inp.Say(listed))

    def _chosen(self, message: msg.ChooseSharding) -> None:
        if message.job in self.core.jobs:
            owners = [(task * 7 + message.epoch) % len(message.workers) for task in range(message.tasks)]
            self.feed(inp.Say(msg.ShardingChosen(message.job, message.epoch, owners)))

    def measured(self, job: str, units: int, outputs: int, seconds: float) -> None:
        """Add up what a run of a job did."""
        before = self._measures.get(job, (0, 0, 0.0))
        self._measures[job] = before[0] + units, before[1] + outputs, before[2] + seconds

    def _nodes(self, job: str) -> list[NodeMeasure]:
        """Measure the job as if all that takes time were above its source."""
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
                stored_bytes=0 if node.inputs else self.item_reads.stored[job],
                cached_bytes=0 if node.inputs else self.item_reads.cached[job],
            )
            for number, node in enumerate(nodes)
        ]

    # -- peers ---------------------------------------------------------------------------------------------------------

    def _send(self, action: act.Send) -> None:
        peer, header, buffers = action.peer, action.header, list(action.buffers)
        assert isinstance(peer, Connection)
        spent = header.returned if isinstance(header, data_messages.Short) else len(buffers)
        self._let[peer] = self._let.get(peer, 0) - spent
        if self._let[peer] < 0:
            raise Violation(f"{self.name} sends more than {peer.ends[0].name} lets it: {header}")
        if isinstance(header, data_messages.Short | data_messages.Skipped):
            peer.send(self, header)
            return
        ref = msg.TaskRef(self._peers[peer], header.epoch, header.task)
        self.invariants.served(self, ref, header.lease)
        peer.send(self, (header, buffers))

    def fetch(self, address: str, refs: list[msg.TaskRef], lane: int) -> Fetch:
        """Asks another worker, or this one, for leftovers."""
        if address == self.address:
            return Fetch(lane, refs, {ref: self.core.leftovers.get(ref) for ref in refs}, over=True)
        fetch = Fetch(lane, refs)
        holder = self.cluster.workers.get(address)
        if holder is None or not holder.alive:
            self.after(self.network.delay(), self._give_up, fetch)
        elif not self.network.reachable(self, holder):
            self.after(ANSWER_S, self._give_up, fetch)
        else:
            connection = Connection(self.network, self, holder, "leftovers")
            self._fetches[connection] = fetch
            for ref in refs:
                connection.send(self, data_messages.FetchLeftovers(ref))
        return fetch

    def _answered(self, connection: Connection, header: data_messages.Leftovers, elements: list[int] | None) -> None:
        fetch = self._fetches[connection]
        fetch.found[header.ref] = elements
        if len(fetch.found) == len(fetch.refs):
            del self._fetches[connection]
            connection.close(self)
            fetch.over = True
            self._advance(fetch.lane, None)

    def _give_up(self, fetch: Fetch) -> None:
        fetch.found, fetch.over = {}, True
        self._advance(fetch.lane, None)

    # -- the end -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Leaves in good order; the second time at once."""
        within = self.network.rng.choice((3.0, 30.0))
        self.after(within, self.feed, inp.TimeUp())
        self.feed(inp.Drain(within))

    def end_badly(self) -> None:
        """End the process, as an element does."""
        self.cluster.fired["worker ended by an element"] += 1
        self.die()
        self.cluster.worker_over(self)

    def die(self, *, silently: bool = False) -> None:
        """End the process at once, with what it was fetching."""
        self.cluster.sources.disturbed()
        super().die(silently=silently)

    def end(self) -> None:
        """End the process."""
        if self.alive:
            self.die()
            self.cluster.worker_over(self)


def delays_of(network: VirtualNetwork) -> Iterator[float]:
    """Yield pauses as :func:`millrace.wire.backoff.delays`, drawn from the network's generator."""
    return delays(draw=network.rng.random)
