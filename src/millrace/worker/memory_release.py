"""Memory that a worker no longer needs goes back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys


def give_back() -> None:
    """Give what is free back to the system, within some tens of milliseconds; what is needed again is cleared again.

    Workers are told to keep what is freed (``clusters/child_process.py``), as a pipeline needs it again at once. When
    a job is over, or none computes, that is half a gigabyte for nothing.
    """
    gc.collect()  # what a job leaves in cycles: closures, tracebacks, models that refer to themselves
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others keep less
    if trim is not None:
        trim(ctypes.c_size_t(0))
