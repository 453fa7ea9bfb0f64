"""What tasks of this worker have left to their parents, until that is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from millrace.protocol.messages import HeldTask, LeaseTask, TaskRef


@dataclass(frozen=True, slots=True)
class Left:
    """What one lease has left over; ``elements`` is the shell's business."""

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
        """Keeps what the run of a lease has left over."""
        self._kept[lease.ref] = Left(lease.lease, lease.consumer, elements)

    def get(self, ref: TaskRef) -> Any:
        """What a task left; None if that is not here."""
        left = self._kept.get(ref)
        return None if left is None else left.elements

    def held(self) -> list[HeldTask]:
        """All leases of which leftovers are kept."""
        return [
            HeldTask(ref, left.lease, left.consumer, finished=True, leftovers=True) for ref, left in self._kept.items()
        ]

    def drop(self, leases: Container[int]) -> None:
        """Forgets what was left under these leases."""
        self._keep_if(lambda _, left: left.lease not in leases)

    def forget(self, refs: Container[TaskRef]) -> None:
        """Forgets what these tasks left."""
        self._keep_if(lambda ref, _: ref not in refs)

    def forget_job(self, job: str) -> None:
        """Forgets what tasks of a job left."""
        self._keep_if(lambda ref, _: ref.job != job)

    def _keep_if(self, wanted: Callable[[TaskRef, Left], bool]) -> None:
        self._kept = {ref: left for ref, left in self._kept.items() if wanted(ref, left)}
