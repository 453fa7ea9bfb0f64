"""The index: what it remembers, when it forgets, and that a checked one finds what it should have forgotten."""

from __future__ import annotations

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control.journal.job_events import TurnCut
from millrace.control.journal.replay import apply
from millrace.control.state.index import SERVICE, StaleIndexError
from millrace.control.state.state import State


@pytest.fixture(params=[True, False], ids=["checked", "unchecked"])
def service(request):
    service = Service(FakePlan(3), checked=request.param)
    service.add_worker("w")
    service.join("a")
    service.plan_tasks(service.workers["w"])
    return service


def test_an_answer_is_remembered_until_its_job_changes(service):
    state, asked = service.state, []

    def cuts():
        asked.append(1)
        return state.jobs["a"].cuts

    for _ in range(2):
        assert state.index.memoize("a", "cuts", cuts) == 0
    assert len(asked) == (2 if state.checked else 1)
    apply(state, TurnCut("a"))
    assert state.index.memoize("a", "cuts", cuts) == 1


@pytest.mark.parametrize("scope", ["a", SERVICE])
def test_a_checked_index_finds_an_answer_that_should_have_been_forgotten(service, scope):
    state = service.state
    state.index.memoize(scope, "cuts", lambda: state.jobs["a"].cuts)
    state.jobs["a"].cuts += 1  # by no event
    if state.checked:
        with pytest.raises(StaleIndexError, match="0 is remembered, and it is 1"):
            state.index.memoize(scope, "cuts", lambda: state.jobs["a"].cuts)
    else:
        assert state.index.memoize(scope, "cuts", lambda: state.jobs["a"].cuts) == 0


def test_an_act_that_changes_its_job_is_repeated_until_it_changes_nothing(service):
    state, acts = service.state, []

    def act():
        acts.append(1)
        if len(acts) < 3:
            apply(state, TurnCut("a"))

    for _ in range(5):
        state.index.until_changed("a", "cut", act)
    assert len(acts) == (5 if state.checked else 3)


def test_a_checked_index_finds_an_act_that_was_left_out(service):
    state = service.state
    state.index.until_changed("a", "cut", lambda: None)
    if state.checked:
        with pytest.raises(StaleIndexError, match="something left to do"):
            state.index.until_changed("a", "cut", lambda: apply(state, TurnCut("a")))
    else:
        state.index.until_changed("a", "cut", lambda: apply(state, TurnCut("a")))
        assert state.jobs["a"].cuts == 0


def test_jobs_are_looked_at_again_when_they_have_changed(service):
    state, looked = service.state, []

    def cut(name):
        looked.append(name)
        return state.jobs[name].cuts > 0

    assert state.index.having("cuts", {"a"}, cut) == set()
    looked.clear()
    assert state.index.having("cuts", {"a"}, cut) == set()
    assert len(looked) == state.checked
    state.jobs["a"].cuts = 1  # by no event
    if state.checked:
        with pytest.raises(StaleIndexError):
            state.index.having("cuts", {"a"}, cut)
    state.index.invalidate("a")
    assert state.index.having("cuts", {"a"}, cut) == {"a"}


def test_who_serves_what_is_compared_with_the_state(service):
    state = service.state
    assert [worker.id for worker in state.index.serving.workers] == ["w"]
    state.index.check()
    state.workers["w"].draining = True  # by no event
    with pytest.raises(StaleIndexError, match="draining"):
        state.index.check()
    assert State().index.serving.workers == []


def test_a_worker_with_room_again_is_missed_if_nobody_was_told(service):
    state = service.state
    assert state.index.with_room("a", lambda _: 0) == []
    if state.checked:
        with pytest.raises(StaleIndexError, match="with room"):
            state.index.with_room("a", lambda _: 100)
    state.index.hands_changed(state.workers["w"])
    assert [worker.id for worker in state.index.with_room("a", lambda _: 100)] == ["w"]
