"""The prefetch at the end: when it gets a thread, that it changes nothing, that it ends."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.any_pipeline import pipeline
from tests.unit.engine.test_planned_is_plain import same

from millrace.dataset import Dataset
from millrace.elements.chunk import Chunk, Origin
from millrace.engine.threads import final_prefetch
from millrace.engine.threads.final_prefetch import overlapped
from millrace.errors import ElementError
from millrace.graph.nodes import AUTOTUNE
from millrace.graph.rewrites.trailing_prefetch import Ending

BUDGET = 1 << 20


class Side:
    """A pipeline whose chunks take their time, by a clock that only it and the consumer move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
        self.now, self.times = 0.0, times
        self.threads: list[str] = []
        monkeypatch.setattr(final_prefetch, "clock", lambda: self.now)

    def chunks(self) -> Generator[Chunk, None, None]:
        for number, seconds in enumerate(self.times):
            self.now += seconds
            self.threads.append(threading.current_thread().name)
            yield Chunk([number], Origin(0, 0), range(number, number + 1))

    def consumed(self, seconds: float, ending: Ending | None = None) -> int:
        """How many chunks were computed on the consumer's thread, which takes ``seconds`` for each."""
        here = threading.current_thread().name
        found = []
        for chunk in overlapped(self.chunks(), ending or Ending(), BUDGET):
            found += chunk.elements
            self.now += seconds
        assert found == list(range(len(self.times)))
        return self.threads.count(here)


def test_a_thread_only_where_both_sides_take_their_time(monkeypatch):
    for ours, theirs in ((1e-6, 1.0), (1.0, 1e-6), (9e-4, 9e-4), (1.0, 0.0)):
        assert Side(monkeypatch, *[ours] * 30).consumed(theirs) == 30
    assert Side(monkeypatch, *[0.05] * 9).consumed(0.02) == 1
    assert Side(monkeypatch, *[0.003] * 9).consumed(0.003) == 4
    assert Side(monkeypatch, 0.009, *[1e-6] * 9).consumed(0.1) == 10


def test_at_once_where_the_user_asked_for_it(monkeypatch):
    assert Side(monkeypatch, *[0.0] * 5).consumed(0.0, Ending(2, at_once=True)) == 0


def test_ended_early_it_leaves_nothing(monkeypatch):
    for ending in (Ending(AUTOTUNE, at_once=True), Ending()):
        side = Side(monkeypatch, *[1.0] * 500)
        chunks = side.chunks()
        read = overlapped(chunks, ending, 1000)
        for _ in range(3):
            next(read)
            side.now += 1
        read.close()
        assert next(chunks, None) is None
        assert len(side.threads) < 20
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("millrace")]


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final_prefetch, "_WORTH_S", 0.0)
    monkeypatch.setattr(final_prefetch, "_SURE_S", 0.0)


@settings(max_examples=60)
@given(st.data())
@pytest.mark.usefixtures("_always")
def test_any_epoch_is_as_written(runs, data):
    dataset = pipeline(data.draw, runs).dataset.with_options(seed=data.draw(st.integers(0, 9)))
    if data.draw(st.booleans()):
        dataset = dataset.prefetch(data.draw(st.integers(1, 5)))
    with (
        dataset.__pipeline__().read_epoch(1) as ours,
        dataset.with_options(rewrites=False).__pipeline__().read_epoch(1) as plain,
    ):
        assert same(list(ours), list(plain))
    with dataset.__pipeline__().read_epoch(1) as ours:
        next(ours, None)


@pytest.mark.usefixtures("_always")
def test_what_is_left_when_an_element_fails_is_as_written():
    def inverse(element: int) -> float:
        return 1 / (50 - element)

    def until_it_fails(dataset: Dataset) -> tuple[list[Any], str]:
        found: list[Any] = []
        with pytest.raises(ElementError) as caught:
            found.extend(dataset)
        return found, str(caught.value)

    # As many elements of its chunk are lost as lie in it, in either way.
    found, said = until_it_fails(Dataset.range(100).map(inverse).batch(5))
    plain, plainly = until_it_fails(Dataset.range(100).map(inverse).batch(5).with_options(rewrites=False))
    assert said == plainly
    assert len(found) <= 10
    assert same(found[: len(plain)], plain[: len(found)])


def test_it_is_named_and_a_users_own_is_done_over_the_whole_epoch():
    base = Dataset.range(9).batch(2)
    for dataset, said in (
        (base, ["computed ahead at the end, while that gains time"]),
        (base.prefetch(3), ["computed ahead over the whole epoch rather than in each task: prefetch()"]),
        (base.prefetch(3).with_options(rewrites=False), []),
    ):
        with iter(dataset) as read:
            assert read.rewrites() == said
            assert [len(batch) for batch in read] == [2, 2, 2, 2, 1]
            assert [row.elements for row in read.measures()][:3] == [9, 5, 5][: len(read.measures())]
