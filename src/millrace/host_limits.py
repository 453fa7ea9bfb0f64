"""Host limits: the memory, cores and processes of this process's host that it may use, and see."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_THREADS = Path("/proc/self/task")


def memory_bytes(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Bytes of memory: the host's, or what the process's control groups allow if that is less.

    Args:
        groups: where control groups of either version are mounted.
        own: file that says in which groups this process is.
    """
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_read(each / "memory.max") for each in _chain(groups, own, "")]
    limits += [_read(each / "memory.limit_in_bytes") for each in _chain(groups, own, "memory")]
    return min([whole, *(int(limit) for limit in limits if limit.isdigit())])


def process_space() -> str:
    """Name of the space in which the number of this process is its own, as a container has one; empty: not known."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def cpu_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> float | None:
    """Cores' worth of processor time that the process's control groups allow, as a container's limit does.

    Args:
        groups: where control groups of either version are mounted.
        own: file that says in which groups this process is.

    Returns:
        A number of cores, e.g. 0.5; None: as many as the process may run on.
    """
    limits = [_read(each / "cpu.max").split() for each in _chain(groups, own, "")]
    limits += [
        [_read(each / "cpu.cfs_quota_us"), _read(each / "cpu.cfs_period_us")] for each in _chain(groups, own, "cpu")
    ]
    found = [
        int(limit[0]) / int(limit[1])
        for limit in limits
        if len(limit) == 2 and limit[0].isdigit() and limit[1].isdigit() and int(limit[0]) and int(limit[1])
    ]
    return min(found, default=None)


def usable_cores() -> int:
    """Count the cores that this process may keep busy: those that it may run on, or as many as a quota is good for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _chain(groups: Path, own: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the group that this process is in, and of those around it.

    A container may see the path that its group has on the host, and its own group at the top: whatever isn't there
    bounds nothing.

    Args:
        groups: where control groups are mounted.
        own: file that says in which groups this process is.
        controller: of version 1, each of which has a hierarchy of its own; empty: version 2.
    """
    lines = [line.split(":", 2) for line in _read(own).splitlines() if line.count(":") >= 2]
    together, path = next((line[1:] for line in lines if controller in line[1].split(",")), (controller, "/"))
    parts = Path(path).parts[1:]
    tops = [groups / controller] if controller else [groups, groups / "unified"]
    if together != controller:  # they share a hierarchy, which may be mounted by the names of all of them alone
        tops.append(groups / together)
    for top in tops:
        for depth in range(len(parts) + 1):
            yield top.joinpath(*parts[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # there are none, or of the other version
        return ""


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
