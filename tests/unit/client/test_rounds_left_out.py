"""Tasks of rounds that all ranks of a job skip, as it was behind others that share its window."""

import itertools

import pytest

from millrace.client.consumer_progress import EpochProgress
from millrace.client.epoch_buffer import EpochBuffer
from millrace.client.slot_cycle import SlotCycle
from millrace.graph.nodes import Graph, Range
from millrace.graph.serialize import pack
from millrace.protocol.group_messages import TasksGone
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import EpochBegun, EpochEnds

TASKS = 8


def deliver(inbox, task, count):
    for number in range(count):
        last = number == count - 1
        assert inbox.accept(task, number, 1, [(task, number)], 10, "a:1", lease=1, last=last)


def taken(inbox):
    out = []
    while (arrival := inbox.take()) is not None:
        out.extend(arrival.payload)
    return out


@pytest.mark.parametrize("order", [*itertools.permutations(["gone 2", "gone 3", "read 0", "read 4"])])
def test_ranks_come_to_one_order_whenever_they_hear_what_they_skip(order):
    """Slot 0 has the tasks 0, 2, 4 and 6, slot 1 the others; a slot's tasks are named in their order."""
    inbox = EpochBuffer(0, cycle=SlotCycle(2, tasks=TASKS), rounds=True)
    read, said = [], iter(sorted(word for word in order if word.startswith("read")))
    inbox.assign(1, 1, "a:1")
    deliver(inbox, 1, 2)
    for word in order:
        if word.startswith("gone"):
            inbox.less_to_come(TasksGone(0, {int(word[-1]): -1}))
        else:
            task = int(next(said)[-1])
            inbox.assign(task, 1, "a:1")
            deliver(inbox, task, 2)
        read += taken(inbox)
    assert read == [(0, 0), (1, 0), (0, 1), (1, 1), (4, 0)]
    inbox.assign(5, 1, "a:1")
    deliver(inbox, 5, 1)
    assert taken(inbox) == [(5, 0), (4, 1)]
    inbox.less_to_come(EpochEnds(0, [0, 1, 4, 5]))
    assert inbox.finished


def test_what_is_skipped_counts_once_it_is_known_how_much_it_was():
    inbox = EpochBuffer(0, cycle=SlotCycle(2, tasks=TASKS), rounds=True)
    inbox.less_to_come(TasksGone(0, {0: -1, 1: 3}))
    assert inbox.missed == 3
    for _ in range(2):  # said again to who comes back
        inbox.less_to_come(TasksGone(0, {0: 4, 1: 3}))
        assert inbox.missed == 7
    assert inbox.left_out_tasks == {0, 1}


def test_a_state_has_what_was_skipped_once_something_behind_it_was_read():
    """Ranks hear of it one after the other, and their states of one step have to be alike."""
    spec = JobSpec(
        "a", pack(Graph(Range(start=0, stop=9)))[0], "b", coordinated="drop", num_consumers=2, cycle_length=2
    )
    inbox = EpochBuffer(0, cycle=SlotCycle(2, tasks=TASKS), rounds=True, decode=list)
    reading = EpochProgress(0)
    reading.begun = EpochBegun(0, TASKS, [])
    inbox.less_to_come(TasksGone(0, {0: 1, 1: 1}))
    inbox.assign(2, 1, "a:1")
    deliver(inbox, 2, 2)
    reading.ends(0, inbox.ended(), inbox.left_out_tasks)
    before = reading.state(spec, 0, "digest")
    assert (before.done, before.later) == (0, "")
    arrival = inbox.take()
    assert arrival is not None
    reading.take(arrival)
    reading.surplus = arrival.decoded()
    assert reading.hand_out(None, 0.0, 1.0, 0)
    assert list(reading.current)
    after = reading.state(spec, 0, "digest")
    assert (after.done, after.begun) == (1, [(2, 1)]), "task 0, and nothing behind task 1"
