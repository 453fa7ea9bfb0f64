"""Messages between a worker of another user and the broker of its service's store: one request, one answer.

Each is a packet of a Unix socket (``SOCK_SEQPACKET``): it comes whole, so that nothing is put together of what user
code may have sent.
"""

from __future__ import annotations

import msgspec

PACKET_BYTES = 160 << 10
"""Most bytes of a packet; Linux takes some 200 KiB by default."""
PIECE_BYTES = 128 << 10
"""Most bytes of a block in one packet."""


class UseStore(msgspec.Struct, frozen=True, tag="use"):
    """Request: from now on the store is the one at ``location``; the first one counts, and "" is one, too."""

    location: str


class FetchBlock(msgspec.Struct, frozen=True, tag="open"):
    """Request: a descriptor of a block, for reading."""

    point: str
    name: str


class BeginDraft(msgspec.Struct, frozen=True, tag="begin"):
    """Request: a draft; the answer has its number."""


class WriteDraft(msgspec.Struct, frozen=True, tag="write"):
    """Request: append bytes to a draft."""

    draft: int
    data: bytes


class PublishDraft(msgspec.Struct, frozen=True, tag="publish"):
    """Request: end a draft, as the block of this name."""

    draft: int
    point: str
    name: str


class DiscardDraft(msgspec.Struct, frozen=True, tag="discard"):
    """Request: remove a draft, if it is there."""

    draft: int


class DeleteBlock(msgspec.Struct, frozen=True, tag="delete"):
    """Request: remove a block of a measurement that this worker has published itself."""

    point: str
    name: str


class AskRoom(msgspec.Struct, frozen=True, tag="room"):
    """Request: bytes that still fit; the answer has their number, or -1 where it is not known."""


Request = UseStore | FetchBlock | BeginDraft | WriteDraft | PublishDraft | DiscardDraft | DeleteBlock | AskRoom


class BrokerAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """BrokerAnswer: a number, a descriptor that comes along, or an error.

    Attributes:
        number: of a draft, or of bytes.
        location: path of the block that is opened, for messages.
        error: name of the error's class; empty: there is none.
        message: of the error.
    """

    number: int = 0
    location: str = ""
    error: str = ""
    message: str = ""
