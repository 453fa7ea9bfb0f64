"""When a worker rests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from millrace.worker import task_runner
from millrace.worker.task_runner import REST_S, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(task_runner, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_it_rests_once_after_each_time_that_it_worked(clock: Clock) -> None:
    pace = Pace()
    clock.now += 2 * REST_S
    assert not pace.rests(), "it has not worked yet"
    for _ in range(2):
        with pace.active():
            clock.now += 2 * REST_S
            assert not pace.rests()
        assert not pace.rests()
        clock.now += REST_S
        assert pace.rests()
        assert not pace.rests()
    assert pace.busy_s == 4 * REST_S


def test_it_rests_while_nobody_takes_what_it_has(clock: Clock) -> None:
    pace = Pace()
    with pace.active(), pace.active():
        with pace.paused():
            clock.now += 2 * REST_S
            assert not pace.rests(), "another lane works"
        with pace.paused(), pace.paused():
            clock.now += REST_S
            assert pace.rests()
    assert pace.busy_s == 2 * REST_S
