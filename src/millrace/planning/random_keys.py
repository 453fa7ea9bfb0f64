"""Random keys: every random choice is a hash of what identifies it (seed, epoch, node, position).

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
    """Hash a 64-bit number to 64 bits."""
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _M1) & _MASK
    value = ((value ^ (value >> 27)) * _M2) & _MASK
    return value ^ (value >> 31)


def derive(*parts: int) -> int:
    """Derive a 64-bit key from whole numbers; their order matters."""
    key = len(parts)
    for part in parts:
        key = mix(key ^ mix(part & _MASK))
    return key


def repetition_of(repetition: int, turn: int) -> int:
    """Derive the number of a repetition within a repetition: the turn itself unless there is one around it."""
    return turn if not repetition else derive(repetition, turn) >> 1


def mix_array(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply :func:`mix` to each number."""
    out = values + _ARRAY_GAMMA
    out ^= out >> _SHIFT_1
    out *= _ARRAY_M1
    out ^= out >> _SHIFT_2
    out *= _ARRAY_M2
    out ^= out >> _SHIFT_3
    return out


# Made once: a numpy scalar costs as much as an operation on a few elements, and chunks of large elements are short.
_ARRAY_GAMMA, _ARRAY_M1, _ARRAY_M2 = np.uint64(_GAMMA), np.uint64(_M1), np.uint64(_M2)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def states(key: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Compute generator states, uint64 of shape (n, 4), one per position: hashes of ``key`` and the position."""
    out = np.ones((len(positions), 4), np.uint64)  # the last column is SFC64's counter
    base = mix_array(positions.astype(np.uint64) ^ np.uint64(mix(key)))
    columns = np.array([mix(key + 1), mix(key + 2), mix(key + 3)], np.uint64)
    out[:, :3] = mix_array(base[:, None] + columns)
    return out
