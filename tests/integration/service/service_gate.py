"""A gate that user functions stop at, in whatever process they run. Workers get this file as one of the user's."""

import contextlib
import fcntl
import os
import select
from pathlib import Path

WAIT_S = 20.0


class Gate:
    """Functions :meth:`pass_through` it; each says so, and waits there until the test opens it.

    A door is a lock on a file and the bell is a named pipe: whoever waits does so in the kernel, and a process that is
    killed while it waits leaves nothing behind.
    """

    def __init__(self, directory: Path) -> None:
        self._door = str(directory / "door")
        self._bell = str(directory / "bell")
        with open(self._door, "w"):
            pass
        os.mkfifo(self._bell)

    def pass_through(self) -> None:
        """Rings, and waits while the gate is closed."""
        with contextlib.suppress(OSError):  # the test has gone, or listens to nobody any more
            bell = os.open(self._bell, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(bell, f"{os.getpid()}\n".encode())
            finally:
                os.close(bell)
        with open(self._door) as door:
            fcntl.flock(door, fcntl.LOCK_SH)


class Keeper:
    """The test's side of a gate; closed from the start, opened for good."""

    def __init__(self, gate: Gate) -> None:
        self._bell = os.open(gate._bell, os.O_RDWR)  # also for writing, so that it never ends
        self._rung = b""
        self._door = open(gate._door, "w")  # noqa: SIM115 (open() closes it)
        fcntl.flock(self._door, fcntl.LOCK_EX)

    def wait(self) -> int:
        """Pid of the next process that has come to the gate."""
        while b"\n" not in self._rung:
            ready, _, _ = select.select([self._bell], [], [], WAIT_S)
            assert ready, "nobody came to the gate"
            self._rung += os.read(self._bell, 4096)
        line, self._rung = self._rung.split(b"\n", 1)
        return int(line)

    def open(self) -> None:
        self._door.close()

    def close(self) -> None:
        self.open()
        os.close(self._bell)
