"""How many reads are under way at once, against stores that are far, full, or not waited for."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from millrace.policies import read_concurrency
from millrace.policies.read_concurrency import InFlight, Round


def far(seconds: float, capacity: float = float("inf")) -> Callable[[int], float]:
    """Seconds of a read when so many are under way, at a store that answers ``capacity`` of them a second."""
    return lambda level: max(seconds, level / capacity)


def play(state: InFlight, store: Callable[[int], float], rounds: int, waited: float = 1.0) -> InFlight:
    for _ in range(rounds):
        read_s = store(state.level)
        state = read_concurrency.step(state, Round(read_s, state.level, read_s, waited * read_s))
    return state


def test_a_store_far_away_gets_as_many_as_there_may_be_within_seconds() -> None:
    state = play(read_concurrency.begin(), far(0.3), 4)
    assert state.level == read_concurrency.MOST


def test_a_store_that_is_full_gets_what_fills_it() -> None:
    store = far(0.3, capacity=100)  # 30 at once fill it
    state = play(read_concurrency.begin(), store, 200)
    assert state.settled == 32
    assert "32 at once take 320 ms each" in state.reason
    tried = set()
    for _ in range(200):
        state = play(state, store, 1)
        tried.add(state.level)
    assert tried <= {16, 32, 64}


def test_a_store_at_hand_that_takes_one_at_a_time_gets_few() -> None:
    state = play(read_concurrency.begin(), far(0.001, capacity=1000), 500)
    assert state.settled <= 2


def test_a_store_that_becomes_faster_is_found_out() -> None:
    state = play(read_concurrency.begin(), far(0.3, capacity=100), 50)
    assert play(state, far(0.3), 2000).settled == read_concurrency.MOST


def test_nobody_who_waits_wants_no_more() -> None:
    state = play(read_concurrency.begin(), far(0.3), 50, waited=0.01)
    assert state.level == read_concurrency.FIRST
    assert "hardly waited for" in state.reason


def test_where_no_more_fit_nothing_is_said_about_more() -> None:
    state = read_concurrency.step(read_concurrency.begin(), Round(0.3, 3, 0.3, 0.3))
    assert state.level == read_concurrency.FIRST
    assert "no more than 3 at once" in state.reason


def test_what_was_chosen_stays() -> None:
    for chosen in (1, read_concurrency.FIRST, read_concurrency.MOST, read_concurrency.MOST_CHOSEN):
        assert play(read_concurrency.begin(chosen), far(0.3), 20).level == chosen


@given(
    st.lists(
        st.builds(
            Round,
            read_s=st.floats(0, 100),
            peak=st.integers(0, 2000),
            seconds=st.floats(0, 100),
            waited_s=st.floats(0, 100),
        )
    )
)
def test_whatever_is_seen_it_stays_within_bounds(seen: list[Round]) -> None:
    state = read_concurrency.begin()
    for each in seen:
        state = read_concurrency.step(state, each)
        assert 1 <= state.level <= read_concurrency.MOST
        assert 1 <= state.settled <= read_concurrency.MOST


def test_a_store_that_says_slow_down_gets_half_and_is_tried_again_after_a_rest() -> None:
    state = play(read_concurrency.begin(), far(0.3), 6)
    state = read_concurrency.slow_down(state)
    assert (state.level, state.settled) == (128, 128)
    assert "asked to slow down at 256" in state.reason
    assert play(state, far(0.3), 4).level == 128
    for _ in range(20):
        state = read_concurrency.slow_down(state)
    assert state.level == 1
    assert play(state, far(0.3), 100).level == read_concurrency.MOST


def test_what_a_user_chose_stays_though_the_store_says_slow_down() -> None:
    state = read_concurrency.begin(5)
    assert read_concurrency.slow_down(state) == state
