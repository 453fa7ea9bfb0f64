"""Split groups: the splits of a sequential source, however many, in few groups, whose sizes go into a summary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.planning.random_keys import mix, mix_array

MOST_GROUPS = 1024
"""Groups that splits are in, at most: a summary has a few bytes for each."""
_KEY = np.uint64(mix(0x67726F757073))


class SplitGroups(NamedTuple):
    """Sizes of the groups that the splits of a sequential source are in (:func:`group_of_splits`).

    Attributes:
        units: elements of each group, or splits where nobody has counted a split's elements.
        bytes: stored bytes of each.
    """

    units: tuple[int, ...]
    bytes: tuple[int, ...]


def can_be_groups(groups: SplitGroups, splits: int, units: int, most_bytes: int) -> bool:
    """Whether these can be the groups of so many splits, some, with so many units and at most so many bytes."""
    there = min(splits, MOST_GROUPS)
    if not there or len(groups.units) != there or len(groups.bytes) != there:
        return False
    return min(*groups.units, *groups.bytes) >= 0 and sum(groups.units) == units and sum(groups.bytes) <= most_bytes


def group_of_splits(splits: int) -> npt.NDArray[np.int64]:
    """Find the group of each of so many splits: int64 of shape (splits,).

    Up to :data:`MOST_GROUPS` each is a group of its own. Of more, each :data:`MOST_GROUPS` that follow one another are
    in different groups, which a hash chooses, so that a group has something of every part of the listing.
    """
    if splits <= MOST_GROUPS:
        return np.arange(splits, dtype=np.int64)
    turns = -(-splits // MOST_GROUPS)
    hashes = mix_array(np.arange(turns * MOST_GROUPS, dtype=np.uint64) + _KEY).reshape(turns, MOST_GROUPS)
    return np.argsort(hashes, axis=1, kind="stable").ravel()[:splits]


def groups_of(units: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> SplitGroups:
    """Make the groups of splits with so many units and stored bytes each, int64 of shape (splits,)."""
    group = group_of_splits(len(units))
    found = np.zeros((2, min(len(units), MOST_GROUPS)), np.int64)
    for row, column in zip(found, (units, sizes), strict=True):
        np.add.at(row, group, column)
    return SplitGroups(tuple(found[0].tolist()), tuple(found[1].tolist()))
