"""Operators behind distribute(): whatever arrives in whatever order, and wherever they stop, each element once."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.run.behind import Account, Begin, Behind
from millrace.graph import nodes as g

ALL = g.WithOptions


def function(value, name="f", *, rng=False):
    return g.Opaque(value, name, takes_rng=rng)


def chain(*operators: Any) -> g.Graph:
    node: g.Node = g.Arrivals()
    for kind, parameters in operators:
        node = kind(inputs=(node,), **parameters)
    return g.Graph(node)


@dataclass
class Tasks:
    """What a service has to give, and how much of it counts as yielded; arrives in messages in any order."""

    outputs: dict[int, list[Any]]
    yielded: dict[int, int] = field(default_factory=dict)

    def messages(self, rng: random.Random, *, in_order: bool) -> list[Any]:
        left = {task: self.yielded.get(task, 0) for task in self.outputs}
        found = []
        while unfinished := [task for task, at in left.items() if at < len(self.outputs[task])]:
            task = min(unfinished) if in_order else rng.choice(unfinished)
            first = left[task]
            left[task] = min(len(self.outputs[task]), first + rng.randrange(1, 6))
            found.append(([*self.outputs[task][first : left[task]]], task, first))
        return found


class Reading:
    """One life of the operators: from a state to the next."""

    def __init__(self, graph, tasks: Tasks, messages: list[Any], counts=(), parts=(), rank=0) -> None:
        begin = Begin(seed=5, epoch=1, rank=rank, counts=counts, parts=parts)
        coming = iter(messages)
        self.tasks, self.seen = tasks, 0
        self.account = Account(graph, begin, self._yielded)
        self.running = Behind(graph, begin, self.account, lambda: next(coming, ([], 0, 0)))

    def _yielded(self, task: int, outputs: int, count: int) -> None:
        assert self.tasks.yielded.get(task, 0) + count == outputs
        self.tasks.yielded[task] = outputs
        self.seen += count

    def read(self, most: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < most:
            for element in self.account.current:
                found.append(element)
                break
            else:
                self.account.hand_out(None)
                chunk = next(self.running.chunks, None)
                if chunk is None:
                    self.account.end()
                    break
                self.account.hand_out(chunk)
        return found

    def state(self) -> tuple[list[int], list[Any]]:
        return self.account.now()

    def close(self) -> None:
        self.running.close()


def plain(graph, tasks: Tasks) -> list[Any]:
    """All of it, in order."""
    reading = Reading(graph, Tasks(tasks.outputs), Tasks(tasks.outputs).messages(random.Random(0), in_order=True))
    try:
        return reading.read(10**9)
    finally:
        reading.close()


IS_ODD = function(lambda number: bool(number % 2), "is_odd")
PLUS = function(lambda number: number + 1, "plus")
SOME = function(lambda number: [number * 100 + part for part in range(number % 4)], "some")
NOISY = function(lambda number, rng: (number, int(rng.integers(1 << 30))), "noisy", rng=True)
BATCH = st.sampled_from(
    [(g.Batch, {"batch_size": size, "drop_remainder": drop}) for size in (1, 3, 4) for drop in (0, 1)]
)
PADDED = st.just((g.PaddedBatch, {"batch_size": 2, "padded_shapes": None, "padding_values": None}))
ONE_BY_ONE = st.sampled_from(
    [
        (g.Map, {"fn": PLUS, "num_parallel_calls": 1}),
        (g.Map, {"fn": PLUS, "num_parallel_calls": 3}),
        (g.Filter, {"fn": IS_ODD}),
        (g.Enumerate, {"start": 3}),
        (g.Prefetch, {"buffer_size": 4}),
        (g.Take, {"count": 13}),
        (g.Take, {"count": -1}),
        (g.Skip, {"count": 4}),
        (g.Shard, {"num_shards": 3, "index": 2}),
    ]
)
MAKING = st.just((g.FlatMap, {"fn": SOME}))


def is_number(operators) -> bool:
    """Every operator gets what it can work on: once there are pairs there are no more numbers."""
    pairs = False
    for kind, _ in operators:
        if pairs and kind in {g.Map, g.Filter, g.FlatMap, g.Enumerate}:
            return False
        pairs = pairs or kind is g.Enumerate
    return True


@st.composite
def chains(draw):
    """Chains in order: elements one by one, made of one another, and at last collected."""
    before = draw(st.lists(st.one_of(ONE_BY_ONE, MAKING), max_size=4).filter(is_number))
    last = draw(st.lists(BATCH, max_size=1))
    last += draw(st.lists(PADDED, max_size=len(last)))
    counting = draw(st.lists(st.sampled_from([(g.Take, {"count": 5}), (g.Skip, {"count": 1})]), max_size=2))
    return chain(*before, *last[:1], *counting, *last[1:])


def flat(element: Any) -> Any:
    if isinstance(element, np.ndarray):
        return tuple(element.tolist()) if element.ndim == 1 else tuple(map(tuple, element.tolist()))
    if isinstance(element, (tuple, list)):
        return tuple(map(flat, element))
    return element


@settings(deadline=None, max_examples=150)
@given(chains(), st.integers(0, 1 << 30), st.booleans())
def test_stopped_anywhere_in_a_fixed_order_the_rest_is_what_it_would_have_been(graph, seed, exactly):
    rng = random.Random(seed)
    outputs, number = {}, 0
    for task in range(rng.randrange(1, 6)):
        size = rng.randrange(9)
        outputs[task] = list(range(number, number + size))
        number += size
    whole = [flat(each) for each in plain(graph, Tasks(outputs))]
    tasks, found, state = Tasks(outputs), [], ([], [])
    for _ in range(200):
        reading = Reading(graph, tasks, tasks.messages(rng, in_order=True), *state)
        wanted = rng.randrange(5)
        some = reading.read(wanted)
        state = reading.state()
        if exactly:
            assert reading.state() == state  # to ask changes nothing
        reading.close()
        found += some
        if len(some) < wanted:
            break
    assert [flat(each) for each in found] == whole


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.one_of(ONE_BY_ONE.filter(lambda each: each[0] in {g.Map, g.Filter, g.Prefetch}), MAKING), max_size=4),
    st.sampled_from([[], [(g.Batch, {"batch_size": 3, "drop_remainder": False})]]),
    st.integers(0, 1 << 30),
)
def test_stopped_anywhere_in_any_order_each_element_comes_once(before, last, seed):
    graph = chain(*before, *last)
    rng = random.Random(seed)
    outputs = {task: [rng.randrange(50) for _ in range(rng.randrange(9))] for task in range(5)}
    rows = lambda found: Counter(row for each in found for row in (each.tolist() if last else [each]))
    whole = rows(plain(graph, Tasks(outputs)))
    tasks, found, state = Tasks(outputs), [], ([], [])
    for _ in range(300):
        reading = Reading(graph, tasks, tasks.messages(rng, in_order=False), *state)
        wanted = rng.randrange(5)
        some = reading.read(wanted)
        state = reading.state()
        reading.close()
        found += some
        if len(some) < wanted:
            break
    assert rows(found) == whole
