"""Files on another machine: read ahead over the ends of tasks, each once, and what comes out is what it ever was."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import millrace as mr
from millrace.engine.run import local_epoch, program
from millrace.errors import ElementTooLargeError, PipelineError, SourceError
from millrace.sources import storage

COUNT = 90
VERSIONS = itertools.count()


@pytest.fixture(scope="module")
def place() -> str:
    for number in range(COUNT):
        storage.write(f"memory://far/{number:03d}", b"%d" % number)
    return "memory://far/*"


@pytest.fixture(autouse=True)
def _several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*arguments: Any, **options: Any) -> program.Program:
        return program.Program(*arguments, **{**options, "tasks": 6})

    monkeypatch.setattr(local_epoch, "Program", made)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    real = storage.read_many

    def counting(locations: list[str]) -> list[bytes]:
        counted.update(locations)
        return real(locations)

    monkeypatch.setattr(storage, "read_many", counting)
    return counted


def number(element: dict[str, Any]) -> int:
    return int(element["bytes"])


PIPELINES: dict[str, Callable[[mr.Dataset], mr.Dataset]] = {
    "alone": lambda ds: ds.map(number),
    "shuffled": lambda ds: ds.shuffle(COUNT, seed=3).map(number),
    "batches": lambda ds: ds.shuffle(COUNT, seed=3).map(number).batch(7),
    "taken": lambda ds: ds.skip(5).take(40).map(number).shard(2, 1),
    "repeated": lambda ds: ds.map(number).repeat(3),
    "filtered": lambda ds: ds.map(number).filter(lambda n: n % 3 == 0).batch(4),
    "zipped": lambda ds: mr.Dataset.zip(ds.map(number), ds.shuffle(COUNT, seed=1).map(number)),
    "joined": lambda ds: ds.map(number).concatenate(ds.shuffle(COUNT, seed=2).map(number)),
    "kept": lambda ds: ds.map(number, key=str(next(VERSIONS))).cache().repeat(2),
    "in sequence": lambda ds: ds.filter(lambda e: True).map(number).enumerate(),
}


def values(dataset: mr.Dataset) -> list[Any]:
    return [element.tolist() if hasattr(element, "tolist") else element for element in dataset]


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("chosen", [None, 3])
def test_what_comes_out_and_what_is_read_are_as_without_reading_ahead(
    place: str,
    read: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    pipeline: Callable[[mr.Dataset], mr.Dataset],
    chosen: int | None,
) -> None:
    def made() -> mr.Dataset:
        return pipeline(mr.Dataset.from_files(place)).with_options(reads_in_flight=chosen, seed=5)

    expected = values(made())
    before = Counter(read)
    read.clear()
    monkeypatch.setattr(program, "is_far", lambda location: True)
    assert values(made()) == expected
    assert read == before, "each file as often as before"


def test_what_comes_before_a_file_that_cannot_be_read_is_read_once(
    place: str, monkeypatch: pytest.MonkeyPatch, read: Counter[str]
) -> None:
    counting = storage.read_many

    def failing(locations: list[str]) -> list[bytes]:
        found = counting(locations)
        if any("033" in location for location in locations):
            raise SourceError("nobody answers")
        return found

    monkeypatch.setattr(storage, "read_many", failing)
    monkeypatch.setattr(program, "is_far", lambda location: True)
    found: list[int] = []
    with pytest.raises(SourceError, match="nobody answers"):
        found.extend(mr.Dataset.from_files(place).map(number))
    assert found == list(range(33))
    assert {place for place, count in read.items() if count > 1} == set()


def test_reads_go_on_over_the_ends_of_tasks(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "is_far", lambda location: True)
    dataset = mr.Dataset.from_files(place).map(number)
    announced: list[list[int]] = []
    real = program.Program.expect

    def expect(self: program.Program, owner: object, tasks: Any) -> None:
        tasks = list(tasks)
        announced.append([task.index for task, _ in tasks])
        real(self, owner, tasks)

    monkeypatch.setattr(program.Program, "expect", expect)
    assert values(dataset) == list(range(COUNT))
    assert announced == [list(range(index, 6)) for index in range(6)]


def test_the_measures_say_how_many_are_under_way(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = mr.Dataset.from_files(place).map(number).with_options(reads_in_flight=7)
    with iter(dataset) as near:
        next(near)
        assert near.measures()[0].reads_in_flight == 0
    monkeypatch.setattr(program, "is_far", lambda location: True)
    with iter(dataset) as far:
        next(far)
        source, mapped, *_ = far.measures()
        assert (source.threads, source.reads_in_flight) == (7, 7)
        assert mapped.reads_in_flight == 0


def test_a_file_larger_than_all_buffers_is_refused_before_it_is_read(
    place: str, read: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "is_far", lambda location: True)
    storage.write("memory://large/a", b"x" * 1000)
    with pytest.raises(ElementTooLargeError, match="memory://large/a has 1000 bytes"):
        values(mr.Dataset.from_files("memory://large/a").with_options(buffer_bytes=100))
    assert not read


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", True, 1025, 10**9])
def test_how_many_may_be_chosen_within_reason(wrong: Any) -> None:
    with pytest.raises(PipelineError, match=r"with_options: reads_in_flight must be"):
        mr.Dataset.range(3).with_options(reads_in_flight=wrong)
