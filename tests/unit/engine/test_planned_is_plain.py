"""A planned run gives what a plain loop over lists gives, for pipelines of any make."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.any_pipeline import pipeline
from tests.unit.engine.conftest import begin_early

from millrace.dataset import Dataset
from millrace.engine.threads import operator_threads
from millrace.errors import UnknownLengthError
from millrace.graph import serialize
from millrace.planning.plan import make_plan
from millrace.planning.units import UnitMap


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


@settings(max_examples=400)
@given(st.data())
def test_any_plan_gives_what_plain_lists_give(runs, data):
    case = pipeline(data.draw, runs)
    seed = data.draw(st.integers(0, 9), label="seed")
    case.check(runs.epoch(case.dataset, seed=seed))
    tasks = data.draw(st.integers(1, 40), label="tasks")
    chunk = data.draw(st.sampled_from([1, 3, 1000]), label="chunk")
    found = runs.epoch(case.dataset, tasks=tasks, chunk=chunk, seed=seed)
    case.check(found)
    case.check(runs.whole(case.dataset, seed=seed))
    try:
        assert UnitMap(case.dataset.__pipeline__().graph, case.dataset.__pipeline__().tables(), seed).length() in (
            len(found),
            None,
        )
        assert len(case.dataset.with_options(seed=seed)) == len(found)
    except UnknownLengthError:
        assert not case.one_to_one()


@settings(max_examples=150)
@given(st.data())
def test_shares_are_disjoint_and_together_the_epoch(runs, data):
    case = pipeline(data.draw, runs)
    parts = data.draw(st.integers(2, 4), label="parts")
    tasks = data.draw(st.integers(1, 40), label="tasks")
    shares = runs.shares(case.dataset, parts, tasks=tasks)
    case.in_parts(parts).check([element for share in shares for element in share])
    assert same(runs.shares(case.dataset, parts, tasks=tasks, chunk=2), shares)


@settings(max_examples=80)
@given(st.data())
def test_the_same_again(runs, data):
    case = pipeline(data.draw, runs)
    tasks = data.draw(st.integers(1, 20), label="tasks")
    epoch = data.draw(st.integers(0, 3), label="epoch")
    seed = data.draw(st.integers(0, 3), label="seed")
    once = runs.epoch(case.dataset, epoch, tasks=tasks, seed=seed)
    chunk = data.draw(st.sampled_from([1, 2, 7, 5000]), label="chunk")
    worth = data.draw(st.sampled_from([0.0, 1.0]), label="threads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_threads, "_WORTH_A_THREAD_S", worth)
        assert same(runs.epoch(case.dataset, epoch, tasks=tasks, seed=seed, chunk=chunk), once)


@settings(max_examples=80)
@given(st.data())
def test_the_same_where_each_task_begins_before_the_one_before_it_has_ended(runs, data):
    case = pipeline(data.draw, runs)
    tasks = data.draw(st.integers(2, 20), label="tasks")
    once = runs.epoch(case.dataset, tasks=tasks, seed=1)
    early = data.draw(st.sampled_from([1, 2, 1000]), label="early")
    chunk = data.draw(st.sampled_from([1, 2, 7]), label="chunk")
    with pytest.MonkeyPatch.context() as patch:
        begin_early(patch, early)
        assert same(runs.epoch(case.dataset, tasks=tasks, seed=1, chunk=chunk), once)


@settings(max_examples=100)
@given(st.data())
def test_tasks_are_pure_and_run_in_any_order(runs, data):
    case = pipeline(data.draw, runs)
    tasks = data.draw(st.integers(1, 20), label="tasks")
    chunk = data.draw(st.sampled_from([1, 4, 100]), label="chunk")
    with closing(runs.program(case.dataset, tasks=tasks)) as made:
        first = {task.index: run(made, task) for task in mains(made.plan)}
        with closing(runs.program(case.dataset, chunk=chunk)) as backwards:
            backwards.plan = made.plan
            for task in reversed(mains(made.plan)):
                assert same(run(backwards, task), first[task.index])


def mains(plan: Any) -> list[Any]:
    return [task for task in map(plan.task, range(plan.length)) if not task.is_tail]


def run(program: Any, task: Any) -> Any:
    with program.run(task, 1) as running:
        return [
            (chunk.origin, int(position), element)
            for chunk in running
            for position, element in zip(chunk.positions, chunk.elements, strict=True)
        ], running.leftovers


@settings(max_examples=80)
@given(st.data())
def test_structure_is_enough_to_plan(runs, data):
    case = pipeline(data.draw, runs)
    graph, tables = case.dataset.__pipeline__().graph, case.dataset.__pipeline__().tables()
    structure, slots = serialize.pack(graph)
    bare = serialize.unpack(structure)
    full = serialize.unpack(structure, [slot.value for slot in slots])
    tasks = data.draw(st.sampled_from([None, 1, 7]))
    ours, theirs = (make_plan(each, tables, tasks=tasks) for each in (graph, bare))
    assert (ours.length, ours.warnings) == (theirs.length, theirs.warnings)
    assert [ours.task(i) for i in range(ours.length or 0)] == [theirs.task(i) for i in range(theirs.length or 0)]
    assert serialize.pack(full)[0] == serialize.pack(bare)[0] == structure
    assert [slot.value for slot in serialize.pack(full)[1]] == [slot.value for slot in slots]
    rebuilt = Dataset(full.root)
    assert same(runs.epoch(rebuilt, seed=1), runs.epoch(case.dataset, seed=1))


@settings(max_examples=60)
@given(st.integers(0, 300), st.integers(1, 9), st.integers(2, 7), st.integers(1, 40), st.integers(0, 9))
def test_drop_remainder_drops_less_than_a_batch_however_many_tasks_there_are(runs, count, size, every, tasks, seed):
    kept = Dataset.range(count).shuffle(50).filter(lambda number: number % every > 0)
    for dataset in (kept, Dataset.range(count).shuffle(50)):
        total = len(runs.epoch(dataset, tasks=tasks, seed=seed))
        batches = runs.epoch(dataset.batch(size, drop_remainder=True), tasks=tasks, seed=seed)
        assert [len(batch) for batch in batches] == [size] * (total // size)
        short = runs.epoch(dataset.batch(size), tasks=tasks, seed=seed)
        assert sum(len(batch) < size for batch in short) == (total % size > 0)
