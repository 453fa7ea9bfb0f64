"""CPU time that a service takes beside the work, and where it goes (Cachew 6.5.2 reports 30 to 50 % more).

    python -m benchmarks.papers.cpu_overhead [--json FILE]

The same pipeline is read in one process, on a service of the same host (memory is passed), and on a service of another
host (TCP): dispatcher and two workers in one network namespace, the consumer in another, joined by a veth pair. Counted
are user and system time of each process, as the kernel has them. A run of one epoch and a run of several, each with
fresh processes, differ by whole epochs and by nothing else. What a network card's driver would do is not in it, nor
what the kernel does of TCP outside of these processes. Needs root and iproute2.

The elements: dicts of 200 bytes that hardly cost anything to make, pictures of 150 KB that are decoded and cut
(:mod:`benchmarks.decode`), and batches of 64 of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks import decode, small
from benchmarks.papers.report import main
from millrace import Dataset
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import worker_environment

QUESTION = "How much CPU time does a service take beside the work, and where does it go?"
ROUNDS = 3
WORKERS = 2
FILES = 256
ADDRESSES = {"near": "10.98.0.1", "far": "10.98.0.2"}
TOKEN = {"MILLRACE_TOKEN": "benchmark"}


class Kind(NamedTuple):
    """What is read.

    Attributes:
        length: of an epoch, in elements.
        epochs: that are measured.
    """

    length: int
    epochs: int


KINDS = {"200 B": Kind(100_000, 8), "150 KB": Kind(FILES, 8), "9.6 MB": Kind(FILES // decode.BATCH, 8)}
PLACES = ("in process", "service, same host", "service, another host")

Used = Mapping[str, tuple[float, float]]
"""User and system seconds, by role of processes."""


def dataset(kind: str) -> Dataset:
    """The pipeline."""
    if kind == "200 B":
        return Dataset.range(KINDS[kind].length).map(small.row)
    pictures = Dataset.from_files(decode.paths_of(FILES, 1)).map(decode.decode_element)
    return pictures if kind == "150 KB" else pictures.batch(decode.BATCH)


def read(kind: str, epochs: int, address: str = "") -> None:
    """The consumer's process: reads epochs, then says what it used, and which processes the service has."""
    pids: dict[str, list[int]] = {}
    with contextlib.ExitStack() as stack:
        passes: Iterator[Any]
        if address:
            served = stack.enter_context(dataset(kind).distribute(address, job_name=f"{kind} {epochs}"))
            passes = iter([served.epochs(epochs)])
        else:
            passes = iter([dataset(kind) for _ in range(epochs)])
        count = sum(1 for each in passes for _ in each)
        if count != KINDS[kind].length * epochs:
            raise RuntimeError(f"{count} elements came out of {KINDS[kind].length * epochs}")
        used = resource.getrusage(resource.RUSAGE_SELF)
        if address:
            pids["workers"] = [
                worker["pid"] for worker in fetch_status(address, os.environ["MILLRACE_TOKEN"])["workers"]
            ]
        print(json.dumps({"used": (used.ru_utime, used.ru_stime), "pids": pids}), flush=True)


def run(kind: str, place: str, epochs: int) -> Used:
    """One run, with processes of its own."""
    environment = worker_environment(os.environ) | TOKEN
    reader = [sys.executable, "-m", "benchmarks.papers.cpu_overhead", "read", kind, str(epochs)]
    with contextlib.ExitStack() as stack:
        near, far, host = stack.enter_context(hosts()) if place == PLACES[2] else ([], [], "127.0.0.1")
        used: dict[str, tuple[float, float]] = {}
        dispatcher = None
        if place != PLACES[0]:
            command = [*far, sys.executable, "-m", "millrace", "dispatcher", "--host", host, "--port", "0"]
            command += ["--local-workers", str(WORKERS), "--threads", "1", "--parent-pipe", "--insecure"]
            dispatcher = stack.enter_context(started(command, environment))
            assert dispatcher.stdout is not None
            reader.append(json.loads(dispatcher.stdout.readline())["address"])
        done = subprocess.run([*near, *reader], env=environment, stdout=subprocess.PIPE, check=True)
        said = json.loads(done.stdout)
        used["consumer" if dispatcher else "all"] = tuple(said["used"])
        if dispatcher is not None:
            used["dispatcher"] = _times(dispatcher.pid)
            each = [_times(pid) for pid in said["pids"]["workers"]]
            used["workers"] = (sum(user for user, _ in each), sum(system for _, system in each))
        return used


@contextlib.contextmanager
def started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends, with those that it has started, when its standard input is closed."""
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.communicate()


@contextlib.contextmanager
def hosts() -> Iterator[tuple[list[str], list[str], str]]:
    """Two hosts: commands that run something on either, and the second one's address."""
    name = f"mr{os.getpid()}"
    spaces = {side: f"{name}-{side}" for side in ADDRESSES}
    try:
        for space in spaces.values():
            _ip("netns", "add", space)
        _ip(
            "link",
            "add",
            f"{name}a",
            "netns",
            spaces["near"],
            "type",
            "veth",
            "peer",
            f"{name}b",
            "netns",
            spaces["far"],
        )
        for side, device in zip(ADDRESSES, "ab", strict=True):
            _ip("-n", spaces[side], "addr", "add", f"{ADDRESSES[side]}/24", "dev", f"{name}{device}")
            _ip("-n", spaces[side], "link", "set", f"{name}{device}", "up")
            _ip("-n", spaces[side], "link", "set", "lo", "up")
        yield (*(["ip", "netns", "exec", space] for space in spaces.values()), ADDRESSES["far"])  # type: ignore[misc]
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _times(pid: int) -> tuple[float, float]:
    """User and system seconds of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


def of_an_element(kind: str, place: str) -> dict[str, dict[str, float]]:
    """CPU milliseconds of an element, by role: user and system."""
    epochs = KINDS[kind].epochs
    short, long = run(kind, place, 1), run(kind, place, 1 + epochs)
    count = epochs * KINDS[kind].length
    return {
        role: {
            name: 1e3 * (long[role][number] - short[role][number]) / count
            for number, name in enumerate(("user", "system"))
        }
        for role in long
    }


def total(used: Mapping[str, Mapping[str, float]]) -> float:
    """Of all roles."""
    return sum(sum(each.values()) for each in used.values())


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    decode.paths_of(FILES, 1)
    rounds: list[dict[str, dict[str, Any]]] = []
    for _ in range(ROUNDS):
        found = {kind: {place: of_an_element(kind, place) for place in PLACES} for kind in KINDS}
        rounds.append(found)
        for kind, places in found.items():
            base = total(places[PLACES[0]])
            print(kind, *(f"{place} {total(used) / base:.3f}" for place, used in places.items()), sep="  ", flush=True)
    figures = [{place: {kind: total(found[kind][place]) for kind in KINDS} for place in PLACES} for found in rounds]
    return {"rounds": figures, "table": _table(rounds), "results": rounds}


def _table(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[list[str]]:
    """Medians over rounds, in microseconds of CPU for an element."""
    roles = ("workers", "consumer", "dispatcher")
    head = ["element", "where", "us of CPU", "of in process"]
    rows = [head + [f"{role}, {mode}" for role in roles for mode in ("user", "system")]]
    for kind in KINDS:
        for place in PLACES:
            all_us = statistics.median(1e3 * total(found[kind][place]) for found in rounds)
            ratio = statistics.median(total(found[kind][place]) / total(found[kind][PLACES[0]]) for found in rounds)
            row = [kind, place, f"{all_us:,.1f}", f"{ratio:.2f}"]
            for role in roles:
                for mode in ("user", "system"):
                    values = [found[kind][place][role][mode] for found in rounds if role in found[kind][place]]
                    row.append(f"{1e3 * statistics.median(values):,.1f}" if values else "")
            rows.append(row)
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        main("benchmarks.papers.cpu_overhead", QUESTION, measure)
