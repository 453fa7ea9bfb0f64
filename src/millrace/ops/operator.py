"""Contract of operators, and the services that the engine offers them.

An operator is a function ``run(node, inputs, context)`` in a file of its own, listed in :mod:`millrace.ops`. It takes
one iterator of chunks per input and yields chunks. It is a generator: when the consumer stops early the engine closes
it, and ``finally`` is where it lets go of what it holds. It must not depend on how its input is cut into chunks:
the same elements in other chunks give the same elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from millrace.elements.chunk import Chunk, Origin
from millrace.graph.nodes import Opaque

T = TypeVar("T")


class Context(Protocol):
    """Services of the engine for one operator of one running task."""

    @property
    def label(self) -> str:
        """Name of the operator for messages, e.g. ``map(decode)``."""
        ...

    @property
    def epoch(self) -> int:
        """Number of the epoch."""
        ...

    @property
    def budget(self) -> int:
        """Bytes that this operator may hold."""
        ...

    def call(self, function: Opaque, chunk: Chunk) -> tuple[list[int] | None, list[Any], Exception | None]:
        """Call ``function`` on each element of ``chunk``, with its random generator if it takes one.

        Returns ``(indices, results, failure)``: result k belongs to element ``indices[k]``; None means all of them, in
        order. A failing element is left out or replaced if the pipeline's ``on_error`` says so. Else its error is the
        ``failure``, to be raised once the results of the elements before it have been yielded.
        """
        ...

    def guard(self, chunk: Chunk, index: int, action: Callable[[], T]) -> tuple[bool, T | None]:
        """Run ``action()`` about element ``index`` of ``chunk``, with errors as of :meth:`call`: (kept, value)."""
        ...

    def in_order(self, function: Callable[[Chunk], T], chunks: Iterator[Chunk], parallel: int) -> Iterator[T]:
        """Apply ``function`` to each chunk on up to ``parallel`` threads (AUTOTUNE: the engine's choice), in order.

        The engine may cut chunks into smaller ones first, so that threads have work; it bounds what is in flight in
        bytes. Closing the iterator waits for what runs.
        """
        ...

    def ahead(self, chunks: Iterator[Chunk], elements: int) -> Iterator[Chunk]:
        """Compute the chunks on another thread, up to ``elements`` (AUTOTUNE: the budget) ahead."""
        ...

    def name_of(self, origin: Origin, position: int) -> str:
        """Name the element at ``position`` of ``origin`` for messages: its file, record or item."""
        ...

    def elements_of(self, value: Any, parent: Chunk, index: int) -> Iterator[Any]:
        """Iterate over the dataset or iterable that a user's function made of element ``index`` of ``parent``.

        Raises:
            PipelineError: if it is neither.
        """
        ...

    def generator(self) -> np.random.Generator:
        """Random generator of this operator in this task (keyed by seed, epoch, node, repetition and task)."""
        ...

    def uniforms(self, chunk: Chunk, seed: int | None) -> npt.NDArray[np.float64]:
        """Draw a number in [0, 1) for each element of ``chunk``, keyed as the generators of functions are.

        Args:
            chunk: the elements.
            seed: in place of the job's; None: that.
        """
        ...

    def chunk_size(self) -> int:
        """Choose the size in elements of a chunk made from scratch; asked anew for each chunk."""
        ...

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Allocate an array for a leaf of a batch, contents arbitrary; where it lies is the engine's choice."""
        ...

    def mixed(self) -> Origin:
        """Origin of the outputs of task-local operators: positions count this operator's outputs in the task from 0."""
        ...

    def children(self, parent: Chunk, index: int) -> int:
        """First position of the elements made of element ``index`` of ``parent``; the others follow it."""
        ...

    def outputs(self) -> Iterator[tuple[Origin, int, int]] | None:
        """Planned boundaries of batches: (origin, position, number of input elements) of each output.

        The result is None if the task's elements are not known in number: then group as they come, start with
        :meth:`leftovers` and offer the rest to :meth:`leave`.
        """
        ...

    def leftovers(self) -> Iterable[Any]:
        """Elements that earlier tasks left to this operator, to be taken before its input, in this order."""
        ...

    def padded(self, padding: int, size: int) -> None:
        """Count numbers that were put into an array of ``size`` numbers to pad it."""
        ...

    def leave(self, elements: list[Any]) -> bool:
        """Offer the rest at the end of the input. True: a later task takes it; False: flush or drop it here."""
        ...

    def leave_out(self, count: int) -> None:
        """Count elements of the epoch's end that are left out as they fill no round."""
        ...
