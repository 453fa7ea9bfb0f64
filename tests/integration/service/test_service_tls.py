"""A service whose processes speak TLS, control and data, and who hears what without."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.integration.own_host import OWN_HOST
from tests.integration.tls_hosts import TlsHosts, files

import millrace as mr
from millrace.cli import main
from millrace.client import job_session
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn
from millrace.errors import PipelineError, ServiceError, ServiceUnreachableError, TlsError
from millrace.wire.data.relays import RELAYS
from millrace.worker.worker_process import WorkerProcess

ELSEWHERE = "127.1"
"""This host, under a name that nobody takes for loopback's."""
WAIT_S = 30.0
WORKER = ("worker", "--threads", "1", "--advertise", ELSEWHERE, "--no-shared-memory")


class TlsService:
    """A dispatcher, and workers that consumers reach as if they were on another host."""

    def __init__(self, hosts: TlsHosts) -> None:
        self.hosts = hosts
        self.folder = str(hosts.issue(OWN_HOST))
        arguments = ["dispatcher", "--host", OWN_HOST, "--port", "0", "--mtls"]
        self.processes = [spawn(arguments, worker=False, tls=self.folder, stdout=subprocess.PIPE)]
        assert self.processes[0].stdout is not None
        with self.processes[0].stdout as said:
            self.address = json.loads(said.readline())["address"]

    def add(self, name, folder) -> subprocess.Popen[bytes]:
        arguments = [*WORKER, "--dispatcher", self.address, "--name", name]
        process = spawn(arguments, worker=True, tls=str(folder))
        self.processes.append(process)
        self.until(lambda status: name in [worker["id"] for worker in status["workers"]])
        return process

    def status(self):
        return fetch_status(self.address, tls=str(self.hosts.other))

    def until(self, condition):
        for _ in range(int(WAIT_S / 0.05)):
            if condition(self.status()):
                return
            threading.Event().wait(0.05)
        pytest.fail("it did not come to that")

    def close(self) -> None:
        for process in reversed(self.processes):
            hang_up(process)
        for process in self.processes:
            reap(process)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> TlsHosts:
    return TlsHosts(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(hosts) -> Iterator[TlsService]:
    service = TlsService(hosts)
    try:
        for name in ("w0", "w1"):
            service.add(name, hosts.good)
        yield service
    finally:
        service.close()


def test_a_job_is_read_through_tls_and_what_tasks_leave_over_too(secured, hosts, capsys, monkeypatch):
    ds = mr.Dataset.range(20_000).filter(lambda number: number % 3 == 0).map(lambda number: np.full(200, number))
    ds = ds.batch(64)
    with ds.distribute(secured.address, tls=str(hosts.other), tasks=50) as reading:
        found = [int(row[0]) for batch in reading for row in batch]
    assert sorted(found) == list(range(0, 20_000, 3))

    with pytest.raises(ServiceUnreachableError, match="it speaks TLS, and this end does not"):
        fetch_status(secured.address, timeout=1.0)
    with pytest.raises(TlsError, match=r"demands a certificate \(--mtls\)"):
        fetch_status(secured.address, tls=str(hosts.anonymous))
    for worker in secured.status()["workers"]:
        host, _, port = worker["address"].rpartition(":")
        assert host == ELSEWHERE
        with socket.create_connection((host, int(port))) as plain:
            plain.sendall(b"MRCE")
            plain.settimeout(WAIT_S)
            assert b"speaks TLS" in plain.recv(4096)

    monkeypatch.setenv("MILLRACE_TLS", str(hosts.other))
    assert main(["status", "--service", secured.address, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workers"]) == 2
    with mr.Dataset.range(10).distribute(secured.address) as reading:
        assert sorted(reading) == list(range(10))
    with mr.Dataset.range(10).distribute() as embedded:  # has none, whatever the environment says
        assert sorted(embedded) == list(range(10))
    with pytest.raises(PipelineError, match="tls= goes with the address of a service"):
        mr.Dataset.range(10).distribute(tls=str(hosts.other))


def relays_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Processes that speak TLS for a worker."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [int(number) for task in tasks for number in task.read_text().split()]
    return [child for child in children if b"millrace-tls-relay" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_relays_that_are_killed_lose_no_element_and_repeat_none(secured, hosts, caplog, monkeypatch):
    """Those of the consumer first, then those of both workers, and each time while it reads."""
    monkeypatch.setattr(job_session, "BUFFER_BYTES", 4 << 20)  # so that not all has come when they are
    ds = mr.Dataset.range(3000).map(lambda number: np.full(8000, number)).batch(10)
    workers = secured.processes[1:]
    killed = []
    found = []
    with ds.distribute(secured.address, tls=str(hosts.other), tasks=60) as reading:
        for number, batch in enumerate(reading):
            found += [int(row[0]) for row in batch]
            if number == 20:
                own = RELAYS.pids
                assert own
                for pid in own:
                    os.kill(pid, signal.SIGKILL)
                killed += own
            elif number == 120:
                theirs = [pid for worker in workers for pid in relays_of(worker)]
                assert theirs
                for pid in theirs:
                    os.kill(pid, signal.SIGKILL)
                killed += theirs
        assert sorted(found) == list(range(3000))
        assert set(killed).isdisjoint(RELAYS.pids)
    assert RELAYS.pids == []
    assert "which spoke TLS for this one, ended with status -9" in caplog.text


def test_a_worker_that_is_not_believed_is_told_of(secured, hosts, caplog):
    strange = secured.add("strange", hosts.copy(hosts.good, "worker"))
    folder = hosts.folder / "worker"
    for name in ("tls.key", "tls.crt"):  # the dispatcher has let it in before
        (folder / name).write_bytes((hosts.stranger / name).read_bytes())
    caplog.set_level(logging.WARNING)
    reading = mr.Dataset.range(1000).distribute(secured.address, tls=str(hosts.other), tasks=100)

    def read() -> None:
        with contextlib.suppress(ServiceError):
            list(reading)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        secured.until(lambda _: "nothing is read from worker 127.1:" in caplog.text)
    finally:
        reading.close()
        thread.join()
        hang_up(strange)
        reap(strange)
    assert "is not of the authority in" in caplog.text


def test_a_local_service_has_what_it_is_given(hosts, capsys):
    with mr.LocalService(1, 1, host=OWN_HOST, tls=str(hosts.issue(OWN_HOST))) as service:
        with mr.Dataset.range(10).distribute(service.address) as reading:  # this process knows the folder
            assert sorted(reading) == list(range(10))
        assert len(service.status()["workers"]) == 1
        arguments = ["status", "--json", "--service", service.address]
        assert main([*arguments, "--tls", str(hosts.anonymous)]) == 0
        assert main([*arguments, "--tls", str(hosts.stranger)]) == 1
        assert "is not of the authority in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dispatcher", "--port", "0", "--mtls"], "--mtls is about certificates: say where they are, too, with --tls"),
        (["dispatcher", "--port", "0", "--tls", "{anonymous}"], "who listens needs a certificate"),
        (["status", "--tls", "{folder}"], "is no folder with certificates: it has no ca.crt"),
    ],
)
def test_what_cannot_be_is_refused(hosts, capsys, monkeypatch, arguments, said):
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    assert main([each.format(anonymous=hosts.anonymous, folder=hosts.folder) for each in arguments]) == 1
    assert said in capsys.readouterr().err


def test_a_worker_says_one_name_to_all_its_consumers(hosts):
    with pytest.raises(ServiceError, match="--advertise localhost says that consumers are on this host alone"):
        WorkerProcess("127.0.0.1:1", token="t", host="0.0.0.0", advertise="localhost", tls=files(hosts.good))


def test_a_service_that_listens_on_all_networks_is_reached_by_its_own_workers(hosts):
    folder = str(hosts.good)
    with (
        mr.LocalService(max_workers=1, host="0.0.0.0", token="t" * 32, tls=folder) as service,
        mr.Dataset.range(100).distribute(service.address, token="t" * 32, tls=folder) as reading,
    ):
        assert sorted(reading) == list(range(100))
