"""Serialization of a graph, without its user's functions.

The structure is what the dispatcher plans with: operators, numbers, names. Everything that only the user's Python can
interpret (functions, data sets, pytrees of shapes) is replaced by a numbered slot, and so are long lists of paths; who
runs the graph gets the values of the slots separately, see :mod:`millrace.functions.bundles`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec

from millrace.errors import ProtocolError
from millrace.graph.nodes import OP_NAMES, Autocache, Cache, Node, Opaque, Prefetch, Shuffle, WithOptions
from millrace.graph.operator_graph import Graph
from millrace.message_budget import MALFORMED, check_containers

_TYPES = {name: node_type for node_type, name in OP_NAMES.items()}


class _Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    slot: int
    name: str = ""
    where: str = ""
    takes_rng: bool = False
    wrapped: bool = True
    key: str = ""


class _NodeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    op: str
    inputs: list[int] = []
    plain: dict[str, Any] = {}
    slots: dict[str, _Slot] = {}


class _GraphRecord(msgspec.Struct, frozen=True):
    format: int
    nodes: list[_NodeRecord]


LONG = 1 << 18
"""Bytes beyond which a list is no part of the structure, but travels with the functions."""
_FORMAT = 1
PASSING = (Prefetch, Cache, Autocache, WithOptions)
_BESIDES = {"num_parallel_calls", "digest"}
_LATER: dict[str, Any] = {
    "together": 0,
    "incomplete": "",
    "digest": "",
    "listed": False,
    "fill_remainder": "",
    "cycle": False,
    "weights_from": (),
    "weights_by": "",
    "levels": (),
    "folders": (),
}
"""Parameters that operators have got since, with the value that stands for what was before. Where they have it they are
not told, so that states and caches of before still fit."""
_DECODER = msgspec.msgpack.Decoder(_GraphRecord)


def is_plain(value: Any) -> bool:
    """Whether a parameter is one of those that structures hold: numbers, text, None, and tuples of these."""
    if type(value) is tuple:
        return all(is_plain(item) and not isinstance(item, tuple) for item in value)
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 64  # what msgpack holds
    return value is None or type(value) in (bool, float, str)


def brief(value: Any) -> Any:
    """Replace a long list by its length and digest, as one name, for structures and outlines.

    The dispatcher needs none of the list's values. Other values are returned as they are.
    """
    if type(value) is not tuple or _fits(value):
        return value
    data = "\0".join(map(str, value)).encode("utf-8", "surrogatepass")
    return (f"{len(value):,} values {hashlib.blake2b(data, digest_size=16).hexdigest()}",)


def _fits(value: tuple[Any, ...]) -> bool:
    try:
        return len(msgspec.msgpack.encode(value)) <= LONG
    except UnicodeEncodeError:  # names of files that are no text
        return False


def parameters(node: Node) -> list[str]:
    """List the names of a node's parameters that structures, outlines and fingerprints tell."""
    names = [spec.name for spec in fields(node) if spec.name != "inputs"]
    return [name for name in names if name not in _LATER or getattr(node, name) != _LATER[name]]


def parameter(node: Node, name: str) -> Any:
    """Read a parameter's value; one that is costly to compute is computed now."""
    value = getattr(node, name)
    return value() if name == "contents" and callable(value) else value


def pack(graph: Graph) -> tuple[bytes, list[Opaque]]:
    """Serialize a graph: ``(structure, slots)``; slots hold what the structure leaves out, named by their operator."""
    slots: list[Opaque] = []
    records = []
    for node in graph.nodes:
        plain: dict[str, Any] = {}
        held: dict[str, _Slot] = {}
        for name in parameters(node):
            value = parameter(node, name)
            if isinstance(value, Opaque):
                held[name] = _Slot(len(slots), value.name, value.where, value.takes_rng, key=value.key)
                slots.append(replace(value, name=f"{node.op}({value.name})"))
            elif is_plain(value) and brief(value) is value:
                plain[name] = value
            else:
                key = brief(value)[0] if is_plain(value) else ""
                held[name] = _Slot(len(slots), name, wrapped=False, key=key)
                slots.append(Opaque(value, f"{node.op}({name}=...)"))
        records.append(_NodeRecord(node.op, [graph.id_of(child) for child in node.inputs], plain, held))
    return msgspec.msgpack.encode(_GraphRecord(_FORMAT, records)), slots


def outline(graph: Graph) -> list[Any]:
    """Outline what decides which elements come out, without functions: operators, inputs, parameters, as plain values.

    Operators that only pass elements on, and options, have no part in it.
    """
    records: list[Any] = []
    places: dict[int, int] = {}
    for number, node in enumerate(graph.nodes):
        inputs = [places[graph.id_of(child)] for child in node.inputs]
        if isinstance(node, PASSING):
            places[number] = inputs[0]
            continue
        places[number] = len(records)
        values = {name: parameter(node, name) for name in parameters(node) if name not in _BESIDES}
        plain = sorted((name, brief(value)) for name, value in values.items() if is_plain(value))
        records.append([node.op, inputs, plain])
    options = graph.options()
    windows = any(isinstance(node, Shuffle) for node in graph.nodes)  # they are bounded in bytes
    return [*records, options.on_error == "skip", options.buffer_bytes if windows else None]


def unpack(structure: bytes, values: Sequence[Any] | None = None) -> Graph:
    """Deserialize a graph of :func:`pack`; ``values`` by slot, or None for structure alone (slots then hold None).

    Raises:
        ProtocolError: if ``structure`` is not a graph of this version.
    """
    check_containers(structure, "the structure of a dataset's graph")
    try:
        record = _DECODER.decode(structure)
        if record.format != _FORMAT:
            raise ProtocolError(f"graph of format {record.format}, this version reads {_FORMAT}")
        nodes: list[Node] = []
        for entry in record.nodes:
            nodes.append(_node(entry, nodes, values))
        return Graph(nodes[-1])
    except (*MALFORMED, KeyError, IndexError, TypeError) as error:
        raise ProtocolError(f"these bytes are not a dataset's graph: {error}") from error


def _node(entry: _NodeRecord, earlier: Sequence[Node], values: Sequence[Any] | None) -> Node:
    node_type = _TYPES[entry.op]
    known = {spec.name for spec in fields(node_type)}
    params = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in entry.plain.items()
        if name in known  # a newer writer may know more
    }
    for name, slot in entry.slots.items():
        unknown = (slot.key,) if slot.key and not slot.wrapped else None
        value = unknown if values is None else values[slot.slot]
        params[name] = Opaque(value, slot.name, slot.where, slot.takes_rng, slot.key) if slot.wrapped else value
    return node_type(inputs=tuple(earlier[number] for number in entry.inputs), **params)


def digest(structure: bytes) -> str:
    """Hash the pipeline's shape: operators and parameters, not the functions' code nor where it stands."""
    record = _DECODER.decode(structure)
    bare = [
        (entry.op, entry.inputs, sorted(entry.plain.items()), sorted((k, _named(s)) for k, s in entry.slots.items()))
        for entry in record.nodes
    ]
    return hashlib.blake2b(msgspec.json.encode(bare), digest_size=16).hexdigest()


def _named(slot: _Slot) -> str:
    return slot.name if slot.wrapped else slot.name + slot.key
