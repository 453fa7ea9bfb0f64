"""What comes out is the same whether items are kept, made or lost, in every task and epoch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.engine.any_pipeline import numbers, pipeline
from tests.unit.engine.conftest import elements_of

from millrace.blocks.block_index import PointIndex
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.dataset import Dataset
from millrace.engine.cache.cache_writer import CacheWriter
from millrace.engine.cache.cached_items import ActivePoint
from millrace.graph.nodes import Autocache
from millrace.planning import task_order
from millrace.planning.cache_point import frozen_by, is_random
from millrace.planning.epoch_shape import FRESH, RunShape

POINT = "0123456789abcdef"


def augmented(element: Any, rng: np.random.Generator) -> tuple[Any, float]:
    return element, float(rng.random())


def with_point(made: Any, store: MemoryStore, room: int = 1 << 40) -> tuple[PointIndex, list[CacheWriter], Any]:
    """All runs of a program use its last autocache point; where what they keep is noted."""
    number = max(index for index, node in enumerate(made.graph.nodes) if isinstance(node, Autocache))
    catalog = PointIndex(store, POINT)
    fixed = frozen_by(made._units, number)
    point = ActivePoint(
        number, bytes(16), random=any(is_random(made.graph.nodes[each]) for each in fixed), catalog=catalog
    )
    shape = RunShape(reused=number) if fixed else FRESH
    kept: list[CacheWriter] = []
    run = made.run

    def caching_run(*arguments: Any, **options: Any) -> Any:
        kept.append(CacheWriter(store, POINT, room))
        chosen = {**options, "shape": shape, "meanwhile": None}  # as tasks that keep what they make don't overlap
        return run(*arguments, **chosen, point=point, writer=kept[-1])

    made.run = caching_run
    return catalog, kept, number


def with_reuse(plain: Any, number: int) -> None:
    """All runs of a program are, below a point, as in the first epoch."""
    run = plain.run

    def first_run(*arguments: Any, **options: Any) -> Any:
        return run(*arguments, **{**options, "shape": RunShape(reused=number)})

    plain.run = first_run


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_is_kept_the_elements_are_the_same(runs, data):
    case = pipeline(data.draw, runs)
    dataset = case.dataset.autocache().repeat(data.draw(st.sampled_from([1, 1, 2, 5]), label="repeated"))
    if data.draw(st.booleans(), label="shuffled"):
        dataset = dataset.shuffle(data.draw(st.integers(1, 50), label="window"))
    dataset = dataset.map(augmented)
    options = {"tasks": data.draw(st.integers(1, 9), label="tasks"), "chunk": data.draw(st.sampled_from([1, 3, 1000]))}
    store = MemoryStore()
    plain, made = runs.program(dataset, **options), runs.program(dataset, **options)
    try:
        catalog, kept, number = with_point(made, store)
        assume(made._units.plannable(number))
        if frozen_by(made._units, number):
            with_reuse(plain, number)
        for epoch in range(3):
            expected = elements_of(plain, task_order.planned(plain.plan), epoch)
            found = elements_of(made, task_order.planned(made.plan), epoch)
            assert repr(found) == repr(expected)
            for each in kept:
                each.finish()
                assert not each.error
            names = [info.name for each in kept for info in each.blocks]
            kept.clear()
            # A writer decides how many blocks there are, and not always alike: nothing is drawn by their number.
            chance = random.Random(data.draw(st.integers(0, 1 << 32), label="known and lost"))
            catalog.learn(chance.sample(names, chance.randint(0, len(names))))
            here = sorted(name for _, name in store.blocks())
            for name in chance.sample(here, min(len(here), chance.randint(0, 2))):
                store.delete(POINT, name)
    finally:
        plain.close()
        made.close()


def calls(dataset: Dataset, runs: Any, epochs: int, **options: Any) -> list[int]:
    """How many elements were made in each epoch, if all that is made is kept."""
    made = runs.program(dataset, tasks=4)
    counts = []
    try:
        catalog, kept, _ = with_point(made, MemoryStore(), **options)
        for epoch in range(epochs):
            COUNTED.clear()
            elements_of(made, task_order.planned(made.plan), epoch)
            for each in kept:
                each.finish()
                catalog.learn(info.name for info in each.blocks)
            counts.append(len(COUNTED))
    finally:
        made.close()
    return counts


COUNTED: list[Any] = []


def counted(element: Any) -> Any:
    COUNTED.append(element)
    return element


def kept_of(number: int) -> bool:
    return number % 3 > 0


def several(number: int) -> list[int]:
    return [number] * (number % 3)


def test_nothing_is_made_twice(runs):
    for dataset in (
        Dataset.range(100).map(counted).autocache().shuffle(100).batch(7),
        Dataset.range(100).shuffle(100).map(counted).autocache().batch(7),
        Dataset.range(100).map(counted).filter(kept_of).autocache().shuffle(10),
        Dataset.range(100).map(counted).flat_map(several).autocache(),
        runs.sequential(40, 60).map(counted).autocache().map(numbers),
        runs.sequential(40, 60, counted=False).map(counted).flat_map(several).autocache().batch(3),
        Dataset.range(100).map(counted).filter(kept_of).batch(7).autocache(),
        runs.sequential(40, 60).map(counted).shuffle(10).autocache("cache"),
        runs.sequential(40, 60).map(counted).filter(kept_of).batch(3).autocache().map(numbers),
    ):
        assert calls(dataset, runs, 3) == [100, 0, 0], dataset.__pipeline__().graph.nodes


def fails_at_7(number: int) -> int:
    COUNTED.append(number)
    if number == 7:
        raise ValueError(number)
    return number


def test_a_task_that_skipped_an_element_keeps_nothing(runs):
    dataset = Dataset.range(100).map(fails_at_7).autocache().with_options(on_error="skip")
    assert calls(dataset, runs, 2) == [100, 25]


def twice(number: int) -> list[int]:
    return [number, number]


def test_an_item_that_was_broken_off_is_not_kept(runs):
    store = MemoryStore()
    made = runs.program(Dataset.range(100).flat_map(twice).autocache(), tasks=1, chunk=1)
    try:
        _, kept, _ = with_point(made, store)
        with made.run(made.plan.task(0), 0) as run:
            next(run)
        kept[0].finish()
        assert not kept[0].blocks
        assert not store.blocks()
    finally:
        made.close()


def test_as_much_is_kept_as_there_is_room_for(runs, monkeypatch):
    monkeypatch.setattr("millrace.engine.cache.cache_writer.BLOCK_BYTES", 1)
    counts = calls(Dataset.range(100).map(counted).autocache(), runs, 2, room=12000)
    assert counts[0] == 100
    assert 0 < counts[1] < 100


def nothing(number: int) -> bool:
    return False


def test_items_without_elements_take_room_too(runs):
    made = runs.program(Dataset.range(10_000).filter(nothing).autocache(), tasks=1)
    try:
        store = MemoryStore()
        _, kept, _ = with_point(made, store, room=100_000)
        elements_of(made, task_order.planned(made.plan), 0)
        kept[0].finish()
        (size,) = store.blocks().values()
        assert size <= 100_000
        assert kept[0].wanted > 150_000
    finally:
        made.close()
