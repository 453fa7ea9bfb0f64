"""What TLS costs on a data port: bytes a second from a process beside, plain and with TLS, by relays and without.

A sender, in a process of its own, sends payloads over loopback's TCP through millrace's data connection, and a consumer
receives them: with nothing else to do, and with a thread in the consumer, or in the sender, that runs Python's own code
without a pause, as a training loop or a worker's functions may. Python's TLS lets go of the interpreter's lock for each
record of 16 KiB; such a thread may keep it for 5 ms. With relays each of both has a process that speaks TLS for it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from millrace.wire.data.buffer_pool import BufferPool
from millrace.wire.data.data_connection import DataConnection, DataServer, open_data_connection
from millrace.wire.data.relays import SWITCH
from millrace.wire.tls_authority import TlsAuthority
from millrace.wire.tls_files import open_tls

PAYLOAD_BYTES = 4 << 20
HOST = "127.0.0.1"


class Order(msgspec.Struct, frozen=True):
    """So many payloads are wanted, and are what comes back; of a sender that has more to do, if it is ``busy``."""

    payloads: int
    busy: bool = False


ORDERS = msgspec.msgpack.Decoder(Order)


def send(folder: str) -> None:
    """Sends what it is asked for, until standard input ends."""
    payload = np.random.default_rng(0).integers(0, 256, PAYLOAD_BYTES, np.uint8)

    def answer(connection: DataConnection) -> None:
        while True:
            order, _ = connection.receive(ORDERS)
            with busy() if order.busy else contextlib.nullcontext():
                for _ in range(order.payloads):
                    connection.send(order, [payload])

    with DataServer(HOST, answer, tls=open_tls(folder)) as server:
        print(server.address, flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def sender(folder: str) -> Iterator[str]:
    """A sending process's address."""
    command = [sys.executable, "-m", "benchmarks.tls", "--send", folder]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate()


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A thread that runs Python's own code."""
    over = False

    def run() -> None:
        number = 0
        while not over:
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over = True
        thread.join()


def cpu_s(pid: int | str = "self") -> float:
    """Seconds of cores that a process and those that it has started have used."""
    text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(text[11]) + int(text[12])
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(map(cpu_s, children.split()))


def received(connection: DataConnection, payloads: int, *, busy_sender: bool = False) -> tuple[float, float, float]:
    """Megabytes a second, and seconds of cores for a gigabyte: this process's, and those of all."""
    pool = BufferPool(4 * PAYLOAD_BYTES)
    began, used, used_by_all = time.perf_counter(), time.process_time(), cpu_s()
    connection.send(Order(payloads, busy_sender))
    for _ in range(payloads):
        connection.receive(ORDERS, pool.allocate, PAYLOAD_BYTES)
    taken, used, used_by_all = time.perf_counter() - began, time.process_time() - used, cpu_s() - used_by_all
    size = payloads * PAYLOAD_BYTES
    return size / taken / 1e6, used / size * 1e9, used_by_all / size * 1e9


def run(options: Options, *, secured: bool, relayed: bool = False) -> Mapping[str, float]:
    """Receives, alone, beside a busy thread, and from beside one."""
    os.environ[SWITCH] = "on" if relayed else "off"
    with tempfile.TemporaryDirectory() as folder:
        held = TlsAuthority(os.path.join(folder, "authority")).issue("worker")[0] if secured else ""
        with sender(held) as address:
            opened = open_data_connection(address, local=False, sockets=1, tls=open_tls(held))
            with opened as connection:
                received(connection, 2)
                alone, cpu, everybody = received(connection, options["alone"])
                sent, _, _ = received(connection, options["beside"], busy_sender=True)
                with busy():
                    beside, _, _ = received(connection, options["beside"])
    return {"alone": alone, "beside": beside, "sent": sent, "cpu": cpu, "all": everybody}


BENCHMARK = Benchmark(
    question="What does TLS cost on a data port?",
    figures={
        "alone": Figure("MB/s, alone"),
        "beside": Figure("MB/s, beside a busy thread", digits=1),
        "sent": Figure("MB/s, from beside a busy thread", digits=1),
        "cpu": Figure("CPU s/GB of the consumer", digits=2, more_is_better=False),
        "all": Figure("CPU s/GB of all processes, alone", digits=2, more_is_better=False),
    },
    contestants=(
        Contestant("plain", functools.partial(run, secured=False)),
        Contestant("TLS by relays", functools.partial(run, secured=True, relayed=True), ("cryptography",)),
        Contestant("TLS in process", functools.partial(run, secured=True), ("cryptography",)),
    ),
    reference="plain",
    sizes={
        "alone": Size(100, 2, "payloads of 4 MiB to receive alone"),
        "beside": Size(12, 1, "payloads of 4 MiB to receive beside a busy thread, or from beside one"),
    },
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--send"]:
        send(sys.argv[2])
    else:
        sys.exit(main("benchmarks.tls"))
