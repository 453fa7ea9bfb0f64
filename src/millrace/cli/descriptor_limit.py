"""Limit on the file descriptors of a process, which often is 1,024."""

from __future__ import annotations

import resource

FOR_WORKER = 4096
FOR_MANY_PEERS = 65536


def raise_descriptors(wanted: int) -> None:
    """Raise this process's limit to ``wanted``, or as far as it may be raised."""
    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(few, min(most, wanted)), most))
