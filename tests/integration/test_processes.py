"""Services of real processes: they start quickly, say what is wrong, and leave nothing behind however they end."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from chaos.child_processes import ends_within, runs
from tests.integration.own_host import OWN_HOST

import millrace as mr
from millrace.cli import main
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, kill, reap, spawn
from millrace.clusters.subprocesses import LocalCluster
from millrace.worker.worker_process import WorkerProcess

WAIT_S = 30


def wait_gone(pids):
    for pid in pids:
        assert ends_within(pid, WAIT_S), f"process {pid} is still there"


def workers_of(service, count):
    """Waits until so many have registered; returns their pids."""
    with mr.Dataset.range(1).distribute(service.address) as dataset:
        list(dataset)
    for _ in range(10_000):
        found = [worker["pid"] for worker in service.status()["workers"]]
        if len(found) >= count:
            return found
    raise AssertionError("the workers did not come")


def run(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "millrace", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        **options,
    )


class Dispatcher:
    """One started by hand, with a pipe."""

    def __init__(self, *arguments, stderr=None):
        command = ["dispatcher", "--port", "0", *arguments]
        self.process = spawn(command, worker=False, stdout=subprocess.PIPE, stderr=stderr)
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["address"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        hang_up(self.process)
        reap(self.process)
        assert self.process.stdout is not None
        self.process.stdout.close()


def start_worker(address, *arguments):
    return spawn(["worker", "--dispatcher", address, "--threads", "1", *arguments], worker=True)


@pytest.fixture
def children():
    processes: list[Any] = []
    yield processes
    for process in processes:
        hang_up(process)
        reap(process)


def test_a_local_service_serves_and_leaves_nothing():
    with mr.LocalService(max_workers=2) as service:
        assert re.fullmatch(r"grpc://127\.0\.0\.1:\d+", service.address)
        with mr.Dataset.range(1000).map(lambda x: x + 1).batch(10).distribute(service.address) as dataset:
            assert sorted(np.concatenate(list(dataset)).tolist()) == list(range(1, 1001))
        pids = workers_of(service, 2)
    service.close()
    assert service.closed
    assert not [pid for pid in pids if runs(pid)]


def test_killing_a_worker_loses_and_repeats_nothing():
    def slow(x):
        threading.Event().wait(0.002)
        return x

    with mr.LocalService(max_workers=2) as service:
        victim = workers_of(service, 2)[0]
        with mr.Dataset.range(1000).map(slow).distribute(service.address) as dataset:
            got = []
            for element in dataset:
                got.append(element)
                if len(got) == 100:
                    os.kill(victim, signal.SIGKILL)
        assert Counter(got) == Counter(range(1000))


def test_killing_the_dispatcher_ends_its_workers():
    service = mr.LocalService(max_workers=2)
    try:
        pids = workers_of(service, 2)
        service._process.kill()
        wait_gone(pids)
    finally:
        service.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_with_the_process_that_holds_it(how, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import millrace as mr, sys, threading\n"
        "service = mr.LocalService(max_workers=1)\n"
        "it = iter(mr.Dataset.range(10**9).distribute(service.address))\n"
        "next(it)\n"
        "print(service._process.pid, *[w['pid'] for w in service.status()['workers']], flush=True)\n"
        "threading.Event().wait()\n"
    )
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    process.send_signal(how)
    assert process.wait(WAIT_S) != 0
    process.stdout.close()
    wait_gone(pids)


def test_workers_started_by_hand_come_and_go_in_good_order(children):
    with Dispatcher() as dispatcher:
        children.append(start_worker(dispatcher.address))

        def slow(x):
            threading.Event().wait(0.001)
            return x

        with mr.Dataset.range(2000).map(slow).distribute(dispatcher.address) as dataset:
            got = []
            for element in dataset:
                got.append(element)
                if len(got) == 200:
                    children.append(start_worker(dispatcher.address))
                if len(got) == 1000:
                    children[0].send_signal(signal.SIGTERM)
            assert Counter(got) == Counter(range(2000))
        assert children[0].wait(WAIT_S) == 0


def test_a_worker_waits_for_its_dispatcher_and_ends_with_its_pipe(children):
    """It finds nobody at first; the dispatcher that comes later at that address has it as a worker."""
    with socket.create_server((OWN_HOST, 0)) as nobody:
        nobody.settimeout(WAIT_S)
        host, port = nobody.getsockname()
        children.append(start_worker(f"{host}:{port}", "--name", "patient"))
        nobody.accept()[0].close()
    with Dispatcher("--host", OWN_HOST, "--port", str(port)) as dispatcher:
        asked = (fetch_status(dispatcher.address)["workers"] for _ in range(10_000))
        [worker] = next(filter(None, asked))
        assert worker["pid"] == children[0].pid
        assert children[0].poll() is None
        hang_up(children[0])
        assert children[0].wait(WAIT_S) == 0


def test_a_worker_that_nobody_answers_says_so_once(monkeypatch):
    monkeypatch.setattr("millrace.worker.worker_process.CONNECT_S", 0.1)  # instead of 10 s
    worker = WorkerProcess("127.0.0.1:1")
    said: list[tuple[str, str]] = []

    class Heard(logging.Handler):
        def emit(self, record):
            said.append((record.levelname, record.getMessage()))
            if len(said) == 2:
                worker.stop("enough")
                worker.stop("enough")

    logger = logging.getLogger("millrace.tests.heard")
    logger.setLevel(logging.INFO)
    logger.addHandler(Heard())
    monkeypatch.setattr("millrace.worker.worker_process._logger", logger)
    worker.run()
    assert [level for level, _ in said[:2]] == ["WARNING", "INFO"]
    assert said[0][1].startswith("no dispatcher answered at 127.0.0.1:1 within 0.1 s (connection refused): is ")


def test_a_worker_of_a_name_that_is_taken_is_pointed_out(children):
    with Dispatcher(stderr=subprocess.PIPE) as dispatcher:
        for _ in range(2):
            children.append(start_worker(dispatcher.address, "--name", "one"))
        line = next(line for line in dispatcher.process.stderr if b"is called" in line).decode()
        assert re.search(
            r"process \d+ on .* is called worker one as process \d+ on .* is, and takes its place: give", line
        )
        assert {str(child.pid) for child in children} <= set(re.findall(r"process (\d+)", line))
        dispatcher.process.stderr.close()


def test_a_port_in_use_is_one_line():
    with Dispatcher() as dispatcher:
        port = dispatcher.address.rsplit(":", 1)[1]
        done = run("dispatcher", "--port", port)
        assert done.returncode == 1
        assert done.stdout == ""
        assert re.fullmatch(
            rf"millrace dispatcher: cannot listen on 127\.0\.0\.1:{port}: another process does\..*\n", done.stderr
        )
        with pytest.raises(mr.AddressInUseError, match=port):
            mr.LocalService(port=int(port))


def test_a_wrong_token_is_one_line_and_ends_the_worker():
    with Dispatcher("--token", "right") as dispatcher:
        done = run("worker", "--dispatcher", dispatcher.address, "--token", "wrong")
        assert done.returncode == 1
        assert done.stderr.startswith("millrace worker: the service refused the token")
        done = run("status", "--service", dispatcher.address)
        assert done.returncode == 1
        assert "MILLRACE_TOKEN" in done.stderr
        done = run("status", "--service", dispatcher.address, "--json", env={**os.environ, "MILLRACE_TOKEN": "right"})
        assert json.loads(done.stdout)["jobs"] == []


def test_status_of_nothing_says_so(capsys):
    assert main(["status", "--service", "127.0.0.1:1", "--timeout", "0.3"]) == 1
    assert "no dispatcher answered at 127.0.0.1:1 within 0.3 s" in capsys.readouterr().err


def test_listening_everywhere_demands_a_token_and_tls():
    done = run("dispatcher", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 1
    assert "without a token" in done.stderr
    done = run("dispatcher", "--host", "0.0.0.0", "--port", "0", "--token", "secret")
    assert done.returncode == 1
    assert "without TLS" in done.stderr


def test_what_user_functions_print_does_no_harm():
    def loud(x):
        print("x" * 1000)
        print("y" * 1000, file=sys.stderr)
        return x

    dataset = mr.Dataset.range(2000).map(loud)
    with mr.LocalService(max_workers=1) as service, dataset.distribute(service.address) as distributed:
        assert len(list(distributed)) == 2000


def test_an_error_of_one_job_leaves_others_alone():
    with mr.LocalService(max_workers=2) as service:
        good = mr.Dataset.range(5000).batch(10).distribute(service.address)
        with good:
            it = iter(good)
            next(it)
            bad = mr.Dataset.range(10).map(lambda x: 1 // (x - 5))
            with bad.distribute(service.address) as failing, pytest.raises(mr.ElementError, match="ZeroDivisionError"):
                list(failing)
            assert sum(len(batch) for batch in it) == 4990


def test_a_session_in_a_forked_child_is_refused():
    with mr.LocalService(max_workers=1) as service, mr.Dataset.range(10**7).distribute(service.address) as dataset:
        it = iter(dataset)
        next(it)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for _ in it:
                    pass
            except mr.ServiceError as error:
                os.write(write, str(error).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(pid, 0)
        said = os.read(read, 4096).decode()
        os.close(read)
        assert "forked from it: open another one here" in said
        next(it)


def test_killing_a_process_that_another_thread_has_just_waited_for_is_harmless():
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED)
    kill(process)
    process.wait()


def test_a_worker_that_is_never_told_its_dispatcher_ends():
    process = spawn(["worker", "--dispatcher", "-"], worker=True, stderr=subprocess.PIPE)
    hang_up(process)
    assert reap(process, WAIT_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


def test_the_end_of_a_prepared_worker_is_noticed_when_it_is_started():
    cluster = LocalCluster(lambda: "grpc://127.0.0.1:1")
    cluster.prepare(1)
    (process,) = cluster._processes.values()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    async def noticed():
        how: list[tuple[str, bool]] = []
        ended = threading.Event()

        def remember(worker: str, said: str, orderly: bool) -> None:
            how.append((said, orderly))
            ended.set()

        cluster.watch(remember)
        await cluster.start(1)
        await asyncio.to_thread(ended.wait, WAIT_S)
        return how

    assert asyncio.run(noticed()) == [("was killed by SIGKILL", False)]


def test_a_worker_that_nobody_could_wait_for_is_not_started(monkeypatch):
    """A container may start so many threads and no more."""
    cluster = LocalCluster(lambda: "grpc://127.0.0.1:1")
    cluster.prepare(1)
    (process,) = cluster._processes.values()
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    with pytest.raises(mr.ServiceError, match="no further worker process can be looked after: can't start new thread"):
        asyncio.run(cluster.start(1))
    monkeypatch.undo()
    assert process.returncode == -signal.SIGKILL
    assert cluster.running() == []


def test_a_machine_that_cannot_start_all_of_them_starts_none_and_goes_on_from_there(monkeypatch):
    started: list[subprocess.Popen[bytes]] = []
    told: list[str] = []

    def address():
        told.append("where the dispatcher is")
        return "grpc://127.0.0.1:1"

    def spawned(*arguments, **options):
        if len(started) == 2:
            monkeypatch.undo()
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(spawn(*arguments, **options))
        return started[-1]

    monkeypatch.setattr("millrace.clusters.subprocesses.spawn", spawned)
    cluster = LocalCluster(address)

    async def story():
        try:
            with pytest.raises(mr.ServiceError, match=r"no further worker process .*: Resource"):
                await cluster.start(3)
            assert not told
            await cluster.start(3)
            assert len(told) == len(cluster._processes) == 3
        finally:
            await cluster.close()

    asyncio.run(story())
    assert len(started) == 2
    assert all(process.returncode is not None for process in started), "those that had been started are ended"
