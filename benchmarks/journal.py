"""What the journal costs, and how soon a dispatcher is back: events made durable, recovery, a service with and without.

Events are journalled as the dispatcher does it: 200 peers each wait for their own to be durable before they cause the
next, and all that comes in while a group is written goes into the next group. The service gives elements that take
tens of microseconds each, and integers that take next to nothing, with hundreds of tasks a second: nothing asks more of
a journal. Recovery is of a state of 200 jobs whose
tasks are done, but for some that are leased, with as many events behind the snapshot as there may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

import msgspec

import millrace
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main, rate
from millrace.control.journal.consumer_events import ConsumerJoined, EpochBegan, Progressed
from millrace.control.journal.epoch_events import EpochOpened
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobCreated, TableRecorded
from millrace.control.journal.replay import apply
from millrace.control.journal.snapshot import dump
from millrace.control.journal.task_events import TaskDone, TaskEnded, TaskLeased
from millrace.control.journal.worker_events import WorkerJoined
from millrace.control.state.state import State
from millrace.dispatcher.journal_file import SNAPSHOT_EVENTS, SqliteJournal
from millrace.dispatcher.recovery import restore
from millrace.dispatcher.work_dir import WorkDir
from millrace.graph.nodes import Range
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import pack
from millrace.planning.split_table import positions_table
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import TaskProgress

JOBS = 200
PEERS = 200
WORKERS = 100
LEASED = 0.02
"""Of the tasks; several times what workers have in hand at a time."""
BATCH = 1024


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    # Beside the code, as /tmp may be memory, where a sync costs nothing.
    with tempfile.TemporaryDirectory(prefix="millrace-journal-", dir=os.path.dirname(__file__)) as folder:
        yield folder


# -- events ------------------------------------------------------------------------------------------------------------


def _events(options: Options, peers: int) -> Mapping[str, float]:
    with _folder() as folder:
        journal = SqliteJournal(os.path.join(folder, "journal.db"))
        try:
            return {"events": asyncio.run(_append(journal, options["events"] // peers, peers))}
        finally:
            journal.close()


async def _append(journal: SqliteJournal, rounds: int, peers: int) -> float:
    """Events a second."""
    waiting: list[tuple[Event, asyncio.Future[None]]] = []
    some = asyncio.Event()

    async def write() -> None:
        while True:
            await some.wait()
            some.clear()
            group = waiting.copy()
            waiting.clear()
            await journal.append([event for event, _ in group], 0.0)
            for _, durable in group:
                durable.set_result(None)

    async def cause(peer: int) -> None:
        for number in range(rounds):
            durable = asyncio.get_running_loop().create_future()
            event = TaskLeased(f"job{peer}", 0, number, number, f"worker{peer}", 0, fresh=True, cursors={"": number})
            waiting.append((event, durable))
            some.set()
            await durable

    writer = asyncio.create_task(write())
    began = time.perf_counter()
    await asyncio.gather(*(cause(peer) for peer in range(peers)))
    took = time.perf_counter() - began
    writer.cancel()
    return rounds * peers / took


# -- recovery ----------------------------------------------------------------------------------------------------------


def _recovery(options: Options) -> Mapping[str, float]:
    with _folder() as folder:
        work_dir = WorkDir(folder)
        journal = SqliteJournal(work_dir.journal)
        state = State()
        group: list[Event] = []
        for total, event in enumerate(_life(options["tasks"]), start=1):
            apply(state, event)
            group.append(event)
            if len(group) == 1000:
                # The last snapshot is as old as it may be.
                late = total % SNAPSHOT_EVENTS == 0
                journal.write(len(group), 0.0, msgspec.msgpack.encode(group), dump(state) if late else None)
                group.clear()
        began = time.perf_counter()
        size = len(dump(state))
        dumped = time.perf_counter() - began
        journal.close()
        del state
        began = time.perf_counter()
        journal, state, _ = restore(work_dir, State, recover=False)
        took = time.perf_counter() - began
        journal.close()
        work_dir.close()
        if len(state.jobs) != JOBS:
            raise RuntimeError("jobs were lost")
        return {"recovery": took, "snapshot": dumped * 1e3, "size": size / 1e6}


def _life(tasks: int) -> Iterator[Event]:
    """Of jobs that run side by side."""
    structure = pack(Graph(Range(start=0, stop=100)))[0]
    share = tasks // JOBS
    for number in range(WORKERS):
        yield WorkerJoined(f"worker{number}", f"10.0.0.{number}:5050")
    for number in range(JOBS):
        job = f"job{number}"
        yield JobCreated(JobSpec(job, structure, "bundle"), 1, "digest", anonymous=False, at=0.0)
        yield TableRecorded(job, {0: positions_table(share).summary()}, "tables", share)
        yield ConsumerJoined(job, 0, f"client{number}", -1)
        yield EpochOpened(job, 0)
        yield EpochBegan(job, 0, 0)
    lease = 0
    for task in range(share):
        for number in range(JOBS):
            job = f"job{number}"
            lease += 1
            worker = f"worker{lease % WORKERS}"
            yield TaskLeased(job, 0, task, lease, worker, 0, fresh=True, cursors={"": task + 1})
            if task < share * (1 - LEASED):
                yield TaskEnded(job, 0, task, 3)
                yield Progressed(job, 0, 0, [TaskProgress(task, 3, complete=True)])
                yield TaskDone(job, 0, task)


# -- a service ---------------------------------------------------------------------------------------------------------


_DATA = bytes(64 << 10)


def _work(number: int) -> int:
    return number + hashlib.sha256(_DATA).digest_size


def _plus_one(number: int) -> int:
    return number + 1


def _service(options: Options, *, journal: bool) -> Mapping[str, float]:
    figures = {}
    with _folder() as folder, millrace.LocalService(max_workers=2, work_dir=folder if journal else None) as service:
        for name, function, count in (
            ("work", _work, options["elements"] // 100),
            ("integers", _plus_one, options["elements"]),
        ):
            with millrace.Dataset.range(count).map(function).batch(BATCH).distribute(service.address) as served:
                figures[name] = rate(functools.partial(iter, served), count, options["passes"]) / 1e3
    return figures


BENCHMARK = Benchmark(
    question="What does the journal cost, and how soon is a dispatcher back?",
    figures={
        "work": Figure("k elements/s"),
        "integers": Figure("k integers/s"),
        "events": Figure("events/s, durable"),
        "recovery": Figure("s to recover", digits=2, more_is_better=False),
        "snapshot": Figure("ms for a snapshot", digits=1, more_is_better=False),
        "size": Figure("MB of a snapshot", digits=1, more_is_better=False),
    },
    contestants=(
        Contestant("service in memory", lambda options: _service(options, journal=False)),
        Contestant("service with a journal", lambda options: _service(options, journal=True)),
        Contestant("events of 200 peers", lambda options: _events(options, PEERS)),
        Contestant("events one by one", lambda options: _events({"events": options["events"] // 20}, 1)),
        Contestant("recovery of 200 jobs", _recovery),
    ),
    reference="service in memory",
    sizes={
        "elements": Size(
            16_000_000, 102_400, "integers in a pass through a service; a hundredth of elements that take time"
        ),
        "passes": Size(2, 1, "measured passes in a round"),
        "events": Size(40_000, 4_000, "events to journal; one by one a twentieth"),
        "tasks": Size(1_000_000, 20_000, "tasks that are leased or done when the dispatcher dies"),
    },
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.journal"))
