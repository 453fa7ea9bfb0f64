"""Permutations that are computed, not stored: position in, position out, at no memory.

A balanced Feistel network over the smallest even number of bits that covers the domain, with cycle walking for what
falls outside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Small domains, over which such a
network reaches too few permutations and walks too far, are sorted by a hash instead.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.planning.random_keys import mix, mix_array

_ROUNDS = 6
_SMALL = 1024


def permute(positions: npt.NDArray[np.int64], count: int, key: int) -> npt.NDArray[np.int64]:
    """Permute ``positions`` by the permutation of ``range(count)`` that ``key`` chooses.

    Args:
        positions: int64, each in [0, count).
        count: size of the domain, below 2**62.
        key: 64-bit number.

    Returns:
        int64 of the same shape. About 0.2 µs per position.
    """
    if count <= _SMALL:
        hashes = mix_array(np.arange(count, dtype=np.uint64) + np.uint64(mix(key)))
        return np.argsort(hashes, kind="stable")[positions]
    half = ((count - 1).bit_length() + 1) // 2
    keys = [np.uint64(mix(key + number)) for number in range(_ROUNDS)]
    out = _encrypt(positions.astype(np.uint64), half, keys)
    outside = np.flatnonzero(out >= np.uint64(count))
    while outside.size:
        walked = _encrypt(out[outside], half, keys)
        out[outside] = walked
        outside = outside[walked >= np.uint64(count)]
    return out.astype(np.int64)


def _encrypt(values: npt.NDArray[np.uint64], half: int, keys: list[np.uint64]) -> npt.NDArray[np.uint64]:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys:
        left, right = right, left ^ (mix_array(right ^ key) & mask)
    return (left << bits) | right
