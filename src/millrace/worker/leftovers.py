"""What tasks leave to their tail, kept encoded until the tail has run, and fetched from the workers that keep it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from millrace.errors import MillraceError
from millrace.protocol import data_messages
from millrace.protocol.messages import HeldTask, LeaseTask, TaskRef

Parts = list[tuple[int, int, list[Any]]]
"""(node, number of elements, buffers that together are one codec message)."""


class LeftoversMissingError(Exception):
    """Some holders don't have what a tail needs; ``tasks`` says whose."""

    def __init__(self, tasks: list[int]) -> None:
        super().__init__(f"leftovers of tasks {tasks} are gone")
        self.tasks = tasks


class LeftoverStore:
    """Leftovers of this worker's tasks. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._kept: dict[TaskRef, Parts] = {}
        self._leases: dict[TaskRef, tuple[int, int]] = {}

    def put(self, lease: LeaseTask, leftovers: Mapping[int, list[Any]]) -> bool:
        """Keeps what a task left, by node; False if that is nothing."""
        from millrace.elements import codec

        parts: Parts = [
            (node, len(elements), codec.encode(elements)) for node, elements in leftovers.items() if elements
        ]
        if not parts:
            return False
        with self._lock:
            self._kept[lease.ref] = parts
            self._leases[lease.ref] = lease.lease, lease.consumer
        return True

    def held(self) -> list[HeldTask]:
        """All leases of which leftovers are kept."""
        with self._lock:
            return [HeldTask(ref, *self._leases[ref], finished=True, leftovers=True) for ref in self._kept]

    def drop(self, leases: Container[int]) -> None:
        """Forgets what was left under these leases."""
        self.forget([held.ref for held in self.held() if held.lease in leases])

    def get(self, ref: TaskRef) -> Parts | None:
        """What is kept of a task; None if nothing."""
        with self._lock:
            return self._kept.get(ref)

    def has(self, ref: TaskRef) -> bool:
        """Whether anything is kept of a task."""
        with self._lock:
            return ref in self._kept

    def forget(self, refs: Iterable[TaskRef]) -> None:
        """Drops what is kept of these tasks."""
        with self._lock:
            for ref in refs:
                self._kept.pop(ref, None)
                self._leases.pop(ref, None)
            self._lock.notify_all()

    def forget_job(self, job: str) -> None:
        """Drops what is kept for a job."""
        with self._lock:
            gone = [ref for ref in self._kept if ref.job == job]
        self.forget(gone)

    def wait_empty(self, deadline: float) -> bool:
        """Waits until nothing is kept or ``deadline`` (monotonic seconds) has come; whether nothing is kept."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._kept, max(deadline - time.monotonic(), 0.0))


def answer(store: LeftoverStore, ref: TaskRef) -> tuple[data_messages.Leftovers, list[Any]]:
    """(header, payload) for a tail's worker that asks."""
    parts = store.get(ref)
    if parts is None:
        return data_messages.Leftovers(ref, found=False), []
    described = [
        data_messages.LeftoverPart(node, count, sum(memoryview(buffer).nbytes for buffer in buffers))
        for node, count, buffers in parts
    ]
    return data_messages.Leftovers(ref, found=True, parts=described), [
        buffer for _, _, buffers in parts for buffer in buffers
    ]


Ask = Callable[[str, list[TaskRef]], list[tuple[data_messages.Leftovers, memoryview]]]
"""Asks the worker at an address for the leftovers of some tasks."""


def gather(job: str, epoch: int, holders: Iterable[tuple[int, str]], ask: Ask) -> dict[int, list[Any]]:
    """By node, the leftovers of all ``holders`` (task, address), in the order of the tasks.

    Raises:
        LeftoversMissingError: if a holder does not answer, or does not have them.
    """
    from millrace.elements import codec

    by_address: dict[str, list[int]] = {}
    for task, address in holders:
        by_address.setdefault(address, []).append(task)
    found: dict[int, dict[int, list[Any]]] = {}
    missing: list[int] = []
    for address, tasks in by_address.items():
        try:
            answers = ask(address, [TaskRef(job, epoch, task) for task in tasks])
        except (OSError, MillraceError):  # that worker is gone; the dispatcher has its tasks run again
            missing.extend(tasks)
            continue
        for task, (header, payload) in zip(tasks, answers, strict=True):
            if not header.found:
                missing.append(task)
                continue
            parts = found[task] = {}
            offset = 0
            for part in header.parts:
                parts[part.node] = codec.decode(payload[offset : offset + part.bytes])
                offset += part.bytes
    if missing:
        raise LeftoversMissingError(sorted(missing))
    merged: dict[int, list[Any]] = {}
    for task in sorted(found):
        for node, elements in found[task].items():
            merged.setdefault(node, []).extend(elements)
    return merged
