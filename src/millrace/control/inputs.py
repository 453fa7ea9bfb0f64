"""Inputs of the dispatcher's core. All that is random or measured comes in here, drawn by the shell."""

from __future__ import annotations

import msgspec

from millrace.protocol.cache_messages import KeptBlock
from millrace.protocol.cache_server_messages import FromCacheServer
from millrace.protocol.caller import ADMINISTRATOR, Caller
from millrace.protocol.messages import Failure, FromConsumer, FromWorker, JoinJob


class Started(msgspec.Struct, frozen=True):
    """The dispatcher listens at ``address``, with the state that its journal gave; nobody has a session yet.

    ``drawn`` is a name for this life of the service, and for the service if it is the first one.
    """

    address: str
    drawn: str = ""


class WorkerSaid(msgspec.Struct, frozen=True):
    """A message on the session of ``worker``, which ``caller`` has begun."""

    worker: str
    message: FromWorker
    caller: Caller = ADMINISTRATOR


class WorkerSessionLost(msgspec.Struct, frozen=True):
    """The worker's newest session broke; it may come back."""

    worker: str


class WorkerEnded(msgspec.Struct, frozen=True):
    """Its process has ended, says the cluster; it will not come back."""

    worker: str
    reason: str


class CacheServerSaid(msgspec.Struct, frozen=True):
    """A message on the session of the cache server ``server``, which ``caller`` has begun."""

    server: str
    message: FromCacheServer
    caller: Caller = ADMINISTRATOR


class CacheServerSessionLost(msgspec.Struct, frozen=True):
    """The cache server's newest session broke; it may come back."""

    server: str


class JoinRequested(msgspec.Struct, frozen=True):
    """A client's first message, with a name and a seed for the job if it has none."""

    message: JoinJob
    job: str
    seed: int
    caller: Caller = ADMINISTRATOR


class ConsumerSaid(msgspec.Struct, frozen=True):
    """A later message on the session of ``client``."""

    client: str
    message: FromConsumer


class ClientSessionLost(msgspec.Struct, frozen=True):
    """The client's newest session broke; it may come back."""

    client: str


class StoreListed(msgspec.Struct, frozen=True):
    """All blocks in the service's store, by place, after ``leases`` had ended; None: it could not be listed.

    Those that were known with this size have no number of items; of a place where others are the writer is told.
    """

    blocks: dict[str, list[KeptBlock]] | None
    leases: list[int] = []
    writers: dict[str, str] = {}


class BlocksGone(msgspec.Struct, frozen=True):
    """Blocks were deleted, as the dispatcher had asked, and those that ``stay`` could not be."""

    place: str
    names: list[str]
    stay: list[str] = []


class RemovalAsked(msgspec.Struct, frozen=True):
    """Somebody wants all blocks of these points to be deleted."""

    places: list[str]
    caller: Caller = ADMINISTRATOR


class Unsendable(msgspec.Struct, frozen=True):
    """A message to a worker or a consumer of the job cannot be sent, as it is too large, say."""

    job: str
    failure: Failure


class Tick(msgspec.Struct, frozen=True):
    """Time has passed; processes of these workers are ``running``, says the cluster, whether they registered or not."""

    running: list[str] = []


Input = (
    Started
    | WorkerSaid
    | WorkerSessionLost
    | WorkerEnded
    | CacheServerSaid
    | CacheServerSessionLost
    | JoinRequested
    | ConsumerSaid
    | ClientSessionLost
    | StoreListed
    | BlocksGone
    | RemovalAsked
    | Unsendable
    | Tick
)
