"""Small hosts: shares of this machine that really compute, so that it carries a fleet of them.

    python -m benchmarks.small_hosts FLEET CORES dispatcher --local-workers 1-8 ...

is ``millrace dispatcher ...`` whose workers are small hosts of so many cores each, e.g. 0.2. Where control groups may
be made, of either version, each worker is in one with a quota of processor time; elsewhere it is stopped and continued
by turns, which comes to nearly the same. What a fleet has used is measured, not computed from its quotas.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from unittest import mock

from millrace.cli import main as millrace
from millrace.clusters import subprocesses

GROUPS = Path("/sys/fs/cgroup")
_LEAVE_S = 10.0
PERIOD_S = 0.02
"""Seconds in which a host has its share once: a fraction of what an element takes."""


class Fleet(Protocol):
    """Hosts of one name, each of which is a process and what it starts.

    Attributes:
        how: their processor time is bounded, in words.
    """

    how: str

    def add(self, name: str, cores: float, *pids: int) -> None:
        """Make processes, and what they start from now on, a host of so many cores."""

    def remove(self, name: str) -> None:
        """Take a host out whose process has ended; what it has used still counts."""

    def used_s(self) -> float:
        """Seconds of processor time that all hosts so far have used."""

    def close(self) -> None:
        """Leave nothing behind, when all processes have ended."""


class ControlGroups1(Fleet):
    """Fleet of control groups of version 1: one folder for each controller.

    Raises:
        OSError: they are not there, or may not be written.
    """

    how = "quotas of control groups, version 1"

    def __init__(self, fleet: str, groups: Path = GROUPS) -> None:
        parents = [(groups / controller).resolve() for controller in ("cpu", "cpuacct")]  # often one and the same
        for parent in parents:
            (parent / "cgroup.procs").stat()
        self._folders = [parent / fleet for parent in dict.fromkeys(parents)]
        for folder in self._folders:
            folder.mkdir(exist_ok=True)

    def add(self, name: str, cores: float, *pids: int) -> None:
        """Put processes into a group of their own."""
        for folder in self._folders:
            (folder / name).mkdir()
        of_cpu = self._folders[0] / name
        (of_cpu / "cpu.cfs_period_us").write_text(str(round(PERIOD_S * 1e6)))
        (of_cpu / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_S * 1e6)))
        for folder, pid in itertools.product(self._folders, pids):
            _join(folder / name, pid)

    def remove(self, name: str) -> None:
        """Remove the group; what it has used stays in that of the fleet."""
        for folder in self._folders:
            _remove(folder / name)

    def used_s(self) -> float:
        """Read what the group of the fleet has used."""
        return int((self._folders[-1] / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        """Remove the groups."""
        for folder in self._folders:
            _remove_all(folder)


class ControlGroups2(Fleet):
    """Fleet of control groups of version 2.

    Raises:
        OSError: they are not there, or may not be written.
    """

    how = "quotas of control groups, version 2"

    def __init__(self, fleet: str, groups: Path = GROUPS) -> None:
        self._folder = groups / fleet
        if "cpu" not in (groups / "cgroup.controllers").read_text().split():
            raise OSError(f"there are no control groups of processor time in {groups}")
        (groups / "cgroup.subtree_control").write_text("+cpu")
        self._folder.mkdir(exist_ok=True)
        try:
            (self._folder / "cgroup.subtree_control").write_text("+cpu")
        except OSError:
            self._folder.rmdir()
            raise

    def add(self, name: str, cores: float, *pids: int) -> None:
        """Put processes into a group of their own."""
        folder = self._folder / name
        folder.mkdir()
        (folder / "cpu.max").write_text(f"{round(cores * PERIOD_S * 1e6)} {round(PERIOD_S * 1e6)}")
        for pid in pids:
            _join(folder, pid)

    def remove(self, name: str) -> None:
        """Remove the group; what it has used stays in that of the fleet."""
        _remove(self._folder / name)

    def used_s(self) -> float:
        """Read what the group of the fleet has used."""
        usage = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(usage["usage_usec"]) / 1e6

    def close(self) -> None:
        """Remove the groups."""
        _remove_all(self._folder)


class Turns(Fleet):
    """Fleet of processes that are stopped and continued; a folder says which there are, and what others had used.

    What these start is not bounded.
    """

    how = "stopped and continued by turns"

    def __init__(self, fleet: str, folder: Path | None = None) -> None:
        self._folder = (folder or Path(tempfile.gettempdir())) / fleet
        self._folder.mkdir(exist_ok=True)
        self._over: dict[str, threading.Event] = {}
        self._seen: dict[str, float] = {}  # by host, what it was known to have used: a file may lag behind by a turn

    def add(self, name: str, cores: float, *pids: int) -> None:
        """Begin to stop and continue a process; if there are more, each has as much."""
        over = self._over[name] = threading.Event()
        for number, pid in enumerate(pids):
            path = self._folder / (f"{name}-{number}" if number else name)
            path.write_text(f"{pid} 0")
            threading.Thread(target=self._take_turns, args=(path, over, cores, pid), daemon=True).start()

    def _take_turns(self, path: Path, over: threading.Event, cores: float, pid: int) -> None:
        run_s = min(1.0, cores) * PERIOD_S
        with contextlib.suppress(ProcessLookupError):
            while not over.wait(run_s):
                path.with_suffix(".new").write_text(f"{pid} {_used_s(pid)}")
                path.with_suffix(".new").rename(path)
                os.kill(pid, signal.SIGSTOP)
                over.wait(PERIOD_S - run_s)
                os.kill(pid, signal.SIGCONT)

    def remove(self, name: str) -> None:
        """End that; what the process has used stays in its file."""
        self._over.pop(name).set()

    def used_s(self) -> float:
        """Add up what all files say, and what living processes have used since."""
        for path in [path for path in self._folder.iterdir() if path.suffix != ".new"]:
            pid, used_s = path.read_text().split()
            self._seen[path.name] = max(float(used_s), _used_s(int(pid)), self._seen.get(path.name, 0.0))
        return sum(self._seen.values())

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder)


def _join(group: Path, pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        (group / "cgroup.procs").write_text(str(pid))


def _remove(group: Path) -> None:
    """Remove a group, and end what its process has left in it."""
    for _ in range(round(_LEAVE_S / PERIOD_S)):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        threading.Event().wait(PERIOD_S)
    group.rmdir()


def _remove_all(fleet: Path) -> None:
    """Remove a fleet's group, and those in it that whoever made them was stopped too early to remove."""
    for folder in [each for each in fleet.iterdir() if each.is_dir()]:
        _remove(folder)
    _remove(fleet)


def children(pid: int) -> list[int]:
    """List the processes that a process has started, and those that these have."""
    try:
        found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []
    return [*found, *(below for each in found for below in children(each))]


def host(stack: contextlib.ExitStack, fleet: Fleet, name: str, cores: float, process: subprocess.Popen[str]) -> None:
    """Make a process, with its children, a host until the stack ends, which ends it if it has not ended by then."""
    stack.callback(fleet.remove, name)
    stack.enter_context(process)
    stack.callback(process.kill)
    fleet.add(name, cores, process.pid, *children(process.pid))


def _used_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fleet_of(name: str) -> Fleet:
    """Make a fleet, or find that of this name which another process has made."""
    for kind in (ControlGroups2, ControlGroups1):
        with contextlib.suppress(OSError):
            return kind(name)
    return Turns(name)


class SmallHostCluster(subprocesses.LocalCluster):
    """Local cluster whose workers are small hosts; ``fleet`` and ``cores`` are those of the command."""

    fleet: Fleet
    cores: float

    def _spawn(self) -> tuple[str, subprocess.Popen[bytes]]:
        name, process = super()._spawn()
        self.fleet.add(name, self.cores, process.pid)
        return name, process

    def _wait(self, name: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self.fleet.remove(name)  # before anybody hears that it has ended
        super()._wait(name, process)


def main(arguments: Sequence[str]) -> int:
    """The command."""
    fleet, cores, *options = arguments
    SmallHostCluster.fleet, SmallHostCluster.cores = fleet_of(fleet), float(cores)
    with mock.patch.object(subprocesses, "LocalCluster", SmallHostCluster):  # which the command imports as it begins
        return millrace(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
