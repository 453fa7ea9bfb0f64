"""Models of the papers' experiments."""

import random
from typing import Any

import pytest
from benchmarks.papers import (
    drawings,
    eviction,
    figure6,
    figure8_model,
    hungriest,
    mode_change,
    one_link,
    scale_out,
    simulated_scaling,
    small_cache,
)

from millrace.simulation.scaling_workloads import Workload


def test_at_every_t_the_mode_is_the_fastest_or_within_3_percent_and_all_three_appear():
    rows = figure8_model.measure(step_ms=1)["results"]
    assert len(rows) == 601
    assert {row["sleep_s"]: row["of_fastest"] for row in rows if row["of_fastest"] > 1.03} == {}
    assert list(dict.fromkeys(row["chosen"] for row in rows)) == ["source cache", "compute", "full cache"]


def test_the_curves_cross_where_the_paper_s_do():
    at = figure8_model.takes
    assert at(0.349)["source cache"] < at(0.349)["compute"]
    assert at(0.351)["source cache"] == at(0.351)["compute"] < at(0.351)["full cache"]
    assert at(0.400)["full cache"] < at(0.400)["compute"]


def test_the_sum_would_never_compute_and_cost_more_than_half_as_much_again():
    rows = figure8_model.measure(step_ms=10)["results"]
    assert "compute" not in {row["chosen_by_sum"] for row in rows}
    assert max(row["sum_of_fastest"] for row in rows) > 1.5


def test_at_every_size_nearly_as_much_is_saved_as_could_be_and_more_than_by_lru():
    for rows in eviction.measure()["results"].values():
        for ours, recent, ideal in zip(*(rows[name]["saved"] for name in ("millrace", "LRU", "ideal")), strict=True):
            assert ours >= 0.95 * ideal
            assert ours >= recent


def test_the_knee_is_the_fewest_workers_with_nearly_the_least_batch_time():
    training = figure6.MODELS[0]  # 40 ms of its own, 75 ms of reading and 75 ms of work in a worker
    assert figure6.knee({workers: max(training.own_s, 0.150 / workers) for workers in range(1, 9)}) == 4
    assert figure6.knee({workers: max(training.own_s, 0.075 / workers) for workers in range(1, 9)}) == 2


def test_the_papers_dollars_follow_from_its_rates():
    found = scale_out.the_papers()
    assert found == pytest.approx({"colocated": 80.2, "training": 31.2, "service": 9.4}, abs=0.05)


SWEPT = {1: 0.48, 2: 0.235, 8: 0.06, 24: 0.02, 32: 0.02}


def swept():
    chosen = {name: {"workers": 24, "batch_s": 0.02, "why": "", "timeline": []} for name in ("auto", "cheapest")}
    known = {"ideal_s": 0.02, "colocated_s": 0.235, **chosen}
    return known, scale_out.found_in("M1", SWEPT, known)


def test_the_papers_factor_has_a_table_of_its_own_and_is_to_come_near_the_ideal():
    training = scale_out.TRAININGS[1]._replace(needed=111)
    assert training.model.read_s + training.model.work_s == pytest.approx(111 * scale_out.OWN_S)
    found = {"ideal_s": 0.02, "colocated_s": 2.22, "auto": {"workers": 111, "batch_s": 0.0205}}
    found["cheapest"] = {"workers": 90, "batch_s": 0.025}
    (aim,) = scale_out.full_aims("M2", found)
    assert (aim["value"], aim["met"]) == (pytest.approx(0.9756, abs=1e-4), True)
    assert not scale_out.full_aims("M2", {**found, "auto": {"workers": 90, "batch_s": 0.025}})[0]["met"]
    rows = scale_out._rows(training, found)
    assert [row[:3] for row in rows] == [["M2, auto", "111", "108.29"], ["M2, cheapest", "90", "88.80"]]


def test_a_sweep_tells_where_it_breaks_even_and_what_too_many_workers_cost():
    _, found = swept()
    assert (found["break-even"], found["knee"]) == (2, 24)
    assert found["cost"]["curve"][32] > found["cost"]["curve"][24]
    assert found["cost"]["colocated"] / found["cost"]["curve"][24] == pytest.approx(11.75 * 4.5 / (4.5 + 25 * 0.08))
    slow = {1: 0.5}
    assert scale_out.found_in("M1", slow, swept()[0])["break-even"] is None


def test_a_sweep_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    lines = drawings.scale_out({"question": "What?", "sweep": swept()[1]}, str(tmp_path))
    assert lines == ["![What?](performance/papers.scale_out-workers.svg)"]
    assert (tmp_path / "papers.scale_out-workers.svg").read_text().count("workers=") >= 2


def test_going_on_after_a_change_of_mode_is_compared_over_the_same_elements():
    job = Workload("compute", own_s=0.01, work_s=0.1)
    had = mode_change.settled(job, random.Random(3))
    on, again = (mode_change.after(job, workers, 2_000, random.Random(3)) for workers in (had, 1))
    assert had == job.least() == 10
    assert on.seconds == pytest.approx(2_000 * job.batch_s(had), rel=0.05)  # nothing has changed, so nothing is tried
    assert again.seconds > 1.2 * on.seconds
    found = mode_change.measure(jobs=20)
    assert min(ratios["cost"] for ratios in found["rounds"][0].values()) > 0.97  # twenty jobs tell no more than that
    assert min(ratios["time"] for ratios in found["rounds"][0].values()) >= 1


def test_a_link_that_carries_more_than_one_copy_misses_the_aim():
    def aims_met(copies: float, share: float, bare: float) -> list[bool]:
        found = {"empty cache": {"copies": copies, "of_one_copy": share}, "no cache": {"copies": bare}}
        return [row["met"] for row in one_link.aims(found)]

    assert aims_met(1.01, 0.93, 7.1) == [True, True, True]
    assert aims_met(1.03, 0.93, 7.1) == [False, True, True]
    assert aims_met(1.01, 0.8, 7.1) == [True, False, True]
    assert aims_met(1.01, 0.93, 1.0) == [True, True, False], "then the link counted nothing"


def test_who_gets_room_misses_the_aim_if_the_hungriest_has_none_or_others_are_served_first():
    size = 100 * hungriest.OBJECT_BYTES

    def case(hungry: float, room: float, given: str = "none") -> dict[str, Any]:
        speeds = {"hungry": hungry, "moderate": 80.0, "sated": 20.0}
        rooms = {"hungry": {"room": given}, "moderate": {"room": "none"}}
        trainings = {name: {"objects_s": each} for name, each in speeds.items()}
        return {"trainings": trainings, "rooms": rooms, "cache_bytes": int(room * size)}

    def aims_met(hungry: float, given: str) -> list[bool]:
        small, full = case(150.0, 0.4), case(750.0, 4.0, "full")
        found = {"nothing": case(150.0, 0.0), "13%": small, "45%": case(hungry, 1.3, given), "90%": full, "all": full}
        return [row["met"] for row in hungriest.aims(found, size)]

    assert aims_met(750.0, "full") == [True] * 5
    assert aims_met(600.0, "full") == [True, False, True, True, True], "too slow"
    assert aims_met(150.0, "none") == [True, False, False, True, True]


def test_a_small_cache_misses_the_aim_if_it_slows_jobs_down_or_keeps_more_than_two_chunks():
    def aims_met(small: float, most_kept: int) -> list[bool]:
        cases = {"all": {"objects_s": 400.0}, "a tenth": {"objects_s": small, "most_kept": most_kept}}
        return [row["met"] for row in small_cache.aims({"equal speeds": cases})]

    assert aims_met(365.0, 2) == [True, True]
    assert aims_met(355.0, 2) == [False, True]
    assert aims_met(400.0, 3) == [True, False]
    assert aims_met(400.0, 0) == [True, False], "then nothing was looked at"


def test_simulated_jobs_are_told_apart_by_what_they_need():
    found = simulated_scaling.measure(jobs=40)
    results = found["results"]
    for kind in results["all jobs"]:
        few, many = (results[part][kind]["jobs"] for part in simulated_scaling.PARTS[1:])
        assert few + many == 40
        assert few > 0 < many
    assert results["more than 33"]["cachew"]["right"] < results["up to 33 workers"]["cachew"]["right"]
    missed = simulated_scaling.aims(
        {part: {"millrace": {"right": 0.97}, "cheapest": {"right": 0.99}} for part in ("one", "two")}
    )
    assert [row["met"] for row in missed] == [False, True] * 2
