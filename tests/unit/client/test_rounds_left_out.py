"""Tasks of rounds that all ranks of a job skip, as it was behind others that share its window."""

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.client import epoch_reader
from millrace.client.consumer_io import Over, Refuse
from millrace.client.consumer_progress import EpochProgress
from millrace.client.epoch_buffer import EpochBuffer
from millrace.client.slot_cycle import SlotCycle
from millrace.errors import DetachedError
from millrace.graph.nodes import Range
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import pack
from millrace.planning.epoch_cursor import EpochCursor
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


SPEC = JobSpec("a", pack(Graph(Range(start=0, stop=9)))[0], "b", coordinated="drop", num_consumers=2, cycle_length=2)


@pytest.fixture
def inbox():
    """Tasks 0 and 1 are skipped, and of task 2 there are two rounds."""
    inbox = EpochBuffer(0, cycle=SlotCycle(2, tasks=TASKS), rounds=True, decode=list)
    inbox.less_to_come(TasksGone(0, {0: 1, 1: 1}))
    inbox.assign(2, 1, "a:1")
    deliver(inbox, 2, 2)
    return inbox


@pytest.fixture
def reading(inbox):
    reading = EpochProgress(0)
    reading.begun = EpochBegun(0, TASKS, [])
    reading.ends(0, inbox.ended(), inbox.left_out_tasks)
    return reading


def read_one(inbox, reading):
    arrival = inbox.take()
    assert arrival is not None
    reading.take(arrival)
    reading.surplus = arrival.decoded()
    assert reading.hand_out(None, 0.0, 1.0, 0)
    assert list(reading.current)


def test_a_state_has_what_was_skipped_once_something_behind_it_was_read(inbox, reading):
    """Ranks hear of it one after the other, and their states of one step have to be alike."""
    before = reading.state(SPEC, 0, "digest")
    assert (before.done, before.later) == (0, "")
    read_one(inbox, reading)
    after = reading.state(SPEC, 0, "digest")
    assert (after.done, after.begun) == (1, [(2, 1)]), "task 0, and nothing behind task 1"


def test_the_end_of_a_task_that_is_read_brings_nothing_back_that_is_skipped(inbox, reading):
    read_one(inbox, reading)
    reading.ends(0, [(4, 1, 0)])
    assert reading.state(SPEC, 0, "digest").done == 1


def test_who_is_detached_goes_on_behind_all_that_it_was_told_to_skip(inbox, reading):
    """Ranks may be a step apart then, and the job of their own would give one of them what another is past."""
    reading.detach()
    reading.detached()
    assert reading.state(SPEC, 0, "digest").done == 2
    reading.ends(0, [], set())
    assert reading.state(SPEC, 0, "digest").done == 2


def test_what_was_missed_before_a_job_was_detached_counts_on(inbox, monkeypatch):
    monkeypatch.setattr(epoch_reader, "graph_digest", lambda graph: "")
    monkeypatch.setattr(epoch_reader, "unpack", lambda structure: structure)

    def session(here, answer):
        core = SimpleNamespace(inbox=here, spec=SPEC)
        begun = EpochBegun(0, TASKS, [])
        nothing = dict.fromkeys(("state", "say"), lambda *_, **__: None)
        return SimpleNamespace(
            core=core, begin=lambda reading: begun, shared=SimpleNamespace(take=lambda *_: answer), **nothing
        )

    group, own = session(inbox, Refuse(DetachedError("was too slow"))), session(EpochBuffer(0), Over())
    reader: Any = epoch_reader.EpochReader(
        cast("Any", group), cast("Any", group), 0, None, None, EpochCursor(), lambda: None
    )
    reader.alone = lambda state, why: SimpleNamespace(go_on=lambda reader: own)
    assert reader.missed == 2
    reader._answer()
    own.core.inbox.missed = 5
    assert reader.missed == 2 + 5
