"""CRC-32C (Castagnoli) of TFRecord files, computed for many 8-byte lengths at once."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78
_LENGTH_BYTES = 8


def masked_crc_of_lengths(lengths: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Compute the masked CRC-32C of each row of ``lengths`` (uint8 [n, 8]); uint32 [n]."""
    tables, constant = _tables()
    crc = np.bitwise_xor.reduce(tables[np.arange(_LENGTH_BYTES), lengths], axis=1) ^ constant
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    masked: npt.NDArray[np.uint32] = rotated + np.uint32(0xA282EAD8)
    return masked


def mask(crc: int) -> int:
    """Mask a CRC, as TFRecord stores it."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@functools.cache
def fast_crc32c() -> Callable[[bytes], int] | None:
    """Find a CRC-32C of bytes at memory speed: ``google_crc32c`` or ``crc32c``; None if neither is installed.

    In numpy it would cost more than reading and decoding together.
    """
    for module, function in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            return cast(Callable[[bytes], int], getattr(importlib.import_module(module), function))
        except ImportError:
            continue
    return None


@functools.cache
def _tables() -> tuple[npt.NDArray[np.uint32], np.uint32]:
    """Contribution of byte b at place i of 8 to the CRC (uint32 [8, 256]); and the CRC of 8 zero bytes.

    The CRC is linear over exclusive or, so every byte can be looked up without waiting for the one before.
    """
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = np.where(last & 1, (last >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), last >> np.uint32(1))
    places = [last]
    for _ in range(_LENGTH_BYTES - 1):
        places.append((places[-1] >> np.uint32(8)) ^ last[places[-1] & np.uint32(0xFF)])
    tables = np.stack(places[::-1]).astype(np.uint32)
    # The register starts as all ones, which is the same as inverting the first four bytes; it is inverted at the end.
    start = functools.reduce(np.bitwise_xor, (tables[place, 0xFF] for place in range(4)))
    return tables, np.uint32(start ^ np.uint32(0xFFFFFFFF))
