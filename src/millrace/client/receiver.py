"""Receiver of elements from workers: a connection and a thread for each worker that a consumer's core wants."""

from __future__ import annotations

import errno
import logging
import threading
import time
from typing import TYPE_CHECKING

from millrace.client import consumer_io as io
from millrace.errors import AuthenticationError, ProtocolError, ServiceError, TlsError, VersionMismatchError
from millrace.protocol import data_messages
from millrace.wire.address import parse_address
from millrace.wire.backoff import delays
from millrace.wire.data.buffer_pool import BufferPool
from millrace.wire.data.compression import Compression
from millrace.wire.data.data_connection import DataConnection, open_data_connection
from millrace.wire.data.data_keys import consumer_credential
from millrace.wire.tls_files import TlsFiles, beyond_loopback

if TYPE_CHECKING:
    from millrace.client.shared_core import SharedCore

CONNECT_TIMEOUT_S = 10.0
IDLE_PART = 4
"""One part in so many of the buffer's bytes may be held besides, in memory that awaits its next use."""

_LACKING = {
    errno.EMFILE: "no file descriptor (ulimit -n)",
    errno.ENOMEM: "no room to map memory (ulimit -v, vm.max_map_count, vm.overcommit_memory)",
}
"""By the number of the error, what this process may have too little of to share memory with workers."""

_logger = logging.getLogger(__name__)


class WorkerConnections:
    """Connections to workers. Methods are called with the core's lock held.

    Args:
        shared: the core, and who feeds it.
        compression: of what comes over the network.
        buffer_bytes: bound on what is held and granted.
        tls: certificates; None: the service has none.
    """

    def __init__(
        self,
        shared: SharedCore,
        *,
        compression: Compression | None = None,
        buffer_bytes: int,
        tls: TlsFiles | None = None,
    ) -> None:
        self._shared, self._compression, self._tls = shared, compression, tls
        self._memory = BufferPool(buffer_bytes // IDLE_PART)
        self._retry: set[str] = set()
        self._threads: dict[str, threading.Thread] = {}
        self._connections: dict[str, DataConnection] = {}

    def connect(self, address: str, *, again: bool) -> None:
        """Have a thread connect to a worker; if it tries ``again``, that thread is what asks."""
        if address not in self._threads:
            thread = threading.Thread(target=self._serve, args=(address,), name=f"millrace-read-{address}", daemon=True)
            self._threads[address] = thread
            thread.start()
        elif not again:
            self._retry.add(address)

    def connection(self, address: str) -> DataConnection | None:
        """Find the connection to a worker, if there is one."""
        return self._connections.get(address)

    def disconnect(self, address: str) -> None:
        """End the connection to a worker; the thread that receives on it sees that."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    @property
    def threads(self) -> list[threading.Thread]:
        """Threads that serve a connection, or try to make one."""
        return list(self._threads.values())

    def _serve(self, address: str) -> None:
        """Read from one worker while anything is to come from it, through as many connections as it takes."""
        shared = self._shared
        pauses = delays()
        complaint = ""
        near = True  # if the worker is on this host, and this process can have the descriptors of what is shared
        while True:
            began = time.monotonic()
            try:
                with shared.lock:
                    opening, key = shared.core.opening()
                with open_data_connection(
                    address,
                    None,
                    CONNECT_TIMEOUT_S,
                    local=near,
                    compression=self._compression,
                    credential=consumer_credential(key, opening),
                    tls=beyond_loopback(self._tls, parse_address(address)[0]),
                ) as connection:
                    self._receive(address, connection, opening)
            except (AuthenticationError, VersionMismatchError, ProtocolError) as error:
                shared.handle(io.Broke(error))
            except ServiceError as error:
                # Lost, or not there. If it is dead the dispatcher names another; until then it is worth trying again.
                if isinstance(error, TlsError) and str(error) != complaint:
                    complaint = str(error)
                    _logger.warning("nothing is read from worker %s: %s", address, error)
                _logger.debug("worker %s: %s", address, error)
                lacking = _LACKING.get(getattr(error.__cause__, "errno", 0), "")
                if near and lacking:
                    near = False
                    _logger.warning(
                        "%s is left to this process for what worker %s shares with it: elements are copied through a"
                        " socket from now on",
                        lacking,
                        address,
                    )
            except Exception as error:  # noqa: BLE001 - no memory, no thread: a loop that waits for ever says nothing
                shared.handle(io.Broke(ServiceError(f"reading from worker {address} failed: {error!r}")))
            if time.monotonic() - began > CONNECT_TIMEOUT_S:
                pauses = delays()  # it went well for a while
            shared.handle(io.Disconnected(address))
            with shared.lock:
                if not shared.core.wants(address):
                    del self._threads[address]
                    return
                self._retry.discard(address)
                over = lambda: address in self._retry or not shared.core.wants(address)  # noqa: E731 (said once)
                shared.changed.wait_for(over, next(pauses))

    def _receive(self, address: str, connection: DataConnection, opening: data_messages.Open) -> None:
        """Read until the connection ends, which raises."""
        shared = self._shared
        connection.send(opening)
        with shared.lock:
            self._connections[address] = connection
        shared.handle(io.Connected(address))
        try:
            while True:
                header, payload = connection.receive(data_messages.TO_READER, self._memory.allocate)
                if isinstance(header, data_messages.Delivery):
                    shared.handle(io.Delivered(address, header, payload, payload.nbytes if header.count else 0))
                elif isinstance(header, data_messages.Short):
                    shared.handle(io.TooSmall(address, header))
                elif isinstance(header, data_messages.Skipped):
                    shared.handle(io.OutputsMissed(address, header))
                else:
                    raise ProtocolError(f"{address} sent {type(header).__name__}, which nobody asked for")
        finally:
            with shared.lock:
                if self._connections.get(address) is connection:
                    del self._connections[address]


def send(connection: DataConnection, message: data_messages.ToServer) -> None:
    """Send to a worker; if that fails, the thread that receives on the connection sees it and connects anew."""
    try:
        connection.send(message)
    except ServiceError:
        connection.close()
