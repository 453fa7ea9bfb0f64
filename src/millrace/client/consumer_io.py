"""Inputs and actions of a consumer's core.

Messages of the dispatcher are inputs as they are. Actions are done in their order, by whoever gave the input.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.client.consumer_progress import EpochProgress
from millrace.client.epoch_buffer import Arrival
from millrace.client.read_rate import Rates
from millrace.errors import MillraceError
from millrace.protocol import data_messages
from millrace.protocol.messages import FromConsumer, ToConsumer


class _Value(msgspec.Struct, frozen=True):
    """Base of inputs and actions."""


# -- from the training process -----------------------------------------------------------------------------------------


class EpochWanted(_Value, frozen=True):
    """The user begins an epoch, of which ``reading`` knows what was read before; None: nothing."""

    number: int
    reading: EpochProgress | None = None


class WeightsWanted(_Value, frozen=True):
    """The user sets the weights of the mixture, in an epoch that was begun."""

    epoch: int
    weights: tuple[float, ...]


class MoreWanted(_Value, frozen=True):
    """The user, who came for more at ``since`` when ``queued`` elements lay ready, still has none of the epoch."""

    epoch: int
    since: float
    queued: int


class Decoded(_Value, frozen=True):
    """The elements of a message that was to be decoded."""

    ask: MoreWanted
    arrival: Arrival
    elements: list[Any]


class Used(_Value, frozen=True):
    """The first elements of the epoch are about to be used: should this process end, that is known."""


class End(_Value, frozen=True):
    """Nobody reads this epoch any more."""

    number: int


class Beat(_Value, frozen=True):
    """A report is due."""


class Broke(_Value, frozen=True):
    """The job cannot go on; the first error counts."""

    error: MillraceError


class Leave(_Value, frozen=True):
    """The user is done with the job."""


# -- from the network --------------------------------------------------------------------------------------------------


class SessionLost(_Value, frozen=True):
    """The session with the dispatcher has ended."""


class Connected(_Value, frozen=True):
    """A worker can be reached, and was told who reads."""

    address: str


class Disconnected(_Value, frozen=True):
    """The connection to a worker has ended, or could not be made."""

    address: str


class Delivered(_Value, frozen=True):
    """A worker sent outputs of a task, in ``size`` bytes."""

    address: str
    header: data_messages.Delivery
    payload: Any
    size: int


class OutputsMissed(_Value, frozen=True):
    """A worker will not send outputs of a task that the window it keeps has no room for any more."""

    address: str
    header: data_messages.Skipped


class TooSmall(_Value, frozen=True):
    """A worker's next message is larger than its credit."""

    address: str
    header: data_messages.Short


Input = (
    EpochWanted
    | WeightsWanted
    | MoreWanted
    | Decoded
    | Used
    | End
    | Beat
    | Broke
    | Leave
    | SessionLost
    | Connected
    | Disconnected
    | Delivered
    | OutputsMissed
    | TooSmall
    | ToConsumer
)


# -- actions -----------------------------------------------------------------------------------------------------------


class Tell(_Value, frozen=True):
    """Send to the dispatcher."""

    message: FromConsumer


class ReportSoon(_Value, frozen=True):
    """Give :class:`Beat` in a moment, unless that is about to happen."""


class TellWorker(_Value, frozen=True):
    """Send to a worker; void if the connection is gone, which :class:`Disconnected` says in a moment."""

    address: str
    message: data_messages.ToServer


class Connect(_Value, frozen=True):
    """Connect to a worker: now, or ``again`` after a pause."""

    address: str
    again: bool = False


class Disconnect(_Value, frozen=True):
    """End the connection to a worker."""

    address: str


class Warn(_Value, frozen=True):
    """Tell the user, once."""

    text: str


class EpochLeft(_Value, frozen=True):
    """Nobody reads this epoch from now on, of which so many elements were handed out, this fast.

    ``missed``: elements that a shared window no longer had; ``members``: jobs that shared the computation.
    """

    number: int
    handed: int
    rates: Rates
    missed: int = 0
    members: int = 0


class Decode(_Value, frozen=True):
    """Answer to :class:`MoreWanted`: decode this message, and give :class:`Decoded`."""

    arrival: Arrival


class HandedOut(_Value, frozen=True):
    """Answer: elements are current; give :class:`Used` before they are used if they are the ``first``."""

    first: bool


class Over(_Value, frozen=True):
    """Answer: there is no more; ``unread``: what of the epoch nobody reads, and if that is all, why; for the user."""

    unread: str = ""


class Refuse(_Value, frozen=True):
    """Answer: nothing comes any more, because of this; ``lost``: in this process, to Ctrl-C."""

    error: MillraceError
    lost: bool = False


Answer = Decode | HandedOut | Over | Refuse
Action = Tell | ReportSoon | TellWorker | Connect | Disconnect | Warn | EpochLeft | Answer
