"""A pipeline that can run: graph, split tables, seed and plan in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from millrace.elements.chunk import Chunk, Origin
from millrace.engine import feeds
from millrace.engine.calls import Calls
from millrace.engine.lowering import Lowering
from millrace.engine.measure import Measure, Sizer, Totals, clock, close
from millrace.engine.pool import Pool
from millrace.engine.task import RunningTask, default_threads
from millrace.errors import MillraceError
from millrace.graph.nodes import Graph
from millrace.planning.plan import Plan, Task, plan_of
from millrace.planning.tables import SplitTable
from millrace.planning.units import UnitMap
from millrace.sources import describe, list_source, open_source
from millrace.sources.contract import PositionSource, SequentialSource


class Program:
    """One pipeline in one process; its tasks may run on several threads at once.

    Args:
        graph: with user functions.
        tables: split table of every source, by node id (see :func:`list_sources`).
        seed: the job's seed, 64 bits.
        tasks: number of tasks of an epoch; None: by the data's size.
        threads: threads for user functions; None: the pipeline's ``num_threads``, else by the machine.

    Attributes:
        plan: the tasks of an epoch.
    """

    def __init__(
        self,
        graph: Graph,
        tables: Mapping[int, SplitTable],
        *,
        seed: int,
        tasks: int | None = None,
        threads: int | None = None,
        _pool: Pool | None = None,
    ) -> None:
        self.graph, self.seed = graph, seed
        self._units = UnitMap(graph, tables, seed)
        self.plan: Plan = plan_of(self._units, tasks)
        self._options = graph.options()
        self._pool = _pool or Pool(threads or self._options.num_threads or default_threads())
        self._sizer = Sizer()
        self._totals = Totals([tuple(graph.id_of(child) for child in node.inputs) for node in graph.nodes])
        self._sources: dict[int, PositionSource | SequentialSource] = {}
        self._lock = threading.Lock()

    def run(self, task: Task, epoch: int, leftovers: Mapping[int, list[Any]] | None = None) -> Run:
        """Starts a task of ``plan``.

        Args:
            task: from :attr:`plan`.
            epoch: number of the epoch.
            leftovers: for a tail: what its inputs left, joined in order, by node id.
        """
        calls = Calls(self.seed, epoch, self._options.on_error, self._describe)
        running = RunningTask(
            self._units,
            task,
            seed=self.seed,
            epoch=epoch,
            calls=calls,
            measures=self._totals.begin(),
            sizer=self._sizer,
            pool=self._pool,
            sources=self._source,
            nested=self._nested,
            leftovers=leftovers or {},
        )
        return Run(running, self._totals, self._sizer)

    def measures(self) -> list[tuple[int, str, int, int, float]]:
        """(node id, label, elements, bytes, active seconds) of every node, over all tasks so far."""
        rows = self._totals.by_node()
        return [
            (number, str(node), *row) for number, (node, row) in enumerate(zip(self.graph.nodes, rows, strict=True))
        ]

    def close(self) -> None:
        """Ends the threads. Runs must have been closed before."""
        self._pool.close()

    def _describe(self, origin: Origin, position: int) -> str:
        if origin.node < 0:
            return f"element {position} of {self.graph.nodes[-1 - origin.node]} in task {origin.split}"
        node = self.graph.nodes[origin.node]
        table = self._units.tables.get(origin.node)
        return f"element {position} of {node}" if table is None else describe(node, table, origin.split, position)

    def _source(self, number: int) -> PositionSource | SequentialSource:
        with self._lock:
            found = self._sources.get(number)
            if found is None:
                found = open_source(self.graph.nodes[number], self._units.tables[number])
                self._sources[number] = found
            return found

    def _nested(self, graph: Graph, seed: int) -> Iterator[Any]:
        """Elements of a dataset that a user's function returned: computed on the thread that asks, in order."""
        inner = Program(graph, list_sources(graph), seed=seed, _pool=_NO_THREADS)
        for index in range(inner.plan.length or 0):
            with inner.run(inner.plan.task(index), 0) as run:
                for chunk in run:
                    yield from chunk.elements


_NO_THREADS = Pool(1)


def list_sources(graph: Graph) -> dict[int, SplitTable]:
    """Split table of every source of ``graph``, by node id: the planning task.

    Raises:
        SourceError: data that is missing or damaged.
    """
    return {number: list_source(node) for number, node in graph.sources()}


class Run:
    """One task being run: iterate over its chunks; a context manager that stops it.

    Attributes:
        leftovers: after the end, what is left for the task's parent: raw elements by the node that collects them.
    """

    def __init__(self, task: RunningTask, totals: Totals, sizer: Sizer) -> None:
        self._task, self._totals, self._sizer = task, totals, sizer
        lowering = Lowering(task)
        root = lowering.graph.id_of(lowering.graph.root)
        if task.task.is_sequence:
            self._chunks = lowering.stream(root)
        else:
            self._chunks = lowering.units(root, feeds.blocks(task.task.start, task.task.stop))
        self._closed = False
        self._learnt = (0.0, 0)
        self._sources = [number for number, _ in lowering.graph.sources()]

    @property
    def leftovers(self) -> dict[int, list[Any]]:
        return self._task.left

    @property
    def skipped(self) -> int:
        """Elements that ``on_error`` left out so far."""
        return self._task.calls.skipped

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        began = clock()
        try:
            chunk = next(self._chunks, None)
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration):
                raise MillraceError("a user function raised StopIteration") from error
            raise
        except BaseException:
            self.close()
            raise
        if chunk is None:
            self.close()
            raise StopIteration
        self._learn(clock() - began)
        return chunk

    def _learn(self, seconds: float) -> None:
        measures: list[Measure] = self._task.measures
        read = sum(measures[number].elements for number in self._sources)
        spent, seen = self._learnt
        if read > seen:
            largest = max(measure.bytes for measure in measures) / read
            self._sizer.learn(read - seen, seconds + spent, largest)
            self._learnt = (0.0, read)
        else:
            self._learnt = (spent + seconds, seen)

    def close(self) -> None:
        """Stops the task and waits for what runs. Idempotent."""
        if not self._closed:
            self._closed = True
            close(self._chunks)
            self._totals.end(self._task.measures)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
