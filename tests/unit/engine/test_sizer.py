"""How many elements a chunk holds, for elements of all sizes and functions of all costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from millrace.dataset import Dataset
from millrace.engine.metrics import Sizer


def chunks_of(cost_s: float, nbytes: float, count: int = 30) -> list[int]:
    """Sizes of the first chunks if an element costs so much and weighs so much."""
    sizer, sizes = Sizer(), []
    for _ in range(count):
        sizes.append(sizer.size)
        sizer.learn(sizer.size, sizer.size * cost_s, sizer.size * nbytes)
    return sizes


@pytest.mark.parametrize("cost_s", [1e-8, 1e-6, 1e-4, 0.01, 10.0])
@pytest.mark.parametrize("nbytes", [1, 1 << 10, 1 << 20, 256 << 20])
def test_a_chunk_is_milliseconds_of_work_and_few_bytes(cost_s, nbytes):
    sizes = chunks_of(cost_s, nbytes)
    assert sizes[0] <= 16
    assert all(size <= 4 * before for before, size in pairwise(sizes))
    last = sizes[-1]
    assert last == 1 or (last * cost_s <= 0.01 and last * nbytes <= 4 << 20)
    # One of the limits is used up; otherwise many tiny elements would be handed over one by one.
    assert last == 8192 or (last + 1) * cost_s > 0.004 or (last + 1) * nbytes > 4 << 20


def test_cheap_elements_soon_fill_a_chunk():
    assert chunks_of(1e-8, 8)[6] == 8192


def test_a_slow_or_large_element_counts_at_once():
    assert chunks_of(1.0, 8)[1] == 1
    assert chunks_of(1e-8, 256 << 20)[1] == 1


def test_a_chunk_grows_again_when_elements_become_small():
    sizer = Sizer()
    sizer.learn(1, 1e-6, 64 << 20)
    assert sizer.size == 1
    for _ in range(60):
        sizer.learn(sizer.size, sizer.size * 1e-6, sizer.size * 8)
    assert sizer.size > 1000


def test_each_node_learns_what_its_own_elements_cost(runs):
    class Recorder(Sizer):
        learnt = 0

        def learn(self, elements: int, seconds: float, size: float) -> None:
            assert seconds >= 0
            self.learnt += elements

    program = runs.program(Dataset.range(50).flat_map(lambda n: range(1000)), tasks=1)
    program._sizers = parents, children = [Recorder(size=10), Recorder(size=100)]
    with program.run(program.plan.task(0), 0) as run:
        assert sum(map(len, run)) == 50_000
    program.close()
    assert 0 < parents.learnt <= 50
    assert 40_000 < children.learnt <= 50_000
