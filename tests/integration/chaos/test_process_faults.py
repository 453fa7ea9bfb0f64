"""A fault that did not happen is not taken for one."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from chaos.child_processes import STOPPED, NotFiredError, ended, kill, state_of, stopped


@pytest.fixture
def process():
    command = [sys.executable, "-c", "import sys; print('there', flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_a_process_is_killed_once(process):
    asyncio.run(kill(process))
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(NotFiredError, match=r"had ended before, with exit status -9"):
        asyncio.run(kill(process))


def test_a_process_stays_stopped_and_goes_on(process):
    async def stop() -> None:
        async with stopped(process):
            assert state_of(process.pid) == STOPPED
        process.stdin.close()
        assert await ended(process) == 0

    asyncio.run(stop())
    assert state_of(process.pid) == ""


def test_a_process_that_is_gone_cannot_be_stopped(process):
    async def stop() -> None:
        async with stopped(process):
            pass

    asyncio.run(kill(process))
    with pytest.raises(NotFiredError, match="had ended before"):
        asyncio.run(stop())


def test_a_process_that_was_woken_was_not_stopped_all_the_time(process):
    async def stop() -> None:
        async with stopped(process):
            process.send_signal(signal.SIGCONT)
            await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WCONTINUED)

    with pytest.raises(NotFiredError, match="was to stay stopped and is"):
        asyncio.run(stop())
