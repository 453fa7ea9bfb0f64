"""Pairwise cases: of several factors not every combination, but each two values of different ones together once.

Most bugs that a combination shows are shown by two of its values (Kuhn, Wallace and Gallo, "Software Fault Interactions
and Implications for Software Testing", IEEE TSE 2004), and a tenth of the combinations has all pairs. With the variable
``MILLRACE_ALL_CASES`` set, tests run all of them.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any


def pairwise(*factors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose combinations of one value for each factor, for ``pytest.mark.parametrize``.

    Args:
        factors: the values of each.

    Returns:
        Combinations, in the order of their product: so few that have each pair of values as a greedy choice finds.
    """
    everything = list(itertools.product(*(range(len(values)) for values in factors)))
    chosen = everything if os.environ.get("MILLRACE_ALL_CASES") else _covering(everything)
    return [tuple(values[place] for values, place in zip(factors, each, strict=True)) for each in chosen]


def alternately(first: Iterable[Any], *others: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Choose each value of the first factor once, with values of the others in turn, for what hardly depends on these.

    Args:
        first: the factor of which all values matter.
        others: those of which each value is to be there.

    Returns:
        Combinations, as for :func:`pairwise`.
    """
    if os.environ.get("MILLRACE_ALL_CASES"):
        return list(itertools.product(first, *others))
    return list(zip(first, *map(itertools.cycle, others), strict=False))


def _covering(everything: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    left = {pair for each in everything for pair in _pairs(each)}
    chosen = []
    while left:
        best = max(everything, key=lambda each: len(left & _pairs(each)))
        chosen.append(best)
        left -= _pairs(best)
    return sorted(chosen)


def _pairs(combination: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(combination), 2))
