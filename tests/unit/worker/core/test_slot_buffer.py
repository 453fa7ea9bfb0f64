import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.worker.core.slot_buffer import SlotBuffer
from millrace.worker.core.worker_inputs import OutputMessage

KEY = (0, 3)


def message(index, count=1, size=10):
    return OutputMessage(index, count, [b"x" * size], size)


def drain(buffer, reader=0):
    sent, outbox = [], buffer.outboxes[reader]
    while (parcel := outbox.next()) is not None:
        outbox.sent(parcel)
        header = parcel.header
        sent.append(((header.epoch, header.task), header.index, header.count, header.last))
    return sent


def read(buffer, key, lease, start, reader=0):
    buffer.read(buffer.outboxes[reader], key, lease, start)


def received(buffer, key, upto, *, complete, reader=0):
    buffer.received(buffer.outboxes[reader], key, upto, complete=complete)


def detach(buffer, reader=0):
    buffer.outboxes[reader].attach(None)


def test_nothing_is_sent_before_the_consumer_asks():
    buffer = SlotBuffer(100)
    buffer.begin(KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    assert drain(buffer) == []
    read(buffer, KEY, 1, 0)
    assert drain(buffer) == [(KEY, 0, 1, False)]


def test_a_consumer_may_ask_before_the_lease_has_come():
    buffer = SlotBuffer(100)
    read(buffer, KEY, 7, 0)
    buffer.begin(KEY, 7, 0)
    buffer.put(KEY, 7, message(0))
    assert drain(buffer) == [(KEY, 0, 1, False)]


def test_what_was_asked_for_early_survives_what_is_computed_ahead():
    buffer = SlotBuffer(100)
    read(buffer, KEY, 7, 0)
    buffer.begin((1, 0), 8, 0)
    buffer.begin(KEY, 7, 0)
    buffer.put(KEY, 7, message(0))
    assert drain(buffer) == [(KEY, 0, 1, False)]


def test_what_was_asked_for_early_survives_the_end_of_an_older_lease():
    buffer = SlotBuffer(100)
    buffer.begin(KEY, 7, 0)
    read(buffer, KEY, 9, 0)
    read(buffer, KEY, 8, 0)
    buffer.forget(KEY)
    buffer.begin(KEY, 8, 0)
    assert not buffer.waiting
    buffer.begin(KEY, 9, 0)
    assert buffer.waiting


def test_the_end_travels_with_the_last_message_or_alone():
    buffer = SlotBuffer(100)
    buffer.begin(KEY, 1, 0)
    read(buffer, KEY, 1, 0)
    buffer.put(KEY, 1, message(0, 2))
    assert drain(buffer) == [(KEY, 0, 2, False)]
    assert buffer.finish(KEY, 1, 2, 0)
    assert drain(buffer) == [(KEY, 2, 0, True)]
    assert drain(buffer) == []

    buffer.begin((0, 4), 2, 0)
    buffer.put((0, 4), 2, message(0, 2))
    buffer.finish((0, 4), 2, 2, 0)
    read(buffer, (0, 4), 2, 0)
    assert drain(buffer) == [((0, 4), 0, 2, True)]


def test_what_was_not_acknowledged_is_sent_again_on_a_new_connection():
    buffer = SlotBuffer(1000)
    buffer.begin(KEY, 1, 0)
    read(buffer, KEY, 1, 0)
    for index in range(4):
        buffer.put(KEY, 1, message(index))
    buffer.finish(KEY, 1, 4, 0)
    assert len(drain(buffer)) == 4
    received(buffer, KEY, 2, complete=False)
    detach(buffer)
    assert drain(buffer) == []
    read(buffer, KEY, 1, 3)
    assert drain(buffer) == [(KEY, 3, 1, True)]


def test_a_run_that_is_repeated_starts_after_what_was_received():
    buffer = SlotBuffer(1000)
    buffer.begin(KEY, 2, 5)
    read(buffer, KEY, 2, 5)
    assert buffer.finish(KEY, 2, 5, 0)
    assert drain(buffer) == [(KEY, 5, 0, True)]


def test_a_run_that_is_repeated_and_ends_before_what_was_received_says_so():
    buffer = SlotBuffer(1000)
    buffer.begin(KEY, 2, 5, changed="a.tar")
    read(buffer, KEY, 2, 5)
    buffer.finish(KEY, 2, 3, 0)
    end = buffer.outboxes[0].next()
    assert end is not None
    assert (end.header.index, end.header.last, end.header.changed) == (3, True, "a.tar")


@pytest.mark.parametrize("complete", [False, True])
def test_what_one_reader_acknowledged_and_another_lacks_is_sent_again_to_who_takes_its_place(complete):
    buffer = SlotBuffer(1000, (0, 1))
    buffer.begin(KEY, 1, 0)
    for index in range(3):
        buffer.put(KEY, 1, message(index))
    buffer.finish(KEY, 1, 3, 0)
    read(buffer, KEY, 1, 0)
    drain(buffer)
    received(buffer, KEY, 3 if complete else 2, complete=complete)
    detach(buffer)
    for start in (1, 0):
        assert not buffer.lacks(KEY, 1, start)
        read(buffer, KEY, 1, start)
        buffer.validate()
        assert [index for _, index, _, _ in drain(buffer)] == [0, 1, 2][start:]
    received(buffer, KEY, 1, complete=False, reader=1)
    assert not buffer.lacks(KEY, 1, 0), "who has the place has not acknowledged that"
    received(buffer, KEY, 2, complete=False)
    assert buffer.lacks(KEY, 1, 0)
    assert not buffer.lacks(KEY, 1, 1)
    for reader in (0, 1):
        received(buffer, KEY, 3, complete=True, reader=reader)
    assert not buffer.tasks
    assert buffer.lacks(KEY, 1, 0)


def test_who_comes_after_another_left_lacks_what_the_others_have_all_of():
    buffer = SlotBuffer(1000, (0, 1))
    buffer.begin(KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    buffer.finish(KEY, 1, 1, 0)
    received(buffer, KEY, 1, complete=True)
    buffer.leave(1)
    assert not buffer.tasks
    assert buffer.lacks(KEY, 1, 0, buffer.join(2))


def test_a_lease_that_was_given_back_is_lacked_no_more():
    buffer = SlotBuffer(1000)
    buffer.begin(KEY, 1, 0)
    buffer.finish(KEY, 1, 0, 0)
    received(buffer, KEY, 0, complete=True)
    assert buffer.lacks(KEY, 1, 0)
    buffer.revoke(KEY, 1)
    assert not buffer.lacks(KEY, 1, 0)


def test_all_of_a_task_received_frees_it():
    buffer = SlotBuffer(1000)
    buffer.begin(KEY, 1, 0)
    read(buffer, KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    received(buffer, KEY, 1, complete=False)
    assert buffer.bytes == 0
    buffer.finish(KEY, 1, 1, 0)
    drain(buffer)
    received(buffer, KEY, 1, complete=True)
    assert not buffer.tasks


def test_room_is_bounded_in_bytes_but_lets_one_message_in():
    buffer = SlotBuffer(100)
    buffer.begin(KEY, 1, 0)
    read(buffer, KEY, 1, 0)
    assert buffer.room(0, 500)
    buffer.put(KEY, 1, message(0, size=60))
    assert buffer.room(0, 40)
    assert not buffer.room(0, 41)


def test_what_is_computed_ahead_has_half_of_the_buffer_until_it_is_read():
    buffer = SlotBuffer(100)
    read(buffer, (0, 0), 1, 0)
    buffer.begin((1, 0), 2, 0)
    assert buffer.room(1, 500)
    buffer.put((1, 0), 2, message(0, size=40))
    assert buffer.room(1, 10)
    assert not buffer.room(1, 11)
    buffer.begin((0, 0), 1, 0)
    buffer.put((0, 0), 1, message(0, size=30))
    assert buffer.room(0, 30)
    assert not buffer.room(0, 31)
    buffer.forget((0, 0))
    read(buffer, (1, 0), 2, 0)
    assert buffer.room(1, 60)
    assert not buffer.room(1, 61)


def test_what_is_computed_ahead_does_not_block_an_earlier_epoch():
    buffer = SlotBuffer(100)
    buffer.begin((1, 0), 1, 0)
    buffer.put((1, 0), 1, message(0, size=100))
    assert not buffer.room(1, 1)
    assert buffer.room(0, 100)


def test_outputs_that_the_consumer_has_from_another_run_take_no_room():
    buffer = SlotBuffer(10)
    buffer.begin(KEY, 2, 0)
    buffer.put(KEY, 2, message(0))
    assert not buffer.room(0, 10)
    buffer.spare(KEY)
    assert buffer.spared(KEY)
    assert buffer.bytes == 0
    assert not buffer.put(KEY, 2, message(1))
    assert buffer.bytes == 0
    assert buffer.finish(KEY, 2, 2, 0)
    buffer.forget(KEY)
    assert not buffer.spared(KEY)


def test_outputs_whose_receipt_was_lost_are_freed():
    buffer = SlotBuffer(10)
    buffer.begin(KEY, 2, 0)
    buffer.put(KEY, 2, message(0))
    buffer.finish(KEY, 2, 1, 0)
    buffer.spare(KEY)
    assert buffer.bytes == 0
    assert not buffer.has(KEY, 2)


def test_who_asks_for_them_all_the_same_gets_their_end():
    buffer = SlotBuffer(10)
    buffer.begin(KEY, 2, 0)
    buffer.spare(KEY)
    read(buffer, KEY, 2, 2)
    assert drain(buffer) == []
    buffer.finish(KEY, 2, 2, 0)
    assert drain(buffer) == [(KEY, 2, 0, True)]


def test_who_was_given_up_and_does_not_know_is_sent_nothing_behind_what_it_lacks():
    buffer = SlotBuffer(10)
    buffer.begin(KEY, 2, 0)
    buffer.put(KEY, 2, message(0))
    buffer.spare(KEY)
    read(buffer, KEY, 2, 0)
    buffer.finish(KEY, 2, 1, 0)
    assert drain(buffer) == []


def test_a_message_of_a_forgotten_lease_is_dropped():
    buffer = SlotBuffer(100)
    buffer.begin(KEY, 1, 0)
    buffer.forget(KEY)
    assert not buffer.put(KEY, 1, message(0))
    assert not buffer.finish(KEY, 1, 1, 0)
    assert buffer.bytes == 0


def test_in_order_sends_the_lowest_task_first_whenever_it_came():
    buffer = SlotBuffer(1000, in_order=True)
    for lease, task in enumerate([5, 2, 9]):
        buffer.begin((0, task), lease, 0)
        buffer.put((0, task), lease, message(0))
        read(buffer, (0, task), lease, 0)
    assert [parcel[0][1] for parcel in drain(buffer)] == [2, 5, 9]


def waiting(buffer):
    """As a call, so that it is seen to change."""
    return buffer.waiting


def hungry(buffer):
    return buffer.hungry


def test_waiting_means_that_everything_asked_for_is_on_its_way_and_hungry_that_it_has_come():
    buffer = SlotBuffer(100)
    assert not waiting(buffer)
    buffer.begin(KEY, 1, 0)
    assert not waiting(buffer)
    assert not hungry(buffer)
    read(buffer, KEY, 1, 0)
    assert waiting(buffer)
    assert hungry(buffer)
    buffer.put(KEY, 1, message(0))
    assert not waiting(buffer)
    assert not hungry(buffer)
    drain(buffer)
    assert waiting(buffer)
    assert not hungry(buffer)
    buffer.received(buffer.outboxes[0], KEY, 1)
    assert hungry(buffer)


def test_what_a_reader_left_behind_in_an_epoch_before_keeps_nobody_hungry():
    buffer = SlotBuffer(100)
    buffer.begin(KEY, 1, 0)
    read(buffer, KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    drain(buffer)
    later = (KEY[0] + 1, 0)
    buffer.begin(later, 2, 0)
    read(buffer, later, 2, 0)
    assert hungry(buffer)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_every_output_arrives_once_in_order_however_often_the_connection_breaks(seed, counts):
    rng = random.Random(seed)
    buffer = SlotBuffer(10_000)
    outbox = buffer.outboxes[0]
    buffer.begin(KEY, 1, 0)
    total = sum(counts)
    held, complete, put = 0, False, 0
    pending = list(counts)
    read(buffer, KEY, 1, 0)
    while not complete:
        action = rng.choice(["put", "send", "break", "lag"])
        if action == "put" and pending:
            count = pending.pop(0)
            buffer.put(KEY, 1, message(put, count))
            put += count
            if not pending:
                assert buffer.finish(KEY, 1, total, 0)
        elif action == "send" and (parcel := outbox.next()) is not None:
            outbox.sent(parcel)
            assert parcel.header.index == held
            held += parcel.header.count
            complete = parcel.header.last
            if rng.random() < 0.5:
                received(buffer, KEY, held, complete=complete)
        elif action == "break":
            detach(buffer)
            read(buffer, KEY, 1, held)
        elif action == "lag":
            received(buffer, KEY, rng.randint(0, held), complete=False)
    assert held == total
    received(buffer, KEY, held, complete=True)
    assert buffer.bytes == 0


def test_it_is_filled_while_something_of_the_epoch_that_is_read_is_not_received():
    buffer, seen = SlotBuffer(100), []
    buffer.begin(KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    seen.append(buffer.filled)  # nobody reads the epoch yet
    read(buffer, KEY, 1, 0)
    seen.append(buffer.filled)
    received(buffer, KEY, 1, complete=False)
    seen.append(buffer.filled)
    ahead = (KEY[0] + 1, 0)
    buffer.begin(ahead, 2, 0)
    buffer.put(ahead, 2, message(0))
    seen.append(buffer.filled)
    assert seen == [False, True, False, False]
