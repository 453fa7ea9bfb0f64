"""A task of a slot that two readers read: each receives, acknowledges and resumes for itself."""

from __future__ import annotations

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.actions import SendToClient
from millrace.control.journal.consumer_events import Progressed
from millrace.control.journal.replay import apply
from millrace.control.journal.snapshot import dump, load, plain
from millrace.control.journal.state_validation import InvalidStateError, validate
from millrace.control.journal.task_events import TaskDone, TaskMoved, TaskReleased, TaskSpared
from millrace.control.journal.transaction import Transaction
from millrace.control.state.state import Job, State
from millrace.control.state.task_state import ReaderProgress, TaskState
from millrace.control.tasks.epochs import send_epoch
from millrace.control.tasks.leases import revoke, settle
from millrace.control.tasks.slots import gone, is_awaited
from millrace.control.tasks.task_queue import next_to_read
from millrace.protocol.messages import ReadTasks, TaskProgress

SLOT, OTHER = 0, 1
READERS = {SLOT: (0, 1), OTHER: (2, 3)}


@pytest.fixture
def service(monkeypatch):
    """Two slots of two readers each, and a worker that runs what the first reader leases."""
    monkeypatch.setattr(Job, "audience", lambda _job, slot: READERS[slot])
    monkeypatch.setattr(Job, "slots_of", lambda _job, readers: list(dict.fromkeys(reader // 2 for reader in readers)))
    service = Service(FakePlan(6))
    service.add_worker("w")
    for reader in range(4):
        service.join(f"c{reader}", "a", num_consumers=4)
    service.work(read=False)
    return service


def first(service):
    epoch = service.state.jobs["a"].epochs[0]
    number = min(epoch.unread[SLOT])
    return epoch, number, epoch.live[number]


def read(service, reader, number, received, *, complete=False):
    apply(service.state, Progressed("a", reader, 0, [TaskProgress(number, received, complete)]))


def test_a_task_that_is_dealt_belongs_to_a_slot_and_is_in_the_share_of_each_reader(service):
    epoch, number, task = first(service)
    assert task.slot == SLOT
    assert task.readers == {0: ReaderProgress(), 1: ReaderProgress()}
    assert number in epoch.shares[0]
    assert epoch.shares[0] == epoch.shares[1]
    assert set(epoch.dealt) <= {SLOT, OTHER}
    validate(service.state)


def test_it_is_read_to_its_end_when_every_reader_has_all_of_it(service):
    epoch, number, task = first(service)
    read(service, 1, number, 4, complete=True)
    assert (task.complete, task.received) == (False, 0)
    assert number in epoch.unread[SLOT]
    assert epoch.unread_by(1, SLOT) == [each for each in epoch.unread[SLOT] if each != number]
    read(service, 0, number, 2)
    assert task.received == 2
    read(service, 0, number, 4, complete=True)
    assert task.complete
    assert number not in epoch.unread.get(SLOT, ())
    validate(service.state)


def test_who_does_not_read_the_slot_changes_nothing_of_its_tasks(service):
    _, number, task = first(service)
    read(service, 2, number, 4, complete=True)
    assert (task.received, task.complete) == (0, False)


def test_it_is_over_once_all_have_acknowledged_it(service):
    epoch, number, _ = first(service)
    for reader, over in ((0, False), (1, True)):
        read(service, reader, number, 4, complete=True)
        tx = Transaction(service.state, service.observed, service.now)
        settle(tx, service.state.jobs["a"], 0, number)
        assert (number not in epoch.live) is over


def test_a_run_begins_anew_behind_what_every_reader_has(service):
    _, number, task = first(service)
    read(service, 0, number, 3)
    read(service, 1, number, 1)
    revoke(
        Transaction(service.state, service.observed, service.now),
        service.state.jobs["a"],
        0,
        number,
        "its worker is gone",
    )
    assert (task.worker, task.received) == ("", 1)
    assert service.state.jobs["a"].epochs[0].pending[SLOT] == {number}
    validate(service.state)


def test_each_reader_is_told_what_it_has_not_read(service):
    _, number, _ = first(service)
    read(service, 1, number, 4, complete=True)
    told = {}
    for reader in (0, 1):
        tx = Transaction(service.state, service.observed, service.now)
        send_epoch(tx, service.state.jobs["a"], reader)
        sent = [action.message for action in tx.actions if isinstance(action, SendToClient)]
        told[reader] = {each.task for reads in sent if isinstance(reads, ReadTasks) for each in reads.reads}
    assert number in told[0]
    assert told[1] == told[0] - {number}


def test_it_is_resumed_where_each_reader_was(service):
    epoch, number, task = first(service)
    read(service, 0, number, 3)
    read(service, 1, number, 4, complete=True)
    again = State()
    load(again, dump(service.state))
    assert plain(again) == plain(service.state)
    restored = again.jobs["a"].epochs[0].live[number]
    assert restored == task
    assert restored.readers[0] == ReaderProgress(0, 3)
    assert epoch.unread_by(0, SLOT) == again.jobs["a"].epochs[0].unread_by(0, SLOT)
    validate(again)


def test_another_slot_goes_on_behind_what_all_readers_had(service):
    epoch, number, task = first(service)
    read(service, 0, number, 3)
    read(service, 1, number, 2)
    apply(service.state, TaskReleased("a", 0, number))
    apply(service.state, TaskMoved("a", 0, number, OTHER))
    assert task.slot == OTHER
    assert task.readers == {2: ReaderProgress(2, 2), 3: ReaderProgress(2, 2)}
    assert all((number in epoch.shares[reader]) is (reader in READERS[OTHER]) for reader in range(4))
    validate(service.state)


@pytest.mark.parametrize("event", [TaskSpared("a", 0, -1), TaskDone("a", 0, -1, dropped=True)])
def test_what_is_dropped_is_in_the_share_of_those_alone_who_had_read_it(service, event):
    epoch, number, _ = first(service)
    read(service, 1, number, 4, complete=True)
    apply(service.state, type(event)("a", 0, number, **({"dropped": True} if type(event) is TaskDone else {})))
    assert (number in epoch.shares[0], number in epoch.shares[1]) == (False, True)
    validate(service.state)


def test_a_slot_is_gone_when_all_of_its_readers_are(service):
    job = service.state.jobs["a"]
    assert not gone(job, 0, SLOT)
    job.consumers[0].epoch = 1
    assert not gone(job, 0, SLOT)
    job.consumers[1].epoch = 1
    assert gone(job, 0, SLOT)
    del job.consumers[0]
    assert not is_awaited(job, SLOT)


def test_the_next_task_of_a_slot_is_the_first_that_not_all_have_read(service):
    epoch, number, _ = first(service)
    job = service.state.jobs["a"]
    read(service, 0, number, 4, complete=True)
    assert next_to_read(job, epoch, SLOT) == number


def test_what_readers_have_and_what_the_task_says_must_agree(service):
    _, _, task = first(service)
    task.readers[0].complete = task.readers[1].complete = True
    with pytest.raises(InvalidStateError, match="its readers say otherwise"):
        validate(service.state)


def test_a_tick_leases_for_slots_and_not_for_readers(service):
    service.say(inp.Tick())
    leased = {task.slot for task in service.state.jobs["a"].epochs[0].live.values()}
    assert leased <= {SLOT, OTHER}


def test_a_task_of_one_reader_and_a_slot_of_the_same_number_is_kept_as_before():
    assert TaskState(3, {3: ReaderProgress(complete=True)}).complete
    assert not TaskState(3, {3: ReaderProgress(), 4: ReaderProgress(complete=True)}).complete
