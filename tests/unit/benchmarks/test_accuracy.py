import contextlib
import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks import accuracy, accuracy_caching, plot
from benchmarks.accuracy import GUARANTEES, QUICK, Samples, Training, compare, difference, make_pictures, summary

import millrace as mr

TRAINING = Training([2.5, 1.25], "ab", 60.0, elements=512, lost=3, repeated=2, kills=1, at_work=1, seconds=0.5)


def test_trainings_are_compared_bit_for_bit():
    assert difference(TRAINING, dataclasses.replace(TRAINING, losses=[2.5, 1.25], seconds=9.0)) == ""
    other = dataclasses.replace(TRAINING, losses=[2.5, math.nextafter(1.25, 2)])
    assert difference(TRAINING, other) == "1 losses differ, first that of step 1: 1.25, 1.2500000000000002"
    assert difference(TRAINING, dataclasses.replace(TRAINING, losses=[2.5])) == "2 steps and 1"
    assert difference(TRAINING, dataclasses.replace(TRAINING, weights="cd")) == "the final weights differ"


def test_samples_by_number_are_those_that_come_in_turn(tmp_path: Path):
    make_pictures(str(tmp_path))
    shards = [f"{tmp_path}/train-000.tar"]
    samples = Samples(shards)
    assert len(samples) == 512
    assert [samples[number] for number in range(512)] == list(mr.Dataset.from_webdataset(shards))


class Lesson:
    """Trains in no time, each guarantee a point worse than the one before, seeds alike but for their level."""

    size = QUICK

    def train(self, seed: int, guarantee: accuracy.Guarantee, service: None) -> Training:
        return dataclasses.replace(TRAINING, accuracy=60.0 + seed - GUARANTEES.index(guarantee))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    monkeypatch.setattr(mr, "LocalService", lambda **_: contextlib.nullcontext())
    reported: list[int] = []
    found: list[dict] = []

    def report(so_far):
        reported.append(len(so_far))
        found[:] = so_far

    compare(Lesson(), GUARANTEES, 2, report)  # type: ignore[arg-type]  # what a lesson is like, and no more
    assert reported == list(range(1, 9))
    return found


def test_each_seed_meets_each_guarantee(rows: list[dict]):
    names = [guarantee.name for guarantee in GUARANTEES]
    assert [(row["seed"], row["guarantee"]) for row in rows] == [(seed, name) for seed in (0, 1) for name in names]
    assert rows[0]["steps"] == 2
    assert "losses" not in rows[0]


def test_differences_are_paired_by_seed(rows: list[dict]):
    found = summary(rows)
    assert list(found) == [guarantee.name for guarantee in GUARANTEES]
    mean, reach = found["at most once"]["accuracy"]
    assert mean == 59.5
    assert reach == pytest.approx(12.706 * 0.5, abs=1e-3)
    assert found["at most once"]["against"] == (-1.0, 0.0)
    assert found["exactly once"]["against"] == (0.0, 0.0)
    assert found["at most once"]["lost"] == 3


def test_one_training_says_nothing_about_the_spread(rows: list[dict]):
    assert list(summary(rows[:6])) == ["exactly once", "at most once"]


def test_the_page_has_the_table(rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    report = {
        "command": "python -m benchmarks.accuracy",
        "machine": SimpleNamespace(),
        "size": dataclasses.asdict(QUICK),
        "elements": 512,
        "identical": {"steps": 16, "kills": 2, "at_work": 1, "seconds": 9.0, "difference": ""},
        "results": summary(rows),
    }
    monkeypatch.setattr(plot, "_machine", lambda _: "a machine")
    text = plot.accuracy_table(report)
    assert "| exactly once | 60.5 ± 6.4 |  |  | 512 | 3 | 2 | 2 | 1.0 |" in text
    assert "| at most once | 59.5 ± 6.4 | -1.0 ± 0.0 | 0 |" in text
    assert "the same, bit for bit" in text
    without = plot.accuracy_table({**report, "results": {}})
    assert "have not been run yet" in without
    assert "|" not in without
    assert "<!-- accuracy -->" in Path(plot.GUARANTEES).read_text()


def test_a_cache_that_freezes_is_told_from_one_that_does_not():
    pictures = {"no cache": 1020, "before": 1018, "behind": 512}
    results = {name: {"pictures": float(count)} for name, count in pictures.items()}
    assert accuracy_caching.frozen(results, 512) == ["behind"]


def test_the_page_has_the_table_of_caches(rows: list[dict], monkeypatch: pytest.MonkeyPatch):
    for row in rows:
        row |= {"pictures": 500, "kept": 512}
    report = {
        "command": "python -m benchmarks.accuracy_caching",
        "size": dataclasses.asdict(QUICK),
        "elements": 512,
        "results": summary(rows),
    }
    monkeypatch.setattr(plot, "_machine", lambda _: "a machine")
    text = plot.accuracy_caching_table(report)
    assert "| at most once | 59.5 ± 6.4 | -1.0 ± 0.0 | 0 | 500 | 512 |" in text
    assert "<!-- accuracy_caching -->" in Path(plot.GUARANTEES).read_text()
