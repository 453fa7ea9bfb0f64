"""However a dispatcher or a worker ends, nothing of it is left, and nobody waits for it for ever."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from chaos.child_processes import ends_within
from tests.integration.listening_sockets import listening

import millrace as mr

pytestmark = pytest.mark.timeout(90)
WAIT_S = 60

TRAINING = """
import sys, threading
import millrace as mr

def slow(x):
    threading.Event().wait(0.01)
    return x

it = iter(mr.Dataset.range(10**6).map(slow).distribute(sys.argv[1]))
next(it)
print("reading", flush=True)
for _ in it:
    pass
"""


def slow(x):
    threading.Event().wait(0.01)
    return x


class Processes:
    """Processes of one process group, as a shell's job has them."""

    def __init__(self):
        self.group = 0
        self.all = []

    def start(self, *arguments, program=("-m", "millrace")):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", *program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=self.group,
        )
        self.group = self.group or process.pid
        self.all.append(process)
        return process

    def dispatcher(self, *arguments):
        process = self.start("dispatcher", "--port", "0", *arguments)
        return process, re.findall(r"grpc://[\d.:]+", process.stdout.readline())[0]

    def training(self, address):
        process = self.start(address, program=("-c", TRAINING))
        assert process.stdout.readline() == "reading\n", process.communicate()[1]
        return process


@pytest.fixture
def processes():
    started = Processes()
    yield started
    for process in started.all:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


def ended(process):
    """Its exit status and what it said on stderr."""
    _, said = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def workers_of(status):
    return [worker["pid"] for worker in status["workers"]], [worker["address"] for worker in status["workers"]]


def test_ctrl_c_in_a_terminal_ends_all_three(processes):
    dispatcher, address = processes.dispatcher()
    worker = processes.start("worker", "--dispatcher", address)
    training = processes.training(address)
    sockets = listening([address])
    assert sockets
    os.killpg(processes.group, signal.SIGINT)
    status, said = ended(training)
    assert status == -signal.SIGINT
    assert said.rstrip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in said
    assert ended(dispatcher) == (0, "")
    assert ended(worker) == (0, "")
    assert not listening([address]) & sockets


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_dispatcher_that_ends_takes_its_own_workers_along(how, processes):
    dispatcher, address = processes.dispatcher("--local-workers", "2")
    with mr.Dataset.range(10**6).map(slow).distribute(address) as there:
        numbers = iter(there)
        next(numbers)
        pids, addresses = workers_of(there.status())
        assert pids
        sockets = listening([address, *addresses])
        assert sockets
        dispatcher.send_signal(how)
        status, said = ended(dispatcher)
        assert status == (-how if how == signal.SIGKILL else 0)
        assert said == ""
        assert all(ends_within(pid, WAIT_S) for pid in pids)
        assert not listening([address, *addresses]) & sockets


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_ends_leaves_its_work_to_others(how, processes):
    _, address = processes.dispatcher("--local-workers", "1", "--heartbeat", "0.5")
    first = processes.start("worker", "--dispatcher", address)
    seen = []
    with mr.Dataset.range(500).map(slow).distribute(address) as there:
        numbers = iter(there)
        while first.pid not in workers_of(there.status())[0]:
            assert first.poll() is None  # it is still loading: a signal would end it as it would any program
        for x in numbers:
            seen.append(x)
            if len(seen) == 20:
                first.send_signal(how)
    assert sorted(seen) == list(range(500))
    status, said = ended(first)
    assert status == (-how if how == signal.SIGKILL else 0)
    assert said == ""


STUCK = """
import json, sys, threading
import millrace as mr

def stuck(x):
    if x == 3:
        threading.Event().wait()
    return x

service = mr.LocalService(max_workers=1)
it = iter(mr.Dataset.range(10**6).map(stuck).distribute(service.address))
next(it)
print(json.dumps([service._process.pid, *[each["pid"] for each in service.status()["workers"]]]), flush=True)
for _ in it:
    pass
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_worker_that_hangs_in_a_users_function_ends_all_the_same(how, processes):
    training = processes.start(program=("-c", STUCK))
    pids = json.loads(training.stdout.readline())
    assert len(pids) == 2
    training.send_signal(how)
    status, _ = ended(training)
    assert status == -how
    assert all(ends_within(pid, WAIT_S) for pid in pids)


def test_a_training_script_outlives_its_worker_and_waits_for_another(processes):
    """Workers started by hand come back by hand: the loop waits, and ends when it is told to."""
    _, address = processes.dispatcher("--heartbeat", "0.5")
    worker = processes.start("worker", "--dispatcher", address)
    seen = []
    with mr.Dataset.range(600).map(slow).distribute(address) as there:
        for x in there:
            seen.append(x)
            if len(seen) == 10:
                worker.kill()
                ended(worker)
                processes.start("worker", "--dispatcher", address)
    assert sorted(seen) == list(range(600))


def test_a_worker_without_a_dispatcher_ends_when_told_to(processes):
    dispatcher, address = processes.dispatcher()
    worker = processes.start("worker", "--dispatcher", address)
    with mr.Dataset.range(3).distribute(address) as there:
        assert sorted(there) == [0, 1, 2]
    dispatcher.kill()
    ended(dispatcher)
    worker.send_signal(signal.SIGTERM)
    assert ended(worker) == (0, "")


# -- in process --------------------------------------------------------------------------------------------------------


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("millrace")}


def busy(count=10**6):
    """A pipeline with threads for a map, and one that computes ahead."""
    return mr.Dataset.range(count).map(slow).prefetch(4).map(slow).batch(2).with_options(num_threads=3)


def test_an_epoch_read_to_its_end_leaves_no_thread():
    assert len(list(busy(40))) == 20
    assert threads() == set()


def test_break_leaves_no_thread_once_the_iterator_is_dropped():
    for number, _ in enumerate(busy()):
        if number == 5:
            break
    assert threads() == set()


def test_an_iterator_that_is_held_is_closed_by_hand():
    numbers = iter(busy())
    for _ in range(5):
        next(numbers)
    assert threads()
    numbers.close()
    assert threads() == set()
    assert next(numbers, None) is None
    with iter(busy()) as again:
        for _ in range(5):
            next(again)
    assert threads() == set()


def test_an_exception_in_the_loop_leaves_no_thread():
    def loop():
        for number, _ in enumerate(busy()):
            if number == 5:
                raise LookupError

    with pytest.raises(LookupError):
        loop()
    gc.collect()  # the traceback held the iterator until here
    assert threads() == set()


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_failing_function_leaves_no_thread_although_its_traceback_is_kept(parallel):
    def fails(x):
        slow(x)
        return 1 // (x - 15)

    pipeline = mr.Dataset.range(100).prefetch(2).map(fails, num_parallel_calls=parallel)
    with pytest.raises(mr.ElementError) as kept:
        list(pipeline)
    assert threads() == set()
    assert kept.value.where == "item 15"


INTERRUPTED = """
import signal, threading
import millrace as mr

def slow(x):
    threading.Event().wait(0.01)
    return x

pipeline = mr.Dataset.range(10**6).map(slow).prefetch(4).map(slow).batch(2).with_options(num_threads=3)
try:
    for number, _ in enumerate(pipeline):
        if number == 5:
            print("reading", flush=True)
except KeyboardInterrupt:
    pass
left = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
print("left", left, flush=True)
"""


def test_ctrl_c_in_process_leaves_no_thread(processes):
    program = processes.start(program=("-c", INTERRUPTED))
    assert program.stdout.readline() == "reading\n"
    program.send_signal(signal.SIGINT)
    assert program.stdout.readline() == "left []\n"
    assert ended(program) == (0, "")


def test_what_user_code_leaves_running_does_not_keep_a_service_from_closing():
    def leave(number):
        return subprocess.Popen(["sleep", "600"], start_new_session=True).pid  # writes where its worker's log goes

    with mr.LocalService(max_workers=1) as service, mr.Dataset.range(1).map(leave).distribute(service.address) as pids:
        (pid,) = pids.epochs(1)
    assert service.closed
    os.kill(pid, signal.SIGKILL)
    assert ends_within(pid, WAIT_S)


@pytest.mark.parametrize("error", [ValueError("I/O operation on closed file."), BrokenPipeError()])
def test_a_service_goes_on_though_what_its_workers_print_cannot_be_passed_on(error, monkeypatch):
    class Closed:
        def write(self, text):
            raise error

    def talk(number):
        os.write(2, 1000 * b"lorem ipsum\n")  # more than a pipe takes
        return number

    monkeypatch.setattr(sys, "stderr", Closed())
    with mr.LocalService(max_workers=1) as service, mr.Dataset.range(20).map(talk).distribute(service.address) as read:
        assert sorted(read.epochs(1)) == list(range(20))
