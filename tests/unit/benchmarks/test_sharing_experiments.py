"""What experiments about sharing make of what they have counted."""

import math
from typing import Any

import pytest
from benchmarks.papers import drawings, figure10, one_host, shared_reads, windows
from benchmarks.papers.sharing_jobs import Epoch, Played, Reading

STEP_S = figure10.STEP_S


def reading(name: str, batches: int, step_s: float, *, ended: bool = True) -> Reading:
    return Reading(name, 100.0, [Epoch(0, [100.0 + step_s * (n + 1) for n in range(batches)], [], 0, ended)])


def test_a_job_s_rate_is_that_until_it_had_read_everything():
    assert reading("a", 10, 0.5).rate(100.0, 200.0) == 2.0
    assert reading("a", 10, 0.5).rate(103.0, 104.0) == 2.0
    assert reading("a", 10, 0.5, ended=False).rate(100.0, 200.0) == 0.1


def run(step_s: float, count: int, calls: int) -> dict[str, object]:
    played = Played([reading(str(number), 150, step_s) for number in range(count)], 0.3 * count, None)
    counted = {"calls": calls, "function_s": 1.0, "operators_s": 2.0, "bytes": 1e6, "workers_s": 5.0}
    return figure10.figures(played, counted, 1.0, 50 * STEP_S)


def test_figures_of_a_run():
    found = run(STEP_S, 2, 750)
    assert (found["batches"], found["speed"]) == (300, pytest.approx(1.0, abs=0.01))
    assert found["served_us"] == pytest.approx((5.0 - 1.0 - 2.0) / 300 * 1e6)
    assert found["read_us"] == pytest.approx(0.6 / 300 * 1e6)
    assert run(2 * STEP_S, 2, 750)["speed"] == pytest.approx(0.5, abs=0.02)


def test_what_is_shared_costs_the_same_and_what_is_not_costs_as_many_times_as_there_are_jobs():
    alone, shared, apart = run(STEP_S, 1, 750), run(STEP_S, 4, 750), run(STEP_S, 4, 3000)
    assert figure10.cost(shared, alone, 4, "calls") == 1
    assert figure10.cost(apart, alone, 4, "calls") == 4
    assert figure10.cost({**apart, "operators_s": None}, alone, 4, "operators_s") is None
    many = figure10.modelled({1: alone, 4: apart}, 64)
    assert (many["calls"], many["speed"]) == (3000 * 16, apart["speed"])
    assert figure10.cost(many, alone, 64, "calls") == 64


def test_the_experiment_fails_if_more_jobs_need_more_or_are_slower():
    alone = run(STEP_S, 1, 750)
    good = figure10.report({"A, window": {1: alone, 4: run(STEP_S, 4, 750)}})
    assert [row["met"] for row in good["aims"]] == [True] * 5
    bad = figure10.report({"A, window": {1: alone, 4: run(2 * STEP_S, 4, 800)}})
    assert [row["aim"].partition(": ")[2] for row in bad["aims"] if not row["met"]] == [
        "calls, off those of one job by",
        "speed of the slowest job, of its steps",
    ]
    assert bad["rounds"][0]["A, window"]["calls"] == pytest.approx(50 / 750)


def test_modes_are_in_the_table_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    runs = {1: run(STEP_S, 1, 750), 2: figure10.modelled({1: run(STEP_S, 1, 750)}, 2)}
    runs[2]["served_us"] = None
    found = figure10.report({"A, window": runs, "C": runs})
    assert [row[1] for row in found["table"][1:]] == ["1", "2, modelled"] * 2
    assert found["table"][2][-2] == ""
    lines = drawings.figure10({"question": "What?", **found}, str(tmp_path))
    assert lines == ["![What?](performance/papers.figure10-jobs.svg)"]
    assert not math.isnan(found["rounds"][0]["A, window"]["bytes"])


def missed(report: dict[str, Any]) -> list[str]:
    return [row["aim"] for row in report["aims"] if not row["met"]]


def test_jobs_one_after_the_other_cost_what_the_paper_says():
    kept = windows.WORKERS * windows.KEPT * windows.BATCH
    assert windows.expected(1, 2000) == 2000
    assert windows.expected(4, 2000) == 4 * 2000 - 3 * kept


def reading_of(lost: int, told: int) -> Reading:
    return Reading(f"job-{lost}", 0.0, [Epoch(0, [1.0] * (2000 // windows.BATCH - lost), [], told, True)])


def windowed(*, told: int = 7, made: int = 6800, fastest: float = 1.0) -> dict[str, Any]:
    rows = [windows.row_of(reading_of(7 * n, told * n), 2000, 1, 0) for n in range(len(windows.STEPS_S))]
    after = {"read": [2000] * 4, "made": [2000, made], "expected": windows.expected(4, 2000)}
    return windows.report({"together": [{"of alone": fastest, "jobs": rows}], "one by one": after}, 2000)


def test_the_experiment_fails_if_a_job_is_told_of_another_number_than_it_missed():
    assert missed(windowed()) == []
    assert missed(windowed(told=8)) == ["batches lost and not told of, or told of and not lost"]
    assert missed(windowed(made=8000)) == ["elements made for jobs one after the other, off the formula by"]
    assert missed(windowed(fastest=0.9)) == ["the fastest job's rate, of that alone"]
    assert windowed()["rounds"] == [{"fastest": {"of alone": 1.0}, "one after the other": {"off": 0.0}}]


def test_jobs_that_share_read_half_or_an_eighth():
    def each(size: int, seconds: float, twice: int = 0) -> dict[str, float]:
        return {"requests": 1, "elements": 1, "short": 0, "bytes": size, "seconds": seconds, "twice": twice}

    found = shared_reads.report({8: {"apart": each(800, 8.0), "window": each(100, 2.0), "lockstep": each(110, 1.0)}})
    assert missed(found) == ["8 jobs, window: I/O time less than apart", "8 jobs, lockstep: bytes less than apart"]
    assert found["rounds"][0]["8 jobs, window"] == {"bytes": 0.875, "seconds": 0.75}
    found = shared_reads.report({2: {"apart": each(2, 2.0, twice=1), "lockstep": each(1, 1.0)}})
    assert missed(found) == ["2 jobs: elements lost or doubled, apart and in lockstep"]


def test_memory_of_many_jobs_is_compared_with_that_of_one():
    speeds = {"median": 1.0, "slowest": 1.0, "fastest": 1.0}
    found = one_host.report({"window": {1: {"beyond": 100, **speeds}, 16: {"beyond": 131, **speeds}}})
    assert missed(found) == ["memory of 16 jobs, window, of one's"]
    assert found["rounds"] == [{"window": {"memory": 1.31}}]


def test_bars_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    reports = {
        drawings.windows: windowed(),
        drawings.one_host: {"results": {"window": {1: {"beyond": 100}}}},
        drawings.shared_reads: {"results": {2: {"apart": {"bytes": 2}}}},
    }
    for draw, report in reports.items():
        (line,) = draw({"question": "What?", **report}, str(tmp_path))
        assert (tmp_path / line.partition("(performance/")[2].removesuffix(")")).exists()
