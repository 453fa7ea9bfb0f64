"""Pooled reads: the reads of a pipeline's sources with the threads that make their requests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millrace.engine.threads.operator_threads import ThreadPool
from millrace.graph.nodes import Node, Source
from millrace.graph.operator_graph import Graph
from millrace.graph.source_nodes import places_of
from millrace.policies import read_concurrency
from millrace.sources.read_scheduler import SourceTier
from millrace.sources.reads import Reads, is_far

_SPARE_THREADS = 32
"""Threads beside those of the reads under way: for second requests, and for footers of files that are read ahead."""


def reads_far(node: Node) -> bool:
    """Whether a read of the node is a request to another machine, so that many at once pay."""
    return isinstance(node, Source) and any(map(is_far, places_of(node)))


class PooledReads:
    """Reads with threads, which end with them.

    Args:
        graph: whose options say how many reads are under way at once; None: as many as pay.
        at_hand: whether there are to be no threads: whoever asks reads.
        tier: see :class:`~millrace.sources.reads.Reads`.

    Attributes:
        reads: the reads.
    """

    def __init__(self, graph: Graph | None = None, *, at_hand: bool = False, tier: SourceTier | None = None) -> None:
        chosen = None if graph is None else graph.options().reads_in_flight
        self._threads = ThreadPool(1, (chosen or read_concurrency.MOST) + _SPARE_THREADS, name="read")
        self._lock = threading.Lock()
        self._closed = at_hand
        self.reads = Reads(self._start, chosen=chosen, tier=tier)

    def _start(self, work: Callable[[], None]) -> None:
        """Run ``work()`` on a thread, unless there are none: whoever asks reads then.

        A read that ends as the pool is closed would else begin a thread that nobody ends.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("there are no threads here")
            self._threads.start(work)

    def close(self) -> None:
        """End the reads and their threads."""
        self.reads.close()
        with self._lock:
            self._closed = True
        self._threads.close()
