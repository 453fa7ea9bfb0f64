"""What a benchmark ran on: enough to judge its figures later."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
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
_SHORT = 8
"""Digits of a commit."""


def machine() -> dict[str, Any]:
    """Processor, cores, memory (GiB), kernel, Python, versions of libraries, the code's commit, and the load before.

    Where there are GPUs, also these; and where git can't say whether files differ from the commit, that.
    """
    found = gpus()
    return {
        "cpu": _value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": cores(),
        **({"gpu": ", ".join(found)} if found else {}),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GIB, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": _versions(),
        **_commit(),
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


def gpus() -> list[str]:
    """Names of the GPUs, as their driver's command says, or torch, if the process has imported it."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_available():
            return []
        return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return [line.strip() for line in told.splitlines() if line.strip()]


def _commit() -> dict[str, str | None]:
    """The commit checked out, with ``+`` if files differ from it; ``BENCHMARKED_COMMIT`` if that is set, for a copy."""
    if told := os.environ.get("BENCHMARKED_COMMIT"):
        return {"commit": told}
    root = Path(__file__).absolute().parents[1]
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        commit = head(root)
        return {"commit": commit} if commit is None else {"commit": commit, "local_changes": "unknown"}
    return {"commit": answer.stdout.strip()}


def head(root: Path) -> str | None:
    """The commit that is checked out in a folder, read without git; None: it is none of a repository.

    Args:
        root: of the checkout.
    """
    try:
        folder = root / ".git"
        if folder.is_file():  # a further worktree of a repository
            folder = root / folder.read_text().removeprefix("gitdir:").strip()
        told = (folder / "HEAD").read_text().strip()
        if not told.startswith("ref: "):
            return told[:_SHORT]
        name = told.removeprefix("ref: ")
        shared = folder / "commondir"
        places = [folder, folder / shared.read_text().strip()] if shared.exists() else [folder]
        loose = [(place / name).read_text() for place in places if (place / name).exists()]
        packed = [(place / "packed-refs").read_text() for place in places if (place / "packed-refs").exists()]
        lines = "\n".join(packed).splitlines()
        return next((each[:_SHORT] for each in [*loose, *(line for line in lines if line.endswith(f" {name}"))]), None)
    except OSError:
        return None
