"""Epochs of a member that have as many elements as the data, over epochs of its group."""

import random

from millrace.client.own_epoch import OwnEpoch


def test_who_misses_nothing_reads_the_groups_epoch():
    own = OwnEpoch()
    own.begin(0)
    own.count(7)
    assert (own.size, own.most) == (None, None), "nobody knows yet how many there are"
    own.group_ended(7)
    assert own.over


def test_what_was_missed_comes_from_the_groups_next_epoch_and_the_rest_of_that_is_the_members_next():
    own = OwnEpoch()
    own.begin(0)
    own.count(4)
    own.group_ended(10)
    own.begin(0)
    own.count(5)
    assert (own.left, own.most, own.over) == (1, 6, False)
    own.count(6)
    assert own.over
    following = OwnEpoch()
    following.begin(6)
    following.count(10)
    assert following.used == 4


def test_a_slow_member_needs_many_epochs_of_the_group_and_the_first_one_says_how_much():
    own = OwnEpoch()
    own.begin(0)
    own.group_ended(None)
    for outputs in (10, 12, 12, 12):
        own.begin(0)
        assert own.most in (None, 7, 4, 3 - 2)
        own.count(3 if own.most is None else min(3, own.most))
        own.group_ended(outputs)
    assert (own.size, own.used, own.over) == (10, 10, True)


def test_an_epoch_of_nothing_has_nothing():
    own = OwnEpoch()
    own.begin(0)
    own.group_ended(0)
    assert own.over
    assert own.most == 0


def test_who_begins_again_with_an_epoch_has_lost_nothing():
    own = OwnEpoch()
    own.begin(0)
    own.count(4)
    own.begin(2)
    own.begin(2)
    assert own.used == 4


def test_any_way_to_miss_leaves_each_epoch_with_as_many_elements_as_the_data():
    for seed in range(200):
        rng = random.Random(seed)
        sizes = iter([rng.randrange(1, 20) for _ in range(400)])
        own, size, there, kept, owed = OwnEpoch(), 0, 0, 0, None
        finished: list[tuple[int, int | None]] = []
        while len(finished) < 5:
            if there == kept:  # the group's epoch is over, of which that many were not missed
                if owed is not None:
                    own.group_ended(size)
                    owed = size if owed == -1 else owed
                size, there = next(sizes), 0
                kept = rng.randrange(size + 1)
                own.begin(0)
                owed = -1 if owed is None else owed
            most = kept if own.most is None else min(kept, own.most)
            there = rng.randrange(there, most) + 1 if there < most else there
            own.count(there)
            if own.over:
                finished.append((own.used, owed))
                own, owed = OwnEpoch(), -1
                own.begin(there)
        assert all(used == owed for used, owed in finished), seed
