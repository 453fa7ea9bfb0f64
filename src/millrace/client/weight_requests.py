"""Weights that a training sets on a service: what it asked the dispatcher, and what it was answered. Pure."""

from __future__ import annotations

from msgspec.structs import replace

from millrace.client.consumer_progress import EpochProgress
from millrace.protocol.messages import EpochBegun
from millrace.protocol.weight_messages import SetWeights, WeightsSet


class WeightRequests:
    """Requests of one consumer, one after the other.

    Attributes:
        pending: what was asked and is not answered, to be said again to a dispatcher that comes back; None: nothing.
        answer: the last one.
    """

    def __init__(self) -> None:
        self.pending: SetWeights | None = None
        self.answer: WeightsSet | None = None
        self._number = 0

    def ask(self, epoch: int, weights: tuple[float, ...]) -> SetWeights:
        """Make the message that sets weights."""
        self._number += 1
        self.pending, self.answer = SetWeights(epoch, weights, self._number), None
        return self.pending

    def hear(self, told: WeightsSet, reading: EpochProgress | None) -> None:
        """Note the weights of an epoch for its states, and that they answer what was asked, if they do."""
        if reading is not None and not told.refused:
            note(reading, told)
        if self.pending is not None and told.number == self.pending.number:
            self.pending, self.answer = None, told


def note(reading: EpochProgress, told: WeightsSet | EpochBegun) -> None:
    """Have states of an epoch say which weights were set in it, as its dispatcher knows them."""
    begun = reading.begun
    if begun is not None and begun.epoch == told.epoch:
        reading.begun = replace(begun, reweighted=told.reweighted)
