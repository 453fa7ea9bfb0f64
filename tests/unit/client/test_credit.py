import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millrace.client.credit import CreditPool

A, B, C, W, LATE = ((address, 0) for address in ("a", "b", "c", "w", "late"))


def test_a_worker_gets_its_share_ahead_of_time():
    pool = CreditPool(800)
    assert pool.join(A) == {A: 400}
    assert pool.join(B) == {B: 200}
    assert pool.free == 200


def test_the_share_is_what_each_of_its_workers_has():
    pool = CreditPool(100)
    assert pool.share == 50, "of whoever comes first"
    granted = [pool.join(worker) for worker in (A, B, C)]
    assert granted[0] == {A: 50}
    assert pool.share == 16
    pool.leave("a")
    assert pool.share == 25


def test_the_first_gives_up_to_the_second_what_it_had_when_it_was_alone():
    pool = CreditPool(800)
    pool.join(A)
    pool.join(B)
    pool.arrived(A, 300)
    assert pool.used(A, 300) == {A: 100}
    assert pool.free == 400


def test_when_all_is_granted_a_further_worker_waits_until_it_is_short():
    pool = CreditPool(80)
    pool.join(W)
    assert pool.short(W, 80, 0) == {W: 40}
    assert pool.join(LATE) == {}
    assert pool.short(LATE, 10, 0) == {}
    pool.arrived(W, 80)
    assert pool.used(W, 80) == {LATE: 10, W: 20}


def test_credit_comes_back_in_pieces_worth_sending():
    pool = CreditPool(800)
    pool.join(A)
    pool.arrived(A, 50)
    assert pool.used(A, 50) == {}
    pool.arrived(A, 60)
    assert pool.used(A, 60) == {A: 110}


def test_a_message_larger_than_the_share_gets_through_when_it_fits_the_whole():
    pool = CreditPool(800)
    pool.join(A)
    assert pool.short(A, 700, 400) == {A: 700}
    pool.arrived(A, 700)
    assert pool.free == 100


def test_those_that_wait_are_served_oldest_first():
    pool = CreditPool(100)
    pool.join(A)
    pool.join(B)
    pool.join(C)
    pool.arrived(C, 16)
    assert pool.short(A, 90, 50) == {}
    assert pool.short(B, 5, 25) == {}
    assert pool.used(C, 16) == {A: 90, B: 5, C: 5}


def test_force_lets_one_message_in_and_not_a_second_before_it_came():
    pool = CreditPool(100)
    pool.join(A)
    pool.join(B)
    pool.arrived(A, 50)
    pool.short(A, 95, 0)
    pool.short(B, 96, 25)
    assert pool.force(A) == {A: 95}
    assert pool.force(B) == {}
    pool.arrived(A, 95)
    assert pool.force(B) == {B: 96}


def test_a_worker_that_is_short_still_is_when_the_mark_of_an_end_has_come():
    pool = CreditPool(80)
    pool.join(A)
    pool.arrived(A, 40)
    assert pool.short(A, 60, 0) == {}
    pool.arrived(A, 0)
    assert pool.force(A) == {A: 60}
    pool.arrived(A, 0)
    assert pool.force(A) == {}
    assert pool.used(A, 40) == {}


def test_force_knows_nothing_to_do_for_a_worker_that_is_not_short():
    pool = CreditPool(100)
    pool.join(A)
    assert pool.force(A) == {}
    assert pool.force(None) == {}


def test_credit_of_a_lost_worker_goes_to_those_that_wait():
    pool = CreditPool(100)
    for address in "abcdefgh":
        pool.join((address, 0))
    pool.short(A, 80, 50)
    assert pool.leave("b") == {}
    assert pool.leave("c") == {A: 80}


def test_slots_of_a_worker_have_credit_of_their_own_and_go_with_it():
    pool = CreditPool(100)
    first, second = ("a", 0), ("a", 1)
    assert pool.join(first) == {first: 50}
    assert pool.join(second) == {second: 25}
    pool.arrived(first, 50)
    assert pool.short(first, 60, 0) == {}
    assert pool.short(second, 70, 25) == {}
    assert pool.force(second) == {second: 70}, "though the other was short before it"
    pool.leave("a")
    assert not pool.has(first)
    assert not pool.has(second)
    assert pool.free == 50


@given(st.integers(0, 2**32), st.integers(50, 5000))
def test_never_more_than_the_total_and_one_message_and_never_stuck(seed, total):
    rng = random.Random(seed)
    pool = CreditPool(total)
    names = [A, B, C]
    credit = dict.fromkeys(names, 0)
    queues = {name: [rng.randint(1, total) for _ in range(rng.randint(0, 15))] for name in names}
    short = set()
    held: list[Any] = []

    def grant(grants):
        for name, amount in grants.items():
            credit[name] += amount
            short.discard(name)

    for name in names:
        grant(pool.join(name))
    forced = False
    while any(queues.values()) or held:
        progressed = False
        for name in rng.sample(names, 3):
            if not queues[name]:
                continue
            if queues[name][0] <= credit[name]:
                size = queues[name].pop(0)
                credit[name] -= size
                pool.arrived(name, size)
                held.append((name, size))
                progressed = True
            elif name not in short:
                short.add(name)
                returned, credit[name] = credit[name], 0
                grant(pool.short(name, queues[name][0], returned))
                progressed = True
        assert sum(size for _, size in held) + sum(credit.values()) <= total + (total if forced else 0)
        if held and (not progressed or rng.random() < 0.5):
            name, size = held.pop(0)
            grant(pool.used(name, size))
            progressed = True
        if not progressed:
            grants = pool.force(None)
            assert grants, "everybody waits for everybody"
            forced = True
            grant(grants)
    assert pool.held == 0


def test_what_is_dropped_as_it_comes_needs_no_room():
    pool = CreditPool(10)
    pool.join(("a", 0))
    pool.arrived(("a", 0), 10)
    assert pool.short(("a", 0), 6, 0) == {}
    assert pool.short(("a", 0), 6, 0, dropped=True) == {("a", 0): 11}
