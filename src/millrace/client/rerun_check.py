"""Sentences for a user whose task gave something else when it was run again. Pure."""

from __future__ import annotations

from millrace.client.epoch_buffer import Rerun, RerunOutcome
from millrace.graph.nodes import Node, WithOptions
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import unpack
from millrace.graph.source_nodes import FromArrays, FromList
from millrace.protocol.job_spec import JobSpec

_REMEDY = (
    "What is random must come from a parameter called rng, and nothing from clocks, counters or what other elements "
    "left behind; or say visitation=Visitation.AT_MOST_ONCE, and nothing is run again"
)


class Reruns:
    """Tasks that were run again and held against what had come of them.

    Attributes:
        told: how many; how many of them gave something else; the sentences about the first of these.
    """

    def __init__(self) -> None:
        self.told = (0, 0, "")

    def add(self, spec: JobSpec, epoch: int, rerun: Rerun) -> str:
        """Add a rerun of this job; return what is to be said about it, empty if it gave the same.

        Where what is lost stays lost, a task that collects what others left over gives less than before, and no
        function is to blame.
        """
        compared, differed, first = self.told
        same = rerun.outcome is RerunOutcome.SAME or not spec.runs_again
        text = "" if same else impurity(unpack(spec.structure), epoch, rerun)
        self.told = (compared + 1, differed + bool(text), first or text)
        return text


def impurity(graph: Graph, epoch: int, rerun: Rerun) -> str:
    """Describe a run that differs from the one before it: what it means, whose fault it is, what to do."""
    what = f"output {rerun.number}" if rerun.outcome is RerunOutcome.OTHER else f"{rerun.number + 1} outputs before"
    gave = (
        f"task {rerun.task} of epoch {epoch} was run again after its worker was lost, and gave {rerun.outcome.value} "
        f"({what})"
    )
    if rerun.outcome is not RerunOutcome.OTHER:
        gave += ", so that elements are missing or came twice"
    if rerun.changed:
        return f"{gave}: {rerun.changed} was changed since the epoch's data were listed; leave data alone that is read"
    return f"{gave}: {_culprit(graph)}. {_REMEDY}"


def _culprit(graph: Graph) -> str:
    """Name the function that is not pure, as well as can be known: those that take rng have what they need to be."""
    nodes = [node for node in graph.nodes if not isinstance(node, (FromArrays, FromList, WithOptions))]
    functions = [(node, opaque) for node in nodes for _, opaque in node.opaques() if opaque.name]
    suspects = [node for node, opaque in functions if not opaque.takes_rng] or [node for node, _ in functions]
    if not suspects:
        return "its data are not the same at each reading"
    if len(suspects) == 1:
        return f"{_named(suspects[0])} is not pure"
    return f"one of {', '.join(map(_named, suspects[:-1]))} and {_named(suspects[-1])} is not pure"


def _named(node: Node) -> str:
    where = next((opaque.where for _, opaque in node.opaques() if opaque.where), "")
    return f"{node} ({where})" if where else str(node)
