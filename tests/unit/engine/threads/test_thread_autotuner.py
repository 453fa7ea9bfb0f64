"""How many threads: the rule against modelled functions, whose windows are made up."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millrace.engine.threads import thread_autotuner
from millrace.engine.threads.thread_autotuner import MeasuredWindow, Tuning

Model = Callable[[int], tuple[float, float, float]]
"""At so many threads: elements per second, threads busy, cores busy."""


def at_least_one(level: int) -> int:
    return max(1, level)


def holds_the_gil(cores: int, cost_s: float = 0.001) -> Model:
    """Threads take turns, and lose a little with each of them."""

    def model(level: int) -> tuple[float, float, float]:
        return 1 / cost_s / (1 + 0.02 * level), at_least_one(level), 1.0

    return model


def computes(cores: int, cost_s: float = 0.001) -> Model:
    def model(level: int) -> tuple[float, float, float]:
        running = min(at_least_one(level), cores)
        return running / cost_s / (1 + 0.002 * level), at_least_one(level), running

    return model


def waits(cores: int, most: int = 1000, cost_s: float = 0.05, cpu_s: float = 0.0005) -> Model:
    """For a server that takes ``most`` requests at a time."""

    def model(level: int) -> tuple[float, float, float]:
        rate = min(min(at_least_one(level), most) / cost_s, 1 / cpu_s)
        return rate, at_least_one(level), rate * cpu_s

    return model


def partly_holds_the_gil(cores: int, held: float) -> Model:
    """``held`` of each call's millisecond can't overlap with another's; crowds hand the GIL over more often."""

    def model(level: int) -> tuple[float, float, float]:
        most = min(at_least_one(level), cores, 1 / held)
        crowd = max(0.0, at_least_one(level) * held - 1)
        return most / 0.001 / (1 + 0.1 * crowd), at_least_one(level), most

    return model


def run(model: Model, cores: int, most: int = 64, windows: int = 400, noise: float = 0.0, seed: int = 0) -> Tuning:
    """The state after many windows, of which disturbances make some slower by up to ``noise``."""
    chance = random.Random(seed)
    state = thread_autotuner.begin(cores, most)
    for _ in range(windows):
        rate, threads, busy = model(state.level)
        slow = 1 - noise * chance.random() ** 2
        state = thread_autotuner.step(
            state, MeasuredWindow(int(rate * slow * 100), 100, 90, threads * 100, busy * slow * 100)
        )
        assert 0 <= state.level <= most
    return state


@pytest.mark.parametrize("cores", [2, 3, 4, 16])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_function_that_holds_the_gil_ends_on_one_thread_and_says_what_helps(cores, noise):
    for seed in range(10):
        state = run(holds_the_gil(cores), cores, noise=noise, seed=seed)
        assert state.settled <= 1
        assert "holds the GIL" in state.reason
        assert "more workers would help" in state.reason


@pytest.mark.parametrize("cores", [2, 3, 4, 16])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_function_that_computes_gets_all_cores(cores, noise):
    for seed in range(10):
        state = run(computes(cores), cores, noise=noise, seed=seed)
        assert cores <= state.settled <= 3 * cores
        assert "GIL" not in state.reason


@pytest.mark.parametrize(("server", "least", "most"), [(1000, 64, 64), (12, 8, 32), (4, 3, 8)])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_function_that_waits_gets_as_many_as_pay(server, least, most, noise):
    for seed in range(10):
        state = run(waits(2, server), 2, noise=noise, seed=seed)
        assert least <= state.settled <= most
        assert "waits more than it computes" in state.reason


def test_one_core_starts_on_the_pulling_thread_and_still_finds_what_waits():
    assert thread_autotuner.begin(1, 64).level == 0
    assert run(waits(1), 1).settled == 64
    assert run(computes(1), 1).settled == 0


def test_between_all_and_nothing():
    state = run(partly_holds_the_gil(16, 0.25), 16)
    assert 2 <= state.settled <= 8


def test_never_more_than_allowed():
    assert run(waits(2), 2, most=5).settled == 5
    assert run(waits(2), 2, most=1).settled == 0


def test_nothing_is_tried_where_all_cores_compute():
    state = thread_autotuner.begin(4, 64)
    for _ in range(100):
        state = thread_autotuner.step(state, MeasuredWindow(1000, 1.0, 0.9, 5.0, 3.9))
        assert state.level == 4


def test_while_a_consumer_is_slow_nothing_is_concluded():
    state = thread_autotuner.begin(4, 64)
    for _ in range(100):
        state = thread_autotuner.step(state, MeasuredWindow(10, 1.0, 0.1, 0.5, 0.4))
        assert state.level == 4
    assert not state.reason


def test_a_function_that_changes_is_found_out():
    def model(level: int) -> tuple[float, float, float]:
        return waits(2)(level) if changed else holds_the_gil(2)(level)

    changed = False
    state = thread_autotuner.begin(2, 64)
    for turn in range(2000):
        changed = turn > 200
        rate, threads, busy = model(state.level)
        state = thread_autotuner.step(state, MeasuredWindow(int(rate * 100), 100, 90, threads * 100, busy * 100))
        if turn == 200:
            assert state.settled <= 1
    assert state.settled == 64


def test_looking_again_costs_next_to_nothing():
    state, away = thread_autotuner.begin(2, 64), 0
    for _ in range(5000):
        rate, threads, _ = computes(2)(state.level)
        state = thread_autotuner.step(
            state, MeasuredWindow(int(rate * 100), 100, 90, threads * 100, 120)
        )  # a shared machine
        away += state.level != state.settled
    assert away < 100


def test_what_begins_inline_stays_there_unless_threads_gain_something():
    state = thread_autotuner.begin(2, 64, inline=True)
    assert state.level == 0
    for _ in range(200):
        state = thread_autotuner.step(
            state, MeasuredWindow(100, 0.1, 0.01, 0.01, 0.01)
        )  # whatever the level: others set the pace
    assert state.settled == 0


def test_what_begins_inline_is_not_moved_by_the_pace_of_others():
    state, chance = thread_autotuner.begin(2, 64, inline=True), random.Random(0)
    for _ in range(1000):
        seconds = 0.001 * chance.uniform(10, 100)  # of which ten calls take a tenth, or less
        state = thread_autotuner.step(state, MeasuredWindow(10, seconds, 0.001, 0.001, 0.001))
        assert state.level == 0


def test_what_begins_inline_gets_threads_if_it_waits():
    state = thread_autotuner.begin(2, 64, inline=True)
    for _ in range(200):
        level = max(1, state.level)
        state = thread_autotuner.step(state, MeasuredWindow(10 * level, 0.1, 0.1, 0.1 * level, 0.001 * level))
    assert state.settled == 64
