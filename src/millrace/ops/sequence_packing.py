"""Operator ``pack``: rows of exactly ``length`` tokens, each filled with whole sequences."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.elements.tree import Path
from millrace.errors import PipelineError
from millrace.graph.nodes import Pack
from millrace.ops.collecting import Outbox, with_leftovers, with_outbox
from millrace.ops.operator import Context
from millrace.ops.padding import fill_value
from millrace.ops.stacking import Array, MismatchError, as_array, at

TOKENS, SEGMENTS, POSITIONS = "tokens", "segment_ids", "positions"
"""Keys of a row: the tokens of sequences that are no dicts, the number of each token's sequence, its place in it."""

Leaves = list[Array]
"""Leaves of a sequence or a row, of equal lengths."""

_Kind = tuple[np.dtype[Any], int, tuple[int, ...]]
"""Kind of a leaf: its dtype, its number of dimensions, and the shape of a token."""
_NEARLY_FULL = 32
"""A row with at most one in so many of its tokens free is given out at a task's end rather than left to a tail."""
_SERIAL_BITS = 40
_BARE: tuple[Path, ...] = ((),)
"""Paths of the leaves of a sequence that is no dict."""


@dataclass(slots=True)
class _Row:
    """Open row.

    Attributes:
        leaves: arrays of a whole row's length, filled up to the last end.
        ends: 0, and the end of each sequence.
        arrivals: number of each sequence among all.
    """

    leaves: Leaves
    ends: list[int] = field(default_factory=lambda: [0])
    arrivals: list[int] = field(default_factory=list)


@with_outbox
def run(outbox: Outbox, node: Pack, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Put each sequence into the open row with the least room for it; yield rows as soon as they are full.

    Where no row has room, one more is opened; with ``node.window`` of them open, the fullest is padded and yielded
    first. At the end all are padded and yielded, except those that a later task goes on with.

    Raises:
        PipelineError: if an element is no sequence or too long, or sequences differ in their leaves or dtypes.
    """
    sequences = _Sequences(node, context)
    rows = _OpenRows(node, sequences)
    origin, position = context.mixed(), 0
    for chunk in with_leftovers(inputs[0], context):
        for index, element in enumerate(chunk.elements):
            try:
                pieces = sequences.take_apart(element)
            except MismatchError as error:
                name = context.name_of(chunk.origin, int(chunk.positions[index]))
                raise PipelineError(f"{error} The element is {name}.") from None
            for leaves in pieces:
                row = rows.put(leaves)
                if row is not None:
                    yield from outbox.add(sequences.finish(row), origin, position)
                    position += 1
        yield from outbox.flush()
    full, rest = rows.rest()
    if rest and context.leave(sequences.elements_of(rest)):
        rest = []
    for row in (*full, *rest):
        yield from outbox.add(sequences.finish(row), origin, position)
        position += 1
    yield from outbox.flush()


class _OpenRows:
    """Open rows, at most ``node.window`` of them.

    They are kept in one sorted list of numbers, each a row's room and below it its serial number: finding the row with
    the least room that is enough is a bisection, and of equal ones the oldest is found.
    """

    def __init__(self, node: Pack, sequences: _Sequences) -> None:
        self._length, self._window, self._sequences = node.length, node.window, sequences
        self._order: list[int] = []
        self._rows: dict[int, _Row] = {}
        self._opened = self._arrived = 0

    def put(self, leaves: Leaves) -> _Row | None:
        """Put a sequence into a row; return the row that is closed by that, full or not."""
        tokens, length = len(leaves[0]), self._length
        closed = None
        place = bisect_left(self._order, tokens << _SERIAL_BITS)
        if place < len(self._order):
            serial = self._order.pop(place) & ((1 << _SERIAL_BITS) - 1)
        else:
            if len(self._order) == self._window and tokens < length:
                closed = self._rows.pop(self._order.pop(0) & ((1 << _SERIAL_BITS) - 1))
            serial = self._opened
            self._opened += 1
            self._rows[serial] = _Row(self._sequences.empty_row())
        row = self._rows[serial]
        start = row.ends[-1]
        end = start + tokens
        for leaf, tokens_of_leaf in zip(row.leaves, leaves, strict=True):
            leaf[start:end] = tokens_of_leaf
        row.ends.append(end)
        row.arrivals.append(self._arrived)
        self._arrived += 1
        if end == length:
            return self._rows.pop(serial)
        insort(self._order, (length - end) << _SERIAL_BITS | serial)
        return closed

    def rest(self) -> tuple[list[_Row], list[_Row]]:
        """List the rows that are nearly full, and the others, as they were opened."""
        full: list[_Row] = []
        others: list[_Row] = []
        for row in self._rows.values():
            room = self._length - row.ends[-1]
            (full if room * _NEARLY_FULL <= self._length else others).append(row)
        return full, others


class _Sequences:
    """Sequences as arrays and back: elements to leaves, leaves to rows. All are like the first."""

    def __init__(self, node: Pack, context: Context) -> None:
        self._node, self._context, self._label = node, context, context.label
        self._paths: tuple[Path, ...] = ()
        self._kinds: list[_Kind] = []
        self._padding: Leaves = []
        self._counting = np.arange(node.length, dtype=np.int32)

    def take_apart(self, element: Any) -> list[Leaves]:
        """Find the leaves of an element: of several pieces if it is split, of none if it has no tokens.

        Raises:
            MismatchError: it cannot be packed.
        """
        values = self._values(element)
        leaves = [value if type(value) is np.ndarray else self._array(value, path) for path, value in values.items()]
        kinds = [(leaf.dtype, leaf.ndim, leaf.shape[1:]) for leaf in leaves]
        unlike = kinds != self._kinds
        if unlike:
            self._check_numbers(values, leaves)
        tokens, length = len(leaves[0]), self._node.length
        if any(len(leaf) != tokens for leaf in leaves):
            listed = ", ".join(f"{len(leaf):,}{at(path)}" for path, leaf in zip(values, leaves, strict=True))
            raise self._mismatch(
                f"different numbers of tokens: {listed}. Leaves that are packed side by side need equally many; "
                "choose them with keys=[...]."
            )
        if not tokens:
            return []
        if unlike:
            self._begin(tuple(values), kinds)
        if tokens <= length:
            return [leaves]
        if self._node.too_long == "error":
            raise self._mismatch(
                f"a sequence of {tokens:,} tokens does not fit into a row of {length:,}. Choose a greater length, "
                'write too_long="split" or too_long="truncate", or leave it out with a filter() before.'
            )
        starts = range(0, length if self._node.too_long == "truncate" else tokens, length)
        return [[leaf[start : start + length] for leaf in leaves] for start in starts]

    def empty_row(self) -> Leaves:
        """Allocate the leaves of a row, contents arbitrary."""
        return [self._context.allocate((self._node.length, *shape), dtype) for dtype, _, shape in self._kinds]

    def finish(self, row: _Row) -> dict[Any, Array]:
        """Pad a row, and make the element of it that comes out."""
        length, used = self._node.length, row.ends[-1]
        self._context.padded((length - used) * len(row.leaves), length * len(row.leaves))
        for leaf, value in zip(row.leaves, self._padding, strict=True):
            leaf[used:] = value
        segments, positions = np.zeros(length, np.int32), np.zeros(length, np.int32)
        for number, (start, end) in enumerate(pairwise(row.ends), 1):
            segments[start:end] = number
            positions[start:end] = self._counting[: end - start]
        return {**dict(zip(self._names(), row.leaves, strict=True)), SEGMENTS: segments, POSITIONS: positions}

    def elements_of(self, rows: Sequence[_Row]) -> list[Any]:
        """Make elements of the sequences in these rows again, in the order in which they came."""
        found = [
            (arrival, [leaf[start:end] for leaf in row.leaves])
            for row in rows
            for arrival, (start, end) in zip(row.arrivals, pairwise(row.ends), strict=True)
        ]
        found.sort(key=lambda each: each[0])
        names = None if self._paths == _BARE else self._names()
        return [leaves[0] if names is None else dict(zip(names, leaves, strict=True)) for _, leaves in found]

    def _names(self) -> list[Any]:
        return [path[0] if path else TOKENS for path in self._paths]

    def _values(self, element: Any) -> dict[Path, Any]:
        """Find the parts of an element that are packed, in the order of the first one's."""
        keys = self._node.keys
        bare = isinstance(element, (np.ndarray, list)) or not isinstance(element, Mapping)
        if not bare:
            missing = [key for key in keys or () if key not in element]
            if missing:
                raise self._mismatch(f"there is no {_listed(missing)} in a dict with {_listed(element)}.")
            values: dict[Path, Any] = {(key,): element[key] for key in (element if keys is None else keys)}
            if (SEGMENTS,) in values or (POSITIONS,) in values or not values:
                raise self._mismatch(
                    f"a dict with {_listed(element)} cannot be packed: rows get {SEGMENTS!r} and {POSITIONS!r} beside "
                    "at least one leaf. Choose the leaves with keys=[...], or rename them in a map() before."
                )
        elif keys is not None:
            raise self._mismatch(f"a value of type {type(element).__name__} is no dict with {_listed(keys)}.")
        else:
            values = {(): element}
        if not self._paths or tuple(values) == self._paths:
            return values
        if values.keys() != set(self._paths):
            raise self._mismatch(
                f"{_kind(values)} follows {_kind(self._paths)}. Make them alike in a map() before, or choose the "
                "leaves with keys=[...]."
            )
        return {path: values[path] for path in self._paths}

    def _array(self, value: Any, path: Path) -> Array:
        if not isinstance(value, list) and not hasattr(value, "__array__"):
            raise self._no_sequence(value, path)
        try:
            return np.array(value) if isinstance(value, list) else as_array(value, self._label, path)
        except ValueError:
            raise self._mismatch(f"items of different shapes{at(path)} are no sequence of tokens.") from None

    def _check_numbers(self, values: Mapping[Path, Any], leaves: Leaves) -> None:
        for (path, value), leaf in zip(values.items(), leaves, strict=True):
            if not leaf.ndim:
                raise self._no_sequence(value, path)
            if leaf.dtype.kind not in "biufc":
                raise self._mismatch(f"tokens{at(path)} have dtype {leaf.dtype}. Tokens are numbers.")

    def _no_sequence(self, value: Any, path: Path) -> MismatchError:
        remedy = "A sequence is an array or a list of numbers; of dicts choose the leaves with keys=[...]."
        if isinstance(value, bytes):
            remedy = "For bytes as tokens, write map(lambda value: np.frombuffer(value, np.uint8)) before."
        return self._mismatch(f"a value of type {type(value).__name__}{at(path)} is no sequence of tokens. {remedy}")

    def _begin(self, paths: tuple[Path, ...], kinds: list[_Kind]) -> None:
        """Note what the first sequence's leaves are; those of a later one are others, which is an error."""
        for path, one, first in zip(self._paths, kinds, self._kinds, strict=False):
            if one != first:
                raise self._mismatch(
                    f"tokens{at(path)} of dtype {one[0]} and shape {one[2]} follow some of dtype {first[0]} and shape "
                    f"{first[2]}. Make them alike in a map() before."
                )
        values = self._node.padding_values
        given = values if isinstance(values, Mapping) else {}
        unknown = [key for key in given if (key,) not in paths and (paths, key) != (_BARE, TOKENS)]
        if unknown:
            raise PipelineError(f"{self._label}: padding_values has {_listed(unknown)}, and there is no such leaf.")
        self._paths, self._kinds = paths, kinds
        self._padding = [
            fill_value(given.get(name) if isinstance(values, Mapping) else values, dtype, self._label, path)
            for name, path, (dtype, _, _) in zip(self._names(), paths, kinds, strict=True)
        ]

    def _mismatch(self, said: str) -> MismatchError:
        return MismatchError(f"{self._label}: {said}", 0)


def _listed(keys: Iterable[Any]) -> str:
    return " and ".join(map(repr, keys)) or "no keys"


def _kind(paths: Iterable[Path]) -> str:
    keys = [path[0] for path in paths if path]
    return f"a dict with {_listed(keys)}" if keys else "a sequence that is no dict"
