"""A worker whose slot keeps a window for two readers."""

import pytest
from tests.unit.worker.core.worker_driver import CoreDriver

from millrace.protocol import messages as msg
from millrace.protocol.data_messages import Credit, Read, Received, Skipped
from millrace.protocol.group_messages import Audience, DropLeftovers
from millrace.protocol.job_spec import JobSpec
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp


@pytest.fixture(params=[0])
def driver(request):
    """A worker that has room for 100 bytes, and a group of two members, whose window has so many of these."""
    driver = CoreDriver(100, "of one")
    spec = JobSpec("a", b"", "bundle", sharing="window", window_bytes=request.param)
    driver.heard(msg.OpenJob("a", spec, 1, "tables"))
    driver.heard(Audience("a", {0: 0, 1: 0}))
    return driver


def begin(driver, *credits_):
    """Two consumers that read task 0, and the lane that runs it."""
    for peer, reader, credit in zip(("fast", "slow"), (0, 1), credits_, strict=True):
        driver.connect(peer, reader, credit=credit)
        driver.say(peer, Read(0, 0, 1))
    lane = driver.lease(0, 1)
    driver.begin(lane)
    return lane


def heard(driver, peer):
    """Outputs that a peer is sent, and up to which it is told to skip."""
    sent = [each for each in driver.taken(act.Send) if each.peer == peer]
    return [
        ("skip", each.header.upto) if isinstance(each.header, Skipped) else each.header.index
        for each in sent
        if hasattr(each.header, "task")
    ]


def test_a_run_waits_for_the_furthest_alone_and_the_slow_one_hears_what_it_missed_once_it_may_be_sent_more(driver):
    lane = begin(driver, 1000, 0)
    for index in range(6):
        assert isinstance(driver.put(lane, index, 40), act.GoOn)
        driver.say("fast", Received(0, 0, index + 1))
    assert heard(driver, "slow") == []
    driver.say("slow", Credit(80))
    assert heard(driver, "slow") == [("skip", 4), 4, 5]
    driver.finish(lane, 6)
    driver.say("fast", Received(0, 0, 6, complete=True))
    driver.say("slow", Received(0, 0, 6, complete=True))
    assert driver.core.lanes["a", 0].idle, "what lies in the window keeps nobody"
    assert driver.core.held(), "but it is here for who comes late"


@pytest.mark.parametrize("driver", [50], indirect=True)
def test_a_window_has_the_bytes_that_the_job_says(driver):
    lane = begin(driver, 1000, 0)
    for index in range(3):
        driver.put(lane, index, 40)
        driver.say("fast", Received(0, 0, index + 1))
    driver.say("slow", Credit(80))
    assert heard(driver, "slow") == [("skip", 2), 2]


def test_a_run_blocks_until_the_furthest_has_what_there_is(driver):
    lane = begin(driver, 1000, 1000)
    driver.put(lane, 0, 25)
    driver.put(lane, 1, 25)
    assert driver.put(lane, 2, 25) is None
    driver.say("slow", Received(0, 0, 1))
    assert isinstance(driver.answer(), act.GoOn), "whoever is furthest"


def test_all_that_is_sent_may_be_sent_to_others_too(driver):
    lane = begin(driver, 1000, 0)
    driver.put(lane, 0, 40)
    assert [each.shared for each in driver.taken(act.Send) if each.peer == "fast"] == [True]


def test_who_shares_with_nobody_is_lent_memory_for_itself():
    driver = CoreDriver(100, "of one")
    driver.connect("alone", job="of one")
    driver.say("alone", Read(0, 0, 1))
    lane = driver.lease(0, 1, job="of one")
    driver.begin(lane)
    driver.put(lane, 0, 40)
    assert [each.shared for each in driver.taken(act.Send)] == [False]


def test_a_member_that_comes_late_begins_with_what_lies_in_the_window_and_one_that_has_gone_holds_nothing(driver):
    lane = begin(driver, 1000, 0)
    for index in range(3):
        driver.put(lane, index, 40)
        driver.say("fast", Received(0, 0, index + 1))
    driver.heard(Audience("a", {0: 0, 2: 0}))
    driver.connect("late", 2)
    driver.actions.clear()
    driver.say("late", Read(0, 0, 1))
    assert heard(driver, "late") == [("skip", 1), 1, 2]
    assert list(driver.core.lanes["a", 0].buffer.outboxes) == [0, 2]


def test_who_asks_for_what_is_gone_is_told_so_and_nobody_runs_it_again(driver):
    lane = begin(driver, 1000, 1000)
    for index in range(4):
        driver.put(lane, index, 40)
        driver.say("fast", Received(0, 0, index + 1))
    driver.feed(inp.PeerLeft("slow"))
    driver.connect("again", 1)
    driver.actions.clear()
    driver.say("again", Read(0, 0, 1))
    assert heard(driver, "again") == [("skip", 2), 2, 3]
    assert driver.told() == []


def test_who_comes_late_is_told_of_a_task_that_ran_for_what_it_leaves_over_alone(driver):
    """All who were there had it of a run before: it puts nothing out, and the late one would wait for ever."""
    driver.connect("fast", 0)
    lane = driver.lease(0, 2, received=-1)
    driver.begin(lane)
    driver.finish(lane, 3, [])
    driver.heard(Audience("a", {0: 0, 1: 0, 2: 0}))
    driver.connect("late", 2)
    driver.actions.clear()
    driver.say("late", Read(0, 0, 2))
    assert heard(driver, "late") == [("skip", 3), 3]


def test_a_task_of_which_nothing_is_kept_is_held_until_it_is_revoked_or_forgotten(driver):
    lane = begin(driver, 1000, 1000)
    for index in range(2):
        driver.put(lane, index, 25)
    driver.finish(lane, 2)
    for peer in ("fast", "slow"):
        driver.say(peer, Received(0, 0, 2, complete=True))
    other = driver.lease(1, 2)
    driver.begin(other)
    for peer in ("fast", "slow"):
        driver.say(peer, Read(0, 1, 2))
    for index in range(3):
        driver.put(other, index, 40)
        driver.say("fast", Received(0, 1, index + 1))
    assert [each.ref.task for each in driver.core.held()] == [1, 0]
    driver.heard(msg.RevokeTask(msg.TaskRef("a", 0, 0), 1))
    assert [each.ref.task for each in driver.core.held()] == [1]


def test_what_the_tail_has_is_dropped_and_outputs_stay(driver):
    lane = begin(driver, 1000, 1000)
    driver.put(lane, 0, 40)
    driver.finish(lane, 1, leftovers=[7])
    driver.heard(DropLeftovers([msg.TaskRef("a", 0, 0)]))
    assert not driver.core.leftovers
    assert [each.leftovers for each in driver.core.held()] == [False]
    assert driver.core.lanes["a", 0].buffer.bytes == 40


@pytest.mark.parametrize("comes", [True, False])
def test_a_run_stops_as_the_last_member_leaves_and_goes_on_for_who_comes_or_is_given_back(driver, comes):
    lane = begin(driver, 1000, 1000)
    driver.put(lane, 0, 10)
    driver.say("fast", Received(0, 0, 1))
    driver.heard(Audience("a", {}))
    driver.lease(1, 2)
    assert driver.put(lane, 1, 10) is None
    if not comes:
        driver.heard(msg.RevokeTask(msg.TaskRef("a", 0, 0), 1))
        assert isinstance(driver.answer(), act.Halt)
        driver.feed(inp.RunEnded(lane, inp.Stopped()))
        assert driver.taken(act.StartRun) == [], "nor does the next one begin"
        driver.heard(msg.RevokeTask(msg.TaskRef("a", 0, 1), 2))
        assert [type(each) for each in driver.told()] == [msg.TaskReturned] * 2
        return
    driver.heard(Audience("a", {2: 0}))
    assert isinstance(driver.answer(), act.GoOn)
    driver.connect("late", 2)
    driver.actions.clear()
    driver.say("late", Read(0, 0, 1))
    assert heard(driver, "late") == [0, 1], "what others had, and what waited"
    driver.finish(lane, 2)
    assert [each.lease.lease for each in driver.taken(act.StartRun)] == [2]
