"""Equal steps, stopped at any step and gone on with by any number of ranks: all get as many, and nothing twice."""

import itertools
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.planning.plan import EqualPlan, Piece, Plan
from millrace.planning.progress import Progress, TaskSet
from millrace.planning.remainder import NOTHING, is_even, left_of


def run(task):
    """What a worker gives for the task: units, named by themselves and, in a window, by the run that they come from.

    Outputs of a run over ``[start, stop)`` are in an order of its own, as with a shuffle that mixes what a task has.
    """
    outputs = []
    for piece in task.pieces:
        index = task.index if piece.index < 0 else piece.index
        mixed = list(range(piece.start, piece.stop))
        random.Random(f"{index} {piece.start} {piece.stop}").shuffle(mixed)
        outputs += mixed[piece.first : piece.last]
    return outputs


class Rank:
    """One rank, which reads several of its tasks by turns."""

    def __init__(self, plan, rank, ranks, done, begun):
        self.progress = Progress(done, begun)
        self.lanes = []
        self.tasks = iter([index for index in range(rank, plan.length, ranks) if index not in done])
        self.plan, self.begun = plan, begun

    def step(self, rng, abreast):
        """The next output; None at the end."""
        while True:
            for index in itertools.islice(self.tasks, abreast - len(self.lanes)):
                outputs = run(self.plan.task(index))
                self.progress.ends(index, len(outputs))
                self.lanes.append((index, iter(list(enumerate(outputs))[self.begun.get(index, 0) :])))
            if not self.lanes:
                return None
            lane = rng.choice(self.lanes)
            found = next(lane[1], None)
            if found is None:
                self.lanes.remove(lane)
                continue
            self.progress.yielded(lane[0], found[0] + 1)
            return found[1]


def merged(ranks):
    done = TaskSet()
    begun: dict[int, int] = {}
    for rank in ranks:
        theirs, parts = rank.progress.now()
        done |= theirs
        begun |= {task: max(count, begun.get(task, 0)) for task, count in parts}
    return done, {task: count for task, count in begun.items() if task not in done}


@settings(max_examples=300, deadline=None)
@given(
    units=st.integers(0, 200),
    size=st.integers(1, 30),
    lives=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), min_size=1, max_size=5),
    abreast=st.integers(1, 3),
    seed=st.integers(0, 1 << 30),
)
def test_stopped_at_any_step_each_rank_gets_as_many_and_each_element_comes_once(units, size, lives, abreast, seed):
    rng = random.Random(seed)
    seen: Counter[int] = Counter()
    of = lives[0][0]
    plan, done = EqualPlan(units, size, of), TaskSet()
    begun: dict[int, int] = {}
    for life, (count, steps) in enumerate(lives):
        before = sum(seen.values())
        left = sum(piece.last - piece.first for piece in left_of(plan, done, begun))
        assert left == units - before
        if count != of:
            plan, done, begun, of = EqualPlan(units, size, count, left_of(plan, done, begun)), TaskSet(), {}, count
        assert is_even(plan, done, begun, count)
        ranks = [Rank(plan, rank, count, done, begun) for rank in range(count)]
        last = life == len(lives) - 1
        rows: list[Any] = []
        while last or len(rows) < steps:
            row = [rank.step(rng, abreast) for rank in ranks]
            assert len({each is None for each in row}) == 1, "one rank has a step, and another has none"
            if row[0] is None:
                break
            rows.append(row)
        seen.update(itertools.chain(*rows))
        assert set(seen.values()) <= {1}
        done, begun = merged(ranks)
    assert plan.left_out == units - sum(seen.values()) < count


@given(units=st.integers(1, 100), size=st.integers(1, 20), rng=st.randoms(use_true_random=False))
def test_ranks_at_unequal_steps_get_equally_many_of_what_is_left(units, size, rng):
    plan = EqualPlan(units, size, 3)
    ranks = [Rank(plan, rank, 3, TaskSet(), {}) for rank in range(3)]
    seen = [rank.step(rng, 2) for rank in ranks for _ in range(rng.randrange(12))]
    seen = [each for each in seen if each is not None]
    done, begun = merged(ranks)
    after = EqualPlan(units, size, 3, left_of(plan, done, begun))
    tasks = [run(after.task(index)) for index in range(after.length or 0)]
    each = [[*itertools.chain(*tasks[rank::3])] for rank in range(3)]
    assert len({len(outputs) for outputs in each}) == 1
    came = [*seen, *itertools.chain(*each)]
    assert len(set(came)) == len(came) == units - after.left_out
    assert after.left_out < 3


def test_an_epoch_that_was_begun_for_any_number_of_readers_can_be_divided():
    plan = Plan(103, 10, exact=True)
    left = left_of(plan, TaskSet.of([0, 2]), {5: 4})
    assert left == [Piece.of(10, 20), Piece.of(30, 50), Piece(50, 60, 4, 10, 5), Piece.of(60, 103)]
    assert EqualPlan(103, 10, 4, left).left_out == 79 % 4


def test_nothing_left_is_an_epoch_without_tasks():
    plan = EqualPlan(8, 2, 2)
    left = left_of(plan, TaskSet.of(range(4)), {})
    assert left == [NOTHING]
    assert (EqualPlan(8, 2, 3, left).length, EqualPlan(8, 2, 3, left).left_out) == (0, 0)


MANY = 1_000_000
PIECES = [Piece.of(0, 5 * MANY), Piece(5 * MANY, 6 * MANY, 7, MANY, 3), Piece.of(6 * MANY, 10 * MANY)]
PLANS = {
    "equal": EqualPlan(10 * MANY, 10, 4),
    "equal, of pieces": EqualPlan(10 * MANY, 10, 4, PIECES),
    "any": Plan(10 * MANY, 10, exact=True),
    "any, repeated": Plan(10 * MANY, 10, exact=True, period=MANY),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_work_is_by_what_states_name_and_not_by_the_number_of_tasks(plan, calls):
    done, begun = TaskSet(400_000) | TaskSet.of([400_007]), {400_002: 3, 400_009: 1}
    found = []
    assert calls(lambda: found.extend(left_of(plan, done, begun))) < 1000
    assert calls(lambda: is_even(plan, done, begun, 4)) < 1000
    assert (
        sum(map(len, found))
        == plan.before(plan.length)
        + plan.left_out
        - sum(plan.before(task + 1) - plan.before(task) for task in done)
        - 4
    )


@given(units=st.integers(0, 300), size=st.integers(1, 9), rounds=st.integers(1, 4), cut=st.integers(1, 9))
def test_outputs_before_a_task_are_those_of_the_tasks_before_it(units, size, rounds, cut):
    pieces = [Piece.of(0, units // cut), Piece(units // cut, units + 9, 2, 5, 1), Piece.of(units + 9, 2 * units + 9)]
    for plan in (
        EqualPlan(units, size, cut),
        EqualPlan(0, size, cut, pieces),
        Plan(rounds * units, size, period=units),
    ):
        at = 0
        for index in range(plan.length or 0):
            assert plan.before(index) == at
            at += sum(map(len, plan.task(index).pieces))
        assert plan.before(plan.length or 0) == at
