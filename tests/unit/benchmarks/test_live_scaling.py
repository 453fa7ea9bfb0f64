"""What is made of the rates that policies reach."""

import pytest
from benchmarks.papers.drawings import live_scaling
from benchmarks.papers.live_scaling import aims, knee, reached_s, table


def test_curves_and_where_policies_ended_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    fixed = {str(workers): {"elements": 40.0 * workers} for workers in (1, 2)}
    policies = {name: {"workers": 2, "elements": 79.0} for name in ("millrace", "Kubernetes, from 1")}
    report = {"question": "Which?", "works": {"waits": {"fixed": fixed, "policies": policies}}}
    assert live_scaling(report, str(tmp_path)) == ["![Which?](performance/papers.live_scaling-rates.svg)"]
    assert "an element waits" in (tmp_path / "papers.live_scaling-rates.svg").read_text()


def test_the_knee_is_the_fewest_workers_that_are_nearly_as_good_as_the_best():
    assert knee({1: 40.0, 2: 80.0, 3: 98.0, 4: 100.0, 5: 99.0}) == 3
    assert knee({1: 100.0, 2: 99.0}) == 1


@pytest.mark.parametrize(
    ("workers", "elements", "met"),
    [(3, 98.0, [True, True]), (3, 90.0, [False, True]), (5, 98.0, [True, False]), (4, 95.0, [True, True])],
)
def test_an_aim_is_missed_by_too_slow_or_too_many(workers, elements, met):
    ours = {"workers": workers, "elements": elements, "cores": 0.5, "reached_s": 7.0, "settled_s": 12.0}
    found = {"computes": {"knee": 3, "best": 100.0, "policies": {"millrace": ours}}}
    assert [each["met"] for each in aims(found)] == met
    assert table(found)[1] == ["computes", "3", "millrace", str(workers), f"{elements / 100:.2f}", "0.50", "7", "12"]


def test_a_rate_is_reached_where_two_looks_in_a_row_have_it():
    looks = [{"seconds": 2.0 * place, "elements": rate} for place, rate in enumerate([40.0, 99.0, 60.0, 96.0, 97.0])]
    assert reached_s(looks, 95.0) == 6.0
    assert reached_s(looks, 98.0) is None
    assert reached_s([], 95.0) is None
