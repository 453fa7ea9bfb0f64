"""Cache points: the elements kept there, and the fingerprint that says for whom they are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from millrace.graph import nodes as g
from millrace.graph import source_nodes as s
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import PASSING, is_plain, parameter, parameters
from millrace.graph.source_nodes import FromArrays, FromList, FromMapStyle, FromParquet
from millrace.planning.unit_ids import itemised
from millrace.planning.units import UnitMap


class CachePoint(msgspec.Struct, frozen=True, array_like=True):
    """Node ``cache`` or ``autocache``, as whoever decides about it knows it.

    Attributes:
        node: its id.
        label: of the operator whose output is kept there.
        mode: "auto", "compute" or "cache", as in :data:`millrace.policies.caching.autocache.MODES`.
        fingerprint: of :func:`point_fingerprint`, in hexadecimal digits; empty if the point cannot be used.
        why: if so, why.
        path: folder or URL of its blocks; empty: where the service keeps them.
        items: number of items that an epoch takes from it, about; -1 if that is not known.
        fixed: operators because of which all below is as in the first epoch where elements are reused.
        random: one of these calls a random function.
        known: what is kept there can be named, the functions aside.
    """

    node: int
    label: str
    mode: str
    fingerprint: str = ""
    why: str = ""
    path: str = ""
    items: int = -1
    fixed: list[str] = []
    random: bool = False
    known: bool = True

    @property
    def always(self) -> bool:
        """Whether the pipeline asks for it, whatever is measured."""
        return self.mode == "cache"


def fixed_notice(point: CachePoint) -> str:
    """Say what stays as in the first epoch below a point, where elements are kept in any case."""
    what = "random values" if point.random else "order and the batches"
    return (
        f"below the cache after {point.label} every epoch is like the first, with the {what} of "
        f"{' and '.join(point.fixed)}. Put the cache before that if it is not what you want"
    )


SEMANTICS = 2
"""Version of the operators' and sources' outputs for the same data; increment it when one of them changes."""

_CHOOSING = (g.Take, g.Skip, g.Shard, g.Repeat, g.Shuffle, g.Sample, g.Reservoir)
"""Operators that only decide which items there are, and in which order."""

_CHOICES: dict[type[g.Node], set[str]] = {
    g.Range: {"start", "stop", "step"},
    FromList: {"count"},
    FromMapStyle: {"count"},
    FromArrays: {"count"},
    g.FromFiles: {"patterns"},
    g.FromTFRecords: {"patterns"},
    g.FromWebDataset: {"patterns"},
    FromParquet: {"patterns"},
    s.FromText: {"patterns"},
    s.FromCSV: {"patterns"},
    s.FromFixedLengthRecords: {"patterns"},
    s.Load: {"path"},
    g.SampleFromDatasets: {"weights", "seed", "stop_on_empty_dataset", "cycle", "weights_from", "weights_by"},
    g.ChooseFromDatasets: {"choices", "times", "stop_on_empty_dataset", "cycle"},
}
"""Parameters that only decide which items there are, and in which order."""

_EVERYWHERE = {"num_parallel_calls", "deterministic", "arrays", "digest"}
"""Parameters that change no output, or for which others stand: for arrays the hash of their contents."""

_BY_NUMBER = (g.Batch, g.PaddedBatch, g.SlidingWindow, g.Zip, g.Enumerate)
"""Operators that join elements with those beside them, or with their number."""


def frozen_by(units: UnitMap, number: int) -> list[int]:
    """Numbers of the nodes because of which all at node ``number`` and below stays as it was when first kept.

    They are operators that call a random function, that work on the elements of a whole task, or that shuffle anew in
    each epoch below one that joins elements with others or with their number. Without any, elements are what they are
    in every epoch.
    """
    graph = units.graph
    found = set()
    joined: set[g.Node] = set()
    for node in reversed(_below(graph, number)):
        here = graph.id_of(node)
        if isinstance(node, _BY_NUMBER) or node in joined:
            joined.update(node.inputs)
        local = not itemised(units, here) and all(itemised(units, graph.id_of(child)) for child in node.inputs)
        if local or (reorders(node) and node in joined) or is_random(node):
            found.add(here)
    return sorted(found)


def point_fingerprint(
    units: UnitMap,
    number: int,
    of_opaque: Callable[[g.Opaque], bytes],
    *,
    generation: int = 0,
    whole: bool = False,
) -> bytes:
    """Hash what the operators up to a node make of an item, 16 bytes: the part of its key that all of its items share.

    Items are told apart by :func:`millrace.planning.unit_ids.identities`, with ``random`` if a node of
    :func:`frozen_by` calls a random function; so operators that only choose or order them have no part in this. They
    have if items cannot be told apart, and a whole task's output is kept.

    Args:
        units: of the graph as it was written, not as it was rewritten.
        number: of the node.
        of_opaque: fingerprint of a user's function or object; not asked for those that have a ``key``.
        generation: the epoch that is kept, where something random or task-local is below; elsewhere it doesn't matter.
        whole: which items there are, and in which order, counts as well: of an epoch that is kept as a whole.

    Raises:
        UnsureError: whatever ``of_opaque`` raises.
    """
    graph = units.graph
    items = not whole and itemised(units, number)
    records: list[Any] = []
    places: dict[g.Node, int] = {}
    nodes = _below(graph, number)
    for node in nodes:
        if isinstance(node, PASSING) or (items and isinstance(node, _CHOOSING)):
            places[node] = places[node.inputs[0]]
            continue
        places[node] = len(records)
        left_out = _EVERYWHERE | (_CHOICES.get(type(node), set()) if items else set())
        told = [
            (name, _parameter(name, parameter(node, name), of_opaque))
            for name in parameters(node)
            if name not in left_out
        ]
        key = graph.keys[graph.id_of(node)] if is_random(node) else None
        records.append([node.op, [places[child] for child in node.inputs], sorted(told), key])
    options = graph.options()
    handler = _parameter("on_error", options.on_error, of_opaque) if isinstance(options.on_error, g.Opaque) else None
    epoch = None if items and not any(map(is_random, nodes)) else [units.seed, generation]
    window = None if items else options.buffer_bytes  # windows are bounded in bytes
    packed = _packed([SEMANTICS, records, handler, epoch, window])
    return hashlib.blake2b(packed, digest_size=16).digest()


def _packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError:  # names of files that are no text
        return repr(value).encode()


def _below(graph: Graph, number: int) -> tuple[g.Node, ...]:
    """List the node and all that it needs, inputs first."""
    return Graph(graph.nodes[number]).nodes


def reorders(node: g.Node) -> bool:
    """Whether it gives its elements in another order in each epoch."""
    if isinstance(node, g.SampleFromDatasets):
        return node.weights_by == "epoch"
    return isinstance(node, (g.Sample, g.Reservoir)) or (isinstance(node, g.Shuffle) and node.reshuffle_each_iteration)


def is_random(node: g.Node) -> bool:
    """Whether it calls a random function, or chooses at random what comes of an element."""
    return isinstance(node, g.RejectionResample) or any(opaque.takes_rng for _, opaque in node.opaques())


def _parameter(name: str, value: Any, of_opaque: Callable[[g.Opaque], bytes]) -> Any:
    if is_plain(value):
        return value
    opaque = value if isinstance(value, g.Opaque) else g.Opaque(value, name)
    if not opaque.key:
        return of_opaque(opaque)
    # With the function's name: whoever calls all of them "v1" has still told them apart. A lambda's has its line in it.
    return [opaque.name.partition(" at ")[0], opaque.key]
