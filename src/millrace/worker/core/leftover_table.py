"""Leftover table: what tasks of this worker have left to their parents, until that is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millrace.protocol.messages import HeldTask, LeaseTask, TaskRef


@dataclass(frozen=True, slots=True)
class Left:
    """Leftovers of one lease; ``elements`` is the shell's business."""

    lease: int
    consumer: int
    elements: Any


class LeftoverTable:
    """Leftovers by task."""

    def __init__(self) -> None:
        self._kept: dict[TaskRef, Left] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, ref: TaskRef) -> bool:
        return ref in self._kept

    def keep(self, lease: LeaseTask, elements: Any) -> None:
        """Keep what the run of a lease has left over."""
        self._kept[lease.ref] = Left(lease.lease, lease.consumer, elements)

    def get(self, ref: TaskRef) -> Any:
        """Elements that a task left; None if they are not here."""
        left = self._kept.get(ref)
        return None if left is None else left.elements

    def held(self) -> list[HeldTask]:
        """List the leases of which leftovers are kept."""
        return [
            HeldTask(ref, left.lease, left.consumer, finished=True, leftovers=True) for ref, left in self._kept.items()
        ]

    def drop(self, unwanted: Callable[[TaskRef, Left], bool]) -> None:
        """Forget the leftovers that are not wanted any more."""
        self._kept = {ref: left for ref, left in self._kept.items() if not unwanted(ref, left)}
