"""Arrays source (``Dataset.from_arrays``): rows of arrays in memory.

Workers on the same host map the arrays' memory (:mod:`millrace.elements.sealed_memory`); others get a copy of it.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.layout import ALIGNMENT
from millrace.elements.recycled_arrays import Bytes
from millrace.elements.sealed_memory import AVAILABLE, SealedMemory, fill
from millrace.elements.tree import path_text
from millrace.errors import PipelineError, ShippingError
from millrace.graph.source_nodes import FromArrays
from millrace.ops.stacking import rebuild
from millrace.planning.split_table import SplitTable, positions_table
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress

Array = npt.NDArray[Any]

_PIECE_BYTES = 4 << 20


def list_source(node: FromArrays, _reads: Reads, _seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one position per row."""
    return positions_table(node.count)


def open_source(node: FromArrays, table: SplitTable, _reads: Reads) -> Arrays:
    """Return the arrays themselves."""
    arrays: Arrays = node.arrays.value
    return arrays


class ArrayLayout:
    """Layout of arrays in one piece of memory, and of elements in their rows.

    Attributes:
        structure: structure of the elements, with the number of an array in place of each leaf.
        arrays: (dtype, shape, offset in bytes) of each.
        size: bytes of all of them.
    """

    def __init__(self, structure: Any, arrays: Sequence[Array]) -> None:
        self.structure = structure
        self.arrays: list[tuple[np.dtype[Any], tuple[int, ...], int]] = []
        at = 0
        for array in arrays:
            self.arrays.append((array.dtype, array.shape, at))
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self.size = max(at, ALIGNMENT)  # there is no memory of nothing

    def views(self, memory: Bytes) -> list[Array]:
        """View the arrays that lie in this memory."""
        return [
            np.ndarray(shape, dtype, memory.data, start) if np.prod(shape) else np.empty(shape, dtype)
            for dtype, shape, start in self.arrays
        ]


class ShippedArrays:
    """Arrays whose contents travel separately from the functions; opened where they are needed.

    Attributes:
        digest: of the memory that holds them.
    """

    def __init__(self, shape: ArrayLayout, digest: str) -> None:
        self._shape, self.digest = shape, digest

    def opened(self, memory: Bytes) -> Arrays:
        """Open the arrays, in memory that holds them."""
        return Arrays(self._shape.structure, self._shape.views(memory))


def open_shipped(values: Sequence[Any], memory: Callable[[str], Bytes]) -> list[Any]:
    """Replace shipped arrays among the values of a bundle by the arrays; ``memory`` returns memory by digest."""
    return [each.opened(memory(each.digest)) if isinstance(each, ShippedArrays) else each for each in values]


class Arrays:
    """Arrays with equally many rows. Elements are read-only views of them.

    Args:
        structure: see :class:`ArrayLayout`.
        arrays: of one dimension at least; nobody writes to them any more.

    Attributes:
        count: number of rows.
    """

    def __init__(self, structure: Any, arrays: Sequence[Array]) -> None:
        self.structure = structure
        self.arrays = [array.view() for array in arrays]
        for array in self.arrays:
            array.flags.writeable = False
        self.count = len(self.arrays[0])
        self._digest = ""
        self._memory: weakref.ref[SealedMemory] | None = None

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[Any]:
        """Read the rows at ``positions``."""
        return _elements(self.structure, [_rows(array, positions) for array in self.arrays], len(positions))

    @functools.cached_property
    def shape(self) -> ArrayLayout:
        """Layout of the arrays in shared memory."""
        return ArrayLayout(self.structure, self.arrays)

    def contents(self) -> str:
        """Hash the contents: the same for the same arrays in any process. The arrays are read once."""
        if not self._digest:
            hashed = hashlib.blake2b(digest_size=16)
            for piece in self._pieces():
                hashed.update(piece.data)
            self._digest = hashed.hexdigest()
        described = repr(
            (self.structure, [(repr(dtype), shape) for dtype, shape, _ in self.shape.arrays], self._digest)
        )
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()

    def share(self) -> SealedMemory:
        """Copy the arrays to memory that other processes of this host can map; one copy as long as somebody keeps it.

        Raises:
            ShippingError: there is no room for it, or no such memory on this platform.
            PipelineError: they are not what they were when they were hashed.
        """
        shared = self._memory() if self._memory is not None else None
        if shared is not None:
            return shared
        if not AVAILABLE:
            raise ShippingError("from_arrays() on a service needs Linux, which has memory that processes can share")
        try:
            memory = fill(self._pieces(), self.shape.size)
        except OSError as error:
            raise ShippingError(
                f"there is no room for the copy of {self} that the workers share, {self.shape.size:,} bytes "
                f"({error.strerror}): keep them in files instead, which workers open"
            ) from error
        if self._digest not in ("", memory.digest):
            raise PipelineError(
                f"{self} were written to since their hash was taken; arrays that from_arrays() was given must stay as "
                "they are"
            )
        self._digest, self._memory = memory.digest, weakref.ref(memory)
        return memory

    def shipped(self) -> ShippedArrays:
        """Stand-in for them among a pipeline's functions."""
        return ShippedArrays(self.shape, self.share().digest)

    def _pieces(self) -> Iterator[Bytes]:
        """Bytes of the whole memory, in order."""
        at = 0
        for array, (_, _, start) in zip(self.arrays, self.shape.arrays, strict=True):
            if start > at:
                yield np.zeros(start - at, np.uint8)
            rows = max(1, _PIECE_BYTES * len(array) // max(array.nbytes, 1))
            for first in range(0, len(array) if array.nbytes else 0, rows):
                yield np.ascontiguousarray(array[first : first + rows]).reshape(-1).view(np.uint8)
            at = start + array.nbytes
        if self.shape.size > at:
            yield np.zeros(self.shape.size - at, np.uint8)

    def __reduce__(self) -> tuple[type[Arrays], tuple[Any, list[Array]]]:
        """Describe how a copy is made, which shares no memory and no digest with this one."""
        return Arrays, (self.structure, self.arrays)

    def __str__(self) -> str:
        return _described(self.structure, self.arrays)


def arrays_of(value: Any) -> Arrays:
    """Collect arrays from the user's value: in dicts, tuples and lists, or one alone.

    Raises:
        PipelineError: there is none, or their numbers of rows differ; the message names them.
    """
    found: list[tuple[str, Array]] = []
    structure = _taken_apart(value, (), found)
    if not found:
        raise PipelineError(f"from_arrays takes arrays, and there is none in {value!r}")
    lengths = [len(array) for _, array in found]
    if len(set(lengths)) > 1:
        told = ", ".join(f"{name} has {length:,}" for (name, _), length in zip(found, lengths, strict=True))
        raise PipelineError(f"from_arrays: all arrays need equally many rows, and {told}: cut or fill them")
    return Arrays(structure, [array for _, array in found])


def _taken_apart(value: Any, path: tuple[Any, ...], found: list[tuple[str, Array]]) -> Any:
    if isinstance(value, dict):
        return {key: _taken_apart(child, (*path, key), found) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return rebuild(value, [_taken_apart(child, (*path, index), found) for index, child in enumerate(value)])
    name = f"the array at {path_text(path)}" if path else "the array"
    found.append((name, _array(value, name)))
    return len(found) - 1


def _array(value: Any, name: str) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise PipelineError(f"from_arrays: {name} is masked; give its .filled(...), or data and mask as two arrays")
    if isinstance(value, (str, bytes)) or not (isinstance(value, np.ndarray) or hasattr(value, "__array__")):
        raise PipelineError(
            f"from_arrays: {name} is no array but {type(value).__name__}; write np.asarray(...), or for rows in a list "
            "from_list(rows)"
        )
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise PipelineError(
            f"from_arrays: {name} holds Python objects, which can't be shared; convert it to numbers or text of numpy, "
            "or use from_list(rows)"
        )
    if not array.ndim:
        raise PipelineError(f"from_arrays: {name} is a single value and has no rows")
    return array


def _rows(array: Array, positions: range | npt.NDArray[np.int64]) -> list[Any]:
    if array.ndim > 1:
        chosen = positions if isinstance(positions, range) else positions.tolist()
        return [array[position] for position in chosen]
    found = array[np.asarray(positions, np.int64)]
    return found.tolist() if array.dtype.kind == "U" else list(found)


def _elements(structure: Any, columns: Sequence[list[Any]], count: int) -> list[Any]:
    """Build elements of this structure from the values of each leaf."""
    if isinstance(structure, int):
        return columns[structure]
    children = structure.values() if isinstance(structure, dict) else structure
    parts = [_elements(child, columns, count) for child in children]
    if not parts:
        return [rebuild(structure, ()) for _ in range(count)]
    if type(structure) is tuple:
        return list(zip(*parts, strict=True))
    if type(structure) is dict:
        return [dict(zip(structure, values, strict=True)) for values in zip(*parts, strict=True)]
    return [rebuild(structure, values) for values in zip(*parts, strict=True)]


def _described(structure: Any, arrays: Sequence[Array]) -> str:
    """Describe arrays for messages: ``{'x': float32[100, 28, 28], 'y': int64[100]}``."""
    if isinstance(structure, int):
        array = arrays[structure]
        return f"{array.dtype}{list(array.shape)}"
    if isinstance(structure, dict):
        return "{" + ", ".join(f"{key!r}: {_described(each, arrays)}" for key, each in structure.items()) + "}"
    inside = ", ".join(_described(each, arrays) for each in structure)
    return f"[{inside}]" if isinstance(structure, list) else f"({inside})"
