"""Flows of what a consumer receives: from local workers, and from others."""

from __future__ import annotations

from millrace.protocol.reports import Flow


class ArrivalFlows:
    """Counts what came, over all epochs.

    Attributes:
        local: addresses of the workers that are local.
        came: what came so far, from local workers and from others.
    """

    def __init__(self) -> None:
        self.local: set[str] = set()
        self.came = Flow(), Flow()

    def count(self, address: str, elements: int, size: int) -> None:
        """Add elements that came from a worker, and their bytes."""
        local, others = self.came
        before = local if address in self.local else others
        came = Flow(before.elements + elements, before.bytes + size)
        self.came = (came, others) if address in self.local else (local, came)
