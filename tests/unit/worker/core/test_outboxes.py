"""A slot that two readers read: what they share is held once, and each has a cursor, a connection and credit."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.worker.core.worker_driver import CoreDriver

from millrace.protocol import messages as msg
from millrace.protocol.data_messages import Credit, Delivery, Read, Received, Short
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_core
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.outbox import Parcel
from millrace.worker.core.slot_buffer import SlotBuffer
from millrace.worker.core.worker_inputs import OutputMessage, Share

KEY = (0, 0)


@pytest.fixture
def driver(monkeypatch):
    """A worker that has room for 100 bytes, and a job whose consumers 0 and 1 read slot 0."""
    monkeypatch.setattr(worker_core, "slots_of", lambda job, reader: (0,))
    monkeypatch.setattr(worker_core, "audience_of", lambda job, slot: (0, 1))
    return CoreDriver(100)


def begin(driver, *credits_):
    """Two consumers that read task 0, and the lane that runs it."""
    for peer, reader, credit in zip(("c0", "c1"), (0, 1), credits_, strict=True):
        driver.connect(peer, reader, credit=credit)
        driver.say(peer, Read(0, 0, 1))
    lane = driver.lease(0, 1)
    driver.begin(lane)
    return lane


def put(driver, lane, index, buffer=b"x" * 40):
    return driver.ask(lane, inp.Put(OutputMessage(index, 1, [buffer], len(buffer))))


def test_both_are_sent_the_same_bytes_and_they_are_held_once(driver):
    lane = begin(driver, 100, 100)
    encoded = b"y" * 40
    put(driver, lane, 0, encoded)
    sent = driver.taken(act.Send)
    assert [each.peer for each in sent] == ["c0", "c1"]
    assert all(each.buffers[0] is encoded for each in sent)
    assert driver.core.lanes["a", 0].report(driver.now).buffered_bytes == 40


def test_the_slowest_reader_bounds_the_buffer(driver):
    lane = begin(driver, 100, 100)
    put(driver, lane, 0)
    put(driver, lane, 1)
    assert put(driver, lane, 2) is None
    driver.say("c0", Received(0, 0, 2))
    assert driver.answer() is None, "the other one lacks them"
    driver.say("c1", Received(0, 0, 1))
    assert isinstance(driver.answer(), act.GoOn)
    driver.say("c1", Received(0, 0, 2))
    assert driver.core.lanes["a", 0].buffer.bytes == 40


def test_each_is_sent_what_its_own_credit_allows(driver):
    lane = begin(driver, 100, 40)
    put(driver, lane, 0)
    put(driver, lane, 1)
    assert driver.sent() == [("c0", 0, 0, False), ("c1", 0, 0, False), ("c0", 0, 1, False)]
    driver.say("c1", Credit(40))
    assert driver.sent() == [("c1", 0, 1, False)]


def test_who_comes_back_gets_what_it_lacks_and_the_other_one_notices_nothing(driver):
    lane = begin(driver, 1000, 1000)
    put(driver, lane, 0)
    driver.say("c0", Received(0, 0, 1))
    driver.say("c1", Received(0, 0, 1))
    put(driver, lane, 1)
    driver.say("c0", Received(0, 0, 2))
    driver.finish(lane, 2)
    driver.say("c0", Received(0, 0, 2, complete=True))
    driver.feed(inp.PeerLeft("c1"))
    driver.sent()
    assert [each.lease for each in driver.core.held()] == [1], "what it lacks is kept while it is away"
    driver.connect("again", 1)
    driver.say("again", Read(0, 0, 1, start=1))
    assert driver.sent() == [("again", 0, 1, True)]
    assert driver.taken(act.HangUp) == []
    driver.say("again", Received(0, 0, 2, complete=True))
    assert driver.core.held() == []


def test_what_both_have_from_another_run_is_kept_for_neither(driver):
    lane = begin(driver, 0, 0)
    put(driver, lane, 0)
    put(driver, lane, 1)
    assert put(driver, lane, 2) is None
    driver.heard(msg.OutputsReceived([msg.TaskRef("a", 0, 0)]))
    assert isinstance(driver.answer(), act.GoOn)
    assert driver.core.lanes["a", 0].buffer.bytes == 0


def test_a_failure_waits_for_both_to_have_what_came_before(driver):
    lane = begin(driver, 100, 100)
    put(driver, lane, 0)
    driver.feed(inp.RunEnded(lane, inp.RunFailed(msg.Failure("ElementError", "no"))))
    driver.say("c0", Received(0, 0, 1))
    assert driver.told() == []
    driver.say("c1", Received(0, 0, 1))
    assert [type(each) for each in driver.told()] == [msg.TaskFailed]


def message(index, size=10):
    return OutputMessage(index, 1, [b"x" * size], size)


def test_what_is_ahead_of_the_slowest_reader_has_half_of_the_buffer():
    buffer = SlotBuffer(100, (0, 1))
    for outbox, epoch in zip(buffer.outboxes.values(), (1, 0), strict=True):
        buffer.read(outbox, (epoch, 0), 1, 0)
    buffer.begin((1, 0), 1, 0)
    buffer.put((1, 0), 1, message(0, 40))
    assert not buffer.room(1, 20)
    buffer.read(buffer.outboxes[1], (1, 0), 1, 0)
    assert buffer.room(1, 20)


def test_who_joins_late_gets_what_is_kept_and_who_leaves_for_good_holds_nothing():
    buffer = SlotBuffer(100)
    buffer.begin(KEY, 1, 0)
    for index in range(3):
        buffer.put(KEY, 1, message(index))
    buffer.received(buffer.outboxes[0], KEY, 1)
    late = buffer.join(1)
    buffer.read(late, KEY, 1, 0)
    parcel = late.next()
    assert parcel is not None
    assert parcel.header.index == 1
    buffer.received(buffer.outboxes[0], KEY, 3)
    assert buffer.bytes == 20
    buffer.finish(KEY, 1, 3, 0)
    buffer.received(buffer.outboxes[0], KEY, 3, complete=True)
    assert buffer.waits(KEY, 1)
    buffer.leave(1)
    assert (buffer.bytes, buffer.tasks) == (0, {})


class Reader:
    """One of two, that receives in order, says so or not, and is cut off."""

    def __init__(self, buffer, number):
        self.buffer, self.outbox = buffer, buffer.outboxes[number]
        self.held, self.complete = 0, False
        self.connect()

    def connect(self):
        self.outbox.attach(object())
        self.outbox.credit.grant(1 << 20)
        self.buffer.read(self.outbox, KEY, 1, self.held)

    def step(self, rng):
        match rng.randrange(4):
            case 0:
                self.connect()
            case 1:
                self.buffer.received(self.outbox, KEY, rng.randint(0, self.held))
            case _:
                parcel = self.outbox.credit.next(self.outbox)
                if parcel is not None:
                    assert isinstance(parcel.header, Delivery)
                    assert parcel.header.index == self.held
                    assert parcel.share is None or parcel.share.size in (10, (3, 7)[self.outbox.reader])
                    self.held += parcel.header.count
                    self.complete = parcel.header.last


@pytest.mark.parametrize("rounds", [False, True])
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_every_output_reaches_each_of_two_readers_once_in_order(rounds, seed, total):
    rng = random.Random(seed)
    buffer = SlotBuffer(40, (0, 1))
    readers = [Reader(buffer, number) for number in (0, 1)]
    buffer.begin(KEY, 1, 0)
    made = 0
    while not all(reader.complete for reader in readers):
        if made < total and buffer.room(0, 10) and rng.random() < 0.4:
            buffer.put(KEY, 1, round_of(made, 3, 7) if rounds else message(made))
            made += 1
            if made == total:
                assert buffer.finish(KEY, 1, total, 0)
        rng.choice(readers).step(rng)
        buffer.validate()
        assert buffer.bytes <= 40
    for reader in readers:
        assert buffer.waits(KEY, 1) or not buffer.bytes
        buffer.received(reader.outbox, KEY, total, complete=True)
    assert buffer.tasks == {}


def round_of(index, *sizes):
    return OutputMessage.of_round(
        index, tuple(Share([bytes([reader]) * size], size) for reader, size in enumerate(sizes))
    )


def test_each_reader_of_a_round_is_sent_its_own_share_and_pays_for_that_alone():
    buffer = SlotBuffer(100, (0, 1))
    buffer.begin(KEY, 1, 0)
    buffer.put(KEY, 1, round_of(0, 30, 50))
    assert buffer.bytes == 80
    assert not buffer.room(0, 30)
    first, second = (buffer.outboxes[number] for number in (0, 1))
    for outbox in (first, second):
        outbox.attach(object())
        outbox.credit.grant(40)
        buffer.read(outbox, KEY, 1, 0)
    parcel = first.credit.next(first)
    assert isinstance(parcel, Parcel)
    assert (parcel.share, parcel.header.count, first.credit.left) == (Share([b"\0" * 30], 30), 1, 10)
    assert second.credit.next(second) == Short(50, 1, 40)
    second.credit.grant(50)
    parcel = second.credit.next(second)
    assert isinstance(parcel, Parcel)
    assert parcel.share == Share([b"\1" * 50], 50)
    buffer.received(first, KEY, 1)
    assert buffer.bytes == 80, "the other lacks its share"
    buffer.received(second, KEY, 1)
    assert buffer.bytes == 0


def test_a_round_that_is_larger_than_all_that_a_worker_may_keep_is_refused_whole(driver):
    lane = begin(driver, 1000, 1000)
    assert driver.ask(lane, inp.Put(round_of(0, 60, 60))) == act.TooLarge(100)
    assert isinstance(driver.ask(lane, inp.Put(round_of(0, 60, 40))), act.GoOn)
