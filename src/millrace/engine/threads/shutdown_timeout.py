"""Shutdown timeout: how long an end waits for functions that still run on other threads, as nothing can stop them."""

from __future__ import annotations

import sys

_INTERRUPTED_S = 1.0
_PATIENT_S = 15.0


def shutdown_timeout() -> float:
    """Seconds to wait for a user's function. One that is not done by then goes on alone, and nobody takes the result.

    A function may never return, as one that waits for a dead file server: Ctrl-C must end the process all the same.
    """
    error = sys.exception()
    while error is not None:  # also by way of a generator's close(), whose GeneratorExit comes on top
        if isinstance(error, KeyboardInterrupt):
            return _INTERRUPTED_S
        error = error.__context__
    return _PATIENT_S
