"""Messages between the dispatcher and workers about caches; a part of :mod:`millrace.protocol.messages`."""

from __future__ import annotations

import msgspec

from millrace.policies.caching.io_cost import TransferCost
from millrace.protocol.message import Message


class KeptBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block that was published.

    Attributes:
        name: without its point.
        bytes: its size.
        items: that it holds.
    """

    name: str
    bytes: int
    items: int = 0


class StoreCost(msgspec.Struct, frozen=True):
    """Measured cost of a store; see :class:`millrace.blocks.store_benchmark.Calibration`.

    Attributes:
        memory: bytes of the host that measured it: what is larger is read from the store itself.
    """

    read: TransferCost
    cold: TransferCost
    write: TransferCost
    cpu_s: float
    threads: int
    memory: int = 0


class CacheUsed(Message, frozen=True, tag="CacheUsed"):
    """Use that a run made of a cache point; before it is said how the run ended.

    Of what it read beside its own it says only what was lost, in another message.

    Attributes:
        job: that the run was for.
        place: of the point.
        blocks: that were published.
        lost: names of blocks that should have been there and could not be read.
        hits: items that were read, ``misses`` those that were made.
        reads: of the store, of ``read_bytes``, in ``read_s`` seconds in which any were under way.
        error: why nothing was kept, or no more; empty if all was.
        wanted: bytes for which there was no room, with what was kept; 0: there was.
    """

    job: str
    lease: int
    place: str
    blocks: list[KeptBlock] = []
    lost: list[str] = []
    hits: int = 0
    misses: int = 0
    reads: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    error: str = ""
    wanted: int = 0


class StoreMeasured(Message, frozen=True, tag="StoreMeasured"):
    """Answer to MeasureStore; without ``cost`` it could not be used, for this reason."""

    path: str
    cost: StoreCost | None = None
    why: str = ""


class MeasureStore(Message, frozen=True, tag="MeasureStore"):
    """Find out what reads and writes of the store take, beside other work, with no more than ``room`` bytes in it."""

    path: str
    room: int


class BlocksKnown(Message, frozen=True, tag="BlocksKnown"):
    """Blocks of a point that can be read from now on, and some that can't any more; ``whole``: nor can any others."""

    place: str
    names: list[str] = []
    gone: list[str] = []
    whole: bool = False


class CacheUse(msgspec.Struct, frozen=True, array_like=True):
    """Use that a run is to make of a cache point.

    Attributes:
        node: of the point.
        place: where those of its blocks lie that were made for the job's tenant.
        random: something random is below it.
        room: bytes that may be added there.
        writer: that tenant; empty in a pipeline's own folder.
        also: by place, the writers of blocks that may be read beside these.
    """

    node: int
    place: str
    random: bool
    room: int = 0
    writer: str = ""
    also: dict[str, str] = {}
