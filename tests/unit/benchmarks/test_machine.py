"""What is said of a machine: its GPUs, and the commit where git can't say it."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks import machine, plot

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def failing(*_: Any, **__: Any) -> None:
    raise FileNotFoundError


def checkout(folder: Path, head: str) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text(f"{head}\n")
    return folder


def test_a_commit_is_read_from_the_files_of_a_checkout(tmp_path):
    assert machine.head(checkout(tmp_path / "a", COMMIT)) == COMMIT[:8]
    loose = checkout(tmp_path / "b", "ref: refs/heads/main")
    assert machine.head(loose) is None
    (loose / ".git" / "packed-refs").write_text(
        f"# pack-refs\n{COMMIT[::-1]} refs/heads/other\n{COMMIT} refs/heads/main\n"
    )
    assert machine.head(loose) == COMMIT[:8]
    (loose / ".git" / "refs/heads").mkdir(parents=True)
    (loose / ".git" / "refs/heads/main").write_text(f"{COMMIT[::-1]}\n")
    assert machine.head(loose) == COMMIT[::-1][:8]
    assert machine.head(tmp_path) is None


def test_a_commit_of_a_further_worktree_is_read_too(tmp_path):
    main = checkout(tmp_path / "main", "ref: refs/heads/main")
    own = main / ".git" / "worktrees" / "one"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/one\n")
    (own / "commondir").write_text("../..\n")
    (main / ".git" / "packed-refs").write_text(f"{COMMIT} refs/heads/one\n")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / ".git").write_text(f"gitdir: {own}\n")
    assert machine.head(tmp_path / "one") == COMMIT[:8]


def test_without_git_nobody_knows_of_local_changes(monkeypatch):
    monkeypatch.delenv("BENCHMARKED_COMMIT", raising=False)
    monkeypatch.setattr(subprocess, "run", failing)
    monkeypatch.setattr(machine, "head", lambda root: COMMIT[:8])
    found = machine.machine()
    assert (found["commit"], found["local_changes"]) == (COMMIT[:8], "unknown")
    assert f"commit {COMMIT[:8]} (local changes: unknown)" in plot._machine({"machine": found})


def test_gpus_are_named_by_their_driver_or_by_torch_or_not_at_all(monkeypatch):
    told = SimpleNamespace(stdout="NVIDIA H100 80GB HBM3\nNVIDIA H100 80GB HBM3\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: told)
    assert machine.gpus() == ["NVIDIA H100 80GB HBM3"] * 2
    monkeypatch.setattr(subprocess, "run", failing)
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, get_device_name=lambda number: "a GPU")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert machine.gpus() == ["a GPU"]
    found = machine.machine()
    assert found["gpu"] == "a GPU"
    assert ", a GPU, " in plot._machine({"machine": found})
    cuda.is_available = lambda: False
    assert machine.gpus() == []
    assert "gpu" not in machine.machine()


def test_torch_is_not_imported_to_name_gpus(monkeypatch):
    monkeypatch.setattr(subprocess, "run", failing)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert machine.gpus() == []
    assert "torch" not in sys.modules
