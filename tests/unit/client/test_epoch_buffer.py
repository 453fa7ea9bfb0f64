import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.epoch_buffer import EpochBuffer, RerunOutcome
from millrace.client.slot_cycle import SlotCycle
from millrace.elements import codec
from millrace.errors import ProtocolError
from millrace.protocol.group_messages import TasksGone
from millrace.protocol.messages import EpochEnds, TaskProgress


def deliver(inbox, task, index, count, *, last=False, worker="a:1", lease=1):
    values = list(range(index, index + count))
    return inbox.accept(task, index, count, values, 10 * count, worker, lease=lease, last=last)


def taken(inbox):
    out = []
    while (arrival := inbox.take()) is not None:
        out.extend(arrival.payload[arrival.skip :])
    return out


def test_outputs_are_held_once():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    assert deliver(inbox, 3, 0, 4)
    assert not deliver(inbox, 3, 0, 4)
    assert not deliver(inbox, 3, 2, 2)
    assert taken(inbox) == [0, 1, 2, 3]


def test_a_message_that_overlaps_gives_only_what_is_new():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    deliver(inbox, 3, 0, 4)
    assert inbox.assign(3, 2, "b:1") == 3  # the last that is held, to be compared
    assert deliver(inbox, 3, 2, 5, worker="b:1")
    assert inbox.ready == 7
    assert taken(inbox) == [0, 1, 2, 3, 4, 5, 6]
    assert inbox.ready == 0


def test_who_leases_a_task_again_is_told_what_of_it_is_here():
    """A dispatcher on an older journal, say, which does not know that it dealt the task before."""
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    deliver(inbox, 3, 0, 4, last=True)
    assert inbox.progress() == [TaskProgress(3, 4, complete=True)]
    inbox.assign(3, 1, "a:1")
    assert not inbox.progress()
    inbox.assign(3, 2, "b:1")
    assert inbox.progress() == [TaskProgress(3, 4, complete=True)]


def test_a_gap_is_an_error_that_names_it():
    inbox = EpochBuffer(2)
    inbox.assign(3, 1, "a:1")
    deliver(inbox, 3, 0, 4)
    with pytest.raises(ProtocolError, match=r"task 3 of epoch 2: output 4 is missing, a:1 went on with 5"):
        deliver(inbox, 3, 5, 1)


def test_a_task_nobody_assigned_is_ignored():
    inbox = EpochBuffer(0)
    assert not deliver(inbox, 9, 0, 1)
    assert inbox.take() is None


def test_first_come_first_read():
    inbox = EpochBuffer(0)
    inbox.assign(0, 1, "a:1")
    inbox.assign(1, 2, "b:1")
    inbox.accept(1, 0, 1, ["later task"], 1, "b:1", lease=2, last=True)
    inbox.accept(0, 0, 1, ["earlier task"], 1, "a:1", lease=1, last=True)
    assert taken(inbox) == ["later task", "earlier task"]


def test_in_order_waits_for_the_task_that_comes_next():
    inbox = EpochBuffer(0, cycle=SlotCycle())
    inbox.assign(0, 1, "a:1")
    inbox.assign(2, 2, "b:1")
    inbox.accept(2, 0, 1, ["second"], 1, "b:1", lease=2, last=True)
    assert inbox.take() is None
    assert inbox.needed() == ("a:1", 0)
    inbox.accept(0, 0, 1, ["first"], 1, "a:1", lease=1, last=False)
    assert taken(inbox) == ["first"]
    inbox.accept(0, 1, 0, [], 0, "a:1", lease=1, last=True)
    assert taken(inbox) == ["second"]
    assert inbox.needed() is None


def test_finished_when_all_of_the_share_is_complete_and_taken():
    inbox = EpochBuffer(0)
    inbox.assign(0, 1, "a:1")
    inbox.assign(4, 2, "a:1")
    assert not inbox.finished
    deliver(inbox, 0, 0, 2, last=True)
    inbox.ends([0, 4])
    assert not inbox.finished
    deliver(inbox, 4, 0, 0, last=True)
    assert not inbox.finished
    taken(inbox)
    assert inbox.finished


def test_an_empty_share_is_finished_at_once():
    inbox = EpochBuffer(0, cycle=SlotCycle())
    inbox.ends([])
    assert inbox.finished


def test_a_task_of_the_share_that_is_not_assigned_yet_is_waited_for():
    inbox = EpochBuffer(0)
    inbox.ends([0])
    assert not inbox.finished


def test_progress_lists_what_moved_since():
    inbox = EpochBuffer(0)
    inbox.assign(1, 2, "a:1")
    inbox.assign(0, 1, "a:1")
    deliver(inbox, 0, 0, 3)
    assert [(p.task, p.received, p.complete) for p in inbox.progress()] == [(0, 3, False)]
    assert inbox.progress() == []
    deliver(inbox, 1, 0, 0, last=True)
    assert [(p.task, p.received, p.complete) for p in inbox.progress()] == [(1, 0, True)]
    assert [p.task for p in inbox.progress(everything=True)] == [0, 1]


def test_unfinished_names_what_is_to_be_asked_for_again():
    inbox = EpochBuffer(0)
    inbox.assign(0, 1, "a:1")
    inbox.assign(1, 2, "b:1")
    deliver(inbox, 0, 0, 3)
    assert inbox.unfinished("a:1") == [(0, 1, 3)]
    deliver(inbox, 0, 3, 0, last=True)
    assert inbox.unfinished("a:1") == []


@given(st.integers(0, 2**32), st.booleans())
def test_whatever_is_sent_twice_or_cut_otherwise_is_read_once(seed, in_order):
    rng = random.Random(seed)
    inbox = EpochBuffer(0, cycle=SlotCycle() if in_order else None)
    lengths = {task: rng.randint(0, 12) for task in range(4)}
    position = dict.fromkeys(lengths, 0)
    lease = 0
    for task in lengths:
        inbox.assign(task, lease, "a:1")
    inbox.ends(list(lengths))
    read = []
    while not inbox.finished:
        task = rng.choice(list(lengths))
        if rng.random() < 0.2:  # another worker runs it again and sends from what is held, or from before
            lease += 1
            position[task] = rng.randint(0, inbox.assign(task, lease, "b:1"))
        elif position[task] <= lengths[task]:
            start = position[task]
            count = min(rng.randint(0, 4), lengths[task] - start)
            payload = [(task, i) for i in range(start, start + count)]
            last = start + count == lengths[task]
            inbox.accept(task, start, count, payload, count, "a:1", lease=1, last=last)
            position[task] += count
        if rng.random() < 0.5 and (arrival := inbox.take()) is not None:
            read.extend(arrival.payload[arrival.skip :])
    expected = [(task, i) for task, length in lengths.items() for i in range(length)]
    assert sorted(read) == expected
    if in_order:
        assert read == expected
    assert inbox.ready == 0


def test_a_task_that_runs_again_although_it_was_read_is_asked_for_until_its_worker_is_through():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "one:1")
    assert inbox.accept(3, 0, 2, b"xx", 2, "one:1", lease=1, last=True)
    assert not inbox.wanted(3)
    assert inbox.assign(3, 1, "one:1") == 2
    assert not inbox.wanted(3)  # said again by a dispatcher that was restarted
    assert inbox.assign(3, 2, "two:1") == 1
    assert inbox.wanted(3)
    assert inbox.unfinished("two:1") == [(3, 2, 1)]
    assert not inbox.accept(3, 2, 0, None, 0, "two:1", lease=2, last=True)
    assert not inbox.wanted(3)
    assert inbox.holds(3) == (2, True)


def encoded(inbox, task, index, values, *, last=False, worker="a:1", changed="", lease=1):
    payload = b"".join(codec.encode(values)) if values else b""
    count = len(values)
    return inbox.accept(task, index, count, payload, len(payload), worker, lease=lease, last=last, changed=changed)


def read_all(inbox):
    out = []
    while (arrival := inbox.take()) is not None:
        out += arrival.decoded()
    return out


def outcomes(inbox):
    return [(rerun.number, rerun.outcome) for rerun in inbox.reruns]


@pytest.mark.parametrize("read", [True, False], ids=["given away", "waiting"])
@pytest.mark.parametrize(("again", "outcome"), [(20, RerunOutcome.SAME), (21, RerunOutcome.OTHER)])
def test_a_run_after_another_is_compared_at_the_last_output_held(read, again, outcome):
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    encoded(inbox, 3, 0, [0, 10, 20])
    got = read_all(inbox) if read else []
    assert inbox.assign(3, 2, "b:1") == 2
    encoded(inbox, 3, 0, [0, 7], worker="b:1")  # what is before was not kept
    assert outcomes(inbox) == []
    assert inbox.holds(3) == (2, False)  # the worker is not to drop what is to be compared
    encoded(inbox, 3, 2, [again, 30], last=True, worker="b:1")
    assert outcomes(inbox) == [(2, outcome)]
    assert got + read_all(inbox) == [0, 10, 20, 30]


def test_what_the_user_did_to_an_element_does_not_count():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    array = np.arange(4)
    inbox.accept(3, 0, 1, bytearray(b"".join(codec.encode([array]))), 1, "a:1", lease=1, last=False)
    [mine] = read_all(inbox)
    mine[:] = 0
    inbox.assign(3, 2, "b:1")
    encoded(inbox, 3, 0, [array], worker="b:1")
    assert outcomes(inbox) == [(0, RerunOutcome.SAME)]


def test_a_run_that_ends_too_early_and_one_that_does_not_end():
    inbox = EpochBuffer(0)
    for task, last in ((3, False), (4, True)):
        inbox.assign(task, 1, "a:1")
        encoded(inbox, task, 0, [0, 1], last=last)
        inbox.assign(task, 2, "b:1")
    encoded(inbox, 3, 1, [], last=True, worker="b:1", changed="a.tar")
    encoded(inbox, 4, 1, [1, 2, 3], worker="b:1")
    encoded(inbox, 4, 4, [4], last=True, worker="b:1")
    assert outcomes(inbox) == [(1, RerunOutcome.SHORTER), (1, RerunOutcome.LONGER)]
    assert inbox.reruns[0].changed == "a.tar"
    assert read_all(inbox) == [0, 1, 0, 1]


def test_what_is_being_decoded_at_this_moment_is_not_compared():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    encoded(inbox, 3, 0, [0])
    encoded(inbox, 3, 1, [1])
    read = [inbox.take(), inbox.take()]
    assert read[0] is not None
    read[0].decoded()
    inbox.assign(3, 2, "b:1")
    encoded(inbox, 3, 1, [2], worker="b:1")
    assert outcomes(inbox) == []


def test_who_is_told_to_skip_goes_on_behind_it_and_counts_it():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    deliver(inbox, 3, 0, 2)
    assert inbox.skip(3, 1, 5)
    assert inbox.progress() == [TaskProgress(3, 5, complete=False)]
    deliver(inbox, 3, 5, 1, last=True)
    assert taken(inbox) == [0, 1, 5]
    assert (inbox.missed, inbox.arrived, inbox.holds(3)) == (3, 3, (6, True))


def test_what_is_here_or_comes_from_another_run_is_not_skipped():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    deliver(inbox, 3, 0, 4)
    inbox.progress()
    assert not inbox.skip(3, 1, 3)
    assert not inbox.skip(3, 0, 9)
    assert not inbox.skip(4, 1, 9)
    assert not inbox.progress()
    deliver(inbox, 3, 4, 0, last=True)
    assert not inbox.skip(3, 1, 9)
    assert inbox.missed == 0


def test_what_was_skipped_is_not_compared_with_another_run():
    inbox = EpochBuffer(0)
    inbox.assign(3, 1, "a:1")
    deliver(inbox, 3, 0, 4)
    assert inbox.assign(3, 2, "b:1") == 3
    inbox.skip(3, 2, 6)
    deliver(inbox, 3, 6, 2, last=True, worker="b:1")
    assert taken(inbox) == [0, 1, 2, 3, 6, 7]
    assert not inbox.reruns


def test_with_a_cycle_what_is_skipped_to_its_end_lets_the_next_task_be_read():
    inbox = EpochBuffer(0, cycle=SlotCycle())
    for task in range(2):
        inbox.assign(task, task, "a:1")
    deliver(inbox, 1, 0, 2)
    assert taken(inbox) == []
    inbox.skip(0, 0, 9)
    deliver(inbox, 0, 9, 0, last=True)
    assert taken(inbox) == [0, 1]


def test_of_tasks_that_are_gone_nothing_more_comes_and_what_they_had_counts_as_missed():
    inbox = EpochBuffer(0)
    inbox.assign(0, 1, "a:1")
    inbox.assign(1, 2, "a:1")
    deliver(inbox, 0, 0, 2)
    inbox.less_to_come(EpochEnds(0, [0, 1, 3]))
    inbox.less_to_come(TasksGone(0, {0: 5, 1: -1, 3: 4}))
    inbox.less_to_come(TasksGone(0, {0: 5}))  # said again to who comes back
    assert not deliver(inbox, 0, 2, 1), "it was on its way"
    assert inbox.missed == 3 + 0 + 4
    assert inbox.all_here
    assert [(each.task, each.received, each.complete) for each in inbox.progress()] == [
        (0, 5, True),
        (1, 0, True),
        (3, 4, True),
    ]
    assert taken(inbox)
    assert inbox.finished


def test_a_task_that_is_gone_is_not_waited_for_in_a_fixed_order():
    inbox = EpochBuffer(0, cycle=SlotCycle())
    inbox.assign(0, 1, "a:1")
    inbox.assign(1, 2, "a:1")
    deliver(inbox, 1, 0, 2, last=True)
    assert inbox.take() is None
    inbox.less_to_come(TasksGone(0, {0: -1}))
    assert inbox.take() is not None


@pytest.mark.parametrize("in_order", [False, True])
def test_who_comes_back_when_the_epoch_is_over_has_what_has_come_of_tasks_that_had_begun(in_order):
    inbox = EpochBuffer(0, cycle=SlotCycle() if in_order else None)
    for task in range(4):
        inbox.assign(task, 1, "a:1")
    deliver(inbox, 0, 0, 2)
    deliver(inbox, 1, 0, 3, last=True)
    inbox.less_to_come(EpochEnds(0, []))
    assert not inbox.unfinished("a:1")
    assert taken(inbox) == [0, 1, 0, 1, 2]
    assert inbox.finished
    assert not deliver(inbox, 0, 2, 1), "it was on its way"
    assert inbox.finished


def test_a_task_that_becomes_a_consumers_once_its_share_was_known_is_waited_for():
    inbox = EpochBuffer(0, cycle=SlotCycle())
    inbox.assign(0, 1, "a:1")
    inbox.less_to_come(EpochEnds(0, []))
    inbox.assign(0, 2, "b:1")
    assert inbox.take() is None
    assert deliver(inbox, 0, 0, 2, lease=2, last=True)
    assert taken(inbox) == [0, 1]
