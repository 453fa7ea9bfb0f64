"""Endless repeats of nothing: as in tf.data, a pass that gives no element ends one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from millrace.graph.operator_graph import Graph
from millrace.planning.endless_repeats import endlessly_repeated
from millrace.planning.plan import Task
from millrace.planning.units import UnitMap


class EndlessRepeat:
    """Detector of an endless repeat that gives nothing; tasks may end on any thread.

    A task in which it gave something shows that it goes on. When those in which it gave nothing had more units than two
    passes have, a whole pass is run to be sure: the tasks may have been the same part of every pass.

    Args:
        graph: of the pipeline, as written.
        units: of its nodes.
    """

    def __init__(self, graph: Graph, units: UnitMap) -> None:
        self.repeated = endlessly_repeated(units)
        """The node that is repeated; None if there is none that could be empty."""
        self._pass = units.of(graph.id_of(self.repeated)).count if self.repeated is not None else 0
        self._lock = threading.Lock()
        self._units = 0

    def ended(self, task: Task, elements: int, run: Callable[[Task], int]) -> bool:
        """Whether nothing will ever come.

        Args:
            task: the task that has ended.
            elements: number that the repeated node gave in it.
            run: runs another task until the node gives something, and returns how much it gave.
        """
        if self.repeated is None or task.is_tail:
            return False
        with self._lock:
            self._units = 0 if elements else self._units + task.stop - task.start
            if self._units < 2 * self._pass:
                return False
            self._units = 0
        return not run(Task(task.index, task.start, task.start + self._pass))
