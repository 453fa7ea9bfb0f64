"""Messages of consumers and workers to one another on a data connection.

Everything is pushed: a consumer says once which tasks it wants, grants bytes, and the worker sends as soon as it has.

    consumer                                  worker
      | Open ------------------------------->   |
      | Credit(64 MiB) --------------------->   |
      | Read(task 3), Read(task 8) --------->   |
      | <--- Delivery(task 3, 0..41) + payload  |
      | Received(task 3, 42) --------------->   |  frees the worker's buffer
      | Credit(1 MiB) ---------------------->   |  elements went to the user
      | <----------------- Short(size, credit)  |  the next message is larger than what was granted
      | <--- Delivery(task 3, 42, last=True)    |

A tail task's worker asks the workers that ran its inputs in the same way: FetchLeftovers, answered by Leftovers.
Payloads are messages of :mod:`millrace.elements.codec`.
"""

from __future__ import annotations

import msgspec

from millrace.protocol.messages import TaskRef


class BulkMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all headers."""


# -- consumer to worker ------------------------------------------------------------------------------------------------


class Open(BulkMessage, frozen=True, tag="Open"):
    """First message: whose outputs this connection carries. A later connection of the same consumer replaces it."""

    job: str
    consumer: int
    client: str = ""
    generation: int = 0
    """Of the job that the consumer has joined."""


class Read(BulkMessage, frozen=True, tag="Read"):
    """Send the outputs of this lease from number ``start`` on, now or as soon as there are any."""

    epoch: int
    task: int
    lease: int
    start: int = 0


class Credit(BulkMessage, frozen=True, tag="Credit"):
    """The consumer has room for so many more bytes of payload."""

    bytes: int
    share: int = 0
    """What each of its workers may have on their way at a time: messages should be a part of it."""
    slot: int = 0
    """Of coordinated jobs: for messages of tasks of this slot alone, as tasks of several are read on a connection."""


class Received(BulkMessage, frozen=True, tag="Received"):
    """The consumer holds all outputs of the task below ``upto``; the worker may drop them."""

    epoch: int
    task: int
    upto: int
    complete: bool = False
    """That includes the mark of the task's end."""


# -- worker to consumer ------------------------------------------------------------------------------------------------


class Delivery(BulkMessage, frozen=True, tag="Delivery"):
    """``count`` outputs of a task, numbered from ``index``; the payload is one codec message.

    Without outputs there is no payload.
    """

    epoch: int
    task: int
    lease: int
    index: int
    count: int
    last: bool = False
    """Nothing follows: ``index + count`` is the number of the task's outputs."""
    skipped: int = 0
    """With ``last``: elements of the task that ``on_error`` left out."""
    changed: str = ""
    """Of a task that was run before: a file of its source that was written since it was listed, if any is known."""
    left_out: int = 0
    """With ``last``: elements at the end of the epoch that filled no round of a coordinated job."""


class Short(BulkMessage, frozen=True, tag="Short"):
    """The next message of ``size`` bytes is larger than the credit left. ``returned``: that credit, given back.

    With size 0: the message for which the credit came need not be sent any more.
    """

    size: int
    count: int
    returned: int
    slot: int = 0
    """Of coordinated jobs: the slot whose message and credit these are."""


class Skipped(BulkMessage, frozen=True, tag="Skipped"):
    """The outputs below ``upto`` that the consumer was not sent will not come: a shared window holds newer ones.

    Said once for all of them that lie in a row, before the next output, or before the mark of the end.
    """

    epoch: int
    task: int
    lease: int
    upto: int


# -- worker to worker --------------------------------------------------------------------------------------------------


class FetchLeftovers(BulkMessage, frozen=True, tag="FetchLeftovers"):
    """Ask for what this task left to its parent."""

    ref: TaskRef


class LeftoverPart(msgspec.Struct, frozen=True, array_like=True):
    """One collecting node's share of a Leftovers payload, which is the parts' codec messages end to end."""

    node: int
    count: int
    bytes: int


class Leftovers(BulkMessage, frozen=True, tag="Leftovers"):
    """Answer; ``found`` is false if the worker does not have them (any more)."""

    ref: TaskRef
    found: bool
    parts: list[LeftoverPart] = []


ToServer = Open | Read | Credit | Received | FetchLeftovers
ToReader = Delivery | Short | Skipped | Leftovers

TO_SERVER: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
"""Reads headers that a worker is sent."""
TO_READER: msgspec.msgpack.Decoder[ToReader] = msgspec.msgpack.Decoder(ToReader)
"""Reads headers that a consumer, or a tail's worker, is sent."""
