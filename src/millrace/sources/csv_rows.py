"""CSV source (``Dataset.from_csv``): one element per row, a dict by column.

Files are cut at byte ranges between lines, so that a value in quotes must not hold the end of a line. Types that the
user has not given are those of the first MiB of the first file, the same for all workers; a missing number is None, and
"nan" in a column of floats is a value.
"""

from __future__ import annotations

import csv
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from millrace.errors import PipelineError, SourceCorruptError
from millrace.graph.source_nodes import FromCSV
from millrace.planning.split_table import Split, SplitTable
from millrace.sources.line_blocks import LineBlocks, TextBlock, list_lines
from millrace.sources.reads import Reads
from millrace.sources.rows import to_rows
from millrace.sources.source import ListingProgress, ignore_progress, sliced
from millrace.sources.store_requests import Entry

_ARROW_TYPES = {"int": "int64", "float": "float64", "str": "string", "bytes": "binary", "bool": "bool"}
_FIRST_LINES_KEPT = 64


def list_source(
    node: FromCSV, reads: Reads, seen: ListingProgress = ignore_progress, size: int | None = None
) -> SplitTable:
    """List ranges of about ``size`` bytes (None: by the amount of data), or whole files."""
    return list_lines(node, seen, size)


def open_source(node: FromCSV, table: SplitTable, reads: Reads) -> _Rows:
    """Make the reader of the rows."""
    return _Rows(node, LineBlocks(node, table, reads))


class _Rows:
    def __init__(self, node: FromCSV, blocks: LineBlocks) -> None:
        self._node, self._blocks = node, blocks
        self._lock = threading.Lock()
        self._named: dict[str, list[str]] = {}

    def entries(self, unit: int, _start: int = 0, _stop: int = -1) -> Iterator[Entry]:
        return self._blocks.entries(unit)

    def read(
        self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]
    ) -> Iterator[list[dict[str, Any]]]:
        return sliced(self._rows(split), start, stop, chunk_size)

    def _rows(self, split: Split) -> Iterator[list[dict[str, Any]]]:
        import pyarrow as pa

        names = self._names(split)
        if not names:
            return
        wanted = self._all_columns(split, names) if self._node.columns is None else list(self._node.columns)
        _check_has("columns", wanted, names, split)
        for block in self._blocks.read(split):
            types = {name: self._types.get(name, pa.string()) for name in wanted}
            for batch in self._parse(split, block, names, wanted, types):
                yield to_rows(batch, wanted)

    def _all_columns(self, split: Split, names: list[str]) -> list[str]:
        """Return the columns of all files, in the order of the first one."""
        first, columns = next((each, found) for each in self._blocks.splits if (found := self._names(each)))
        if {*columns} != {*names}:
            raise SourceCorruptError(
                f"{split.location} has the columns {', '.join(map(repr, names))}, and {first.location} has "
                f"{', '.join(map(repr, columns))}. Say columns=[...] that all files have, or read them as two datasets"
            )
        return columns

    def _names(self, split: Split) -> list[str]:
        """Names of the columns of a split's file; none if it is a compressed one in which there is nothing."""
        if self._node.names is not None:
            return list(self._node.names)
        with self._lock:
            found = self._named.get(split.location)
        if found is None:
            line = self._blocks.first_line(split)
            text = line.decode("utf-8-sig", "replace").rstrip("\r\n")
            try:
                found = next(csv.reader([text], delimiter=self._node.delimiter), [])
            except csv.Error as error:
                raise SourceCorruptError(
                    f"{split.location}: its first line should say its columns, and is no text in UTF-8 that ends in a "
                    f"line feed ({error})"
                ) from error
            if line and (len(set(found)) < len(found) or not found):
                raise SourceCorruptError(
                    f"{split.location}: its first line should say its columns, and says {found}. Give names=[...] "
                    "where there is no such line"
                )
            with self._lock:
                self._named[split.location] = found
                for old in list(self._named)[:-_FIRST_LINES_KEPT]:
                    del self._named[old]
        return found

    @functools.cached_property
    def _types(self) -> dict[str, Any]:
        """Arrow type of each column."""
        import pyarrow as pa

        given = {name: pa.type_for_alias(_ARROW_TYPES[kind]) for name, kind in (self._node.types or {}).items()}
        for split in self._blocks.splits:
            if not (names := self._names(split)):
                continue
            _check_has("types", given, names, split)
            block = next(iter(self._blocks.read(self._blocks.widened(split))), None)
            for batch in [] if block is None else self._parse(split, block, names, names, given):
                assert block is not None
                self._check_whole_numbers(split, block, names, {*batch.schema.names} - {*given}, batch)
                known = {field.name: field.type for field in batch.schema}
                plain = {name: kind if _is_plain(kind) else pa.string() for name, kind in known.items()}
                return {**plain, **given}
        return given

    def _check_whole_numbers(
        self, split: Split, block: TextBlock, names: list[str], guessed: set[str], batch: Any
    ) -> None:
        """Refuse whole numbers that are too large for int64, of which floats would make other ones."""
        import pyarrow as pa
        import pyarrow.compute as pc

        floats = [name for name in guessed if pa.types.is_floating(batch[name].type)]
        for name in [each for each in floats if pc.any(pc.greater_equal(pc.abs(batch[each]), 2.0**63)).as_py()]:
            for written in self._parse(split, block, names, [name], {name: pa.string()}):
                if not pc.all(pc.match_substring_regex(written[name], r"^\s*[-+]?\d*\s*$")).as_py():
                    break
            else:
                raise SourceCorruptError(
                    f"{split.location}: column {name!r} has whole numbers that 64 bits don't hold. Say "
                    f"types={{{name!r}: str}} to have them as they are written, or float to have them about"
                )

    def _parse(
        self, split: Split, block: TextBlock, names: list[str], wanted: list[str], types: dict[str, Any]
    ) -> list[Any]:
        """Parse a block to record batches."""
        import pyarrow as pa

        data = block.data
        if not block.at and self._node.names is None:
            data = data[data.find(b"\n") + 1 :] if b"\n" in data else b""
        if not data.strip():
            return []
        if _quotes_span_lines(data):
            raise SourceCorruptError(
                f"{split.location}, in the lines from byte {block.at} on: one has an odd number of quotes. A value in "
                "quotes must not hold the end of a line, as files are cut at these: read such files with from_files"
            )
        try:
            table = self._with_nan(self._table(data, names, wanted, types), data, names)
        except pa.ArrowInvalid as error:
            raise SourceCorruptError(
                f"{split.location}, in the lines from byte {block.at} on: {str(error).strip()}. Say what a column "
                "holds with types={...}"
            ) from None
        found: list[Any] = table.to_batches()
        return found

    def _table(self, data: bytes, names: list[str], wanted: list[str], types: dict[str, Any]) -> Any:
        """Parse lines to a table of one chunk."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        return arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
            arrow_csv.ParseOptions(delimiter=self._node.delimiter),
            arrow_csv.ConvertOptions(column_types=types, include_columns=wanted),
        ).combine_chunks()

    def _with_nan(self, table: Any, data: bytes, names: list[str]) -> Any:
        """Make "nan", which Arrow takes for a missing value in each column, a value in those of floats."""
        import pyarrow as pa
        import pyarrow.compute as pc

        floats = [each.name for each in table.schema if pa.types.is_floating(each.type) and table[each.name].null_count]
        if not floats:
            return table
        written = self._table(data, names, floats, dict.fromkeys(floats, pa.string()))
        for name in floats:
            is_nan = pc.match_substring_regex(written[name], r"^\s*[-+]?nan\s*$", ignore_case=True)
            kind = table.schema.field(name).type
            values = pc.if_else(is_nan, pa.scalar(float("nan"), kind), table[name])
            table = table.set_column(table.schema.get_field_index(name), pa.field(name, kind), values)
        return table


def _check_has(argument: str, wanted: Iterable[str], names: list[str], split: Split) -> None:
    if missing := [name for name in wanted if name not in names]:
        raise PipelineError(
            f"from_csv({argument}=...): {split.location} has no column {', '.join(map(repr, missing))}. Its columns "
            f"are {', '.join(map(repr, names))}"
        )


def _quotes_span_lines(data: bytes) -> bool:
    """Whether a line has an odd number of quotes; two of them within quotes are one of the value."""
    if b'"' not in data:
        return False
    characters = np.frombuffer(data, np.uint8)
    open_after = np.logical_xor.accumulate(characters == ord('"'))
    return bool(open_after[characters == ord("\n")].any() or open_after[-1])


def _is_plain(kind: Any) -> bool:
    import pyarrow.types as types  # noqa: PLR0402

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_string(kind))
