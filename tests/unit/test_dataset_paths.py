"""Local paths are absolute from the start: whoever reads them may run in another folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.dataset import Dataset


def pattern_of(dataset: Dataset) -> str:
    (pattern,) = vars(dataset.__pipeline__().graph.root)["patterns"]
    assert isinstance(pattern, str)
    return pattern


@pytest.mark.parametrize("source", ["from_files", "from_tfrecords", "from_webdataset", "from_parquet"])
@pytest.mark.parametrize("given", ["a*/b", "./a*/b", ".//a*/b"])
def test_relative(source: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pattern_of(getattr(Dataset, source)(given)) == f"{os.getcwd()}/a*/b"


@pytest.mark.parametrize("given", ["/data/*.jpg", "s3://bucket/*.jpg", "https://host/a.jpg?k=1", "file:///a%20b"])
def test_absolute_ones_stay(given: str) -> None:
    assert pattern_of(Dataset.from_files(given)) == given


def test_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/mine")
    assert pattern_of(Dataset.from_files("~/a.jpg")) == "/home/of/mine/a.jpg"


def test_paths_as_objects() -> None:
    assert pattern_of(Dataset.from_files(Path("/data/a.jpg"))) == "/data/a.jpg"
    assert vars(Dataset.from_files([Path("/a"), "/b"]).__pipeline__().graph.root)["patterns"] == ("/a", "/b")


@pytest.mark.parametrize("folder", ["plain", "with [brackets] and *"])
@pytest.mark.parametrize("pattern", ["one.txt", "*.txt", "../*/one.txt"])
def test_read_from_another_folder(folder: str, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / folder
    here.mkdir()
    (here / "one.txt").write_bytes(b"1")
    monkeypatch.chdir(here)
    dataset = Dataset.from_files(pattern)
    monkeypatch.chdir(tmp_path)
    assert [element["bytes"] for element in dataset] == [b"1"]
