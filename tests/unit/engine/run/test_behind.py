"""Operators behind distribute(): whatever arrives in whatever order, and wherever they stop, each element once."""

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.engine.run.arrival_operators import Account, ArrivalOperators, Begin, inexact
from millrace.errors import ElementError, StateError
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph

ALL = g.WithOptions


def function(value, name="f", *, rng=False):
    return g.Opaque(value, name, takes_rng=rng)


def chain(*operators: Any) -> Graph:
    node: g.Node = g.Arrivals()
    for kind, parameters in operators:
        node = kind(inputs=(node,), **parameters)
    return Graph(node)


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
        self.running = ArrivalOperators(graph, begin, self.account, lambda: next(coming, ([], 0, 0)))

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
NOT_TWELVE = function(lambda number: number % 13 != 12, "not_twelve")
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
        (g.TakeWhile, {"fn": NOT_TWELVE}),
        (g.Enumerate, {"start": 3}),
        (g.Prefetch, {"buffer_size": 4}),
        (g.Take, {"count": 13}),
        (g.Take, {"count": -1}),
        (g.Skip, {"count": 4}),
        (g.Shard, {"num_shards": 3, "index": 2}),
    ]
)
MAKING = st.just((g.FlatMap, {"fn": SOME}))
IN_ANY_ORDER = ONE_BY_ONE.filter(lambda each: each[0] in {g.Map, g.Filter, g.Prefetch})


def is_number(operators) -> bool:
    """Every operator gets what it can work on: once there are pairs there are no more numbers."""
    pairs = False
    for kind, _ in operators:
        if pairs and kind in {g.Map, g.Filter, g.TakeWhile, g.FlatMap, g.Enumerate}:
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


def stopped_again_and_again(graph, outputs, rng, *, in_order, at_once=5) -> list[Any]:
    """All that comes out of lives that each go on from the state of the one before."""
    tasks, found = Tasks(outputs), list[Any]()
    state: Any = ([], [])
    for _ in range(1000):
        reading = Reading(graph, tasks, tasks.messages(rng, in_order=in_order), *state)
        wanted = rng.randrange(at_once)
        some = reading.read(wanted)
        state = reading.state()
        assert reading.state() == state  # to ask changes nothing
        reading.close()
        found += some
        if len(some) < wanted:
            return found
    raise AssertionError("without end")


@settings(deadline=None, max_examples=100)
@given(chains(), st.integers(0, 1 << 30))
def test_stopped_anywhere_in_a_fixed_order_the_rest_is_what_it_would_have_been(graph, seed):
    rng, ends = random.Random(seed), list(itertools.accumulate([seed % 9, seed % 7, 0, 5], initial=0))
    outputs = {task: list(range(*pair)) for task, pair in enumerate(itertools.pairwise(ends))}
    whole = [flat(each) for each in plain(graph, Tasks(outputs))]
    assert [flat(each) for each in stopped_again_and_again(graph, outputs, rng, in_order=True)] == whole


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(IN_ANY_ORDER, MAKING), max_size=4), st.integers(0, 4), st.integers(0, 1 << 30))
def test_stopped_anywhere_in_any_order_each_element_comes_once(before, size, seed):
    last = [(g.Batch, {"batch_size": size})] if size else []
    graph, rng = chain(*before, *last), random.Random(seed)
    outputs = {task: [rng.randrange(50) for _ in range(rng.randrange(9))] for task in range(5)}
    whole, found = plain(graph, Tasks(outputs)), stopped_again_and_again(graph, outputs, rng, in_order=False)
    assert Counter(np.hstack([*whole, []]).tolist()) == Counter(np.hstack([*found, []]).tolist())


TWICE = {"fn": function(lambda rows: [rows, rows + 100], "twice")}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "operators",
    [
        [(g.Unbatch, {}), (g.Map, {"fn": NOISY, "num_parallel_calls": 1})],
        [(g.Rebatch, {"batch_size": 5}), (g.Map, {"fn": function(tuple, "tuple"), "num_parallel_calls": 1})],
        [(g.FlatMap, TWICE), (g.Rebatch, {"batch_size": 4})],
        [(g.FlatMap, TWICE), (g.Unbatch, {})],
        [(g.Enumerate, {}), (g.Shard, {"num_shards": 3, "index": 1})],
    ],
)
def test_batches_cut_anew_or_into_their_rows(operators, seed):
    """Random numbers go by task and output: in whatever order these come, an element has the same ones."""
    graph, rng = chain(*operators), random.Random(seed)
    numbers = iter(range(1000))
    outputs = {
        task: [np.array([*itertools.islice(numbers, rng.randrange(7))], int) for _ in range(rng.randrange(7))]
        for task in range(4)
    }
    whole = list(map(flat, plain(graph, Tasks(outputs))))
    assert list(map(flat, stopped_again_and_again(graph, outputs, rng, in_order=True, at_once=4))) == whole
    if any(kind is g.Unbatch for kind, _ in operators):
        found = map(flat, stopped_again_and_again(graph, outputs, rng, in_order=False, at_once=4))
        assert Counter(found) == Counter(whole)


@pytest.mark.parametrize(
    ("operators", "culprit"),
    [
        ([(g.Shuffle, {"buffer_size": 4})], "shuffle()"),
        ([(g.Batch, {"batch_size": 2}), (g.Unbatch, {})], "unbatch()"),
        ([(g.Interleave, {"fn": SOME, "cycle_length": 2, "block_length": 1})], "interleave(some)"),
    ],
)
def test_what_orders_anew_has_states_at_both_ends_of_an_epoch(operators, culprit):
    graph, tasks = chain(*operators), Tasks({0: list(range(8)), 1: list(range(8, 12))})
    assert str(inexact(graph)) == culprit
    reading = Reading(graph, tasks, tasks.messages(random.Random(1), in_order=True))
    assert reading.state() == ([], [])
    assert tasks.yielded == {}
    reading.read(1)
    with pytest.raises(StateError, match=r"stands behind distribute\(\).*Save at an epoch's end, or put it before"):
        reading.state()
    reading.read(1000)
    assert reading.state() == ([], [])
    assert tasks.yielded == {0: 8, 1: 4}


def test_an_element_that_fails_is_named_and_what_came_before_it_counts():
    def fail(number):
        if number == 201:
            raise ValueError("no")
        return number

    graph = chain((g.FlatMap, {"fn": SOME}), (g.Map, {"fn": function(fail, "fail"), "num_parallel_calls": 1}))
    tasks = Tasks({0: [1, 2, 3]})
    reading = Reading(graph, tasks, [(tasks.outputs[0], 0, 0)])
    assert reading.read(2) == [100, 200]
    with pytest.raises(ElementError, match=r"map\(fail\) failed on part 1 of element 1 of task 0 of distribute\(\)"):
        reading.read(1)
    assert reading.state() == ([], [(0, 1, [1])])
    assert tasks.yielded == {0: 1}


def test_what_is_remembered_does_not_grow_with_what_was_read():
    odd = function(lambda pair: pair[0] % 2 > 0, "odd")
    graph = chain((g.Enumerate, {}), (g.Filter, {"fn": odd}), (g.Take, {"count": -1}))
    tasks = Tasks({task: list(range(50)) for task in range(40)})
    reading = Reading(graph, tasks, tasks.messages(random.Random(0), in_order=False))
    while reading.read(40):
        account = reading.account
        assert len(account._runs) + sum(len(log._entries) for log in account._logs.values()) < 8
    assert reading.seen == 2000
