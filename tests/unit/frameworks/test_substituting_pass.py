"""Cached samples that stand in for others: each index once, whatever a cache holds and lets go of."""

import itertools
import pickle
import random
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.frameworks.torch import substituting_pass
from millrace.frameworks.torch.substituting_pass import SubstitutingPass
from millrace.policies import sample_substitution
from millrace.policies.sample_prefetch import prefetch_sizes, worth_asking
from millrace.policies.sample_substitution import LOOKED_UP, choice_size


class Shelf:
    """A dataset of whose samples ``held`` are cached."""

    def __init__(self, held=()):
        self.held = set(held)
        self.looked_up = 0
        self.renewed: list[int] = []

    def holds(self, numbers):
        self.looked_up += len(numbers)
        return np.array([number in self.held for number in numbers.tolist()], bool)

    def renew(self, numbers):
        self.renewed += numbers.tolist()


class Fickle(Shelf):
    """A dataset of whose samples others are cached at every look-up: all, none or any."""

    def __init__(self, seed):
        super().__init__()
        self.rng = random.Random(seed)

    def holds(self, numbers):
        share = self.rng.choice([0.0, 0.1, 0.5, 1.0])
        return np.array([self.rng.random() < share for _ in range(len(numbers))], bool)


def passing(items, shelf, look_ahead):
    return SubstitutingPass(iter(items), lambda index: (shelf, index), look_ahead)


def batches_of(indices, size):
    return [indices[begin : begin + size] for begin in range(0, len(indices), size)]


def handed_out(coming, ask=0):
    """All that a pass hands out, where samples are asked for after each choice."""
    while coming.choose() is not None:
        if ask:
            coming.ask(ask)
            coming.note_unread(ask)
            coming.lacking(None)
        yield from coming.hand_out()


def flat(items):
    return [index for item in items for index in (item if isinstance(item, list) else [item])]


orders = st.lists(st.integers(0, 40), max_size=400)
"""Some with indices that come several times."""
looks = st.integers(0, 12)
sizes = st.sampled_from([None, 1, 3, 16, 100])
"""Of batches; None: the sampler gives single indices."""


class TestEachOnce:
    @settings(max_examples=150, deadline=None)
    @given(orders, looks, sizes, st.integers(0, 70), st.integers())
    def test_whatever_is_cached_and_goes(self, order, look_ahead, size, ask, seed):
        items = order if size is None else batches_of(order, size)
        found = list(handed_out(passing(items, Fickle(seed), look_ahead), ask))
        assert Counter(flat(found)) == Counter(order)
        if size is not None:
            assert [len(batch) for batch in found] == [len(batch) for batch in items]

    @settings(max_examples=100, deadline=None)
    @given(orders, looks, looks, sizes, st.integers(0, 70), st.integers(), st.lists(st.integers(0, 400), max_size=3))
    def test_also_if_a_run_is_left_at_any_step_and_goes_on_with_another_cache(
        self, order, look_ahead, then, size, ask, seed, stops
    ):
        items = order if size is None else batches_of(order, size)
        found, count = [], 0
        state: dict[str, Any] = {}
        for number, stop in enumerate([*stops, None]):
            coming = passing(items, Fickle(seed + number), look_ahead if number % 2 else then)
            coming.resume(count, state)
            for item in itertools.islice(handed_out(coming, ask), stop):
                found.append(item)
                count += 1
            state = pickle.loads(pickle.dumps(coming.state()))
        assert Counter(flat(found)) == Counter(order)
        assert [len(batch) for batch in found if isinstance(batch, list)] == [
            len(batch) for batch in items if isinstance(batch, list)
        ]

    def test_every_step_of_an_epoch_can_be_the_last_one_of_a_run(self):
        order = random.Random(0).sample(range(150), 150)
        for stop in range(150):
            coming = passing(order, Fickle(stop), 2)
            first = list(itertools.islice(handed_out(coming, 20), stop))
            again = passing(order, Fickle(-stop), 2)
            again.resume(stop, coming.state())
            assert sorted([*first, *handed_out(again, 20)]) == list(range(150))

    def test_batches_of_another_size_go_on_behind_a_state(self):
        order = list(range(100))
        coming = passing(batches_of(order, 8), Fickle(1), 4)
        first = list(itertools.islice(handed_out(coming), 5))
        again = passing(batches_of(order, 7), Fickle(2), 4)
        again.resume(5, coming.state())
        assert sorted(flat([*first, *handed_out(again)])) == order

    def test_a_state_takes_a_bit_for_each_sample_from_the_oldest_pending_one_on(self):
        coming = passing(range(100_000), Shelf(range(1000, 100_000)), 10)
        for _ in itertools.islice(handed_out(coming), 50_000):
            pass
        state = coming.state()
        assert state["begin"] == LOOKED_UP  # nothing was cached of the first window
        assert state["drawn"] < 52_000
        assert len(state["pending"]) == -(-(state["drawn"] - LOOKED_UP) // 8)


class TestOrder:
    @pytest.mark.parametrize("ask", [0, 30, 200])
    @pytest.mark.parametrize("held", [(), range(1000)], ids=["empty", "full"])
    @pytest.mark.parametrize("size", [None, 48])
    def test_an_empty_cache_and_a_full_one_leave_it_as_it_is(self, held, size, ask):
        order = random.Random(0).sample(range(1000), 1000)
        items = order if size is None else batches_of(order, size)
        assert list(handed_out(passing(items, Shelf(held), 10), ask)) == items

    def test_what_is_cached_comes_first_and_both_parts_in_their_own_order(self):
        order = random.Random(0).sample(range(600), 600)
        held = set(range(60))
        expected = sorted(order, key=lambda index: index not in held)
        assert list(handed_out(passing(order, Shelf(held), 10))) == expected

    def test_what_comes_into_the_cache_is_found_in_a_later_pass(self):
        shelf = Shelf()
        coming = passing(range(6400), shelf, 10)
        indices = handed_out(coming)
        assert list(itertools.islice(indices, 640)) == list(range(640))
        shelf.held = set(range(1000, 1064))  # which this pass is behind
        found = list(itertools.islice(indices, 640))
        assert set(range(1000, 1064)) <= set(found)
        assert sorted(found) == [*range(640, 1000), *range(1000, 1064), *range(1064, 1280)]

    def test_nothing_that_lacks_is_handed_out_as_long_as_something_is_cached_within_the_window(self):
        rng = random.Random(0)
        order = rng.sample(range(5000), 5000)
        held = set(rng.sample(range(5000), 500))
        coming, handed = passing(batches_of(order, 20), Shelf(held), 10), set()
        for batch in handed_out(coming):
            handed |= set(batch)
            if not held >= set(batch):
                cursor = coming._order._cursor  # of the rows before it and not left, those were looked up just now
                rows = [row for row in range(cursor) if coming._order._left[row]][-180:]
                assert not held & {coming._order._indices[row] for row in rows}

    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 10), st.sampled_from([None, 5, 40]), st.integers(0, 80), st.integers())
    def test_nothing_moves_further_forward_than_was_looked_ahead(self, look_ahead, size, ask, seed):
        order = list(range(600))
        coming = passing(order if size is None else batches_of(order, size), Fickle(seed), look_ahead)
        chosen = waiting = 0
        while (count := coming.choose()) is not None:
            chosen += count
            furthest = max(flat(coming.hand_out()))
            assert furthest < (look_ahead + 1) * chosen + waiting
            coming.ask(min(ask, look_ahead * coming.size))
            waiting = max(waiting, coming.waiting)

    @pytest.mark.parametrize("size", [None, 8])
    def test_a_sampler_without_an_end_has_no_more_pending_than_a_bound(self, monkeypatch, size):
        monkeypatch.setattr(substituting_pass, "MOST_PENDING", 500)
        endless = itertools.count() if size is None else (list(range(n, n + size)) for n in itertools.count(0, size))
        shelf = Fickle(3)
        coming = passing(endless, shelf, 10)
        found = flat(itertools.islice(handed_out(coming, 10), 10_000 // (size or 1)))
        assert len(set(found)) == len(found)
        most = 500 + (size or 1) - 1  # as batches are drawn whole
        assert max(position - number for number, position in enumerate(found)) < most + LOOKED_UP
        assert coming._order.left <= most
        assert len(coming._order._left) <= 4096

    def test_a_sample_that_is_never_cached_is_not_passed_over_for_ever(self, monkeypatch):
        monkeypatch.setattr(sample_substitution, "MOST_BEHIND", 5000)
        coming = passing(itertools.count(), Shelf(set(range(1_000_000)) - {5}), 10)
        found = list(itertools.islice(handed_out(coming), 30_000))
        assert 5000 - 10 * LOOKED_UP < found.index(5) < 5000 + 10 * LOOKED_UP
        assert len(set(found)) == 30_000
        assert len(coming._order._open) < 30_000
        assert len(coming.state()["pending"]) < 100

    def test_a_full_cache_is_looked_into_once_for_each_sample(self):
        shelf = Shelf(range(10_000))
        for _ in handed_out(passing(range(10_000), shelf, 10)):
            pass
        assert shelf.looked_up == 10_000
        assert shelf.renewed == []

    def test_what_was_chosen_goes_no_sooner_than_what_is_fetched_from_then_on(self):
        shelf = Shelf(range(0, 100, 10))
        coming = passing(batches_of(list(range(100)), 5), shelf, 10)
        assert next(handed_out(coming)) == [0, 10, 20, 30, 40]
        assert shelf.renewed == [0, 10, 20, 30, 40]


HELD, COUNT, PLAYS = 20, 120, 800


@pytest.fixture(scope="module")
def plays():
    """What is handed out of many permutations with one cache: rows of all samples, in windows of 50 of them."""
    rng = random.Random(7)
    shelf = Shelf(range(HELD))
    orders = [rng.sample(range(COUNT), COUNT) for _ in range(PLAYS)]
    return np.array([flat(handed_out(passing(batches_of(order, 5), shelf, 10))) for order in orders])


class TestShuffled:
    """What remains of a shuffled order: samples that are cached alike are in random order among themselves."""

    @pytest.mark.parametrize("cached", [True, False])
    def test_any_of_them_is_as_likely_at_any_place_among_them(self, plays, cached):
        """The bound is Chi-squared's 99.99 % point for 19 degrees of freedom."""
        among = plays[(plays < HELD) == cached].reshape(PLAYS, -1)
        for sample in (among.min(), among.max()):
            ranks = np.argwhere(among == sample)[:, 1]
            counts = np.bincount(ranks * 20 // among.shape[1], minlength=20)
            assert ((counts - PLAYS / 20) ** 2 / (PLAYS / 20)).sum() < 50.8

    def test_neighbours_are_no_more_alike_than_chance_has_it(self, plays):
        among = plays[plays >= HELD].reshape(PLAYS, -1)
        apart = np.abs(np.diff(among, axis=1)).mean()
        assert apart == pytest.approx((COUNT - HELD + 1) / 3, rel=0.02)

    def test_what_is_cached_comes_early(self, plays):
        assert np.argwhere(plays < HELD)[:, 1].mean() < COUNT / 4


class Host:
    """A cache that lets go of the oldest samples first, jobs that share it, and a store that counts what is fetched.

    Whatever is asked for is there at once; jobs take turns, a choice each.
    """

    def __init__(self, room):
        self.room = room
        self.kept = OrderedDict()
        self.fetched = self.missed = 0

    def holds(self, numbers):
        return np.array([number in self.kept for number in numbers.tolist()], bool)

    def renew(self, numbers):
        for number in numbers.tolist():
            if number in self.kept:
                self.kept.move_to_end(number)

    def fetch(self, number):
        self.fetched += 1
        self.kept[number] = None
        if len(self.kept) > self.room:
            self.kept.popitem(last=False)

    def job(self, rng, count, epochs):
        """Read all samples once in each epoch, shuffled anew."""
        for _ in range(epochs):
            coming = passing(rng.sample(range(count), count), self, 10)
            while (size := coming.choose(choice_size(self.room))) is not None:
                fetch_size, threshold = prefetch_sizes(self.room, None, None, 10).value
                if coming.scarce and coming.waiting <= threshold:
                    most = threshold + fetch_size - coming.waiting
                    coming.ask(worth_asking(most, coming.waiting + size, self.room))
                coming.note_unread(size)
                for _, numbers in coming.lacking(self.room):
                    for number in numbers:
                        self.fetch(number)
                for number in coming.hand_out():
                    if number not in self.kept:
                        self.missed += 1
                        self.fetch(number)
                yield


@pytest.mark.parametrize(("jobs", "late", "most"), [(1, 0, 0.97), (2, 0, 0.52), (4, 0, 0.30), (4, 30, 0.45)])
def test_jobs_that_share_a_cache_of_a_tenth_fetch_most_samples_once_for_all(jobs, late, most):
    """A job alone fetches all but a tenth, which the epoch before has left; four fetch a quarter each."""
    count, epochs = 20_000, 2
    host, rng = Host(count // 10), random.Random(1)
    running = [
        itertools.chain(itertools.repeat(None, late * number), host.job(rng, count, epochs)) for number in range(jobs)
    ]
    for _ in itertools.zip_longest(*running):
        pass
    assert host.fetched / (jobs * epochs * count) < most
    assert host.missed / (jobs * epochs * count) < 0.01
