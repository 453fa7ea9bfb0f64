"""Kubernetes' Horizontal Pod Autoscaler: its rule, on the workers' processor time, for comparison. Pure.

``desired = ceil(ready * used / target)``, no change while the ratio is within a tenth of 1, and downwards only to the
highest number that was desired in the last five minutes (the documented defaults of ``autoscaling/v2``). Workers that
were asked for and are not there have no say; those that are there don't make fewer of them while they are busy.
"""

from __future__ import annotations

import math

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import rounded
from millrace.policies.scaling.autoscale import Limits

TARGET = 0.80
"""Target share of processor time: Cachew's baseline (6.1)."""
TOLERANCE = 0.1
STABILIZATION_S = 300.0
"""Seconds before pods are taken away."""
PERIOD_S = 15.0
"""Seconds between two looks."""


class HpaScale(msgspec.Struct, frozen=True, tag="hpa"):
    """State of the rule.

    Attributes:
        workers: number that the job is to have.
        desired: (second, number) of the last five minutes.
    """

    workers: int = 1
    desired: tuple[tuple[float, int], ...] = ()


def step(scale: HpaScale, cpu: float, now: float, limits: Limits, ready: int | None = None) -> Decision[HpaScale]:
    """Advance by one look.

    Args:
        scale: so far.
        cpu: mean share of a worker's cores that is in use, between 0 and 1.
        now: seconds.
        limits: of the job.
        ready: workers that are there; None: all.
    """
    ratio, ready = cpu / TARGET, scale.workers if ready is None else min(ready, scale.workers)
    desired = scale.workers if abs(ratio - 1) <= TOLERANCE else math.ceil(ready * ratio)
    if ratio > 1:
        desired = max(desired, scale.workers)
    desired = limits.clip(desired)
    earlier = scale.desired or ((now, scale.workers),)  # as Kubernetes does with what it finds
    recent = tuple(each for each in earlier if now - each[0] < STABILIZATION_S)
    known = (*recent, (now, desired))
    workers = desired if desired >= scale.workers else min(scale.workers, max(count for _, count in known))
    workers = limits.clip(workers)  # be it sooner than after five minutes
    reason = f"workers use {rounded(cpu)} of their cores, where {rounded(TARGET)} is wanted"
    if limits.why and workers == limits.most:
        reason = f"{reason}: {limits.why}"
    return Decision(HpaScale(workers, known), reason, {"cpu": cpu})
