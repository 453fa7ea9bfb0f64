"""Search for the cache points of a pipeline: which there are, and what is kept there."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.engine.cache.cached_items import whole_splits
from millrace.errors import UnsureError
from millrace.functions.fingerprint import fingerprint
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import PASSING
from millrace.planning.cache_point import CachePoint, frozen_by, is_random, point_fingerprint, reorders
from millrace.planning.split_table import SplitTable
from millrace.planning.unit_ids import itemised
from millrace.planning.units import INFINITE, Cardinality, UnitMap
from millrace.sources.storage import is_remote


def find_points(graph: Graph, tables: Mapping[int, SplitTable], seed: int) -> list[CachePoint]:
    """Find all cache points of a graph.

    Args:
        graph: as written, with user functions.
        tables: split table of every source, by node id.
        seed: the job's.
    """
    if not any(isinstance(node, g.Cache | g.Autocache) for node in graph.nodes):
        return []
    units = UnitMap(graph, tables, seed)
    return [
        _point(units, number, node)
        for number, node in enumerate(graph.nodes)
        if isinstance(node, g.Cache | g.Autocache)
    ]


def _point(units: UnitMap, number: int, node: g.Cache | g.Autocache) -> CachePoint:
    child = units.graph.id_of(node.inputs[0])
    mode = "cache" if g.always_reused(node) else node.mode if isinstance(node, g.Autocache) else ""
    path = node.path or "" if isinstance(node, g.Cache) else ""
    known = CachePoint(number, _label(node.inputs[0]), mode, path=path)
    if mode == "compute":
        return CachePoint(number, known.label, mode, why="its mode is 'compute'")
    if not units.plannable(child):
        why = "the pipeline runs as one sequence; put the cache before what makes it one"
        return CachePoint(number, known.label, mode, why=why, path=path, known=False)
    dealer = None if itemised(units, child) else _deals_anew(units.graph, node)
    if dealer is not None:
        why = f"below it elements are those of whole tasks, and {dealer} behind it deals them anew in every epoch"
        return CachePoint(number, known.label, mode, why=why, path=path, known=False)
    digest, why = b"", _unversioned(units, node)
    try:
        digest = b"" if why else point_fingerprint(units, number, lambda opaque: fingerprint(opaque.value))
    except UnsureError as error:
        why = str(error)
    fixed = frozen_by(units, number)
    nodes = units.graph.nodes
    return CachePoint(
        number,
        known.label,
        mode,
        digest.hex(),
        why,
        path,
        items=_items(units, child),
        fixed=[str(nodes[each]) for each in fixed],
        random=any(is_random(nodes[each]) for each in fixed),
    )


def _unversioned(units: UnitMap, point: g.Node) -> str:
    """Say which file below a point has no version, so that nobody would see that it changed; empty: none."""
    for number, source in (
        (units.graph.id_of(node), node) for node in Graph(point).nodes if isinstance(node, g.Source)
    ):
        table = units.tables[number]
        if table.locations:
            lacking = table.stamps.places_of(0).tolist()
        else:
            lacking = [index for index, split in enumerate(table.splits) if not split.version]
        location = next((table.names[index] for index in lacking if is_remote(table.names[index])), "")
        if location:
            return f"{source}: the server of {location} gives no version of it, so nobody would see that it changed"
    return ""


def _deals_anew(graph: Graph, point: g.Node) -> g.Node | None:
    """Find an operator that decides in every epoch anew which units a task has at a point."""
    return next(
        (node for node in graph.nodes if reorders(node) and point in Graph(node).nodes),
        None,
    )


def _label(node: g.Node) -> str:
    """Label of the operator whose output passes the point."""
    while isinstance(node, PASSING):
        node = node.inputs[0]
    return str(node)


def _items(units: UnitMap, child: int) -> int:
    of = units.of(child)
    told = itemised(units, child) and (of.yields is not Cardinality.MANY or whole_splits(units, child))
    return of.count if told and of.count < INFINITE else -1
