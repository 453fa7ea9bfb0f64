"""A run with care gives what any run gives, says before each step where it is, and leaves out what it may not touch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.any_pipeline import pipeline

from millrace import ElementError, SourceError
from millrace.dataset import Dataset
from millrace.engine.run import epoch_tasks
from millrace.engine.run.program import Program
from millrace.engine.user_code.crash_probe import CrashProbe, RunStoppedError


def run(dataset: Dataset, watches: Any, tasks: int = 4, seed: int = 3) -> list[Any]:
    """Elements of an epoch, each task with the watch that ``watches()`` gives."""
    program = Program(dataset.__pipeline__().graph, dataset.__pipeline__().tables(), seed=seed, tasks=tasks)
    left: dict[int, Any] = {}
    found: list[Any] = []
    try:
        for index in range(program.plan.length or 0):
            task = program.plan.task(index)
            leftovers = epoch_tasks.join(left.pop(child, {}) for child in task.inputs)
            with program.run(task, 0, leftovers, watches()) as running:
                found += [element for chunk in running for element in chunk.elements]
            left[index] = running.leftovers
    finally:
        program.close()
    return found


@settings(max_examples=100)
@given(st.data())
def test_care_changes_nothing_that_comes_out(runs, data):
    dataset = pipeline(data.draw, runs).dataset
    said: list[Any] = []
    careful = run(dataset, lambda: CrashProbe([], lambda place, where: said.append((place, where))))
    assert repr(careful) == repr(run(dataset, lambda: None))
    assert all((place == ()) == (number % 2 == 1) for number, (place, _) in enumerate(said))
    assert len({place for place, _ in said}) - 1 <= len(said) / 2


def square(number: int) -> int:
    return number * number


def places(dataset: Dataset) -> dict[str, Any]:
    said: dict[str, Any] = {}
    run(dataset, lambda: CrashProbe([], lambda place, where: said.setdefault(where, place)))
    return said


@pytest.mark.parametrize("care", [True, False])
def test_what_may_not_be_touched_counts_as_failed(care):
    dataset = Dataset.range(20).shuffle(20, seed=1).map(square)
    poison = places(dataset)["map(square) of item 7"]
    announce = (lambda place, where: None) if care else None

    def found(**options: Any) -> list[Any]:
        return sorted(run(dataset.with_options(**options), lambda: CrashProbe([poison], announce)))

    assert found(on_error="skip") == [n * n for n in range(20) if n != 7]
    assert found(on_error=lambda error: -1) == sorted([-1, *(n * n for n in range(20) if n != 7)])
    with pytest.raises(
        ElementError, match=r"map\(square\) failed on item 7: .* ended: a crash in native code"
    ) as error:
        found()
    assert error.value.user_traceback == ""


def several(number: int) -> list[int]:
    return [number] * 3


@pytest.mark.parametrize("care", [True, False])
def test_what_was_given_before_the_end_of_a_worker_stays(care):
    dataset = Dataset.range(4).flat_map(several)
    said: list[Any] = []
    run(dataset, lambda: CrashProbe([], lambda place, where: said.append(place)), tasks=1)
    # Of item 1: the function itself, then asking for each of its elements.
    third = [place for place in said if place[:1] == (1,) and place[4] == 1][3]
    watch = CrashProbe([third], (lambda place, where: None) if care else None)
    assert run(dataset.with_options(on_error="skip"), lambda: watch, tasks=1) == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("patterns", ["/memory-of-a-test:0,1,5,5", "/memory-of-a-test:0,0,5,5"], ids=["counted", "not"])
def test_data_that_end_workers_are_never_skipped(patterns):
    dataset = Dataset.from_tfrecords(patterns).with_options(on_error="skip")
    [(where, place)] = [(where, place) for where, place in places(dataset).items() if "part-1" in where][:1]
    with pytest.raises(SourceError, match=r"^reading part-1, record \d+ failed: the process of every worker"):
        run(dataset, lambda: CrashProbe([place], None))
    assert where.startswith("reading part-1")


def test_files_are_named(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"x")
    dataset = Dataset.from_files(f"{tmp_path}/*.bin")
    found = places(dataset)
    with pytest.raises(SourceError, match=r"^reading .*/1\.bin failed"):
        run(dataset, lambda: CrashProbe([found[f"reading {tmp_path}/1.bin"]], None))


def test_a_run_that_is_to_stop_is_no_failure_of_an_element():
    def announce(place: Any, where: str) -> None:
        raise RunStoppedError

    with pytest.raises(RunStoppedError):
        run(Dataset.range(5).map(square).with_options(on_error="skip"), lambda: CrashProbe([], announce))
