"""Pooled reads: the reads of a pipeline's sources with the threads that make their requests."""

from __future__ import annotations

from collections.abc import Callable

from millrace.engine.threads.operator_threads import ThreadPool
from millrace.graph.nodes import FromFiles, FromParquet, FromTFRecords, FromWebDataset, Graph, Node
from millrace.policies import read_concurrency
from millrace.sources.read_scheduler import SourceTier
from millrace.sources.reads import Reads, is_far

_SPARE_THREADS = 32
"""Threads beside those of the reads under way: for second requests, and for footers of files that are read ahead."""


def reads_far(node: Node) -> bool:
    """Whether a read of the node is a request to another machine, so that many at once pay."""
    return isinstance(node, (FromFiles, FromTFRecords, FromWebDataset, FromParquet)) and any(map(is_far, node.patterns))


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
        self.reads = Reads(_no_thread if at_hand else self._threads.start, chosen=chosen, tier=tier)

    def close(self) -> None:
        """End the reads and their threads."""
        self.reads.close()
        self._threads.close()


def _no_thread(_work: Callable[[], None]) -> None:
    raise RuntimeError("there are no threads here")
