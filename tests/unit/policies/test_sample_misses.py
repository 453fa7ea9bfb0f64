"""What a cache of samples misses under shuffles that are drawn anew."""

import heapq
import itertools
import random
import statistics
from collections import OrderedDict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.sample_misses import fetched_samples, prefetched_samples
from millrace.policies.sample_prefetch import is_due, prefetch_sizes, worth_asking


def played(samples: int, hosts: int, room: int, epochs: int, seed: int = 0) -> list[int]:
    """Fetches of caches that are played sample by sample: first in, first out, no prefetching."""
    rng = random.Random(seed)
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(hosts)]
    found = []
    for _ in range(epochs):
        order = rng.sample(range(samples), samples)
        fetched = 0
        for host, cache in enumerate(caches):
            for sample in order[host::hosts]:
                if sample not in cache:
                    fetched += 1
                    cache[sample] = None
                    if len(cache) > room:
                        cache.popitem(last=False)
        found.append(fetched)
    return found


class Host:
    """A sampler that asks ahead, its fetches, its cache and a loop that waits for them, step by step.

    Args:
        room: samples that the cache can hold.
        at_once: fetches that go on at the same time.
        rng: draws which of these ends first.
    """

    def __init__(self, room: int, at_once: int, rng: random.Random) -> None:
        self.room, self.at_once, self.rng = room, at_once, rng
        self.cache: dict[int, int] = {}  # samples, and their turns to go
        self.turns: list[tuple[int, int]] = []  # of them a heap, with turns that were exchanged for later ones
        self.turn = itertools.count()
        self.asked: deque[int] = deque()
        self.under_way: list[tuple[int, int]] = []
        self.fetched = 0

    def epoch(self, order: list[int]) -> None:
        """Read samples in this order, one at a time."""
        fetch_size, threshold = prefetch_sizes(self.room).value
        drawn = 0
        for number, sample in enumerate(order):
            while drawn < len(order) and (drawn == number or is_due(drawn - number, 0, threshold)):
                coming = order[drawn : drawn + fetch_size]
                self.asked.extend(coming[: worth_asking(len(coming), drawn - number, self.room)])
                drawn += len(coming)
            while self.asked or self.under_way:
                self._step()
            if sample not in self.cache:  # the loop came first
                self.fetched += 1
                self._keep(sample, next(self.turn))
            self._look_up()
        self.asked.clear()
        while self.under_way:
            self._step()

    def _look_up(self) -> None:
        """Begin as many fetches as go on at the same time."""
        while self.asked and len(self.under_way) < self.at_once:
            sample, turn = self.asked.popleft(), next(self.turn)
            if sample not in self.cache:
                self.fetched += 1
                self.under_way.append((sample, turn))
            else:
                self._give(sample, turn)

    def _step(self) -> None:
        """End one fetch."""
        self._look_up()
        if self.under_way:
            self._keep(*self.under_way.pop(self.rng.randrange(len(self.under_way))))
        self._look_up()

    def _keep(self, sample: int, turn: int) -> None:
        self._give(sample, turn)
        while len(self.cache) > self.room:
            turn, oldest = heapq.heappop(self.turns)
            if self.cache.get(oldest) == turn:
                del self.cache[oldest]

    def _give(self, sample: int, turn: int) -> None:
        self.cache[sample] = turn
        heapq.heappush(self.turns, (turn, sample))


def played_ahead(samples: int, hosts: int, room: int, epochs: int, at_once: int, seed: int) -> list[int]:
    """Fetches of hosts that are played sample by sample, with prefetching."""
    rng = random.Random(seed)
    all_hosts, found = [Host(room, at_once, rng) for _ in range(hosts)], [0]
    for _ in range(epochs):
        order = rng.sample(range(samples), samples)
        for number, host in enumerate(all_hosts):
            host.epoch(order[number::hosts])
        found.append(sum(host.fetched for host in all_hosts))
    return [now - before for before, now in itertools.pairwise(found)]


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 1.0])
def test_it_is_what_a_cache_does_that_is_played_sample_by_sample(hosts, share):
    samples = 12_000
    expected = fetched_samples(samples, hosts, share * samples, 4)
    for ours, theirs in zip(expected, played(samples, hosts, int(share * samples), 4), strict=True):
        assert ours == pytest.approx(theirs, abs=0.015 * samples)


@pytest.mark.parametrize("at_once", [1, 4, 16])
@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
def test_prefetching_is_what_many_plays_of_it_come_to(share, hosts, at_once):
    samples, times = 600, 20
    room = int(share * samples)
    expected = prefetched_samples(samples, hosts, room, 3, at_once)
    plays = [played_ahead(samples, hosts, room, 3, at_once, seed=seed) for seed in range(times)]
    for ours, theirs in zip(expected, zip(*plays, strict=True), strict=True):
        assert ours == pytest.approx(statistics.mean(theirs), abs=0.015 * samples)


def test_half_of_the_data_in_a_cache_saves_what_its_logarithm_says():
    """Half the data, and no fetch takes time: R - (N - R) ln(N / (N - R)) samples are there in each further epoch."""
    assert prefetched_samples(2000, 1, 1000, 3, 1) == pytest.approx([2000, 1693.15, 1693.15], abs=0.01)
    assert prefetched_samples(2000, 1, 1000, 2, 16)[1] == pytest.approx(1683, abs=1)


def test_two_thirds_miss_on_three_hosts_with_room_for_everything():
    """DELI, V-C: 66 % in the second epoch, and fewer in each one after it."""
    assert fetched_samples(900, 3, 900, 4) == pytest.approx([900, 600, 400, 900 * 8 / 27], rel=1e-3)
    assert prefetched_samples(900, 3, 900, 4, 16) == pytest.approx([900, 600, 400, 900 * 8 / 27], rel=1e-3)


def test_nine_tenths_miss_with_room_for_three_quarters_of_a_part():
    """DELI, V-C: "limiting the cache size to even 75 % of the data partitioned to a node results in about 90 %"."""
    assert fetched_samples(60_000, 3, 15_000, 2)[1] / 60_000 == pytest.approx(0.9, abs=0.015)


def test_a_cache_that_holds_everything_fetches_it_once():
    assert fetched_samples(1000, 1, 1000, 3) == prefetched_samples(1000, 1, 1000, 3, 16) == [1000, 0, 0]
    assert fetched_samples(1000, 1, 0, 3) == prefetched_samples(1000, 1, 0, 3, 16) == [1000, 1000, 1000]
    assert fetched_samples(0, 4, 10, 2) == prefetched_samples(0, 4, 10, 2, 16) == [0, 0]


@given(st.integers(1, 10_000), st.integers(1, 16), st.floats(0, 1.2), st.integers(1, 256))
def test_nothing_is_fetched_twice_in_an_epoch_and_more_at_once_never_costs_more(samples, hosts, share, at_once):
    room = share * samples
    one, many = (prefetched_samples(samples, hosts, room, 3, count) for count in (1, at_once))
    for few, most in zip(many, one, strict=True):
        assert -1e-3 <= few <= samples * (1 + 1e-6)
        assert sum(many) <= sum(one) * (1 + 1e-6) + 1e-3
        assert most <= samples * (1 + 1e-6)
