"""Members of a group at a worker: they come and go while it computes for the others."""

import pytest
from tests.unit.worker.core.worker_driver import CoreDriver

from millrace.protocol import messages as msg
from millrace.protocol.data_messages import Read, Received, Short
from millrace.protocol.group_messages import Audience
from millrace.protocol.job_spec import JobSpec
from millrace.worker.core import worker_actions as act

SPEC = JobSpec("a", b"", "bundle", sharing="lockstep")


@pytest.fixture
def driver():
    """A worker with room for 100 bytes, and a group of two members."""
    driver = CoreDriver(100)
    driver.heard(msg.CloseJob("a"))
    driver.heard(msg.OpenJob("a", SPEC, 1, "tables"))
    driver.heard(Audience("a", {0: 0, 1: 0}))
    driver.actions.clear()
    return driver


def read(driver, peer, member, *, epoch=0):
    driver.connect(peer, member)
    driver.say(peer, Read(epoch, 0, 1))


def test_an_output_is_kept_until_every_member_has_it_or_has_left(driver):
    lane = driver.lease(0, 1)
    driver.begin(lane)
    read(driver, "c0", 0)
    read(driver, "c1", 1)
    driver.put(lane, 0, 60)
    assert driver.sent() == [("c0", 0, 0, False), ("c1", 0, 0, False)]
    driver.say("c0", Received(0, 0, 1))
    assert driver.put(lane, 1, 60) is None, "member 1 has not said that it has the first"
    driver.heard(Audience("a", {0: 0}))
    assert isinstance(driver.answer(), act.GoOn)
    assert [each.peer for each in driver.taken(act.HangUp)] == ["c1"]


def test_a_member_that_comes_is_sent_what_was_computed_before_of_its_first_epoch(driver):
    lane = driver.lease(0, 1, epoch=1)
    driver.begin(lane)
    driver.put(lane, 0, 10)
    driver.heard(Audience("a", {0: 0, 1: 0, 2: 1}))
    read(driver, "c2", 2, epoch=1)
    assert driver.sent() == [("c2", 0, 0, False)]


def test_what_was_leased_before_a_member_came_is_for_it_too(driver):
    lane = driver.lease(0, 1, epoch=1)
    driver.heard(Audience("a", {1: 0}))
    driver.heard(Audience("a", {1: 0, 2: 1}))
    driver.begin(lane)
    driver.put(lane, 0, 10)
    read(driver, "c2", 2, epoch=1)
    assert driver.sent() == [("c2", 0, 0, False)]


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_leased_for_some_members_is_for_one_too_that_comes_before_it_began(driver, waits):
    before = driver.lease(7, 9) if waits else 0
    lane = driver.lease(0, 1, readers=[1]) or before
    driver.heard(Audience("a", {0: 0, 1: 0, 2: 0, 3: 1}))
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)], [1]))
    if waits:
        driver.begin(lane)
        driver.finish(lane, 0)
    driver.begin(lane)
    read(driver, "c2", 2)
    driver.put(lane, 0, 10)
    assert driver.sent() == [("c2", 0, 0, False)]
    driver.say("c2", Received(0, 0, 1))
    assert isinstance(driver.put(lane, 1, 100), act.GoOn), "the others lack nothing of it"


def test_nothing_is_kept_for_a_member_of_epochs_before_its_first(driver):
    driver.heard(Audience("a", {0: 0, 2: 1}))
    lane = driver.lease(0, 1)
    driver.begin(lane)
    read(driver, "c0", 0)
    driver.put(lane, 0, 60)
    driver.say("c0", Received(0, 0, 1))
    assert isinstance(driver.put(lane, 1, 60), act.GoOn)


def test_who_connects_before_the_worker_has_heard_of_it_tries_again(driver):
    driver.connect("c2", 2)
    assert [each.peer for each in driver.taken(act.HangUp)] == ["c2"]
    driver.heard(Audience("a", {0: 0, 1: 0, 2: 0}))
    driver.connect("again", 2)
    assert driver.taken(act.HangUp) == []


def test_what_a_member_is_sent_after_another_one_is_counted_once(driver):
    lane = driver.lease(0, 1)
    driver.begin(lane)
    read(driver, "c0", 0)
    driver.put(lane, 0, 10)
    assert hits(driver) == 0
    read(driver, "c1", 1)
    driver.put(lane, 1, 10)
    assert hits(driver) == 2, "of both outputs the second time that one was sent"
    read(driver, "again", 1)
    driver.sent()
    assert hits(driver) == 2, "what is sent once more to the same member is no hit"
    driver.heard(Audience("a", {0: 0}))
    assert hits(driver) == 2


def hits(driver):
    return driver.core.lanes["a", 0].report(driver.now).hits


def test_who_reads_a_task_anew_hears_again_what_its_credit_lacks(driver):
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.connect("c0", 0, credit=0)
    driver.say("c0", Read(0, 0, 1))
    driver.put(lane, 0, 10)
    assert [each.size for each in shorts(driver)] == [10]
    driver.say("c0", Read(0, 0, 1))
    assert [each.size for each in shorts(driver)] == [10]


def shorts(driver):
    return [each.header for each in driver.taken(act.Send) if isinstance(each.header, Short)]
