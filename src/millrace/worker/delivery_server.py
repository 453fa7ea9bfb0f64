"""The worker's side of bulk connections: one thread listens to the peer, another sends to it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millrace.errors import MillraceError, ProtocolError
from millrace.protocol import data_messages
from millrace.protocol.messages import TaskRef
from millrace.wire.data.data_connection import BulkConnection, bulk_connect
from millrace.worker.consumer_lane import Lane
from millrace.worker.leftovers import LeftoverStore, answer

FETCH_TIMEOUT_S = 10.0
"""For another worker to answer a connection."""


def serve(
    connection: BulkConnection, find_lane: Callable[[data_messages.Open], Lane | None], store: LeftoverStore
) -> None:
    """Serves one peer, a consumer or a tail's worker, until the connection ends.

    Args:
        connection: a new one; the caller closes it.
        find_lane: the lane of a job's consumer; None if the worker does not serve that job, or another of that name.
        store: leftovers of this worker's tasks.

    Raises:
        ProtocolError: if the peer says what it should not.
        ServiceUnreachableError: when the peer goes.
    """
    message, _ = connection.receive(data_messages.TO_SERVER, limit=0)
    while isinstance(message, data_messages.FetchLeftovers):
        connection.send(*answer(store, message.ref))
        message, _ = connection.receive(data_messages.TO_SERVER, limit=0)
    if not isinstance(message, data_messages.Open):
        raise ProtocolError(f"expected Open or FetchLeftovers first, got {type(message).__name__}")
    lane = find_lane(message)
    if lane is None:
        return  # closing says so: the consumer waits for where to read instead
    lane.attach(connection)
    sender = threading.Thread(
        target=_send_all, args=(lane, connection), name=f"millrace-send-{connection.peer}", daemon=True
    )
    sender.start()
    try:
        while True:
            message, _ = connection.receive(data_messages.TO_SERVER, limit=0)
            lane.told(connection, message)
    finally:
        connection.close()
        lane.detach(connection)
        sender.join()


def _send_all(lane: Lane, connection: BulkConnection) -> None:
    try:
        while (parcel := lane.next_to_send(connection)) is not None:
            if isinstance(parcel, data_messages.Short):
                connection.send(parcel)
                continue
            message = parcel.message
            header = data_messages.Delivery(
                parcel.key[0],
                parcel.key[1],
                parcel.lease,
                parcel.index,
                0 if message is None else message.count,
                parcel.last,
                parcel.skipped,
                parcel.changed,
            )
            connection.send(header, () if message is None else message.buffers)
    except MillraceError:
        connection.close()  # the receiving thread sees it too and cleans up


def fetch_leftovers(
    address: str, refs: list[TaskRef], token: str | None
) -> list[tuple[data_messages.Leftovers, memoryview]]:
    """Asks another worker for leftovers; one answer for each of ``refs``.

    Raises:
        ServiceError: if it can't be asked.
    """
    with bulk_connect(address, token, FETCH_TIMEOUT_S, local=False, sockets=1) as connection:
        answers = []
        for ref in refs:
            connection.send(data_messages.FetchLeftovers(ref))
            header, payload = connection.receive(data_messages.TO_READER)
            if not isinstance(header, data_messages.Leftovers):
                raise ProtocolError(f"expected Leftovers of {ref} from {address}, got {type(header).__name__}")
            answers.append((header, memoryview(payload).cast("B")))
        return answers
