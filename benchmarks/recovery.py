"""How soon a consumer has the next batch when the worker it reads from dies, and another one stands by.

A dispatcher with a heartbeat of a second, one worker with tasks of a second, and a spare one that has registered and
has nothing to do. Half a second into a task, with its first batches read, the worker dies, or its process is stopped,
so that its connections stay open and nothing comes. The time until the consumer has a batch from the other worker is
made of three:

* detection: until the dispatcher has given the worker up, as its log says, when that is durable;
* lease: from then until the spare one calls the first function of the task, which it has fetched by then;
* replay: from then until the batch is there: the task runs from its start, without what was read already.

A worker whose session breaks on the dispatcher's own host is given up as soon as its process is seen to be gone; on any
other host it has a heartbeat to come back. Who is silent is given up after two missed heartbeats and a half.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping

import millrace
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn, worker_environment

HEARTBEAT_S = 1.0
ELEMENTS = 100
BATCH = 10
READ_BATCHES = 5
"""Of the task, when its worker dies."""
_ELSEWHERE = (
    "import platform, sys; platform.node = lambda: 'elsewhere'; from millrace.cli import main; sys.exit(main())"
)
_ASK_S = 0.02


def _task(folder: str, element_s: float) -> millrace.Dataset:
    """Work of some seconds, of which each process that does it leaves a note when it began."""

    def work(number: int) -> int:
        with contextlib.suppress(FileExistsError), open(os.path.join(folder, str(os.getpid())), "x") as note:
            note.write(str(time.time()))
        threading.Event().wait(element_s)
        return number

    return millrace.Dataset.range(ELEMENTS).map(work).batch(BATCH)


def _death(options: Options, *, sent: signal.Signals, elsewhere: bool) -> Mapping[str, float]:
    """Figures of one death, by the signal ``sent``; ``elsewhere``: workers seem to be on another host."""
    with tempfile.TemporaryDirectory(prefix="millrace-recovery-") as folder, contextlib.ExitStack() as ends:
        first, spare = (ends.enter_context(_worker(name, elsewhere=elsewhere)) for name in ("first", "spare"))
        log = os.path.join(folder, "log")
        address = ends.enter_context(_dispatcher(folder, log))
        _join(first, address, "first")
        dataset = ends.enter_context(_task(folder, options["element"] / 1000).distribute(address, tasks=1))
        batches = dataset.epochs(1)
        next(batches)
        _join(spare, address, "spare")  # too late to be given anything
        for _ in range(READ_BATCHES - 1):
            next(batches)
        died = time.time()
        first.send_signal(sent)
        if sent is signal.SIGKILL:
            first.wait()
        note = os.path.join(folder, str(spare.pid))
        read = READ_BATCHES + 1
        while next(batches) is not None and not os.path.exists(note):
            read += 1  # of those that had been sent before
        came = time.time()
        if read == ELEMENTS // BATCH:
            raise RuntimeError("the task had ended before its worker died: this machine is too busy for it")
        with open(note) as file:
            began = float(file.read())
        lost = _given_up(log)
        return {"total": came - died, "detection": lost - died, "lease": began - lost, "replay": came - began}


@contextlib.contextmanager
def _dispatcher(folder: str, log: str) -> Iterator[str]:
    """Its address; what it says goes to the file ``log``."""
    command = ["dispatcher", "--port", "0", "--heartbeat", str(HEARTBEAT_S), "--log-level", "info"]
    with open(log, "wb") as words:
        process = spawn(
            [*command, "--work-dir", os.path.join(folder, "work")], worker=False, stdout=subprocess.PIPE, stderr=words
        )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
    finally:
        hang_up(process)
        reap(process)


@contextlib.contextmanager
def _worker(name: str, *, elsewhere: bool) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has loaded what it needs and waits for the dispatcher's address."""
    program = ["-c", _ELSEWHERE] if elsewhere else ["-m", "millrace"]
    process = subprocess.Popen(
        [sys.executable, *program, "worker", "--dispatcher", "-", "--name", name, "--threads", "1", "--parent-pipe"],
        stdin=subprocess.PIPE,
        env=worker_environment(os.environ),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        hang_up(process)


def _join(worker: subprocess.Popen[bytes], address: str, name: str) -> None:
    """Tells a worker where the dispatcher is, and returns when it has registered."""
    assert worker.stdin is not None
    os.write(worker.stdin.fileno(), f"{address}\n".encode())
    while name not in {each["id"] for each in fetch_status(address)["workers"]}:
        threading.Event().wait(_ASK_S)


def _given_up(log: str) -> float:
    """When the dispatcher said that it has given the first worker up, in seconds since the epoch."""
    with open(log) as lines:
        line = next(line for line in lines if " worker first " in line and "goes to others" in line)
    return dt.datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()


BENCHMARK = Benchmark(
    question="How soon does a consumer have the next batch when its worker dies and another one stands by?",
    figures={
        "total": Figure("s in all", digits=2, more_is_better=False),
        "detection": Figure("s to detect it", digits=2, more_is_better=False),
        "lease": Figure("s to lease", digits=3, more_is_better=False),
        "replay": Figure("s to replay", digits=2, more_is_better=False),
    },
    contestants=(
        Contestant(
            "killed, on another host", functools.partial(_death, sent=signal.SIGKILL, elsewhere=True), note="SIGKILL"
        ),
        Contestant(
            "killed, on the dispatcher's host",
            functools.partial(_death, sent=signal.SIGKILL, elsewhere=False),
            note="SIGKILL",
        ),
        Contestant(
            "silent", functools.partial(_death, sent=signal.SIGSTOP, elsewhere=True), note="SIGSTOP: connections stay"
        ),
    ),
    reference="killed, on another host",
    sizes={"element": Size(10, 40, "milliseconds of an element, of which the task has 100")},
    rounds=11,
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.recovery"))
