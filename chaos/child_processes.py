"""Ends and stops processes that were started here, and proves it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
from collections.abc import AsyncIterator

STOPPED = "T"


class NotFiredError(Exception):
    """A fault did not happen; the message says what was seen instead."""


def state_of(pid: int) -> str:
    """The letter that the kernel has for a process, e.g. R, S, T (stopped), Z; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended unnoticed by its parent."""
    return state_of(pid) not in {"", "Z"}


def ends_within(pid: int, seconds: float) -> bool:
    """Waits for the end of any process, not only of a child; False: it is still there after so many seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()  # not select, which knows of few descriptors
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))
    finally:
        os.close(handle)


async def ended(process: subprocess.Popen[bytes]) -> int:
    """Waits for a child to end; returns its exit status as :class:`subprocess.Popen` has it."""
    if process.poll() is not None:
        return process.returncode
    handle = os.pidfd_open(process.pid)
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return process.wait()


async def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a child by SIGKILL.

    Raises:
        NotFiredError: it had ended before, or by something else.
    """
    if process.poll() is not None:
        raise NotFiredError(f"process {process.pid} had ended before, with exit status {process.returncode}")
    process.send_signal(signal.SIGKILL)
    status = await ended(process)
    if status != -signal.SIGKILL:
        raise NotFiredError(f"process {process.pid} ended with exit status {status}, not by SIGKILL")


@contextlib.asynccontextmanager
async def stopped(process: subprocess.Popen[bytes]) -> AsyncIterator[None]:
    """Keeps a child stopped meanwhile: it holds its connections, and does nothing.

    Raises:
        NotFiredError: it has ended, or did not stay stopped.
    """
    if process.poll() is not None:
        raise NotFiredError(f"process {process.pid} had ended before, with exit status {process.returncode}")
    process.send_signal(signal.SIGSTOP)
    try:
        seen = await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if seen is None or seen.si_code != os.CLD_STOPPED or state_of(process.pid) != STOPPED:
            raise NotFiredError(f"process {process.pid} was told to stop and is {state_of(process.pid) or 'gone'}")
        yield
        if state_of(process.pid) != STOPPED:
            raise NotFiredError(f"process {process.pid} was to stay stopped and is {state_of(process.pid) or 'gone'}")
    finally:
        process.send_signal(signal.SIGCONT)  # does nothing if it has ended
