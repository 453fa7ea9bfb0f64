"""A worker whose slot keeps a window for two readers."""

import functools

import pytest
from tests.unit.worker.core.worker_driver import CoreDriver

from millrace.protocol.data_messages import Credit, Read, Received, Skipped
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_core
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.lane import Lane


@pytest.fixture
def driver(monkeypatch):
    """A worker that has room for 100 bytes, and a job whose consumers 0 and 1 share slot 0."""
    monkeypatch.setattr(worker_core, "slots_of", lambda job, reader: (0,))
    monkeypatch.setattr(worker_core, "audience_of", lambda job, slot: (0, 1))
    monkeypatch.setattr(worker_core, "Lane", functools.partial(Lane, sharing="window"))
    return CoreDriver(100)


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


def test_a_run_blocks_until_the_furthest_has_what_there_is(driver):
    lane = begin(driver, 1000, 1000)
    driver.put(lane, 0, 40)
    driver.put(lane, 1, 40)
    assert driver.put(lane, 2, 40) is None
    driver.say("slow", Received(0, 0, 1))
    assert isinstance(driver.answer(), act.GoOn), "whoever is furthest"


def test_all_that_is_sent_may_be_sent_to_others_too(driver):
    lane = begin(driver, 1000, 0)
    driver.put(lane, 0, 40)
    assert [each.shared for each in driver.taken(act.Send) if each.peer == "fast"] == [True]


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
