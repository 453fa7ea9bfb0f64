"""Text source (``Dataset.from_text``): one element per line, ``str``, without its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.errors import SourceCorruptError
from millrace.graph.source_nodes import FromText
from millrace.planning.split_table import Split, SplitTable
from millrace.sources.line_blocks import LineBlocks, TextBlock, list_lines
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress, sliced
from millrace.sources.store_requests import Entry


def list_source(
    node: FromText, reads: Reads, seen: ListingProgress = ignore_progress, size: int | None = None
) -> SplitTable:
    """List ranges of about ``size`` bytes (None: by the amount of data), or whole files."""
    return list_lines(node, seen, size)


def open_source(node: FromText, table: SplitTable, reads: Reads) -> _Lines:
    """Make the reader of the lines."""
    return _Lines(LineBlocks(node, table, reads))


class _Lines:
    def __init__(self, blocks: LineBlocks) -> None:
        self._blocks = blocks

    def entries(self, unit: int, _start: int = 0, _stop: int = -1) -> Iterator[Entry]:
        return self._blocks.entries(unit)

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[str]]:
        return sliced((_lines(split, block) for block in self._blocks.read(split)), start, stop, chunk_size)


def _lines(split: Split, block: TextBlock) -> list[str]:
    try:
        text = block.data.decode()
    except UnicodeDecodeError as error:
        raise SourceCorruptError(
            f"{split.location} is no text in UTF-8: byte {block.at + error.start} is none of it. Read it with "
            "from_files, and decode it in a flat_map()"
        ) from None
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines
