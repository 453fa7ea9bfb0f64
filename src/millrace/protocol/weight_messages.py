"""Messages of weights that a training loop sets while an epoch is read."""

from __future__ import annotations

from millrace.planning.epoch_shape import WeightChange
from millrace.protocol.message import Message


class SetWeights(Message, frozen=True, tag="SetWeights"):
    """A consumer's training sets the weights of the pipeline's mixture, in the epoch that it reads.

    ``number`` tells what a client asks apart: who comes back asks again, and is answered as before.
    """

    epoch: int
    weights: tuple[float, ...]
    number: int


class WeightsSet(Message, frozen=True, tag="WeightsSet"):
    """The weights that were set in an epoch, all of them, for a consumer that reads it; what is leased later has them.

    To whoever asked it is the answer to ``number``: they hold from ``element`` of the mixture on, or were ``refused``,
    in a sentence; ``late``: nothing in the epoch is made of elements from there on. -1: somebody else asked.
    """

    epoch: int
    reweighted: tuple[WeightChange, ...] = ()
    number: int = -1
    element: int = 0
    refused: str = ""
    late: bool = False
