"""Actions: orders to the dispatcher's shell, to be done once the events are durable."""

from __future__ import annotations

import msgspec

from millrace.protocol.cache_server_messages import ToCacheServer
from millrace.protocol.messages import Failure, ToConsumer, ToWorker


class SendToWorker(msgspec.Struct, frozen=True):
    """Send on the session that the worker has now; without it, the message is void (it says hello and is told anew)."""

    worker: str
    message: ToWorker


class SendToCacheServer(msgspec.Struct, frozen=True):
    """Send on the session that the cache server has now; without it, the message is void."""

    server: str
    message: ToCacheServer


class CloseCacheServer(msgspec.Struct, frozen=True):
    """End the cache server's session because of ``failure``."""

    server: str
    failure: Failure


class SendToClient(msgspec.Struct, frozen=True):
    """Send on the session that the client has now; without it, the message is void."""

    client: str
    message: ToConsumer


class CloseWorker(msgspec.Struct, frozen=True):
    """End the worker's session because of ``failure``."""

    worker: str
    failure: Failure


class CloseClient(msgspec.Struct, frozen=True):
    """End the client's session; ``failure`` has been sent before, None if nothing is wrong."""

    client: str
    failure: Failure | None = None


class StopWorkers(msgspec.Struct, frozen=True):
    """Have the cluster end these processes, if it started them."""

    workers: list[str]
    reason: str


class ResizeFleet(msgspec.Struct, frozen=True):
    """Have the cluster run so many workers; those that are too many end by themselves."""

    workers: int


class DropBlobs(msgspec.Struct, frozen=True):
    """The job is gone, and with it its blobs."""

    job: str


class EndService(msgspec.Struct, frozen=True):
    """Nothing good can come of going on, for this reason."""

    reason: str


class ListStore(msgspec.Struct, frozen=True):
    """Find out which blocks there are, and answer with :class:`millrace.control.inputs.StoreListed`.

    Attributes:
        leases: that have ended by now.
        known: by place and name, bytes of blocks that need not be looked into.
    """

    leases: list[int]
    known: dict[str, dict[str, int]]


class DeleteBlocks(msgspec.Struct, frozen=True):
    """Delete these, and answer with :class:`millrace.control.inputs.BlocksGone`."""

    place: str
    names: list[str]


Action = (
    SendToWorker
    | SendToClient
    | CloseWorker
    | CloseClient
    | SendToCacheServer
    | CloseCacheServer
    | StopWorkers
    | ResizeFleet
    | DropBlobs
    | EndService
    | ListStore
    | DeleteBlocks
)
