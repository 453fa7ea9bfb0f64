"""Graph of a dataset's nodes: their numbers, the options that they give together, and graphs that run in place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from millrace.graph.nodes import (
    Autocache,
    Cache,
    Node,
    Prefetch,
    Reservoir,
    Sample,
    Shard,
    Shuffle,
    Skip,
    Source,
    Take,
    WithOptions,
)


class Graph:
    """Root node and, by number, all nodes below it: inputs before the nodes that use them.

    Node ids are positions in :attr:`nodes`; they depend on structure alone, so that they agree between processes.

    Attributes:
        root: the node that yields the dataset's elements.
        nodes: all nodes, by id.
        keys: for each node the number that stands for it in the keys of random generators. Nodes that only pass, choose
            or order elements are numbered apart, so that adding or moving a ``prefetch`` or a ``shuffle`` leaves the
            random choices of all others as they are.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.nodes: tuple[Node, ...] = tuple(_postorder(root))
        self.keys: tuple[int, ...] = tuple(_keys(self.nodes))
        self._ids = {node: number for number, node in enumerate(self.nodes)}

    def id_of(self, node: Node) -> int:
        """Return the number of a node of this graph."""
        return self._ids[node]

    def sources(self) -> Iterator[tuple[int, Source]]:
        """List every source as (id, node)."""
        for number, node in enumerate(self.nodes):
            if isinstance(node, Source):
                yield number, node

    def options(self) -> WithOptions:
        """Merge the pipeline's options: what stands nearest the root wins, option by option."""
        merged: dict[str, Any] = {}
        for node in reversed(self.nodes):
            if isinstance(node, WithOptions):
                for spec in fields(node):
                    value = getattr(node, spec.name)
                    if spec.name != "inputs" and value is not None:
                        merged.setdefault(spec.name, value)
        return WithOptions(**merged)

    def seed(self) -> int | None:
        """Return the seed that the user gave: of the options, else of the last shuffle that has one."""
        seeds = [node.seed for node in self.nodes if isinstance(node, Shuffle) and node.seed is not None]
        chosen = self.options().seed
        return chosen if chosen is not None else seeds[-1] if seeds else None

    def reachable(self) -> Iterator[Node]:
        """List the root and all that it needs, inputs first, without the nodes that :meth:`rewritten` has left out."""
        return _postorder(self.root)

    def rewritten(self, change: Callable[[int, Node], Node]) -> Graph:
        """Apply ``change`` to every node, inputs first; the result runs in place of this graph.

        ``change`` takes a node's number and the node, its inputs changed already. It returns that node, a new one that
        takes its place, or one of its inputs, which then stands for it.

        Numbers stay, and with them all that goes by number: keys, split tables, units, measures. Nodes left out are
        still in
        ``nodes``, though nothing leads to them, and :meth:`id_of` them is the number of the node that stands for them.
        """
        ids, nodes, done = dict(self._ids), list(self.nodes), dict[Node, Node]()
        for node in self.reachable():
            number = ids[node]
            given = _with_inputs(node, tuple([done[child] for child in node.inputs]))
            done[node] = changed = change(number, given)
            ids[changed] = ids[node] = ids[given] = ids.get(changed, number)
            nodes[ids[changed]] = changed
        new = copy.copy(self)
        new.root, new.nodes, new._ids = done[self.root], tuple(nodes), ids  # noqa: SLF001 - of this class
        return new


def _postorder(root: Node) -> Iterator[Node]:
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.inputs))


def _keys(nodes: tuple[Node, ...]) -> Iterator[int]:
    kinds = ((), (Shuffle, Sample, Reservoir, Take, Skip, Shard), (Prefetch, Cache, Autocache, WithOptions))
    counts = [0, 0, 0]
    for node in nodes:
        kind = next((number for number, types in enumerate(kinds) if isinstance(node, types)), 0)
        yield (kind << 32) + counts[kind]
        counts[kind] += 1


def _with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
    return node if same else replace(node, inputs=inputs)
