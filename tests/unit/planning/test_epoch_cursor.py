"""Epochs of a pass that is to be read together with others: which number, and whether with them."""

from __future__ import annotations

import pytest

from millrace.planning.epoch_cursor import EpochCursor


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
