"""Files on a server far away, in process and on a service: how many reads are under way at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.slow_server import FarServer, far_server

import millrace as mr

FILES = 200


@pytest.fixture(scope="module")
def server() -> Iterator[FarServer]:
    with far_server(latency_s=0.2) as server:
        yield server


def dataset(server: FarServer) -> mr.Dataset:
    server.forget()
    return mr.Dataset.from_files([f"{server.url}{number:03d}" for number in range(FILES)]).map(path)


def path(element: dict[str, Any]) -> str:
    return str(element["path"])


def test_as_many_as_pay_in_process(server: FarServer) -> None:
    assert len(set(dataset(server))) == FILES
    assert FILES <= server.reads <= 1.05 * FILES, "each once, but for a few that took long on a busy machine"
    assert server.peak >= 32, "more than there were at first"


def test_as_many_as_pay_on_a_service_which_says_so(server: FarServer) -> None:
    with (
        mr.LocalService(max_workers=1) as service,
        dataset(server).distribute(service.address, job_name="far") as served,
    ):
        paths = list(served)
        until = time.monotonic() + 30
        while not (operators := service.status()["jobs"][0]["operators"]) or operators[0]["reads_in_flight"] < 16:
            assert time.monotonic() < until, operators  # its worker reports with every heartbeat
            threading.Event().wait(0.1)
        _, mapped = operators
    assert len(set(paths)) == len(paths) == FILES
    assert server.peak >= 32
    assert server.reads <= 2.05 * FILES, "each once, and once for the next epoch; what runs stays announced"
    assert mapped["reads_in_flight"] == 0


def test_as_many_as_were_chosen(server: FarServer) -> None:
    pipeline = dataset(server).take(40).with_options(reads_in_flight=5)
    assert len(set(pipeline)) == 40
    assert server.peak == 5
