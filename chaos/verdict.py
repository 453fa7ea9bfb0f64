"""Compares what consumers have read with what they should have."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from chaos.pipeline import Expected
from chaos.reader import Read


@dataclasses.dataclass
class Verdict:
    """What came of the epochs looked at.

    Attributes:
        epochs: how many.
        elements: that were compared.
        lost: elements that nobody has read.
        duplicated: elements that were read once too often, each time.
        wrong: elements of another content, or that there should not be.
        misplaced: batches of other elements than in the plan, or out of order where there is one.
    """

    epochs: int = 0
    elements: int = 0
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    misplaced: int = 0

    @property
    def right(self) -> bool:
        """Whether there is nothing to complain of."""
        return not (self.lost or self.duplicated or self.wrong or self.misplaced)

    def __add__(self, other: Verdict) -> Verdict:
        """Both together."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Verdict(*(mine + theirs for mine, theirs in pairs))


def judge(expected: Sequence[Expected], read: Sequence[Sequence[Read]], *, in_order: bool) -> Verdict:
    """Looks at every element.

    Args:
        expected: the epochs.
        read: by consumer, what it has read of all epochs, in order.
        in_order: each consumer was to read in the plan's order.
    """
    epochs = range(len(expected))
    total = Verdict()
    for number in epochs:
        total += _judge_epoch(
            expected[number], [[each for each in part if each.epoch == number] for part in read], in_order
        )
    total.wrong += sum(len(each.numbers) for part in read for each in part if each.epoch not in epochs)
    if any(part != sorted(part) for part in ([each.epoch for each in part] for part in read)):
        total.misplaced += 1
    return total


def _judge_epoch(expected: Expected, read: Sequence[Sequence[Read]], in_order: bool) -> Verdict:
    right = {number: print_ for numbers, prints in expected for number, print_ in zip(numbers, prints, strict=True)}
    places = {tuple(numbers): place for place, (numbers, _) in enumerate(expected)}
    seen: collections.Counter[int] = collections.Counter()
    verdict = Verdict(epochs=1)
    for part in read:
        last = -1
        for batch in part:
            for number, print_ in zip(batch.numbers, batch.prints, strict=True):
                seen[number] += 1
                verdict.wrong += right.get(number) != print_
            place = places.get(tuple(batch.numbers))
            if place is None or (in_order and place <= last):
                verdict.misplaced += 1
            else:
                last = place
    verdict.elements = seen.total()
    verdict.lost = len(right.keys() - seen.keys())
    verdict.duplicated = sum(count - 1 for number, count in seen.items())
    return verdict
