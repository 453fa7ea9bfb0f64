"""Numbers from numbers: every random choice is a hash of what identifies it (seed, epoch, node, position).

The hash is splitmix64's finalizer (Steele, Lea and Flood 2014), chained; arithmetic only, so that every machine and
every version of every library agrees.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def mix(value: int) -> int:
    """A 64-bit hash of a 64-bit number."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def derive(*parts: int) -> int:
    """A 64-bit key from any whole numbers; their order matters."""
    key = len(parts)
    for part in parts:
        key = mix(key ^ mix(part & _MASK))
    return key


def mix_array(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """:func:`mix` of each number."""
    out = values + np.uint64(_GAMMA)
    out ^= out >> np.uint64(30)
    out *= np.uint64(_M1)
    out ^= out >> np.uint64(27)
    out *= np.uint64(_M2)
    out ^= out >> np.uint64(31)
    return out


def states(key: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Generator states, uint64 of shape (n, 4), one per position: hashes of ``key`` and the position."""
    out = np.empty((len(positions), 4), np.uint64)
    base = mix_array(positions.astype(np.uint64) ^ np.uint64(mix(key)))
    for column in range(3):
        out[:, column] = mix_array(base + np.uint64(mix(key + column + 1)))
    out[:, 3] = 1  # SFC64's counter
    return out
