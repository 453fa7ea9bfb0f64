"""Choice patterns: mixtures whose inputs are chosen in a fixed order, such as each in turn, or three of one to one.

Which input an element comes from, and which of its elements it is, follows for any position from the pattern and from
how many elements the inputs have. An input that is chosen and has no more element ends the mixture, or is passed over
from then on, or, where inputs begin again, counts as one that has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.planning.mixture import ENDLESS

Positions = npt.NDArray[np.int64]


class _Stretch(NamedTuple):
    """Stretch of the choices in which the same inputs have elements left.

    Attributes:
        first: number of its first element in the mixture.
        before: choices of these inputs before that one, those of earlier stretches included.
        places: where in the pattern they are chosen, ascending.
    """

    first: int
    before: int
    places: Positions


class ChoicePattern:
    """Mixture of inputs of known length that are chosen as a pattern says, which is gone through again and again.

    Args:
        choices: numbers of inputs, the pattern.
        times: how often the pattern is gone through; None: without end.
        counts: number of elements of each input, ``ENDLESS`` or more if it never ends.
        stop_on_empty: end where an input is chosen that has no more element; else pass over it.
        passes: of inputs that begin again, the elements of one pass of each: the mixture ends where all have been
            found at the end of a pass. ``counts`` are then those without end.

    Attributes:
        total: its number of elements; ``ENDLESS`` if it never ends.
    """

    def __init__(
        self,
        choices: Sequence[int],
        times: int | None,
        counts: Sequence[int],
        stop_on_empty: bool = True,
        passes: Sequence[int] | None = None,
    ) -> None:
        self._choices = np.array(choices, np.int64)
        self._chosen = np.bincount(self._choices, minlength=len(counts)) if len(choices) else np.zeros(1, np.int64)
        self._places = [np.flatnonzero(self._choices == number) for number in range(len(counts))]
        self._ranks = np.zeros(len(choices), np.int64)
        for places in self._places:
            self._ranks[places] = np.arange(len(places))
        end = ENDLESS if times is None and len(choices) else min(ENDLESS, len(choices) * (times or 0))
        chosen = [number for number, places in enumerate(self._places) if len(places)]
        ends = {number: self._choice(number, counts[number]) for number in chosen}
        if stop_on_empty:
            end = min([end, *ends.values()])
        elif passes is not None and chosen:
            end = min(end, max(self._choice(number, passes[number]) for number in chosen))
        self._stretches = list(self._cut(ends, end))
        last = self._stretches[-1]
        self.total = min(ENDLESS, last.first + self._count(last.places, end) - last.before)

    def resolve(self, positions: npt.ArrayLike) -> tuple[Positions, Positions]:
        """Find for each of ``positions`` (int64, any order) the input's number and the position within that input.

        Raises:
            IndexError: if a position is negative or not below :attr:`total`.
        """
        wanted = np.asarray(positions, np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= self.total):
            raise IndexError(f"positions of these choices are below {self.total}, not {wanted.min()} to {wanted.max()}")
        firsts = np.array([stretch.first for stretch in self._stretches], np.int64)
        found = np.searchsorted(firsts, wanted, side="right") - 1
        which, index = np.empty_like(wanted), np.empty_like(wanted)
        there = np.flatnonzero(np.bincount(found)).tolist()
        for number in there:
            members: slice | Positions = slice(None) if len(there) == 1 else np.flatnonzero(found == number)
            stretch = self._stretches[number]
            turns, within = np.divmod(wanted[members] - stretch.first + stretch.before, len(stretch.places))
            places = stretch.places[within]
            which[members] = self._choices[places]
            index[members] = turns * self._chosen[which[members]] + self._ranks[places]
        return which, index

    def _choice(self, number: int, count: int) -> int:
        """Find the choice that asks an input for more than ``count`` elements."""
        if count >= ENDLESS:
            return ENDLESS
        turns, within = divmod(count, len(self._places[number]))
        return min(ENDLESS, turns * len(self._choices) + int(self._places[number][within]))

    def _count(self, places: Positions, choice: int) -> int:
        """Count the choices before number ``choice`` at these places of the pattern."""
        if not len(places):
            return 0
        if choice >= ENDLESS:
            return ENDLESS
        turns, within = divmod(choice, len(self._choices))
        return turns * len(places) + int(np.searchsorted(places, within))

    def _cut(self, ends: dict[int, int], end: int) -> list[_Stretch]:
        """Cut the choices before number ``end`` where an input has no more element."""
        places = np.arange(len(self._choices))
        stretches = [_Stretch(0, 0, places)]
        for number, stop in sorted(ends.items(), key=lambda item: item[1]):
            if stop >= end:
                break
            last = stretches[-1]
            first = last.first + self._count(places, stop) - last.before
            places = places[self._choices[places] != number]
            stretches.append(_Stretch(first, self._count(places, stop), places))
        return [each for each, after in zip(stretches, [*stretches[1:], None], strict=True) if _lasts(each, after)]


def _lasts(stretch: _Stretch, after: _Stretch | None) -> bool:
    """Whether a stretch has elements, or is the last one."""
    return after is None or stretch.first < after.first
