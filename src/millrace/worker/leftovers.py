"""Leftovers: what tasks leave to their tail, encoded, and fetched from the workers that keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millrace.errors import MillraceError
from millrace.protocol import data_messages
from millrace.protocol.messages import TaskRef

Parts = list[tuple[int, int, list[Any]]]
"""(node, number of elements, buffers that together are one codec message)."""


class LeftoversMissingError(Exception):
    """Holders don't have what a tail needs; ``tasks`` says whose."""

    def __init__(self, tasks: list[int]) -> None:
        super().__init__(f"leftovers of tasks {tasks} are gone")
        self.tasks = tasks


def encoded(leftovers: Mapping[int, list[Any]]) -> Parts | None:
    """Encode what a task left, by node, as it is kept; None if that is nothing."""
    from millrace.elements import codec

    return [(node, len(elements), codec.encode(elements)) for node, elements in leftovers.items() if elements] or None


def answer(ref: TaskRef, parts: Parts | None) -> tuple[data_messages.Leftovers, list[Any]]:
    """Make the header and the payload for a tail's worker that asks."""
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
"""Function that asks the worker at an address for the leftovers of some tasks."""


def gather(job: str, epoch: int, holders: Iterable[tuple[int, str]], ask: Ask) -> dict[int, list[Any]]:
    """Fetch the leftovers of all ``holders`` (task, address): by node, in the order of the tasks.

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
