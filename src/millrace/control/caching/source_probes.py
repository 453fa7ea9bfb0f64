"""Source probes: what a batch of a job takes without the source cache, and with it (Quiver 5.3).

Each hundred elements that a job reads in one regime are a look. What share of its bytes came from cache servers says
what the look has measured: the time without the cache, with hits, or with two chunks. Where data sets compete for room,
a job whose time without is not known, or was measured long ago, has its reads go past the cache for a look: a probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from millrace.control.caching.profiling import (
    LOOK_ELEMENTS,
    look_at,
    measures,
    profile_with,
    progress,
    read_since,
    summed,
    telling,
)
from millrace.control.experiments import experiment_of, note, regime_in_force
from millrace.control.journal.transaction import Transaction
from millrace.control.state.cache_state import Given
from millrace.control.state.observed import SourceObservation
from millrace.control.state.state import Job
from millrace.graph.serialize import unpack
from millrace.policies.caching import cache_probe as policy
from millrace.policies.caching.autocache import BatchTime
from millrace.policies.caching.cache_budget import JobTimes
from millrace.policies.caching.cache_cost_model import time_without
from millrace.protocol.cache_server_messages import CacheServersKnown
from millrace.protocol.reports import NodeMeasure

ALL, NOTHING = 0.95, 0.05
"""Shares of the bytes from the cache from which, and up to which, a look is one of hits, or of misses."""


def look(tx: Transaction, job: Job) -> None:
    """Take in a report of a consumer of the job's: is a look over, and what has it measured?"""
    if not tx.observed.cache_servers or not job.prints:
        return
    sight = tx.observed.sources.setdefault(job.name, SourceObservation())
    regime = regime_in_force(tx, job)
    if regime is None or not regime.workers:
        return
    if regime != sight.regime:
        sight.regime, sight.since, sight.begun = regime, tx.now, False
        return
    if not sight.begun:
        # Workers report less often: what they said before is of the regime before.
        seen_at = [tx.observed.workers[name].reported for name in regime.workers if name in tx.observed.workers]
        sight.begun = len(seen_at) == len(regime.workers) and min(seen_at) >= sight.since
        if sight.begun:
            _begin_look(tx, job, sight)
        return
    for index, report in telling(tx.observed, job).items():
        if read_since(report, sight.batches.get(index, (report.epoch, 0))) < LOOK_ELEMENTS:
            return
    seen = look_at(tx.observed, job)
    sums = summed(measures(tx.observed, job.name), sight.before)
    if seen is not None and _measured(tx, job, sight, seen, sums):
        if sight.past:
            sight.past, sight.probed_s = False, tx.now
            note(tx, job)
            tell_workers(tx)
        _begin_look(tx, job, sight)


def _begin_look(tx: Transaction, job: Job, sight: SourceObservation) -> None:
    # What lies ready was made before: it is read first, and does not count.
    ready = {index: math.ceil(report.queue_elements) for index, report in telling(tx.observed, job).items()}
    marks = progress(tx.observed, job)
    sight.batches = {index: (epoch, batches + ready.get(index, 0)) for index, (epoch, batches) in marks.items()}
    sight.before = measures(tx.observed, job.name)


def _measured(
    tx: Transaction, job: Job, sight: SourceObservation, seen: BatchTime, sums: dict[int, NodeMeasure]
) -> bool:
    """Keep what a look has measured; False: workers have not said yet what they read in it."""
    graph = unpack(job.spec.structure)
    sources = [number for number, _ in graph.sources()]
    stored = sum(sums[number].stored_bytes for number in sources if number in sums)
    cached = sum(sums[number].cached_bytes for number in sources if number in sums)
    root = sums.get(graph.id_of(graph.root))
    if root is None or not root.elements or not stored + cached:
        return False
    share, readers = cached / (stored + cached), _readers(tx, job)
    sight.batch_bytes = (stored + cached) / root.elements
    if readers != sight.sharers:
        sight.two_chunks_s, sight.sharers = None, readers
    if share <= NOTHING:
        missing = 1 if sight.past else readers
        sight.miss_s = policy.believed_miss(seen.batch_s, missing, readers, sight.miss_s)
        sight.probed_s = tx.now
        if sight.hit_s is None or sight.estimated:
            profile = profile_with(tx.state, job, sums, seen, sources)
            if profile is not None:
                sight.hit_s, sight.estimated = max(1e-9, time_without(profile, sources[0])), True
    elif share >= ALL:
        sight.hit_s, sight.estimated = seen.batch_s, False
    elif _room(tx, job) == "two chunks":
        sight.two_chunks_s = seen.batch_s
    return True


def _readers(tx: Transaction, job: Job) -> int:
    return max(1, sum(other.data_set == job.data_set and other.failure is None for other in tx.state.jobs.values()))


def _room(tx: Transaction, job: Job) -> Given:
    given = tx.state.caches.rooms.get(job.data_set)
    return "free" if given is None else given.room


def times_of(tx: Transaction, job: Job, readers: int) -> JobTimes:
    """Find the measured times of a job, of whose data there are so many readers."""
    sight = tx.observed.sources.get(job.name, SourceObservation())
    two_chunks_s = sight.two_chunks_s if sight.sharers == readers else None
    accelerators = len(job.consumers) * job.spec.accelerators
    return JobTimes(accelerators, sight.miss_s, sight.hit_s, two_chunks_s, sight.batch_bytes)


def measured(tx: Transaction, job: Job) -> tuple[object, ...]:
    """Tell which times of a job are known, and when it was last measured without the cache."""
    sight = tx.observed.sources.get(job.name, SourceObservation())
    known = sight.miss_s is None, sight.hit_s is None or sight.estimated, sight.two_chunks_s is None
    return (*known, sight.probed_s, sight.sharers)


def probe(tx: Transaction, competing: Iterable[tuple[Given, list[Job]]]) -> None:
    """Begin the probes whose time has come, one of each data set that competes for room, and end those of others."""
    wanted = set[str]()
    for room, jobs in competing:
        sights = {job.name: tx.observed.sources.setdefault(job.name, SourceObservation()) for job in jobs}
        candidates = [
            policy.ProbeCandidate(name, bool(each.batch_bytes), each.probed_s, each.miss_s, each.hit_s)
            for name, each in sights.items()
        ]
        probing = next((name for name, each in sights.items() if each.past), None)
        chosen = policy.next_probe(candidates, "none" if room == "free" else room, tx.now, probing).value
        if chosen is not None and experiment_of(tx.observed, tx.state.jobs[chosen]) != "profile":
            probing = chosen
        if probing is not None:
            wanted.add(probing)
    for name, sight in tx.observed.sources.items():
        if sight.past != (name in wanted):
            sight.past = name in wanted
            if name in tx.state.jobs:
                note(tx, tx.state.jobs[name])
    tell_workers(tx)


# -- who is told -------------------------------------------------------------------------------------------------------


def known(tx: Transaction) -> CacheServersKnown:
    """Make the message that tells a worker of cache servers."""
    past = sorted(name for name, sight in tx.observed.sources.items() if sight.past)
    return CacheServersKnown(sorted(each.address for each in tx.observed.cache_servers.values()), past)


def tell_workers(tx: Transaction, *, servers: bool = False) -> None:
    """Tell workers of cache servers, and which jobs read past them, if either has changed."""
    message = known(tx)
    if message.past == tx.observed.past_cache and not servers:
        return
    tx.observed.past_cache = message.past
    tx.observed.cache_clients &= tx.state.workers.keys()
    for worker in sorted(tx.observed.cache_clients):
        tx.to_worker(worker, message)
