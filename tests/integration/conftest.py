"""After each integration test: no process, thread or file of ours is left.

Processes are recognised by a mark in their environment, which whatever a test starts inherits, so that those whose
parent died are found too. Temporary files go to a directory of this run.
"""

import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.wire import peer_log

_MARK = "MILLRACE_TEST_RUN"
_GRACE_S = 10.0
"""How long processes and threads that are about to end may take; nothing waits that long unless it leaks."""

_BYSTANDERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "torch_shm_manager")
"""Processes that the standard library and torch keep until the interpreter ends."""


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        directory = tempfile.mkdtemp(prefix="mr-test-")  # short: Unix socket paths have 107 bytes
        patch.setenv("TMPDIR", directory)
        patch.setattr(tempfile, "tempdir", directory)
        patch.setenv("XDG_STATE_HOME", os.path.join(directory, "state"))  # where this user's token lies
        patch.setenv(_MARK, uuid.uuid4().hex)
        yield
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt what tests start also where a script has started them in the background.

    A shell without job control has such processes ignore SIGINT, and so do all that these start.
    """
    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def _all_lines_about_peers() -> Iterator[None]:
    """Bound no log about peers: the bound is that of a process, in which tests before may have reached it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peer_log, "LINES", sys.maxsize)
        yield


@pytest.fixture(autouse=True)
def _nothing_left(_own_temporary_directory: None) -> Iterator[None]:
    processes, threads, files = _processes(), set(threading.enumerate()), _files()
    yield
    left = [
        *(f"process {line}" for line in _outlive(_processes().keys() - processes.keys())),
        *(f"thread {thread.name!r}" for thread in _ours(set(threading.enumerate()) - threads)),
        *(f"file {path}" for path in sorted(_files() - files)),
    ]
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


def _processes() -> dict[int, str]:
    """Pid and command line of every process that descends from this test run."""
    if sys.platform != "linux":
        return {}
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:  # it has ended, or belongs to another user
                continue
            if marked and not any(name in command for name in _BYSTANDERS):
                found[int(entry.name)] = command
    return found


def _outlive(pids: set[int]) -> list[str]:
    """Those of ``pids`` that don't end by themselves, described; they are killed, lest the next test suffers."""
    commands = _processes()
    left = []
    for pid in sorted(pids & commands.keys()):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            waiting = select.poll()
            waiting.register(handle, select.POLLIN)
            if not waiting.poll(_GRACE_S * 1000):
                left.append(f"{pid}: {commands[pid]}")
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    return left


def _ours(threads: set[threading.Thread]) -> list[threading.Thread]:
    """Those of ``threads`` that would keep the interpreter alive or carry our name, and don't end by themselves."""
    suspects = [thread for thread in threads if not thread.daemon or thread.name.startswith("millrace")]
    for thread in suspects:
        thread.join(_GRACE_S)
    return [thread for thread in suspects if thread.is_alive()]


def _files() -> set[Path]:
    places = {Path(tempfile.gettempdir()), Path("/dev/shm")}
    return {path for place in places if place.is_dir() for path in place.glob("millrace*")}
