"""What keeps a loop from being faster is named: a bottleneck of each kind is planted, on real processes."""

import hashlib
import http.server
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.service.service_driving import Link, Service, job_of

import millrace as mr
from millrace.policies.bottleneck import Bottleneck

WAIT_S = 0.005
PAGE = bytes(1 << 16)
ALIKE = 3
"""Reports in a row that name the same."""


def sleep(element: Any) -> Any:
    threading.Event().wait(WAIT_S)
    return element


def burn(element: Any) -> Any:
    began = time.thread_time()
    while time.thread_time() - began < WAIT_S:
        pass
    return element


def hashed(element: Any) -> Any:
    return hashlib.sha256(PAGE * 40).hexdigest()  # without Python's lock


def large(element: Any) -> bytes:
    return os.urandom(1 << 18)


class Slow(http.server.BaseHTTPRequestHandler):
    """A file store that takes its time for each answer, and gives four at a time, however many are asked for."""

    at_a_time = threading.Semaphore(4)

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        with self.at_a_time:
            threading.Event().wait(10 * WAIT_S)
        self._answer()
        self.wfile.write(PAGE)

    def _answer(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(PAGE)))
        self.send_header("ETag", '"1"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Storage(http.server.ThreadingHTTPServer):
    """Server that takes on as many connections at once as come; else some would be tried again after seconds."""

    request_queue_size = 256


@pytest.fixture
def storage() -> Iterator[list[str]]:
    with Storage(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield [f"http://127.0.0.1:{server.server_port}/{number}" for number in range(100)]
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def one_worker() -> Iterator[Service]:
    """A worker that may keep two cores busy."""
    with Service(0) as running:
        running.add(1, "--threads", "2")
        yield running


@pytest.fixture(scope="module")
def one_core() -> Iterator[Service]:
    with Service(1) as running:
        yield running


def found(dataset: mr.Dataset, service: Service, pause_s: float = 0.0) -> dict[str, Any]:
    """The bottleneck of a loop over the dataset, as soon as some reports in a row agree about it."""
    seen: dict[float, str] = {}
    over = threading.Event()

    def agreed(_: object) -> dict[str, Any] | None:
        status = served.status()
        bottleneck = status["bottleneck"]
        if bottleneck is None or bottleneck["value"] == "unknown" or not bottleneck["inputs"]["operators"]:
            return None
        assert bottleneck["reason"] in job_of(status, "job")["why"]
        seen[bottleneck["inputs"]["batch_s"]] = bottleneck["value"]
        return bottleneck if len(seen) >= ALIKE and len(set(list(seen.values())[-ALIKE:])) == 1 else None

    def read() -> None:
        for _ in served:
            if over.wait(pause_s):
                return

    with dataset.repeat().distribute(service.address, job_name="job", tasks=8) as served:
        loop = threading.Thread(target=read)
        loop.start()
        try:
            bottleneck: dict[str, Any] = service.until(agreed)
            return bottleneck
        finally:
            over.set()
            loop.join()


NUMBERS = mr.Dataset.range(100_000)


@pytest.mark.parametrize(
    ("dataset", "kind", "operator"),
    [
        (NUMBERS.map(sleep), "operator", "map(sleep)"),
        (NUMBERS.map(sleep, num_parallel_calls=None), "operator", "map(sleep)"),
        pytest.param(
            NUMBERS.map(burn, num_parallel_calls=None),
            "thread",
            "map(burn)",
            marks=pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one thread has all cores"),
        ),
    ],
)
def test_the_operator_that_holds_up_a_service_is_named(
    one_worker: Service, dataset: mr.Dataset, kind: Bottleneck, operator: str
):
    bottleneck = found(dataset, one_worker)
    assert (bottleneck["value"], bottleneck["inputs"]["operator"]) == (kind, operator)
    assert bottleneck["reason"].startswith("the input data; the loop waited ")
    assert operator in bottleneck["reason"]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one thread has all cores")
def test_threads_that_wait_for_pythons_lock_are_named(one_worker: Service):
    bottleneck = found(NUMBERS.map(burn, num_parallel_calls=4), one_worker)
    if bottleneck["inputs"]["delayed"] < 0.2:
        assert bottleneck["value"] == "thread"
        assert "map(burn) whose 4 threads kept" in bottleneck["reason"]
    else:  # other tests have the cores, and nobody can tell
        assert bottleneck["value"] in {"thread", "workers"}


def test_slow_storage_is_named(one_worker: Service, storage: list[str]):
    bottleneck = found(mr.Dataset.from_files(storage).map(len), one_worker)
    if bottleneck["inputs"]["delayed"] < 0.2:
        assert bottleneck["value"] == "storage"
        assert "from_files(" in bottleneck["reason"]
    else:  # other tests have the cores, and what is left of them may hold up the loop more than the storage does
        assert bottleneck["value"] in {"storage", "thread", "workers"}


def test_a_slow_loop_is_named(one_worker: Service):
    bottleneck = found(NUMBERS, one_worker, 4 * WAIT_S)
    assert bottleneck["value"] == "model"
    assert bottleneck["reason"].startswith("the model; the loop waited ")


def test_too_few_workers_are_named(one_core: Service):
    bottleneck = found(NUMBERS.map(hashed), one_core)
    assert (bottleneck["value"], bottleneck["inputs"]["operator"]) == ("workers", "map(hashed)")
    assert "1 worker" in bottleneck["reason"]


def test_a_slow_link_is_named(link: Link):
    with Service(0) as service:
        service.add(1, "--port", str(link(4e6).port), "--advertise", "127.0.0.2", "--no-shared-memory", *LITTLE)
        bottleneck = found(NUMBERS.map(large), service)
    assert bottleneck["value"] == "link"
    assert "MB/s" in bottleneck["reason"]


@pytest.mark.parametrize(
    ("dataset", "function", "held_up"), [(NUMBERS.take(200), sleep, True), (NUMBERS.take(50).map(sleep), str, False)]
)
def test_the_operator_that_holds_up_a_loop_behind_distribute_is_named(
    one_worker: Service, dataset: mr.Dataset, function: Callable[[Any], Any], held_up: bool
):
    with dataset.distribute(one_worker.address, job_name="job", tasks=8).map(function) as served:
        count = sum(1 for _ in served)
        status = served.status()
        bottleneck, label = status["bottleneck"], f"map({function.__name__}) behind distribute()"
        assert [(row["operator"], row["elements"]) for row in status["operators"]] == [(label, count)]
        if held_up:
            assert (bottleneck["value"], bottleneck["inputs"]["operator"]) == ("operator", label)
        else:
            assert bottleneck == job_of(status, "job")["bottleneck"]


LITTLE = ("--buffer-bytes", str(4 << 20), "--host", "127.0.0.1")


@pytest.mark.parametrize(
    ("dataset", "pause_s", "kind"),
    [
        (mr.Dataset.range(50).map(sleep), 0.0, "operator"),
        (mr.Dataset.range(50).map(burn, num_parallel_calls=None), 0.0, "thread"),
        (mr.Dataset.range(50), 4 * WAIT_S, "model"),
    ],
)
def test_what_holds_up_a_loop_in_process_is_named(dataset: mr.Dataset, pause_s: float, kind: Bottleneck):
    reading = iter(dataset)
    for _ in reading:
        threading.Event().wait(pause_s)
    status = reading.status()
    inputs = status["bottleneck"]["inputs"]
    if kind == "operator" and inputs["delayed"] >= 0.2:  # others have the cores
        assert status["bottleneck"]["value"] in {"operator", "thread", "workers"}
    else:
        assert status["bottleneck"]["value"] == ("workers" if kind == "thread" and inputs["cores"] == 1 else kind)
    assert [row["elements"] for row in status["operators"]] == [50] * len(status["operators"])
