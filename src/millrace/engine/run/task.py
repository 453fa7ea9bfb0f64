"""Running task: the state that its operators share, and the context that each of them gets."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from millrace.elements.chunk import Chunk, Origin, raising
from millrace.engine.metrics import Measure, Sizer, close, measured
from millrace.engine.run.element_names import first_made, name_of
from millrace.engine.run.index_streams import Array, compact
from millrace.engine.threads.operator_threads import OperatorThreads
from millrace.engine.threads.ordered_map import in_order
from millrace.engine.threads.prefetch import PrefetchThread
from millrace.engine.user_code.crash_probe import CrashProbe, WorkerEndedError
from millrace.engine.user_code.user_calls import Calls
from millrace.errors import ElementError, ElementTooLargeError, PipelineError, SourceCorruptError
from millrace.graph.nodes import AUTOTUNE, Opaque, Reservoir, SampleFromDatasets, Shuffle
from millrace.graph.notation import graph_of
from millrace.graph.operator_graph import Graph
from millrace.graph.source_nodes import FromGenerator, FromMapStyle
from millrace.ops.operator import Context
from millrace.ops.stacking import Allocate
from millrace.planning.epoch_shape import WeightChange
from millrace.planning.orders import EpochOrders
from millrace.planning.plan import Task
from millrace.planning.random_keys import derive, mix_array
from millrace.planning.units import UnitMap
from millrace.sources.read_queues import Feed as Entries
from millrace.sources.reads import AnnouncedReads, Reads
from millrace.sources.source import PositionSource, SequentialSource

if TYPE_CHECKING:
    from millrace.engine.cache.cache_writer import CacheWriter
    from millrace.engine.cache.cached_items import ActivePoint
    from millrace.engine.run.task_run import Run

T = TypeVar("T")

DEFAULT_BUFFER_BYTES = 256 << 20
_WINDOWS = (Shuffle, Reservoir)
"""Operators that hold many elements, and have a share of the memory of their own for these."""


class Budget:
    """Budget of bytes that a running task may hold.

    Attributes:
        all: together.
        window: each shuffle; as its window decides what comes out, this must not depend on how many others there are.
        each: every other operator, and as much what is computed ahead of them all, if anything is.
    """

    def __init__(self, graph: Graph, *, ahead: bool = False) -> None:
        self.all = graph.options().buffer_bytes or DEFAULT_BUFFER_BYTES
        windows = sum(isinstance(node, _WINDOWS) for node in graph.nodes)
        windowed = self.all // 2 if windows else 0
        self.window = windowed // max(1, windows)
        self.each = (self.all - windowed) // max(1, len(graph.nodes) - windows + ahead)


class RunningTask:
    """State that all operators of one running task share."""

    def __init__(
        self,
        units: UnitMap,
        task: Task,
        *,
        seed: int,
        epoch: int,
        budget: Budget,
        measures: list[Measure],
        sizers: Sequence[Sizer],
        operator_threads: Sequence[OperatorThreads],
        sources: Callable[[int], PositionSource | SequentialSource],
        reads: Callable[[int], Reads | None],
        nested: Callable[[Graph, int, Calls], Run],
        allocate: Allocate,
        leftovers: Mapping[int, list[Any]] = MappingProxyType({}),
        owner: Hashable = None,
        watch: CrashProbe | None = None,
        reused: Collection[int] = (),
        chunks: int = 0,
        reweighted: Sequence[WeightChange] = (),
        point: ActivePoint | None = None,
        writer: CacheWriter | None = None,
        meanwhile: Callable[[], bool] | None = None,
    ) -> None:
        self.units, self.task, self.watch, self.meanwhile = units, task, watch, meanwhile
        self._reused, self._point, self._writer = reused, point, writer
        self.seed, self.epoch = seed, epoch
        self.orders = EpochOrders(units, seed, epoch, chunks, reweighted=reweighted)
        self.measures, self.operator_threads = measures, operator_threads
        self.source, self.reads, self.owner, self.nested = sources, reads, owner, nested
        self.allocate = allocate
        self.taken = dict(leftovers)
        self.left: dict[int, list[Any]] = {}
        self.left_out: Counter[int] = Counter()
        self.stops: dict[Callable[[], None], None] = {}  # ends what has threads of its own; the outer before the inner
        self._sizers, self._learnt = sizers, [(0, 0.0, 0)] * len(measures)
        options = units.graph.options()
        generators = [number for number, node in enumerate(units.graph.nodes) if isinstance(node, FromGenerator)]
        self.calls = Calls(
            *(seed, epoch, units.graph.keys, options.on_error, partial(name_of, self), watch), generators=generators
        )
        self.buffer_bytes, self.window_budget, self.budget = budget.all, budget.window, budget.each
        self._streams: Counter[int] = Counter()

    def stop(self, chunks: Iterator[Chunk]) -> None:
        """End the chunks, and whatever an error left suspended with threads: its traceback keeps it alive."""
        close(chunks)
        while self.stops:
            stop = next(iter(self.stops))
            del self.stops[stop]
            stop()

    @contextmanager
    def sharing(self, number: int) -> Iterator[Callable[[], int]]:
        """Share of one stream of node ``number`` in its bytes: below a window several of them run side by side."""
        self._streams[number] += 1
        try:
            yield lambda: self.budget // max(1, self._streams[number])
        finally:
            self._streams[number] -= 1

    def measured(self, number: int, chunks: Iterator[Chunk], measure: Measure | None = None) -> Iterator[Chunk]:
        """Count what node ``number`` yields, and refuse an element that is larger than all buffers together.

        Args:
            number: of the node.
            chunks: its output.
            measure: where to count; None: in the node's own measure, and a failure is raised here.
        """

        def too_large(chunk: Chunk, index: int, size: int) -> ElementTooLargeError:
            return ElementTooLargeError(
                f"{self.units.graph.nodes[number]} gives an element of {size} bytes "
                f"({name_of(self, chunk.origin, int(chunk.positions[index]))}), and the pipeline may hold "
                f"{self.buffer_bytes}; make it smaller (fewer elements in a batch, say) or raise "
                f"with_options(buffer_bytes=...)"
            )

        counted = measured(chunks, measure or self.measures[number], self.buffer_bytes, too_large)
        return counted if measure is not None else raising(counted)

    def chunk_size(self, number: int) -> int:
        """Choose the size in elements of the next chunk of node ``number``, after what became of those before."""
        if self.one_by_one:
            return 1
        elements = self.measures[number].elements
        seen, spent, held = self._learnt[number]
        if elements > seen:
            # Under a prefetch the time is that of its own thread, or of the one that pulls: whichever works longer.
            pulled_s = max([measure.pulled_s for measure in self.measures])
            largest = max([measure.bytes for measure in self.measures])
            self._sizers[number].learn(elements - seen, pulled_s - spent, largest - held)
            self._learnt[number] = (elements, pulled_s, largest)
        return self._sizers[number].size

    @property
    def one_by_one(self) -> bool:
        """Whether elements go through the pipeline one at a time, on the thread that pulls."""
        return self.watch is not None and self.watch.each

    def watched(self, node: int, origin: Origin, position: int, action: Callable[[], T]) -> T:
        """Run ``action()``, which reads the element at a position of a source.

        Raises:
            SourceCorruptError: if workers ended as they read it.
        """
        if self.watch is None:
            return action()

        def where() -> str:
            return f"reading {name_of(self, origin, position)}"

        try:
            with self.watch.at(node, origin, position, where):
                return action()
        except WorkerEndedError as error:
            raise SourceCorruptError(f"{where()} failed: {error}") from None

    def reuses(self, number: int) -> bool:
        """Whether node ``number`` is a point with the same elements in every epoch, and every repetition."""
        return number in self._reused

    def below(self, number: int) -> RunningTask:
        """Return the task as it is below node ``number``: at a point with reused elements, that of the first epoch."""
        if number not in self._reused or self.epoch == 0:
            return self
        first = copy.copy(self)
        first.epoch, first.orders = 0, EpochOrders(self.units, self.seed, 0, self.orders.chunks, self.orders.drawn)
        first.calls = self.calls.of_epoch(0, lambda *place: name_of(first, *place))
        return first

    def caching(self, number: int) -> tuple[ActivePoint | None, CacheWriter | None]:
        """Point and writer of node ``number``, if it is the point in use."""
        return (self._point, self._writer) if self._point is not None and self._point.number == number else (None, None)


class NodeContext(Context):
    """Context of one operator of a running task; see :class:`millrace.ops.operator.Context`."""

    AUTOTUNE = AUTOTUNE

    def __init__(
        self,
        task: RunningTask,
        number: int,
        repetition: int,
        outputs: Callable[[], Iterator[tuple[Origin, int, int]]] | None = None,
    ) -> None:
        self._task, self._number, self._repetition = task, number, repetition
        self._outputs = outputs
        self._node = task.units.graph.nodes[number]
        self._key = task.units.graph.keys[number]
        self._label = str(self._node)
        self._announced: AnnouncedReads | None = None

    @property
    def label(self) -> str:
        """Name of the operator as the user wrote it."""
        return self._label

    @property
    def epoch(self) -> int:
        """Number of the epoch that the task is of."""
        return self._task.epoch

    @property
    def budget(self) -> int:
        """Bytes that this operator may hold."""
        return self._task.window_budget if isinstance(self._node, _WINDOWS) else self._task.budget

    def call(self, function: Opaque, chunk: Chunk) -> tuple[list[int] | None, list[Any], Exception | None]:
        """Call the user's ``function`` on each element."""
        return self._task.calls.call(self._number, self._label, function, chunk)

    def guard(self, chunk: Chunk, index: int, action: Callable[[], T]) -> tuple[bool, T | None]:
        """Run ``action()`` about one element."""
        return self._task.calls.guard(self._number, self._label, chunk, index, action)

    def in_order(self, function: Callable[[Chunk], T], chunks: Iterator[Chunk], parallel: int) -> Iterator[T]:
        """Apply ``function`` to each chunk, on threads where that pays."""
        task = self._task
        measure = task.measures[self._number]
        with task.sharing(self._number) as budget:
            operator = task.operator_threads[self._number]
            yield from in_order(
                function,
                chunks,
                parallel,
                operator=operator,
                budget=budget,
                measure=measure,
                meanwhile=task.meanwhile,
            )

    def ahead(self, chunks: Iterator[Chunk], elements: int) -> Iterator[Chunk]:
        """Compute the chunks ahead on a thread."""
        if self._task.one_by_one:
            yield from chunks
            return
        with self._task.sharing(self._number) as budget:
            helper = PrefetchThread(chunks, elements, budget)
            try:
                self._task.stops[helper.stop] = None
                yield from helper.pull(self._task.measures[self._number])
            finally:
                self._task.stops.pop(helper.stop, None)

    def name_of(self, origin: Origin, position: int) -> str:
        """Name the element at ``position`` of ``origin`` for messages."""
        return "one that an earlier task left over" if origin == self.mixed() else name_of(self._task, origin, position)

    def elements_of(self, value: Any, parent: Chunk, index: int) -> Iterator[Any]:
        """Iterate over a user function's result."""
        if (graph := graph_of(value)) is not None:
            seed = derive(self._task.calls.key(self._number, parent.origin), int(parent.positions[index]))
            return self._nested(graph, seed)
        if isinstance(value, dict):  # of which Python would give the keys
            raise PipelineError(
                f"{self._label} must return a dataset or something to iterate over, and returned one dict: put it in a"
                " list"
            )
        try:
            return iter(value)
        except TypeError:
            raise PipelineError(
                f"{self._label} must return a dataset or something to iterate over, not {type(value).__name__}"
            ) from None

    def _nested(self, graph: Graph, seed: int) -> Iterator[Any]:
        run = self._task.nested(graph, seed, self._task.calls)
        try:
            self._task.stops[run.close] = None
            for chunk in run:
                yield from chunk.elements
        finally:
            run.close()
            self._task.stops.pop(run.close, None)

    def padded(self, padding: int, size: int) -> None:
        """Count numbers that pad an array."""
        measure = self._task.measures[self._number]
        measure.padding += padding
        measure.padded += size

    def generator(self) -> np.random.Generator:
        """Random generator of this operator in this task."""
        task = self._task
        if isinstance(self._node, Shuffle):
            key = task.orders.key(self._number, self._repetition)
        elif isinstance(self._node, SampleFromDatasets):
            key = derive(task.seed if self._node.seed is None else self._node.seed, self._key)
        else:
            key = derive(task.seed, self._key, task.epoch, self._repetition)
        return np.random.Generator(np.random.PCG64(derive(key, task.task.index)))

    def uniforms(self, chunk: Chunk, seed: int | None) -> npt.NDArray[np.float64]:
        """Draw a number in [0, 1) for each element."""
        key = self._task.calls.key(self._number, chunk.origin, seed)
        words = mix_array(np.asarray(chunk.positions, np.int64).astype(np.uint64) ^ np.uint64(derive(key, 1)))
        return (words >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)

    def chunk_size(self) -> int:
        """Choose the size in elements of the next chunk."""
        return self._task.chunk_size(self._number)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Allocate an array for a leaf of a batch."""
        return self._task.allocate(shape, dtype)

    def mixed(self) -> Origin:
        """Origin of elements that this operator itself brings into an order."""
        return Origin(-1 - self._number, self._task.task.index, self._repetition)

    def children(self, parent: Chunk, index: int) -> int:
        """First position of the elements made of one element."""
        return first_made(self._key, int(parent.positions[index]))

    def outputs(self) -> Iterator[tuple[Origin, int, int]] | None:
        """List the groups of a batch, where they are planned."""
        return None if self._outputs is None else self._outputs()

    def leftovers(self) -> Iterable[Any]:
        """Take what earlier tasks left to this operator; the first to ask has them all."""
        return self._task.taken.pop(self._number, ())

    def leave(self, elements: list[Any]) -> bool:
        """Keep what is left for a later task, if there is one."""
        if self._task.task.parent < 0:
            return False
        # A task that holds several parts of a concatenation may run this operator more than once.
        self._task.left.setdefault(self._number, []).extend(elements)
        return True

    def leave_out(self, count: int) -> None:
        """Count elements that fill no round."""
        self._task.left_out[self._number] += count

    @property
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out of the task so far."""
        return self._task.calls.skipped

    # -- for reading, beside what operators are offered ----------------------------------------------------------------

    @property
    def limit(self) -> int:
        """Bytes that all buffers of the task hold together."""
        return self._task.buffer_bytes

    @property
    def reads(self) -> Reads | None:
        """Reads of this source, if it is far away; None where reading ahead is not worth it, or reads are watched."""
        return None if self._task.watch is not None else self._task.reads(self._number)

    @contextmanager
    def announcing(self, entries: Entries) -> Iterator[Callable[[], None]]:
        """Announce what this source will ask of a store; the body calls the function given to it as it goes on."""
        task = self._task
        assert self.reads is not None
        with self.reads.announce(task.owner, (task.epoch, task.task.index), entries) as announced:
            self._announced = announced
            task.stops[announced.close] = None
            try:
                yield announced.go_on
            finally:
                task.stops.pop(announced.close, None)
                self._announced = None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Account for the time of what is read in the body, for what was announced."""
        reads, measure = self.reads, self._task.measures[self._number]
        if reads is None:
            yield
            return
        meter = reads.meter
        waited_s, reading_s, cpu_s = meter.waited_s, meter.reading_s, meter.cpu_s
        try:
            with nullcontext() if self._announced is None else self._announced.asking():
                yield
        finally:
            measure.idle_s += meter.waited_s - waited_s
            measure.threads_s += meter.reading_s - reading_s
            measure.threads_cpu_s += meter.cpu_s - cpu_s

    def fetch_each(self, fetch: Callable[[Array], list[Any]], positions: Array) -> tuple[list[Any], Exception | None]:
        """Fetch the elements at positions that were announced, in their order.

        Returns:
            The elements up to the first that could not be read, and its error; None: all were.
        """
        elements: list[Any] = []
        with self._reading():
            try:
                for index in range(len(positions)):
                    elements += fetch(positions[index : index + 1])
            except Exception as error:  # noqa: BLE001 - raised once what is before it has been taken
                return elements, error
        return elements, None

    def fetch(self, fetch: Callable[[Array], list[Any]], chunk: Chunk) -> Chunk:
        """Fetch the elements at the chunk's positions; errors of a map-style data set's own code name the position."""
        positions = np.asarray(chunk.positions, np.int64)
        if self._task.watch is not None:
            return self._fetch_watched(fetch, chunk)
        try:
            return Chunk(fetch(positions), chunk.origin, compact(positions))
        except Exception as error:  # noqa: BLE001 - raised once what is before it has been taken
            # Of sources only a map-style data set is the user's code, in which single elements may fail.
            users = isinstance(self._node, FromMapStyle) and isinstance(error, ElementError)
            if not users or self._task.calls.raises:
                return self._fetch_before(fetch, chunk, error)
            return self._fetch_each(fetch, Chunk([], chunk.origin, positions))

    @property
    def watched(self) -> bool:
        """Whether each element that is read is reported, as one of them has ended workers."""
        return self._task.watch is not None

    def next_list(self, lists: Iterator[list[Any]], origin: Origin, position: int) -> list[Any] | None:
        """Read the next of the ``lists`` of a sequential source, which begins at a position; None after the last."""
        with self._reading():
            return self._task.watched(self._number, origin, position, lambda: next(lists, None))

    def _fetch_watched(self, fetch: Callable[[Array], list[Any]], chunk: Chunk) -> Chunk:
        if isinstance(self._node, FromMapStyle):
            return self._fetch_each(fetch, chunk)
        elements = []
        for position in np.asarray(chunk.positions, np.int64):
            one = partial(fetch, np.array([position]))
            elements += self._task.watched(self._number, chunk.origin, int(position), one)
        return Chunk(elements, chunk.origin, chunk.positions)

    def _fetch_before(self, fetch: Callable[[Array], list[Any]], chunk: Chunk, error: Exception) -> Chunk:
        """Fetch the elements before the one that failed again one by one, as ``error`` does not say which it was."""
        positions, elements = np.asarray(chunk.positions, np.int64), list[Any]()
        try:
            for index in range(len(positions) if len(positions) > 1 else 0):
                elements += fetch(positions[index : index + 1])
        except Exception as again:  # noqa: BLE001 - raised once what is before it has been taken
            error = again
        if len(elements) == len(positions):  # that came and went
            return Chunk(elements, chunk.origin, compact(positions))
        return Chunk(elements, chunk.origin, compact(positions[: len(elements)]), error)

    def _fetch_each(self, fetch: Callable[[Array], list[Any]], chunk: Chunk) -> Chunk:
        positions = np.asarray(chunk.positions, np.int64)
        kept: list[int] = []
        elements: list[Any] = []
        for index in range(len(positions)):
            keep, found = self.guard(chunk, index, partial(_one, fetch, positions[index : index + 1]))
            if keep:
                kept.append(index)
                elements.append(found)
        return Chunk(elements, chunk.origin, positions[np.array(kept, np.int64)])


def _one(fetch: Callable[[Array], list[Any]], position: Array) -> Any:
    """Fetch one element, which may itself be a list."""
    (element,) = fetch(position)
    return element
