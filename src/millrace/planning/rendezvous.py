"""Rendezvous hashing: which of several servers a key belongs to. Pure. One that comes or goes moves its own keys alone.

Each server has a weight for each key, and the key belongs to the highest (Thaler and Ravishankar, 1998). Weighing all
servers for each key would cost more than asking one, so keys are sorted into slots, and slots are weighed once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SLOTS: Final = 1 << 16
"""Slots of keys: with a hundred servers, each has within a tenth of its fair share."""

_STEPS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def owners(servers: Sequence[str]) -> npt.NDArray[np.int32]:
    """Find the owner of each slot.

    Args:
        servers: their names, at least one, in any order: those who are given the same ones find the same.

    Returns:
        int32, shape (SLOTS,): by slot, the index in ``servers``.
    """
    slots = np.arange(1, SLOTS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    best = np.zeros(SLOTS, np.uint64)
    found = np.zeros(SLOTS, np.int32)
    for index in sorted(range(len(servers)), key=lambda at: servers[at]):
        weights = _mixed(slots ^ np.uint64(_seed(servers[index])))
        better = weights >= best
        best[better], found[better] = weights[better], index
    return found


def slot_of(digest: bytes) -> int:
    """Find the slot of a key, by the last bytes of a digest that is uniformly distributed."""
    return int.from_bytes(digest[-2:], "big")


def _seed(server: str) -> int:
    return int.from_bytes(hashlib.blake2b(server.encode(), digest_size=8).digest(), "big")


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Mix bits, as the finalizer of SplitMix64 does."""
    for shift, factor in _STEPS:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values
