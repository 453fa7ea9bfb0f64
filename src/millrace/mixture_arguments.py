"""Arguments of mixtures, checked; and the choices of a dataset that need no reading, worked out."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any

from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.graph.notation import graph_of
from millrace.graph.source_nodes import FromList
from millrace.validation import listed, node, one_of
from millrace.validation import weights as checked_weights
from millrace.whole_numbers import is_int

MOST_CHOICES = 1 << 16
"""Most choices that a pipeline's structure holds; more of them are read, as a dataset."""

MOST_WEIGHTS = 1 << 14
"""Most weights of a mixture, of all datasets and all times at which they change."""


def repeated(inputs: tuple[g.Node, ...], cycle: bool) -> tuple[g.Node, ...]:
    """Repeat inputs without end, if those that have ended begin again."""
    return tuple(g.Repeat(inputs=(each,)) for each in inputs) if cycle else inputs


def ends(stop_on_empty_dataset: Any, cycle: Any) -> dict[str, Any]:
    """Parameters that say when a mixture ends; of the two ``cycle`` counts, as the other one may be a default."""
    return {"stop_on_empty_dataset": bool(stop_on_empty_dataset) and not cycle, "cycle": bool(cycle)}


def weights(operator: str, value: Any, by: Any, datasets: int) -> dict[str, Any]:
    """Find weights of datasets, one set or several that hold one after the other.

    Args:
        operator: for messages.
        value: a list of weights, or None; or a dict of such lists by what they hold from.
        by: "epoch" or "element".
        datasets: number of datasets that there are.
    """
    one_of(operator, "weights_by", by, ("epoch", "element"))
    if callable(value):
        raise PipelineError(
            f"{operator} takes weights that change as a dict, as in {{0: [0.9, 0.1], 5: [0.5, 0.5]}}, not as a"
            " function: the dispatcher, which runs no functions of yours, plans by them"
        )
    if not isinstance(value, Mapping):
        return {"weights": checked_weights(operator, value, datasets)}
    if not value or not all(is_int(begin) and begin >= 0 for begin in value) or 0 not in value:
        raise PipelineError(
            f"{operator}: weights that change are a dict of lists by the {by} from which on they hold, whole numbers of"
            f" which one is 0, not {value!r}"
        )
    phases = {int(begin): checked_weights(operator, value[begin], datasets) for begin in sorted(value)}
    if len(phases) * datasets > MOST_WEIGHTS:
        raise PipelineError(
            f"{operator}: {len(phases):,} sets of weights of {datasets:,} datasets are more than {MOST_WEIGHTS:,}"
            " numbers; let them change less often"
        )
    if len(phases) == 1:
        return {"weights": phases[0]}
    several = tuple(weight for each in phases.values() for weight in each)
    return {"weights": several, "weights_from": tuple(phases), "weights_by": by}


def choices(operator: str, value: Any, datasets: int) -> tuple[tuple[int, ...] | None, int | None, tuple[g.Node, ...]]:
    """Find the numbers of datasets that are chosen.

    Args:
        operator: for messages.
        value: a list of them, or a dataset.
        datasets: number of datasets that there are.

    Returns:
        numbers, how often they are gone through (None: without end), and no node; or, if only reading can tell, None
        and the node of the dataset that has them.
    """
    if graph_of(value) is None and not hasattr(type(value), "__pipeline__"):
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise PipelineError(
                f"{operator} takes a dataset of the numbers of datasets, or a list of them, which is gone through again"
                f" and again, not {value!r}"
            )
        listed = list(itertools.islice(value, MOST_CHOICES + 1))
        if not 1 <= len(listed) <= MOST_CHOICES:
            raise PipelineError(
                f"{operator}: a list of choices, which is gone through again and again, has from 1 to {MOST_CHOICES:,}"
                " of them; write Dataset.from_list(choices), which is gone through once"
            )
        return _numbers(operator, listed, datasets), None, ()
    chosen = node(operator, value)
    known, times = chosen, 1
    while isinstance(known, (g.Repeat, *_PASSING)):
        if isinstance(known, g.Repeat):
            if known.count is None:
                return _pattern(operator, known.inputs[0], None, datasets, chosen)
            times *= known.count
        (known,) = known.inputs
    return _pattern(operator, known, times, datasets, chosen)


_PASSING = (g.Prefetch, g.WithOptions)


def _pattern(
    operator: str, known: g.Node, times: int | None, datasets: int, chosen: g.Node
) -> tuple[tuple[int, ...] | None, int | None, tuple[g.Node, ...]]:
    found = None if not _is_known(known) else list(itertools.islice(_values(known), MOST_CHOICES + 1))
    if found is None or len(found) > MOST_CHOICES:
        return None, None, (chosen,)
    return _numbers(operator, found, datasets), times, ()


def _is_known(chosen: g.Node) -> bool:
    """Whether the elements of a dataset follow from how it is written."""
    cheap = isinstance(chosen, (g.Range, FromList, g.Take, g.Concatenate, g.Repeat, *_PASSING))
    few = isinstance(chosen, g.Skip) and chosen.count <= MOST_CHOICES
    return (cheap or few) and all(map(_is_known, chosen.inputs))


def _values(chosen: g.Node) -> Iterator[Any]:
    below = [functools.partial(_values, child) for child in chosen.inputs]
    match chosen:
        case g.Range():
            return iter(range(chosen.start, chosen.stop, chosen.step))
        case FromList():
            return iter(chosen.items.value)
        case g.Take() if chosen.count >= 0:
            return itertools.islice(below[0](), chosen.count)
        case g.Skip():
            return itertools.islice(below[0](), chosen.count, None) if chosen.count >= 0 else iter(())
        case g.Repeat():
            return _again(below[0], chosen.count)
    return itertools.chain.from_iterable(values() for values in below)


def _again(values: Callable[[], Iterator[Any]], count: int | None) -> Iterator[Any]:
    """Go through values so many times, or without end; nothing is gone through once."""
    for _ in itertools.count() if count is None else range(count):
        found = False
        for value in values():
            found = True
            yield value
        if not found:
            return


def _numbers(operator: str, found: list[Any], datasets: int) -> tuple[int, ...]:
    wrong = next((each for each in found if not is_int(each) or not 0 <= int(each) < datasets), None)
    if wrong is not None:
        raise PipelineError(f"{operator}: a choice is the number of a dataset, from 0 to {datasets - 1}, not {wrong!r}")
    return tuple(map(int, found))


def shares(operator: str, name: str, value: Any) -> tuple[float, ...]:
    """Shares of classes, at least two, that are 1 together."""
    given = listed(operator, name, value)
    numbers = all(isinstance(each, Real) for each in given)
    sound = numbers and all(math.isfinite(each) and each >= 0 for each in given)
    if len(given) < 2 or not sound or not math.isclose(sum(given), 1, rel_tol=1e-3):
        raise PipelineError(
            f"{operator}: {name} is a list of the shares of classes, at least two of them, none negative, and 1"
            f" together, not {list(given)}"
        )
    return tuple(float(each) / float(sum(given)) for each in given)


def distributions(operator: str, target: Any, initial: Any) -> dict[str, Any]:
    """Find the shares of classes that there are to be, and those that there are, if these are known."""
    wanted = shares(operator, "target_dist", target)
    if initial is None:
        return {"target_dist": wanted, "initial_dist": None}
    there = shares(operator, "initial_dist", initial)
    if len(there) != len(wanted):
        raise PipelineError(
            f"{operator}: target_dist has {len(wanted)} classes and initial_dist {len(there)}; it takes a share of each"
        )
    missing = [number for number, each in enumerate(there) if not each and wanted[number]]
    if missing:
        raise PipelineError(
            f"{operator}: class {missing[0]} is to have a share by target_dist, and there is none by initial_dist"
        )
    return {"target_dist": wanted, "initial_dist": there}
