"""Job pipeline: one job's pipeline in a worker, built when it is first needed."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from millrace.elements.recycled_arrays import Bytes
from millrace.errors import MillraceError, PipelineError, ProtocolError
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import prints
from millrace.planning.split_table import SplitTable, pack_tables, unpack_tables
from millrace.protocol.messages import OpenJob
from millrace.protocol.reports import NodeMeasure
from millrace.wire.control.blob_transfer import digest_of
from millrace.worker.chunk_labels import Label, chunk_labels

if TYPE_CHECKING:
    from millrace.engine.run.program import Program
    from millrace.functions.bundles import Unpacked
    from millrace.graph.operator_graph import Graph
    from millrace.ops.stacking import Allocate
    from millrace.worker.source_cache import SourceCache

_logger = logging.getLogger(__name__)

Fetch = Callable[[str], bytes]
"""Function from a digest to its bytes, from the dispatcher, checked."""
Share = Callable[[str], Bytes]
"""Function from a digest to its bytes, in memory that other workers may share."""


class Listed(NamedTuple):
    """Listing of a job's sources.

    Attributes:
        digest: of the tables, packed.
        tables: the split table of every source, by node id.
        prints: what identifies each.
        points: the cache points.
    """

    digest: str
    tables: dict[int, SplitTable]
    prints: list[str]
    points: list[CachePoint]


class JobPipeline:
    """One job's pipeline in this process. Thread-safe.

    Args:
        opened: the dispatcher's word.
        fetch: see :data:`Fetch`.
        threads: that user functions run on; None: by the machine.
        allocate: makes the arrays that batches are written into.
        share: see :data:`Share`; None: they are fetched.
        sources: the cache of stored bytes that the job's reads go through; None: there is none.
    """

    def __init__(
        self,
        opened: OpenJob,
        fetch: Fetch,
        threads: int | None,
        allocate: Allocate,
        share: Share | None = None,
        sources: SourceCache | None = None,
    ) -> None:
        self.name = opened.job
        self.spec = opened.spec
        self.generation = opened.generation
        self.opened = opened
        """The dispatcher's latest word."""
        self._fetch = fetch
        self._share = share or (lambda digest: np.frombuffer(fetch(digest), np.uint8))
        self._threads = threads
        self._allocate = allocate
        self.sources = sources
        self._lock = threading.Lock()
        self._bundle: Unpacked | None = None
        self._unpacked: tuple[Graph, list[Any]] | None = None
        self._listing, self._counting = threading.Lock(), threading.Lock()
        self._listed: Listed | None = None
        self.seen: int | None = None
        """Number of files that were looked at so far, while the sources are being listed."""
        self._program: Program | None = None
        self._chunks = -1
        self._labels: dict[int, Label] = {}

    def update(self, opened: OpenJob) -> None:
        """Take in what more the dispatcher says (the tables) of the same job."""
        self.opened = opened  # read by others in one piece; the lock may be held by user code for long

    def list_sources(self, shared: str = "") -> Listed:
        """List the sources; once, however often that is asked.

        Args:
            shared: digest of the tables of a job with the same sources, which are taken if they can be had.

        Raises:
            SourceError: if one can't be listed.
            ShippingError: if the bundle can't be opened here.
        """
        from millrace.engine.cache.find_cache_points import find_points
        from millrace.engine.run.program import list_sources

        with self._listing:
            if self._listed is None:
                with self._lock:
                    graph, _ = self._unpack()
                self.seen = 0
                try:
                    tables = self._shared_tables(graph, shared) or list_sources(graph, self._saw)
                finally:
                    self.seen = None
                points = find_points(graph, tables, self.opened.seed)
                self._listed = Listed(digest_of(pack_tables(tables)), tables, prints(graph, tables), points)
            return self._listed

    def _shared_tables(self, graph: Graph, digest: str) -> dict[int, SplitTable]:
        """Fetch the tables of another job's sources, by the numbers that they have here; none: they are not there."""
        if not digest:
            return {}
        try:
            tables = unpack_tables(self._fetch(digest))
        except MillraceError as error:
            _logger.info("job %s: its sources are listed again: %s", self.name, error)
            return {}
        numbers = sorted(number for number, _ in graph.sources())
        return dict(zip(numbers, (tables[number] for number in sorted(tables)), strict=True))

    def _saw(self, files: int) -> None:
        with self._counting:
            self.seen = (self.seen or 0) + files

    def _tables(self, digest: str) -> dict[int, SplitTable]:
        listed = self._listed
        if listed is not None and listed.digest == digest:
            return listed.tables
        return unpack_tables(self._fetch(digest))

    def choose(self, tasks: int, workers: list[str]) -> list[int]:
        """Choose for each task the index of its worker, by the user's sharding function, the bundle's last value.

        Raises:
            PipelineError: if it returns something else.
            ShippingError: if the bundle can't be opened here.
        """
        with self._lock:
            function = self._unpack()[1][-1]  # runs with the modules in force that came with it
        return checked_owners(function(range(tasks), workers), tasks, len(workers))

    def program(self) -> Program:
        """Pipeline, ready to run tasks.

        Raises:
            MillraceError: if it can't be built.
        """
        from millrace.engine.run.program import Program

        with self._lock:
            graph, _ = self._unpack()
            if self._program is None:
                opened = self.opened
                if not opened.tables:
                    raise ProtocolError(f"job {self.name!r}: a task was leased before the sources were listed")
                self._program = Program(
                    graph,
                    self._tables(opened.tables),
                    seed=opened.seed,
                    tasks=opened.spec.tasks,
                    ranks=opened.spec.ranks,
                    threads=self._threads,
                    allocate=self._allocate,
                    tier=self.sources,
                )
            return self._program

    def label_chunks(self, chunks: int) -> None:
        """Have what cache servers keep for this job labelled by the data, and the chunk of them if there are any."""
        if self.sources is None or not self.sources.there or self._chunks == chunks:
            return
        with self._lock:
            graph, _ = self._unpack()
            tables = self._tables(self.opened.tables)
            if len(tables) == 1:
                if chunks not in self._labels:
                    (table,) = tables.values()
                    self._labels[chunks] = chunk_labels(prints(graph, tables)[0], table, chunks)
                self.sources.label = self._labels[chunks]
            self._chunks = chunks

    def measures(self) -> list[NodeMeasure]:
        """Measure what each operator did so far."""
        if not self._lock.acquire(blocking=False):
            return []  # being built: nothing was done yet, and a heartbeat does not wait for user code
        try:
            program = self._program
        finally:
            self._lock.release()
        return [] if program is None else program.measures()

    def close(self) -> None:
        """Let go of the pipeline; no run may be active."""
        with self._lock:
            program, self._program = self._program, None
            self._unpacked = self._bundle = None
        if program is not None:
            program.close()
        if self.sources is not None:
            self.sources.close()

    def _unpack(self) -> tuple[Graph, list[Any]]:
        """Restore what came with the job, and put the modules of its functions in force."""
        if self._bundle is not None:
            self._bundle.put_in_force()
        if self._unpacked is None:
            from millrace.functions import bundles
            from millrace.graph import serialize
            from millrace.sources.arrays import open_shipped

            self._bundle = bundles.open_bundle(self._fetch(self.spec.bundle))
            values = open_shipped(self._bundle.values, self._share)
            self._unpacked = serialize.unpack(self.spec.structure, values), values
        return self._unpacked


def checked_owners(chosen: Any, tasks: int, workers: int) -> list[int]:
    """Check what a sharding function returned: for each task the index of a worker.

    Raises:
        PipelineError: if not.
    """
    try:
        owners = [operator.index(owner) for owner in chosen]
    except TypeError:
        owners = []
    if len(owners) != tasks or not all(0 <= owner < workers for owner in owners):
        shown = repr(chosen)
        raise PipelineError(
            f"a sharding function takes (tasks, workers) and returns a list with the index of a "
            f"worker for each task, here {tasks} numbers from 0 to {workers - 1}; it returned "
            f"{shown if len(shown) <= 80 else shown[:77] + '...'}"
        )
    return owners
