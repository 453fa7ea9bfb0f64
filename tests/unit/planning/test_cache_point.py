"""Fingerprints of cache points: what of a pipeline changes them, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.source_nodes import FromList, FromMapStyle, FromParquet
from millrace.planning.cache_point import frozen_by, point_fingerprint
from millrace.planning.split_table import Split, SplitTable, positions_table, splits_table
from millrace.planning.units import UnitMap

TEN = positions_table(10)
UNCOUNTED = splits_table([Split("a", bytes=400), Split("b", bytes=100)])
F, G = g.Opaque("f", "f"), g.Opaque("g", "g")
RANDOM = g.Opaque("r", "r", takes_rng=True)

Operator = tuple[type[g.Node], dict[str, Any]]


def files(**parameters: Any) -> g.Node:
    return g.FromTFRecords(**{"patterns": ("x",), **parameters})


def pipeline(*operators: Operator, source: g.Node | None = None) -> g.Node:
    node = files() if source is None else source
    for kind, parameters in operators:
        node = kind(inputs=(node,), **parameters)
    return node


def analysed(node: g.Node, table: SplitTable = TEN, seed: int = 0) -> UnitMap:
    graph = Graph(node)
    return UnitMap(graph, {number: table for number, _ in graph.sources()}, seed)


def at(node: g.Node, table: SplitTable = TEN, seed: int = 0, generation: int = 0) -> bytes:
    units = analysed(node, table, seed)
    return point_fingerprint(
        units, units.graph.id_of(node), lambda opaque: repr(opaque.value).encode(), generation=generation
    )


def frozen(node: g.Node, table: SplitTable = TEN) -> list[str]:
    units = analysed(node, table)
    return [units.graph.nodes[number].op for number in frozen_by(units, units.graph.id_of(node))]


def mapped(fn: g.Opaque = F, **parameters: Any) -> Operator:
    return g.Map, {"fn": fn, **parameters}


def zipped(*inputs: g.Node, **parameters: Any) -> g.Node:
    return g.Zip(inputs=inputs, **parameters)


BATCH = (g.Batch, {"batch_size": 2})
SHUFFLE = (g.Shuffle, {"buffer_size": 4})
FILTER = (g.Filter, {"fn": F})
PLAIN = pipeline(mapped())

DIFFERENT: dict[str, tuple[g.Node, g.Node]] = {
    "another function": (PLAIN, pipeline(mapped(G))),
    "another operator": (PLAIN, pipeline(FILTER)),
    "one more": (PLAIN, pipeline(mapped(), mapped())),
    "another order": (pipeline(mapped(), mapped(G)), pipeline(mapped(G), mapped())),
    "another source": (PLAIN, pipeline(mapped(), source=g.FromWebDataset(patterns=("x",)))),
    "how the source is read": (PLAIN, pipeline(mapped(), source=files(compression="GZIP"))),
    "columns": (FromParquet(patterns=("x",)), FromParquet(patterns=("x",), columns=("a",))),
    "a list": (FromList(items=F, count=10), FromList(items=G, count=10)),
    "a data set": (FromMapStyle(dataset=F, count=10), FromMapStyle(dataset=G, count=10)),
    "a batch's size": (pipeline(BATCH), pipeline((g.Batch, {"batch_size": 3}))),
    "remainders": (pipeline(BATCH), pipeline((g.Batch, {"batch_size": 2, "drop_remainder": True}))),
    "padding": (
        pipeline((g.PaddedBatch, {"batch_size": 2, "padded_shapes": {"a": (1,)}})),
        pipeline((g.PaddedBatch, {"batch_size": 2, "padded_shapes": {"a": (2,)}})),
    ),
    "a batch that is a list": (pipeline(BATCH), pipeline((g.Batch, {"batch_size": 2, "listed": True}))),
    "a batch that is filled up": (pipeline(BATCH), pipeline((g.Batch, {"batch_size": 2, "fill_remainder": "repeat"}))),
    "a ragged batch": (pipeline(BATCH), pipeline((g.RaggedBatch, {"batch_size": 2}))),
    "windows": (
        pipeline((g.SlidingWindow, {"size": 2, "shift": 1})),
        pipeline((g.SlidingWindow, {"size": 2, "shift": 2})),
    ),
    "where numbers start": (pipeline((g.Enumerate, {})), pipeline((g.Enumerate, {"start": 1}))),
    "a cycle's length": (
        pipeline((g.Interleave, {"fn": F, "cycle_length": 2})),
        pipeline((g.Interleave, {"fn": F, "cycle_length": 3})),
    ),
    "the order of inputs": (zipped(PLAIN, files()), zipped(files(), PLAIN)),
    "a dict of inputs": (zipped(PLAIN, files()), zipped(PLAIN, files(), keys=("a", "b"))),
    "side by side or behind": (zipped(PLAIN, files()), g.Concatenate(inputs=(PLAIN, files()))),
    "instead of an element that fails": (
        pipeline(mapped(), (g.WithOptions, {"on_error": F})),
        pipeline(mapped(), (g.WithOptions, {"on_error": G})),
    ),
    "the place of a random function": (pipeline(mapped(RANDOM), mapped()), pipeline(mapped(), mapped(RANDOM))),
    "a key": (PLAIN, pipeline(mapped(g.Opaque("f", "f", key="v1")))),
    "another key": (pipeline(mapped(g.Opaque("f", "f", key="v1"))), pipeline(mapped(g.Opaque("f", "f", key="v2")))),
    "another function of the same key": (
        pipeline(mapped(g.Opaque("f", "f", key="v1"))),
        pipeline(mapped(g.Opaque("g", "g", key="v1"))),
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_comes_out_differently_has_another_fingerprint(case):
    one, other = DIFFERENT[case]
    assert at(one) != at(other)


ALIKE: dict[str, tuple[g.Node, g.Node]] = {
    "the same again": (PLAIN, pipeline(mapped(g.Opaque("f", "named otherwise", "elsewhere.py:7")))),
    "threads": (PLAIN, pipeline(mapped(num_parallel_calls=3, deterministic=False))),
    "which files": (PLAIN, pipeline(mapped(), source=files(patterns=("y", "z")))),
    "which numbers": (g.Range(start=0, stop=10), g.Range(start=5, stop=40, step=7)),
    "what passes": (
        PLAIN,
        pipeline((g.Prefetch, {}), mapped(), (g.Cache, {"path": "x"}), (g.Autocache, {}), (g.WithOptions, {"seed": 3})),
    ),
    "bounds": (PLAIN, pipeline(mapped(), (g.WithOptions, {"buffer_bytes": 3, "num_threads": 2, "on_error": "skip"}))),
    "what chooses": (
        PLAIN,
        pipeline((g.Take, {"count": 5}), (g.Skip, {"count": 1}), mapped(), (g.Shard, {"num_shards": 2, "index": 1})),
    ),
    "what orders": (PLAIN, pipeline(SHUFFLE, mapped(), (g.Shuffle, {"buffer_size": 9, "seed": 3}))),
    "what repeats": (PLAIN, pipeline((g.Repeat, {"count": 3}), mapped())),
    "weights": (
        g.SampleFromDatasets(inputs=(PLAIN, files()), weights=(1.0, 2.0), seed=1),
        g.SampleFromDatasets(inputs=(PLAIN, files()), weights=(1.0, 1.0), seed=2, stop_on_empty_dataset=True),
    ),
    "choices": (
        g.ChooseFromDatasets(inputs=(PLAIN, files()), choices=(0, 1)),
        g.ChooseFromDatasets(inputs=(PLAIN, files()), choices=(1, 0, 0), times=3, stop_on_empty_dataset=False),
    ),
    "a function that has a key": (
        pipeline(mapped(g.Opaque("before", "f", "a.py:1", key="v1"))),
        pipeline(mapped(g.Opaque("after", "f", "b.py:2", key="v1"))),
    ),
    "a lambda that has a key": (
        pipeline(mapped(g.Opaque("before", "lambda at a.py:1", "a.py:1", key="v1"))),
        pipeline(mapped(g.Opaque("after", "lambda at a.py:9", "a.py:9", key="v1"))),
    ),
}


@pytest.mark.parametrize("case", ALIKE)
def test_what_only_chooses_or_orders_has_no_part_in_it(case):
    one, other = ALIKE[case]
    assert at(one) == at(other)
    assert at(one, seed=1) == at(other, seed=2, generation=5)


def test_what_is_above_a_point_does_not_matter():
    point = pipeline(mapped())
    for above in (point, pipeline(mapped(G), BATCH, source=point), zipped(point, files())):
        units = analysed(above)
        alone = point_fingerprint(units, units.graph.id_of(point), lambda opaque: repr(opaque.value).encode())
        assert alone == at(point)


@pytest.mark.parametrize(
    ("node", "table"),
    [
        (pipeline(mapped(RANDOM)), TEN),
        (pipeline(FILTER, BATCH), TEN),
        (pipeline(BATCH), UNCOUNTED),
        (pipeline(SHUFFLE), UNCOUNTED),
        (pipeline((g.Take, {"count": 3})), UNCOUNTED),
    ],
)
def test_seed_and_epoch_count_for_what_is_random_or_of_a_task(node, table):
    points = [at(node, table), at(node, table, seed=1), at(node, table, generation=1)]
    assert len(set(points)) == 3


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pipeline((g.Skip, {"count": 1}), FILTER, BATCH), pipeline(FILTER, BATCH)),
        (pipeline(SHUFFLE, FILTER, BATCH), pipeline(FILTER, BATCH)),
        (pipeline(FILTER, BATCH), pipeline(FILTER, BATCH, source=files(patterns=("y",)))),
        (pipeline(FILTER, BATCH), pipeline(FILTER, BATCH, (g.WithOptions, {"buffer_bytes": 5}))),
    ],
)
def test_everything_counts_where_items_are_what_tasks_give(one, other):
    assert at(one) != at(other)


@pytest.mark.parametrize(
    ("node", "table", "by"),
    [
        (PLAIN, TEN, []),
        (pipeline(BATCH), TEN, []),
        (pipeline(SHUFFLE, mapped(), FILTER), TEN, []),
        (pipeline(mapped(RANDOM), mapped()), TEN, ["map"]),
        (pipeline(FILTER, BATCH, mapped(), BATCH), TEN, ["batch"]),
        (pipeline(SHUFFLE), UNCOUNTED, ["shuffle"]),
        (pipeline((g.Take, {"count": 3}), mapped()), UNCOUNTED, ["take"]),
        (pipeline(SHUFFLE, mapped(), BATCH), TEN, ["shuffle"]),
        (pipeline(SHUFFLE, (g.Enumerate, {})), TEN, ["shuffle"]),
        (pipeline(SHUFFLE, (g.SlidingWindow, {"size": 2, "shift": 1})), TEN, ["shuffle"]),
        (pipeline(BATCH, SHUFFLE), TEN, []),
        (pipeline((g.Shuffle, {"buffer_size": 4, "reshuffle_each_iteration": False}), BATCH), TEN, []),
        (zipped(PLAIN, pipeline(SHUFFLE)), TEN, ["shuffle"]),
        (pipeline(mapped(RANDOM), SHUFFLE, BATCH), TEN, ["map", "shuffle"]),
    ],
)
def test_what_freezes_a_point(node, table, by):
    assert frozen(node, table) == by


def test_who_cannot_tell_says_so():
    def unsure(opaque: g.Opaque) -> bytes:
        raise LookupError(opaque.name)

    units = analysed(PLAIN)
    with pytest.raises(LookupError, match="f"):
        point_fingerprint(units, 1, unsure)
    keyed = analysed(pipeline(mapped(g.Opaque("f", "f", key="v1"))))
    assert len(point_fingerprint(keyed, 1, unsure)) == 16
