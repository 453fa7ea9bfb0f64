"""What a dispatcher costs, and how soon it answers, with a thousand workers and two hundred jobs.

A real dispatcher in a process of its own hears a crowd (:mod:`benchmarks.crowd`) that lives in the contestant's
process: the contestants are things that a crowd may do. Each worker and each consumer has a connection of its own and
reports every five seconds. The dispatcher's time on the processor comes from the kernel. Latency is counted from the
moment at which a report was due until the answer to a question that was asked right behind it; so it includes what the
crowd itself was late by, which is a figure, too.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.crowd import Crowd
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from millrace.clusters.child_process import hang_up, reap, spawn

HEARTBEAT_S = 5.0
_SETTLE_S = 5.0
_PROBES_PER_S = 20.0


def _run(options: Options, task_s: float | None) -> Mapping[str, float]:
    """Figures of a dispatcher whose workers need ``task_s`` seconds for a task; None: for ever."""
    process = spawn(
        ["dispatcher", "--port", "0", "--heartbeat", str(HEARTBEAT_S)], worker=False, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        address = json.loads(process.stdout.readline())["address"].removeprefix("grpc://")
        return asyncio.run(_measure(process.pid, address, options, task_s))
    finally:
        hang_up(process)
        reap(process)


async def _measure(pid: int, address: str, options: Options, task_s: float | None) -> Mapping[str, float]:
    empty = _resident_bytes(pid)
    peers = options["workers"] + options["jobs"]
    probed = min(1.0, _PROBES_PER_S * HEARTBEAT_S / peers)
    crowd = Crowd(address, options["workers"], options["jobs"], heartbeat_s=HEARTBEAT_S, probed=probed)
    try:
        await crowd.gather()
        if task_s is not None:
            crowd.work(task_s)
        await asyncio.sleep(min(_SETTLE_S, options["seconds"]))
        tally = crowd.tally
        tally.reset()
        began, used = time.perf_counter(), _cpu_seconds(pid)
        await asyncio.sleep(options["seconds"])
        seconds, used = time.perf_counter() - began, _cpu_seconds(pid) - used
        if tally.errors:
            raise RuntimeError(f"{len(tally.errors)} sessions failed, the first with: {tally.errors[0]}")
        figures = {
            "cpu": 100 * used / seconds,
            "messages": (tally.sent + tally.received) / seconds,
            "tasks": tally.finished / seconds,
            "median": _quantile(tally.probes, 0.5),
            "p99": _quantile(tally.probes, 0.99),
            "max": _quantile(tally.probes, 1.0),
            "lag": _quantile(tally.lag, 0.99),
            "memory": (_resident_bytes(pid) - empty) / peers / 1024,
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")) / peers,
        }
        if tally.leases and task_s:
            figures["lease"] = _quantile(tally.leases, 0.99)
        return figures
    finally:
        await crowd.leave()


def _cpu_seconds(pid: int) -> float:
    """Time that a process has had on processors, in user and in system mode."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _quantile(seconds: Sequence[float], part: float) -> float:
    """In milliseconds.

    Raises:
        RuntimeError: there is none to choose from.
    """
    if not seconds:
        raise RuntimeError("nobody's heartbeat was due while it was measured: ask for more seconds, or more workers")
    return 1000 * sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))]


BENCHMARK = Benchmark(
    question="What does a dispatcher with many workers cost, and how soon does it answer?",
    figures={
        "cpu": Figure("% of a core", digits=1, more_is_better=False),
        "p99": Figure("ms, p99", digits=1, more_is_better=False),
        "median": Figure("ms, median", digits=1, more_is_better=False),
        "max": Figure("ms, max", digits=1, more_is_better=False),
        "lease": Figure("ms to a lease, p99", digits=1, more_is_better=False),
        "lag": Figure("ms that the crowd was late, p99", digits=1, more_is_better=False),
        "messages": Figure("messages/s", digits=0),
        "tasks": Figure("tasks/s", digits=0),
        "memory": Figure("KiB per peer", digits=0, more_is_better=False),
        "descriptors": Figure("descriptors per peer", digits=2, more_is_better=False),
    },
    contestants=(
        Contestant("heartbeats", functools.partial(_run, task_s=None), note="no task ends"),
        Contestant("tasks of 10 s", functools.partial(_run, task_s=10.0), note="and heartbeats"),
        Contestant("tasks of 2 s", functools.partial(_run, task_s=2.0), note="and heartbeats"),
    ),
    reference="heartbeats",
    sizes={
        "workers": Size(1000, 20, "simulated workers"),
        "jobs": Size(200, 4, "jobs, each with one simulated consumer"),
        "seconds": Size(30, 6, "that are measured"),
    },
    rounds=3,
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.dispatcher"))
