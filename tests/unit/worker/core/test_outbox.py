import random

from hypothesis import given
from hypothesis import strategies as st

from millrace.worker.core.outbox import ConsumerOutbox, OutputMessage

KEY = (0, 3)


def message(index, count=1, size=10):
    return OutputMessage(index, count, [b"x" * size], size)


def drain(buffer):
    sent = []
    while (parcel := buffer.next()) is not None:
        buffer.sent(parcel)
        sent.append((parcel.key, parcel.index, 0 if parcel.message is None else parcel.message.count, parcel.last))
    return sent


def test_nothing_is_sent_before_the_consumer_asks():
    buffer = ConsumerOutbox(100)
    buffer.begin(KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    assert drain(buffer) == []
    buffer.read(KEY, 1, 0)
    assert drain(buffer) == [(KEY, 0, 1, False)]


def test_a_consumer_may_ask_before_the_lease_has_come():
    buffer = ConsumerOutbox(100)
    buffer.read(KEY, 7, 0)
    buffer.begin(KEY, 7, 0)
    buffer.put(KEY, 7, message(0))
    assert drain(buffer) == [(KEY, 0, 1, False)]


def test_what_was_asked_for_early_survives_what_is_computed_ahead():
    buffer = ConsumerOutbox(100)
    buffer.read(KEY, 7, 0)
    buffer.begin((1, 0), 8, 0)
    buffer.begin(KEY, 7, 0)
    buffer.put(KEY, 7, message(0))
    assert drain(buffer) == [(KEY, 0, 1, False)]


def test_what_was_asked_for_early_survives_the_end_of_an_older_lease():
    buffer = ConsumerOutbox(100)
    buffer.begin(KEY, 7, 0)
    buffer.read(KEY, 9, 0)
    buffer.read(KEY, 8, 0)
    buffer.forget(KEY)
    buffer.begin(KEY, 8, 0)
    assert not buffer.waiting
    buffer.begin(KEY, 9, 0)
    assert buffer.waiting


def test_the_end_travels_with_the_last_message_or_alone():
    buffer = ConsumerOutbox(100)
    buffer.begin(KEY, 1, 0)
    buffer.read(KEY, 1, 0)
    buffer.put(KEY, 1, message(0, 2))
    assert drain(buffer) == [(KEY, 0, 2, False)]
    assert buffer.finish(KEY, 1, 2, 0)
    assert drain(buffer) == [(KEY, 2, 0, True)]
    assert drain(buffer) == []

    buffer.begin((0, 4), 2, 0)
    buffer.put((0, 4), 2, message(0, 2))
    buffer.finish((0, 4), 2, 2, 0)
    buffer.read((0, 4), 2, 0)
    assert drain(buffer) == [((0, 4), 0, 2, True)]


def test_what_was_not_acknowledged_is_sent_again_on_a_new_connection():
    buffer = ConsumerOutbox(1000)
    buffer.begin(KEY, 1, 0)
    buffer.read(KEY, 1, 0)
    for index in range(4):
        buffer.put(KEY, 1, message(index))
    buffer.finish(KEY, 1, 4, 0)
    assert len(drain(buffer)) == 4
    buffer.received(KEY, 2, complete=False)
    buffer.detach()
    assert drain(buffer) == []
    buffer.read(KEY, 1, 3)
    assert drain(buffer) == [(KEY, 3, 1, True)]


def test_a_run_that_is_repeated_starts_after_what_was_received():
    buffer = ConsumerOutbox(1000)
    buffer.begin(KEY, 2, 5)
    buffer.read(KEY, 2, 5)
    assert buffer.finish(KEY, 2, 5, 0)
    assert drain(buffer) == [(KEY, 5, 0, True)]


def test_a_run_that_is_repeated_and_ends_before_what_was_received_says_so():
    buffer = ConsumerOutbox(1000)
    buffer.begin(KEY, 2, 5, changed="a.tar")
    buffer.read(KEY, 2, 5)
    buffer.finish(KEY, 2, 3, 0)
    end = buffer.next()
    assert end is not None
    assert (end.index, end.last, end.changed) == (3, True, "a.tar")


def test_all_of_a_task_received_frees_it():
    buffer = ConsumerOutbox(1000)
    buffer.begin(KEY, 1, 0)
    buffer.read(KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    assert not buffer.received(KEY, 1, complete=False)
    assert buffer.bytes == 0
    buffer.finish(KEY, 1, 1, 0)
    drain(buffer)
    assert buffer.received(KEY, 1, complete=True)
    assert list(buffer) == []


def test_room_is_bounded_in_bytes_but_lets_one_message_in():
    buffer = ConsumerOutbox(100)
    buffer.begin(KEY, 1, 0)
    buffer.read(KEY, 1, 0)
    assert buffer.room(0, 500)
    buffer.put(KEY, 1, message(0, size=60))
    assert buffer.room(0, 40)
    assert not buffer.room(0, 41)


def test_what_is_computed_ahead_has_half_of_the_buffer_until_it_is_read():
    buffer = ConsumerOutbox(100)
    buffer.read((0, 0), 1, 0)
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
    buffer.read((1, 0), 2, 0)
    assert buffer.room(1, 60)
    assert not buffer.room(1, 61)


def test_what_is_computed_ahead_does_not_block_an_earlier_epoch():
    buffer = ConsumerOutbox(100)
    buffer.begin((1, 0), 1, 0)
    buffer.put((1, 0), 1, message(0, size=100))
    assert not buffer.room(1, 1)
    assert buffer.room(0, 100)


def test_outputs_that_the_consumer_has_from_another_run_take_no_room():
    buffer = ConsumerOutbox(10)
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
    buffer = ConsumerOutbox(10)
    buffer.begin(KEY, 2, 0)
    buffer.put(KEY, 2, message(0))
    buffer.finish(KEY, 2, 1, 0)
    buffer.spare(KEY)
    assert buffer.bytes == 0
    assert not buffer.has(KEY, 2)


def test_who_asks_for_them_all_the_same_gets_their_end():
    buffer = ConsumerOutbox(10)
    buffer.begin(KEY, 2, 0)
    buffer.spare(KEY)
    buffer.read(KEY, 2, 2)
    assert buffer.next() is None
    buffer.finish(KEY, 2, 2, 0)
    assert drain(buffer) == [(KEY, 2, 0, True)]


def test_a_message_of_a_forgotten_lease_is_dropped():
    buffer = ConsumerOutbox(100)
    buffer.begin(KEY, 1, 0)
    buffer.forget(KEY)
    assert not buffer.put(KEY, 1, message(0))
    assert not buffer.finish(KEY, 1, 1, 0)
    assert buffer.bytes == 0


def test_in_order_sends_the_lowest_task_first_whenever_it_came():
    buffer = ConsumerOutbox(1000, in_order=True)
    for lease, task in enumerate([5, 2, 9]):
        buffer.begin((0, task), lease, 0)
        buffer.put((0, task), lease, message(0))
        buffer.read((0, task), lease, 0)
    assert [parcel[0][1] for parcel in drain(buffer)] == [2, 5, 9]


def waiting(buffer):
    """As a call, so that it is seen to change."""
    return buffer.waiting


def test_waiting_means_that_everything_asked_for_is_on_its_way():
    buffer = ConsumerOutbox(100)
    assert waiting(buffer) is False
    buffer.begin(KEY, 1, 0)
    assert waiting(buffer) is False
    buffer.read(KEY, 1, 0)
    assert waiting(buffer) is True
    buffer.put(KEY, 1, message(0))
    assert waiting(buffer) is False
    drain(buffer)
    assert waiting(buffer) is True


@given(st.integers(0, 2**32), st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_every_output_arrives_once_in_order_however_often_the_connection_breaks(seed, counts):
    rng = random.Random(seed)
    buffer = ConsumerOutbox(10_000)
    buffer.begin(KEY, 1, 0)
    total = sum(counts)
    held, complete, put = 0, False, 0
    pending = list(counts)
    buffer.read(KEY, 1, 0)
    while not complete:
        action = rng.choice(["put", "send", "break", "lag"])
        if action == "put" and pending:
            count = pending.pop(0)
            buffer.put(KEY, 1, message(put, count))
            put += count
            if not pending:
                assert buffer.finish(KEY, 1, total, 0)
        elif action == "send" and (parcel := buffer.next()) is not None:
            buffer.sent(parcel)
            count = 0 if parcel.message is None else parcel.message.count
            assert parcel.index == held
            held += count
            complete = parcel.last
            if rng.random() < 0.5:
                buffer.received(KEY, held, complete=complete)
        elif action == "break":
            buffer.detach()
            buffer.read(KEY, 1, held)
        elif action == "lag":
            buffer.received(KEY, rng.randint(0, held), complete=False)
    assert held == total
    buffer.received(KEY, held, complete=True)
    assert buffer.bytes == 0


def test_it_is_filled_while_something_of_the_epoch_that_is_read_is_not_received():
    buffer, seen = ConsumerOutbox(100), []
    buffer.begin(KEY, 1, 0)
    buffer.put(KEY, 1, message(0))
    seen.append(buffer.filled)  # nobody reads the epoch yet
    buffer.read(KEY, 1, 0)
    seen.append(buffer.filled)
    buffer.received(KEY, 1, complete=False)
    seen.append(buffer.filled)
    ahead = (KEY[0] + 1, 0)
    buffer.begin(ahead, 2, 0)
    buffer.put(ahead, 2, message(0))
    seen.append(buffer.filled)
    assert seen == [False, True, False, False]
