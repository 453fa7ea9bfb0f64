"""Operator ``rejection_resample``: elements left out or repeated, so that classes come in given proportions.

tf.data mixes the input with a filtered copy of itself: an element may come from either, from both, or from none. Here
each element comes as many times by itself, so that proportions and expected length are the same, and what becomes of an
element depends on nothing but the element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.chunk import Chunk
from millrace.errors import PipelineError
from millrace.graph.nodes import RejectionResample
from millrace.ops.operator import Context
from millrace.whole_numbers import is_int

ESTIMATED_TOGETHER = 32
"""Elements after which the estimate of how often classes come is made anew, as in tf.data."""
_SEEN_AT_FIRST = 10

Rates = npt.NDArray[np.float64]


def copies(target: Rates, initial: Rates) -> Rates:
    """Compute how many times an element comes on average, by class: between 0 and 2.

    Args:
        target: shares of the classes that there are to be, float64 of shape (classes,).
        initial: shares that there are; where one is 0 no element is of that class.
    """
    ratios = np.divide(target, initial, out=np.zeros_like(target), where=initial > 0)
    least, most = float(ratios[initial > 0].min()), float(ratios.max())
    return ratios / max(least, most - least)


def run(node: RejectionResample, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield ``(class, element)`` once, twice or not at all for each element.

    Raises:
        PipelineError: a class is no number from 0 to the number of classes less one.
    """
    rates = _rates(node)
    for chunk in inputs[0]:
        indices, classes, failure = context.call(node.class_fn, chunk)
        wrong = next((at for at, each in enumerate(classes) if not _is_class(each, len(node.target_dist))), None)
        if wrong is not None:
            failure = PipelineError(
                f"{context.label}: the class of an element is a whole number from 0 to {len(node.target_dist) - 1}, as"
                f" target_dist has {len(node.target_dist)} shares, not {classes[wrong]!r}"
            )
        numbers = np.array([int(each) for each in classes[:wrong]], np.int64)
        chosen = np.arange(len(chunk)) if indices is None else np.array(indices, np.int64)
        chosen = chosen[: len(numbers)]
        times = np.floor(rates(numbers) + context.uniforms(chunk, node.seed)[chosen]).astype(np.int64)
        twice = np.repeat(chosen, times)
        again = np.flatnonzero(twice[1:] == twice[:-1]) + 1
        positions = np.asarray(chunk.positions, np.int64)[twice]
        for at in again.tolist():
            positions[at] = context.children(chunk, int(twice[at]))
        elements: list[Any] = [
            (number, chunk.elements[index])
            for number, index in zip(np.repeat(numbers, times).tolist(), twice.tolist(), strict=True)
        ]
        if elements or failure is not None:
            yield Chunk(elements, chunk.origin, positions, failure)


def _is_class(value: Any, classes: int) -> bool:
    return is_int(value) and 0 <= int(value) < classes


def _rates(node: RejectionResample) -> Callable[[npt.NDArray[np.int64]], Rates]:
    target = np.array(node.target_dist)
    if node.initial_dist is not None:
        known = copies(target, np.array(node.initial_dist))
        return lambda numbers: known[numbers]
    return _Estimate(target).rates


class _Estimate:
    """Estimate of how often classes come, from those that came before; made anew after so many elements."""

    def __init__(self, target: Rates) -> None:
        self._target = target
        self._seen = np.full(len(target), _SEEN_AT_FIRST, np.int64)
        self._left = ESTIMATED_TOGETHER
        self._known = self._now()

    def rates(self, numbers: npt.NDArray[np.int64]) -> Rates:
        """Compute how many times each of the next elements comes, by their classes."""
        found = np.empty(len(numbers))
        start = 0
        while start < len(numbers):
            stop = min(len(numbers), start + self._left)
            found[start:stop] = self._known[numbers[start:stop]]
            self._seen += np.bincount(numbers[start:stop], minlength=len(self._seen))
            self._left -= stop - start
            if not self._left:
                self._left, self._known = ESTIMATED_TOGETHER, self._now()
            start = stop
        return found

    def _now(self) -> Rates:
        return copies(self._target, self._seen / self._seen.sum())
