"""Weights set while an epoch is read: from which element of the mixture on they hold, and where that can be said.

The mixture with its changes is one sequence, which up to a change is the one without it. So a change is sound if no
task that has begun, anywhere, has an element behind it: then a rerun of any task gives the same, whether it knows the
change or not, and tasks behind it begin in each dataset where those before it end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from numbers import Real
from typing import Any

from msgspec.structs import replace

from millrace.errors import PipelineError, StateError
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning.epoch_shape import WeightChange
from millrace.planning.plan import Piece, Task
from millrace.planning.units import INFINITE, Positions, UnitMap, UnplannableError

MOST_SET = 1 << 14
"""Weights of one epoch, without those that it began with, after which no more are set: leases and states have all."""
MOST_WEIGHT = float(1 << 53)
"""Largest weight, as of any number in a message."""
NOT_READ = (
    "set_weights sets the weights of an epoch that is being read, and this iterator was closed, has come to its end, or"
    " its dataset goes on with another one: call it on the iterator that is being read"
)
"""Answer to whoever sets weights on another iterator, in process and on a service."""
TOO_LATE = (
    "set_weights came when all tasks of this epoch that draw from the mixture had begun, so that the weights hold from"
    " the next one on: a service that is given more tasks, by distribute(tasks=), begins the last of them later, and"
    " leases them in their order unless sharding is STATIC_CONTIGUOUS"
)
"""Warning where weights hold for no element of the epoch in which they were set."""

Reweighted = tuple[WeightChange, ...]


def mixture_of(graph: Graph) -> int:
    """Find the number of the mixture whose weights are set.

    Raises:
        PipelineError: there is none, or it is not said which one.
    """
    found = [number for number, node in enumerate(graph.nodes) if isinstance(node, g.SampleFromDatasets)]
    if len(found) != 1:
        there = f"{len(found)} of them" if found else "none"
        raise PipelineError(f"set_weights sets the weights of a sample_from_datasets, and this pipeline has {there}")
    return found[0]


def checked_weights(weights: Any) -> list[float]:
    """Check weights that are set, as far as that is possible without the pipeline.

    Raises:
        PipelineError: they are none.
    """
    weights = weights.tolist() if hasattr(weights, "tolist") else weights  # an array, or a tensor
    if isinstance(weights, (Mapping, AbstractSet)):
        raise PipelineError(
            "set_weights takes one list of weights, one for each dataset in their order, which holds from now on, not"
            f" {type(weights).__name__}"
        )
    if isinstance(weights, (str, bytes)) or not isinstance(weights, Iterable):
        raise PipelineError(f"set_weights takes a list of weights, one for each dataset, not {weights!r}")
    found = list(weights)
    numbers = [number for number in map(_number, found) if number is not None and 0 <= number <= MOST_WEIGHT]
    if len(numbers) < len(found) or not any(numbers):
        raise PipelineError(
            "set_weights needs one weight >= 0 for each dataset, none above 2**53 and one above 0, not"
            f" [{', '.join(map(_shown, found))}]"
        )
    return numbers


def _number(weight: object) -> float | None:
    try:
        return float(weight) if isinstance(weight, Real) else None
    except OverflowError:  # beyond all floats
        return None


def _shown(weight: object) -> str:
    try:
        return repr(weight)[:60]
    except ValueError:
        return "a number too long to be printed"


def set_weights(
    units: UnitMap,
    plan: Callable[[int], Task],
    task: int,
    epoch: int,
    before: Reweighted,
    weights: Sequence[float],
    pieces: Sequence[Piece] = (),
) -> WeightChange:
    """Decide from which element of the mixture on weights hold.

    Args:
        units: of the graph, whose mixture has known positions.
        plan: the epoch's tasks, by their numbers.
        task: the first of the plan's tasks from which on none has begun.
        epoch: number of the epoch.
        before: changes that were made in it.
        weights: one for each dataset.
        pieces: what the plan divides, if the epoch was divided anew; empty: all of it.

    Raises:
        PipelineError: operators behind the mixture, or an end that would be another one, don't allow it.
    """
    number = mixture_of(units.graph)
    node = units.graph.nodes[number]
    assert isinstance(node, g.SampleFromDatasets)
    if node.weights_by == "element":
        raise PipelineError(f"set_weights: the weights of {node} change with the element as it is written")
    try:
        units.of(units.graph.id_of(units.graph.root))
    except UnplannableError as error:
        raise PipelineError(
            f"set_weights needs tasks, from one of which on the weights hold, and this pipeline runs as one: {error}"
        ) from error
    if len(weights) != len(node.inputs):
        raise PipelineError(
            f"set_weights needs one weight >= 0 for each dataset and one above 0: {len(node.inputs)} datasets, weights"
            f" {list(weights)}"
        )
    root = units.of(units.graph.id_of(units.graph.root))
    unit = max(first_unit(plan, task), end_of_read(pieces, root.count))
    # Of an epoch that goes on from states less may have begun than before.
    last = max((change.element for change in before if change.node == number), default=0)
    element = max(last, first_element(units, number, unit))
    change = WeightChange(number, element, tuple(float(weight) for weight in weights))
    if before and _place(before[-1]) == _place(change):
        change = replace(change, replaced=before[-1].replaced + 1)
    others = [each for each in before if each.element and _place(each) != _place(change)]
    if _numbers(others) >= MOST_SET:
        raise PipelineError(
            f"set_weights has changed weights {len(others):,} times in this epoch, and as each task and each state has"
            f" all of them, that is as often as it can with {len(weights):,} datasets: set them less often, or have"
            " epochs that end sooner, by take(n) behind the mixture, as the next one begins with the last weights alone"
        )
    if not units.mixtures[number].keeps_length(epoch, _of((*before, change), number)):
        raise PipelineError(
            f"set_weights would change the number of elements of {node}, which other tasks count on: mix datasets that"
            " repeat() without end, with take(n) behind them, or draw the same datasets until all have ended"
        )
    return change


def first_unit(plan: Callable[[int], Task], task: int) -> int:
    """Find the first unit of a plan that no task before ``task`` has."""
    for index in reversed(range(task)):
        before = plan(index)
        if not before.is_tail:
            return before.pieces[-1].stop
    return 0


def end_of_read(pieces: Sequence[Piece], count: int) -> int:
    """Find the first unit such that neither it nor any behind it was read before an epoch was divided anew.

    Args:
        pieces: that are left of the epoch; empty: it was not divided anew.
        count: number of units of an epoch.
    """
    if not pieces:
        return 0
    last = max(pieces, key=lambda piece: (piece.stop, piece.start))
    return last.start if last.whole and last.stop >= count else count


def first_element(units: UnitMap, number: int, unit: int) -> int:
    """Find the first element of mixture ``number`` that no unit of the root before ``unit`` has.

    Raises:
        PipelineError: an operator takes elements in another order.
    """
    graph = units.graph
    within = {number}
    for above, node in enumerate(graph.nodes):
        if within.intersection(map(graph.id_of, node.inputs)):
            within.add(above)
    # A dataset that is read in several places has come to where the furthest of them is.
    reached = dict.fromkeys(within, 0)
    reached[graph.id_of(graph.root)] = unit
    for above in sorted(within - {number}, reverse=True):
        node = graph.nodes[above]
        if not _keeps_order(units, node):
            raise PipelineError(
                f"set_weights needs to know which elements of the mixture are still to come, and {node} behind it"
                f" {_WHY.get(type(node), 'takes them in another order')}: put it before the mixture, to each dataset"
            )
        for child, at in zip(map(graph.id_of, node.inputs), _inputs(units, node, reached[above]), strict=True):
            if child in within:
                reached[child] = max(reached[child], min(at, units.of(child).count))
    return min(reached[number], units.of(number).count)


def too_late(units: UnitMap, number: int, element: int) -> bool:
    """Whether nothing in an epoch is made of elements of mixture ``number`` from this one on."""
    return element >= first_element(units, number, units.of(units.graph.id_of(units.graph.root)).count)


def with_change(before: Reweighted, change: WeightChange) -> Reweighted:
    """Add a change to those before it; it may replace the last one."""
    return (*(before[:-1] if change.replaced else before), change)


def carried(changes: Iterable[WeightChange]) -> Reweighted:
    """Make the changes that the next epoch begins with: the last weights of each mixture."""
    last = {change.node: change.weights for change in changes}
    return tuple(WeightChange(node, 0, weights) for node, weights in sorted(last.items()))


def longest(told: Iterable[Reweighted]) -> Reweighted:
    """Merge what several readers know of the changes of one epoch: of any two, one was the other before more were made.

    Raises:
        StateError: it is not.
    """
    known: Reweighted = ()
    for changes in map(_merged, told):
        short, known = sorted((known, changes), key=lambda each: sum(1 + change.replaced for change in each))
        if not _became(short, known):
            raise StateError("the states are not of one run: other weights were set in the epoch that they are of")
    return known


def _merged(changes: Reweighted) -> Reweighted:
    """Leave out changes that later ones replace, as states of before they were left out have them."""
    found = list[WeightChange]()
    for change in changes:
        same = found.pop() if found and _place(found[-1]) == _place(change) else None
        found.append(change if same is None else replace(change, replaced=change.replaced + 1 + same.replaced))
    return tuple(found)


def _became(before: Reweighted, after: Reweighted) -> bool:
    """Whether further changes made one list of the other: all is there, but for the last, which may be replaced."""
    if not before:
        return True
    *first, last = before
    if len(after) < len(before) or after[: len(first)] != tuple(first):
        return False
    there = after[len(first)]
    return there == last or (_place(there) == _place(last) and there.replaced > last.replaced)


def _place(change: WeightChange) -> tuple[int, int]:
    return change.node, change.element


def _numbers(changes: Iterable[WeightChange]) -> int:
    """Count the weights that count, without those that an epoch begins with."""
    return sum({_place(change): len(change.weights) for change in changes if change.element}.values())


def check_numbers(changes: Reweighted) -> None:
    """Refuse changes that nobody can have made, whatever the pipeline.

    Raises:
        StateError: says what is wrong.
    """
    at = dict[int, int]()
    for change in changes:
        if not all(0 <= each <= MOST_WEIGHT for each in change.weights) or not any(change.weights):
            raise StateError(f"the state is damaged: no dataset can have been drawn by weights {list(change.weights)}")
        if not at.get(change.node, 0) <= change.element <= INFINITE or change.replaced < 0:
            raise StateError(f"the state is damaged: weights were set from element {change.element} on")
        at[change.node] = change.element
    if _numbers(changes[:-1]) >= MOST_SET:
        raise StateError(f"the state is damaged: it has more than {MOST_SET:,} weights")


def check_changes(units: UnitMap, epoch: int, changes: Reweighted) -> None:
    """Refuse changes of a state that cannot be of this pipeline.

    Raises:
        StateError: says what is wrong.
    """
    check_numbers(changes)
    for index, change in enumerate(changes):
        mixture = units.mixtures.get(change.node)
        node = units.graph.nodes[change.node] if mixture is not None else None
        if mixture is None or not isinstance(node, g.SampleFromDatasets) or len(change.weights) != len(node.inputs):
            raise StateError(f"the state is damaged: node {change.node} does not mix by {len(change.weights)} weights")
        if not mixture.keeps_length(epoch, _of(changes[: index + 1], change.node)):
            raise StateError(f"the state is damaged: by its weights {node} would have another number of elements")


def _of(changes: Reweighted, number: int) -> tuple[tuple[int, tuple[float, ...]], ...]:
    return tuple((change.element, change.weights) for change in changes if change.node == number)


def _inputs(units: UnitMap, node: g.Node, unit: int) -> Sequence[int]:
    """Units of a node's inputs from which on no unit of the node before ``unit`` has any."""
    match node:
        case g.Concatenate():
            firsts: Positions = units.firsts([units.graph.id_of(child) for child in node.inputs])
            return [max(0, unit - first) for first in firsts.tolist()]
        case g.Skip():
            return [unit + max(0, node.count)]
        case g.Shard():
            return [unit * node.num_shards + node.index if unit else 0]
        case g.Batch() | g.PaddedBatch() if not units.of(units.graph.id_of(node)).collecting:
            return [unit * node.batch_size]
        case g.SlidingWindow():
            return [max(unit * node.shift, (unit - 1) * node.shift + node.span) if unit else 0]
    return [unit] * len(node.inputs)


def _keeps_order(units: UnitMap, node: g.Node) -> bool:
    """Whether units of a node that come later are made of units of its inputs that come later."""
    match node:
        case g.Shuffle():
            return units.child_units(node)[0].count >= INFINITE  # it mixes within tasks
        case g.Repeat():
            return node.count == 1 or units.child_units(node)[0].count >= INFINITE
        case g.Sample() | g.Reservoir() | g.SampleFromDatasets() | g.ChooseFromDatasets():
            return False
        case g.Cache() | g.Autocache():
            return False
    return True


_WHY: dict[type[g.Node], str] = {
    g.Repeat: "has them again",
    g.SampleFromDatasets: "mixes them once more",
    g.ChooseFromDatasets: "mixes them once more",
    g.Cache: "keeps what its old weights gave",
    g.Autocache: "may keep what its old weights gave",
}
