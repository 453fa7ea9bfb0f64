"""Arrays over memory that is reused once the last view of it has died.

Numpy collapses chains of bases, so what dies last of an array's views is the buffer exporter they come from: here a
ctypes array with a finalizer. Finalizers run in any thread, inside anything, and in forked children: they put a word
into a queue, and do nothing else.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


def export(exporter: ctypes.Array[ctypes.c_ubyte], finalizer: Callable[..., object], *arguments: object) -> Bytes:
    """View the bytes of ``exporter``; ``finalizer(*arguments)`` is called when the last view of them has died.

    The arguments live until then.
    """
    weakref.finalize(exporter, finalizer, *arguments).atexit = False
    return np.frombuffer(memoryview(exporter), np.uint8)


def round_up(size: int) -> int:
    """Round a size in bytes up by an eighth at most, to whole pages, so that similar sizes can reuse one memory."""
    step = 1 << max(size.bit_length() - 4, 12)
    return -(-size // step) * step
