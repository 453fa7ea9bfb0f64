"""Access to single elements of a message whose leaves have fixed sizes, without reading their neighbours.

The columns of such a message are known from its head alone, so the byte range of one element is, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.elements.layout import ALIGNMENT, PYTHON_DTYPES, Fixed, Node, Nothing, Record, parse_dtype, read_heads
from millrace.elements.named import named_by
from millrace.elements.recycled_arrays import Bytes

_MOST_LEAVES = 16
"""Most leaves of an element; each costs a read of its own."""


class Leaf(NamedTuple):
    """Column of a message.

    Attributes:
        start: offset of the first element's values, in bytes from the start of the message.
        nbytes: bytes of one element's values; those of the next one follow at once.
    """

    start: int
    nbytes: int


class RowLayout(NamedTuple):
    """Positions of the elements in a message.

    Attributes:
        elements: number of elements of the message.
        leaves: one or more.
        root: structure of an element.
    """

    elements: int
    leaves: tuple[Leaf, ...]
    root: Node


def fixed_row_layout(message: npt.NDArray[np.uint8]) -> RowLayout | None:
    """Layout by which single elements of ``message`` can be read; None if its head does not determine it.

    Raises:
        As :func:`millrace.elements.layout.read_heads`, and CodecError for a dtype that cannot be had here.
    """
    header, start, stop, _ = read_heads(message)
    leaves: list[Leaf] = []
    if header.rows < 1 or not _walk(header.root, header.rows, start, leaves):
        return None
    if not 0 < len(leaves) <= _MOST_LEAVES or leaves[-1].start + header.rows * leaves[-1].nbytes > stop:
        return None
    return RowLayout(header.rows, tuple(leaves), header.root)


def _walk(node: Node, rows: int, start: int, leaves: list[Leaf]) -> bool:
    """Add the node's columns in the order of the body; False: they are not all of one size in each element."""
    match node:
        case Fixed():
            if not isinstance(node.dtype, str) or min(node.shape, default=0) < 0:
                return False
            dtype = _dtype(node)
            if dtype.kind not in "biufcmM":
                return False
            at = leaves[-1].start + rows * leaves[-1].nbytes if leaves else start
            leaves.append(Leaf(at + (start - at) % ALIGNMENT, dtype.itemsize * math.prod(node.shape)))
            return True
        case Record():
            whole = node.kind != "dict" or len(node.keys) == len(node.children)
            if node.kind == "namedtuple":
                named_by(node.keys, len(node.children))
            return whole and all(_walk(child, rows, start, leaves) for child in node.children)
        case Nothing():
            return True
    return False


Maker = Callable[[Iterator[Bytes]], Any]
"""Function that makes one element of the bytes of its leaves, in their order; arrays are views of them."""


@functools.lru_cache(maxsize=256)
def maker(node: Node) -> Maker:
    """Compile a function that makes elements of this structure."""
    match node:
        case Fixed(kind="array"):
            shape, dtype = node.shape, _dtype(node)
            return lambda values: np.ndarray(shape, dtype, next(values))
        case Fixed(kind="scalar"):
            dtype = _dtype(node)
            return lambda values: np.ndarray((), dtype, next(values))[()]
        case Fixed():
            dtype = _dtype(node)
            return lambda values: np.ndarray((), dtype, next(values)).item()
        case Record():
            makers = [maker(child) for child in node.children]
            if node.kind == "dict":
                keys = node.keys
                return lambda values: {key: make(values) for key, make in zip(keys, makers, strict=True)}
            if node.kind == "namedtuple":
                named = named_by(node.keys, len(makers))
                return lambda values: named(*[make(values) for make in makers])
            kind = tuple if node.kind == "tuple" else list
            return lambda values: kind([make(values) for make in makers])
    return lambda _: None


def _dtype(node: Fixed) -> np.dtype[Any]:
    return parse_dtype(PYTHON_DTYPES.get(node.kind, node.dtype))
