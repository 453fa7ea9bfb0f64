"""What this process may use of its host."""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def memory_bytes(groups: Path = _GROUPS) -> int:
    """Bytes of memory that there are: the host's, or what the process's control group allows if that is less.

    Args:
        groups: where control groups (version 2) are mounted; a container sees its own at the top.
    """
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = (groups / "memory.max").read_text().strip()
    except OSError:
        return whole  # none, or an older version
    return min(whole, int(limit)) if limit.isdigit() else whole


def siblings(environ: dict[str, str] | os._Environ[str] = os.environ) -> int:
    """Processes of the same training on this host, as torchrun says."""
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1
