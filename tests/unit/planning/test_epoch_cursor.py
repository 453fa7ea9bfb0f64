"""Epochs of a pass that is to be read together with others: which number, and whether with them."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec.structs import replace

from millrace.errors import StateError
from millrace.planning.checkpoint import Checkpoint, PipelineIdentity, merge, pack, parse_all
from millrace.planning.epoch_cursor import EpochCursor

FRESH = Checkpoint(seed=5, epoch=2)
RANKS = [
    Checkpoint(seed=5, epoch=2, sources=["x|1|0|00"], tasks=20, done=3, begun=[(4, 2)], parts=[(4, 2, [1])], ranks=2),
    Checkpoint(seed=5, epoch=2, sources=["x|1|0|00"], tasks=20, begun=[(5, 1), (7, 3)], rank=1, ranks=2, turn=2),
]


def cursor(following: int) -> EpochCursor:
    passes = EpochCursor()
    passes.following = following
    return passes


@pytest.mark.parametrize(
    ("following", "there", "late", "leads", "chosen"),
    [
        (0, 0, False, True, (0, True)),
        (6, 0, False, True, (6, True)),  # nobody has begun any: the first who begins chooses
        (1, 5, False, False, (5, True)),  # it is behind, and leaves numbers out
        (6, 2, False, False, (6, False)),  # no order is to come twice
        (1, 5, True, False, (1, False)),  # they are in the middle of epoch 4
    ],
)
def test_who_shares_reads_the_groups_next_epoch_or_its_own_alone(following, there, late, leads, chosen):
    assert cursor(following).choose_shared(None, there, late=late, leads=leads) == chosen


@pytest.mark.parametrize(("number", "chosen"), [(3, (3, True)), (4, (4, False)), (2, (2, False))])
def test_a_number_that_a_loader_chose_is_read_with_the_group_only_if_it_is_its_next_one(number, chosen):
    assert cursor(0).choose_shared(number, 3, late=False, leads=False) == chosen


def test_a_loader_is_told_the_number_that_the_group_reads_next():
    passes = cursor(1)
    assert passes.choose_shared(lambda following, _: following, 4, late=False, leads=False) == (4, True)
    assert cursor(1).choose_shared(lambda following, _: following, 4, late=True, leads=False) == (1, False)


def loaded(states: list[Checkpoint]) -> EpochCursor:
    passes = EpochCursor()
    passes.load([pack(state) for state in states], PipelineIdentity())
    return passes


def test_a_state_saved_before_anything_of_several_ranks_states_is_read_says_what_they_all_say():
    states = [loaded(RANKS).state(lambda: FRESH) for _ in range(3)]  # as three ranks save them that go on
    [found] = parse_all(states)
    assert merge([found]) == merge(RANKS)
    assert (found.rank, found.ranks, found.sources, found.parts) == (0, 1, ["x|1|0|00"], [(4, 2, [1])])
    [again] = loaded([found]).loaded
    assert again == found


def test_such_a_state_is_divided_as_the_epoch_that_it_is_of():
    """Epochs differ in their tasks after a resume on other ranks; here one rank is still at the end of the last."""
    ended = replace(RANKS[0], epoch=1, done=4, later="", begun=[], parts=[], ended=True, tasks=4)
    ahead = replace(RANKS[1], epoch=2, done=1, later="", begun=[(7, 1)], parts=[], tasks=10)
    for states in ([ended, ahead], [ahead, ended]):
        [found] = parse_all([loaded(states).state(lambda: FRESH)])
        assert (found.epoch, found.tasks, found.done, found.begun) == (2, 10, 1, [(7, 1)])
    over = [ended, replace(ended, rank=1)]
    [found] = parse_all([loaded(over).state(lambda: FRESH)])
    assert (found.epoch, found.tasks, found.sources) == (2, None, [])


def test_a_pass_of_before_does_not_forget_what_was_loaded_since():
    passes = loaded(RANKS[:1])
    passes.load_id = 7
    for load_id, known in ((None, True), (6, True), (7, False)):
        passes.started(load_id)
        assert bool(passes.loaded) is known


def test_where_ranks_have_an_order_of_their_own_each_keeps_its_state():
    for rank, state in enumerate(RANKS):
        passes = loaded(RANKS)
        assert passes.state(partial(replace, FRESH, rank=rank, ranks=2)) == pack(state)


def test_counts_of_several_ranks_are_no_one_state():
    passes = loaded([replace(state, behind="ab", counts=[3]) for state in RANKS])
    with pytest.raises(StateError, match="begin to read before you save a state"):
        passes.state(lambda: FRESH)
