"""Child processes that end with their parent, however it ends.

Each has a session of its own, so that Ctrl-C in a terminal reaches the parent alone, and a pipe from the parent as
standard input: the kernel closes it when the parent dies, by SIGKILL too, and the child then ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any

from millrace import version

STOP_S = 5.0
"""Seconds that a child may take to end after it was told to."""

_THREADS = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
_GLIBC = {
    # A large array is taken from and given back to the kernel each time by default, and cleared page by page in
    # between; with these, memory that was used once is used again.
    "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(512 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    # So that one thread can use what another has freed: with an arena for each, some kept a window of elements.
    "MALLOC_ARENA_MAX": "2",
    # What is copied into a batch is read next on another core, so large copies need not go through this one's cache.
    # And AMD's `rep movsb`, which would do them, is up to nine times slower when the addresses' low bits are unlucky.
    "GLIBC_TUNABLES": f"glibc.cpu.x86_non_temporal_threshold={64 << 10}:glibc.cpu.x86_rep_movsb_threshold={1 << 30}",
}


def worker_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Make the environment of a worker process: one thread per library, memory for large arrays; variables set stay.

    It has to be there before the process starts, because libraries read it as they are loaded.
    """
    return {**_THREADS, **_GLIBC, "ARROW_IO_THREADS": "4", **_import_path(inherited)}


def _import_path(inherited: Mapping[str, str]) -> dict[str, str]:
    """Add the folder that this millrace was imported from, if Python would not look there by itself."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(version.__file__)))
    known = [place for place in inherited.get("PYTHONPATH", "").split(os.pathsep) if place]
    if os.path.basename(root) in ("site-packages", "dist-packages") or root in map(os.path.abspath, known):
        return dict(inherited)
    return {**inherited, "PYTHONPATH": os.pathsep.join([*known, root])}


def spawn(
    arguments: Sequence[str],
    *,
    worker: bool,
    module: str = "",
    token: str | None = None,
    tls: str = "",
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    extra: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``millrace ARGUMENTS --parent-pipe``.

    Args:
        arguments: of the command line.
        worker: give it a worker's environment.
        module: to run instead; it has to end by itself when its standard input does.
        token: of the service; None: that of the environment, if there is one.
        tls: folder of certificates; empty: none, whatever the environment says.
        stdout: as for :class:`subprocess.Popen`.
        stderr: as for :class:`subprocess.Popen`.
        extra: further variables to set.
    """
    inherited = {**os.environ, **(extra or {}), **({"MILLRACE_TOKEN": token} if token else {})}
    inherited.pop("MILLRACE_TLS", None)
    inherited |= {"MILLRACE_TLS": os.path.abspath(tls)} if tls else {}
    environment = worker_environment(inherited) if worker else _import_path(inherited)
    process = subprocess.Popen(  # noqa: S603 (this interpreter, our module)
        [sys.executable, "-P", "-m", *([module, *arguments] if module else ["millrace", *arguments, "--parent-pipe"])],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        start_new_session=True,
    )
    _spawned.add(process)
    return process


_spawned: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def _release_pipes() -> None:
    """Close the pipes in a forked child, e.g. a DataLoader's worker: they must close when the parent closes them."""
    pipes = [process.stdin for process in list(_spawned) if process.stdin is not None and not process.stdin.closed]
    if pipes:
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in pipes:
            os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)


os.register_at_fork(after_in_child=_release_pipes)


def hang_up(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe: the child ends at once, in good order."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it ended before it had read all that it was sent
            process.stdin.close()


def reap(process: subprocess.Popen[bytes], seconds: float = STOP_S) -> int:
    """Wait for a child that was told to end; kill it, and whatever it started in its session, if it doesn't."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        process.wait()
    hang_up(process)
    return process.returncode


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a child that has not been waited for, with all of its process group."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # another thread waits for it, and has just been told of its end
            os.killpg(process.pid, signal.SIGKILL)


def describe_exit(status: int) -> str:
    """Put an exit status of :class:`subprocess.Popen` into words, e.g. ``was killed by SIGKILL``."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
