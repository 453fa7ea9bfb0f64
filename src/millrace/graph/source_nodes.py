"""Nodes of sources: of what lies in memory, Parquet, lines, CSV files, records, what was saved, and generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.graph.nodes import FlatMap, Node, Opaque, Source


def places_of(source: Node) -> tuple[str, ...]:
    """List the paths and patterns that a source reads."""
    return tuple(getattr(source, "patterns", None) or filter(None, [getattr(source, "path", None)]))


def stored_elsewhere(source: Source) -> bool:
    """Whether a source is of files that have the same names on every host. A long list of names is not in here."""
    patterns = places_of(source)
    return bool(patterns) and all("://" in each and not each.startswith(("file:", "memory:")) for each in patterns)


class FromArrays(Source, op="from_arrays"):
    """Rows of arrays. ``contents`` is the hash of the arrays, or a function that computes it by reading them all."""

    arrays: Opaque
    count: int
    contents: str | Callable[[], str]


class FromMapStyle(Source, op="from_map_style"):
    """Items ``dataset[i]`` for i in ``range(len(dataset))``."""

    dataset: Opaque
    count: int


class FromParquet(Source, op="from_parquet"):
    """Rows as elements: a dict by column."""

    patterns: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    digest: str = ""


class FromList(Source, op="from_list"):
    """Items of a sequence."""

    items: Opaque
    count: int


class FromText(Source, op="from_text"):
    """Lines as elements: ``str``."""

    patterns: tuple[str, ...]
    compression: str | None = None
    """None (by the file's ending), ``""`` (none), ``"GZIP"`` or ``"ZLIB"``; also of the nodes below."""


class FromCSV(Source, op="from_csv"):
    """Rows of CSV files as elements: a dict by column."""

    patterns: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    """Columns to read; None: all."""
    names: tuple[str, ...] | None = None
    """Columns of the files, which have no line that says them; None: the first line of each does."""
    types: Any = None
    """Type of columns, a dict of "int", "float", "str", "bytes" or "bool" by name; others as the data look."""
    delimiter: str = ","
    compression: str | None = None

    @property
    def is_typed(self) -> bool:
        """Whether which columns are read, and their types, follow from no file."""
        wanted = self.names if self.columns is None else self.columns
        return wanted is not None and {*wanted} <= {*(self.types or {})}


class FromFixedLengthRecords(Source, op="from_fixed_length_records"):
    """Records of one length as elements: ``bytes``."""

    patterns: tuple[str, ...]
    record_bytes: int
    header_bytes: int = 0
    """Bytes at a file's beginning that are no record."""
    footer_bytes: int = 0
    """Bytes at a file's end that are no record."""
    compression: str | None = None


class Load(Source, op="load"):
    """Elements that ``save`` has written."""

    path: str


class FromGenerator(FlatMap, op="from_generator"):
    """All elements of ``fn()``, an iterable; its input is one element, which the function doesn't get."""
