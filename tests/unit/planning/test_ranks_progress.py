"""What ranks that read every task have in common, and what some have beyond."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millrace.planning.checkpoint import Checkpoint
from millrace.planning.progress import TaskSet
from millrace.planning.ranks_progress import ALL, ranks_progress

RANK = st.tuples(st.sets(st.integers(0, 20)), st.dictionaries(st.integers(0, 20), st.integers(1, 9)))


def state(rank, ranks, done, begun, **fields):
    tasks = TaskSet.of(done)
    left = sorted((task, outputs) for task, outputs in begun.items() if task not in tasks)
    return Checkpoint(epoch=3, done=tasks.low, later=tasks.text(), begun=left, rank=rank, ranks=ranks, **fields)


@given(st.lists(RANK, min_size=1, max_size=4))
def test_each_rank_begins_where_its_own_state_says(read):
    states = [state(rank, len(read), *each) for rank, each in enumerate(read)]
    found = ranks_progress(states, 3, 21)
    begun, own = dict(found.begun), {rank: dict(tasks) for rank, tasks in found.own.items()}
    for rank, (done, outputs) in enumerate(read):
        for task in range(21):
            there = ALL if task in found.done else own.get(rank, {}).get(task, begun.get(task, 0))
            assert there == (ALL if task in done else outputs.get(task, 0))


@given(st.lists(RANK, min_size=1, max_size=4))
def test_what_is_not_computed_again_every_rank_has(read):
    found = ranks_progress([state(rank, len(read), *each) for rank, each in enumerate(read)], 3, 21)
    assert set(found.done) == set.intersection(*(done for done, _ in read))
    for task, outputs in found.begun:
        assert outputs == min(begun.get(task, 0) for done, begun in read if task not in done)


def test_a_rank_that_has_not_come_to_the_epoch_has_nothing_of_it():
    ahead, behind = state(0, 2, {0}, {1: 4}), Checkpoint(epoch=2, ended=True, done=9, rank=1, ranks=2)
    found = ranks_progress([ahead, behind], 3, 9)
    assert (len(found.done), found.begun, found.own) == (0, [], {0: [(0, ALL), (1, 4)]})


def test_a_rank_that_has_seen_the_end_has_all():
    found = ranks_progress([state(0, 2, {0, 1}, {}, ended=True), state(1, 2, {0}, {})], 3, 3)
    assert (set(found.done), found.begun, found.own) == ({0}, [], {0: [(1, ALL), (2, ALL)]})
