"""Operator ``filter``: the elements for which a predicate is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.errors import PipelineError
from millrace.graph.nodes import Filter
from millrace.ops.operator import Context
from millrace.ops.slow_functions import begin_slowly

_BOOLS = {bool, np.bool_}


def run(node: Filter, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield the elements for which ``node.fn`` is true; one after the other, as predicates that remember are common.

    Raises:
        PipelineError: if the predicate returns anything but a bool, ``np.bool_`` or array of one bool.
    """
    for chunk in map(step(node, context), begin_slowly(inputs[0])):
        if chunk.elements or chunk.failure is not None:
            yield chunk


def step(node: Filter, context: Context) -> Callable[[Chunk], Chunk]:
    """Return the function that filters one chunk; its result may be empty."""

    def apply(chunk: Chunk) -> Chunk:
        indices, results, failure = context.call(node.fn, chunk)
        if not _BOOLS.issuperset(map(type, results)):
            results, wrong = as_bools(results, context.label)
            failure = wrong or failure
        kept = list(compress(range(len(chunk)) if indices is None else indices, results))
        if len(kept) == len(chunk):
            return chunk
        elements = chunk.elements
        return chunk.keep(kept, [elements[index] for index in kept], failure)

    return apply


def as_bools(results: list[Any], label: str) -> tuple[list[bool], PipelineError | None]:
    """Convert results to bools, up to the first that is none, and the error about that one."""
    bools: list[bool] = []
    for result in results:
        try:
            bools.append(as_bool(result, label))
        except PipelineError as error:
            return bools, error
    return bools, None


def as_bool(result: Any, label: str) -> bool:
    """Convert what a predicate returned to a bool.

    Raises:
        PipelineError: it is anything but a bool, ``np.bool_`` or array of one bool.
    """
    if type(result) in _BOOLS:
        return bool(result)
    if getattr(result, "shape", None) == () and np.asarray(result).dtype == np.bool_:
        return bool(result)
    text = repr(result)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    remedy = (
        "Did it forget to return?"
        if result is None
        else "Compare arrays with .any() or .all()."
        if getattr(result, "shape", None)
        else "Wrap it in bool() if its truth is meant."
    )
    raise PipelineError(
        f"{label}: the predicate returned {text}{'' if result is None else f' ({type(result).__name__})'}, not True or "
        f"False. {remedy}"
    )
