"""Where Cachew's rules end over looks that were measured, and what is made of it."""

import random

import pytest
from benchmarks.papers.drawings import thresholds
from benchmarks.papers.thresholds import aims, found_in, searched, table


def needing(workers: int, most: int, noise: float = 0.0) -> dict[int, list[float]]:
    """Looks at a training that so many workers keep busy."""
    rng = random.Random(1)
    return {
        number: [max(1 / workers, 1 / number) * (1 + rng.gauss(0, noise)) for _ in range(20)]
        for number in range(1, most + 1)
    }


def test_without_noise_a_search_ends_at_the_knee_unless_the_last_workers_bring_less_than_the_threshold():
    rng = random.Random(0)
    assert [searched(needing(4, 8), threshold, rng) for threshold in (0.01, 0.11)] == [4, 4]
    assert searched(needing(14, 16), 0.01, rng) == 14
    assert searched(needing(14, 16), 0.11, rng) == 9  # the tenth saves a tenth
    assert searched(needing(20, 8), 0.01, rng) == 8  # no more can be had


def test_noise_ends_searches_early_and_all_is_said():
    quiet, noisy = found_in(needing(14, 16)), found_in(needing(14, 16, noise=0.05))
    assert quiet["knee"] == 14
    assert quiet["decisions"]["1%"]["deviation"] == 0 < noisy["decisions"]["1%"]["deviation"]
    assert sum(noisy["decisions"]["1%"]["ends"].values()) == 1000
    found = {"few workers": found_in(needing(4, 8)), "many workers": noisy}
    assert [row["met"] for row in aims(found)] == [True, True, True]
    assert [row["met"] for row in aims({"few workers": noisy, "many workers": found_in(needing(4, 8))})] == [False] * 3
    assert table(found)[1] == ["few workers", "4", "1%", "4.0", "0.0", "0%"]


def test_ends_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    trainings = {"few workers": found_in(needing(4, 8))}
    lines = thresholds({"question": "How many?", "trainings": trainings}, str(tmp_path))
    assert lines == ["![How many?](performance/papers.thresholds-ends.svg)"]
