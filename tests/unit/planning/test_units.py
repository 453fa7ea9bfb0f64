"""Units: counts, yields and boundaries, by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning.split_table import Split, SplitTable, positions_table, splits_table
from millrace.planning.unit_boundaries import boundaries, fences
from millrace.planning.units import INFINITE, Cardinality, UnitMap, Units, UnplannableError

FN = g.Opaque(None, "fn")
TEN = positions_table(10)
COUNTED = splits_table([Split("a", count=4, bytes=400), Split("b", count=0), Split("c", count=6, bytes=600)])
UNCOUNTED = splits_table([Split("a", bytes=400), Split("b", bytes=100), Split("c", bytes=600)])


def leaf() -> g.Node:
    return g.FromTFRecords(patterns=("x",))


def analysed(table: SplitTable, *operators: Any) -> UnitMap:
    node = leaf()
    for kind, parameters in operators:
        node = kind(inputs=(node,), **parameters)
    return UnitMap(Graph(node), {0: table})


def of(table: SplitTable, *operators: Any) -> Units:
    units = analysed(table, *operators)
    return units.of(len(units.graph.nodes) - 1)


FILTER = (g.Filter, {"fn": FN})
MAP = (g.Map, {"fn": FN})
FLAT = (g.FlatMap, {"fn": FN})
SKIP_ERRORS = (g.WithOptions, {"on_error": "skip"})


def batch(size: int, drop: bool = False) -> Any:
    return g.Batch, {"batch_size": size, "drop_remainder": drop}


@pytest.mark.parametrize(
    ("operators", "count", "yields", "cheap"),
    [
        ((), 10, Cardinality.ONE, True),
        ((MAP,), 10, Cardinality.ONE, True),
        ((MAP, SKIP_ERRORS), 10, Cardinality.AT_MOST_ONE, True),
        ((FILTER,), 10, Cardinality.AT_MOST_ONE, True),
        ((FLAT,), 10, Cardinality.MANY, False),
        ((FILTER, FLAT, MAP), 10, Cardinality.MANY, False),
        (((g.Shuffle, {"buffer_size": 3}),), 10, Cardinality.ONE, True),
        ((FILTER, (g.Shuffle, {"buffer_size": 3})), 10, Cardinality.AT_MOST_ONE, True),
        ((batch(3),), 4, Cardinality.ONE, True),
        ((batch(3, True),), 3, Cardinality.ONE, True),
        ((FILTER, batch(3)), 10, Cardinality.MANY, False),
        (((g.Take, {"count": 4}),), 4, Cardinality.ONE, True),
        (((g.Take, {"count": 40}),), 10, Cardinality.ONE, True),
        (((g.Take, {"count": -1}),), 10, Cardinality.ONE, True),
        (((g.Skip, {"count": 4}),), 6, Cardinality.ONE, True),
        (((g.Skip, {"count": 40}),), 0, Cardinality.ONE, True),
        (((g.Skip, {"count": -1}),), 0, Cardinality.ONE, True),
        (((g.Shard, {"num_shards": 3, "index": 0}),), 4, Cardinality.ONE, True),
        (((g.Shard, {"num_shards": 3, "index": 2}),), 3, Cardinality.ONE, True),
        (((g.Shard, {"num_shards": 30, "index": 20}),), 0, Cardinality.ONE, True),
        (((g.Repeat, {"count": 3}),), 30, Cardinality.ONE, True),
        (((g.Repeat, {"count": 0}),), 0, Cardinality.ONE, True),
        (((g.Repeat, {}),), INFINITE, Cardinality.ONE, False),
        (((g.Repeat, {}), (g.Repeat, {"count": 3})), INFINITE, Cardinality.ONE, False),
        (((g.Repeat, {"count": 1 << 61}), (g.Repeat, {"count": 1 << 61})), INFINITE, Cardinality.ONE, False),
        (((g.Repeat, {}), batch(7)), INFINITE, Cardinality.ONE, False),
        (((g.Repeat, {}), (g.Skip, {"count": 5}), (g.Take, {"count": 50})), 50, Cardinality.ONE, False),
        ((FILTER, (g.Repeat, {"count": 3})), 30, Cardinality.AT_MOST_ONE, False),
        (((g.SlidingWindow, {"size": 4, "shift": 4}),), 3, Cardinality.ONE, True),
        (((g.SlidingWindow, {"size": 4, "shift": 1, "drop_remainder": True}),), 7, Cardinality.ONE, True),
        (((g.SlidingWindow, {"size": 4, "shift": 2, "stride": 3, "drop_remainder": True}),), 1, Cardinality.ONE, True),
        (((g.SlidingWindow, {"size": 4, "shift": 4, "stride": 4, "drop_remainder": True}),), 0, Cardinality.ONE, True),
        (((g.Repeat, {}), (g.SlidingWindow, {"size": 4, "shift": 1})), INFINITE, Cardinality.ONE, False),
        (((g.AssertCardinality, {"count": 10}),), 10, Cardinality.ONE, True),
    ],
)
def test_counts_and_yields(operators, count, yields, cheap):
    found = of(TEN, *operators)
    assert (found.count, found.yields, found.cheap) == (count, yields, cheap)


@pytest.mark.parametrize(
    ("above", "said"),
    [
        ((g.Take, {"count": 3}), "take() needs to know how many elements its input has"),
        ((g.Skip, {"count": 3}), "skip()"),
        ((g.Shard, {"num_shards": 2, "index": 0}), "shard()"),
        ((g.Enumerate, {}), "enumerate()"),
        ((g.Zip, {}), "zip()"),
        ((g.SampleFromDatasets, {"weights": (1.0,)}), "sample_from_datasets()"),
        ((g.ChooseFromDatasets, {"choices": (0,)}), "choose_from_datasets()"),
        ((g.ChooseFromDatasets, {}), "choose_from_datasets() chooses by the elements of a dataset"),
        ((g.SlidingWindow, {"size": 3, "shift": 1}), "window()"),
        ((g.AssertCardinality, {"count": 3}), "assert_cardinality()"),
    ],
)
def test_positions_are_needed(above, said):
    for below in ((FILTER,), (FLAT,)):
        with pytest.raises(UnplannableError, match=said.replace("(", r"\(").replace(")", r"\)")):
            of(TEN, *below, above)
        with pytest.raises(UnplannableError):
            of(TEN, *below, above, MAP)
    with pytest.raises(UnplannableError):
        of(UNCOUNTED, above)


def test_collections_across_repetitions_of_collections_are_refused_with_a_remedy():
    with pytest.raises(UnplannableError, match="put repeat last"):
        of(TEN, FILTER, batch(3), (g.Repeat, {"count": 2}), (g.Rebatch, {"batch_size": 4}))
    assert of(TEN, FILTER, (g.Repeat, {"count": 2}), batch(3), (g.Rebatch, {"batch_size": 4})).collecting


def test_what_a_task_must_have_one_of():
    assert not of(COUNTED, FILTER).task_local
    assert of(COUNTED, (g.Shuffle, {"buffer_size": 3}), MAP).task_local
    assert not of(TEN, (g.Shuffle, {"buffer_size": 3}), MAP).task_local
    assert of(TEN, FILTER, batch(2), MAP).task_local


def test_sources():
    assert of(COUNTED).count == 10
    assert of(COUNTED).yields is Cardinality.ONE
    assert not of(COUNTED).cheap
    assert of(UNCOUNTED).count == 3
    assert of(UNCOUNTED).yields is Cardinality.MANY
    assert analysed(COUNTED).starts[0].tolist() == [0, 4, 4]
    assert analysed(UNCOUNTED).starts == {}
    assert of(splits_table([])).count == 0


@pytest.mark.parametrize(
    ("table", "operators", "edges"),
    [
        (COUNTED, (), [0, 4, 10]),
        (COUNTED, (FILTER,), [0, 4, 10]),
        (COUNTED, ((g.Skip, {"count": 2}),), [0, 2, 8]),
        (COUNTED, ((g.Skip, {"count": 5}),), [0, 5]),
        (COUNTED, ((g.Take, {"count": 7}),), [0, 4, 7]),
        (COUNTED, ((g.Shard, {"num_shards": 2, "index": 1}),), [0, 2, 5]),
        (COUNTED, (batch(2),), [0, 2, 5]),
        (COUNTED, ((g.Repeat, {"count": 2}),), [0, 4, 10, 14, 20]),
        (COUNTED, ((g.Repeat, {}), (g.Take, {"count": 3})), [0, 1, 2, 3]),
        (UNCOUNTED, (), [0, 1, 2, 3]),
        (splits_table([]), (), [0]),
        (splits_table([]), ((g.Repeat, {"count": 2}),), [0]),
    ],
)
def test_boundaries_are_where_files_are(table, operators, edges):
    units = analysed(table, *operators)
    found = boundaries(units, len(units.graph.nodes) - 1)
    assert found.dtype == np.int64
    assert found.tolist() == edges


def test_boundaries_of_long_repeats_stay_few_and_whole():
    units = analysed(COUNTED, (g.Repeat, {"count": 10**6}))
    found = boundaries(units, 1)
    assert len(found) < 100_000
    assert found[[0, -1]].tolist() == [0, 10**7]
    assert (found % 10 == 0).all()


def test_parts_of_a_concatenation():
    first, second = leaf(), leaf()
    root = g.Concatenate(inputs=(first, g.Repeat(inputs=(second,)), leaf()))
    units = UnitMap(Graph(root), {0: COUNTED, 1: TEN, 3: TEN})
    assert units.of(4).count == INFINITE
    both = UnitMap(Graph(g.Concatenate(inputs=(first, second))), {0: COUNTED, 1: COUNTED})
    assert boundaries(both, 2).tolist() == [0, 4, 10, 14, 20]
    assert both.length() == 20
    empty = positions_table(0)
    nothing = UnitMap(Graph(g.Concatenate(inputs=(first, second))), {0: empty, 1: empty})
    assert (nothing.of(2).count, nothing.of(2).reads) == (0, 1.0)


def test_fences():
    def collected(node: g.Node) -> g.Node:
        return g.Rebatch(inputs=(node,), batch_size=3)

    inner = g.Concatenate(inputs=(collected(leaf()), collected(leaf())))
    root = g.Repeat(inputs=(g.Map(inputs=(g.Concatenate(inputs=(leaf(), inner)),), fn=FN),), count=2)
    graph = Graph(root)
    units = UnitMap(graph, {number: TEN for number, _ in graph.sources()})
    assert fences(units, graph.id_of(root)).tolist() == [0, 10, 20]
    assert units.of(graph.id_of(root)).period == 30
    assert fences(units, 0).tolist() == [0]


def test_boundaries_of_a_shuffle_of_what_collects_are_where_repetitions_and_parts_begin():
    root: g.Node = g.Concatenate(inputs=(g.Rebatch(inputs=(leaf(),), batch_size=3), leaf(), leaf()))
    root = g.Repeat(inputs=(root,), count=2)
    for _ in range(2):
        root = g.Shuffle(inputs=(root,), buffer_size=5)
    graph = Graph(root)
    units = UnitMap(graph, {number: TEN if number else COUNTED for number, _ in graph.sources()})
    bounds = set(boundaries(units, graph.id_of(root)).tolist())
    assert {0, 10, 20, 30, 40, 50, 60} <= bounds


def test_lengths():
    assert analysed(TEN, batch(3)).length() == 4
    assert analysed(TEN, FILTER).length() is None
    assert analysed(TEN, FILTER, (g.Take, {"count": 2})).length() is None
    assert analysed(TEN, (g.Repeat, {})).length() == INFINITE
    assert analysed(UNCOUNTED).length() is None
    assert analysed(TEN, MAP, SKIP_ERRORS).length() is None


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ((g.TakeWhile, {"fn": FN}), r"take_while\(fn\) ends where its predicate is false for the first time"),
        ((g.Scan, {"fn": FN, "initial_state": 0}), r"scan\(fn\) makes of each element what those before it"),
        ((g.Unique, {}), r"unique\(\) compares each element with all before it"),
    ],
)
def test_what_depends_on_all_before_it_runs_as_one_sequence(operator, said):
    with pytest.raises(UnplannableError, match=said) as caught:
        of(TEN, operator, MAP)
    assert caught.value.remedy.startswith("Do without it, or save() what it gives once")


@pytest.mark.parametrize(
    ("above", "length"),
    [
        ((), 7),
        ((MAP, (g.Shuffle, {"buffer_size": 2}), batch(3)), 3),
        (((g.Batch, {"batch_size": 3, "drop_remainder": True}), (g.Take, {"count": -1})), 2),
        (((g.Take, {"count": 5}), (g.Scan, {"fn": FN, "initial_state": 0})), 5),
        ((FILTER,), None),
        ((MAP, (g.WithOptions, {"on_error": "skip"})), None),
    ],
)
def test_an_asserted_length_is_known_of_a_sequence(above, length):
    assert analysed(TEN, FILTER, (g.AssertCardinality, {"count": 7}), *above).length() == length


@pytest.mark.parametrize(("below", "found"), [((), "10"), (((g.Repeat, {}),), "without end")])
def test_a_cardinality_that_is_known_to_be_another_is_refused_before_anything_is_read(below, found):
    with pytest.raises(PipelineError, match=rf"assert_cardinality\(\) expects 7 elements, and its input has {found}"):
        analysed(TEN, *below, (g.AssertCardinality, {"count": 7}))
