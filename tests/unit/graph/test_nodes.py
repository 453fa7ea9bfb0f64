from __future__ import annotations

from dataclasses import fields

import pytest

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.rewrites.fusion import Fused

FN = g.Opaque(len, "len")


def test_inputs_come_before_what_uses_them_and_shared_nodes_once():
    source = g.Range(start=0, stop=3)
    left = g.Map(inputs=(source,), fn=FN)
    right = g.Filter(inputs=(g.Map(inputs=(left,), fn=FN),), fn=FN)
    root = g.Zip(inputs=(right, left, source))
    graph = Graph(root)
    assert len(graph.nodes) == 5
    for number, node in enumerate(graph.nodes):
        assert graph.id_of(node) == number
        assert all(graph.id_of(child) < number for child in node.inputs)
    assert graph.nodes[-1] is root
    assert list(graph.sources()) == [(0, source)]


def test_long_chains_are_no_deep_recursion():
    node: g.Node = g.Range(start=0, stop=3)
    for _ in range(5000):
        node = g.Map(inputs=(node,), fn=FN)
    assert len(Graph(node).nodes) == 5001
    assert Graph(node).rewritten(lambda _number, each: each).root is node


def test_options_nearest_the_end_win_one_by_one():
    source = g.Range(start=0, stop=3)
    first = g.WithOptions(inputs=(source,), seed=1, num_threads=2, on_error="skip")
    last = g.WithOptions(inputs=(g.Map(inputs=(first,), fn=FN),), seed=3)
    options = Graph(last).options()
    assert (options.seed, options.num_threads, options.on_error, options.buffer_bytes) == (3, 2, "skip", None)
    assert Graph(source).options() is not None


@pytest.mark.parametrize(
    ("shuffles", "option", "seed"),
    [((), None, None), ((None, 4), None, 4), ((4, 5), None, 5), ((4,), 9, 9), ((None,), 0, 0), ((0,), None, 0)],
)
def test_the_users_seed(shuffles, option, seed):
    node: g.Node = g.Range(start=0, stop=3)
    if option is not None:
        node = g.WithOptions(inputs=(node,), seed=option)
    for each in shuffles:
        node = g.Shuffle(inputs=(node,), buffer_size=2, seed=each)
    assert Graph(node).seed() == seed


def test_keys_are_each_nodes_own_and_stay_where_only_order_and_buffers_change():
    def chain(*kinds: type[g.Node]) -> dict[type[g.Node], int]:
        node: g.Node = g.Range(start=0, stop=3)
        for kind in kinds:
            given = {"fn": FN, "buffer_size": 3, "count": 1, "num_shards": 2, "index": 0, "batch_size": 2}
            names = {spec.name for spec in fields(kind)}
            node = kind(inputs=(node,), **{name: value for name, value in given.items() if name in names})
        graph = Graph(node)
        assert len(set(graph.keys)) == len(graph.nodes)
        return {type(node): key for node, key in zip(graph.nodes, graph.keys, strict=True)}

    plain = chain(g.Map, g.FlatMap)
    for others in (
        chain(g.Shuffle, g.Map, g.Prefetch, g.FlatMap),
        chain(g.Take, g.Map, g.Cache, g.Autocache, g.FlatMap, g.WithOptions),
        chain(g.Map, g.Skip, g.FlatMap, g.Shard),
    ):
        assert plain.items() <= others.items()
    assert chain(g.Batch, g.Map)[g.Map] != plain[g.Map]
    shuffled = chain(g.Map, g.Shuffle)
    assert chain(g.Prefetch, g.Map, g.Prefetch, g.Shuffle)[g.Shuffle] == shuffled[g.Shuffle]


def test_rewriting_keeps_what_is_shared_and_all_numbers():
    source = g.Range(start=0, stop=3)
    shared = g.Take(inputs=(source,), count=-1)
    left, right = g.Map(inputs=(shared,), fn=FN), g.Filter(inputs=(shared,), fn=FN)
    graph = Graph(g.Zip(inputs=(left, right)))
    same = graph.rewritten(lambda _number, node: node)
    assert (same.root, same.nodes) == (graph.root, graph.nodes)

    def change(_number: int, node: g.Node) -> g.Node:
        if isinstance(node, g.Filter):
            return g.Prefetch(inputs=node.inputs)
        return node.inputs[0] if isinstance(node, g.Take) else node

    new = graph.rewritten(change)
    assert new.root.inputs[0].inputs == new.root.inputs[1].inputs == (source,)
    assert [type(node) for node in new.reachable()] == [g.Range, g.Map, g.Prefetch, g.Zip]
    assert [new.id_of(node) for node in new.reachable()] == [0, 2, 3, 4]
    assert [new.id_of(node) for node in graph.nodes] == [0, 0, 2, 3, 4]
    assert [type(node) for node in new.nodes] == [g.Range, g.Take, g.Map, g.Prefetch, g.Zip]
    assert all(new.id_of(node) == number for number, node in enumerate(new.nodes) if node is not shared)
    assert new.keys == graph.keys
    assert graph.root.inputs == (left, right)


def test_nodes_say_what_they_are():
    assert str(g.Map(fn=g.Opaque(len, "len"))) == "map(len)"
    assert str(g.Batch(batch_size=3)) == "batch()"
    assert set(g.OP_NAMES) == set(_all(g.Node)) - {g.Source, g.Arrivals, Fused}


def _all(kind: type[g.Node]) -> list[type[g.Node]]:
    return [below for each in kind.__subclasses__() for below in (each, *_all(each))]
