"""Sources: the module of a source's format is found by the type of its node and imported when it is used."""

from __future__ import annotations

import importlib
from typing import cast

from millrace.graph import nodes, source_nodes
from millrace.graph.nodes import Node
from millrace.graph.source_nodes import FromArrays, FromList, FromMapStyle, FromParquet
from millrace.planning.split_table import SplitTable
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, PositionSource, SequentialSource, SourceType, ignore_progress

_MODULES: dict[type[Node], str] = {
    nodes.Range: "millrace.sources.sequences",
    FromList: "millrace.sources.sequences",
    FromArrays: "millrace.sources.arrays",
    FromMapStyle: "millrace.sources.mapstyle",
    nodes.FromFiles: "millrace.sources.files",
    nodes.FromTFRecords: "millrace.sources.tfrecord",
    nodes.FromWebDataset: "millrace.sources.webdataset",
    FromParquet: "millrace.sources.parquet",
    source_nodes.FromText: "millrace.sources.text_lines",
    source_nodes.FromCSV: "millrace.sources.csv_rows",
    source_nodes.FromFixedLengthRecords: "millrace.sources.fixed_records",
    source_nodes.Load: "millrace.sources.saved",
}


_KINDS: dict[type[Node], str] = {
    FromParquet: "row",
    source_nodes.FromCSV: "row",
    source_nodes.FromText: "line",
    source_nodes.Load: "element",
}
"""Word for an element in messages."""


def list_source(node: Node, reads: Reads, seen: ListingProgress = ignore_progress) -> SplitTable:
    """List a source: look at its data (paths, sizes, footers, indexes) and cut it into splits.

    Args:
        node: the source.
        reads: what it reads with.
        seen: called with the number of files looked at since the last call, on any thread.

    Raises:
        SourceNotFoundError: a path does not exist or a pattern matches nothing.
        SourceCorruptError: a file is truncated or is not what it claims to be.
        PipelineError: the source is described wrongly, e.g. a column that no file has.
    """
    return _source_type(node).list_source(node, reads, seen)


def open_source(node: Node, table: SplitTable, reads: Reads) -> PositionSource | SequentialSource:
    """Make the reader of the source that ``table``, made by :func:`list_source`, describes. It opens no file yet."""
    return _source_type(node).open_source(node, table, reads)


def describe(node: Node, table: SplitTable, split: int, position: int) -> str:
    """Describe an element for messages: ``train/0007.jpg``, ``shard-3.tar, record 17``, ``item 5``.

    ``position`` is that within the split; the record's number counts from the start of the file where that is known.
    """
    if table.locations and 0 <= position < len(table.locations):
        return table.locations[position]
    if not table.splits:
        return f"item {position}"
    if table.cheap:  # each position is a piece
        split, position = position, 0
    piece = table.splits[split]
    kind = _KINDS.get(type(node), "record")
    if piece.first_record < 0:
        return f"{piece.location}, {kind} {position} after byte {piece.start}"
    return f"{piece.location}, {kind} {piece.first_record + position}"


def _source_type(node: Node) -> SourceType:
    return cast(SourceType, importlib.import_module(_MODULES[type(node)]))
