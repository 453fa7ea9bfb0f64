"""Whether workers of the service are of use to a job that has local ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.scaling.placement import BACKLOG_S, WAITS, WorkerSide, stay_home

rates = st.floats(0.0, 1e9)
counts = st.integers(0, 1000)
sides = st.builds(WorkerSide, counts, rates, rates)
shares = st.floats(0.0, 1.0)


def test_a_link_that_brings_next_to_nothing_is_not_worth_its_workers():
    decision = stay_home(WorkerSide(2, 40.0, 160e6), WorkerSide(8, 1.25, 5e6), 60_000_000, 0.9)
    assert decision.value
    assert "1.25 elements a second (5.0 MB/s)" in decision.reason
    assert "each local worker makes 20 elements a second" in decision.reason
    assert "not used" in decision.reason


def test_a_link_through_which_nothing_comes_is_not_used():
    assert stay_home(WorkerSide(1, 10.0, 1e6), WorkerSide(1, 0.0, 0.0), 1_000_000, 0.9).value


@pytest.mark.parametrize(
    ("local", "remote", "ready", "waits"),
    [
        (
            WorkerSide(2, 40.0, 160e6),
            WorkerSide(8, 10.0, 40e6),
            60_000_000,
            0.9,
        ),  # half of a local worker: it adds a quarter
        (WorkerSide(2, 40.0, 160e6), WorkerSide(8, 1.25, 5e6), 60_000_000, 0.05),  # nobody waits for more
        (
            WorkerSide(2, 40.0, 160e6),
            WorkerSide(8, 1.25, 5e6),
            4_000_000,
            0.9,
        ),  # slow workers, and nothing in the link's way
        (WorkerSide(2, 40.0, 160e6), WorkerSide(8, 0.0, 0.0), 0, 0.9),  # they have only just come
        (WorkerSide(2, 0.0, 0.0), WorkerSide(8, 1.25, 5e6), 60_000_000, 0.9),  # local ones have not given anything yet
        (WorkerSide(0, 0.0, 0.0), WorkerSide(8, 1.25, 5e6), 60_000_000, 0.9),
        (WorkerSide(2, 40.0, 160e6), WorkerSide(0, 0.0, 0.0), 0, 0.9),
    ],
)
def test_it_stays_at_home_only_if_the_link_is_known_to_be_at_fault(local, remote, ready, waits):
    decision = stay_home(local, remote, ready, waits)
    assert not decision.value
    assert decision.reason


@given(sides, sides, st.integers(0, 1 << 40), shares)
def test_what_it_stays_at_home_for(local, remote, ready, waits):
    """Without local workers, or with a consumer that has what it wants, or without a backlog it never does."""
    decision = stay_home(local, remote, ready, waits)
    if decision.value:
        assert local.workers > 0
        assert remote.workers > 0
        assert waits >= WAITS
        assert ready > 0
        assert ready >= BACKLOG_S * remote.bytes_s
        assert 2 * remote.elements_s * local.workers < local.elements_s * (1 + 1e-9)


@given(sides, sides, st.integers(0, 1 << 40), shares, rates)
def test_who_brings_more_is_not_given_up_sooner(local, remote, ready, waits, more):
    better = WorkerSide(remote.workers, remote.elements_s + more, remote.bytes_s)
    assert stay_home(local, better, ready, waits).value <= stay_home(local, remote, ready, waits).value
