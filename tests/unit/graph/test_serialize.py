from __future__ import annotations

import msgspec
import pytest

from millrace.errors import ProtocolError
from millrace.graph import nodes as g
from millrace.graph import serialize
from millrace.graph.operator_graph import Graph

FN = g.Opaque(len, "len", "here.py:3", takes_rng=True, key="v3")


def graph() -> Graph:
    source = g.FromFiles(patterns=("a", "b*"))
    kept = g.Filter(inputs=(g.Map(inputs=(source,), fn=FN, num_parallel_calls=3),), fn=FN)
    padded = g.PaddedBatch(inputs=(kept,), batch_size=4, padded_shapes={"a": (None, 3)}, padding_values=0.5)
    return Graph(g.WithOptions(inputs=(g.Zip(inputs=(padded, source), keys=("x", "y")),), on_error="skip"))


def test_there_and_back():
    structure, slots = serialize.pack(graph())
    assert [slot.name for slot in slots] == ["map(len)", "filter(len)", "padded_batch(padded_shapes=...)"]
    back = serialize.unpack(structure, [slot.value for slot in slots])
    assert [type(node) for node in back.nodes] == [type(node) for node in graph().nodes]
    assert serialize.pack(back)[0] == structure
    source, mapped, kept, padded, _, options = back.nodes
    assert isinstance(source, g.FromFiles)
    assert source.patterns == ("a", "b*")
    assert isinstance(mapped, g.Map)
    assert mapped.fn.value is len
    assert (mapped.fn.name, mapped.fn.where, mapped.fn.takes_rng, mapped.fn.key) == ("len", "here.py:3", True, "v3")
    assert isinstance(kept, g.Filter)
    assert isinstance(padded, g.PaddedBatch)
    assert (padded.padded_shapes, padded.padding_values) == ({"a": (None, 3)}, 0.5)
    assert isinstance(options, g.WithOptions)
    assert options.on_error == "skip"


def test_structure_alone_has_no_values():
    structure, _ = serialize.pack(graph())
    bare = serialize.unpack(structure)
    assert isinstance(bare.nodes[1], g.Map)
    assert bare.nodes[1].fn.value is None
    assert bare.nodes[1].fn.takes_rng
    assert [node.op for node in bare.nodes] == [node.op for node in graph().nodes]


@pytest.mark.parametrize("names", [tuple(f"{n:06}.jpg" for n in range(30_000)), ("b\udcff",)])
def test_long_lists_and_names_that_are_no_text_travel_with_the_functions(names):
    graph = Graph(g.FromFiles(patterns=names))
    structure, slots = serialize.pack(graph)
    assert len(structure) < 300
    assert [slot.name for slot in slots] == ["from_files(patterns=...)"]
    back, bare = serialize.unpack(structure, [names]), serialize.unpack(structure)
    assert back.nodes[0].patterns == names  # type: ignore[attr-defined]
    assert serialize.pack(back)[0] == structure
    assert serialize.outline(back) == serialize.outline(bare) == serialize.outline(graph), "states fit on any side"
    msgspec.json.encode(serialize.outline(graph))
    other = Graph(g.FromFiles(patterns=(*names[:-1], "c")))
    assert serialize.outline(other) != serialize.outline(graph)
    if len(names) > 1:
        assert serialize.digest(serialize.pack(other)[0]) != serialize.digest(structure)


def test_numbers_of_any_size():
    for number in (0, -1, 2**63, 2**64 - 1, -(2**63)):
        back = serialize.unpack(serialize.pack(Graph(g.Range(start=number, stop=5)))[0])
        assert back.nodes[0].start == number  # type: ignore[attr-defined]
    structure, slots = serialize.pack(Graph(g.Range(start=2**70, stop=2**70 + 3)))
    assert [slot.value for slot in slots] == [2**70, 2**70 + 3]
    back = serialize.unpack(structure, [slot.value for slot in slots])
    assert back.nodes[0].stop == 2**70 + 3  # type: ignore[attr-defined]


def test_a_namedtuple_stays_one():
    class Pair(tuple[int, int]):
        __slots__ = ()

    node = g.PaddedBatch(inputs=(g.Range(start=0, stop=3),), batch_size=2, padding_values=Pair((1, 2)))
    structure, slots = serialize.pack(Graph(node))
    assert len(slots) == 1
    back = serialize.unpack(structure, [slot.value for slot in slots])
    assert type(back.nodes[1].padding_values) is Pair  # type: ignore[attr-defined]


def test_the_digest_is_of_the_shape_alone():
    def of(function: g.Opaque, size: int) -> str:
        node = g.Map(inputs=(g.Range(start=0, stop=size),), fn=function)
        return serialize.digest(serialize.pack(Graph(node))[0])

    here, there = g.Opaque(len, "f", "here.py:1"), g.Opaque(max, "f", "there.py:2")
    assert of(here, 3) == of(there, 3)
    assert of(here, 3) != of(here, 4)
    assert of(here, 3) != of(g.Opaque(len, "g", "here.py:1"), 3)
    assert of(here, 3) == of(g.Opaque(len, "f", key="v3"), 3)


def test_what_was_written_before_functions_had_keys():
    structure, slots = serialize.pack(graph())
    record = msgspec.msgpack.decode(structure)
    for node in record["nodes"]:
        for slot in node.get("slots", {}).values():
            slot.pop("key", None)
    back = serialize.unpack(msgspec.msgpack.encode(record), [slot.value for slot in slots])
    assert isinstance(back.nodes[1], g.Map)
    assert (back.nodes[1].fn.name, back.nodes[1].fn.key) == ("len", "")


def test_what_newer_writers_add_is_passed_over():
    structure, _ = serialize.pack(Graph(g.Range(start=0, stop=3)))
    record = msgspec.msgpack.decode(structure)
    record["nodes"][0]["plain"]["new"] = 5
    record["more"] = 1
    assert serialize.unpack(msgspec.msgpack.encode(record)).nodes[0].op == "range"


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(format=99),
        lambda record: record["nodes"].clear(),
        lambda record: record["nodes"][0].update(op="unheard_of"),
        lambda record: record["nodes"][0]["plain"].pop("start"),
        lambda record: record["nodes"][0].update(inputs=[4]),
        lambda record: record.pop("nodes"),
    ],
)
def test_what_is_no_graph(change):
    structure, _ = serialize.pack(Graph(g.Range(start=0, stop=3)))
    record = msgspec.msgpack.decode(structure)
    change(record)
    with pytest.raises(ProtocolError, match="graph"):
        serialize.unpack(msgspec.msgpack.encode(record))
    with pytest.raises(ProtocolError, match="not a dataset's graph"):
        serialize.unpack(b"\xff\x00")
