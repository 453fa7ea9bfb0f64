"""Processor time that processes have used, as the kernel has counted it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _USED = 1, slice(11, 15)
"""Fields of a process behind its name: who started it; and its own time, and that of its children that have ended."""
_IDLE, _DISK, _ALL = 3, 4, 8
"""Fields of the machine."""


def _processes() -> dict[int, list[str]]:
    """Fields of all processes."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    return found


def started_by(pid: int) -> tuple[int, ...]:
    """Processes that one has started itself, and that have not ended."""
    return tuple(each for each, fields in _processes().items() if int(fields[_PARENT]) == pid)


def used_s(roots: Iterable[int]) -> float:
    """Seconds that processes have used, and all that they have started."""
    processes = _processes()
    below: dict[int, list[int]] = {}
    for pid, fields in processes.items():
        below.setdefault(int(fields[_PARENT]), []).append(pid)
    ticks, left = 0, [pid for pid in roots if pid in processes]
    while left:
        pid = left.pop()
        ticks += sum(map(int, processes[pid][_USED]))
        left += below.get(pid, [])
    return ticks / _TICKS


class Used:
    """Processor time from now on.

    Args:
        roots: tells the processes for data.
    """

    def __init__(self, roots: Callable[[], Iterable[int]]) -> None:
        self._roots = roots
        self._before = self._so_far()

    def _so_far(self) -> tuple[float, float, float, float]:
        with open("/proc/stat") as lines:
            ticks = [int(each) for each in lines.readline().split()[1 : 1 + _ALL]]
        busy = sum(ticks) - ticks[_IDLE] - ticks[_DISK]
        return used_s(self._roots()), time.process_time(), busy / _TICKS, time.time()

    def since(self) -> dict[str, float]:
        """Seconds of the processes for data and of this one, cores of the machine in use, and between which times."""
        now = self._so_far()
        data_s, own_s, busy_s, wall_s = (after - before for after, before in zip(now, self._before, strict=True))
        return {
            "data_cpu_s": data_s,
            "own_cpu_s": own_s,
            "busy_cores": busy_s / wall_s,
            "began": self._before[3],
            "ended": now[3],
        }
