"""Results name commits of main, and a page says what they say."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks import plot, provenance


class Repository:
    """A repository in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
        done = subprocess.run(["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, file: str) -> str:
        path = Path(self.folder, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + "more" if path.exists() else "something")
        self.git("add", file)
        self.git("commit", "-qm", "a change")
        return self.git("rev-parse", "--short", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def result(commit: str | None) -> dict[str, Any]:
    return {"machine": {"commit": commit}}


def test_a_commit_that_is_not_on_main_is_a_problem_and_so_are_changes_and_none(repository):
    on_main = repository.commit("benchmarks/small.py")
    repository.git("checkout", "-qb", "aside")
    aside = repository.commit("src/millrace/code.py")
    repository.git("checkout", "-q", "main")
    reports = {"small": result(on_main), "far": result(aside), "dirty": result(f"{on_main}+"), "none": result(None)}
    found = provenance.problems(reports, repository.folder)
    assert [line.split(":")[0] for line in found] == [
        f"dirty was measured at {on_main} with changes that are in no commit",
        f"far was measured at {aside}, which is not on main",
        "none names no commit",
    ]


def test_ages_count_changes_of_the_code_and_tell_of_the_benchmarks_own(repository):
    first = repository.commit("benchmarks/papers/old.py")
    repository.commit("src/millrace/code.py")
    repository.commit("benchmarks/papers/old.py")
    second = repository.commit("src/millrace/code.py")
    reports = {"new": result(second), "papers.old": result(first), "unknown": result(None)}
    assert provenance.ages(reports, repository.folder) == [
        f"papers.old: 2 commits to src/millrace since {first}; the benchmark has changed, too",
        f"new: 0 commits to src/millrace since {second}",
    ]


def test_without_history_nothing_can_be_said(repository, tmp_path_factory):
    repository.commit("a")
    repository.commit("b")
    shallow = tmp_path_factory.mktemp("shallow")
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{repository.folder}", str(shallow)], check=True)
    assert provenance.is_whole(repository.folder)
    assert not provenance.is_whole(str(shallow))
    assert not provenance.is_whole(str(tmp_path_factory.mktemp("nothing")))


def test_a_page_that_says_something_else_than_a_result_fails(repository, monkeypatch, capsys):
    monkeypatch.setattr(plot, "_ROOT", repository.folder)
    for name in ("PAGE", "GUARANTEES", "RESULTS"):
        monkeypatch.setattr(plot, name, str(Path(repository.folder, name)))
    Path(plot.RESULTS).mkdir()
    machine = {"cpu": "a", "cores": 2, "memory_gib": 1.0, "python": "3", "libraries": {}, "load_before": 0.0}
    measured = {"benchmark": "some", "command": "measure", "table": [["", "s"], ["a", "1"]], "machine": machine}
    machine["commit"] = repository.commit("benchmarks/some.py")
    file = Path(plot.RESULTS, "some.json")
    file.write_text(json.dumps(measured))
    for page in (plot.PAGE, plot.GUARANTEES):
        places = [f"<!-- {name} -->\n<!-- end {name} -->\n" for name in ("some", "targets", "aims")]
        Path(page).write_text("".join(["# Page\n", *places]))
    assert plot.main(["--check"]) == 1
    assert "PAGE says something else of some than its result" in capsys.readouterr().err
    assert plot.main([]) == 0
    assert plot.main(["--check"]) == 0
    file.write_text(json.dumps({**measured, "table": [["", "s"], ["a", "2"]]}))
    assert plot.main(["--check"]) == 1
