"""``python -m chaos.silent_peers``: thousands of silent and slow connections to both ports of a service.

A dispatcher and a worker run in processes of their own. A third of the connections say nothing, a third say half of
what they should, and a third say it a byte at a time. Meanwhile honest jobs join, read and leave, one after the other.
Shown are memory, threads and descriptors of both processes before and at most, and what became of the honest; the exit
status is 1 if any of them failed, or a bound did not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import secrets
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import millrace as mr

DESCRIPTORS, THREADS, MEMORY_BYTES = 6000, 700, 400 << 20
"""Bounds of what a process may have more than before, during the attack."""
STATUS_S = 30.0
_STEP_S = 0.2
_PORT = 5997
_WORKER_HELLO = b"MRCE\x02\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Usage(NamedTuple):
    """What a process has: bytes of memory, threads, descriptors."""

    memory: int
    threads: int
    descriptors: int


def usage(pid: int) -> Usage:
    """Looks a process up."""
    with open(f"/proc/{pid}/statm") as file:
        memory = int(file.read().split()[1]) * resource.getpagesize()
    return Usage(memory, len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd")))


class Attack:
    """Holds ``count`` connections to addresses, in a thread, and opens those again that are hung up on."""

    def __init__(self, targets: Sequence[tuple[str, bytes]], count: int, source: str) -> None:
        self._targets = targets
        self._count, self._source = count, source
        self._over = threading.Event()
        self._selector = selectors.DefaultSelector()
        self.opened = self.held = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        slow: dict[socket.socket, list[bytes]] = {}
        while not self._over.is_set():
            while self.held < self._count and not self._over.is_set():
                address, said = self._targets[self.opened % len(self._targets)]
                host, port = address.rsplit(":", 1)
                try:
                    sock = socket.create_connection((host, int(port)), 1, (self._source, 0))
                    kind = self.opened // len(self._targets) % 3
                    if kind == 1:
                        sock.sendall(said[: len(said) // 2])
                    elif kind == 2:
                        slow[sock] = [said[at : at + 1] for at in range(len(said))]
                except OSError:
                    break
                self.opened, self.held = self.opened + 1, self.held + 1
                self._selector.register(sock, selectors.EVENT_READ)
                if not self.opened % 200:
                    self._let_go(slow, 0)
            self._let_go(slow, _STEP_S)
            for sock, rest in list(slow.items()):
                try:
                    sock.sendall(rest.pop(0) if rest else b"")
                except OSError:
                    slow.pop(sock)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)

    def _let_go(self, slow: dict[socket.socket, list[bytes]], seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            try:
                over = not sock.recv(4096)
            except OSError:
                over = True
            if over:
                self._selector.unregister(sock)
                slow.pop(sock, None)
                sock.close()
                self.held -= 1

    def stop(self) -> None:
        """Ends it."""
        self._over.set()
        self._thread.join()


@contextlib.contextmanager
def service(token: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Runs a dispatcher with a worker; yields it with its address."""
    address = f"127.0.0.1:{_PORT}"
    command = [sys.executable, "-m", "millrace", "dispatcher", "--port", str(_PORT), "--workers", "1"]
    process = subprocess.Popen(command, env={**os.environ, "MILLRACE_TOKEN": token}, stderr=subprocess.DEVNULL)
    try:
        yield process, address
    finally:
        process.terminate()
        process.wait()


def status(address: str) -> dict[str, list[dict[str, object]]]:
    """Asks the service as ``millrace status --json`` does."""
    command = [sys.executable, "-m", "millrace", "status", "--json", "--service", address]
    answer = subprocess.run(command, capture_output=True, check=True, timeout=STATUS_S)
    found: dict[str, list[dict[str, object]]] = json.loads(answer.stdout)
    return found


def read_once(address: str, number: int) -> float:
    """Reads a job to its end; returns the seconds that it took."""
    began = time.monotonic()
    read = list(mr.Dataset.range(1000).batch(10).distribute(address, job_name=f"honest-{number}"))
    if len(read) != 100:
        raise RuntimeError(f"{len(read)} of 100 batches came")
    return time.monotonic() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000, metavar="N", help="to hold at a time")
    parser.add_argument("--seconds", type=float, default=40.0, metavar="S", help="that it lasts")
    parser.add_argument(
        "--source", default="127.0.0.2", metavar="IP", help="where they come from; 127.0.0.1: from where the honest do"
    )
    options = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, options.connections + 1000), most))
    os.environ["MILLRACE_TOKEN"] = token = secrets.token_hex()
    with service(token) as (dispatcher, address):
        alone = read_once(address, 0)
        (worker,) = status(address)["workers"]
        pids = {"dispatcher": dispatcher.pid, "worker": int(str(worker["pid"]))}
        before = {name: usage(pid) for name, pid in pids.items()}
        peak = dict(before)
        attack = Attack(
            [(address, _HTTP2), (str(worker["address"]), _WORKER_HELLO)], options.connections, options.source
        )
        took: list[float] = []
        failed: list[str] = []
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            try:
                took.append(read_once(address, len(took) + 1))
            except (mr.MillraceError, RuntimeError) as error:
                failed.append(str(error))
            for name, pid in pids.items():
                peak[name] = Usage(*map(max, zip(peak[name], usage(pid), strict=True)))
        held, opened = attack.held, attack.opened
        attack.stop()
    print(f"{opened} connections were opened to both ports in {options.seconds:g} s, {held} held at the end")
    for name in pids:
        for what, first, last in zip(Usage._fields, before[name], peak[name], strict=True):
            shown = (first >> 20, last >> 20) if what == "memory" else (first, last)
            print(f"{name:10} {what:12} {shown[0]:>6} before {shown[1]:>6} at most{' MiB' * (what == 'memory')}")
    took.sort()
    print(f"honest jobs: {len(took)} read, {len(failed)} failed; {alone:.2f} s alone", end="")
    print(f", {took[len(took) // 2]:.2f} s in the middle, {took[-1]:.2f} s at most" if took else "")
    for each in failed[:3]:
        print(" ", each)
    grown = [Usage(*(last - first for first, last in zip(before[each], peak[each], strict=True))) for each in pids]
    bounded = all(
        each.memory <= MEMORY_BYTES and each.threads <= THREADS and each.descriptors <= DESCRIPTORS for each in grown
    )
    return 0 if bounded and took and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
