"""A Ray cluster on this machine: a head without cores, and nodes with a core each, as ``ray start`` makes them.

Each has a loopback address of its own, as Ray takes processes of one address to be one host.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

HEAD = "127.0.0.2"
_STORE_BYTES = 256 << 20


@contextlib.contextmanager
def cluster(nodes: int, joined: Callable[[subprocess.Popen[str]], object]) -> Iterator[str]:
    """The address of a cluster with so many nodes beside its head; it ends with the ``with`` block.

    Args:
        nodes: how many.
        joined: is told of each node's process, whose children are processes of the node, too.
    """
    with contextlib.ExitStack() as processes:
        head = _start(processes, HEAD, "--head", "--port=0", "--num-cpus=0", "--include-dashboard=false")
        address = _said(head, "ray start --address='").partition("'")[0]
        for number in range(nodes):  # one after the other, as they choose names of sockets in one folder
            node = _start(processes, f"127.0.0.{number + 3}", f"--address={address}", "--num-cpus=1")
            _said(node, "Ray runtime started")
            joined(node)
        yield address


def _start(processes: contextlib.ExitStack, host: str, *options: str) -> subprocess.Popen[str]:
    """Starts a node, to be ended with ``processes``."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *options]
    command += [f"--node-ip-address={host}", f"--object-store-memory={_STORE_BYTES}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    processes.enter_context(process)
    processes.callback(process.terminate)
    return process


def _said(process: subprocess.Popen[str], mark: str) -> str:
    """Waits for a line with a mark, which a node says when it has started; returns what is behind it."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if mark in line:
            return line.partition(mark)[2]
        lines.append(line)
    raise RuntimeError(f"a node of Ray ended as it started:\n{''.join(lines)}")
