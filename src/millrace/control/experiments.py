"""Arbiter of a job's experiments: which of them runs now, and in which regime what peers report was measured.

============  ==============================================  =================================  =====================
experiment    measures                                        is disturbed by                    runs
============  ==============================================  =================================  =====================
``profile``   what operators take where nothing is cached     a cache in use; other workers      whenever its mode is on
``probe``     the batch time without the source cache         a profile; other workers           when its time has come
``scaling``   the batch time with this number of workers      both; another mode                 while neither runs
============  ==============================================  =================================  =====================

Whoever measures asks :func:`regime_in_force`, keeps the answer with what it measures, and begins anew when that is
another. A mode of the cache, or a probe, is in force as soon as no worker runs a task that was leased before it was
chosen: what such a task gives was made in the mode before. Tasks of consumers that are lost don't count: these may be
away for minutes, and meanwhile their workers can't go on. Further experiments get a line here and a name in
:data:`~millrace.control.state.regime.Experiment`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millrace.control.state.observed import Observed
from millrace.control.state.regime import Experiment, Regime, RegimeObservation
from millrace.control.state.state import Job, State, Worker

if TYPE_CHECKING:
    from millrace.control.journal.transaction import Transaction


def experiment_of(observed: Observed, job: Job) -> Experiment:
    """Choose the one experiment of a job that runs now."""
    if job.points and job.caching.kind == "profile":
        return "profile"
    if job.name in observed.sources and observed.sources[job.name].past:
        return "probe"
    return "none" if job.scaling is None else "scaling"


def cache_regime(job: Job) -> str:
    """Mode of the job's cache, as its measures are told apart by it; empty without cache points."""
    return f"{job.caching.kind} {job.caching.node}" if job.points else ""


def makers(state: State, job: str) -> Iterator[Worker]:
    """Workers that make a job's elements, also if they are to leave."""
    yield from state.index.serving.serving(job)
    for worker in state.index.serving.draining:
        if any(task[0] == job for task in worker.unfinished.values()):
            yield worker


def note(tx: Transaction, job: Job) -> RegimeObservation:
    """Note the regime that a job is in: at each report, and whenever a mode of its cache was chosen."""
    workers = frozenset(worker.id for worker in makers(tx.state, job.name))
    given = tx.state.caches.rooms.get(job.data_set)
    room = "" if given is None else given.room
    regime = Regime(workers, cache_regime(job), experiment_of(tx.observed, job), room)
    seen = tx.observed.regimes.get(job.name)
    if seen is None:
        seen = tx.observed.regimes[job.name] = RegimeObservation(regime)
        changed = bool(job.points)  # whatever was leased in a dispatcher's life before may be of another mode
    else:
        changed = _reads_otherwise(seen.regime, regime)
        seen.regime = regime
    if changed:
        seen.lease = tx.state.next_lease
    return seen


def _reads_otherwise(before: Regime, now: Regime) -> bool:
    """Whether tasks that are leased from now on read otherwise than those before."""
    return before.cache != now.cache or (before.experiment == "probe") != (now.experiment == "probe")


def regime_in_force(tx: Transaction, job: Job) -> Regime | None:
    """Regime in which what is reported now was measured; None: a part of it was measured in the one before."""
    seen = note(tx, job)
    if seen.lease and not _runs_earlier(tx.state, job, seen.lease):
        seen.lease = 0
    return None if seen.lease else seen.regime


def _runs_earlier(state: State, job: Job, first: int) -> bool:
    """Whether a worker runs a task that was leased before lease ``first``, for a consumer of the job that is there."""
    there = {index for index, consumer in job.consumers.items() if consumer.lost_at is None}
    return any(
        name == job.name and lease < first and not there.isdisjoint(job.epochs[epoch].live[task].readers)
        for worker in makers(state, job.name)
        for lease, (name, epoch, task) in worker.unfinished.items()
    )


def forget(tx: Transaction, job: Job) -> None:
    """Forget what was observed of a job that is over: another one may have its name."""
    for observations in (tx.observed.regimes, tx.observed.caching, tx.observed.scaling, tx.observed.sources):
        observations.pop(job.name, None)
