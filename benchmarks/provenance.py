"""Provenance of results: which commit each was measured at, whether that is on main, and what has changed since.

``python -m benchmarks.plot --check`` asks it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

CODE = "src/millrace"
_TOO = "; the benchmark has changed, too"


def problems(reports: Mapping[str, Mapping[str, Any]], root: str) -> list[str]:
    """Say what is wrong with the commits that results name.

    Args:
        reports: by name of the benchmark.
        root: of the repository.
    """
    found = []
    for name, report in sorted(reports.items()):
        wrong = _wrong(str(report["machine"].get("commit") or ""), root)
        if wrong:
            found.append(f"{name} {wrong}: measure it again from a clean checkout of main")
    return found


def _wrong(commit: str, root: str) -> str:
    """Say why a result with this commit can't be relied on; empty: it can."""
    if not commit:
        return "names no commit"
    if commit.endswith("+"):
        return f"was measured at {commit[:-1]} with changes that are in no commit"
    if _git(root, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return f"was measured at {commit}, which is not on main"
    return ""


def ages(reports: Mapping[str, Mapping[str, Any]], root: str) -> list[str]:
    """List the results by how many commits have changed the code since, most first, and whose benchmark has changed."""
    rows = list[tuple[int, str]]()
    for name, report in reports.items():
        commit = str(report["machine"].get("commit") or "")
        if _wrong(commit, root):
            continue
        since = int(_git(root, "rev-list", "--count", f"{commit}..HEAD", "--", CODE) or "0")
        file = os.path.join("benchmarks", *name.split(".")) + ".py"
        changed = _git(root, "diff", "--name-only", commit, "HEAD", "--", file)
        rows.append((since, f"{name}: {since} commits to {CODE} since {commit}" + (_TOO if changed else "")))
    return [line for _, line in sorted(rows, reverse=True)]


def is_whole(root: str) -> bool:
    """Whether the repository's history is there, which ends early in a shallow clone, and is not in an archive."""
    return _git(root, "rev-parse", "--is-shallow-repository") == "false"


def _git(root: str, *arguments: str) -> str | None:
    """Ask git; None: it says no, or it is not installed."""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
