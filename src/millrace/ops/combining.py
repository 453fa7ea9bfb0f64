"""Operators ``zip``, ``concatenate`` and ``sample_from_datasets``: several inputs as one, in a stream.

Where the lengths of the inputs are known the planner does these, and they don't run at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Concatenate, SampleFromDatasets, Zip
from millrace.ops.operator import Context
from millrace.planning.mixture import check_weights, choose, seed_from, uniforms

_END = object()
_DRAWS = 4096


def run_zip(node: Zip, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield tuples (dicts, if ``node.keys``) of one element of each input, as long as the shortest."""
    origin, position = context.mixed(), 0
    waiting: list[list[Any]] = [[] for _ in inputs]
    while True:
        for number, chunks in enumerate(inputs):
            while not waiting[number]:
                chunk = next(chunks, None)
                if chunk is None:
                    return
                waiting[number] = chunk.elements
        size = min(map(len, waiting))
        rows: list[Any] = list(zip(*(elements[:size] for elements in waiting), strict=True))
        waiting = [elements[size:] for elements in waiting]
        if node.keys is not None:
            rows = [dict(zip(node.keys, row, strict=True)) for row in rows]
        yield Chunk(rows, origin, range(position, position + size))
        position += size


def run_concatenate(node: Concatenate, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Chain the inputs one after the other."""
    return chain.from_iterable(inputs)


def run_sample(node: SampleFromDatasets, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield each element from a random input; the sequence is that of :class:`millrace.planning.mixture.Mixture`.

    Its seed there is ``seed_from(context.generator())``. As in tf.data an input is found to be exhausted when it is
    drawn; then the mixture ends (``node.stop_on_empty_dataset``) or goes on with the others.
    """
    origin, size = context.mixed(), max(1, context.chunk_size())
    out: list[Any] = []
    position = 0
    failure: Exception | None = None
    try:
        for element in _sampled(node, inputs, seed_from(context.generator())):
            out.append(element)
            if len(out) == size:
                yield Chunk(out, origin, range(position, position + size))
                position += size
                out, size = [], max(1, context.chunk_size())
    except Exception as error:  # noqa: BLE001 - raised once what is before it has been yielded
        failure = error
    if out:
        yield Chunk(out, origin, range(position, position + len(out)))
    if failure is not None:
        raise failure


def _sampled(node: SampleFromDatasets, inputs: list[Iterator[Chunk]], seed: int) -> Iterator[Any]:
    weights = check_weights(node.weights)
    alive = weights > 0
    elements = [chain.from_iterable(chunk.elements for chunk in chunks) for chunks in inputs]
    for block in count():
        draws = uniforms(seed, block)
        while len(draws):
            used = 0
            for number in choose(draws[:_DRAWS], weights, alive).tolist():
                used += 1
                element = next(elements[number], _END)
                if element is _END:
                    alive[number] = False
                    if node.stop_on_empty_dataset or not alive.any():
                        return
                    break
                yield element
            draws = draws[used:]
