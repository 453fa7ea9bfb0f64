"""Coordinated reads at a worker: a connection carries the outputs of all slots, with credit for each."""

import pytest
from tests.unit.worker.core.worker_driver import CoreDriver

from millrace.protocol import messages as msg
from millrace.protocol.data_messages import Credit, Read, Received
from millrace.protocol.job_spec import JobSpec
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.slot_buffer import SlotBuffer
from millrace.worker.core.worker_inputs import OutputMessage, Share

SPEC = JobSpec("a", b"", "bundle", deterministic=True, num_consumers=2, coordinated="drop", cycle_length=2)


@pytest.fixture
def driver():
    """A worker with room for 100 bytes, 50 for each slot, and a job of two ranks and two slots."""
    driver = CoreDriver(100)
    driver.heard(msg.CloseJob("a"))
    driver.heard(msg.OpenJob("a", SPEC, 1, "tables"))
    driver.actions.clear()
    return driver


def begin(driver, task, lease, **rest):
    lane = driver.lease(task, lease, consumer=task % 2, **rest)
    driver.begin(lane)
    return lane


def put(driver, lane, index, size=5):
    shares = tuple(Share([bytes([reader]) * size], size) for reader in range(2))
    return driver.ask(lane, inp.Put(OutputMessage.of_round(index, shares)))


def connect(driver, peer, reader, tasks=((0, 1), (1, 2))):
    driver.connect(peer, reader, credit=0)
    for task, lease in tasks:
        driver.say(peer, Read(0, task, lease))


def test_a_connection_carries_the_rounds_of_all_slots_and_each_rank_gets_its_own(driver):
    lanes = [begin(driver, task, task + 1) for task in (0, 1)]
    for reader, peer in enumerate(("c0", "c1")):
        connect(driver, peer, reader)
        for slot in (0, 1):
            driver.say(peer, Credit(100, slot=slot))
    for lane in lanes:
        put(driver, lane, 0)
    sent = [(each.peer, each.header.task, each.buffers[0][:1]) for each in driver.taken(act.Send)]
    assert sorted(sent) == [("c0", 0, b"\0"), ("c0", 1, b"\0"), ("c1", 0, b"\1"), ("c1", 1, b"\1")]


def test_credit_of_one_slot_lets_nothing_of_another_go(driver):
    lanes = [begin(driver, task, task + 1) for task in (0, 1)]
    connect(driver, "c0", 0)
    driver.say("c0", Credit(100, slot=1))
    for lane in lanes:
        put(driver, lane, 0)
    headers = [each.header for each in driver.taken(act.Send)]
    assert [getattr(each, "task", None) for each in headers] == [None, 1]
    assert (headers[0].size, headers[0].slot) == (5, 0)
    driver.say("c0", Credit(5, slot=0))
    assert [each.header.task for each in driver.taken(act.Send)] == [0]


def test_a_later_connection_takes_all_slots_over_and_the_one_before_ends_once(driver):
    begin(driver, 0, 1)
    connect(driver, "c0", 0)
    driver.connect("again", 0)
    assert [each.peer for each in driver.taken(act.HangUp)] == ["c0"]
    driver.feed(inp.PeerLeft("c0"))
    assert all(lane.buffer.outboxes[0].peer == "again" for lane in driver.core.lanes.values())
    driver.feed(inp.PeerLeft("again"))
    assert all(lane.buffer.outboxes[0].peer is None for lane in driver.core.lanes.values())


def test_a_rank_that_is_gone_holds_nothing_back(driver):
    lane = begin(driver, 0, 1)
    connect(driver, "c0", 0, [(0, 1)])
    for index in range(2):  # half of the slot's room, as the other one may be in an earlier epoch
        put(driver, lane, index)
    assert put(driver, lane, 2) is None
    driver.say("c0", Received(0, 0, 2))
    assert driver.answer() is None, "the other one lacks them"
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)], [1]))
    assert isinstance(driver.answer(), act.GoOn)
    driver.say("c0", Credit(100, slot=0))
    assert driver.sent() == [("c0", 0, 2, False)]
    driver.finish(lane, 3)
    driver.say("c0", Received(0, 0, 3, complete=True))
    assert driver.core.held() == []


@pytest.mark.parametrize("told", ["with the lease", "before it begins", "before it puts out"])
def test_rounds_are_kept_for_those_alone_that_lack_them(driver, told):
    if told == "before it begins":
        driver.lease(2, 7, consumer=0)
    lane = driver.lease(0, 1, consumer=0, readers=[0] if told == "with the lease" else [])
    spare = msg.OutputsReceived([msg.TaskRef("a", 0, 0)], [1])
    if told == "before it begins":
        driver.heard(spare)
        lane = driver.core.lanes["a", 0].number
        driver.heard(msg.RevokeTask(msg.TaskRef("a", 0, 2), 7))
        driver.feed(inp.RunEnded(lane, inp.Stopped()))
    driver.ask(lane, inp.Enter())
    if told == "before it puts out":
        driver.heard(spare)
    driver.ask(lane, inp.BeginOutputs(0))
    put(driver, lane, 0)
    connect(driver, "c0", 0, [(0, 1)])
    driver.say("c0", Received(0, 0, 1))
    assert driver.core.lanes["a", 0].buffer.bytes == 0


def test_what_no_rank_lacks_any_more_is_kept_for_none(driver):
    lane = begin(driver, 0, 1, readers=[1])
    put(driver, lane, 0)
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)], [1]))
    assert driver.core.lanes["a", 0].buffer.bytes == 0
    assert driver.core.lanes["a", 0].buffer.spared((0, 0))


def test_what_filled_no_round_is_told_at_the_end_and_again_when_the_session_comes_back(driver):
    lane = begin(driver, 0, 1)
    put(driver, lane, 0)
    driver.feed(inp.RunEnded(lane, inp.RunFinished(1, left_out=3)))
    assert [each.left_out for each in driver.told()] == [3]
    assert [each.left_out for each in driver.core.held()] == [3]


def test_who_was_let_go_and_asks_all_the_same_holds_nothing_back_and_has_the_task_run_again(driver):
    lane = begin(driver, 0, 1)
    put(driver, lane, 0)
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)], [1]))
    connect(driver, "c1", 1, [(0, 1)])
    driver.say("c1", Credit(100, slot=0))
    assert driver.sent() == []
    assert driver.core.stopping() == {1}, "an older journal may not know that"


def test_who_was_let_go_is_not_told_of_an_end_that_it_has_not_read(driver):
    lane = begin(driver, 0, 1, readers=[0])
    put(driver, lane, 0)
    driver.finish(lane, 1)
    connect(driver, "c0", 0, [(0, 1)])
    driver.say("c0", Received(0, 0, 1, complete=True))
    lane = begin(driver, 2, 2, readers=[0])
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 2)], [0]))
    connect(driver, "c1", 1, [(2, 2)])
    driver.finish(lane, 1)
    assert driver.sent() == []


def test_a_rank_that_is_gone_is_past_the_epoch_that_others_read():
    buffer = SlotBuffer(100, (0, 1))
    buffer.read(buffer.outboxes[0], (1, 0), 1, 0)
    buffer.begin((1, 0), 1, 0)
    buffer.put((1, 0), 1, OutputMessage(0, 1, [], 40))
    assert not buffer.room(1, 20), "it may be in an earlier epoch"
    buffer.spare((1, 0), [1])
    assert buffer.room(1, 20)
    buffer.begin((1, 2), 2, 0, readers=[0])
    buffer.validate()


def test_a_slot_is_filled_if_those_that_are_there_have_something_to_read():
    buffer = SlotBuffer(100, (0, 1))
    for outbox in buffer.outboxes.values():
        buffer.read(outbox, (0, 0), 1, 0)
    buffer.begin((0, 0), 1, 0)
    buffer.put((0, 0), 1, OutputMessage(0, 1, [], 40))
    buffer.received(buffer.outboxes[1], (0, 0), 1)
    buffer.outboxes[0].attach("c0")
    assert buffer.filled
    buffer.outboxes[1].attach("c1")
    assert not buffer.filled, "that one waits"


@pytest.mark.parametrize("finished", [True, False])
def test_who_asks_for_what_all_were_let_go_of_has_it_run_again(driver, finished):
    lane = begin(driver, 0, 1)
    put(driver, lane, 0)
    if finished:
        driver.finish(lane, 1, leftovers="some")
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)], [0]))
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)], [1]))
    if not finished:
        driver.finish(lane, 1, leftovers="some")
    driver.told()
    connect(driver, "c1", 1, [(0, 1)])
    assert driver.told() == [msg.TaskReturned(msg.TaskRef("a", 0, 0), 1)], "an older journal may not know that"
    assert driver.core.held() == []


def test_what_was_let_go_of_for_all_at_once_runs_again_for_whoever_asks(driver):
    lane = begin(driver, 0, 1)
    driver.finish(lane, 0, leftovers="some")
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)]))  # before the rank's own word has come
    driver.told()
    connect(driver, "c1", 1, [(0, 1)])
    assert driver.told() == [msg.TaskReturned(msg.TaskRef("a", 0, 0), 1)]
