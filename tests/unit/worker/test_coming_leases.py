"""What a lane's leases will read is announced with the epoch's shape, and with the cache that their runs will have."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec

from millrace.protocol.messages import LeaseTask, TaskRef
from millrace.worker.task_runner import _Run

LEASES = [LeaseTask(TaskRef("job", 3, task), 10 + task, 0, reused=2) for task in range(3)]


class Program:
    """Program that notes what it is to expect."""

    def __init__(self) -> None:
        self.plan = SimpleNamespace(task=lambda index: f"task {index}")
        self.expected: list[tuple[object, list[object]]] = []

    def expect(self, owner: object, tasks: Any) -> None:
        self.expected.append((owner, list(tasks)))


def test_leases_are_announced_once_and_with_their_cache() -> None:
    lane: Any = SimpleNamespace(slot=7, ask=None)
    caches: Any = SimpleNamespace(point=lambda lease: f"point of {lease.lease}")
    run, program = _Run(lane, cast(Any, None), LEASES[0], caches), Program()
    for _ in range(2):
        run._expect(cast(Any, program), LEASES[:2])
    run._expect(cast(Any, program), [LEASES[0], msgspec.structs.replace(LEASES[2], received=-1)])
    first, second = LEASES[:2]
    assert program.expected == [
        (7, [("task 0", 3, first, "point of 10"), ("task 1", 3, second, "point of 11")]),
        (7, [("task 0", 3, first, "point of 10")]),
    ]
