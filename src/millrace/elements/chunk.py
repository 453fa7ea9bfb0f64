"""Chunks: the runs of elements that operators hand to one another inside the engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.elements.tree import nbytes_of

_CHUNK_BYTES = 320
"""Size in bytes of an empty chunk's Python objects."""
_SLOT_BYTES = 8


class Origin(NamedTuple):
    """Place that the elements of a chunk come from; with a position in it, the identity of an element.

    Attributes:
        node: id of the node that defines the positions: a source, a node that combines datasets, or -1 - id once a
            task-local operator has mixed elements of several splits (positions then count its outputs in the task).
        split: index into the source's split table; 0 for sources of positions; the task's index if ``node`` < 0.
        repetition: which repetition of a ``repeat`` below.
    """

    node: int
    split: int
    repetition: int = 0


Positions = range | npt.NDArray[np.int64]
"""Positions of some elements within one origin; a ``range`` where they are contiguous."""


@dataclass(slots=True)
class Chunk:
    """Consecutive elements of one origin.

    Attributes:
        elements: the elements, a list that its receiver may keep but not change.
        origin: shared by all of them.
        positions: one per element.
        failure: error of the element after these; whoever takes the chunk raises it then.
    """

    elements: list[Any]
    origin: Origin
    positions: Positions
    failure: Exception | None = None

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def nbytes(self) -> int:
        """Estimated memory of the chunk in bytes, objects included: with small elements they are the larger part."""
        positions = 0 if isinstance(self.positions, range) else self.positions.nbytes
        return _CHUNK_BYTES + _SLOT_BYTES * len(self.elements) + positions + nbytes_of(self.elements)

    def slice(self, start: int, stop: int) -> Chunk:
        """Elements ``start`` to ``stop`` as a chunk of their own."""
        return Chunk(self.elements[start:stop], self.origin, self.positions[start:stop])

    def keep(self, indices: Sequence[int], elements: list[Any], failure: Exception | None = None) -> Chunk:
        """Make a chunk of ``elements``, where element k keeps the position of this chunk's element ``indices[k]``."""
        if len(indices) == len(self.elements):
            return Chunk(elements, self.origin, self.positions, failure)
        positions = np.asarray(self.positions, dtype=np.int64)[np.asarray(indices, dtype=np.int64)]
        return Chunk(elements, self.origin, positions, failure)


def raising(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Pass chunks on; after a chunk with a failure, raise that failure."""
    try:
        for chunk in chunks:
            failure = chunk.failure
            if failure is None:
                yield chunk
                continue
            if chunk.elements:
                yield Chunk(chunk.elements, chunk.origin, chunk.positions)
            raise failure
    finally:
        end = getattr(chunks, "close", None)
        if end is not None:
            end()
