"""Notation of a graph as the Python expression that makes it: ``Dataset.range(10).map(decode).batch(3)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any

from millrace.graph.nodes import (
    MIXING,
    OP_NAMES,
    Arrivals,
    ChooseFromDatasets,
    Concatenate,
    Node,
    Opaque,
    Range,
    SampleFromDatasets,
    Source,
    Zip,
)
from millrace.graph.operator_graph import Graph
from millrace.graph.source_nodes import FromGenerator

_LONGEST_VALUE = 40
_LONGEST_INPUT = 120
"""Most characters of a dataset that is an argument of another one: a dataset used twice, again and again, would
double."""
_DERIVED = {"count", "contents"}
"""Fields of sources that follow from what the user gave."""
_CHOICES = {"choices", "times", "weights", "weights_from"}
_LISTS = {
    "patterns",
    "columns",
    "names",
    "bucket_boundaries",
    "bucket_batch_sizes",
    "keys",
    "target_dist",
    "initial_dist",
    "levels",
    "folders",
}
"""Fields that the user gives as a list, or as a single string."""


def notation(graph: Graph) -> str:
    """Write the expression; long values are cut, functions and objects stand by their names."""
    texts: dict[Node, str] = {}
    for node in graph.reachable():
        texts[node] = _call(node, [texts[child] for child in node.inputs])
    return texts[graph.root]


def call_notation(name: str, positional: Sequence[Any], named: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Write a call: positional arguments that are not None, and named ones other than their default."""
    shown = [_value(value) for value in positional if value is not None]
    shown += [f"{key}={_value(value)}" for key, value in named.items() if value != defaults[key]]
    return f"{name}({', '.join(shown)})"


def _call(node: Node, inputs: list[str]) -> str:
    if isinstance(node, Arrivals):
        return ""
    name = OP_NAMES[type(node)]
    if isinstance(node, Source):
        return f"Dataset.{name}({_arguments(node)})"
    if isinstance(node, FromGenerator):
        return f"Dataset.{name}({_arguments(node)})"
    if isinstance(node, Concatenate):
        return inputs[0] + "".join(f".{name}({_cut(each, _LONGEST_INPUT)})" for each in inputs[1:])
    if isinstance(node, Zip):
        shown = [_cut(each, _LONGEST_INPUT) for each in inputs]
        if node.keys is not None:
            pairs = zip(node.keys, shown, strict=True)
            return f"Dataset.{name}({{{', '.join(f'{key!r}: {each}' for key, each in pairs)}}})"
        return f"Dataset.{name}({', '.join(shown)})"
    if isinstance(node, MIXING):
        shown = [_cut(_without_repeat(each) if node.cycle else each, _LONGEST_INPUT) for each in inputs]
        several = ", ".join(shown[: len(node.datasets)])
        chosen = _choices(node) if isinstance(node, ChooseFromDatasets) else _weights(node)
        arguments = [f"[{several}]", *shown[len(node.datasets) :], *chosen, _arguments(node)]
        return f"Dataset.{name}({', '.join(filter(None, arguments))})"
    return f"{inputs[0]}.{name}({_arguments(node)})"


def _without_repeat(text: str) -> str:
    """Leave out the endless ``repeat`` that stands for ``cycle=True``."""
    return text.removesuffix(".repeat()")


def _choices(node: ChooseFromDatasets) -> list[str]:
    """Write choices that are known as a list where they are gone through again and again, else as a dataset."""
    if node.choices is None:
        return []
    listed = _listed(node.choices)
    if node.times is None:
        return [listed]
    return [f"Dataset.from_list({listed})" + (f".repeat({node.times})" if node.times != 1 else "")]


def _weights(node: SampleFromDatasets) -> list[str]:
    """Write weights as a list; where they change, as a dict of lists."""
    if not node.weights_from:
        return [_listed(node.weights)]
    return [_value({begin: list(weights) for begin, weights in node.phases})]


def _arguments(node: Node) -> str:
    """Write required parameters by position, others by name where they are not the default."""
    if isinstance(node, Range):
        numbers = (node.start, node.stop, node.step)
        return ", ".join(map(str, numbers if node.step != 1 else numbers[:2] if node.start else numbers[1:2]))
    shown = []
    for each in fields(node):
        value = getattr(node, each.name)
        if (
            each.name == "inputs"
            or (isinstance(node, Source) and each.name in _DERIVED)
            or (isinstance(node, MIXING) and each.name in _CHOICES)
            or (isinstance(node, MIXING) and node.cycle and each.name == "stop_on_empty_dataset")
            or value is each.default
            or (type(value) is type(each.default) and value == each.default)
        ):
            continue
        if each.name == "listed":
            shown.append("collate=list")
            continue
        text = _listed(value) if each.name in _LISTS else _value(value)
        required = each.default is MISSING and each.default_factory is MISSING
        shown.append(text if required else f"{each.name}={text}")
    return ", ".join(shown)


def _value(value: Any) -> str:
    if isinstance(value, Opaque):
        return value.name or "..."
    if isinstance(value, Enum):
        return str(value)
    return _cut(repr(value), _LONGEST_VALUE)


def _listed(value: tuple[Any, ...]) -> str:
    alone = len(value) == 1 and isinstance(value[0], str)
    return _value(value[0] if alone else list(value))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def graph_of(value: Any) -> Graph | None:
    """Find the graph of a dataset; None if ``value`` is something else."""
    pipeline = getattr(type(value), "__pipeline__", None)
    found = None if pipeline is None else getattr(pipeline(value), "graph", None)
    return found if isinstance(found, Graph) else None
