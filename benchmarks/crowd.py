"""Workers and consumers that only talk: everything that the dispatcher hears of real ones, and no data.

Each has a connection and a session of its own, as real ones have. They follow a schedule, not the dispatcher's answers:
if it is late, what they have to say does not wait for it, and how late an answer came is counted from the moment at
which the question was due, so that a dispatcher that stalls is charged for all that it kept waiting.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import msgspec

from millrace.dataset import Dataset
from millrace.functions.bundles import pack as pack_functions
from millrace.graph import serialize
from millrace.planning.split_table import pack_tables, positions_table, summaries
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.reports import LaneReport, NodeMeasure
from millrace.version import __version__
from millrace.wire.auth import OWN
from millrace.wire.control import blob_transfer, rpc
from millrace.wire.control.challenges import CHALLENGE, Challenged, Headers, Prover
from millrace.wire.own_token import resolve

ELEMENTS = 1_000_000
TASKS = 1_000
"""Of an epoch of each job."""

_SOON_S = 0.02  # a real consumer's least time between two reports
_BATCHES = 16  # of a task
_LANE_BYTES = 64 << 20
_NODES = ("Range", "map(decode)", "map(augment)", "batch(64)")


def _same(element: int) -> int:
    return element


class Tally:
    """What is counted.

    Attributes:
        sent: messages to the dispatcher.
        received: messages from it.
        finished: tasks.
        probes: seconds from when a heartbeat was due to the answer of a question asked right behind it.
        leases: seconds from when a task's end was due to be reported to the next lease for the same worker.
        lag: seconds by which heartbeats were sent too late; the crowd's own fault, and part of ``probes``.
        errors: sessions that broke, as text.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.reset()

    def reset(self) -> None:
        """Count anew."""
        self.sent = self.received = self.finished = 0
        self.probes: list[float] = []
        self.leases: list[float] = []
        self.lag: list[float] = []


class Peer:
    """One session: its connection, what waits to be sent, and what is done about what comes."""

    def __init__(self, crowd: Crowd, address: str, told: Callable[[Any], None], decoder: Any) -> None:
        self._crowd = crowd
        self._told = told
        self._decoder = decoder
        self._outbox: asyncio.Queue[Any] = asyncio.Queue()
        options = (*rpc.OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self._prover = Prover(resolve(address, None)[0])

    def send(self, message: Any) -> None:
        """Queue it."""
        self._outbox.put_nowait(message)

    async def converse(self) -> None:
        """Opens the session, and carries what is said until it breaks."""
        await self._prove()
        call = self.channel.stream_stream(rpc.SESSION_METHOD)(metadata=self._headers(rpc.SESSION_METHOD))
        writer = asyncio.create_task(self._write(call))
        try:
            while (encoded := await call.read()) is not grpc.aio.EOF:
                self._crowd.tally.received += 1
                self._told(self._decoder.decode(encoded))
        finally:
            writer.cancel()
            call.cancel()

    async def _write(self, call: Any) -> None:
        while True:
            message = await self._outbox.get()
            await call.write(rpc.encode_message(message))
            self._crowd.tally.sent += 1

    async def ask(self, name: str, request: Any) -> Any:
        """Answer of a call."""
        await self._prove()
        return msgspec.msgpack.decode(await self._ask(name, request))

    def _headers(self, method: str) -> Headers:
        return (*rpc.IDENTITY, *self._prover.headers(method))

    async def _prove(self) -> None:
        if not self._prover.challenged:
            asked = self._prover.ask()
            answer = await self._ask(CHALLENGE, asked)
            self._prover.accept(asked, msgspec.msgpack.decode(answer, type=Challenged))

    async def _ask(self, name: str, request: Any) -> bytes:
        method = rpc.CALL_PREFIX + name
        call = self.channel.stream_stream(method)(metadata=self._headers(method))
        await call.write(rpc.encode(request))
        await call.done_writing()
        reply = await call.read()
        await call.read()
        return bytes(reply)

    async def put(self, data: bytes) -> str:
        """Gives the dispatcher a blob, unless it has it; returns its digest."""
        digest = blob_transfer.digest_of(data)
        if not await self.ask(blob_transfer.HAS, digest):
            await self.ask(blob_transfer.PUT, blob_transfer.Blob(digest, data))
        return digest


class Crowd:
    """All of them, in one event loop.

    Args:
        address: of the dispatcher, ``host:port``.
        workers: how many.
        jobs: how many, each with one consumer.
        heartbeat_s: seconds between two reports of each worker and each consumer.
        probed: share of the heartbeats that are followed by a question.
        seed: of the schedule.
    """

    def __init__(
        self,
        address: str,
        workers: int,
        jobs: int,
        *,
        heartbeat_s: float = 5.0,
        probed: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.tally = Tally()
        self.heartbeat_s = heartbeat_s
        self.task_s = 0.0
        self.working = asyncio.Event()
        self.probed = probed
        self.rng = random.Random(seed)
        self._tasks: set[asyncio.Task[None]] = set()
        self.consumers = {f"job{number}": Consumer(self, address, f"job{number}") for number in range(jobs)}
        self.workers = [Worker(self, address, f"worker{number}") for number in range(workers)]

    async def gather(self, at_once: int = 50) -> None:
        """Everybody connects, ``at_once`` at a time, and all jobs are served. Heartbeats begin."""
        dataset = Dataset.range(ELEMENTS).map(_same).map(_same).batch(64)
        structure, slots = serialize.pack(dataset.__pipeline__().graph)
        bundle = pack_functions([slot.value for slot in slots], [slot.name for slot in slots])
        spec = JobSpec("", structure, "", tasks=TASKS, seed=1, python=OWN.python)
        gate = asyncio.Semaphore(at_once)

        async def enter(peer: Worker | Consumer, coming: Coroutine[Any, Any, None]) -> None:
            async with gate:
                await coming
            self.spawn(self._beat(peer))

        await asyncio.gather(*(enter(each, each.enter(spec, bundle)) for each in self.consumers.values()))
        await asyncio.gather(*(enter(each, each.enter()) for each in self.workers))
        await asyncio.gather(*(each.begun.wait() for each in self.consumers.values()))

    def work(self, task_s: float) -> None:
        """From now on tasks end: each after ``task_s`` seconds at a worker, give or take a half of it."""
        self.task_s = task_s
        self.working.set()

    async def _beat(self, peer: Worker | Consumer) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self.rng.random() * self.heartbeat_s
        while True:
            await asyncio.sleep(due - loop.time())
            self.tally.lag.append(loop.time() - due)
            peer.beat()
            if self.rng.random() < self.probed:
                self.spawn(self._probe(peer.peer, due))
            due += self.heartbeat_s

    async def _probe(self, peer: Peer, due: float) -> None:
        await peer.ask(rpc.HELLO, None)
        self.tally.probes.append(asyncio.get_running_loop().time() - due)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside; if it fails, that is counted."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.tally.errors.append(repr(task.exception()))

    async def leave(self) -> None:
        """Everything ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        peers = [each.peer for each in self.workers] + [each.peer for each in self.consumers.values()]
        for peer in peers:
            await peer.channel.close()


class Worker:
    """Runs leases one after the other, in no time or in the time that a task takes."""

    _decoder = msgspec.msgpack.Decoder(msg.ToWorker)

    def __init__(self, crowd: Crowd, address: str, name: str) -> None:
        self._crowd = crowd
        self._name = name
        self.peer = Peer(crowd, address, self._told, self._decoder)
        self._welcome = asyncio.Event()
        self._leases: asyncio.Queue[msg.LeaseTask] = asyncio.Queue()
        self._due: list[float] = []
        self._job = ""
        self._busy_s = 0.0
        self._void: set[int] = set()

    async def enter(self) -> None:
        """Registers."""
        self._crowd.spawn(self.peer.converse())
        self._crowd.spawn(self._run())
        hello = msg.WorkerHello(self._name, "127.0.0.1:1", "here", 1, 1, __version__, OWN.python)
        self.peer.send(hello)
        await self._welcome.wait()

    def beat(self) -> None:
        """The report of a worker that is busy with one lane and four operators."""
        self._busy_s += self._crowd.heartbeat_s
        lanes = [LaneReport(0, True, 0.0, _LANE_BYTES)]
        nodes = [NodeMeasure(i, name, 100_000, 10**9, self._busy_s) for i, name in enumerate(_NODES)]
        self.peer.send(msg.WorkerReport(2, self._job, lanes, nodes, self._busy_s))

    def _told(self, message: Any) -> None:
        match message:
            case msg.WorkerWelcome():
                self._welcome.set()
            case msg.OpenJob(job=job):
                self._job = job
            case msg.ListSources(job=job):
                self._crowd.spawn(self._list(job))
            case msg.LeaseTask():
                if self._due:
                    self._crowd.tally.leases.append(asyncio.get_running_loop().time() - self._due.pop(0))
                self._leases.put_nowait(message)
            case msg.RevokeTask(ref=ref, lease=lease):
                self._void.add(lease)
                self.peer.send(msg.TaskReturned(ref, lease))

    async def _list(self, job: str) -> None:
        tables = {0: positions_table(ELEMENTS)}
        data = pack_tables(tables)
        digest = await self.peer.put(data)
        self.peer.send(msg.SourcesListed(job, summaries(tables), digest=digest))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        free = loop.time()
        while True:
            task = await self._leases.get()
            await self._crowd.working.wait()
            # A lease that came late finds the worker idle; it is not made up for.
            free = max(free, loop.time()) + self._crowd.task_s * self._crowd.rng.uniform(0.5, 1.5)
            await asyncio.sleep(free - loop.time())
            if task.lease in self._void:
                continue
            self.peer.send(msg.TaskFinished(task.ref, task.lease, _BATCHES))
            self._due.append(free)
            self._crowd.tally.finished += 1
            self._crowd.consumers[task.ref.job].ready(task)


class Consumer:
    """Reads every task the moment it is finished, and begins the next epoch when one is read."""

    _decoder = msgspec.msgpack.Decoder(msg.ToConsumer)

    def __init__(self, crowd: Crowd, address: str, job: str) -> None:
        self._crowd = crowd
        self._job = job
        self.peer = Peer(crowd, address, self._told, self._decoder)
        self.begun = asyncio.Event()
        self._epoch = 0
        self._assigned: dict[int, int] = {}
        self._ready: set[tuple[int, int, int]] = set()
        self._news: list[msg.TaskProgress] = []
        self._read: set[int] = set()
        self._share: set[int] | None = None
        self._batches = 0

    async def enter(self, spec: JobSpec, bundle: bytes) -> None:
        """Joins, as a job of its own."""
        digest = await self.peer.put(bundle)
        self._crowd.spawn(self.peer.converse())
        spec = msgspec.structs.replace(spec, name=self._job, bundle=digest)
        self.peer.send(msg.JoinJob(spec, f"client of {self._job}", None, __version__, "here", 1))

    def beat(self) -> None:
        """The report of a consumer that reads; with its news, if there are."""
        news, self._news = self._news, []
        self.peer.send(msg.ConsumerReport(self._epoch, news, self._batches, 0.1, 0.001, 3.0))

    def ready(self, task: msg.LeaseTask) -> None:
        """A worker has it."""
        self._ready.add((task.ref.epoch, task.ref.task, task.lease))
        self._look(task.ref.task)

    def _look(self, task: int) -> None:
        """Read it if it is here and this consumer was told where."""
        key = (self._epoch, task, self._assigned.get(task, -1))
        if key in self._ready:
            self._ready.discard(key)
            self._read.add(task)
            self._batches += _BATCHES
            self._news.append(msg.TaskProgress(task, _BATCHES, complete=True))
            if len(self._news) == 1:
                asyncio.get_running_loop().call_later(_SOON_S, self._report)

    def _report(self) -> None:
        if self._news:
            self.beat()
        if self._share is not None and self._share <= self._read:
            self.peer.send(msg.BeginEpoch(self._epoch + 1))
            self._share = None

    def _told(self, message: Any) -> None:
        match message:
            case msg.JobJoined():
                self.peer.send(msg.BeginEpoch(0))
            case msg.EpochBegun(epoch=epoch):
                if epoch != self._epoch or not self.begun.is_set():
                    self._epoch = epoch
                    self._assigned, self._read, self._share = {}, set(), None
                    self._ready = {key for key in self._ready if key[0] >= epoch}
                self.begun.set()
            case msg.ReadTasks(epoch=epoch, reads=reads) if epoch == self._epoch:
                for read in reads:
                    self._assigned[read.task] = read.lease
                    self._look(read.task)
            case msg.EpochEnds(epoch=epoch, tasks=tasks) if epoch == self._epoch:
                self._share = set(tasks)
                self._report()
            case msg.JobFailed(failure=failure):
                self._crowd.tally.errors.append(failure.message)
