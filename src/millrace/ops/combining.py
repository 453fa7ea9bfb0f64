"""Operators that make one dataset of several, in a stream: ``zip``, ``concatenate``, and those that mix.

Where the lengths of the inputs are known the planner does these, and they don't run at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count, repeat
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.errors import PipelineError
from millrace.graph.nodes import ChooseFromDatasets, Concatenate, SampleFromDatasets, Zip
from millrace.ops.operator import Context
from millrace.planning.mixture import WeightSchedule, choose, seed_from, uniforms
from millrace.whole_numbers import is_int

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
    drawn; then the mixture ends (``node.stop_on_empty_dataset``) or goes on with the others. Where inputs begin again
    (``node.cycle``), each yields an empty chunk at the end of each pass, and the mixture ends when all have.
    """
    schedule = WeightSchedule(node.weights_of(context.epoch))
    taken = _Inputs(inputs, np.flatnonzero((schedule.weights > 0).any(0)).tolist(), node)
    return _chunks(_sampled(schedule, taken, seed_from(context.generator())), context)


def run_choose(node: ChooseFromDatasets, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield each element from the input whose number is next; the sequence is that of a ``ChoicePattern``.

    An input is found to be exhausted when it is chosen; then all ends (``node.stop_on_empty_dataset``), or that choice
    and all later ones of it are left out. For inputs that begin again see :func:`run_sample`.
    """
    datasets = inputs[: len(node.datasets)]
    if node.choices is None:
        choices, chosen = _read(inputs[-1], context, len(datasets)), set(range(len(datasets)))
    else:
        again = repeat(node.choices) if node.times is None else repeat(node.choices, node.times)
        choices, chosen = chain.from_iterable(again), set(node.choices)
    return _chunks(_chosen(choices, _Inputs(datasets, chosen, node)), context)


def _chunks(elements: Iterator[Any], context: Context) -> Iterator[Chunk]:
    origin, size = context.mixed(), max(1, context.chunk_size())
    out: list[Any] = []
    position = 0
    failure: Exception | None = None
    try:
        for element in elements:
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


_END = object()


class _Inputs:
    """Inputs of a mixture, element by element.

    Args:
        inputs: chunks of each.
        taken: numbers of those that elements are ever taken of.
        node: that mixes them.

    Attributes:
        left: numbers of those that may have more elements.
        over: whether the mixture has ended.
    """

    def __init__(
        self, inputs: list[Iterator[Chunk]], taken: Iterable[int], node: SampleFromDatasets | ChooseFromDatasets
    ) -> None:
        self._elements = [_each(chunks) for chunks in inputs]
        self._stop, self._cycle = node.stop_on_empty_dataset, node.cycle
        self._ended: set[int] = set()
        self.left = set(taken)
        self.over = not self.left

    def take(self, number: int) -> Any:
        """Take the next element of an input; ``_END`` if it has none, or if the mixture ends."""
        element = next(self._elements[number], _END)
        if element is not _END:
            return element
        if self._cycle:
            self._ended.add(number)
            self.over = self.left <= self._ended
            if self.over:
                return _END
            element = next(self._elements[number], _END)
            if element is not _END:
                return element
        self.left.discard(number)
        self.over = not self.left or (self.left <= self._ended if self._cycle else self._stop)
        return _END

    def keep(self, numbers: Iterable[int]) -> bool:
        """Take no more elements of other inputs than these; whether there are any to take."""
        self.left.intersection_update(numbers)
        return bool(self.left - self._ended)


def _each(chunks: Iterator[Chunk]) -> Iterator[Any]:
    for chunk in chunks:
        yield from chunk.elements or (_END,)


def _sampled(schedule: WeightSchedule, inputs: _Inputs, seed: int) -> Iterator[Any]:
    alive = np.asarray((schedule.weights > 0).any(0))
    taken = 0
    for block in count():
        draws = uniforms(seed, block)
        while len(draws):
            weights, room = schedule.at(taken, alive)
            if not inputs.keep(np.flatnonzero(alive).tolist()):
                return
            used = 0
            for number in choose(draws[: min(room, _DRAWS)], weights, alive).tolist():
                used += 1
                element = inputs.take(number)
                if element is _END:
                    if inputs.over:
                        return
                    alive[number] = False
                    break
                taken += 1
                yield element
            draws = draws[used:]


def _chosen(choices: Iterator[int], inputs: _Inputs) -> Iterator[Any]:
    for number in choices:
        if inputs.over:
            return
        if number not in inputs.left:
            continue
        element = inputs.take(number)
        if element is not _END:
            yield element


def _read(chunks: Iterator[Chunk], context: Context, datasets: int) -> Iterator[int]:
    """Yield the choices that a dataset gives."""
    for chunk in chunks:
        for element in chunk.elements:
            if not is_int(element) or not 0 <= int(element) < datasets:
                raise PipelineError(
                    f"{context.label}: a choice is the number of a dataset, from 0 to {datasets - 1}, not {element!r}"
                )
            yield int(element)
