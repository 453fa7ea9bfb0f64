"""What stands between a program and its service: functions that cannot travel, addresses, versions, places, buffers."""

import contextlib
import functools
import os
import re
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.client import job_session
from millrace.clusters.child_process import hang_up, reap, spawn

pytestmark = pytest.mark.timeout(60)
WAIT_S = 40


@pytest.fixture(scope="module")
def service():
    with mr.LocalService(max_workers=1) as service:
        yield service


@pytest.fixture
def start():
    """Starts processes of a service, which end with the test."""
    processes = []

    def run(*arguments, extra=None, **streams):
        processes.append(spawn(arguments, worker=arguments[0] == "worker", extra=extra, **streams))
        return processes[-1]

    yield run
    for process in reversed(processes):
        hang_up(process)
        reap(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def dispatcher(start):
    """Address of a dispatcher without workers."""
    return address_of(start("dispatcher", "--port", "0", stdout=subprocess.PIPE))


def address_of(process):
    line = process.stdout.readline().decode()
    return re.findall(r"grpc://[^\"]+", line)[0]


# -- what cannot travel ------------------------------------------------------------------------------------------------

LOCK = threading.Lock()


def test_a_function_with_a_lock_is_named_before_anything_starts(monkeypatch):
    inner = threading.Lock()

    def closes_over(x):
        with inner:
            return x

    def uses_a_global(x):
        with LOCK:
            return x

    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    uses_a_global.__module__ = "__main__"  # else it travels with this module, which makes its own lock
    with pytest.raises(mr.ShippingError, match=r"^map\(closes_over\): .* `inner` .*, a _thread\.lock, which cannot be"):
        mr.Dataset.range(3).map(closes_over).distribute()
    with pytest.raises(mr.ShippingError, match=r"filter\(.*uses_a_global\): .*global `LOCK`, a _thread\.lock"):
        mr.Dataset.range(3).map(abs).filter(uses_a_global).distribute("grpc://127.0.0.1:1")
    with pytest.raises(mr.ShippingError, match=r"from_list\(items\): .*generator"):
        mr.Dataset.from_list([1, (x for x in "ab")]).distribute()


def test_a_module_that_only_the_client_has_installed(service, tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "onlyhere"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(package.parent)
    import onlyhere  # type: ignore[import-not-found]

    assert list(mr.Dataset.range(3).map(onlyhere.double)) == [0, 2, 4]
    said = (
        r"module `onlyhere` is not installed on the worker \(Python 3\..*\), and map\(.*double\) needs it\. Install it"
    )
    with (
        mr.Dataset.range(3).map(onlyhere.double).distribute(service.address) as there,
        pytest.raises(mr.ShippingError, match=said),
    ):
        list(there)
    with mr.Dataset.range(3).map(abs).distribute(service.address) as there:
        assert sorted(there) == [0, 1, 2]


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_a_dispatcher_with_wrong_options_says_which_in_one_line():
    with pytest.raises(mr.PipelineError) as caught:
        mr.LocalService(port=99999)
    said = "the service cannot be as it was asked for: millrace dispatcher: error: argument --port: 99999 is not from"
    assert str(caught.value) == f"{said} 0 to 65535"


def test_nobody_at_the_address_says_how_long_it_waited_and_what_to_look_at(monkeypatch):
    hurried = functools.partial(job_session.JobSession, timeout=0.3)
    monkeypatch.setattr(job_session, "JobSession", hurried)
    said = (
        r"^no dispatcher answered at 127\.0\.0\.1:1 within 0\.3 s \(connection refused\): is `millrace dispatcher` "
        r"running there\? Check the address"
    )
    with pytest.raises(mr.ServiceUnreachableError, match=said) as caught:
        iter(mr.Dataset.range(3).distribute("grpc://127.0.0.1:1"))
    assert isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize("address", ["127.0.0.1:port", "http://127.0.0.1:5050", "127.0.0.1", "grpc://:5050:1"])
def test_what_is_no_address_is_said_at_once(address):
    with pytest.raises(mr.ServiceError, match=rf"{re.escape(address)}.* is not an address: .*grpc://HOST:PORT"):
        iter(mr.Dataset.range(3).distribute(address))


def test_a_workers_address_is_not_the_services(service, monkeypatch):
    hurried = functools.partial(job_session.JobSession, timeout=0.3)
    monkeypatch.setattr(job_session, "JobSession", hurried)
    with mr.Dataset.range(3).distribute(service.address) as there:
        list(there)
    address = service.status()["workers"][0]["address"]
    with pytest.raises(mr.ServiceUnreachableError, match=re.escape(address)):
        iter(mr.Dataset.range(3).distribute(address))


@pytest.mark.parametrize("command", [["dispatcher"], ["worker", "--dispatcher", "127.0.0.1:1"]])
def test_a_port_in_use_is_one_line(command, dispatcher):
    port = dispatcher.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-m", "millrace", *command, "--port", port],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    said = rf"millrace {command[0]}: cannot listen on 127\.0\.0\.1:{port}: another process does\..*another port.*\n"
    assert re.fullmatch(said, done.stderr)


# -- places ------------------------------------------------------------------------------------------------------------


def test_two_consumers_of_one_index(service):
    def share(index):
        return mr.Dataset.range(100).distribute(
            service.address, job_name="shared", num_consumers=2, consumer_index=index
        )

    with share(1) as first, share(1) as second, share(0) as other:
        mine = iter(first)
        said = (
            rf"consumer 1 of job 'shared' is being read already by process {os.getpid()} on .*; give each process its "
            r"own consumer_index, or close the other one"
        )
        with pytest.raises(mr.ConsumerConflictError, match=said):
            iter(second)
        assert sorted([*mine, *other]) == list(range(100))


def test_consumers_of_one_job_need_no_common_seed(service):
    """Each process would draw another one."""

    def share(index):
        pipeline = mr.Dataset.range(100).shuffle(100).map(lambda x: x)
        return pipeline.distribute(service.address, job_name="seedless", num_consumers=2, consumer_index=index)

    with share(0) as first, share(1) as second:
        assert sorted([*first, *second]) == list(range(100))
    with mr.Dataset.range(9).distribute(service.address, job_name="seeded", seed=1) as one:
        iter(one)
        with (
            mr.Dataset.range(9).distribute(service.address, job_name="seeded", seed=2) as two,
            pytest.raises(mr.JobConflictError, match=r"job 'seeded' .*differs in seed \(2 here, 1 there\); use an"),
        ):
            iter(two)


def test_another_pipeline_under_a_name_that_is_taken(service):
    with mr.Dataset.range(10).distribute(service.address, job_name="taken") as first:
        iter(first)
        with mr.Dataset.range(11).distribute(service.address, job_name="taken") as second:
            said = r"job 'taken' exists already and differs in the pipeline .*use another job_name"
            with pytest.raises(mr.JobConflictError, match=said):
                iter(second)


# -- versions ----------------------------------------------------------------------------------------------------------

# Patches what a process says about itself, before anything has read it.
OTHER_PYTHON = """
    import platform, sys
    class Version(tuple):
        major, minor, micro = 3, 99, 0
    sys.version_info = Version((3, 99, 0, "final", 0))
    platform.python_version_tuple = lambda: ("3", "99", "0")
"""
OTHER_PROTOCOL = """
    import millrace.protocol.messages
    millrace.protocol.messages.PROTOCOL = 99
"""
OTHERS = {
    "python": (OTHER_PYTHON, r"Python 3\.99.*, the dispatcher .*; all processes of a service need the same minor .*"),
    "protocol": (OTHER_PROTOCOL, r"protocol 99 .*: install the same version of millrace on both sides"),
}


def other(patch, code, *arguments, **options):
    """A process that thinks it is of another version."""
    program = textwrap.dedent(
        "import asyncio, concurrent.futures, dataclasses, grpc, inspect, logging, numpy, msgspec, platform, ssl, typing"
    )
    program += "\n" + textwrap.dedent(patch) + "\n" + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        **options,
    )


@pytest.mark.parametrize("kind", OTHERS)
def test_a_worker_of_another_version_is_refused_and_says_so(kind, dispatcher):
    patch, words = OTHERS[kind]
    done = other(patch, "from millrace.cli import main\nraise SystemExit(main())", "worker", "--dispatcher", dispatcher)
    assert done.returncode == 1
    assert re.fullmatch(rf"millrace worker: .*{words}\n", done.stderr)


@pytest.mark.parametrize("kind", OTHERS)
def test_a_client_of_another_version_is_refused(kind, dispatcher):
    patch, words = OTHERS[kind]
    code = """
        import sys
        import millrace as mr
        try:
            iter(mr.Dataset.range(3).distribute(sys.argv[1]))
        except mr.VersionMismatchError as error:
            print(error)
    """
    done = other(patch, code, dispatcher)
    assert re.fullmatch(rf".*{words}\n", done.stdout), done.stderr


# -- buffers -----------------------------------------------------------------------------------------------------------


def large(x):
    return np.full(10_000 + x, x)


def test_an_element_larger_than_a_tasks_buffers_is_refused(service):
    pipeline = mr.Dataset.range(5).map(large).with_options(buffer_bytes=1000)
    said = r"map\(large\) gives an element of \d+ bytes \(item 0\), and the pipeline may hold 1000; .*buffer_bytes"
    with pytest.raises(mr.ElementTooLargeError, match=said):
        list(pipeline)
    with pipeline.distribute(service.address) as there, pytest.raises(mr.ElementTooLargeError, match=said):
        list(there)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_a_consumers_buffer_of_any_size_passes_elements_or_says_why_not(size, deterministic, service, monkeypatch):
    real = job_session.JobSession

    def shrunk(*arguments, buffer_bytes, **options):
        return real(*arguments, buffer_bytes=size, **options)

    monkeypatch.setattr(job_session, "JobSession", shrunk)
    pipeline = mr.Dataset.range(40).map(large)
    with pipeline.distribute(service.address, deterministic=deterministic, tasks=4) as there:
        if size > 90_000:
            assert sorted(len(each) for each in there) == [10_000 + x for x in range(40)]
            return
        said = (
            rf"an element of 8\d,\d{{3}} bytes is more than this process's buffer of {size:,}: yield smaller elements"
        )
        with pytest.raises(mr.ElementTooLargeError, match=said):
            list(there)


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_a_workers_buffer_of_any_size_passes_elements_or_says_why_not(size, dispatcher, start):
    start("worker", "--dispatcher", dispatcher, "--buffer-bytes", str(size))
    with mr.Dataset.range(40).map(large).distribute(dispatcher, tasks=4) as there:
        if size > 90_000:
            assert sorted(len(each) for each in there) == [10_000 + x for x in range(40)]
            return
        said = rf"has 8\d,\d{{3}} bytes, more than the {size:,} that this worker may keep: .*--buffer-bytes \d+"
        with pytest.raises(mr.ElementTooLargeError, match=said):
            list(there)


def test_the_hint_about_the_consumers_buffer_is_true(service, monkeypatch):
    asked = []
    real = job_session.JobSession

    def remember(*arguments, buffer_bytes, **options):
        asked.append(buffer_bytes)
        return real(*arguments, buffer_bytes=buffer_bytes, **options)

    monkeypatch.setattr(job_session, "JobSession", remember)
    for wanted in (None, 1000, 8 << 20, 1 << 30):
        with mr.Dataset.range(3).with_options(buffer_bytes=wanted).distribute(service.address) as there:
            iter(there)
    assert asked == [job_session.BUFFER_BYTES, job_session.LEAST_BUFFER_BYTES, 8 << 20, 1 << 30]


# -- the service goes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["embedded", "local"])
def test_a_loop_ends_when_the_service_of_its_own_process_is_killed(kind):
    def slow(x):
        threading.Event().wait(0.01)
        return x

    with contextlib.ExitStack() as stack:
        local = stack.enter_context(mr.LocalService(max_workers=1)) if kind == "local" else None
        address = None if local is None else local.address
        there = stack.enter_context(mr.Dataset.range(10**6).map(slow).distribute(address, workers=1))
        numbers = iter(there)
        next(numbers)
        pipeline: Any = there.__pipeline__()
        held = local or pipeline._embedded
        assert held is not None
        held._process.kill()
        with pytest.raises(mr.ServiceUnreachableError, match=r"is gone: its dispatcher was killed by SIGKILL"):
            list(numbers)


HOLDER = """
import sys
import millrace as mr

with mr.LocalService(max_workers=1) as service:
    print(service.address, flush=True)
    sys.stdin.read()
"""


def test_a_loop_ends_when_the_process_that_held_the_service_is_killed():
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        address = holder.stdout.readline().decode().strip()
        with mr.Dataset.range(10**9).distribute(address) as there:
            numbers = iter(there)
            next(numbers)
            holder.kill()
            gone = rf"is gone: it belonged to process {holder.pid} on \S+, and ended with it\. A service that outlives"
            with pytest.raises(mr.ServiceUnreachableError, match=gone):
                for _ in numbers:
                    pass
