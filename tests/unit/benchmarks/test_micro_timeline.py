"""What the timeline of batches is made of, and what it fails for."""

import io
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from benchmarks.papers import drawings, micro_timeline
from benchmarks.papers.micro_timeline import aims, busy, stages, timed, transform

from millrace.sources.store_requests import Entry, RequestWatch
from millrace.worker import source_cache


def batches(step_s: float, waited_s: float, count: int = 40) -> list[dict[str, Any]]:
    found = []
    for number in range(count):
        got = number * (step_s + waited_s) + waited_s
        times = np.array([[got - 0.5, got - 0.3, got - 0.2, got - 0.1]] * 3)
        found.append({**stages(times), "step": [got, got + step_s], "waited": waited_s})
    return found


def test_a_batch_is_read_from_its_first_element_to_its_last():
    found = stages(np.array([[1.0, 2.0, 3.0, 3.5], [0.5, 1.5, 3.5, 4.5]]))
    assert found == {
        "read": [0.5, 2.0],
        "read of one": 1.0,
        "transform": [3.0, 4.5],
        "transform of one": 0.75,
    }


def test_the_share_of_steps_is_that_of_all_time_but_for_the_begin():
    assert busy(batches(0.4, 0.1)) == pytest.approx(0.8)
    late = batches(0.4, 0.0)
    late[0]["waited"] = 9.0
    assert busy(late) == pytest.approx(1.0)


def test_waiting_with_hits_no_waiting_with_misses_or_reads_that_are_neither_are_misses():
    def missed(hits: float, misses: float, found: float = 1.0, none: float = 0.0) -> list[bool]:
        results = {"hits": {"busy": hits, "hits": found}, "misses": {"busy": misses, "hits": none}}
        return [not row["met"] for row in aims(results)]

    assert missed(0.98, 0.45) == [False] * 4
    assert missed(0.9, 0.45) == [True, False, False, False]
    assert missed(0.98, 0.9) == [False, True, False, False]
    assert missed(0.98, 0.45, 0.9) == [False, False, True, False]
    assert missed(0.98, 0.45, 1.0, 0.2) == [False, False, False, True]


@pytest.fixture
def noted() -> Iterator[Any]:
    """A tier whose reads are noted, of entries that are there."""
    yield timed(lambda _, fetch: fetch)
    delattr(source_cache, micro_timeline._TIMES)


def test_a_picture_says_when_it_was_read_and_transformed(noted: Any):
    image = pytest.importorskip("PIL.Image")
    made = io.BytesIO()
    image.fromarray(np.zeros((300, 400, 3), np.uint8)).save(made, "jpeg")
    cache = cast(source_cache.SourceCache, None)
    read = noted(cache, lambda entry, _: made.getvalue())
    before = time.monotonic()
    data = read(Entry("s3://bucket/1.jpg"), cast(RequestWatch, SimpleNamespace()))
    found = transform({"path": "s3://bucket/1.jpg", "bytes": data}, np.random.default_rng(0))
    assert found["image"].shape == (224, 224, 3)
    moments = [before, *found["times"], time.monotonic()]
    assert moments == sorted(moments)


def test_it_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    results = {case: {"busy": 0.5, "batches": batches(0.4, 0.4)} for case in micro_timeline.CASES}
    lines = drawings.micro_timeline({"question": "What?", "results": results}, str(tmp_path))
    assert lines == ["![What?](performance/papers.micro_timeline-batches.svg)"]
