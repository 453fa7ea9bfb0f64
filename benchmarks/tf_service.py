"""A tf.data service on this machine, in processes as its users start them: a dispatcher and workers.

``python -m benchmarks.tf_service [ADDRESS]`` is one of these processes: without an address a dispatcher, which says
where it listens, else a worker of that dispatcher. It ends when its standard input closes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def service(workers: int, joined: Callable[[subprocess.Popen[str]], object] = lambda _: None) -> Iterator[str]:
    """The address of a service with so many workers; it ends with the ``with`` block.

    Args:
        workers: how many.
        joined: is told of each worker's process.
    """
    with contextlib.ExitStack() as processes:
        _, address = _start(processes)
        for _ in range(workers):
            joined(_start(processes, address)[0])
        yield address


def _start(processes: contextlib.ExitStack, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Starts one process, to be ended with ``processes``; returns it with the line that it says when it is ready."""
    command = [sys.executable, "-m", "benchmarks.tf_service", *arguments]
    process = processes.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError("a process of the tf.data service ended as it started")
    return process, line


def _serve(dispatcher: str | None = None) -> None:
    from tensorflow.data.experimental import service as tf

    if dispatcher is None:
        server = tf.DispatchServer(tf.DispatcherConfig(port=0))
        address = server.target.partition("://")[2]
    else:
        server = tf.WorkerServer(tf.WorkerConfig(dispatcher_address=dispatcher))
        address = dispatcher
    print(address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
