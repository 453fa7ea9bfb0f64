"""Owners of keys: fair, the same for everybody, and moved as little as can be."""

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from millrace.planning.rendezvous import SLOTS, owners, slot_of

NAMES = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=6, unique=True)


@given(NAMES, st.randoms())
def test_the_order_in_which_servers_are_named_does_not_matter(names: list[str], rng):
    shuffled = rng.sample(names, len(names))
    assert [names[at] for at in owners(names)[:200]] == [shuffled[at] for at in owners(shuffled)[:200]]


@given(NAMES, st.text(min_size=1, max_size=20))
def test_a_server_that_comes_takes_its_own_and_moves_nothing_else(names: list[str], newcomer: str):
    if newcomer in names:
        return
    before, after = owners(names), owners([*names, newcomer])
    moved = before != after
    assert (after[moved] == len(names)).all()


def test_each_of_a_hundred_servers_has_about_its_share():
    counts = np.bincount(owners([f"10.0.0.{at}:7070" for at in range(100)]), minlength=100)
    assert counts.sum() == SLOTS
    assert counts.min() / (SLOTS / 100) > 0.85
    assert counts.max() / (SLOTS / 100) < 1.15


def test_digests_fill_all_slots_alike():
    slots = [slot_of(hashlib.sha256(str(at).encode()).digest()) for at in range(20_000)]
    assert 0 <= min(slots) < 100
    assert SLOTS - 100 < max(slots) < SLOTS
