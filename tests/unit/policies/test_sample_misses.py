"""What a cache of samples misses under shuffles that are drawn anew."""

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.sample_misses import fetched_samples


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


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75, 1.0])
def test_it_is_what_a_cache_does_that_is_played_sample_by_sample(hosts, share):
    samples = 12_000
    expected = fetched_samples(samples, hosts, share * samples, 4)
    for ours, theirs in zip(expected, played(samples, hosts, int(share * samples), 4), strict=True):
        assert ours == pytest.approx(theirs, abs=0.015 * samples)


def test_two_thirds_miss_on_three_hosts_with_room_for_everything():
    """DELI, V-C: 66 % in the second epoch, and fewer in each one after it."""
    assert fetched_samples(900, 3, 900, 4) == pytest.approx([900, 600, 400, 900 * 8 / 27], rel=1e-3)


def test_nine_tenths_miss_with_room_for_three_quarters_of_a_part():
    """DELI, V-C: "limiting the cache size to even 75 % of the data partitioned to a node results in about 90 %"."""
    assert fetched_samples(60_000, 3, 15_000, 2)[1] / 60_000 == pytest.approx(0.9, abs=0.015)


def test_a_cache_that_holds_everything_fetches_it_once():
    assert fetched_samples(1000, 1, 1000, 3, ahead=500) == [1000, 0, 0]
    assert fetched_samples(1000, 1, 0, 3) == [1000, 1000, 1000]
    assert fetched_samples(0, 4, 10, 2) == [0, 0]


@given(st.integers(1, 10_000), st.integers(1, 16), st.floats(0, 1), st.floats(0, 1))
def test_prefetching_makes_room_for_what_comes_and_never_fetches_twice(samples, hosts, share, ahead):
    room = share * samples
    plain, early = (fetched_samples(samples, hosts, room, 3, extra) for extra in (0.0, ahead * room / 2))
    for few, many in zip(plain, early, strict=True):
        assert 0 <= few <= many * (1 + 1e-6) + 1e-3
        assert many <= samples * (1 + 1e-6)
