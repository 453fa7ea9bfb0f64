"""Protocols of a plan and its planner, as far as the dispatcher's core needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from millrace.graph.operator_graph import Graph
from millrace.planning.plan import Piece, Task
from millrace.planning.remainder import Divisible
from millrace.planning.split_table import TableSummary


class PlanLike(Divisible, Protocol):
    """Part of :class:`millrace.planning.plan.Plan` that is used here."""

    @property
    def mains(self) -> int | None:
        """Number of tasks that are no tails; None: endless."""

    @property
    def exact(self) -> bool:
        """A task gives as many elements as it has units."""

    @property
    def equal(self) -> bool:
        """Consumers that are dealt the tasks in turn get equally many elements."""

    @property
    def cycle(self) -> int:
        """Units in a pass of what is repeated without end, if it could give nothing; else 0."""

    @property
    def left_out(self) -> int:
        """Elements that are in no task, so that the others can be dealt equally."""

    @property
    def chunks(self) -> int:
        """Number of chunks that the tasks lie within; 0: there are none."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user."""

    def task(self, index: int) -> Task:
        """Task ``index`` of any epoch."""

    def main(self, number: int) -> int:
        """Index of the ``number``-th task that is no tail."""

    def chunk(self, number: int) -> tuple[int, int]:
        """Tasks of a chunk: the first, and one past the last."""

    def __hash__(self) -> int:
        """By identity will do."""


class Planner(Protocol):
    """The signature of :func:`millrace.planning.plan.make_plan`."""

    def __call__(
        self,
        graph: Graph,
        tables: Mapping[int, TableSummary],
        *,
        tasks: int | None,
        seed: int,
        ranks: int | None,
        pieces: Sequence[Piece],
        chunks: int,
    ) -> PlanLike:
        """Make the plan of a graph over these tables."""
