import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from millrace.client.credit import CreditPool
from millrace.client.epoch_buffer import Source
from millrace.protocol.data_messages import Short
from millrace.worker.core.outbox import Parcel, SendCredit
from millrace.worker.core.slot_buffer import SlotBuffer
from millrace.worker.core.worker_inputs import OutputMessage

KEY = (0, 0)
A, B = ("a", 0), ("b", 0)


def filled(sizes):
    buffer = SlotBuffer(10**9)
    buffer.begin(KEY, 1, 0)
    buffer.read(buffer.outboxes[0], KEY, 1, 0)
    for index, size in enumerate(sizes):
        buffer.put(KEY, 1, OutputMessage(index, 1, [], size))
    return buffer


def test_what_is_short_is_said_once_and_may_come_in_pieces():
    allowance, buffer = SendCredit(), filled([10, 10])
    allowance.grant(4)
    assert allowance.next(buffer.outboxes[0]) == Short(10, 1, 4)
    for _ in range(2):
        allowance.grant(3)
        assert allowance.next(buffer.outboxes[0]) is None
    allowance.grant(4)
    assert isinstance(allowance.next(buffer.outboxes[0]), Parcel)
    assert allowance.left == 0
    assert allowance.next(buffer.outboxes[0]) == Short(10, 1, 0)


def test_it_is_said_again_of_another_message():
    allowance, buffer = SendCredit(), filled([10])
    assert allowance.next(buffer.outboxes[0]) == Short(10, 1, 0)
    allowance.grant(6)
    buffer.forget(KEY)
    buffer.begin(KEY, 2, 0)
    buffer.read(buffer.outboxes[0], KEY, 2, 0)
    buffer.put(KEY, 2, OutputMessage(0, 1, [], 7))
    assert allowance.next(buffer.outboxes[0]) == Short(7, 1, 6)


def test_what_came_for_a_message_that_was_withdrawn_goes_back():
    allowance, buffer = SendCredit(), filled([10])
    assert allowance.next(buffer.outboxes[0]) == Short(10, 1, 0)
    buffer.forget(KEY)
    assert allowance.next(buffer.outboxes[0]) is None
    allowance.grant(10)
    assert allowance.next(buffer.outboxes[0]) == Short(0, 0, 10)
    assert allowance.next(buffer.outboxes[0]) is None
    pool = CreditPool(4)
    for source in (A, B):
        pool.join(source)
    pool.short(A, 10, 0)
    pool.short(B, 9, 0)
    assert pool.force(None) == {B: 8}
    assert pool.force(None) == {}
    assert pool.short(B, 0, 9) == {}
    assert pool.force(None)[A] >= 8


def test_what_came_for_a_withdrawn_message_goes_back_although_its_reader_has_asked_again_meanwhile():
    """Else the reader takes it for under way, and lets nobody else in: a schedule of the simulation stood still."""
    allowance, buffer = SendCredit(), filled([10])
    assert allowance.next(buffer.outboxes[0]) == Short(10, 1, 0)
    allowance.say_again()
    buffer.forget(KEY)
    assert allowance.next(buffer.outboxes[0]) is None
    allowance.grant(10)
    assert allowance.next(buffer.outboxes[0]) == Short(0, 0, 10)


def test_a_bare_end_needs_no_allowance():
    allowance, buffer = SendCredit(), filled([])
    buffer.finish(KEY, 1, 0, 0)
    assert isinstance(allowance.next(buffer.outboxes[0]), Parcel)


@given(st.integers(0, 2**32), st.integers(4, 100))
def test_with_the_consumers_pool_everything_gets_through_whatever_is_under_way(seed, total):
    rng = random.Random(seed)
    pool = CreditPool(total)
    names = [A, B]
    sizes = {name: [rng.randint(1, 2 * total) for _ in range(rng.randint(0, 8))] for name in names}
    buffers = {name: filled(sizes[name]) for name in names}
    allowances = {name: SendCredit() for name in names}
    there: dict[Source, deque] = {name: deque() for name in names}
    back: dict[Source, deque] = {name: deque() for name in names}
    held: deque = deque()

    def grant(grants):
        for name, amount in grants.items():
            if amount:
                there[name].append(amount)

    for name in names:
        grant(pool.join(name))
    came = dict.fromkeys(names, 0)
    for _ in range(5000):
        if all(came[name] == len(sizes[name]) for name in names):
            return
        name = rng.choice(names)
        step = rng.randrange(4)
        if step == 0 and there[name]:
            allowances[name].grant(there[name].popleft())
        elif step == 1:
            found = allowances[name].next(buffers[name].outboxes[0])
            if found is not None:
                back[name].append(found)
        elif step == 2 and back[name]:
            found = back[name].popleft()
            if isinstance(found, Short):
                grant(pool.short(name, found.size, found.returned))
            else:
                came[name] += 1
                pool.arrived(name, found.share.size)
                held.append((name, found.share.size))
        elif held:
            grant(pool.used(*held.popleft()))
        else:
            grant(pool.force(None))
    raise AssertionError(f"{came} of {sizes} came")
