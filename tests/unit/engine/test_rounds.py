"""Rounds of coordinated reads: whole, of one bucket, and together the data, however an epoch is cut into tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.conftest import FixedSizer

from millrace.dataset import Dataset
from millrace.engine.cache.local_cache import LocalCache
from millrace.engine.run.epoch_tasks import join
from millrace.engine.run.program import Program, list_sources
from millrace.graph.rounds import in_rounds
from millrace.planning.plan import WHOLE, Task, tail_inputs
from millrace.planning.task_order import planned

FIXED_LENGTH = 3


class Case(NamedTuple):
    """A pipeline that makes batches, how its epochs are cut, and what it should give.

    Attributes:
        sizes: of a batch, by bucket.
        expected: how often each number comes, rounds left aside.
        whole: batches of no other sizes.
    """

    dataset: Dataset
    ranks: int
    incomplete: str
    tasks: int
    boundaries: list[int]
    sizes: list[int]
    expected: Counter[int]
    whole: bool


class Ran(NamedTuple):
    """A task that was run: its outputs as lists of rows, what it took, left to its tail and left out."""

    task: Task
    outputs: list[list[tuple[int, int]]]
    took: dict[int, Any]
    left_out: int


def grown(number: int) -> Any:
    return np.full(1 + number * number % 11, number)


def equally_long(number: int) -> Any:
    return np.full(FIXED_LENGTH, number)


def wanted(number: int) -> bool:
    return number % 3 != 1


def fussy(array: Any) -> Any:
    if array[0] % 5 == 2:
        raise ValueError("not this one")
    return array


def negated(batch: Any) -> Any:
    return -batch


@st.composite
def cases(draw: Any) -> Case:
    count, ranks = draw(st.integers(0, 250)), draw(st.integers(1, 4))
    numbers = Counter(range(count))
    dataset = Dataset.range(count)
    if draw(st.booleans()):
        dataset, numbers = dataset.filter(wanted), Counter(filter(wanted, numbers))
    if draw(st.booleans()):
        dataset = dataset.shuffle(draw(st.sampled_from([4, 1000])))
    if draw(st.booleans()):
        dataset, numbers = dataset.repeat(2), Counter(dict.fromkeys(numbers, 2))
    kind = draw(st.sampled_from(["batch", "padded_batch", "bucket"]))
    dataset = dataset.map(equally_long if kind == "batch" else grown)
    if draw(st.booleans()):
        dataset = dataset.map(fussy).with_options(on_error="skip")
        numbers = Counter({number: often for number, often in numbers.items() if number % 5 != 2})
        behind = False  # of what may fail
    else:
        behind = draw(st.booleans())
    boundaries = sorted(draw(st.sets(st.integers(2, 10), max_size=3))) if kind == "bucket" else []
    sizes = draw(st.lists(st.integers(1, 5), min_size=len(boundaries) + 1, max_size=len(boundaries) + 1))
    whole = draw(st.booleans())
    match kind:
        case "batch":
            dataset = dataset.batch(sizes[0], drop_remainder=whole)
        case "padded_batch":
            dataset = dataset.padded_batch(sizes[0], padding_values=-1, drop_remainder=whole)
        case _:
            dataset = dataset.bucket_by_sequence_length(len, boundaries, sizes, padding_values=-1, drop_remainder=whole)
    if behind:
        dataset = dataset.map(negated).prefetch(2).map(negated)
    incomplete = draw(st.sampled_from(["drop", "mix"]))
    return Case(dataset, ranks, incomplete, draw(st.integers(1, 40)), boundaries, sizes, numbers, whole)


@contextmanager
def running(case: Case, *, chunk: int | None = None) -> Iterator[Program]:
    graph = in_rounds(case.dataset.__pipeline__().graph, case.ranks, case.incomplete)
    with closing(Program(graph, list_sources(graph), seed=3, tasks=case.tasks, threads=1)) as program:
        if chunk is not None:
            program._sizers = [FixedSizer(size=chunk) for _ in graph.nodes]
        yield program


def rows(batch: Any) -> list[tuple[int, int]]:
    """(number, length) of each element of a batch."""
    return [(int(row[0]), int(np.count_nonzero(row != -1))) for row in batch]


def run_task(program: Program, task: Task, epoch: int = 0, **options: Any) -> tuple[list[Any], dict[int, Any], int]:
    with program.run(task, epoch, **options) as run:
        outputs = [rows(element) for chunk in run for element in chunk.elements]
    return outputs, run.leftovers, run.left_out


def run_epoch(program: Program, cache: LocalCache | None = None, misses: Counter[int] | None = None) -> list[Ran]:
    left: dict[int, dict[int, Any]] = {}
    found = []
    for task in planned(program.plan):
        took = join(left.pop(child) for child in task.inputs)
        if cache is None:
            outputs, left[task.index], left_out = run_task(program, task, leftovers=took)
        else:
            with cache.using() as options:
                outputs, left[task.index], left_out = run_task(program, task, leftovers=took, **options)
            if misses is not None:
                misses[task.index] = options["point"].misses
        found.append(Ran(task, outputs, took, left_out))
    return found


def check(case: Case, epoch: list[Ran]) -> None:
    """Rounds are whole and of one bucket, and with what is left out they are the data."""
    seen = Counter(number for ran in epoch for batch in ran.outputs for number, _ in batch)
    assert seen <= case.expected
    left_out = sum(ran.left_out for ran in epoch)
    assert seen.total() + left_out == case.expected.total()
    if case.incomplete == "mix" and not case.whole:
        assert left_out < case.ranks
    if case.incomplete == "drop":
        assert left_out < case.ranks * sum(case.sizes) or not left_out
    for ran in epoch:
        assert not len(ran.outputs) % case.ranks, "every rank has equally many batches of a task"
        at_end = ran.task.parent < 0
        assert at_end or not ran.left_out
        for start in range(0, len(ran.outputs), case.ranks):
            batches = ran.outputs[start : start + case.ranks]
            (size,) = {len(batch) for batch in batches}
            found = {bucket_of(case, length) for batch in batches for _, length in batch}
            full = size == case.sizes[min(found)] and len(found) == 1
            mixed = at_end and case.incomplete == "mix" and size <= min(case.sizes[number] for number in found)
            assert full or mixed
            assert not case.whole or size in case.sizes


def bucket_of(case: Case, length: int) -> int:
    return sum(length >= boundary for boundary in case.boundaries)


@settings(max_examples=100)
@given(cases(), st.data())
def test_rounds_are_whole_and_together_the_data_and_a_rerun_is_the_same(case, data):
    with running(case) as program:
        epoch = run_epoch(program)
        check(case, epoch)
        if epoch:
            again = data.draw(st.sampled_from(epoch))
            skip = case.ranks * data.draw(st.integers(0, len(again.outputs) // case.ranks))
            outputs, _, left_out = run_task(program, again.task, leftovers=again.took, skip=skip)
            assert outputs == again.outputs[skip:]
            assert left_out == again.left_out
        for ran in epoch:
            assert tail_inputs(ran.task.index, program.plan.length) == ran.task.inputs
    with running(case, chunk=data.draw(st.integers(1, 9))) as program:
        assert [ran.outputs for ran in run_epoch(program)] == [ran.outputs for ran in epoch]


@settings(max_examples=40)
@given(cases())
def test_rounds_of_a_pipeline_that_runs_as_one_sequence(case):
    with running(case) as program:
        outputs, left, left_out = run_task(program, WHOLE)
        assert not left
        check(case, [Ran(WHOLE, outputs, {}, left_out)])


@pytest.mark.filterwarnings("ignore:below the cache after:millrace.errors.MillraceWarning")
@settings(max_examples=40)
@given(cases())
def test_what_is_cached_behind_the_batches_comes_in_the_same_rounds(case):
    case = case._replace(dataset=case.dataset.cache())
    with running(case) as program:
        cache = LocalCache(program.graph, list_sources(program.graph), 3)
        epoch = run_epoch(program, cache)
        check(case, epoch)
        misses: Counter[int] = Counter()
        again = run_epoch(program, cache, misses)
        assert [(ran.outputs, ran.left_out) for ran in again] == [(ran.outputs, ran.left_out) for ran in epoch]
        assert not misses.total() or program.graph.options().on_error == "skip", "it was read"


@pytest.mark.parametrize("ranks", [1, 3])
def test_tasks_without_end_are_of_whole_rounds(ranks):
    dataset = Dataset.range(7).repeat().map(grown).bucket_by_sequence_length(len, [4], [50, 20], padding_values=-1)
    with running(Case(dataset, ranks, "drop", 1, [4], [50, 20], Counter(), whole=False)) as program:
        assert program.plan.length is None
        outputs, left, left_out = run_task(program, program.plan.task(2))
        assert outputs
        assert not len(outputs) % ranks
        assert any(left.values())
        assert not left_out
