"""The phases of a task: how they are kept, and what is found out when they make no sense."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control.journal.replay import apply
from millrace.control.journal.snapshot import dump, load
from millrace.control.journal.state_validation import InvalidStateError, validate
from millrace.control.journal.task_events import TaskBroke, TaskEnded, TaskLeased, TaskReleased
from millrace.control.state.state import State
from millrace.control.state.task_state import Failed, Finished, ReaderProgress, Running, TaskState, Waiting
from millrace.protocol.messages import Failure

RECORDS = [
    (TaskState(1, {1: ReaderProgress()}), [1, -1, "", 0, 0, False, False, False, False, 0, [], [], False]),
    (
        TaskState(0, {0: ReaderProgress(0, 3, complete=True)}, Running("w", 7), run=5, freed=True, deaths=1, at=(2, 3)),
        [0, 5, "w", 7, 3, False, True, False, True, 1, [2, 3], [], False],
    ),
    (
        TaskState(2, {2: ReaderProgress()}, Finished("w", 7, leftovers=True), alone=True),
        [2, -1, "w", 7, 0, True, False, True, False, 0, [], [], True],
    ),
    (
        TaskState(0, {0: ReaderProgress(0, 1)}, Waiting(9)),
        [0, -1, "", 9, 1, False, False, False, False, 0, [], [], False],
    ),
    (
        TaskState(0, {0: ReaderProgress(0, 1)}, Failed(9)),
        [0, -1, "", 9, 1, False, False, False, False, 0, [], [], False],
    ),
]


def running():
    service = Service(FakePlan(3))
    service.add_worker("w")
    service.join("a")
    service.plan_tasks(service.workers["w"])
    number, task = next(iter(service.state.jobs["a"].epochs[0].live.items()))
    assert isinstance(task.phase, Running)
    return service, number, task


@pytest.mark.parametrize(("task", "record"), RECORDS, ids=lambda each: type(getattr(each, "phase", each)).__name__)
def test_a_snapshot_holds_a_task_as_snapshots_of_before_did(task, record):
    service, *_ = running()
    epoch = service.state.jobs["a"].epochs[0]
    epoch.live = {0: task}
    if isinstance(task.phase, Failed):
        epoch.failures = {0: Failure("Error", "it failed")}
    kept = msgspec.msgpack.decode(dump(service.state), strict=False)
    assert kept["jobs"]["a"]["epochs"][0]["live"] == {0: record}
    state = State()
    load(state, dump(service.state))
    assert state.jobs["a"].epochs[0].live == {0: task}
    assert dump(state) == dump(service.state)


def test_a_snapshot_holds_where_each_reader_of_a_task_begins():
    """All had a task, which is to run again for its leftovers, as a member of their group came, who skips it."""
    service, *_ = running()
    epoch = service.state.jobs["a"].epochs[0]
    one, who_skips = ReaderProgress(1, 1, complete=True), ReaderProgress(0, 0, complete=True)
    alone, shared = TaskState(0, {0: ReaderProgress(2, 3)}), TaskState(0, {0: one, 1: one, 2: who_skips}, Waiting(9))
    epoch.live, epoch.starts = {0: alone, 1: shared}, {0: 2, 1: 1}
    state = State()
    load(state, dump(service.state))
    assert state.jobs["a"].epochs[0].live == {0: alone, 1: shared}


@pytest.mark.parametrize("event", [TaskBroke, TaskLeased])
def test_an_event_that_a_task_is_not_ready_for_is_a_bug(event):
    service, number, task = running()
    extra = (Failure("Error", "it failed"),) if event is TaskBroke else (task.lease, "w", 0)
    with pytest.raises(InvalidStateError, match="took a task from Running to"):
        apply(service.state, event("a", 0, number, *extra))


def test_a_task_that_failed_waits_for_nobody_until_it_is_released():
    service, number, task = running()
    lease = task.lease
    for event, phase in (
        (TaskReleased("a", 0, number), Waiting(lease)),
        (TaskBroke("a", 0, number, Failure("Error", "it failed")), Failed(lease)),
        (TaskReleased("a", 0, number), Waiting(lease)),
        (TaskLeased("a", 0, number, lease, "w", 0), Running("w", lease)),
        (TaskEnded("a", 0, number, 3), Finished("w", lease, leftovers=False)),
    ):
        apply(service.state, event)
        assert task.phase == phase
    validate(service.state)


@pytest.mark.parametrize("index", ["pending", "unread", "failures", "unfinished", "shares"])
def test_an_index_that_says_other_than_the_tasks_is_a_bug(index):
    service, number, task = running()
    epoch = service.state.jobs["a"].epochs[0]
    if index == "unfinished":
        service.state.workers["w"].unfinished.pop(task.lease)
    elif index == "failures":
        epoch.failures[number] = Failure("Error", "it failed")
    elif index == "pending":
        epoch.pending[0] = {number}
    else:
        setattr(epoch, index, {})
    with pytest.raises(InvalidStateError):
        validate(service.state)
