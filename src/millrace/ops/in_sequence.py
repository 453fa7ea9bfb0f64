"""Operators ``take_while``, ``scan``, ``unique`` and ``assert_cardinality``: what they give depends on all before it.

So they run over the whole dataset in order, in one task; ``assert_cardinality`` only where positions aren't known.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.errors import PipelineError
from millrace.graph.nodes import AssertCardinality, Scan, TakeWhile, Unique
from millrace.ops.filter import as_bool, as_bools
from millrace.ops.operator import Context
from millrace.ops.slow_functions import begin_slowly

_KEY_BYTES = 120
"""Memory of a key that is remembered: its object, and its place in a set that is half full."""
_LONG = 64
"""Characters from which on a hash takes less memory than the string."""


def run_take_while(node: TakeWhile, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield elements up to the first for which ``node.fn`` is false; ask for no more input after it.

    Raises:
        PipelineError: if the predicate returns anything but a bool.
    """
    ended, predicate, label = False, node.fn.value, context.label

    def holds(element: Any, **rng: Any) -> bool:
        nonlocal ended
        if not ended:  # what comes after the end is nobody's, and may make the predicate fail
            ended = not as_bool(predicate(element, **rng), label)
        return not ended

    for chunk in begin_slowly(inputs[0]):
        indices, results, failure = context.call(replace(node.fn, value=holds), chunk)
        found, wrong = as_bools(results, label)
        stop = found.index(False) if False in found else len(found)
        kept = list(range(len(chunk)) if indices is None else indices)[:stop]
        over = stop < len(found)
        failure = None if over else wrong or failure
        if kept or failure is not None:
            yield chunk.keep(kept, [chunk.elements[index] for index in kept], failure)
        if over:
            return


def run_scan(node: Scan, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield the outputs of ``node.fn(state, element)``; an element that fails and is left out leaves the state.

    Raises:
        PipelineError: if the function returns no pair.
    """
    state, function = copy.deepcopy(node.initial_state), node.fn.value

    def advance(element: Any, **rng: Any) -> Any:
        nonlocal state
        found = function(state, element, **rng)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise PipelineError(
                f"{context.label}: scan_func must return a pair, the new state and what to put out, not "
                f"{type(found).__name__}"
            )
        state, output = found
        return output

    for chunk in begin_slowly(inputs[0]):
        indices, results, failure = context.call(replace(node.fn, value=advance), chunk)
        if results or failure is not None:
            yield chunk.keep(range(len(chunk)) if indices is None else indices, results, failure)


def run_unique(node: Unique, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield elements of which none before was equal: in structure, types, shapes and values.

    Raises:
        PipelineError: if an element cannot be compared, or if remembering them takes more than the operator may hold.
    """
    seen: set[Hashable] = set()
    held = 0
    for chunk in inputs[0]:
        kept = []
        for index, element in enumerate(chunk.elements):
            key = _key(element, context.label)
            if key not in seen:
                seen.add(key)
                held += _KEY_BYTES + (len(key) if isinstance(key, str) else 0)
                kept.append(index)
        if held > context.budget:
            raise PipelineError(
                f"{context.label} has seen {len(seen):,} different elements, and to remember them takes more than the "
                f"{context.budget:,} bytes that it may hold: raise with_options(buffer_bytes=...)"
            )
        if kept:
            yield chunk.keep(kept, [chunk.elements[index] for index in kept])


def run_assert_cardinality(node: AssertCardinality, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield all elements; where they are not ``node.count``, fail: at the end, or at the first one too many.

    Raises:
        PipelineError: there are more, or fewer.
    """
    count = 0
    for chunk in inputs[0]:
        left = node.count - count
        count += len(chunk)
        if count > node.count:
            if left:
                yield chunk.slice(0, left)
            raise PipelineError(f"{context.label} expects {node.count} elements, and its input has more")
        yield chunk
    if count < node.count:
        raise PipelineError(f"{context.label} expects {node.count} elements, and its input had {count}")


def _key(element: Any, label: str) -> Hashable:
    """Make what is equal for equal elements, and small."""
    kind = type(element)
    if kind is np.int64:  # numbers of Python are numpy's of 64 bits, as in a batch
        return int(element)
    if kind is int or (kind is str and len(element) < _LONG):
        itself: Hashable = element
        return itself
    hashed = hashlib.blake2b(digest_size=16)
    _hash(element, hashed.update, label)
    return hashed.digest()


def _hash(element: Any, update: Callable[[bytes], None], label: str) -> None:
    if isinstance(element, dict):
        update(b"{%d" % len(element))
        for name, value in sorted(((repr(key), value) for key, value in element.items()), key=itemgetter(0)):
            update(name.encode("utf-8", "surrogatepass"))
            _hash(value, update, label)
    elif isinstance(element, list | tuple):
        update(b"%s%d" % (b"[" if isinstance(element, list) else b"(", len(element)))
        for value in element:
            _hash(value, update, label)
    elif isinstance(element, bytes | str):
        raw = element if isinstance(element, bytes) else element.encode("utf-8", "surrogatepass")
        update(b"%s%d:" % (b"b" if isinstance(element, bytes) else b"s", len(raw)))
        update(raw)
    else:
        array = np.asarray(element)
        if array.dtype.hasobject:
            raise PipelineError(
                f"{label} compares arrays, numbers, str and bytes, and cannot compare a {type(element).__name__}: "
                "convert it in a map() before"
            )
        if array.dtype.kind in "fc":
            array = array + array.dtype.type(0)  # a zero with a sign equals one without
        update(f"{array.dtype.str}{array.shape}".encode())
        update(np.ascontiguousarray(array).tobytes())
