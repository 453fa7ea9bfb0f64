"""Local epoch: a whole epoch in this process, with the plan that a service would use."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from millrace.elements.chunk import Chunk
from millrace.engine.cache.local_cache import LocalCache
from millrace.engine.metrics import Loop
from millrace.engine.run.element_iterator import ElementIterator
from millrace.engine.run.epoch_tasks import LocalEpoch, chunks_of
from millrace.engine.run.local_weights import LocalWeights
from millrace.engine.run.open_iterators import close_at_exit
from millrace.engine.run.program import Program
from millrace.engine.run.progress_tracker import ProgressTracker
from millrace.engine.threads.final_prefetch import overlapped
from millrace.errors import MillraceError, MillraceWarning, PipelineError, StateError, anew
from millrace.graph.nodes import always_reused
from millrace.graph.operator_graph import Graph
from millrace.planning.checkpoint import Checkpoint, Merged, PipelineIdentity, fit, identity, pack, parse_all
from millrace.planning.epoch_cursor import EpochCursor, Number, Share, start_of
from millrace.planning.plan import Piece, Plan, make_plan
from millrace.planning.remainder import left_of
from millrace.planning.split_table import SplitTable
from millrace.planning.task_order import planned, shared
from millrace.planning.units import UnitMap
from millrace.planning.weight_changes import NOT_READ, TOO_LATE, carried, check_changes, checked_weights
from millrace.protocol.reports import NodeMeasure

_NOTHING: Any = object()
_TASKS_EACH = 4
"""Least number of an epoch's tasks for each of the processes that share it."""


class ReadablePipeline(Protocol):
    """Dataset that is read."""

    @property
    def seed(self) -> int:
        """Seed of everything random that has no seed of its own; that of a loaded state from then on."""

    @property
    def graph(self) -> Graph:
        """Graph with user functions."""

    def tables(self) -> dict[int, SplitTable]:
        """Split table of every source, by node id."""

    def adopt_seed(self, seed: int | None) -> None:
        """Take over this seed from now on."""


def read(pipeline: ReadablePipeline, passes: EpochCursor, number: Number, share: Share | None = None) -> LocalIterator:
    """Read one epoch of a pipeline, or a part of it.

    Args:
        pipeline: a dataset.
        passes: what it remembers of its iterators.
        number: of the epoch, unless states are loaded into ``passes``.
        share: (i, n): the i-th of n parts.

    Raises:
        StateError: what is loaded does not fit.
    """

    def begin(states: Any) -> _Reading:
        if states is None:
            return _reading(pipeline, passes, number, share)
        fresh = _reading(pipeline, passes, None if isinstance(number, int) else number, share, states)
        passes.forget()
        return fresh

    return LocalIterator(begin)


class _Reading(NamedTuple):
    """One reading of an epoch, from where it was begun or a state was loaded. It owns the program."""

    program: Program
    epoch: LocalEpoch
    progress: ProgressTracker
    loop: Loop
    elements: Generator[Any, None, None]
    state: Callable[[], Checkpoint]
    passes: EpochCursor
    loaded: tuple[Checkpoint, ...]
    share: Share | None


def _reading(
    pipeline: ReadablePipeline, passes: EpochCursor, number: Number, share: Share | None, states: Any = None
) -> _Reading:
    """Begin to read, see :func:`read`; with ``states`` where these say, which may be the end of an epoch."""
    loaded = passes.loaded if states is None else parse_all(states)
    if loaded and not isinstance(number, int):
        begin = start_of(loaded, share, at_end=states is not None)
        passes.following = begin.epoch
        passes.choose(number, loaded)
        _take_seed(pipeline, loaded[0])
    else:
        chosen, loaded = passes.choose(number)
        begin = Merged(epoch=chosen, reweighted=passes.reweighted)
    passes.reweighted = carried(begin.reweighted)
    graph, tables, seed = pipeline.graph, pipeline.tables(), pipeline.seed
    tasks = None
    if share is not None:
        length = make_plan(graph, tables, seed=seed).length
        few = length is not None and length < _TASKS_EACH * share[1]
        tasks = _TASKS_EACH * share[1] if few else None  # so that there is something for each
    reuse = LocalCache(graph, tables, seed, share[1] if share else 1) if any(map(always_reused, graph.nodes)) else None

    @functools.cache
    def cut(shares: int, pieces: tuple[Piece, ...], chunks: int) -> tuple[Plan, PipelineIdentity]:
        plan = make_plan(graph, tables, tasks=tasks, seed=seed, ranks=shares or None, pieces=pieces, chunks=chunks)
        return plan, identity(graph, tables, plan.length)

    pieces: list[Piece] = []
    for each in loaded:
        divided, there = cut(each.shares, tuple(each.pieces), each.chunks)
        fit(each.identity, there)
        if each.shares and each.epoch == begin.epoch and not pieces:  # of ranks that got equally many elements
            pieces = left_of(divided, begin.tasks_done(), dict(begin.begun))
    if pieces:
        begin = Merged(epoch=begin.epoch, shares=1, pieces=pieces, **begin.for_runs())
    else:
        begin = msgspec.structs.replace(begin, shares=0, pieces=[])
    if begin.reweighted:
        check_changes(UnitMap(graph, tables, seed), begin.epoch, begin.reweighted)
    program = Program(graph, tables, seed=seed, tasks=tasks, pieces=pieces, chunks=begin.chunks, consecutive=True)
    if reuse is not None and reuse.in_memory and share is not None and not share[0] and not begin.epoch:
        warnings.warn(
            f"{pipeline} keeps elements in the memory of each of a DataLoader's worker processes: they are lost when "
            "these end, as they do after every epoch without persistent_workers=True, and what one has computed the "
            "others compute again. Give cache() a path, or use num_workers=0, or distribute()",
            MillraceWarning,
            stacklevel=2,
        )
    here = functools.cache(lambda: identity(graph, tables, program.plan.length))
    epoch, loop = LocalEpoch(program, begin, reuse), Loop()
    part, parts = share or (0, 1)
    order = planned(program.plan) if parts == 1 else shared(program.plan, part, parts)
    progress = ProgressTracker(begin, ended=len(loaded) == 1 and loaded[0].ended and loaded[0].epoch == begin.epoch)
    elements = _elements(program, chunks_of(epoch, order, begin, progress), progress, loop, passes, passes.load_id)
    state = functools.partial(_state, progress, begin, epoch.weights, seed, share, here)
    passes.begin(begin.epoch, state)
    return _Reading(program, epoch, progress, loop, elements, state, passes, loaded, share)


def _take_seed(pipeline: ReadablePipeline, loaded: Checkpoint) -> None:
    if loaded.seed is not None and loaded.seed != pipeline.seed:
        if pipeline.graph.seed() is not None:
            raise StateError(f"the state is of seed {loaded.seed}, and this pipeline has seed {pipeline.seed}")
        pipeline.adopt_seed(loaded.seed)


class LocalIterator(ElementIterator):
    """Iterator over the elements of one epoch, or of a part of it, in this process.

    Closes itself at the end; ``close()``, or leaving a ``with`` block, ends it before. Several threads
    may read from it: each element goes to one of them. Once it has failed, it fails in the same way for ever.

    Args:
        begin: begins to read where states say; None: where the dataset is.
    """

    def __init__(self, begin: Callable[[Any], _Reading]) -> None:
        self._lock = threading.RLock()
        self._begin = begin
        self._take(begin(None))
        close_at_exit(self)

    def _take(self, reading: _Reading) -> None:
        self._reading, self._progress, self._elements = reading, reading.progress, reading.elements
        self._failure: Exception | None = None
        self._back: tuple[Any, ...] = ()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        element, asked = _NOTHING, False
        try:
            with self._lock:
                if self._failure is not None:
                    raise anew(self._failure)  # noqa: TRY301 (it is not handled below)
                for element in self._back:
                    self._back = ()
                    self._progress.take_back(-1)
                    return element
                asked = True
                for element in self._elements:  # nothing can come between taking one and knowing of it
                    return element
        except BaseException as error:
            if element is not _NOTHING:  # Ctrl-C on the way out: nobody has it
                self.put_back(element)
            elif asked and isinstance(error, Exception):
                self._failure = anew(error)
            elif asked:
                self._failure = MillraceError(
                    "this iterator was interrupted while it computed an element: iterate anew, or go on from its state"
                )
            raise
        raise StopIteration

    def put_back(self, element: Any) -> None:
        """Put back an element whose receiver could not use it: it is handed out once more, and no state counts it."""
        with self._lock:
            self._back = (element,)
            self._progress.take_back()

    @property
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out so far."""
        return self._reading.epoch.skipped

    def state_dict(self) -> dict[str, Any]:
        """State: how far this epoch was read, as plain values."""
        return pack(self._reading.state())

    def set_weights(self, weights: Sequence[float]) -> int:
        """See :meth:`StatefulIterator.set_weights`."""
        with self._lock:
            reading = self._reading
            if reading.share is not None:
                raise PipelineError(
                    "set_weights sets weights for all who read an epoch, and this is one of several processes of a"
                    " DataLoader without a service, each of which knows its own part: use distribute()"
                )
            over = reading.progress.ended or inspect.getgeneratorstate(reading.elements) == inspect.GEN_CLOSED
            if over or not reading.passes.is_last(reading.state):
                raise PipelineError(NOT_READ)
            change = reading.epoch.set_weights(checked_weights(weights))
            reading.passes.reweighted = carried((change,))
        if reading.program.too_late(change):
            warnings.warn(TOO_LATE, MillraceWarning, stacklevel=2)
        return change.element

    def load_state_dict(self, state: Any) -> None:
        """Go on where ``state`` was taken: in that epoch, or at its end.

        Args:
            state: what ``state_dict()`` gave, here or on a service; or the list of all ranks' states.

        Raises:
            StateError: it is not of this pipeline over these data.
        """
        if self._reading.passes.loaded and self._reading.loaded == parse_all(state):
            return  # as it was loaded into the dataset before, and nothing was read yet
        with self._lock:
            fresh = self._begin(state)
            self.close()
            self._take(fresh)

    def close(self, wait_s: float = -1) -> None:
        """Stop threads and let go of everything, once no thread waits for an element; not at all after ``wait_s``."""
        if self._lock.acquire(timeout=wait_s):
            try:
                self._elements.close()
            finally:
                self._lock.release()

    def status(self) -> dict[str, Any]:
        """Status of the epoch, as of a job in the status of a service, as far as that makes sense here.

        It has ``operators``, ``batch_time_s``, ``wait_share``, and ``bottleneck``: what keeps this loop from being
        faster, in one sentence (``reason``).
        """
        from millrace.control.tasks.job_load import delayed, kinds, operator_rows, operators_of
        from millrace.policies.bottleneck import BottleneckMeasures, bottleneck

        program, loop = self._reading.program, self._reading.loop
        measures = {each.node: each for each in program.measures()}
        operators = operators_of(measures, *kinds(program.graph))
        handed_out, wall_s = self._progress.handed_out, sum(each.wall_s for each in operators)
        load = BottleneckMeasures(
            operators,
            loop.read_s / handed_out if handed_out else 0.0,
            loop.waited_s / handed_out if handed_out else 0.0,
            cores=program.cores,
            used=sum(each.cpu_s for each in operators) / wall_s if wall_s > 0 else 0.0,
            delayed=delayed(*loop.cores_s()),
        )
        return {
            "batch_time_s": load.batch_s or None,
            "wait_share": load.waits if handed_out else None,
            "operators": operator_rows(measures, measures, loop.read_s),
            "bottleneck": msgspec.to_builtins(bottleneck(load)),
        }

    def measures(self) -> list[NodeMeasure]:
        """Measures of each operator so far, see :meth:`millrace.engine.run.program.Program.measures`."""
        return self._reading.program.measures()

    def rewrites(self) -> list[str]:
        """List how the graph that runs differs from the one written, in words; see :mod:`millrace.graph.rewrites`."""
        return self._reading.program.rewrites


def _state(
    progress: ProgressTracker,
    begin: Merged,
    weights: LocalWeights,
    seed: int,
    share: Share | None,
    identity: Callable[[], PipelineIdentity],
) -> Checkpoint:
    done, begun = progress.now()
    here = identity()
    rank, ranks = share or (0, 1)
    return Checkpoint(
        seed=seed,
        epoch=begin.epoch,
        alone=begin.alone,
        graph=here.graph,
        sources=here.sources,
        tasks=here.tasks,
        done=done.low,
        later=done.text(),
        begun=begun,
        ended=progress.ended,
        rank=rank,
        ranks=ranks,
        helpers=share is not None,
        **begin.fields() | {"reweighted": weights.changes},  # looked at last, so that it has all of what was read
    )


def _elements(
    program: Program,
    chunks: Generator[Chunk, None, None],
    progress: ProgressTracker,
    loop: Loop,
    passes: EpochCursor,
    load_id: int,
) -> Generator[Any, None, None]:
    passes.started(load_id)
    if program.ending is not None:
        chunks = overlapped(chunks, program.ending, program.budget.each)
    try:
        yield from progress.handed(loop.timed(chunks))
    finally:
        progress.closed()
        try:
            chunks.close()
        finally:
            program.close()
