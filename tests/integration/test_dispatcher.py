"""A real dispatcher on loopback, with workers and consumers that only talk."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.cli import main
from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.dispatcher import blob_store, shortage
from millrace.dispatcher.blob_store import BlobFolder, BlobStore
from millrace.dispatcher.journal_file import Journal
from millrace.dispatcher.server import Dispatcher
from millrace.dispatcher.service_calls import STATUS
from millrace.dispatcher.shortage import UnwritableError
from millrace.elements.sealed_memory import fill
from millrace.errors import (
    ConsumerConflictError,
    JobConflictError,
    ProtocolError,
    ServiceError,
    VersionMismatchError,
)
from millrace.functions import bundles
from millrace.graph.nodes import Range
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import pack
from millrace.planning.plan import make_plan
from millrace.planning.split_table import pack_tables, positions_table, summaries
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.version import __version__
from millrace.wire.auth import OWN
from millrace.wire.control.blob_transfer import digest_of, fetch_blob, put_blob
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.error_codec import error_of
from millrace.worker import job_pipeline as worker_jobs
from millrace.worker.worker_process import WorkerProcess

STRUCTURE = pack(Graph(Range(start=0, stop=100)))[0]
OTHER = pack(Graph(Range(start=0, stop=7)))[0]


class Loop:
    """An event loop in a thread, and dispatchers in it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.running: list[Dispatcher] = []

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def dispatcher(self, **options: Any) -> Dispatcher:
        async def start() -> Dispatcher:
            dispatcher = Dispatcher(**options)
            await dispatcher.start()
            return dispatcher

        self.running.append(self.run(start()))
        return self.running[-1]

    def close(self) -> None:
        for dispatcher in self.running:
            self.run(dispatcher.stop(0.1))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Peer:
    """One session, read in the test's thread."""

    def __init__(self, address: str, kinds: Any) -> None:
        self.channel = ControlChannel(address)
        self.channel.connect()
        self.session = self.channel.open_session(kinds)

    def wait(self, kind: type) -> Any:
        """The next message of this kind; others are passed over."""
        for message in self.session:
            if isinstance(message, msg.JobFailed) and kind is not msg.JobFailed:
                raise error_of(message.failure)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"the session ended without {kind.__name__}")

    def send(self, message: Any) -> None:
        self.session.send(message)

    def close(self) -> None:
        self.session.close()
        self.channel.close()


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    opened: list[Peer] = []
    yield opened
    for peer in opened:
        peer.close()


def worker(peers: list[Peer], address: str, name: str = "w", **fields: Any) -> Peer:
    peer = Peer(address, msg.ToWorker)
    peers.append(peer)
    peer.send(msg.WorkerHello(name, "127.0.0.1:1", **{"version": __version__, "python": OWN.python, **fields}))
    return peer


def consumer(
    peers: list[Peer],
    address: str,
    client: str = "c",
    index: int | None = None,
    functions: bytes = b"functions",
    **fields: Any,
) -> Peer:
    peer = Peer(address, msg.ToConsumer)
    peers.append(peer)
    bundle = put_blob(peer.channel, functions)
    spec = JobSpec(**{"name": "job", "structure": STRUCTURE, "bundle": bundle, "tasks": 2, **fields})
    peer.send(msg.JoinJob(spec, client, index, __version__, "host", 42))
    return peer


def tell_listed(peer: Peer, job: str) -> None:
    tables = {0: positions_table(100)}
    peer.send(msg.SourcesListed(job, summaries(tables), digest=put_blob(peer.channel, pack_tables(tables))))


def list_sources(peer: Peer) -> msg.OpenJob:
    opened = peer.wait(msg.OpenJob)
    tell_listed(peer, peer.wait(msg.ListSources).job)
    assert opened.tables == ""
    again: msg.OpenJob = peer.wait(msg.OpenJob)
    return again


def ask_status(peer: Peer) -> dict[str, Any]:
    status: dict[str, Any] = peer.channel.call(STATUS, None, dict[str, Any])
    return status


def test_an_epoch_from_joining_to_its_end(loop: Loop, peers: list[Peer]) -> None:
    address = loop.dispatcher().address
    one = worker(peers, address)
    assert one.wait(msg.WorkerWelcome).heartbeat_s == 5.0
    reader = consumer(peers, address)
    joined = reader.wait(msg.JobJoined)
    assert (joined.job, joined.consumer, joined.epoch) == ("job", 0, -1)
    reader.send(msg.BeginEpoch(0))
    opened = list_sources(one)
    assert fetch_blob(one.channel, opened.spec.bundle) == b"functions"
    assert fetch_blob(one.channel, opened.tables)
    begun = reader.wait(msg.EpochBegun)
    assert begun == msg.EpochBegun(0, 2, elements=100)
    seen = {}
    for _ in range(2):
        lease = one.wait(msg.LeaseTask)
        one.send(msg.TaskFinished(lease.ref, lease.lease, 3))
        seen[lease.ref.task] = lease.lease
    reads: dict[int, int] = {}
    while len(reads) < 2:
        reads.update({read.task: read.lease for read in reader.wait(msg.ReadTasks).reads})
    assert reads == seen
    assert reader.wait(msg.EpochEnds).tasks == [0, 1]
    reader.send(msg.ConsumerReport(0, [msg.TaskProgress(0, 3, True), msg.TaskProgress(1, 3, True)], 6, 0.5, 0.1))
    forgotten: list[int] = []
    while len(forgotten) < 2:
        forgotten += [ref.task for ref in one.wait(msg.ForgetTasks).refs]
    status = ask_status(reader)
    job = status["jobs"][0]
    assert (job["name"], job["epoch"], job["mode"], job["tasks"]) == (
        "job",
        0,
        "compute",
        {"total": 2, "done": 2, "leased": 0},
    )
    assert (job["batch_time_s"], job["wait_share"], job["workers"]["observed"]) == (0.5, 0.2, 1)
    assert job["why"] == "job job runs on 1 worker"
    assert status["workers"][0]["job"] == "job"
    assert status["cache"] is None
    reader.send(msg.LeaveJob())
    assert one.wait(msg.CloseJob).job == "job"
    with pytest.raises(ServiceError, match="has no blob"):
        fetch_blob(one.channel, opened.tables)


def test_peers_that_do_not_fit_are_told_why(loop: Loop, peers: list[Peer]) -> None:
    address = loop.dispatcher().address
    with pytest.raises(VersionMismatchError, match=r"worker old .* runs Python 2\.7 .*, the dispatcher Python 3"):
        worker(peers, address, "old", python="2.7").wait(msg.WorkerWelcome)
    with pytest.raises(VersionMismatchError, match=r"this process runs Python 2\.7"):
        consumer(peers, address, python="2.7").wait(msg.JobJoined)
    consumer(peers, address, "first", 0).wait(msg.JobJoined)
    with pytest.raises(
        ConsumerConflictError, match="consumer 0 of job 'job' is being read already by process 42 on host"
    ):
        consumer(peers, address, "second", 0).wait(msg.JobJoined)
    with pytest.raises(JobConflictError, match="differs in the pipeline"):
        consumer(peers, address, "third", structure=OTHER).wait(msg.JobJoined)


def test_a_job_whose_functions_nobody_has_does_not_begin(loop: Loop, peers: list[Peer], tmp_path: Path) -> None:
    """A dispatcher that looks for them when it starts again would find its folder damaged."""
    address = loop.dispatcher(work_dir=str(tmp_path)).address
    with pytest.raises(ProtocolError, match="the functions of job 'job' were not handed over before joining"):
        consumer(peers, address, bundle="0" * 32).wait(msg.JobJoined)
    assert ask_status(worker(peers, address))["jobs"] == []


def test_a_session_begins_with_a_greeting(loop: Loop, peers: list[Peer]) -> None:
    peer = Peer(loop.dispatcher().address, msg.ToConsumer)
    peers.append(peer)
    peer.send(msg.BeginEpoch(0))
    with pytest.raises(ProtocolError, match="begins with a hello or JoinJob, not with BeginEpoch"):
        peer.wait(msg.EpochBegun)


def test_a_lost_workers_tasks_go_to_another(loop: Loop, peers: list[Peer]) -> None:
    address = loop.dispatcher(heartbeat_s=2.0).address  # who is silent for two and a half of them is given up, too
    one = worker(peers, address, "one")
    reader = consumer(peers, address)
    reader.send(msg.BeginEpoch(0))
    list_sources(one)
    first = one.wait(msg.LeaseTask)
    reader.wait(msg.ReadTasks)
    reader.send(msg.ConsumerReport(0, [msg.TaskProgress(first.ref.task, 2)]))
    one.close()
    two = worker(peers, address, "two")
    again = two.wait(msg.LeaseTask)
    while again.ref != first.ref:  # until the first is given up, the second prepares the next epoch
        again = two.wait(msg.LeaseTask)
    assert again.received == 2
    assert again.lease != first.lease


def test_who_comes_back_does_not_hear_what_was_decided_before(loop: Loop, peers: list[Peer]) -> None:
    dispatcher = loop.dispatcher()
    one = worker(peers, dispatcher.address)
    reader = consumer(peers, dispatcher.address, tasks=20)
    reader.send(msg.BeginEpoch(0))
    list_sources(one)
    lease = one.wait(msg.LeaseTask)
    heard = {kind: threading.Event() for kind in (msg.TaskFinished, msg.WorkerHello)}
    room = asyncio.Event()

    class FullDisk(Journal):
        async def append(self, *_: Any) -> None:
            await room.wait()

    feed = dispatcher._feed

    def watched(item: Any, blame: Any = None) -> None:
        feed(item, blame)
        kind = type(getattr(item, "message", None))
        if kind in heard:
            heard[kind].set()

    async def fill_the_disk() -> None:
        dispatcher._journal, dispatcher._feed = FullDisk(), watched  # type: ignore[method-assign]

    loop.run(fill_the_disk())
    one.send(msg.TaskFinished(lease.ref, lease.lease, 1))  # so it gets another one
    assert heard[msg.TaskFinished].wait(20)
    again = worker(peers, dispatcher.address)
    assert heard[msg.WorkerHello].wait(20)
    loop.loop.call_soon_threadsafe(room.set)
    assert isinstance(next(iter(again.session)), msg.WorkerWelcome)


def test_split_tables_that_the_dispatcher_has_not_are_asked_for_again(loop: Loop, peers: list[Peer]) -> None:
    address = loop.dispatcher().address
    one = worker(peers, address)
    consumer(peers, address)
    assert one.wait(msg.ListSources).job == "job"
    one.send(msg.SourcesListed("job", {0: positions_table(100).summary()}, digest="of another dispatcher's"))
    assert one.wait(msg.ListSources).job == "job"
    tell_listed(one, "job")
    assert one.wait(msg.OpenJob).tables == digest_of(pack_tables({0: positions_table(100)}))


def test_split_tables_wait_for_room_on_the_disk(
    loop: Loop, peers: list[Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full, freed = BlobFolder.write, threading.Event(), threading.Event()

    def written(folder: BlobFolder, digest: str, data: bytes) -> None:
        if not freed.is_set():
            full.set()
            raise UnwritableError("the disk is full")
        write(folder, digest, data)

    one = worker(peers, loop.dispatcher(work_dir=str(tmp_path)).address)
    monkeypatch.setattr(BlobFolder, "write", written)
    monkeypatch.setattr(shortage, "delays", lambda *_: itertools.repeat(0.01))
    with pytest.raises(ServiceError, match="the disk is full"):
        put_blob(one.channel, b"functions")
    full.clear()
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(put_blob, one.channel, b"tables", waits=True)
        assert full.wait(20)
        assert not put.done()
        freed.set()
        assert fetch_blob(one.channel, put.result(20)) == b"tables"


@pytest.mark.parametrize("text", ["!" * (17 << 20), "\udc80"])
def test_what_cannot_be_sent_fails_its_job_and_no_other(
    loop: Loop, peers: list[Peer], caplog: pytest.LogCaptureFixture, text: str
) -> None:
    def planner(graph: Any, tables: Any, *, tasks: int | None, **options: Any) -> Any:
        plan = make_plan(graph, tables, tasks=tasks, **options)
        plan.warnings = (text,) if tasks == 3 else ()
        return plan

    address = loop.dispatcher(planner=planner).address
    one = worker(peers, address)
    reader = consumer(peers, address, tasks=3)
    other = consumer(peers, address, "o", name="other")
    for _ in range(2):
        tell_listed(one, one.wait(msg.ListSources).job)
    failure = reader.wait(msg.JobFailed).failure
    assert failure.kind == "ProtocolError"
    assert failure.message.startswith("job 'job' cannot go on: the message Notice ")
    assert "Notice" in caplog.text
    other.send(msg.BeginEpoch())
    assert other.wait(msg.EpochBegun).epoch == 0


def test_what_a_worker_cannot_say_fails_its_job(loop: Loop, peers: list[Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    address = loop.dispatcher().address
    monkeypatch.setattr(worker_jobs, "prints", lambda _graph, _tables: ["!" * (17 << 20)])
    one = WorkerProcess(address, name="one")
    thread = threading.Thread(target=one.run)
    thread.start()
    try:
        reader = consumer(peers, address, functions=bundles.pack([], []))
        failure = reader.wait(msg.JobFailed).failure
        assert "job 'job' cannot go on: worker one: the message SourcesListed takes 17,8" in failure.message
    finally:
        one.stop("the test is over")
        thread.join()


def test_a_decision_that_fails_ends_the_senders_session_and_no_other(loop: Loop, peers: list[Peer]) -> None:
    def planner(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    address = loop.dispatcher(planner=planner).address
    one = worker(peers, address)
    reader = consumer(peers, address)
    reader.wait(msg.JobJoined)
    one.wait(msg.OpenJob)
    tell_listed(one, "job")
    with pytest.raises(ServiceError, match="the dispatcher failed: RuntimeError: a bug; see its log"):
        one.wait(msg.LeaseTask)
    assert ask_status(reader)["jobs"][0]["name"] == "job"


class Processes:
    """A cluster whose workers end when the test says so."""

    def __init__(self) -> None:
        self.started = 0
        self.more = threading.Semaphore(0)
        self.closed = False
        self.names: list[str] = []

    def watch(self, ended: Any) -> None:
        self.ended = ended

    async def start(self, workers: int) -> None:
        self.started += workers
        for _ in range(workers):
            self.more.release()

    def running(self) -> list[str]:
        return self.names

    async def stop(self, workers: Any) -> None:
        assert list(workers) == self.names
        for name in workers:
            self.ended(name, "was killed by SIGKILL", False)

    def trouble(self) -> str:
        return ""

    async def close(self) -> None:
        self.closed = True


def test_workers_that_end_are_replaced_and_rapid_deaths_are_said(loop: Loop, peers: list[Peer]) -> None:
    cluster = Processes()
    dispatcher = loop.dispatcher(cluster=cluster, workers=1)
    reader = consumer(peers, dispatcher.address)
    reader.wait(msg.JobJoined)
    assert cluster.more.acquire(timeout=20)
    for _ in range(2):
        cluster.ended("", "exited with status 1", False)
        assert cluster.more.acquire(timeout=20)
    cluster.ended("", "exited with status 1", False)
    notice = reader.wait(msg.Notice)
    assert "3 workers ended within 10 s" in notice.text
    assert "exited with status 1" in notice.text
    assert cluster.more.acquire(timeout=20)
    fleet = ask_status(reader)["fleet"]
    assert (fleet["plan"], fleet["requested"], fleet["observed"]) == (1, 1, 0)
    loop.run(dispatcher.stop(0.1))
    assert cluster.closed


def test_a_worker_that_runs_and_does_not_register_is_ended_and_another_one_is_asked_for(
    loop: Loop, peers: list[Peer]
) -> None:
    cluster = Processes()
    dispatcher = loop.dispatcher(cluster=cluster, workers=1, heartbeat_s=0.1)
    dispatcher._state.settings = msgspec.structs.replace(dispatcher._state.settings, patience_s=0.1)
    reader = consumer(peers, dispatcher.address)
    reader.wait(msg.JobJoined)
    assert cluster.more.acquire(timeout=20)
    cluster.names = ["hung"]
    assert "did not register: it is ended, and another one is asked for" in reader.wait(msg.Notice).text
    assert cluster.more.acquire(timeout=20)
    cluster.names = []


def leave(peers: list[Peer], address: str, name: str) -> None:
    """Has a worker come, and leave in good order."""
    peer = worker(peers, address, name)
    peer.wait(msg.WorkerWelcome)
    peer.send(msg.WorkerLeaving(30.0))
    peer.wait(msg.StopWorker)


def test_workers_that_leave_are_replaced_and_nobody_is_warned(
    loop: Loop, peers: list[Peer], caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Processes()
    dispatcher = loop.dispatcher(cluster=cluster, workers=1)
    for name in ("one", "two", "three", "four"):
        assert cluster.more.acquire(timeout=20)
        leave(peers, dispatcher.address, name)
        cluster.ended(name, "ended with exit status 0", True)
    assert cluster.more.acquire(timeout=20)
    assert caplog.messages == []


def test_a_dispatcher_that_comes_back_knows_who_was_leaving(
    loop: Loop, peers: list[Peer], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    first = loop.dispatcher(work_dir=str(tmp_path))
    leave(peers, first.address, "one")
    loop.run(first.stop(0.1))
    cluster = Processes()
    loop.dispatcher(work_dir=str(tmp_path), cluster=cluster, workers=1)
    for known in (True, False):
        assert cluster.more.acquire(timeout=20)
        cluster.ended("one" if known else "two", "ended with exit status 0", True)
    assert cluster.more.acquire(timeout=20)
    assert caplog.messages == ["worker two ended with exit status 0"]


def test_status_says_who_waits_and_why(loop: Loop, peers: list[Peer]) -> None:
    address = loop.dispatcher().address
    alone = consumer(peers, address, "a", name="first")
    alone.wait(msg.JobJoined)
    assert ask_status(alone)["jobs"][0]["why"] == "job first waits for a worker: none is registered"
    one = worker(peers, address)
    one.wait(msg.ListSources)
    consumer(peers, address, "b", name="second").wait(msg.JobJoined)
    status = ask_status(alone)
    first, second = (job["why"] for job in status["jobs"])
    assert first == "job first waits for its sources to be listed by worker w"
    waits = r"job second has waited \d+ s for a worker: 1 worker, serving first; its turn comes at the end of a task"
    assert re.fullmatch(waits, second)
    assert status["workers"][0]["why"] == "lists the sources of first"
    assert status["jobs"][0]["consumers"][0]["why"] == "has joined and not begun an epoch"


def test_functions_outlive_the_job_they_came_with_for_who_is_about_to_join(loop: Loop, peers: list[Peer]) -> None:
    address = loop.dispatcher().address
    one = worker(peers, address)
    reader = consumer(peers, address)
    one.wait(msg.OpenJob)
    late = Peer(address, msg.ToConsumer)
    peers.append(late)
    bundle = put_blob(late.channel, b"functions")  # they are there already
    reader.send(msg.LeaveJob())
    one.wait(msg.CloseJob)
    late.send(msg.JoinJob(JobSpec("job", STRUCTURE, bundle), "late", None, __version__))
    late.wait(msg.JobJoined)
    assert fetch_blob(one.channel, one.wait(msg.OpenJob).spec.bundle) == b"functions"
    late.send(msg.LeaveJob())
    one.wait(msg.CloseJob)
    with pytest.raises(ServiceError, match="has no blob"):
        fetch_blob(one.channel, bundle)


def test_a_job_that_failed_can_be_started_again_with_the_same_functions(loop: Loop, peers: list[Peer]) -> None:
    address = loop.dispatcher().address
    one = worker(peers, address)
    reader = consumer(peers, address, "first")
    reader.wait(msg.JobJoined)
    one.send(msg.SourcesFailed(one.wait(msg.ListSources).job, msg.Failure("SourceNotFoundError", "no such file")))
    reader.wait(msg.JobFailed)
    reader.close()  # without a word, as when it is killed
    peers.remove(reader)
    while ask_status(one)["jobs"][0]["consumers"][0]["connected"]:
        pass
    consumer(peers, address, "second").wait(msg.JobJoined)
    assert fetch_blob(one.channel, one.wait(msg.OpenJob).spec.bundle) == b"functions"


@pytest.mark.parametrize("in_files", [False, True])
def test_blobs_are_bounded_and_those_of_living_jobs_stay(in_files: bool, tmp_path: Path) -> None:
    async def run() -> None:
        store = BlobStore(100, BlobFolder(str(tmp_path)) if in_files else None)
        first, second, third = (bytes([i]) * 40 for i in range(3))
        await store.put(digest_of(first), first)
        store.hold("job", digest_of(first))
        await store.put(digest_of(second), second)
        await store.put(digest_of(third), third)
        assert not store.has(digest_of(second))
        assert await store.get(digest_of(first)) == first
        with pytest.raises(ServiceError, match=r"keeps 40 bytes for its jobs and cannot take 61 more \(limit 100\)"):
            await store.put(digest_of(b"x" * 61), b"x" * 61)
        with pytest.raises(ProtocolError, match="do not have the digest"):
            await store.put("0", b"")
        store.drop("job")
        assert len(store) == 0
        assert not os.listdir(tmp_path)
        await store.put(digest_of(b"x" * 100), b"x" * 100)

    asyncio.run(run())


def test_memory_that_was_lent_by_one_who_has_not_joined_for_long_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(100)
    refused, other = (fill([np.full(10, number, np.uint8)], 10) for number in range(2))
    assert store.borrow(refused.loan)
    assert store.promise(refused.loan.digest)
    assert store.borrow(other.loan)
    assert store.has(refused.loan.digest), "it may still join"
    assert store.promise(other.loan.digest)
    store.hold("job", other.loan.digest)
    store.keep_promise(other.loan.digest)
    monkeypatch.setattr(blob_store, "PROMISED_S", -1.0)
    assert store.borrow(other.loan)
    assert not store.has(refused.loan.digest)
    assert store.has(other.loan.digest)
    store.drop("job")
    assert len(store) == 0


@pytest.mark.parametrize("loop_name", ["_commit", "_tick"])
def test_a_dispatcher_that_cannot_go_on_ends_with_a_message(loop_name: str):
    """Else its port would be open in front of nobody."""
    program = f"""
import sys
from millrace.cli import main
from millrace.dispatcher.server import Dispatcher

async def fails(self):
    raise ZeroDivisionError("a bug")

Dispatcher.{loop_name} = fails
sys.exit(main(["dispatcher", "--port", "0"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError: a bug" in done.stderr
    assert "millrace dispatcher: the dispatcher has failed and ended" in done.stderr


def short_of_descriptors(monkeypatch: pytest.MonkeyPatch, module: Any, failures: int) -> list[int]:
    """The first so many files that a module opens can't be; those that fail are counted down."""
    left = [failures]

    def fails(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open(*args, **options)

    monkeypatch.setattr(module, "open", fails, raising=False)
    monkeypatch.setattr(shortage, "delays", lambda first, longest: itertools.repeat(0.01))
    return left


@pytest.mark.filterwarnings("ignore:.*What needs it waits:millrace.MillraceWarning")
def test_functions_that_cannot_be_read_for_want_of_a_descriptor_are_waited_for(
    loop: Loop, peers: list[Peer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    address = loop.dispatcher(work_dir=str(tmp_path)).address
    one = worker(peers, address)
    reader = consumer(peers, address)
    opened = one.wait(msg.OpenJob)
    left = short_of_descriptors(monkeypatch, blob_store, 3)
    assert fetch_blob(one.channel, opened.spec.bundle) == b"functions"
    assert left == [0]
    assert "What needs it waits" in reader.wait(msg.Notice).text
    assert caplog.text.count("Too many open files; trying again until there is room") == 1
    assert "there is room again" in caplog.text


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_dispatcher_started_without_room_waits_for_it(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int
):
    failures = [OSError(error, os.strerror(error)) for _ in range(3)]
    makedirs = os.makedirs

    def no_room(*args: Any, **options: Any) -> None:
        if failures and args[0] == str(tmp_path / "work"):
            raise failures.pop()
        makedirs(*args, **options)

    monkeypatch.setattr(shortage, "delays", lambda first, longest: itertools.repeat(0.01))
    monkeypatch.setattr(os, "makedirs", no_room)
    dispatcher = loop.dispatcher(work_dir=str(tmp_path / "work"))
    assert dispatcher.status()["journal"]["work_dir"] == str(tmp_path / "work")
    assert not failures
    assert caplog.text.count(f"cannot be used: {os.strerror(error)}; trying again until there is room") == 1


def test_a_message_that_cannot_be_handled_ends_its_sender_alone(loop: Loop, peers: list[Peer], tmp_path: Path):
    address = loop.dispatcher(work_dir=str(tmp_path)).address
    one = worker(peers, address)
    reader = consumer(peers, address)
    reader.send(msg.BeginEpoch(0))
    list_sources(one)
    assert reader.wait(msg.EpochBegun).tasks == 2
    for client, epoch in (("wrong", 2**64 - 1), ("negative", -(2**60))):
        wrong = consumer(peers, address, client, name=client)
        wrong.wait(msg.JobJoined)
        wrong.send(msg.BeginEpoch(epoch))
        with pytest.raises(ProtocolError, match=rf"BeginEpoch\.epoch is {epoch}; numbers in messages are within"):
            wrong.wait(msg.EpochBegun)
    reader.send(msg.BeginEpoch(1))
    assert reader.wait(msg.EpochBegun).epoch == 1
    assert [job["epoch"] for job in ask_status(reader)["jobs"]] == [1, -1, -1]


def test_a_folder_that_is_older_than_what_was_done_since_is_noticed(loop: Loop, peers: list[Peer], tmp_path: Path):
    """Not by what is in it, which fits, but by the leases of those who were there."""

    def live(folder: Path) -> tuple[msg.WorkerWelcome, int]:
        dispatcher = loop.dispatcher(work_dir=str(folder))
        number = len(peers)
        one = worker(peers, dispatcher.address, f"w{number}")
        welcome = one.wait(msg.WorkerWelcome)
        reader = consumer(peers, dispatcher.address, f"c{number}", name=f"job{number}")
        reader.send(msg.BeginEpoch(0))
        list_sources(one)
        lease = one.wait(msg.LeaseTask).lease
        reader.send(msg.LeaveJob())
        one.wait(msg.CloseJob)
        loop.running.remove(dispatcher)
        loop.run(dispatcher.stop(0.1))
        return welcome, lease

    welcome, _ = live(tmp_path / "newest")
    shutil.copytree(tmp_path / "newest", tmp_path / "copy")
    again, lease = live(tmp_path / "newest")
    assert welcome.told.service == again.told.service != ""
    older = loop.dispatcher(work_dir=str(tmp_path / "copy"))
    knows = msgspec.structs.replace(again.told, lease=lease)
    worker(peers, older.address, "late", told=knows)
    loop.run(older.broken())
    assert f"worker late heard of lease {lease}" in older.failure
    loop.running.remove(older)
    loop.run(older.stop(0.1))
    chosen = loop.dispatcher(work_dir=str(tmp_path / "copy"), recover=True)
    late = worker(peers, chosen.address, "late", told=knows)
    assert late.wait(msg.WorkerWelcome).told.service not in ("", again.told.service)


def test_a_number_that_cannot_be_sent_fails_the_job_that_it_was_for(loop: Loop, peers: list[Peer]):
    """The last line of defence, if a number has grown beyond what a message can hold."""
    dispatcher = loop.dispatcher()
    reader = consumer(peers, dispatcher.address)
    reader.wait(msg.JobJoined)
    loop.loop.call_soon_threadsafe(
        lambda: dispatcher._perform(act.SendToClient("c", msg.Resumed(1 << 64)), dispatcher._clients["c"])
    )
    with pytest.raises(ProtocolError, match="job 'job' cannot go on: the message Resumed cannot be encoded"):
        reader.wait(msg.Resumed)
    assert ask_status(reader)["jobs"][0]["name"] == "job"


class StuckJournal:
    """A disk that neither takes what is written nor says why."""

    due = False

    async def append(self, *_: Any) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        pass


class FullJournal(StuckJournal):
    async def append(self, *_: Any) -> None:
        raise UnwritableError("the journal cannot be written: the disk is full")


@pytest.mark.parametrize(
    ("journal", "status", "said"),
    [
        (None, 0, "the dispatcher answers\n"),
        (
            FullJournal,
            0,
            "the dispatcher answers, and waits: the journal cannot be written: the disk is full\n",
        ),
        (StuckJournal, 1, "millrace status: "),
    ],
)
def test_a_check_wants_an_answer_of_what_decides_and_writes(
    loop: Loop, capsys: pytest.CaptureFixture[str], journal: Any, status: int, said: str
):
    dispatcher = loop.dispatcher()

    async def break_disk() -> None:
        if journal is not None:
            dispatcher._journal = journal()
            dispatcher._feed(inp.WorkerSaid("w", msg.WorkerHello("w", "127.0.0.1:1")))

    loop.run(break_disk())
    arguments = ["status", "--service", f"grpc://{dispatcher.address}", "--check", "--timeout"]
    assert main([*arguments, "1" if status else "20"]) == status
    out, err = capsys.readouterr()
    assert (err if status else out).startswith(said)
    assert dispatcher._checks == [] or status


def test_a_job_that_was_not_listed_yet_ends_after_a_restart_as_any_does(loop: Loop, peers: list[Peer], tmp_path: Path):
    """Its tables have no digest, and what is kept for it is removed."""
    first = loop.dispatcher(work_dir=str(tmp_path))
    consumer(peers, first.address).wait(msg.JobJoined)
    loop.running.remove(first)
    loop.run(first.stop(0.1))
    second = loop.dispatcher(work_dir=str(tmp_path))
    peer = Peer(second.address, msg.ToConsumer)
    peers.append(peer)
    spec = JobSpec("job", STRUCTURE, put_blob(peer.channel, b"functions"), tasks=2)
    peer.send(msg.JoinJob(spec, "c", 0, __version__, "host", 42, resume=True, generation=1))
    peer.wait(msg.JobJoined)
    peer.send(msg.LeaveJob())
    assert consumer(peers, second.address, "d", name="another").wait(msg.JobJoined).job == "another"
    until = time.monotonic() + 20  # the two have sessions of their own
    while [job["name"] for job in ask_status(peer)["jobs"]] != ["another"]:
        assert time.monotonic() < until
