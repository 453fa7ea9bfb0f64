"""Dispatchers and workers as processes started by hand, and consumers as threads.

Waiting is blocking on a pipe, on a process, on an element, or asking the service now and then until it says so.
"""

import hashlib
import json
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from chaos.child_processes import ends_within
from chaos.proxy import Proxy
from tests.integration.own_host import OWN_HOST
from tests.integration.service.fork_server import ForkServer

from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn
from millrace.elements import codec

Link = Callable[..., Proxy]
"""Opens a link of so many bytes a second, or without a bound; see the fixture of this name."""
WAIT_S = 20.0
HEARTBEAT_S = 0.5
"""A tenth of what users have, so that the dead are given up and lanes are reported soon."""

PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.3
"""Between two questions, the first two and later ones: an answer takes some hundredths of a second on two cores."""


class Service:
    """A dispatcher, with a journal if it has a ``work_dir``, and a cache if it has a ``cache_dir``, and its workers."""

    fork_server: ForkServer
    """Starts processes, unless they have variables of their own."""
    environment: Mapping[str, str] = {}
    """Variables of processes that are started from now on."""

    def __init__(
        self,
        workers: int = 0,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        work_dir: Path | None = None,
        cache_dir: Path | None = None,
        cache_bytes: int = 1 << 40,
        local: str = "0",
        options: Sequence[str] = (),
    ) -> None:
        self._heartbeat_s = heartbeat_s
        self._work_dir = work_dir
        self._local = local
        self._options = options
        self._cache = [] if cache_dir is None else ["--cache-dir", str(cache_dir), "--cache-bytes", str(cache_bytes)]
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        self.dispatcher = self._start("0")
        self.add(workers)

    def _start(self, port: str) -> subprocess.Popen[bytes]:
        arguments = ["dispatcher", "--host", OWN_HOST, "--port", port, "--heartbeat", str(self._heartbeat_s)]
        arguments += [*self._cache, "--local-workers", self._local, *self._options]
        if self._work_dir is not None:
            arguments += ["--work-dir", str(self._work_dir)]
        process = self._spawn(arguments, worker=False)
        assert process.stdout is not None
        with process.stdout as said:
            self.address = json.loads(said.readline())["address"]
        return process

    def _spawn(self, arguments: Sequence[str], *, worker: bool) -> subprocess.Popen[bytes]:
        if not self.environment:
            return self.fork_server.start(arguments, stdout=not worker)
        stdout = None if worker else subprocess.PIPE
        return spawn(arguments, worker=worker, stdout=stdout, extra=self.environment)

    def add(self, count: int = 1, *arguments: str) -> list[str]:
        """Starts workers, and returns their names once all have registered."""
        names = [f"w{len(self.workers) + number}" for number in range(count)]
        for name in names:
            worker = ["worker", "--dispatcher", self.address, "--threads", "1", "--name", name, *arguments]
            self.workers[name] = self._spawn(worker, worker=True)
        self.until(lambda status: set(names) <= {worker["id"] for worker in status["workers"]})
        return names

    def named(self, pid: int) -> str:
        """The worker that is this process."""
        return next(name for name, process in self.workers.items() if process.pid == pid)

    def leave(self, name: str) -> None:
        """Asks a worker to leave in good order, and returns once the dispatcher knows."""
        self.workers[name].send_signal(signal.SIGTERM)
        self.until(
            lambda status: all("leaving" in worker["why"] for worker in status["workers"] if worker["id"] == name)
        )

    def kill(self, name: str) -> None:
        """Ends a worker's process where it is."""
        process = self.workers[name]
        process.kill()
        process.wait()

    def restart_dispatcher(self) -> None:
        """Kills the dispatcher and starts another one at the same address."""
        self.dispatcher.kill()
        self.dispatcher.wait()
        hang_up(self.dispatcher)
        self.start_again()

    def start_again(self) -> None:
        """Starts a dispatcher at the address of the one that has ended."""
        self.dispatcher = self._start(self.address.rsplit(":", 1)[1])

    def status(self) -> dict[str, Any]:
        return fetch_status(self.address)

    def until(self, condition: Callable[[dict[str, Any]], Any], wait_s: float = WAIT_S) -> Any:
        """Asks for the status until ``condition`` is true of it, and returns what that gave."""
        deadline, pause_s = time.monotonic() + wait_s, PAUSE_S
        while True:
            status = self.status()
            found = condition(status)
            if found:
                return found
            assert time.monotonic() < deadline, f"it did not come to that: {json.dumps(status, indent=1)}"
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        for process in [*self.workers.values(), self.dispatcher]:
            hang_up(process)
        for process in [*self.workers.values(), self.dispatcher]:
            reap(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_for_end(process: subprocess.Popen[bytes]) -> int:
    """Exit status of a process that is about to end."""
    wait_until_gone(process.pid)
    return process.wait()


def wait_until_gone(pid: int) -> None:
    """Waits for the end of any process that is about to end."""
    assert ends_within(pid, WAIT_S), f"process {pid} is still there"


def job_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    """What the status says of a job; empty if there is none of that name."""
    return next((job for job in status["jobs"] if job["name"] == name), {})


def consume(datasets: Iterable[Any], epochs: int = 1) -> list[list[list[Any]]]:
    """Reads each distributed dataset in a thread of its own, and closes it: by consumer, by epoch, the elements.

    Where only one epoch is read the service is told so, and prepares no other.
    """

    datasets = list(datasets)
    # A job ends with its last consumer: all join before one can be through.
    begun = [dataset.epochs(1) if epochs == 1 else iter(dataset) for dataset in datasets]

    def read(dataset: Any, elements: Iterable[Any]) -> list[list[Any]]:
        with dataset:
            return [list(elements), *(list(dataset) for _ in range(1, epochs))]

    with ThreadPoolExecutor(len(datasets)) as pool:
        return list(pool.map(read, datasets, begun))


def together(read: list[list[list[Any]]]) -> list[list[Any]]:
    """By epoch, the elements of all consumers."""
    return [[element for part in parts for element in part] for parts in zip(*read, strict=True)]


def prints(elements: Iterable[Any]) -> list[str]:
    """What can be compared of any element: a hash of the bytes it travels as."""
    return [hashlib.blake2b(b"".join(codec.encode([element])), digest_size=12).hexdigest() for element in elements]


def as_set(elements: Iterable[Any]) -> Counter[str]:
    return Counter(prints(elements))


class Reading:
    """:func:`consume`, in the background; the ``with`` block ends with it."""

    def __init__(self, datasets: Iterable[Any], epochs: int = 1) -> None:
        self._datasets = list(datasets)
        self._pool = ThreadPoolExecutor(1)
        self._read = self._pool.submit(consume, self._datasets, epochs)

    def result(self) -> list[list[list[Any]]]:
        return self._read.result(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # they may wait for what will never come
            for dataset in self._datasets:
                dataset.close()
        self._pool.shutdown()
