"""Plans: what is cut where, and who takes what is left over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning import plan as planning
from millrace.planning.plan import FAN_IN, EqualPlan, Plan, Task, make_plan, tail_inputs
from millrace.planning.progress import TaskSet
from millrace.planning.remainder import leftover_reruns
from millrace.planning.split_table import Split, SplitTable, files_table, positions_table, splits_table

units = st.integers(1, 3000)
sizes = st.integers(1, 400)


def tasks_of(plan: Plan) -> list[Task]:
    assert plan.length is not None
    return [plan.task(index) for index in range(plan.length)]


@given(units, sizes)
def test_tasks_cover_all_units_once_and_in_order(count, size):
    tasks = tasks_of(Plan(count, size))
    assert [task.index for task in tasks] == list(range(len(tasks)))
    assert [task.start for task in tasks] == [0, *[task.stop for task in tasks[:-1]]]
    assert tasks[-1].stop == count
    assert all(task.parent == -1 and not task.is_tail and not task.is_sequence for task in tasks)


@given(units, sizes, st.one_of(st.none(), st.integers(1, 500)))
def test_every_leftover_reaches_the_last_tail_of_its_period(count, size, period):
    period = count if period is None else min(period, count)
    if period < count:
        count = -(-count // period) * period
    plan = Plan(count, size, period=period, tails=True)
    tasks = tasks_of(plan)
    mains = [task for task in tasks if not task.is_tail]
    assert [task.start for task in mains] == [0, *[task.stop for task in mains[:-1]]]
    assert mains[-1].stop == count
    for task in tasks:
        assert [tasks[child].parent for child in task.inputs] == [task.index] * len(task.inputs)
        assert all(child < task.index for child in task.inputs)
        assert len(task.inputs) <= FAN_IN
        assert task.parent == -1 or task.index in tasks[task.parent].inputs
    flushing = [task for task in tasks if task.parent == -1]
    assert len(flushing) == count // period
    for turn, last in enumerate(flushing):
        under = [task for task in below(tasks, last) if not task.is_tail]
        assert min(task.start for task in under) == turn * period
        assert max(task.stop for task in under) == (turn + 1) * period
        assert sum(task.stop - task.start for task in under) == period
        assert [task.start for task in under] == sorted(task.start for task in under)


def below(tasks: list[Task], task: Task) -> list[Task]:
    return [task, *[deeper for child in task.inputs for deeper in below(tasks, tasks[child])]]


@given(units, sizes, st.one_of(st.none(), st.integers(1, 500)), st.booleans())
def test_tasks_that_are_no_tails_are_found_by_number(count, size, period, tails):
    plan = Plan(count, size, period=count if period is None else period, tails=tails)
    mains = [task.index for task in tasks_of(plan) if not task.inputs]
    assert plan.mains == len(mains)
    assert [plan.main(number) for number in range(len(mains))] == mains


def test_the_picture_in_the_docstring():
    tasks = tasks_of(Plan(40, 1, tails=True))
    assert tasks[16].inputs == tuple(range(16))
    assert tasks[33].inputs == tuple(range(17, 33))
    assert tasks[42].inputs == tuple(range(34, 42))
    assert tasks[43].inputs == (16, 33, 42)
    assert len(tasks) == 44


@pytest.mark.parametrize("mains", [0, 1, 2, 15, 16, 17, 31, 33, 255, 256, 257, 600])
def test_a_reader_that_knows_how_many_tasks_there_are_knows_the_tails(mains):
    plan = Plan(mains, 1, tails=True)
    assert plan.length is not None
    assert [tail_inputs(index, plan.length) for index in range(plan.length)] == [
        plan.task(index).inputs for index in range(plan.length)
    ]
    if mains > 256:
        assert tail_inputs(16, None) == tail_inputs(16, plan.length) == tuple(range(16))


@pytest.mark.parametrize("index", [-1, 4, 100])
def test_there_are_no_other_tasks(index):
    with pytest.raises(IndexError, match=f"task {index} of a plan of 4"):
        Plan(40, 10).task(index)


def test_nothing_to_do():
    assert Plan(0, 10).length == 0
    assert Plan(0, 10, tails=True, period=0).length == 0


@given(st.integers(0, 10**12), st.integers(1, 10**4), st.booleans())
def test_plans_without_end_have_any_task(index, size, tails):
    plan = Plan(1 << 62, size, tails=tails)
    assert plan.length is None
    task = plan.task(index)
    assert task.index == index
    if task.is_tail:
        assert len(task.inputs) == FAN_IN
        assert all(plan.task(child).parent == index for child in task.inputs)
    else:
        assert task.stop - task.start == size
        assert task.parent == -1 or index in plan.task(task.parent).inputs
    endless = Plan(1 << 62, 7, period=30, tails=True)
    assert (endless.task(5).inputs, endless.task(6).start, endless.task(6).index) == ((0, 1, 2, 3, 4), 30, 6)


def test_a_task_of_a_plan_without_end_is_found_without_a_walk_through_all_levels(monkeypatch):
    """The dispatcher asks for many tasks with every decision."""
    plan = Plan(1 << 62, 4, tails=True)
    levels: list[int] = []

    def full(level: int) -> int:
        levels.append(level)
        return int(FAN_IN**level)

    monkeypatch.setattr(planning, "_full", full)
    assert plan.task(100).parent == 101
    assert max(levels) <= 3
    assert len(levels) < 20


# -- sizes -------------------------------------------------------------------------------------------------------------


def source(table: SplitTable, grow: Callable[[g.Node], g.Node] = lambda node: node, **options: Any) -> Plan:
    kind: g.Node = (
        g.FromFiles(patterns=())
        if table.locations
        else g.FromTFRecords(patterns=())
        if not table.cheap
        else g.Range(start=0, stop=table.count)
    )
    return make_plan(Graph(grow(kind)), {0: table}, **options)


def mains(plan: Plan) -> int:
    return sum(not task.is_tail for task in tasks_of(plan))


@pytest.mark.parametrize("wanted", [1, 2, 3, 16, 1000, 10**6])
@pytest.mark.parametrize("count", [1, 7, 100, 999])
def test_as_many_tasks_as_asked_for_or_as_there_are_units(wanted, count):
    plan = source(positions_table(count), tasks=wanted)
    assert plan.length is not None
    assert plan.length <= min(wanted, count)
    assert plan.length >= min(wanted, count) / 2


def test_little_data_are_few_tasks_and_large_data_many():
    assert source(positions_table(10)).length == 1
    assert source(positions_table(1000)).length == 15
    assert source(positions_table(100_000)).length == 16
    assert source(positions_table(10_000_000)).length == pytest.approx(1221, abs=2)
    large = files_table([("", 100 << 20, "")] * 1000)
    assert source(large).length == 1000
    tiny = splits_table([Split("", bytes=1000, count=5)] * 4)
    assert source(tiny).length == 1
    shards = splits_table([Split("", bytes=64 << 20)] * 64)
    assert source(shards).length == 64


def test_tasks_hold_whole_batches():
    plan = source(positions_table(1000), lambda node: g.Batch(inputs=(node,), batch_size=64), tasks=5)
    assert [(task.start, task.stop) for task in tasks_of(plan)] == [(0, 4), (4, 8), (8, 12), (12, 16)]


def test_tasks_that_leave_something_are_not_made_of_less_than_several_batches():
    def batched(node: g.Node) -> g.Node:
        return g.Batch(inputs=(g.Filter(inputs=(node,), fn=g.Opaque(None)),), batch_size=256)

    for count, tasks, batches in ((700, 1, 3), (1600, 2, 3), (10_000, 13, 3), (20_000, 16, 4), (100_000, 16, 12)):
        plan = source(positions_table(count), batched)
        assert mains(plan) == tasks, "a few where there is little data, so that some workers find work"
        assert count / tasks >= batches * 256 * 0.9 or tasks == 1
        assert tasks_of(plan)[-1].is_tail or tasks == 1


def test_repetitions_are_planned_apart_only_if_something_is_collected():
    def repeated(node: g.Node) -> g.Node:
        return g.Repeat(inputs=(node,), count=3)

    def collected(node: g.Node) -> g.Node:
        return repeated(g.Rebatch(inputs=(g.Batch(inputs=(node,), batch_size=3),), batch_size=4))

    assert source(positions_table(30), repeated, tasks=2).length == 2
    plan = source(positions_table(30), collected, tasks=6)
    flushing = [task.index for task in tasks_of(plan) if task.parent == -1]
    assert len(flushing) == 3
    assert mains(plan) == 6


def test_what_cannot_be_planned_says_so():
    def cut(node: g.Node) -> g.Node:
        return g.Take(inputs=(g.Filter(inputs=(node,), fn=g.Opaque(None, "odd")),), count=3)

    plan = source(positions_table(30), cut, tasks=6)
    assert plan.length == 1
    assert plan.task(0).is_sequence
    (warning,) = plan.warnings
    assert "runs as one task on one worker, in order: take()" in warning
    assert "only reading it all in order can tell" in warning


def test_collectors_shared_by_two_inputs_are_not_planned():
    def both(node: g.Node) -> g.Node:
        batches = g.Batch(inputs=(g.Filter(inputs=(node,), fn=g.Opaque(None)),), batch_size=3)
        return g.Concatenate(inputs=(batches, g.Map(inputs=(batches,), fn=g.Opaque(None))))

    def apart(node: g.Node) -> g.Node:
        kept = g.Filter(inputs=(node,), fn=g.Opaque(None))
        return g.Concatenate(inputs=tuple(g.Batch(inputs=(kept,), batch_size=3) for _ in range(2)))

    assert source(positions_table(90), both, tasks=6).task(0).is_sequence
    assert mains(source(positions_table(90), apart, tasks=6)) == 6


def test_the_number_of_tasks_of_empty_data_that_are_collected():
    def grow(node: g.Node) -> g.Node:
        empty = g.Take(inputs=(node,), count=0)
        kept = g.Filter(inputs=(g.Concatenate(inputs=(empty, empty)),), fn=g.Opaque(None))
        return g.Batch(inputs=(kept,), batch_size=3)

    assert source(positions_table(90), grow).length == 0
    assert source(positions_table(90), lambda node: g.Repeat(inputs=(grow(node),))).length == 0


@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 9))
def test_in_an_equal_plan_every_rank_gets_equally_many_units(units, size, ranks):
    plan = EqualPlan(units, size, ranks)
    tasks = [plan.task(index) for index in range(plan.length or 0)]
    shares = [sum(task.stop - task.start for task in tasks[rank::ranks]) for rank in range(ranks)]
    assert shares == [units // ranks] * ranks
    assert plan.left_out == units - sum(shares) < ranks
    assert [unit for task in tasks for unit in range(task.start, task.stop)] == list(range(sum(shares)))
    assert all(0 < task.stop - task.start <= size for task in tasks)
    with pytest.raises(IndexError):
        plan.task(plan.length or 0)


def test_counts_that_are_not_known_cannot_be_divided_beforehand():
    known, unknown = g.Range(start=0, stop=100), g.Filter(inputs=(g.Range(start=0, stop=100),), fn=g.Opaque(None, "f"))
    plans = [make_plan(Graph(node), {0: positions_table(100)}, ranks=3) for node in (known, unknown)]
    assert [plan.equal for plan in plans] == [True, False]
    assert [plan.left_out for plan in plans] == [1, 0]


def test_of_rounds_that_are_over_nothing_is_owed_and_none_is_looked_at(calls):
    plan = Plan(40 * 100_000, 1, period=40, tails=True)
    length = plan.length
    assert length is not None
    each = length // 100_000
    done = TaskSet(99_990 * each + 3) | TaskSet.of([99_990 * each + 5])
    found: list[tuple[list[int], list[int]]] = []
    assert calls(lambda: found.append(leftover_reruns(plan.task, done, TaskSet()))) < 2000
    assert found == [([99_990 * each + within for within in (0, 1, 2, 5)], [])]
