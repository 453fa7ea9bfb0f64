"""Program: a pipeline that can run, with graph, split tables, seed and plan in one process."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from millrace.engine.cache.cache_writer import CacheWriter
from millrace.engine.cache.cached_items import ActivePoint
from millrace.engine.metrics import Measure, Sizer, Totals
from millrace.engine.run.endless import EndlessRepeat
from millrace.engine.run.outlook import ComingTask, Outlook
from millrace.engine.run.pooled_reads import PooledReads, reads_far
from millrace.engine.run.task import Budget, RunningTask
from millrace.engine.run.task_run import PartsRun, Run
from millrace.engine.threads.operator_threads import OperatorThreads, ThreadPool
from millrace.engine.user_code.crash_probe import CrashProbe
from millrace.engine.user_code.user_calls import Calls
from millrace.errors import PipelineError
from millrace.graph.nodes import Cache, FromFiles, Node, Prefetch, always_reused
from millrace.graph.operator_graph import Graph
from millrace.graph.rewrites import rewritten, trailing_prefetch
from millrace.graph.rewrites.fusion import Fused
from millrace.graph.rewrites.trailing_prefetch import Ending
from millrace.host_limits import usable_cores
from millrace.ops.stacking import Allocate
from millrace.planning.epoch_shape import FRESH, RunShape, WeightChange
from millrace.planning.plan import WHOLE, Piece, Plan, Task, plan_of
from millrace.planning.split_table import SplitTable
from millrace.planning.units import UnitMap
from millrace.planning.weight_changes import Reweighted, set_weights, too_late
from millrace.protocol.reports import NodeMeasure
from millrace.sources import list_source, open_source
from millrace.sources.listing import changed_file
from millrace.sources.read_queues import ReadAccount
from millrace.sources.read_scheduler import SourceTier
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, PositionSource, SequentialSource, ignore_progress
from millrace.sources.storage import is_remote


class Program:
    """Pipeline that can run in one process; its tasks may run on several threads at once.

    Args:
        graph: with user functions.
        tables: split table of every source, by node id (see :func:`list_sources`).
        seed: the job's seed, 64 bits.
        tasks: number of tasks of an epoch; None: by the data's size.
        ranks: consumers that get equally many elements; None: it does not matter.
        pieces: what is left of the epoch that is read, if another plan divided it; empty: all of it.
        chunks: of the epoch that is read, as in its shape.
        threads: cores that user functions may keep busy; None: all that this process may use. AUTOTUNE begins with
            these and finds out how many threads pay; the pipeline's ``num_threads`` bounds them.
        allocate: makes the arrays that batches are written into.
        tier: a cache before the stores: see :class:`~millrace.sources.reads.Reads`; None: none.
        consecutive: whether one consumer in this process takes the tasks one after the other. Then whoever runs them is
            to do the prefetch at the end, over all of them: :attr:`ending`.

    Attributes:
        plan: the tasks of an epoch; ``plan_in_chunks``: makes that of an epoch that is read in so many chunks.
        ending: the prefetch to do over all tasks; None: none.
        budget: bytes that a running task may hold.
        rewrites: how the graph that runs differs from the one that was written, in plain words.
    """

    def __init__(
        self,
        graph: Graph,
        tables: Mapping[int, SplitTable],
        *,
        seed: int,
        tasks: int | None = None,
        ranks: int | None = None,
        pieces: Sequence[Piece] = (),
        chunks: int = 0,
        threads: int | None = None,
        allocate: Allocate = np.empty,
        tier: SourceTier | None = None,
        consecutive: bool = False,
        _pool: ThreadPool | None = None,
    ) -> None:
        self.graph, self.seed = graph, seed
        self._units = UnitMap(graph, tables, seed)
        self._pieces = pieces
        self.plan: Plan = plan_of(self._units, tasks, ranks, pieces, chunks)
        self.plan_in_chunks = functools.cache(functools.partial(plan_of, self._units, tasks, None, ()))
        self._exact = self._units.exact
        self._endless = EndlessRepeat(graph, self._units) if self.plan.length is None else None
        self._options = graph.options()
        self._reused = {number for number, node in enumerate(graph.nodes) if always_reused(node)}
        self._pool = _pool or ThreadPool(threads or usable_cores(), self._options.num_threads)
        self._operator_threads = [OperatorThreads(self._pool, inline=_reads_at_hand(node)) for node in graph.nodes]
        self._sizers = [Sizer() for _ in graph.nodes]
        self._allocate = allocate
        # A dataset that a user's function returned is often too small for rewriting to pay.
        self._running, self.rewrites = (graph, []) if _pool else rewritten(graph)
        self.ending: Ending | None = None
        if consecutive and self._options.rewrites is not False:
            self._running, self.ending, notes = trailing_prefetch.apply(self._running)
            self.rewrites += notes
        self.budget = Budget(graph, ahead=self.ending is not None and not self.ending.at_once)
        self._totals = Totals(_inputs(self._running))
        self._sources: dict[int, PositionSource | SequentialSource] = {}
        self._far = [] if _pool else [number for number, node in graph.sources() if reads_far(node)]
        self._parts: dict[int, Reads] = {}
        self._pooled = PooledReads(graph, at_hand=_pool is not None, tier=tier)
        self._lock = threading.RLock()

    def run(
        self,
        task: Task,
        epoch: int,
        leftovers: Mapping[int, list[Any]] | None = None,
        watch: CrashProbe | None = None,
        *,
        skip: int = 0,
        shape: RunShape = FRESH,
        point: ActivePoint | None = None,
        writer: CacheWriter | None = None,
        owner: Hashable = None,
        meanwhile: Callable[[], bool] | None = None,
    ) -> Run:
        """Start a task of ``plan``, or of another plan of the same units.

        Args:
            task: from :attr:`plan`.
            epoch: number of the epoch.
            leftovers: for a tail: what its inputs left, joined in order, by node id.
            watch: for a task that has ended workers.
            skip: outputs to leave out at its beginning. Where units are outputs, they are not computed at all.
            shape: of the epoch, beside the cache points below which it is as the first one in any case.
            point: the cache point in use.
            writer: where what is made there is kept; None: nowhere.
            owner: who runs it, of those that :meth:`expect` was told of.
            meanwhile: called while the last calls of an operator take long: does some of the work that comes after the
                task; False: there is none to do now. A task of several pieces doesn't call it.
        """
        if task.parts:
            begin = functools.partial(self._part, task, epoch, watch, shape=shape, point=point, writer=writer)
            return PartsRun(begin, task.parts, skip)
        if skip and self._exact and not (task.is_sequence or task.is_tail):
            start = min(task.start + skip, task.stop - 1)
            skip -= start - task.start
            task = msgspec.structs.replace(task, start=start)
        one_by_one = watch is not None and watch.each
        running = self._task(
            task,
            epoch,
            measures=self._totals.begin(),
            operator_threads=[OperatorThreads(None) for _ in self._operator_threads]
            if one_by_one
            else self._operator_threads,
            leftovers=leftovers or {},
            watch=watch,
            owner=owner,
            reused=self._reused_in(shape),
            chunks=shape.chunks,
            reweighted=shape.reweighted,
            point=point,
            writer=writer,
            meanwhile=meanwhile,
        )
        return Run(running, self._running, self._totals, skip)

    def _part(self, task: Task, epoch: int, watch: CrashProbe | None, piece: Piece, skip: int, **cached: Any) -> Run:
        """Start one of a task's pieces, without its first outputs; the run may give more than the piece."""
        index = task.index if piece.index < 0 else piece.index
        stop = piece.start + piece.last if self._exact else piece.stop
        return self.run(Task(index, piece.start, stop), epoch, None, watch, skip=piece.first + skip, **cached)

    def expect(self, owner: Hashable, tasks: Iterable[ComingTask]) -> None:
        """Announce the tasks that come next, so that their reads of remote stores are under way before.

        Args:
            owner: who runs them one after the other, as given to :meth:`run`.
            tasks: in order, the one that runs first of all; instead of those announced before.
        """
        if not self._far:
            return
        coming = list(tasks)
        nothing = [Measure() for _ in self.graph.nodes]
        # What an epoch makes is not all kept before it has ended, so that of the next one too much would be read.
        seen: list[tuple[tuple[int, int], Outlook]] = []
        for each in coming:
            task = self._task(
                each.task,
                each.epoch,
                measures=nothing,
                operator_threads=self._operator_threads,
                reused=self._reused_in(each.shape),
                chunks=each.shape.chunks,
                reweighted=each.shape.reweighted,
                point=each.point,
            )
            with contextlib.suppress(PipelineError):  # a sampler that can't draw an epoch fails when that is read
                outlook = Outlook(task, self._running, filled=each.epoch == coming[0].epoch)
                seen.append(((each.epoch, each.task.index), outlook))
        for number in self._far:
            expected = [(key, each.entries(number)) for key, each in seen if number in each.feeds]
            self._reads_of(number).expect(owner, expected)

    def set_weights(self, task: int, epoch: int, before: Reweighted, weights: Sequence[float]) -> WeightChange:
        """Decide from which element of the mixture on weights hold, see :func:`.weight_changes.set_weights`."""
        return set_weights(self._units, self.plan.task, task, epoch, before, weights, self._pieces)

    def too_late(self, change: WeightChange) -> bool:
        """Whether weights were set when nothing is to come that they would hold for."""
        return too_late(self._units, change.node, change.element)

    def measures(self) -> list[NodeMeasure]:
        """Measure each node over all tasks so far; one that was left out has passed on its stand-in's output."""
        rows, padding, found = self._totals.by_node(), self._totals.padding(), []
        for number, node in enumerate(self.graph.nodes):
            elements, size, *seconds = rows[self._running.id_of(node)]
            active_s, cpu_s, held_s = seconds if self._running.id_of(node) == number else (0.0, 0.0, 0.0)
            done = self._parts[number].account if number in self._far and number in self._parts else None
            flying = self._pooled.reads.in_flight.level if done is not None else 0
            threads = flying or self._operator_threads[number].level
            measure = NodeMeasure(
                number, str(node), elements, size, active_s, cpu_s, threads, held_s, flying, **padding[number]
            )
            found.append(measure if done is None else _with_requests(measure, done))
        return found

    @property
    def works_ahead(self) -> bool:
        """Whether tasks have threads of their own, of a prefetch, or reads of far sources that are under way before."""
        return bool(self._far) or any(isinstance(node, Prefetch) for node in self._running.reachable())

    @property
    def cores(self) -> int:
        """Number of cores that its user functions may keep busy."""
        return min(self._pool.cores, self._pool.most)

    def threads(self) -> list[tuple[int, str, int, str]]:
        """List (node id, label, threads, why) of every node for which AUTOTUNE came to a conclusion."""
        return [
            (number, str(node), operator.tuning.settled, operator.tuning.reason)
            for number, (node, operator) in enumerate(zip(self.graph.nodes, self._operator_threads, strict=True))
            if operator.tuning.reason
        ]

    def ended(self, task: Task, epoch: int, run: Run) -> bool:
        """Whether, after this task, nothing will ever come: all that is repeated without end has given nothing."""
        endless = self._endless
        if endless is None or endless.repeated is None:
            return False
        number = self._running.id_of(endless.repeated)

        def made(task: Task) -> int:
            with self.run(task, epoch) as again:
                while not again.made(number) and next(again, None) is not None:
                    pass
                return again.made(number)

        return endless.ended(task, run.made(number), made)

    def gave_nothing(self, run: Run, outputs: int) -> bool:
        """Whether the node repeated without end gave nothing in a run that has ended with so many outputs."""
        if outputs or self._endless is None or self._endless.repeated is None or any(run.leftovers.values()):
            return False  # outputs alone can also be nothing because operators above left everything out
        return not run.made(self._running.id_of(self._endless.repeated))

    def changed(self) -> str:
        """Find a local file of the sources that was written since it was listed; empty if none is known to be."""
        return next(filter(None, map(changed_file, self._units.tables.values())), "")

    def close(self) -> None:
        """End the threads. Runs must have been closed before."""
        self._pooled.close()
        self._pool.close()

    def _reused_in(self, shape: RunShape) -> set[int]:
        return self._reused if shape.reused < 0 else {*self._reused, shape.reused}

    def _source(self, number: int) -> PositionSource | SequentialSource:
        with self._lock:
            found = self._sources.get(number)
            if found is None:
                found = open_source(self.graph.nodes[number], self._units.tables[number], self._reads_of(number))
                self._sources[number] = found
            return found

    def _reads_of(self, number: int) -> Reads:
        """Return the reads of a source, which may hold as many bytes as an operator."""
        with self._lock:
            if number not in self._parts:
                self._parts[number] = self._pooled.reads.part(self.budget.each)
            return self._parts[number]

    def _task(
        self,
        task: Task,
        epoch: int,
        *,
        measures: list[Measure],
        operator_threads: list[OperatorThreads],
        **options: Any,
    ) -> RunningTask:
        return RunningTask(
            self._units,
            task,
            seed=self.seed,
            epoch=epoch,
            budget=self.budget,
            measures=measures,
            sizers=self._sizers,
            operator_threads=operator_threads,
            sources=self._source,
            reads=lambda number: self._reads_of(number) if number in self._far else None,
            nested=nested,
            allocate=self._allocate,
            **options,
        )


def _with_requests(measure: NodeMeasure, done: ReadAccount) -> NodeMeasure:
    return msgspec.structs.replace(
        measure,
        requests=done.requests,
        stored_bytes=done.bytes,
        cached_bytes=done.cached,
        retried=done.retried,
        hedged=done.hedged,
        store_wait_s=done.waited_s,
        under_way=done.under_way,
    )


def nested(graph: Graph, seed: int, calls: Calls) -> Run:
    """Run a dataset that a user's function returned: on the thread that asks, in order.

    Args:
        graph: of the dataset.
        seed: of all that is random in it.
        calls: of the task in which the function was called.
    """
    run = Program(graph, list_sources(graph), seed=seed, _pool=_NO_THREADS).run(WHOLE, 0)
    run.calls.lie_within(calls)
    return run


def _inputs(graph: Graph) -> list[tuple[int, ...]]:
    """List by node id the nodes whose time is not its own: its inputs, and what was fused with it."""
    table: list[tuple[int, ...]] = [() for _ in graph.nodes]
    for node in graph.reachable():
        fused = node.parts[:-1] if isinstance(node, Fused) else ()
        table[graph.id_of(node)] = tuple(map(graph.id_of, (*node.inputs, *fused)))
    return table


_NO_THREADS = ThreadPool(1, 1)


def _reads_at_hand(node: Node) -> bool:
    """Whether the node's data is mostly in the machine's memory; then a hand-over costs more than reading it."""
    match node:
        case FromFiles():
            return not any(map(is_remote, node.patterns))
        case Cache():
            return not is_remote(node.path or "")
    return False


def list_sources(
    graph: Graph, seen: ListingProgress = ignore_progress, reads: Reads | None = None
) -> dict[int, SplitTable]:
    """List every source of ``graph``: split tables by node id. This is the planning task.

    Args:
        graph: of which only sources are looked at.
        seen: called with the number of files looked at since the last call, on any thread.
        reads: what is read with; None: with threads that end with the listing.

    Raises:
        SourceError: data that is missing or damaged.
    """
    if reads is None:
        with contextlib.closing(PooledReads(graph)) as pooled:
            return list_sources(graph, seen, pooled.reads)
    return {number: list_source(node, reads, seen) for number, node in graph.sources()}
