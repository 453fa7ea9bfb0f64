"""What a benchmark ran on: enough to judge its figures later."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

_LIBRARIES = (
    "grain",
    "grpcio",
    "jax",
    "numpy",
    "pillow",
    "pyarrow",
    "ray",
    "spdl",
    "tensorflow",
    "tensorflow-cpu",
    "torch",
)
_GIB = 1 << 30


def machine() -> dict[str, Any]:
    """Processor, cores, memory (GiB), kernel, Python, versions of libraries, the code's commit, and the load before."""
    return {
        "cpu": _value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": _versions(),
        "commit": _commit(),
        "load_before": os.getloadavg()[0],
    }


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def _value(path: str, key: str) -> str | None:
    """What the first line ``key : value`` of a file in /proc says."""
    with open(path) as lines:
        return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _versions() -> dict[str, str]:
    from millrace.version import __version__

    found = {"millrace": __version__}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit checked out, with ``+`` if files differ from it; ``BENCHMARKED_COMMIT`` if that is set, for a copy."""
    if told := os.environ.get("BENCHMARKED_COMMIT"):
        return told
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
