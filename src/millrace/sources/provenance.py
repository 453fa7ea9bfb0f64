"""Provenance of an epoch: the operators, functions and data that it is made of, as hashes that others can compare."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from millrace.errors import UnsureError
from millrace.functions.fingerprint import fingerprint
from millrace.graph.operator_graph import Graph
from millrace.planning.cache_point import point_fingerprint
from millrace.planning.split_table import SplitTable, pack_tables, without_hashes
from millrace.planning.units import UnitMap
from millrace.policies.saved_data import MadeOf


def made_of(graph: Graph, tables: Mapping[int, SplitTable], pipeline: str) -> MadeOf:
    """Hash what an epoch of a graph is made of.

    The number of the epoch, and a seed that nobody chose, have no part in it: they decide what was left to chance.

    Args:
        graph: as written, with user functions.
        tables: split table of every source, by node id.
        pipeline: expression of the pipeline.
    """
    data = hashlib.blake2b(pack_tables(without_hashes(tables)), digest_size=16).hexdigest()
    files = sum(len(table.names) for table in tables.values())
    size = sum(table.bytes for table in tables.values())
    try:
        digest = _fingerprint(graph, tables)
    except UnsureError as error:
        return MadeOf(pipeline, "", data, files, size, str(error))
    return MadeOf(pipeline, digest.hex(), data, files, size)


def _fingerprint(graph: Graph, tables: Mapping[int, SplitTable]) -> bytes:
    units = UnitMap(graph, tables, graph.seed() or 0)
    root = len(graph.nodes) - 1
    assert graph.nodes[root] is graph.root
    operators = point_fingerprint(units, root, lambda opaque: fingerprint(opaque.value), whole=True)
    skips = graph.options().on_error == "skip"  # an epoch from which elements were left out is another one
    packed = msgspec.msgpack.encode([operators, skips])
    return hashlib.blake2b(packed, digest_size=16).digest()
