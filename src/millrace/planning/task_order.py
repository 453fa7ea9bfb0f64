"""Task order: the tasks of a plan as one process runs them, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from millrace.planning.plan import FAN_IN, Plan, Task


def planned(plan: Plan) -> Iterator[Task]:
    """List all tasks of a plan, in its order."""
    return map(plan.task, count() if plan.length is None else range(plan.length))


def shared(plan: Plan, part: int, parts: int) -> Iterator[Task]:
    """List every ``parts``-th task of a plan, from ``part`` on; their leftovers stay among them, in own tails.

    It is for processes that read one epoch together without talking to one another: the parts are disjoint and together
    they are the epoch. The indices of their tails are none of the plan nor of other parts.
    """
    held: list[int] = []
    mains, end = 0, 0
    for task in planned(plan):
        end = task.index + 1
        if task.is_tail:
            continue
        mains += 1
        if (mains - 1) % parts != part:
            continue
        yield task
        if task.parent >= 0:
            held.append(task.index)
        if len(held) == FAN_IN:
            tail = Task(-1 - end * parts - part, 0, 0, tuple(held), parent=end)
            yield tail
            held = [tail.index]
    if held:
        yield Task(-1 - (end + 1) * parts - part, 0, 0, tuple(held))
