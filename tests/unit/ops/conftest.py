"""A context for operators: in process, one thread, fixed sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from millrace.elements.chunk import Chunk, Origin, raising
from millrace.errors import ElementError, MillraceError, PipelineError
from millrace.graph.nodes import OP_NAMES, Node, Opaque
from millrace.ops import OPERATORS

SOURCE = Origin(0, 3)
MIXED = Origin(-1, 7)


class FakeContext:
    """What the engine offers, at its simplest; ``left`` is what the operator left to later tasks."""

    def __init__(
        self,
        node: Node,
        *,
        chunk_size: int = 4,
        budget: int = 1 << 30,
        on_error: str | Callable[[ElementError], Any] = "raise",
        outputs: Sequence[tuple[Origin, int, int]] | None = None,
        leftovers: Iterable[Any] = (),
        leaves: bool = False,
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        self.label = str(node)
        self.budget, self.epoch = budget, epoch
        self.left: list[Any] = []
        self.left_out = 0
        self.offered = False
        self.ahead_of: list[int] = []
        self.parallel: list[int] = []
        self.allocated = 0
        self.padding = (0, 0)
        self._chunk_size, self._on_error, self._outputs = chunk_size, on_error, outputs
        self._leftovers, self._leaves, self._seed = leftovers, leaves, seed

    def padded(self, padding: int, size: int) -> None:
        self.padding = (self.padding[0] + padding, self.padding[1] + size)

    def call(self, function: Opaque, chunk: Chunk) -> tuple[list[int] | None, list[Any], Exception | None]:
        indices: list[int] = []
        results: list[Any] = []
        for index, element in enumerate(chunk.elements):
            arguments = [element]
            if function.takes_rng:
                arguments.append(np.random.default_rng([*map(abs, chunk.origin), int(chunk.positions[index])]))
            try:
                kept, result = self.guard(chunk, index, partial(function.value, *arguments))
            except MillraceError as failure:
                return indices, results, failure
            if kept:
                indices.append(index)
                results.append(result)
        return (None if len(results) == len(chunk) else indices), results, None

    def guard(self, chunk: Chunk, index: int, action: Callable[[], Any]) -> tuple[bool, Any]:
        try:
            return True, action()
        except MillraceError:
            raise
        except Exception as error:
            failure = ElementError(
                f"{self.label} failed: {error!r}",
                operator=self.label,
                where=f"{chunk.origin}, {chunk.positions[index]}",
            )
            if self._on_error == "raise":
                raise failure from error
            return (False, None) if isinstance(self._on_error, str) else (True, self._on_error(failure))

    def in_order(self, function: Callable[[Chunk], Any], chunks: Iterator[Chunk], parallel: int) -> Iterator[Any]:
        self.parallel.append(parallel)
        return map(function, chunks)

    def ahead(self, chunks: Iterator[Chunk], elements: int) -> Iterator[Chunk]:
        self.ahead_of.append(elements)
        return chunks

    def name_of(self, origin: Origin, position: int) -> str:
        return "a leftover" if origin == MIXED else f"element {position} of split {origin.split}"

    def elements_of(self, value: Any, parent: Chunk, index: int) -> Iterator[Any]:
        if not isinstance(value, Iterable):
            raise PipelineError(f"{self.label}: {type(value).__name__} is neither a dataset nor iterable")
        return iter(value)

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self._seed)

    def uniforms(self, chunk: Chunk, seed: int | None) -> np.ndarray:
        positions = np.asarray(chunk.positions)
        drawn: np.ndarray = np.random.default_rng(seed or self._seed).random(int(positions.max()) + 1)
        chosen: np.ndarray = drawn[positions]
        return chosen

    def chunk_size(self) -> int:
        return self._chunk_size

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        self.allocated += 1
        return np.empty(shape, dtype)

    def mixed(self) -> Origin:
        return MIXED

    def children(self, parent: Chunk, index: int) -> int:
        return int(parent.positions[index]) * 1000

    def outputs(self) -> Iterator[tuple[Origin, int, int]] | None:
        return None if self._outputs is None else iter(self._outputs)

    def leftovers(self) -> Iterable[Any]:
        return self._leftovers

    def leave(self, elements: list[Any]) -> bool:
        assert not self.offered, "leave() is for the end of the input, once"
        assert elements, "nothing is left"
        self.offered = True
        if self._leaves:
            self.left += elements
        return self._leaves

    def leave_out(self, count: int) -> None:
        self.left_out += count


class Driver:
    """Runs operators over elements."""

    mixed = MIXED
    source = SOURCE

    @staticmethod
    def chunks(elements: Sequence[Any], cuts: Sequence[int] = (3,), origin: Origin = SOURCE) -> Iterator[Chunk]:
        """``elements`` in chunks of sizes ``cuts``, again and again; positions count from 0."""
        start, sizes = 0, cycle(cuts)
        while start < len(elements):
            stop = min(start + next(sizes), len(elements))
            yield Chunk(list(elements[start:stop]), origin, range(start, stop))
            start = stop

    @staticmethod
    def context(node: Node, **options: Any) -> FakeContext:
        return FakeContext(node, **options)

    @staticmethod
    def start(node: Node, inputs: Sequence[Iterator[Chunk]], context: FakeContext) -> Iterator[Chunk]:
        return raising(OPERATORS[type(node)](node, list(inputs), context))

    def run(self, node: Node, *inputs: Sequence[Any], cuts: Sequence[int] = (3,), **options: Any) -> list[Chunk]:
        """The chunks that ``node`` makes of ``inputs``; each is sound in itself."""
        context = FakeContext(node, **options)
        result = list(self.start(node, [self.chunks(elements, cuts) for elements in inputs], context))
        for chunk in result:
            assert len(chunk.elements) == len(chunk.positions) > 0
        return result

    def elements(self, node: Node, *inputs: Sequence[Any], cuts: Sequence[int] = (3,), **options: Any) -> list[Any]:
        return [element for chunk in self.run(node, *inputs, cuts=cuts, **options) for element in chunk.elements]

    def positioned(self, node: Node, *inputs: Sequence[Any], **options: Any) -> list[tuple[Origin, int, Any]]:
        """(origin, position, element) of all that ``node`` yields."""
        return [
            (chunk.origin, int(position), element)
            for chunk in self.run(node, *inputs, **options)
            for position, element in zip(chunk.positions, chunk.elements, strict=True)
        ]

    def same(self, one: Any, other: Any) -> bool:
        """Whether two elements are equal in structure, dtypes, shapes and values."""
        if isinstance(one, np.ndarray):
            return (
                isinstance(other, np.ndarray)
                and (one.dtype, one.shape) == (other.dtype, other.shape)
                and np.array_equal(one, other)
            )
        if type(one) is not type(other):
            return False
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self.same(one[key], other[key]) for key in one)
        if isinstance(one, (list, tuple)):
            return len(one) == len(other) and all(map(self.same, one, other))
        return bool(one == other)


@pytest.fixture(scope="session")
def driver() -> Driver:
    return Driver()


def opaque(function: Callable[..., Any], *, takes_rng: bool = False) -> Opaque:
    return Opaque(function, name=getattr(function, "__name__", "fn"), takes_rng=takes_rng)


@pytest.fixture(scope="session")
def fn() -> Callable[..., Opaque]:
    """Wraps a function as nodes carry them."""
    return opaque


assert set(OPERATORS) <= set(OP_NAMES)
