"""Scaling policies for a job's number of workers, behind one interface.

A service has one of :data:`SERVICES` for all its jobs; a job that wants to be cheap (``workers="cheapest"``) has
:mod:`millrace.policies.scaling.cost_scaling` whatever the service has.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.prices import HourlyRates
from millrace.policies.scaling import autoscale, cachew_scaling, cost_scaling, hpa
from millrace.policies.scaling.autoscale import Limits, Look, Scale
from millrace.policies.scaling.cachew_scaling import CachewScale
from millrace.policies.scaling.cost_scaling import CheapScale
from millrace.policies.scaling.hpa import HpaScale

Kind = Literal["millrace", "cachew", "cachew-released", "hpa", "cheapest"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SERVICES: tuple[Kind, ...] = ("millrace", "cachew", "cachew-released", "hpa")
"""Policies that a service can be told to use."""
Other = CachewScale | CheapScale | HpaScale
"""State of another policy than :mod:`millrace.policies.scaling.autoscale`."""
Found = Decision[Scale] | Decision[CachewScale] | Decision[CheapScale] | Decision[HpaScale]


class Observation(msgspec.Struct, frozen=True):
    """Observation that any of them decides by.

    Attributes:
        look: at the job.
        queue: elements that lay ready for a consumer, on average.
        cpu: mean share of a worker's cores that was in use, between 0 and 1.
        at: now, in seconds.
        rates: prices of an hour.
    """

    look: Look
    queue: float
    cpu: float
    at: float
    rates: HourlyRates


def kind_of(scale: Scale | Other) -> Kind:
    """Return the policy that a state belongs to."""
    match scale:
        case CachewScale():
            return "cachew-released" if scale.released else "cachew"
        case HpaScale():
            return "hpa"
        case CheapScale():
            return "cheapest"
    return "millrace"


def begin(kind: Kind, workers: int, limits: Limits) -> Found:
    """Begin a job, or look at it anew, with so many workers; with Cachew's rules always with the least (4.3)."""
    first = limits.clip(workers)
    match kind:
        case "cachew" | "cachew-released":
            scale = CachewScale(limits.least, released=kind == "cachew-released")
            return Decision(scale, f"Cachew's rules begin with {limits.least}")
        case "hpa":
            return Decision(HpaScale(first), f"begins with {first}")
        case "cheapest":
            return cost_scaling.begin(workers, limits)
    return autoscale.begin(workers, limits)


def step(scale: Scale | Other, observation: Observation, limits: Limits) -> Found:
    """Advance a policy by one look."""
    match scale:
        case CachewScale():
            return cachew_scaling.step(scale, observation.look, limits, observation.queue)
        case HpaScale():
            return hpa.step(scale, observation.cpu, observation.at, limits, observation.look.workers)
        case CheapScale():
            return cost_scaling.step(scale, observation.look, limits, observation.rates)
    return autoscale.step(scale, observation.look, limits)


def pause_over(kind: Kind, elements: int, waits: float, seconds: float, *, begun: bool) -> bool:
    """Whether looks say something again, so many elements of each consumer and seconds after workers came or went.

    Those that were there before can give as many elements in no time: so it matters whether all workers have ``begun``
    to give some. Other policies than millrace's own don't ask.
    """
    match kind:
        case "cachew" | "cachew-released":
            return elements >= autoscale.PAUSE_ELEMENTS
        case "hpa":
            return True
    if not begun and seconds < autoscale.LOADING_S:
        return False
    return elements >= autoscale.pause_elements(waits, seconds / max(1, elements))


def look_over(kind: Kind, elements: int, waits: float, seconds: float) -> bool:
    """Whether a look is long enough, after so many elements and seconds."""
    match kind:
        case "cachew" | "cachew-released":
            return elements >= autoscale.LOOK_ELEMENTS
        case "hpa":
            return seconds >= hpa.PERIOD_S
    return seconds >= autoscale.LOOK_S and elements >= autoscale.look_elements(waits, seconds / max(1, elements))


def look_counts(kind: Kind, elements: int, came: int, waits: float, *, fewest: int) -> bool:
    """Whether a look says anything: what a consumer takes that lives on ready elements is not what its workers give.

    One that waits for most of the time has none, but where what it waits for is its own host, which takes long to
    receive them: that is seen once the look is long enough for a message more or less not to matter. Other policies
    than millrace's own don't ask how many elements were read, and how many came meanwhile.

    Args:
        kind: of the policy.
        elements: that all consumers have read.
        came: that came meanwhile.
        waits: share of the time for which they wait.
        fewest: that one of them has read.
    """
    return (
        kind in {"cachew", "cachew-released", "hpa"}
        or (waits > autoscale.CLEAR and fewest <= autoscale.LOOK_ELEMENTS)
        or came >= (1 - autoscale.MARGIN) * elements
    )


def settled(before: Scale | Other | None, scale: Scale | Other) -> bool:
    """Whether no other number is being looked for; Kubernetes' rule never ends, and has nothing to change for now."""
    if isinstance(scale, HpaScale):
        return before is not None and before.workers == scale.workers
    return scale.phase == "settled"
