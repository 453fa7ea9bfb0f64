"""Tests of two samples against known values, and the aims of the experiment that uses them."""

import numpy as np
import pytest
from benchmarks.papers import drawings, strangers
from benchmarks.two_samples import kolmogorov_smirnov, least_shift, mann_whitney


def drawn(seed: int, count: int = 400, shift: float = 0.0):
    return np.random.default_rng(seed).lognormal(5, 0.3, count) + shift


def test_p_values_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for one, other in ((drawn(0), drawn(1)), (drawn(2), drawn(3, 300, 4.0)), (drawn(4) // 20, drawn(5, 900) // 20)):
        known = stats.mannwhitneyu(one, other, use_continuity=False, method="asymptotic").pvalue
        assert mann_whitney(one, other) == pytest.approx(known, rel=1e-9)
        known = stats.ks_2samp(one, other, method="asymp").pvalue
        assert kolmogorov_smirnov(one, other) == pytest.approx(known, rel=0.15)


def test_alike_samples_are_seldom_told_apart_and_shifted_ones_are():
    for test in (mann_whitney, kolmogorov_smirnov):
        found = [test(drawn(2 * seed), drawn(2 * seed + 1)) for seed in range(200)]
        assert 2 <= sum(p < 0.05 for p in found) <= 20
        assert test(drawn(0), drawn(1, shift=15.0)) < 0.001
        assert test(drawn(0), drawn(0)) == 1.0


def test_a_change_of_spread_alone_is_seen_by_one_of_the_two():
    one, other = drawn(1, 2000), drawn(2, 2000)
    wider = np.median(other) + 1.5 * (other - np.median(other))
    assert kolmogorov_smirnov(one, wider) < 1e-6


def test_the_least_shift_is_where_a_p_value_falls_below_the_level():
    one, other = drawn(1), drawn(2)
    shift = least_shift(one, other, 0.01)
    assert mann_whitney(one + shift, other) < 0.01
    assert mann_whitney(one + 0.95 * shift, other) >= 0.01


def looks(shift: float = 0.0, own: float = 30.0, leak: float = 30.0):
    times = {case.name: 1e3 * drawn(number, 1000) for number, case in enumerate(strangers.CASES)}
    times[strangers.OVERHEARD] = times[strangers.OVERHEARD] + 1e3 * shift
    times[strangers.OWN] = times[strangers.OWN] + 1e3 * own
    times[strangers.HALF_PLANTED] = times[strangers.HALF_PLANTED] - 1e3 * leak
    return times


def missed(rows, unlike: int = 0) -> list[str]:
    return [row["aim"].partition(":")[0] for row in strangers.aims(rows, unlike) if not row["met"]]


def test_times_that_tell_something_are_a_miss_and_so_is_a_control_that_tells_nothing():
    rows = strangers.compare(looks())
    assert missed(rows) == []
    assert missed(rows, unlike=1) == ["answers that tell something"]
    seen_from = {row["case"]: row["seen_from_us"] for row in rows if "seen_from_us" in row}
    assert missed(strangers.compare(looks(shift=2 * seen_from[strangers.OVERHEARD]))) == [strangers.OVERHEARD]
    assert missed(strangers.compare(looks(own=0.0))) == [strangers.OWN]
    assert missed(strangers.compare(looks(leak=0.0))) == [strangers.HALF_PLANTED]


def test_looks_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    report = {"question": "What?", "results": strangers.compare(looks())}
    assert drawings.strangers(report, str(tmp_path)) == ["![What?](performance/papers.strangers-times.svg)"]
