"""Memory limit of a worker's process: who asks for more gets an error that names the limit, and the process lives.

What a process has of its own is limited by RLIMIT_DATA, at which the kernel refuses to map more. Memory shared with
consumers is not its own, and bounded by ``--buffer-bytes``. A cgroup would end the process by SIGKILL, without a word.
"""

from __future__ import annotations

import resource

from millrace.errors import PipelineError
from millrace.policies.figures import data_size

LEAST = 128 << 20
"""Bytes that there are for functions and batches, at least."""
_STACK = 8 << 20
"""Bytes of a thread's stack, which count as they are mapped, and of which hardly any are ever used."""
_limit = 0


def limit_memory(nbytes: int, threads: int) -> None:
    """Let this process, and each that it starts, have so much memory of its own.

    Args:
        nbytes: with what it has now.
        threads: that it will start; their stacks come on top.

    Raises:
        PipelineError: that is hardly more than it has now.
    """
    global _limit  # noqa: PLW0603 - of the process, as the limit is
    has = _of_this_process()
    if nbytes < has["RssAnon"] + LEAST:
        raise PipelineError(
            f"a worker takes {data_size(has['RssAnon'])} before it runs anything, and needs {data_size(LEAST)} more: "
            f"{data_size(nbytes)} of memory are too few"
        )
    # What is mapped and was never written takes nothing: only what comes on top of that counts.
    most = has["VmData"] - has["RssAnon"] + nbytes + threads * _STACK
    _, before = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if before == resource.RLIM_INFINITY else min(most, before)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    _limit = nbytes


def said(error: BaseException) -> str:
    """Say what the limit is, behind an error that comes of it; empty of others, and where there is none."""
    if not (_limit and isinstance(error, MemoryError)):
        return ""
    return f"; a worker's process may have {data_size(_limit)} of memory (--memory, --worker-memory of a dispatcher)"


def _of_this_process() -> dict[str, int]:
    """Read what is mapped that this process can write to and shares with nobody, and what of it is there, in bytes."""
    found = {}
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in {"VmData", "RssAnon"}:
                found[name] = int(value.split()[0]) << 10
    return found
