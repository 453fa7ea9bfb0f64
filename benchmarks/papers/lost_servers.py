"""Cache servers that are killed, added and wiped while four jobs read: what it costs, and whether a byte is wrong.

    python -m benchmarks.papers.lost_servers [--objects N] [--rate N] [--json FILE]

Four jobs read one data set again and again, each in orders of its own, from a store behind one link, with three cache
servers that have all of it from an epoch before. Each job takes so many objects a second at most, as a training's steps
do, and a batch that came late is made up for within a second. When all jobs together have read so many epochs, then

- one server is killed, for good;
- another one is added;
- a third one is killed, its folder is emptied, and it comes back at once at the same address.

Elements are the objects' bytes, of which each worker may have 4 MiB ready and each training 8 MiB. Each training hashes
what it got and compares it with what was written (BLAKE2b, which is none of the cache's own checksums), and counts that
each object came once an epoch. The store is real, and the link to it is a proxy that delays, throttles and counts
(`benchmarks.far_store`). Servers count what is inserted: a key that has moved is inserted once more, where it is now.

It fails where a job does not get each object once an epoch, or a wrong byte; where the share of keys that moved is not
one of as many as there are servers, but for chance (99.9 %); or where the last third of a phase has less than 0.9 of
the rate before the first event.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import millrace as mr
from benchmarks.far_store import BUCKET, FarStore, far_store
from benchmarks.papers.one_link import ROUND_TRIP_S, make_objects
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import HEARTBEAT_S
from benchmarks.papers.scaled import service as running
from benchmarks.papers.small_cache import OBJECT_BYTES, object_of
from benchmarks.papers.throttled import pause
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn
from millrace.planning.rendezvous import SLOTS

QUESTION = "What do jobs notice when cache servers are lost, added and wiped under them?"
LINK_BYTES_S = 12.5e6
"""100 Mbit/s: less than the jobs ask for while a third of the data is missing."""
JOBS, SERVERS = 4, 3
BATCH = 10
BUFFER_BYTES = 4 << 20
EVENTS = {"killed": 1.0, "added": 2.5, "wiped": 4.0}
"""Epochs that each job has read, on average, when it happens."""
EPOCHS = 6
LEAST = 0.9
LIKELY = 3.29
"""Standard deviations within which a normal variable is with a probability of 99.9 %."""
_LOOK_S = 0.25
_WAIT_S = 60.0


class Server(NamedTuple):
    """A cache server of the service.

    Attributes:
        name: unique.
        port: where it listens, also when it comes back.
        folder: of its items.
    """

    name: str
    port: int
    folder: str


class Servers:
    """Cache servers of a service, as processes.

    Args:
        service: address of the service that they belong to.
        root: folder in which theirs lie.
    """

    def __init__(self, service: str, root: str) -> None:
        self._service, self._root = service, root
        self._running: dict[str, tuple[Server, subprocess.Popen[bytes]]] = {}

    def add(self, name: str) -> None:
        """Start one, and wait until workers are told of it."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self._start(Server(name, port, os.path.join(self._root, name)))

    def _start(self, server: Server) -> None:
        arguments = ["cache-server", "--dispatcher", self._service, "--dir", server.folder, "--bytes", "1GB"]
        arguments += ["--name", server.name, "--port", str(server.port)]
        self._running[server.name] = server, spawn(arguments, worker=False)
        deadline = time.monotonic() + _WAIT_S
        while server.name not in self.counts():
            if time.monotonic() > deadline:
                raise RuntimeError(f"cache server {server.name} did not come")
            threading.Event().wait(0.05)

    def kill(self, name: str) -> Server:
        """Kill one."""
        server, process = self._running.pop(name)
        process.kill()
        process.wait()
        hang_up(process)
        return server

    def wipe(self, name: str) -> None:
        """Kill one, lose what it had, and start it again where it was."""
        server = self.kill(name)
        shutil.rmtree(server.folder)
        self._start(server)

    def counts(self) -> dict[str, dict[str, int]]:
        """What each one that is there has counted since it began, as of its last report."""
        pids = {process.pid: name for name, (_, process) in self._running.items()}
        told = fetch_status(self._service)["source_cache"]["servers"]
        return {pids[each["pid"]]: each["counts"] for each in told if each["pid"] in pids}

    def close(self) -> None:
        """End all."""
        for _, process in self._running.values():
            hang_up(process)
        for _, process in self._running.values():
            reap(process)


class Progress:
    """Objects that all jobs have got so far, over time. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._total = 0
        self._error: BaseException | None = None
        self.first_over = 0.0
        """Time at which the first job was over, in seconds."""
        self.log: list[tuple[float, int]] = []
        """Time of each batch, in seconds, and its objects."""

    def add(self, objects: int) -> None:
        """Count a batch."""
        with self._changed:
            self._total += objects
            self.log.append((time.perf_counter(), objects))
            self._changed.notify_all()

    def ended(self, job: Future[Any]) -> None:
        """Take in that a job is over, so that nobody waits for one that has failed."""
        with self._changed:
            self.first_over = self.first_over or time.perf_counter()
            self._error = self._error or job.exception()
            self._changed.notify_all()

    def reach(self, objects: float) -> float:
        """Wait until so many have come; the time then."""
        with self._changed:
            self._changed.wait_for(lambda: self._total >= objects or self._error is not None)
            if self._error is not None:
                raise self._error
            return time.perf_counter()


def hashes_of(folder: str) -> list[bytes]:
    """Hash the first :data:`OBJECT_BYTES` bytes of each object, as they were written."""
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found.append(_hash(file.read(OBJECT_BYTES)))
    return found


def _hash(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def read(service: str, name: str, seed: int, epochs: int, rate: float, hashes: Sequence[bytes], seen: Progress) -> int:
    """Read some epochs as a training does that takes ``rate`` objects a second at most; return wrong elements.

    Raises:
        RuntimeError: it did not get each object once an epoch.
    """
    count, wrong = len(hashes), 0
    dataset = mr.Dataset.from_files(f"s3://{BUCKET}/train/*.bin").map(object_of).shuffle(count).batch(BATCH)
    dataset = dataset.with_options(buffer_bytes=2 * BUFFER_BYTES)
    with dataset.distribute(service, job_name=name, seed=seed, progress=False) as batches:
        due = 0.0
        for epoch in range(epochs):
            came = np.zeros(count, np.int64)
            for batch in batches:
                due = due or time.perf_counter()
                threading.Event().wait(max(0.0, due - time.perf_counter()))
                due = max(due, time.perf_counter() - 1.0) + len(batch["size"]) / rate
                numbers = batch["size"] - OBJECT_BYTES
                wrong += sum(
                    _hash(data) != hashes[number] for data, number in zip(batch["bytes"], numbers.tolist(), strict=True)
                )
                np.add.at(came, numbers, 1)
                seen.add(len(numbers))
            if not (came == 1).all():
                raise RuntimeError(f"{name}, epoch {epoch}: {(came != 1).sum()} objects did not come once")
    return wrong


@contextlib.contextmanager
def sent_over_time(store: FarStore) -> Iterator[list[tuple[float, int]]]:
    """List the bytes that the store has sent so far, again and again, with the time in seconds."""
    over, seen = threading.Event(), list[tuple[float, int]]()

    def look() -> None:
        while not over.wait(_LOOK_S):
            seen.append((time.perf_counter(), store.link.sent))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def play(store: FarStore, root: str, hashes: Sequence[bytes], rate: float) -> dict[str, Any]:
    """Run the jobs, and have it all happen."""
    count = len(hashes)
    counts: list[dict[str, dict[str, int]]] = []
    times, sent = list[float](), list[int]()
    with (
        running(f"{JOBS}-{JOBS}", "--buffer-bytes", str(BUFFER_BYTES)) as service,
        contextlib.closing(Servers(service, root)) as servers,
    ):
        for name in "abc":
            servers.add(name)
        read(service, "warm", 100, 2, 1e9, hashes, Progress())
        pause(2 * HEARTBEAT_S)  # so that all that was inserted is counted
        store.link.reset()
        events: dict[str, Callable[[], object]] = {
            "killed": lambda: servers.kill("a"),
            "added": lambda: servers.add("d"),
            "wiped": lambda: servers.wipe("b"),
        }
        seen = Progress()
        with sent_over_time(store) as link, ThreadPoolExecutor(JOBS) as pool:
            jobs = [
                pool.submit(read, service, f"job-{number}", number, EPOCHS, rate, hashes, seen)
                for number in range(JOBS)
            ]
            for job in jobs:
                job.add_done_callback(seen.ended)
            times.append(seen.reach(1))
            sent.append(store.link.sent)
            for event, epochs in EVENTS.items():
                times.append(seen.reach(epochs * JOBS * count))
                counts.append(servers.counts())
                sent.append(store.link.sent)
                events[event]()
            wrong = sum(job.result() for job in jobs)
            times.append(seen.first_over)
            sent.append(store.link.sent)
        pause(2 * HEARTBEAT_S)
        counts.append(servers.counts())
    begin = times[0]
    return {
        "wrong": wrong,
        "phases": phases(times, seen.log, counts, sent, count),
        "batches": [(round(at - begin, 2), objects) for at, objects in seen.log],
        "sent": [(round(at - begin, 2), total) for at, total in link],
        "counts": counts,
    }


def phases(
    times: Sequence[float],
    log: Sequence[tuple[float, int]],
    counts: Sequence[Mapping[str, Mapping[str, int]]],
    sent: Sequence[int],
    count: int,
) -> list[dict[str, Any]]:
    """Sum up what was between two events.

    Args:
        times: of the begin, each event and the end of the first job.
        log: of batches, see :class:`Progress`.
        counts: of the servers before each event, and in the end.
        sent: bytes that the store had sent at each time.
        count: of objects.
    """
    at, objects = np.array([each for each, _ in log]), np.array([each for _, each in log])

    def rate(start: float, stop: float) -> float:
        return float(objects[(at >= start) & (at < stop)].sum() / (stop - start))

    inserted = [{name: each["inserted"] for name, each in of_all.items()} for of_all in counts]
    moved = [
        0,
        sum(inserted[1][name] - inserted[0][name] for name in "bc"),  # what was a's
        inserted[2]["d"],
        inserted[3]["b"],  # counted since it came back
    ]
    found = []
    for number, name in enumerate(["before", *EVENTS]):
        start, stop = times[number], times[number + 1]
        seconds = np.arange(start, max(start + 1, stop - 1), 0.5)
        found.append(
            {
                "phase": name,
                "at": start - times[0],
                "seconds": stop - start,
                "rate": rate(start, stop),
                "least": min(rate(second, second + 1) for second in seconds),
                "last": rate(stop - (stop - start) / 3, stop),
                "moved": moved[number] / count,
                "sent": sent[number + 1] - sent[number],
            }
        )
    return found


def chance_bound(count: int, servers: int) -> float:
    """Most that a server's share of so many keys is off by chance, by which keys and by which slots it has."""
    share = 1 / servers
    return LIKELY * math.sqrt(share * (1 - share) * (1 / count + 1 / SLOTS))


def aims(found: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    before, *after = found["phases"]
    bound = chance_bound(count, SERVERS)
    rows: list[tuple[str, float, bool, Any]] = [("elements with a wrong byte", found["wrong"], found["wrong"] == 0, 0)]
    for phase in after:
        off = abs(phase["moved"] - 1 / SERVERS)
        rows.append((f"{phase['phase']}: share of keys that moved", phase["moved"], off <= bound, f"1/3 ± {bound:.3f}"))
    for phase in after:
        share = phase["last"] / before["rate"]
        rows.append((f"{phase['phase']}: rate at last, of that before", share, share >= LEAST, f">= {LEAST}"))
    return [{"aim": aim, "value": value, "asked": asked, "met": met} for aim, value, met, asked in rows]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs it as the options say."""
    with tempfile.TemporaryDirectory(prefix="millrace-lost-") as root:
        objects = os.path.join(root, "store", "train")
        make_objects(objects, options.objects, OBJECT_BYTES)
        hashes = hashes_of(objects)
        with (
            far_store(os.path.join(root, "store"), ROUND_TRIP_S, LINK_BYTES_S) as store,
            mock.patch.dict(os.environ, store.far),
        ):
            found = play(store, root, hashes, options.rate)
            server = store.server
    size = options.objects * OBJECT_BYTES + options.objects * (options.objects - 1) // 2
    before = found["phases"][0]["rate"]
    table = [
        ["", "seconds", "objects/s", "least in a second, of before", "at last", "keys moved", "copies from the store"]
    ]
    for phase in found["phases"]:
        row = [phase["phase"], f"{phase['seconds']:.1f}", f"{phase['rate']:.0f}"]
        row += [f"{phase[what] / before:.2f}" for what in ("least", "last")]
        table.append([*row, f"{phase['moved']:.3f}", f"{phase['sent'] / size:.3f}"])
        print("  ".join(table[-1]), flush=True)
    return {
        "modelled": f"the link: {ROUND_TRIP_S * 1000:.0f} ms, {LINK_BYTES_S * 8 / 1e6:.0f} Mbit/s, by a proxy; steps of"
        f" trainings: {options.rate:g} objects a second at most",
        "server": server,
        "objects": options.objects,
        "rate": options.rate,
        "bytes": size,
        "rounds": [{phase["phase"]: phase for phase in found["phases"]}],
        "results": found,
        "table": table,
        "aims": aims(found, options.objects),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.lost_servers", description=QUESTION)
    parser.add_argument("--objects", type=int, default=3000)
    parser.add_argument("--rate", type=float, default=200.0, help="objects a second that a training takes at most")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
