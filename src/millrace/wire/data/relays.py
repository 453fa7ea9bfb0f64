"""Relays of a process: processes that speak TLS for it, started when they are needed, and ended when they are not.

Python's TLS gives up the interpreter's lock for each record of 16 KiB, and beside a thread that runs Python's own code
it waits milliseconds to have it again. A relay (:mod:`millrace.wire.data.relay_process`) has a lock of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading

from millrace import version
from millrace.host_limits import usable_cores
from millrace.wire.data.relay_process import LINGER_S, READY

SWITCH = "MILLRACE_TLS_RELAY"
"""Environment variable that is set to ``off`` by who wants no such processes."""
MOST = 4
"""Most relays of a process: one moves what a core can."""
CORES = 4
"""Cores that there have to be for each relay but the first."""
START_S = 20.0
"""Seconds that a relay may take to start."""

END_S = 10.0
"""Seconds that it may take to end, besides what its peers have to take what they were sent."""

_KEPT = ("LD_LIBRARY_PATH", "OPENSSL_CONF", "OPENSSL_MODULES", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
"""Environment that a relay gets of its parent's, which may have secrets."""
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 20),
    "MALLOC_TOP_PAD_": str(1 << 20),
}
"""Settings of malloc in a relay: memory is used again rather than taken from the kernel and cleared each time."""
_PROGRAM = "import sys; sys.path.append({root!r}); from millrace.wire.data.relay_process import main; main()"

_logger = logging.getLogger(__name__)


class Relay:
    """One process that speaks TLS for this one."""

    def __init__(self) -> None:
        self.users = 0
        self._expected = False
        """Whether it is expected to serve, and to end in good order."""
        self._control, theirs = socket.socketpair()
        try:
            self._process = _start(theirs)
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._thread = threading.Thread(target=self._wait, name=f"millrace-relay-{self.pid}", daemon=True)
        self._thread.start()
        try:
            self._await_ready()
        except BaseException:
            self.dismiss()
            raise

    def _await_ready(self) -> None:
        self._control.settimeout(START_S)
        if self._control.recv(1) != READY:
            raise ChildProcessError(f"{sys.executable} ended before it was ready")
        self._expected = True

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def take(self, numbers: list[int]) -> None:
        """Give it the descriptors of a connection.

        Raises:
            OSError: it has ended.
        """
        socket.send_fds(self._control, [b"c"], numbers)

    def dismiss(self) -> None:
        """End it, and wait for that."""
        self._control.close()
        self._thread.join(LINGER_S + END_S)
        if not self.ended:
            self._expected = False
            self._process.kill()
            self._thread.join()

    def forget(self) -> None:
        """Let go of it in a forked child, of whose parent it is."""
        self._control.close()
        self._process.returncode = 0  # not to be waited for

    def _wait(self) -> None:
        status = self._process.wait()
        if status and self._expected:
            _logger.warning(
                "the process %d, which spoke TLS for this one, ended with status %d: its connections are made anew",
                self.pid,
                status,
            )


def _start(control: socket.socket) -> subprocess.Popen[bytes]:
    root = os.path.dirname(os.path.dirname(os.path.abspath(version.__file__)))
    # Without the site packages, and what they do at each start.
    command = [sys.executable, "-S", "-s", "-P", "-c", _PROGRAM.format(root=root), "millrace-tls-relay"]
    return subprocess.Popen(  # noqa: S603 (this interpreter, our module)
        command,
        stdin=control.fileno(),
        stdout=subprocess.DEVNULL,
        env={**_MALLOC, **{name: os.environ[name] for name in _KEPT if name in os.environ}},
        cwd="/",
        start_new_session=True,  # Ctrl-C is for this process, which decides what ends
    )


class Relays:
    """Relays of this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._relays: list[Relay] = []
        self._turn = 0
        self._unable = not hasattr(os, "memfd_create")
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._begin_anew
        )
        atexit.register(self.close)

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes."""
        with self._lock:
            return [relay.pid for relay in self._relays if not relay.ended]

    def borrow(self) -> Relay | None:
        """Borrow a relay for a connection, which is to be given back; None: TLS is spoken in this process."""
        if os.environ.get(SWITCH, "").lower() in {"off", "0", "no"}:
            return None
        with self._lock:
            if self._unable:
                return None
            self._relays = [relay for relay in self._relays if not relay.ended]
            if len(self._relays) < relays_for(usable_cores()):
                idle = next((relay for relay in self._relays if not relay.users), None)
                if idle is None:
                    try:
                        self._relays.append(Relay())
                    except (OSError, RuntimeError) as error:
                        if not self._relays:
                            self._unable = True
                            _logger.warning(
                                "no process could be started to speak TLS (%s): this one does so itself, which is slow"
                                " beside Python code; %s=off says that it shall",
                                error,
                                SWITCH,
                            )
                            return None
            relay = min(self._relays, key=lambda each: each.users)
            relay.users += 1
            return relay

    def give_back(self, relay: Relay) -> None:
        """Give back a relay, which ends if nobody else has it."""
        with self._lock:
            relay.users -= 1
            if relay.users or relay not in self._relays:
                return
            self._relays.remove(relay)
        relay.dismiss()

    def close(self) -> None:
        """End all; no other one is started."""
        with self._lock:
            self._unable = True
            relays, self._relays = self._relays, []
        for relay in relays:
            relay.dismiss()

    def _begin_anew(self) -> None:
        """Have relays of its own in a forked child."""
        for relay in self._relays:
            with contextlib.suppress(OSError):
                relay.forget()
        self._relays = []
        self._lock.release()


def relays_for(cores: int) -> int:
    """Choose the most relays of a process that may use so many cores."""
    return max(1, min(MOST, cores // CORES))


RELAYS = Relays()
"""Relays of this process."""
