"""Delivery server: for each bulk connection a thread that listens to the peer, and one that sends to it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millrace.errors import MillraceError, ProtocolError
from millrace.protocol import data_messages
from millrace.protocol.messages import TaskRef
from millrace.wire.address import parse_address
from millrace.wire.data.data_connection import DataConnection, open_data_connection
from millrace.wire.data.data_keys import A_WORKER, Credential, read_claims
from millrace.wire.tls_files import TlsFiles, beyond_loopback
from millrace.worker.core.worker_inputs import Input, PeerLeft, PeerSaid

FETCH_TIMEOUT_S = 10.0
"""Seconds for another worker to answer a connection."""

_Item = tuple[data_messages.ToReader, Sequence[Any], bool]
"""Header, buffers, and whether others are sent the same ones."""


def with_end(header: data_messages.ToReader, following: data_messages.ToReader) -> data_messages.Delivery | None:
    """Header of a task's last outputs that marks its end too; None unless ``following`` is the bare mark of that end.

    The core says both as soon as it knows them. Tasks may last milliseconds: a message less for each is worth having.
    """
    if not (isinstance(header, data_messages.Delivery) and isinstance(following, data_messages.Delivery)):
        return None
    ends = following.last and not following.count and following.index == header.index + header.count
    same = (header.epoch, header.task, header.lease) == (following.epoch, following.task, following.lease)
    if not (ends and same):
        return None
    return msgspec.structs.replace(header, last=True, skipped=following.skipped, left_out=following.left_out)


class PeerConnection:
    """Connection of a reader, or of a tail's worker. What it is sent is bounded by its credit."""

    def __init__(self, connection: DataConnection) -> None:
        self._connection = connection
        self._claims = read_claims(connection.claims)
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()

    def send(self, header: data_messages.ToReader, buffers: Sequence[Any] = (), *, shared: bool = False) -> None:
        """Have a message sent, behind those before, which others may be sent if it is ``shared``; does not wait."""
        self._queue.put((header, buffers, shared))

    def hang_up(self) -> None:
        """End the connection; whoever sends or receives on it notices."""
        self._connection.close()

    def serve(self, feed: Callable[[Input], None]) -> None:
        """Feed what the peer says, until the connection ends; the caller closes it.

        Raises:
            ProtocolError: if the peer says what it should not.
            ServiceUnreachableError: when the peer goes.
        """
        sender = threading.Thread(target=self._send_all, name=f"millrace-send-{self._connection.peer}", daemon=True)
        sender.start()
        first: tuple[type, ...] = (data_messages.Open, data_messages.FetchLeftovers)
        try:
            while True:
                message, _ = self._connection.receive(data_messages.TO_SERVER, limit=0)
                if first and not isinstance(message, first):
                    raise ProtocolError(f"expected Open or FetchLeftovers first, got {type(message).__name__}")
                if isinstance(message, data_messages.Open):
                    first = ()
                self._check(message)
                feed(PeerSaid(self, message))
        finally:
            self._connection.close()
            feed(PeerLeft(self))
            self._queue.put(None)
            sender.join()

    def _check(self, message: data_messages.ToServer) -> None:
        """Refuse what the peer's key is not for."""
        claimed = self._claims
        match message:
            case data_messages.Open():
                allowed = message == claimed
            case data_messages.FetchLeftovers(ref=ref):
                allowed = claimed.consumer == A_WORKER and claimed.job == ref.job
            case _:
                allowed = claimed.consumer != A_WORKER
        if not allowed:
            raise ProtocolError(
                f"the key of this peer is for consumer {claimed.consumer} of job {claimed.job!r}, and it asks for "
                f"something else: {type(message).__name__}"
            )

    def _send_all(self) -> None:
        ahead: list[_Item | None] = []
        try:
            while (item := ahead.pop() if ahead else self._queue.get()) is not None:
                with contextlib.suppress(queue.Empty):
                    ahead.append(self._queue.get_nowait())
                if ahead and ahead[0] is not None and (whole := with_end(item[0], ahead[0][0])) is not None:
                    item = whole, *item[1:]
                    ahead.clear()
                header, buffers, shared = item
                self._connection.send(header, buffers, shared=shared)
                item, buffers = None, ()  # shared memory is not held while nothing is sent
        except MillraceError:
            self._connection.close()  # the receiving thread sees it too and cleans up


def fetch_leftovers(
    address: str, refs: list[TaskRef], credential: Credential, tls: TlsFiles | None = None
) -> list[tuple[data_messages.Leftovers, memoryview]]:
    """Ask another worker for leftovers; one answer for each of ``refs``.

    Raises:
        ServiceError: if it can't be asked.
    """
    secured = beyond_loopback(tls, parse_address(address)[0])
    opened = open_data_connection(
        address, None, FETCH_TIMEOUT_S, local=False, sockets=1, credential=credential, tls=secured
    )
    with opened as connection:
        connection.give_up_after(FETCH_TIMEOUT_S)  # of a worker that stands still the dispatcher may never hear
        answers = []
        for ref in refs:
            connection.send(data_messages.FetchLeftovers(ref))
            header, payload = connection.receive(data_messages.TO_READER)
            if not isinstance(header, data_messages.Leftovers):
                raise ProtocolError(f"expected Leftovers of {ref} from {address}, got {type(header).__name__}")
            answers.append((header, memoryview(payload).cast("B")))
        return answers
