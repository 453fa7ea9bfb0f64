"""How many workers a cluster can hold."""

import itertools

from millrace.policies.scaling.capacity import DOUBLINGS, PAUSE, Capacity, found, in_force, patience, watch

PATIENCE_S = 60.0


def test_what_was_there_is_the_limit_for_a_while_and_says_so():
    decision = found(None, 8, 5, PATIENCE_S, 1000.0)
    assert decision.reason == (
        "5 of 8 workers could be had for 60 s: that is the limit for 300 s, and then more are tried"
    )
    capacity = decision.value
    assert capacity == Capacity(5, 1000.0 + PAUSE * PATIENCE_S, 0, decision.reason)
    assert in_force(capacity, capacity.until - 1) == capacity
    assert in_force(capacity, capacity.until) is None
    assert in_force(None, 0.0) is None


def test_what_was_there_is_said_where_more_are_asked_for_whatever_comes_of_it():
    _, short = watch(None, None, 8, 1, PATIENCE_S, 0.0, least=3)
    known, _ = watch(None, short, 8, 1, PATIENCE_S, PATIENCE_S, least=3)
    assert known is not None
    assert known.workers == 3
    assert known.reason == (
        "1 of 8 workers could be had for 60 s: the limit is 3, the fewest that are asked for, for 300 s, "
        "and then more are tried"
    )


def test_those_that_were_just_planned_have_all_the_time_to_come():
    """Though others have been missing for longer."""
    known, short = watch(None, None, 2, 1, PATIENCE_S, 0.0)
    known, short = watch(known, short, 8, 1, PATIENCE_S, PATIENCE_S - 1)
    for now in (PATIENCE_S, 2 * PATIENCE_S - 2):
        known, short = watch(known, short, 8, 1, PATIENCE_S, now)
        assert known is None
    known, short = watch(known, short, 8, 1, PATIENCE_S, 2 * PATIENCE_S)
    assert known is not None
    assert (known.workers, short) == (1, None)


def test_those_that_come_one_by_one_are_waited_for():
    known, short = None, None
    for there in range(1, 8):
        known, short = watch(known, short, 8, there, PATIENCE_S, there * (PATIENCE_S - 1))
        assert known is None
    assert watch(known, short, 8, 8, PATIENCE_S, 9 * PATIENCE_S) == (None, None)


def test_tries_that_bring_no_more_wait_longer_and_one_that_does_begins_anew():
    waited, known = [], None
    for _ in range(DOUBLINGS + 3):
        waited.append(patience(known, PATIENCE_S))
        known = found(known, 8, 5, waited[-1], 0.0).value
    assert waited[: DOUBLINGS + 1] == [PATIENCE_S * 2**n for n in range(DOUBLINGS + 1)]
    assert all(later == waited[DOUBLINGS] for later in waited[DOUBLINGS:])
    assert all(before <= after for before, after in itertools.pairwise(waited))
    assert known is not None
    assert known.tries > 0
    assert found(known, 8, 6, PATIENCE_S, 0.0).value.tries == 0
