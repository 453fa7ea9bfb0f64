"""Pytrees: what an element may be, and how to take one apart.

An element is a *leaf* or a dict, list, tuple or namedtuple of elements. Whatever is not one of these containers is a
leaf: numpy arrays and scalars, ``bytes``, ``str``, ``int``, ``float``, ``complex``, ``bool``, ``None``, and array-likes
such as torch tensors. Within a pipeline containers keep their kind; users get plain ones and namedtuples
(:mod:`millrace.elements.plain`), in the order of dict keys. Subclasses of dict and list, and of tuple other than
namedtuples, are rebuilt as the plain container.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np

Path: TypeAlias = tuple[Any, ...]
"""Dict keys and positions that lead from an element to a part of it."""

_NUMBER_BYTES = 32
_ARRAY_BYTES = 112
_ROUNDING = 15
"""Most bytes by which Python rounds an allocation up; a string of one byte takes 48 bytes rather than 34."""
_DTYPE, _NBYTES = attrgetter("dtype"), attrgetter("nbytes")
_CONTAINER_BYTES = 64
_SLOT_BYTES = 8
_NUMBERS = frozenset({int, float, bool, type(None)})


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """Structure of an element. Equal for two elements of the same structure, whatever the order of their dict keys.

    Attributes:
        container: dict, list, tuple or a namedtuple's class; None for a leaf.
        keys: of a dict, sorted.
        children: what is inside, in the order of ``keys`` or of position.
        order: of a dict, the keys in insertion order; not compared.
    """

    container: type | None
    keys: tuple[Hashable, ...] = ()
    children: tuple[TreeSpec, ...] = ()
    order: tuple[Hashable, ...] = field(default=(), compare=False)


_LEAF = TreeSpec(None)


def _find_container(kind: type) -> type | None:
    """Container that instances of ``kind`` are treated as; None if they are leaves."""
    if issubclass(kind, tuple):
        return kind if hasattr(kind, "_fields") else tuple
    return next((plain for plain in (dict, list) if issubclass(kind, plain)), None)


_container: Callable[[type], type | None] = lru_cache(maxsize=1024)(_find_container)


def _sorted_keys(mapping: dict[Any, Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(mapping))
    except TypeError:  # keys of different types
        return tuple(sorted(mapping, key=lambda key: (type(key).__qualname__, repr(key))))


def _build(container: type, children: Iterable[Any]) -> Any:
    make = getattr(container, "_make", container)
    return make(children)


def flatten(element: Any) -> tuple[list[Any], TreeSpec]:
    """Split ``element`` into its leaves and its structure.

    Leaves come by position, and by sorted key within a dict, so that elements of equal structure have their leaves in
    the same order: ``unflatten(spec_of_a, leaves_of_b)`` is right whenever the two specs are equal.
    """
    leaves: list[Any] = []
    return leaves, _flatten(element, leaves)


def _flatten(element: Any, leaves: list[Any]) -> TreeSpec:
    container = _container(type(element))
    if container is None:
        leaves.append(element)
        return _LEAF
    if container is dict:
        keys = _sorted_keys(element)
        return TreeSpec(dict, keys, tuple([_flatten(element[key], leaves) for key in keys]), tuple(element))
    return TreeSpec(container, (), tuple([_flatten(child, leaves) for child in element]))


def unflatten(spec: TreeSpec, leaves: Iterable[Any]) -> Any:
    """Build the element of structure ``spec`` with these leaves, in the order of :func:`flatten`.

    Raises:
        ValueError: if there are more or fewer leaves than ``spec`` has.
    """
    remaining = iter(leaves)
    try:
        element = _unflatten(spec, remaining)
    except StopIteration:
        raise ValueError("too few leaves: the structure has more leaves than were given") from None
    if next(remaining, remaining) is not remaining:
        raise ValueError("too many leaves: the structure has fewer leaves than were given")
    return element


def _unflatten(spec: TreeSpec, leaves: Iterator[Any]) -> Any:
    if spec.container is None:
        return next(leaves)
    children = [_unflatten(child, leaves) for child in spec.children]
    if spec.container is dict:
        by_key = dict(zip(spec.keys, children, strict=True))
        return {key: by_key[key] for key in spec.order}
    return _build(spec.container, children)


def tree_map(fn: Callable[..., Any], element: Any, *others: Any) -> Any:
    """Apply ``fn`` to each leaf, or to the leaves at the same place of several elements, in the structure of the first.

    Raises:
        ValueError: if the structures differ; the message names the first place where they do, e.g. ``["image"][0]``.
    """
    if others:
        return _map_several(fn, (element, *others), ())
    return _map(fn, element)


def _map(fn: Callable[[Any], Any], element: Any) -> Any:
    container = _container(type(element))
    if container is None:
        return fn(element)
    if container is dict:
        return {key: _map(fn, child) for key, child in element.items()}
    return _build(container, [_map(fn, child) for child in element])


def _map_several(fn: Callable[..., Any], elements: tuple[Any, ...], path: Path) -> Any:
    first = elements[0]
    container = _container(type(first))
    for number, other in enumerate(elements[1:], 1):
        same = container is _container(type(other))
        if same and container is not None:
            same = len(first) == len(other) and (container is not dict or first.keys() == other.keys())
        if not same:
            raise ValueError(
                f"elements differ in structure at {path_text(path)}: "
                f"element 0 has {_describe(first)}, element {number} has {_describe(other)}"
            )
    if container is None:
        return fn(*elements)
    if container is dict:
        return {key: _map_several(fn, tuple([each[key] for each in elements]), (*path, key)) for key in first}
    rows = zip(*elements, strict=True)
    return _build(container, [_map_several(fn, row, (*path, index)) for index, row in enumerate(rows)])


def _describe(element: Any) -> str:
    """Describe the uppermost level of an element's tree."""
    container = _container(type(element))
    if container is None:
        return f"a leaf of type {type(element).__name__}"
    if container is dict:
        return "a dict with keys " + (", ".join(map(repr, element)) or "(none)")
    return f"a {container.__name__} of {len(element)}"


def path_text(path: Path) -> str:
    """Path as it would be written in Python, e.g. ``["image"][0]``."""
    return "".join([f'["{step}"]' if isinstance(step, str) else f"[{step!r}]" for step in path]) or "(root)"


def nbytes(element: Any) -> int:
    """Estimated memory of ``element`` in bytes.

    Numbers count 32, arrays their data and a small overhead, strings what Python allocates for them, containers their
    slots and what is in them. Dict keys are not counted: elements of one pipeline share them. Other objects count what
    ``nbytes`` or ``sys.getsizeof`` says, which for a Pillow image is its shell only.
    """
    kind = type(element)
    if kind in _NUMBERS:
        return _NUMBER_BYTES
    if kind is np.ndarray:
        return _array_bytes(element)
    if kind is bytes or kind is str:
        return sys.getsizeof(element) + _ROUNDING
    container = _container(kind)
    if container is None:
        return _leaf_bytes(element)
    children = element.values() if container is dict else element
    inside = nbytes_of(children) if container is list else sum(map(nbytes, children))  # long ones are lists
    return _CONTAINER_BYTES + _SLOT_BYTES * len(element) + inside


def _array_bytes(array: np.ndarray[Any, Any]) -> int:
    inside: int = sum(map(nbytes, array.flat)) if array.dtype.kind == "O" else 0
    size: int = array.nbytes
    return _ARRAY_BYTES + size + inside


def _leaf_bytes(leaf: Any) -> int:
    if isinstance(leaf, np.ndarray):
        return _array_bytes(leaf)
    size = getattr(leaf, "nbytes", None)
    if isinstance(size, int):
        return _NUMBER_BYTES + size
    return sys.getsizeof(leaf)


class NumberList(list[Any]):
    """List of numbers only, as its maker knows; so nobody has to look at each of them."""


def nbytes_of(elements: Sequence[Any]) -> int:
    """Sum of :func:`nbytes` over many elements; counted column by column, about 50 ns a leaf."""
    if type(elements) is NumberList:
        return _NUMBER_BYTES * len(elements)
    kinds = set(map(type, elements))
    if kinds <= _NUMBERS:
        return _NUMBER_BYTES * len(elements)
    if len(kinds) == 1:
        kind = kinds.pop()
        if kind is dict:
            columns = by_key(elements)
            if columns is not None:
                return _shells(elements, len(columns)) + sum([nbytes_of(column) for _, column in columns])
        elif kind is tuple or kind is list:
            lengths = set(map(len, elements))
            if len(lengths) == 1:
                return _shells(elements, lengths.pop()) + sum(map(nbytes_of, zip(*elements, strict=True)))
        elif kind is str or kind is bytes:
            return sum(map(sys.getsizeof, elements)) + _ROUNDING * len(elements)
        elif kind is np.ndarray and not any(dtype.hasobject for dtype in set(map(_DTYPE, elements))):
            of_values: int = sum(map(_NBYTES, elements))
            return _ARRAY_BYTES * len(elements) + of_values
    return sum(map(nbytes, elements))


def sizes_of(elements: Sequence[Any]) -> list[int]:
    """List :func:`nbytes` of each of many elements; counted column by column where they are alike."""
    kinds = set(map(type, elements))
    if kinds <= _NUMBERS:
        return [_NUMBER_BYTES] * len(elements)
    if len(kinds) == 1:
        kind = kinds.pop()
        columns: list[Sequence[Any]] | None = None
        if kind is dict:
            by_name = by_key(elements)
            columns = None if by_name is None else [column for _, column in by_name]
        elif (kind is tuple or kind is list) and len(set(map(len, elements))) == 1:
            columns = list(zip(*elements, strict=True))
        elif kind is str or kind is bytes:
            return [size + _ROUNDING for size in map(sys.getsizeof, elements)]
        if columns:
            shell = _CONTAINER_BYTES + _SLOT_BYTES * len(columns)
            return [shell + sum(parts) for parts in zip(*map(sizes_of, columns), strict=True)]
    return list(map(nbytes, elements))


def by_key(elements: Sequence[Any]) -> list[tuple[Any, list[Any]]] | None:
    """Group values by key of the first of ``elements``; None if they are not all dicts with the same keys."""
    first = elements[0]
    if set(map(type, elements)) == {dict}:
        try:
            if set(map(len, elements)) == {len(first)}:
                return [(key, list(map(itemgetter(key), elements))) for key in first]
        except KeyError:
            return None
    elif all(
        isinstance(each, dict) and each.keys() == first.keys() for each in elements
    ):  # a subclass may make keys up
        return [(key, [each[key] for each in elements]) for key in first]
    return None


def _shells(elements: Sequence[Any], slots: int) -> int:
    return len(elements) * (_CONTAINER_BYTES + _SLOT_BYTES * slots)
