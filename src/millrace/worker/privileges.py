"""Privileges that a worker of another user gives up, and its end with the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal

from millrace.errors import ServiceError

_SET_PARENT_DEATH_SIGNAL = 1
_SET_NO_NEW_PRIVILEGES = 38


def give_up_privileges(parent: int) -> None:
    """Make sure that nothing here can gain privileges, e.g. by ``sudo``, and that this process ends with its parent.

    Args:
        parent: id of the process that started this one.

    Raises:
        ServiceError: the system refuses, or the parent has ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_SET_NO_NEW_PRIVILEGES, 1), (_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)):
        if libc.prctl(option, ctypes.c_ulong(value), *(ctypes.c_ulong(0) for _ in range(3))) != 0:
            raise ServiceError(f"a worker of another user cannot be had here: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        raise ServiceError("the process that opens blocks for this worker has ended")
