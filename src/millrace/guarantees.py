"""Guarantees that ``distribute`` gives of an epoch, by choice: who computes what, and how often an element comes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from millrace.errors import PipelineError
from millrace.functions.signature import describe
from millrace.planning.checkpoint import CYCLE_LENGTH
from millrace.protocol.job_spec import MOST_SLOTS
from millrace.validation import one_of, positive

ShardingFunction = Callable[[Sequence[int], Sequence[str]], Sequence[int]]


class ShardingPolicy(enum.Enum):
    """Which worker runs which task (tf.data service 3.3)."""

    OFF = "off"
    """Every worker runs over all the data in an order of its own; an epoch is as long as the data, but not the data."""
    DYNAMIC = "dynamic"
    """First come, first served: disjoint, and workers may come and go."""
    STATIC = "static"
    """Fixed at the start of an epoch, task i to worker i mod W; moved only if that worker dies."""
    STATIC_CONTIGUOUS = "static_contiguous"
    """Likewise, but each worker has tasks that follow one another: what lies together is read by one of them."""


class Visitation(enum.Enum):
    """Number of times that each element of an epoch reaches the job (tf.data service 3.3, 3.4)."""

    EXACTLY_ONCE = "exactly_once"
    AT_MOST_ONCE = "at_most_once"
    """What a lost worker had is not computed again."""
    ZERO_ONCE_OR_MORE = "zero_once_or_more"
    """Any number of times; what ``ShardingPolicy.OFF`` gives, and epochs that are filled from a shared window."""


class Sharing(enum.Enum):
    """Ways in which jobs that are alike have their pipeline computed once (tf.data service 3.5)."""

    WINDOW = "window"
    """The fastest job goes on, and the others skip what no window of recent elements has any more."""
    LOCKSTEP = "lockstep"
    """Each job gets every element of every epoch that it reads; who keeps the others waiting goes on alone."""


def check(sharding: Any, visitation: Visitation, deterministic: Any) -> None:
    """Refuse choices that contradict each other."""
    if not isinstance(sharding, ShardingPolicy):
        if not callable(sharding):
            raise PipelineError(f"sharding is {_members(ShardingPolicy)} or a function, not {sharding!r}")
        describe(sharding, "distribute", ("tasks", "workers"), passes_rng=False)
    if not isinstance(visitation, Visitation):
        raise PipelineError(f"visitation is {_members(Visitation)}, not {visitation!r}")
    if sharding is ShardingPolicy.OFF and visitation is not Visitation.ZERO_ONCE_OR_MORE:
        raise PipelineError(
            "ShardingPolicy.OFF gives every worker all the data, so elements come any number of times: "
            "say visitation=Visitation.ZERO_ONCE_OR_MORE, or use ShardingPolicy.DYNAMIC"
        )
    if sharding is ShardingPolicy.OFF and deterministic:
        raise PipelineError("ShardingPolicy.OFF depends on which workers there are; deterministic=True needs another")
    one_of("distribute", "deterministic", deterministic, (False, True))


def check_equal(equal_steps: Any, num_consumers: int | None, visitation: Visitation) -> None:
    """Refuse equal steps where they cannot be."""
    if not isinstance(equal_steps, bool):
        raise PipelineError(f"equal_steps is True or False, not {equal_steps!r}")
    if equal_steps and num_consumers is None:
        raise PipelineError("equal_steps=True needs num_consumers: between how many processes is an epoch divided?")
    if equal_steps and visitation is not Visitation.EXACTLY_ONCE:
        raise PipelineError(
            f"equal_steps=True cannot be with {visitation}: elements that are lost would be missing from one consumer"
        )


def check_coordinated(chosen: Any, num_consumers: int | None) -> tuple[str, int]:
    """Check ``coordinated`` and what contradicts it; give what becomes of incomplete rounds, and the cycle's length.

    If it is not chosen, that is "" and 1.

    Args:
        chosen: the arguments of ``distribute``.
        num_consumers: how many read the job.
    """
    one_of("distribute", "coordinated", chosen.coordinated, (False, True))
    one_of("distribute", "incomplete", chosen.incomplete, ("drop", "mix"))
    if not chosen.coordinated:
        if chosen.incomplete != "drop":
            raise PipelineError(
                f"incomplete={chosen.incomplete!r} says what becomes of rounds of batches that are not full at the end "
                "of an epoch, and there are rounds with coordinated=True alone: say that too, or leave incomplete out"
            )
        if chosen.cycle_length is not None:
            raise PipelineError(
                f"cycle_length={chosen.cycle_length!r} says how many tasks ranks read at a time, a round of each in "
                "turn, and there are rounds with coordinated=True alone: say that too, or leave cycle_length out"
            )
        return "", 1
    if num_consumers is None:
        raise PipelineError("coordinated=True needs num_consumers: to how many ranks does each step give a batch?")
    if chosen.sharding is not ShardingPolicy.DYNAMIC:
        raise PipelineError(
            "coordinated=True has all ranks read the same tasks in one order, whichever workers run them: leave "
            "sharding out, it is to be ShardingPolicy.DYNAMIC"
        )
    if chosen.sharing is Sharing.WINDOW and chosen.visitation is Visitation.ZERO_ONCE_OR_MORE:
        raise PipelineError(
            "coordinated=True with Sharing.WINDOW cannot be with Visitation.ZERO_ONCE_OR_MORE: epochs that later ones "
            "fill could end in another round on each rank; say visitation=Visitation.AT_MOST_ONCE"
        )
    if chosen.visitation is not Visitation.EXACTLY_ONCE and chosen.sharing is not Sharing.WINDOW:
        raise PipelineError(
            f"coordinated=True cannot be with {chosen.visitation}: batches that are lost, or come twice, would put one "
            "rank out of step with the others; leave visitation out"
        )
    if chosen.equal_steps:
        raise PipelineError("coordinated=True gives all ranks equally many steps by itself: leave equal_steps out")
    if chosen.window_bytes is not None:
        raise PipelineError(
            "window_bytes is of windows of outputs, and with coordinated=True jobs that are behind skip whole tasks: "
            "leave window_bytes out"
        )
    cycle_length = CYCLE_LENGTH if chosen.cycle_length is None else chosen.cycle_length
    return str(chosen.incomplete), positive("distribute", "cycle_length", cycle_length, MOST_SLOTS)


def check_sharing(chosen: Any, service: str | None, num_consumers: int | None, consumer_index: int | None) -> str:
    """Check ``sharing`` and what contradicts it; give its name, "" if it is not chosen.

    Args:
        chosen: the arguments of ``distribute``.
        service: that is asked.
        num_consumers: how many processes read the job.
        consumer_index: which of them this is.
    """
    sharing = chosen.sharing
    if chosen.window_bytes is not None and sharing is not Sharing.WINDOW:
        raise PipelineError(
            "window_bytes is of the windows that jobs share: say sharing=Sharing.WINDOW too, or leave window_bytes out"
        )
    if sharing is None:
        return ""
    if not isinstance(sharing, Sharing):
        raise PipelineError(f"sharing is {_members(Sharing)} or None, not {sharing!r}")
    if service is None:
        raise PipelineError(
            f"sharing={sharing} is between jobs of one service, and without an address each job has a service of its "
            "own: start one with `millrace dispatcher`, or hold a LocalService, and give all jobs its address"
        )
    if sharing is Sharing.WINDOW and chosen.visitation is Visitation.EXACTLY_ONCE:
        raise PipelineError(
            "with sharing=Sharing.WINDOW a job that is slower than the others skips elements, so that "
            "Visitation.EXACTLY_ONCE cannot be kept: say visitation=Visitation.AT_MOST_ONCE, or ZERO_ONCE_OR_MORE if "
            "others are to come in their place, or sharing=Sharing.LOCKSTEP, with which each job gets every element"
        )
    if (num_consumers not in (None, 1) or consumer_index) and not chosen.coordinated:
        raise PipelineError(
            f"sharing={sharing} is between jobs of one process each, and each of them gets all elements: leave "
            "num_consumers and consumer_index out, or sharing if the processes are to divide the elements; or say "
            "coordinated=True, so that each process of a job gets its batch of every round"
        )
    if chosen.sharding is ShardingPolicy.OFF:
        raise PipelineError(
            f"ShardingPolicy.OFF has no two epochs alike, so that there is nothing to share: leave sharding out, or "
            f"sharing={sharing}"
        )
    if chosen.target_workers not in ("auto", "remote") or chosen.local_workers is not None:
        raise PipelineError(
            f"sharing={sharing} is computed by workers of the service, as those of this host would be one job's alone: "
            "leave target_workers and local_workers out"
        )
    return str(sharing.value)


def _members(kind: type[enum.Enum]) -> str:
    return ", ".join(str(member) for member in kind)
