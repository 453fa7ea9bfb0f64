"""A service of real processes with proxies between them, and its consumers."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import ipaddress
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from chaos.child_processes import NotFiredError, ended
from chaos.pipeline import BUFFER_BYTES
from chaos.proxy import FaultQueue, Proxy
from chaos.reader import LENGTH, Finished, Options, Over, Read, Saved, Word
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn
from millrace.errors import MillraceError

HERE, THERE = "127.0.0.1", "127.0.0.2"
"""Workers listen at the first; the second is where processes are known to be, and a proxy listens."""
_OWN = str(ipaddress.ip_address("127.128.0.0") + os.getpid())
"""Address at which the dispatcher listens: nobody else takes its port while it is started again."""
HEARTBEAT_S = 1.0
GUARD_S = 90.0
"""Whatever is waited for takes seconds; what takes this long has failed."""
_ASK_S = 0.1
_SLOW_S = 1.0
"""For a batch. Not longer than that: some faults need something that flows."""
_PIPE_BYTES = 4096
"""What a consumer can say before anybody listens: a few batches."""
_LAST_CHARS = 4000
_PORTS = range(20_000, 30_000)
"""Ports of workers that are reached by proxies; below those that Linux gives to who asks for any."""
_LENDING = 4
"""One worker in so many lends memory to the consumers, and no proxy sees what it sends."""

_words = msgspec.msgpack.Decoder(Word)


@dataclasses.dataclass(eq=False)
class Worker:
    """A process, by name, and the proxy that its consumers reach it by, if there is one."""

    name: str
    process: subprocess.Popen[bytes]
    proxy: Proxy | None


class Reader:
    """A consumer: one rank of a training.

    Attributes:
        options: of its process.
        process: the one that lives, or was the last to.
        read: what counts if it goes on living.
        saved: so many of them count however it ends.
        over: it has come to the end of an epoch, and waits for the others.
        finished: it has read everything.
        heard: its process has said something.
        gone: nobody listens to its process any more, which has ended or was replaced.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.read: list[Read] = []
        self.saved = 0
        self.over = False
        self.finished = self.heard = False
        self.gone = asyncio.Event()

    @property
    def name(self) -> str:
        """For messages and logs."""
        return f"{self.options.job}-{self.options.index}"

    def save(self, saved: Saved) -> None:
        """What was read so far counts, and a successor goes on from here."""
        self.saved = len(self.read)
        self.options = msgspec.structs.replace(self.options, state=saved.state)

    def forget(self) -> int:
        """What was not saved was never read; returns how many elements that are."""
        self.over = self.finished = self.heard = False
        lost = sum(len(each.numbers) for each in self.read[self.saved :])
        del self.read[self.saved :]
        return lost

    def go_on(self) -> None:
        """Has it begin the next epoch."""
        self.over = False
        assert self.process is not None
        go_on(self.process)

    def end(self) -> None:
        """Has it leave."""
        assert self.process is not None
        hang_up(self.process)


Training = list[Reader]
"""The consumers of a job."""


T = TypeVar("T", Worker, Reader)


class Crew:
    """A dispatcher, workers, consumers, and the proxies between them. Belongs to a running event loop.

    Args:
        folder: for the logs of all processes.
        work_dir: of the dispatcher.
        cache_dir: of the service, made when it is first used.
        cache_bytes: that it may take.

    Attributes:
        control, bulk: harms that wait for connections to the dispatcher, and from consumers to workers.
        alone: held by who does something to the dispatcher.
        behind: consumers are to be slow, as faults are not done as fast as elements are read.
        read: elements that count as read now, over all consumers.
        heard: elements that consumers have said ever to have read.
    """

    def __init__(self, folder: str, work_dir: str, cache_dir: str, cache_bytes: int) -> None:
        self.control: FaultQueue = collections.deque()
        self.bulk: FaultQueue = collections.deque()
        self.alone = asyncio.Lock()
        self.behind = False
        self.workers: list[Worker] = []
        self.trainings: list[Training] = []
        self.read = self.heard = 0
        self._folder, self.work_dir = folder, work_dir
        self.cache_dir, self._cache_bytes = cache_dir, cache_bytes
        self._started = 0
        self._address = (_OWN, 0)
        self._dispatcher: subprocess.Popen[bytes] | None = None
        self._proxy: Proxy | None = None
        self._busy: set[Worker | Reader] = set()
        self._changed = asyncio.Condition()

    @property
    def address(self) -> str:
        """Of the dispatcher, as everybody else knows it."""
        assert self._proxy is not None
        return f"grpc://{THERE}:{self._proxy.port}"

    @property
    def dispatcher(self) -> subprocess.Popen[bytes]:
        """Its process."""
        assert self._dispatcher is not None
        return self._dispatcher

    # -- processes -----------------------------------------------------------------------------------------------------

    async def start(self, workers: int) -> None:
        """Starts dispatcher and workers, and returns when all have registered."""
        await self.start_dispatcher()
        self._proxy = await Proxy(self._address, self.control).open(THERE)
        for _ in range(workers):
            await self.add_worker()
        await self.until(lambda status: len(status["workers"]) == workers)

    async def start_dispatcher(self) -> None:
        """Starts it, where it was before, and returns when it listens.

        Raises:
            NotFiredError: it did not start.
        """
        host, port = self._address
        arguments = ["dispatcher", "--host", host, "--port", str(port), "--heartbeat", str(HEARTBEAT_S)]
        arguments += ["--cache-dir", self.cache_dir, "--cache-bytes", str(self._cache_bytes)]
        self._dispatcher = spawn(
            [*arguments, "--work-dir", self.work_dir, "--log-level", "info"],
            worker=False,
            stdout=subprocess.PIPE,
            stderr=self._log("dispatcher"),
        )
        line = await (await _reading(self._dispatcher)).readline()
        if not line:
            raise NotFiredError(f"the dispatcher did not start; see {self._folder}/dispatcher.log")
        self._address = (host, int(json.loads(line)["address"].rpartition(":")[2]))

    async def add_worker(self) -> Worker:
        """Starts a worker, which registers by itself."""
        name, lends = f"w{self._started}", self._started % _LENDING == _LENDING - 1
        self._started += 1
        proxy = None
        arguments = ["worker", "--dispatcher", self.address, "--name", name, "--threads", "1", "--log-level", "info"]
        arguments += ["--buffer-bytes", str(2 * BUFFER_BYTES)]
        if not lends:
            proxy = await self._proxy_of_worker()
            arguments += ["--port", str(proxy.port), "--advertise", THERE, "--no-shared-memory"]
        worker = Worker(name, spawn(arguments, worker=True, stderr=self._log(name)), proxy)
        self.workers.append(worker)
        await self._notify()
        return worker

    async def _proxy_of_worker(self) -> Proxy:
        """Opens one on a port that the worker will find free on its own address, where it listens a second later.

        So it is none of those that the system gives to whoever wants any.
        """
        ports = [*_PORTS]
        random.shuffle(ports)
        for port in ports:
            with contextlib.suppress(OSError):
                return await Proxy((HERE, 0), self.bulk).open(THERE, port)
        raise NotFiredError(f"no port from {_PORTS.start} to {_PORTS.stop} is free")

    async def remove(self, worker: Worker) -> None:
        """Forgets a worker whose process has ended."""
        self.workers.remove(worker)
        hang_up(worker.process)
        if worker.proxy is not None:
            await worker.proxy.close()

    def _log(self, name: str) -> Any:
        return open(os.path.join(self._folder, f"{name}.log"), "ab")  # the child's

    async def close(self) -> None:
        """Ends all processes and proxies."""
        readers = [each.process for training in self.trainings for each in training if each.process is not None]
        processes = [*readers, *(worker.process for worker in self.workers)]
        if self._dispatcher is not None:
            processes.append(self._dispatcher)
        for process in processes:
            hang_up(process)
        await asyncio.gather(*(asyncio.to_thread(reap, process) for process in processes))
        for proxy in [self._proxy, *(worker.proxy for worker in self.workers)]:
            if proxy is not None:
                await proxy.close()

    # -- who does something to whom ------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def a_worker(self, rng: random.Random) -> AsyncIterator[Worker]:
        """Any to which nobody else does something now; waits for one."""
        async with self._taken(lambda: [[worker] for worker in self.workers], rng) as [worker]:
            yield worker

    @contextlib.asynccontextmanager
    async def a_reader(self, rng: random.Random) -> AsyncIterator[Reader]:
        """Any that reads now, likewise."""
        async with self._taken(lambda: [[each] for job in self._reading() for each in job], rng) as [reader]:
            yield reader

    @contextlib.asynccontextmanager
    async def a_training(self, rng: random.Random) -> AsyncIterator[Training]:
        """All consumers of any job that is read now, likewise; each has saved something to go on from."""
        async with self._taken(
            lambda: [job for job in self._reading() if all(e.options.state for e in job)], rng
        ) as training:
            yield training

    def _reading(self) -> list[Training]:
        return [job for job in self.trainings if all(each.process is not None and not each.finished for each in job)]

    @contextlib.asynccontextmanager
    async def _taken(self, candidates: Callable[[], list[list[T]]], rng: random.Random) -> AsyncIterator[list[T]]:
        def free() -> list[list[T]]:
            return [some for some in candidates() if self._busy.isdisjoint(some)]

        async with self._changed:
            await self._changed.wait_for(free)
            some = rng.choice(free())
            self._busy.update(some)
        try:
            yield some
        finally:
            self._busy.difference_update(some)
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # -- what can be seen ----------------------------------------------------------------------------------------------

    async def status(self) -> dict[str, Any] | None:
        """What the dispatcher says, past the proxy; None if it says nothing."""
        try:
            return await asyncio.to_thread(fetch_status, "{}:{}".format(*self._address), None, 2.0)
        except MillraceError:
            return None

    async def until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Asks for the status until ``condition`` is true of it.

        Raises:
            NotFiredError: it took too long.
        """
        status = None
        try:
            async with asyncio.timeout(GUARD_S):
                # Nothing tells: who is asked may be another process each time.
                while (status := await self.status()) is None or not condition(status):  # noqa: ASYNC110
                    await asyncio.sleep(_ASK_S)
        except TimeoutError:
            raise NotFiredError(f"it did not come to that in {GUARD_S:.0f} s; status: {json.dumps(status)}") from None

    async def reaches(self, elements: float) -> None:
        """Waits until so many elements count as read."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.read >= elements)

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def consume(self, jobs: Sequence[Sequence[Options]]) -> list[Training]:
        """Has the consumers of each job read all their epochs, and returns them."""
        self.trainings = [[Reader(options) for options in job] for job in jobs]
        async with asyncio.TaskGroup() as group:
            for training in self.trainings:
                group.create_task(self._train(training, group))
        return self.trainings

    async def _train(self, training: Training, group: asyncio.TaskGroup) -> None:
        """The lives of a job's consumers, each of which goes on from what was saved in the one before."""
        while not all(reader.finished for reader in training):
            for reader in training:
                self.read -= reader.forget()
                reader.gone.clear()
                reader.process = process = self._start_reader(reader)
                group.create_task(self._follow(reader, process, training))
            await self._notify()
            await asyncio.gather(*(reader.gone.wait() for reader in training))

    async def _follow(self, reader: Reader, process: subprocess.Popen[bytes], training: Training) -> None:
        """One life of a consumer."""
        stream = await _reading(process)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
                word = _words.decode(await stream.readexactly(length))
                if reader.process is process and not reader.gone.is_set():
                    reader.heard = True
                    await self._heard(reader, word, training)
        status = await ended(process)
        hang_up(process)
        if reader.process is process and not reader.gone.is_set():
            if status != -signal.SIGKILL and not (status == 0 and reader.finished):
                raise RuntimeError(f"consumer {reader.name} ended with exit status {status}: see {self._folder}")
            reader.gone.set()

    async def succeeded(self, reader: Reader, process: subprocess.Popen[bytes] | None) -> None:
        """Waits until a consumer has another process than this, which has said something."""
        async with self._changed:
            await self._changed.wait_for(lambda: reader.process is not process and reader.heard)

    def said(self, reader: Reader) -> str:
        """The last that a consumer's processes have said in their log."""
        with open(os.path.join(self._folder, f"{reader.name}.log"), errors="replace") as log:
            return log.read()[-_LAST_CHARS:]

    def _start_reader(self, reader: Reader) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "chaos.reader", msgspec.json.encode(reader.options).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=_PIPE_BYTES,
            stderr=self._log(reader.name),
            start_new_session=True,
        )

    async def _heard(self, reader: Reader, word: Word, training: Training) -> None:
        match word:
            case Read():
                reader.read.append(word)
                self.read += len(word.numbers)
                self.heard += len(word.numbers)
                if self.behind:
                    await asyncio.sleep(_SLOW_S)
            case Saved():
                reader.save(word)
            case Over():
                reader.over = True
                if all(each.over for each in training):
                    for each in training:
                        each.go_on()
            case Finished():
                reader.finished = True
                if all(each.finished for each in training):
                    for each in training:
                        each.end()
        await self._notify()


def go_on(process: subprocess.Popen[bytes]) -> None:
    """Has a consumer that waits at the end of an epoch begin the next."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ValueError):  # it has been killed meanwhile
        os.write(process.stdin.fileno(), b"\n")


async def _reading(process: subprocess.Popen[bytes]) -> asyncio.StreamReader:
    """Its standard output."""
    stream = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), process.stdout)
    return stream
