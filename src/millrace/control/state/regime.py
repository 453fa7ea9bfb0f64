"""Regime of a job: the conditions under which its peers' measures are taken, which every measure is tagged with."""

from __future__ import annotations

from typing import Literal

import msgspec

Experiment = Literal["profile", "probe", "scaling", "none"]
"""Experiment of a job: all is computed and measured for its cache; all is read past the source cache, to measure what
that saves; numbers of workers are compared; none of these."""


class Regime(msgspec.Struct, frozen=True):
    """Conditions under which a job is measured; measures of two regimes are neither compared nor added.

    Attributes:
        workers: ids of those that make the job's elements.
        cache: what the job does at its cache points; empty without any.
        experiment: the one that runs.
        room: of the data that the job reads, in the source cache; empty: nobody decides.
    """

    workers: frozenset[str] = frozenset()
    cache: str = ""
    experiment: Experiment = "none"
    room: str = ""


class RegimeObservation(msgspec.Struct):
    """Regime that a job has come into.

    Attributes:
        regime: the last that was seen.
        lease: no lease below was given under its cache mode, and with the source cache as it is now: they are in force
            when those are over. 0: they are in force.
    """

    regime: Regime
    lease: int = 0
