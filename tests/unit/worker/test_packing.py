from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CodecError
from millrace.worker.packing import MOST, Packer, RoundPacker, is_due


def encode(elements):
    return [b"".join(elements)]


def pack(chunks, *, target, flush_each=False):
    packer = Packer(encode, target=target)
    messages: list[Any] = []
    for chunk in chunks:
        packer.add(chunk)
        messages.extend(packer.messages(flush=flush_each))
    messages.extend(packer.messages(flush=True))
    return messages


@given(
    st.lists(st.lists(st.integers(1, 300).map(lambda n: bytes([n % 251]) * n), max_size=20), max_size=8),
    st.booleans(),
)
def test_messages_hold_all_elements_in_order_and_are_numbered(chunks, flush_each):
    messages = pack(chunks, target=500, flush_each=flush_each)
    assert b"".join(b"".join(message.buffers) for message in messages) == b"".join(map(b"".join, chunks))
    expected = 0
    for message in messages:
        assert message.index == expected
        assert message.size == sum(map(len, message.buffers))
        expected += message.count
        assert message.size <= 1000 or message.count == 1
    assert expected == sum(map(len, chunks))


def test_small_elements_are_grouped_to_about_the_target():
    messages = pack([[b"x" * 10] * 1000] * 10, target=1000)
    assert len(messages) < 150
    assert max(message.size for message in messages) <= 2000


def test_a_large_element_travels_alone():
    messages = pack([[b"x" * 5000] * 3], target=1000)
    assert [message.count for message in messages] == [1, 1, 1]


def test_elements_that_grow_are_cut_again():
    messages = pack([[b"x"] * 500, [b"y" * 900] * 50], target=1000)
    assert max(message.size for message in messages) <= 2000


def test_elements_that_weigh_nothing_on_the_way_are_not_packed_without_end():
    messages = pack([[b""] * 100_000] * 10, target=1000)
    assert max(message.count for message in messages) == MOST


def test_numbers_start_where_the_consumer_is():
    packer = Packer(encode, 7)
    packer.add([b"a", b"b"])
    assert [message.index for message in packer.messages(flush=True)] == [7, 8]


def test_what_one_task_taught_holds_for_the_next():
    first = Packer(encode, target=1000)
    first.add([b"x" * 10] * 500)
    assert len(list(first.messages(flush=True))) > 2
    again = Packer(encode, target=1000, batch=first.batch)
    again.add([b"x" * 10] * 50)
    assert [message.count for message in again.messages(flush=True)] == [50]


def test_large_elements_behind_a_task_of_small_ones_do_not_wait_until_there_are_as_many():
    packer = Packer(encode, batch=10_000)
    waiting = 0
    for _ in range(9):
        packer.add([bytes(1 << 20)] * 10)
        waiting += 10 - sum(message.count for message in packer.messages(flush=False))
        assert waiting <= 64
    assert waiting == 0


@given(
    st.lists(st.lists(st.binary(max_size=20), max_size=7), max_size=6),
    st.integers(1, 4),
    st.integers(0, 5),
    st.booleans(),
)
def test_rounds_are_whole_and_give_each_reader_every_so_manyth_batch(chunks, ranks, start, flush_each):
    packer = RoundPacker(encode, ranks, start)
    messages: list[Any] = []
    for chunk in chunks:
        packer.add(chunk)
        messages.extend(packer.messages(flush=flush_each))
    messages.extend(packer.messages(flush=True))
    batches = [batch for chunk in chunks for batch in chunk]
    rounds = len(batches) // ranks
    assert [(message.index, message.count) for message in messages] == [(start + at, 1) for at in range(rounds)]
    for at, message in enumerate(messages):
        own = batches[at * ranks : (at + 1) * ranks]
        assert [share.buffers for share in message.shares] == [[batch] for batch in own]
        assert [share.size for share in message.shares] == list(map(len, own))
        assert message.size == sum(map(len, own))


def test_a_batch_that_cannot_be_sent_comes_after_the_rounds_before_it():
    def failing(elements):
        if elements == [b"bad"]:
            raise CodecError("bad")
        return encode(elements)

    packer = RoundPacker(failing, 2)
    packer.add([b"a", b"b", b"c", b"bad"])
    messages = packer.messages(flush=True)
    assert [share.buffers for share in next(messages).shares] == [[b"a"], [b"b"]]
    with pytest.raises(CodecError):
        next(messages)


@pytest.mark.parametrize(
    ("waiting", "hungry", "slowest_s", "due"),
    [
        (True, True, 0.0, True),  # a reader with nothing gets its first element at once
        (True, False, 0.001, False),  # one with a message on its way gets a larger one next
        (True, False, 2.5, True),  # but nothing lies here while the next chunk takes seconds
        (False, False, 2.5, False),  # what it can't take is sent in full messages
    ],
)
def test_small_messages_are_for_who_has_nothing_and_before_pauses(waiting, hungry, slowest_s, due):
    assert is_due(waiting=waiting, hungry=hungry, slowest_s=slowest_s) is due
