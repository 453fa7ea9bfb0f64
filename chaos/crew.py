"""A service of real processes with proxies between them, and its consumers."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from chaos.pipeline import BUFFER_BYTES
from chaos.reader import LENGTH, Finished, Options, Read, Word
from millrace.client.status import fetch_status
from millrace.clusters.processes import hang_up, reap, spawn
from millrace.errors import MillraceError
from millrace.testing.processes import NotFiredError, ended
from millrace.testing.proxy import Orders, Proxy

HERE, THERE = "127.0.0.1", "127.0.0.2"
"""Processes listen at the first; the second is where they are known to be, and a proxy listens."""
HEARTBEAT_S = 1.0
GUARD_S = 90.0
"""Whatever is waited for takes seconds; what takes this long has failed."""
_ASK_S = 0.1
_SLOW_S = 1.0
"""For a batch. Not longer than that: some faults need something that flows."""
_PIPE_BYTES = 4096
"""What a consumer can say before anybody listens: a few batches."""
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
    """A consumer: its process, and what it has read."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.read: list[Read] = []
        self.finished = asyncio.Event()

    @property
    def name(self) -> str:
        """For messages and logs."""
        return f"{self.options.job}-{self.options.index}"


class Crew:
    """A dispatcher, workers, consumers, and the proxies between them. Belongs to a running event loop.

    Args:
        folder: for the logs of all processes.
        work_dir: of the dispatcher.

    Attributes:
        control, bulk: harms that wait for connections to the dispatcher, and from consumers to workers.
        alone: held by who does something to the dispatcher.
        behind: consumers are to be slow, as faults are not done as fast as elements are read;
        hurried: but not while somebody waits for what only they cause.
        read: elements that count as read now, over all consumers.
        heard: elements that consumers have said ever to have read.
    """

    def __init__(self, folder: str, work_dir: str) -> None:
        self.control: Orders = collections.deque()
        self.bulk: Orders = collections.deque()
        self.alone = asyncio.Lock()
        self.behind = self.hurried = False
        self.workers: list[Worker] = []
        self.readers: list[Reader] = []
        self.read = self.heard = 0
        self._folder, self.work_dir = folder, work_dir
        self._started = 0
        self._address = (HERE, 0)
        self._dispatcher: subprocess.Popen[bytes] | None = None
        self._proxy: Proxy | None = None
        self._taken: set[Worker | Reader] = set()
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
            proxy = await Proxy((HERE, 0), self.bulk).open(THERE)
            arguments += ["--port", str(proxy.port), "--advertise", THERE, "--no-shared-memory"]
        worker = Worker(name, spawn(arguments, worker=True, stderr=self._log(name)), proxy)
        self.workers.append(worker)
        await self._notify()
        return worker

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
        readers = [reader.process for reader in self.readers if reader.process is not None]
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
        async with self._one_of(lambda: self.workers, rng) as worker:
            yield worker

    @contextlib.asynccontextmanager
    async def a_reader(self, rng: random.Random) -> AsyncIterator[Reader]:
        """Any that reads now, to which nobody else does something."""

        def reading() -> list[Reader]:
            return [each for each in self.readers if each.process is not None and not each.finished.is_set()]

        async with self._one_of(reading, rng) as reader:
            yield reader

    @contextlib.asynccontextmanager
    async def _one_of(self, candidates: Callable[[], Sequence[Any]], rng: random.Random) -> AsyncIterator[Any]:
        def free() -> list[Any]:
            return [each for each in candidates() if each not in self._taken]

        async with self._changed:
            await self._changed.wait_for(free)
            one = rng.choice(free())
            self._taken.add(one)
        try:
            yield one
        finally:
            self._taken.discard(one)
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

    async def consume(self, jobs: Sequence[Options]) -> list[Reader]:
        """Has consumers read all their epochs, and returns them."""
        self.readers = [Reader(options) for options in jobs]
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(self._follow(reader)) for reader in self.readers]
            await self._notify()
            await asyncio.gather(*(reader.finished.wait() for reader in self.readers))
            for reader in self.readers:
                if reader.process is not None:
                    hang_up(reader.process)
            await asyncio.gather(*following)
        return self.readers

    async def _follow(self, reader: Reader) -> None:
        """The life of a consumer."""
        reader.process = process = self._start_reader(reader)
        stream = await _reading(process)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
                await self._heard(reader, _words.decode(await stream.readexactly(length)))
        status = await ended(process)
        if status != 0 or not reader.finished.is_set():
            raise RuntimeError(f"consumer {reader.name} ended with exit status {status}; see its log in {self._folder}")

    def _start_reader(self, reader: Reader) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "chaos.reader", msgspec.json.encode(reader.options).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pipesize=_PIPE_BYTES,
            stderr=self._log(reader.name),
            start_new_session=True,
        )

    async def _heard(self, reader: Reader, word: Word) -> None:
        match word:
            case Read():
                reader.read.append(word)
                self.read += len(word.numbers)
                self.heard += len(word.numbers)
                if self.behind and not self.hurried:
                    await asyncio.sleep(_SLOW_S)
            case Finished():
                reader.finished.set()
        await self._notify()


async def _reading(process: subprocess.Popen[bytes]) -> asyncio.StreamReader:
    """Its standard output."""
    stream = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), process.stdout)
    return stream
