"""Small hosts get their share of a core, and what they have used is known when they are gone."""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.small_hosts import ControlGroups1, ControlGroups2, Turns, children, fleet_of, host

BUSY = [sys.executable, "-c", "while True: pass"]


@pytest.fixture(params=[ControlGroups1, ControlGroups2, Turns])
def fleet(request, tmp_path):
    name = f"test-{time.time_ns()}"
    try:
        made = Turns(name, tmp_path) if request.param is Turns else request.param(name)
    except OSError as error:
        pytest.skip(f"this machine has no such control groups: {error}")
    yield made
    made.close()


def test_a_busy_process_has_its_share_and_what_it_used_is_known_when_it_is_gone(fleet):
    with subprocess.Popen(BUSY) as process:
        fleet.add("host", 0.1, process.pid)
        before, began = fleet.used_s(), time.perf_counter()
        while (used_s := fleet.used_s()) - before < 0.2:
            pass
        seconds = time.perf_counter() - began
        process.kill()
    fleet.remove("host")
    assert seconds > 0.2 / 0.2, "it had more than twice its share"
    assert fleet.used_s() >= used_s


def test_a_fleet_is_of_a_kind_that_there_is():
    fleet = fleet_of(f"test-{time.time_ns()}")
    assert fleet.used_s() == 0.0
    fleet.close()


def test_who_leaves_children_behind_is_ended_with_them(fleet):
    if isinstance(fleet, Turns):
        pytest.skip("they are not bounded, nor known")
    waits = "import signal; signal.pause()"
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{waits}']); {waits}"
    with contextlib.ExitStack() as stack:
        process = subprocess.Popen([sys.executable, "-c", script], text=True)
        host(stack, fleet, "host", 0.5, process)
        while not (found := children(process.pid)):
            pass
    assert process.returncode == -signal.SIGKILL
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in found)


@pytest.mark.parametrize("kind", [ControlGroups1, ControlGroups2])
def test_a_fleet_that_ends_takes_the_hosts_that_are_left_with_it(kind):
    try:
        fleet = kind(f"test-{time.time_ns()}")
    except OSError as error:
        pytest.skip(f"this machine has no such control groups: {error}")
    with subprocess.Popen(BUSY) as process:
        fleet.add("host", 0.5, process.pid)
        fleet.close()
        assert process.wait() == -signal.SIGKILL
