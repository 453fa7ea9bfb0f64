"""Hashes of values that are given as a graph: two are alike if they look alike from their roots down.

What is shared and what is a copy makes no difference outside of cycles, and neither does the order in which anything
was found. Cycles are cut as Tarjan has it ("Depth-first search and linear graph algorithms", 1972): nodes that reach
one another have hashes of what is seen on a walk from each.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

SIZE = 16
"""Bytes of a hash."""


class ValueNode(NamedTuple):
    """One value, taken apart.

    Attributes:
        label: the value itself, without what it holds.
        children: numbers of the nodes that it holds.
        ordered: whether their order matters; it does not in a set.
    """

    label: bytes
    children: Sequence[int]
    ordered: bool = True


def hash_parts(*parts: bytes) -> bytes:
    """Hash byte strings and their lengths with BLAKE2b, 16 bytes."""
    digest = hashlib.blake2b(digest_size=SIZE)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def join_label(parts: Iterable[str]) -> bytes:
    """Join strings into one label that shows where each ends."""
    return b"".join(map(_str, parts))


def atom(value: Any) -> bytes | None:
    """Encode a value without parts as bytes that show their own end; None for any other value."""
    encode = _ATOMS.get(type(value))
    return None if encode is None else encode(value)


def _str(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(data), data)


_ATOMS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    type(...): lambda _: b"E",
    type(NotImplemented): lambda _: b"I",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: b"i%x;" % value,  # decimal digits are limited
    float: lambda value: b"f" + struct.pack("<d", value),
    complex: lambda value: b"c" + struct.pack("<dd", value.real, value.imag),
    str: _str,
    bytes: lambda value: b"b%d:%b" % (len(value), value),
}


def hash_graph(nodes: Sequence[ValueNode]) -> bytes:
    """Hash node 0 and all that it reaches, 16 bytes."""
    digests: dict[int, bytes] = {}
    groups: dict[int, frozenset[int]] = {}

    def of(number: int) -> bytes:
        if number not in digests:
            digests[number] = _hash_in_cycle(nodes, number, groups[number], of)
        return digests[number]

    for group in _components(nodes):
        first = group[0]
        if len(group) == 1 and first not in nodes[first].children:
            below = [of(child) for child in nodes[first].children]
            digests[first] = _hash_node(nodes[first], below)
        else:
            groups.update(dict.fromkeys(group, frozenset(group)))
    return of(0)


def _hash_node(node: ValueNode, children: list[bytes]) -> bytes:
    return hash_parts(node.label, *(children if node.ordered else sorted(children)))


def _hash_in_cycle(nodes: Sequence[ValueNode], start: int, group: frozenset[int], of: Callable[[int], bytes]) -> bytes:
    """Hash one of a ``group`` of nodes that reach one another: what a walk from it finds, in order."""
    places = {start: 0}
    found = [start]
    seen: list[bytes] = []
    for number in found:  # it grows
        node = nodes[number]
        # What cannot be told apart in a set here stays as it is: it may be missed, but never taken for another.
        children = node.children if node.ordered else sorted(node.children, key=lambda n: _rank(nodes, n, group, of))
        below = []
        for child in children:
            if child not in group:
                below.append(of(child))
                continue
            if child not in places:
                places[child] = len(places)
                found.append(child)
            below.append(b"%d" % places[child])
        seen.append(hash_parts(node.label, *below))
    return hash_parts(b"cycle", *seen)


def _rank(nodes: Sequence[ValueNode], number: int, group: frozenset[int], of: Callable[[int], bytes]) -> bytes:
    return hash_parts(nodes[number].label) if number in group else of(number)


def _components(nodes: Sequence[ValueNode]) -> Iterator[list[int]]:
    """Strongly connected components of what node 0 reaches, each after all that it leads to."""
    low: dict[int, int] = {}
    index: dict[int, int] = {}
    stack: list[int] = []
    waiting: set[int] = set()
    path = [(0, iter(nodes[0].children))]
    low[0] = index[0] = 0
    stack.append(0)
    waiting.add(0)
    while path:
        number, children = path[-1]
        child = next(children, None)
        if child is None:
            path.pop()
            if path:
                above = path[-1][0]
                low[above] = min(low[above], low[number])
            if low[number] == index[number]:
                start = stack.index(number) if stack[-1] != number else len(stack) - 1
                group = stack[start:]
                del stack[start:]
                waiting.difference_update(group)
                yield group
        elif child not in index:
            low[child] = index[child] = len(index)
            stack.append(child)
            waiting.add(child)
            path.append((child, iter(nodes[child].children)))
        elif child in waiting:
            low[number] = min(low[number], index[child])
