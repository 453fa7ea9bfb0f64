"""Regime of a job: the conditions under which its peers' measures are taken, which every measure is tagged with."""

from __future__ import annotations

from typing import Literal

import msgspec

Experiment = Literal["profile", "scaling", "none"]
"""Experiment of a job: all is computed and measured for its cache; numbers of workers are compared; neither."""


class Regime(msgspec.Struct, frozen=True):
    """Conditions under which a job is measured; measures of two regimes are neither compared nor added.

    Attributes:
        workers: ids of those that make the job's elements.
        cache: what the job does at its cache points; empty without any.
        experiment: the one that runs.
    """

    workers: frozenset[str] = frozenset()
    cache: str = ""
    experiment: Experiment = "none"


class RegimeObservation(msgspec.Struct):
    """Regime that a job has come into.

    Attributes:
        regime: the last that was seen.
        lease: no lease below was given under its cache mode: it is in force when those are over. 0: it is in force.
    """

    regime: Regime
    lease: int = 0
