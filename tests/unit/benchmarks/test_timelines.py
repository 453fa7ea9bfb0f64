"""What is made of two trainings that share, under several policies."""

from typing import Any

import pytest
from benchmarks.papers.drawings import timelines as draw
from benchmarks.papers.timelines import EPOCHS, PACES_S, PICTURES, aims, table

STEPS_S = EPOCHS * PICTURES * PACES_S["second"]


def training(*, cost: float = 100.0, seconds: float = STEPS_S, decoded: int = 0) -> dict[str, Any]:
    rows = [("profile", 1), ("put", 1), ("put", 3), ("get", 3), ("get", 1)]
    timeline = [
        {"seconds": float(at), "workers": workers, "mode": mode, "batch_s": 0.1, "epoch": 0}
        for at, (mode, workers) in enumerate(rows, 1)
    ]
    return {"seconds": seconds, "worker_s": 5.0, "cost": cost, "decoded": decoded, "timeline": timeline}


def results(**second: Any) -> dict[str, dict[str, Any]]:
    beside = {"first": training(cost=150.0), "second": training(cost=150.0)}
    return {"millrace": {"first": training(), "second": training(**second)}, "Kubernetes' rule": beside}


@pytest.mark.parametrize(
    ("second", "met"),
    [
        ({}, [True, True, True]),
        ({"cost": 201.0}, [False, True, True]),
        ({"decoded": 1}, [True, False, True]),
        ({"seconds": 1.3 * STEPS_S}, [True, True, False]),
    ],
)
def test_an_aim_is_missed_by_dear_trainings_and_by_a_second_one_that_computes_or_is_late(second, met):
    assert [each["met"] for each in aims(results(**second))] == met


def test_a_row_says_which_modes_and_numbers_of_workers_there_were_in_turn():
    assert table(results())[1][-2:] == ["profile, put, get", "1, 3, 1"]


def test_timelines_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    assert draw({"question": "Do they?", "results": results()}, str(tmp_path)) == [
        "![Do they?](performance/papers.timelines-timeline.svg)"
    ]
    assert "millrace, second training" in (tmp_path / "papers.timelines-timeline.svg").read_text()
