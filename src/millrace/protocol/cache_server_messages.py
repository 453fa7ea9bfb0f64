"""Messages of cache servers to the dispatcher, and its messages to them and about them.

    cache server                              dispatcher                       worker
      | CacheServerHello ------------------->   |                                 |
      | <-------------- CacheServerWelcome(key) | CacheServersKnown ----------->  |
      | CacheServerReport (now and then) ---->  |                                 |
      | <----------------- KeepChunks (changes) |                                 |

Items go between workers and cache servers directly, see :mod:`millrace.protocol.source_cache_messages`.
"""

from __future__ import annotations

import msgspec

from millrace.protocol.cache_messages import BlocksKnown, MeasureStore
from millrace.protocol.message import Message


class SourceCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of a cache server since it started.

    Attributes:
        hits: items that were asked for and there.
        hit_bytes: bytes of those.
        joined: items that were missing, and that who asked waited for, as another one was fetching them.
        misses: items that who asked was told to fetch.
        inserted: items that were inserted.
        inserted_bytes: bytes of those.
        refused: inserted items that were not kept, for want of room.
        wrong: inserted items that were not what their hash says, and nobody was given.
        passed_on: claims that passed on to somebody else.
        items: that are kept now.
        bytes: of segments that they lie in.
    """

    hits: int = 0
    hit_bytes: int = 0
    joined: int = 0
    misses: int = 0
    inserted: int = 0
    inserted_bytes: int = 0
    refused: int = 0
    wrong: int = 0
    passed_on: int = 0
    items: int = 0
    bytes: int = 0


class CacheServerHello(Message, frozen=True, tag="CacheServerHello"):
    """First message of a cache server's session. ``server`` is chosen by it once per process life."""

    server: str
    address: str  # host:port of its data port
    host: str = ""
    pid: int = 0
    most_bytes: int = 0
    zone: str = ""  # that it is in; empty: in none


class CacheServerReport(Message, frozen=True, tag="CacheServerReport"):
    """Heartbeat."""

    counts: SourceCounts = SourceCounts()


class CacheServerWelcome(Message, frozen=True, tag="CacheServerWelcome"):
    """Registered. From ``key`` follow those of tenants; the dispatcher's shell puts it in."""

    heartbeat_s: float
    key: bytes = b""


class KeepChunks(Message, frozen=True, tag="KeepChunks"):
    """To cache servers: of these data sets, keep what is labelled so and nothing else that bears their names.

    For this other data go, those that nobody has spoken of.

    Attributes:
        sets: (name, labels) of each, see :func:`~millrace.protocol.source_cache_messages.chunk_label`. Where the name
            itself is among the labels, all of the data set is kept.
    """

    sets: list[tuple[bytes, list[bytes]]]


class CacheServersKnown(Message, frozen=True, tag="CacheServersKnown"):
    """To workers: the data ports of all cache servers that are there, and the jobs that read past them for now.

    Attributes:
        zones: by address of a server that is in a zone, that zone; see :mod:`millrace.planning.server_zones`.
    """

    addresses: list[str]
    past: list[str] = []
    zones: dict[str, str] = {}


OfCaches = BlocksKnown | MeasureStore | CacheServersKnown
"""Messages to workers about caches of either kind."""
ToCacheServer = CacheServerWelcome | KeepChunks
FromCacheServer = CacheServerHello | CacheServerReport
