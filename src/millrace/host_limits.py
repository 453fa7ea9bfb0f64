"""Host limits: the memory, cores and processes of this process's host that it may use."""

from __future__ import annotations

import os
import resource
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_THREADS = Path("/proc/self/task")


def memory_bytes(groups: Path = _GROUPS) -> int:
    """Bytes of memory: the host's, or what the process's control group allows if that is less.

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
    """Count the processes of the same training on this host, as torchrun says."""
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Bytes of memory that this process holds, shared ones included; 0 where the system does not say.

    Args:
        statm: file in which Linux says so, in pages.
    """
    try:
        return int(statm.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def run_delay_s(threads: Path = _THREADS) -> float:
    """Seconds for which this process's threads could have run and had no core; 0 where the system does not say.

    Only threads that live count: those that have ended take theirs along.

    Args:
        threads: folder with one for each of them.
    """
    total = 0
    for path in threads.glob("*/schedstat"):
        try:
            total += int(path.read_bytes().split()[1])
        except (OSError, ValueError, IndexError):  # the thread has just ended, or the kernel does not count
            continue
    return total / 1e9
