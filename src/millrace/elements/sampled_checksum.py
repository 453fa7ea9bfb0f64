"""Sampled checksum: tells two runs of the same task apart, and is cheap enough to be taken of every message."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

_WHOLE_BYTES = 4096
"""Size in bytes up to which every byte of a leaf counts."""
_X87_BITS = 63
_SAMPLES = 16
_SAMPLE_BYTES = 128


def sampled_checksum(element: Any, checksum: int = 0) -> int:
    """Checksum (CRC-32) of an element as :func:`millrace.elements.codec.decode` returns it, never to be stored.

    Structure, types, shapes and dtypes count, and all bytes of leaves up to 4 KiB. Of larger leaves 16 samples of 128
    bytes at even distances count, and the end: a function that draws anew for each picture of a batch is found, one
    that changes a single byte of megabytes may not be. It takes some microseconds, however large the leaves are.

    Args:
        element: a tree of dicts, lists and tuples, with arrays, ``bytes``, ``str``, numbers and None as leaves.
        checksum: checksum so far, to be continued.
    """
    kind = type(element)
    if kind is dict:
        for key, value in element.items():
            checksum = sampled_checksum(value, crc32(repr(key).encode(), checksum))
        return crc32(b"}", checksum)
    if isinstance(element, list | tuple):
        for value in element:
            checksum = sampled_checksum(value, checksum)
        return crc32(b"]" if kind is list else b")", checksum)
    if kind is int:  # Python writes out no more than 4,300 digits
        return crc32(element.to_bytes(element.bit_length() // 8 + 1, "little", signed=True), crc32(b"int", checksum))
    if kind is np.ndarray and not element.dtype.hasobject:
        checksum = crc32(f"{element.dtype.str}{element.shape}".encode(), checksum)
        if element.dtype.names is not None:  # between fields there may be bytes that nobody has set
            for name in element.dtype.names:
                checksum = sampled_checksum(np.asarray(element[name]), checksum)
            return checksum
        if element.dtype.char in "gG" and np.finfo(np.longdouble).nmant == _X87_BITS:  # of 16 bytes 10 are the number
            parts = np.ascontiguousarray(element).reshape(-1).view(np.longdouble)
            element = parts.view(np.uint8).reshape(len(parts), -1)[:, :10]
        flat = np.ascontiguousarray(element).reshape(-1)
        return _of_bytes(flat.view(np.uint8), checksum) if flat.nbytes else checksum
    if kind is bytes:
        return _of_bytes(np.frombuffer(element, np.uint8), crc32(b"b", checksum))
    if kind is str and len(element) > _WHOLE_BYTES:
        element = f"{len(element)} {element[:: len(element) // _WHOLE_BYTES]}"
    return crc32(f"{kind.__name__}{element!r}".encode(), checksum)


def _of_bytes(data: npt.NDArray[np.uint8], checksum: int) -> int:
    if len(data) <= _WHOLE_BYTES:
        return crc32(data.data, checksum)
    step = len(data) // _SAMPLES
    samples = data[: _SAMPLES * step].reshape(_SAMPLES, step)[:, :_SAMPLE_BYTES]
    return crc32(data[-_SAMPLE_BYTES:].data, crc32(samples.tobytes(), checksum))
