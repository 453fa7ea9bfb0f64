"""Metrics of the operators behind ``distribute()``, and of the loop that reads what they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.engine.metrics import Loop, Measure, Totals
from millrace.engine.threads.operator_threads import OperatorThreads
from millrace.graph.operator_graph import Graph
from millrace.protocol.reports import NodeMeasure


class ArrivalMetrics:
    """Metrics of one epoch in the training process; they keep nothing of it alive.

    Args:
        graph: a chain of operators whose source is :class:`millrace.graph.nodes.Arrivals`.

    Attributes:
        loop: who reads the epoch.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.begin((), 1)

    def begin(self, threads: Sequence[OperatorThreads], cores: int) -> list[Measure]:
        """Begin anew, with these threads by node on so many cores; return what measures the nodes."""
        self._threads, self._cores = threads, cores
        self.loop = Loop()
        self._totals = Totals([tuple(map(self._graph.id_of, node.inputs)) for node in self._graph.nodes])
        return self._totals.begin()

    def status(self, service: dict[str, Any]) -> dict[str, Any]:
        """Complete the status of a service.

        It has ``operators``, those in this process, and they are the ``bottleneck`` of the job where they hold the loop
        up for longer than what arrives.
        """
        from millrace.control.tasks.job_load import delayed, kinds, operator_rows, operators_of
        from millrace.policies.bottleneck import BEFORE_DISTRIBUTE, BottleneckMeasures, bottleneck, is_held_up

        arrivals, *rows = self._totals.by_node()
        nodes, padding = {}, self._totals.padding()
        for number, (elements, size, active_s, cpu_s, held_s) in enumerate(rows, 1):
            label = f"{self._graph.nodes[number]} behind distribute()"
            threads = self._threads[number].level if self._threads else 0
            nodes[number] = NodeMeasure(
                number, label, elements, size, active_s, cpu_s, threads, held_s, **padding[number]
            )
        operators, loop, given = operators_of(nodes, *kinds(self._graph)), self.loop, rows[-1][0] if rows else 0
        wall_s = sum(each.wall_s for each in operators)
        load = BottleneckMeasures(
            operators,
            loop.read_s / given if given else 0.0,
            loop.waited_s / given if given else 0.0,
            cores=self._cores,
            used=sum(each.cpu_s for each in operators) / wall_s if wall_s > 0 else 0.0,
            delayed=delayed(*loop.cores_s()),
            elsewhere=BEFORE_DISTRIBUTE,
        )
        found = service["bottleneck"]
        if found is not None and is_held_up(load, arrivals[-1]):
            found = msgspec.to_builtins(bottleneck(load))
        return {**service, "operators": operator_rows(nodes, nodes, loop.read_s), "bottleneck": found}
