"""Source probes: what a batch of a job takes without the source cache, and with it (Quiver 5.3).

Each hundred elements that a job reads in one regime are a look. What share of its bytes came from cache servers says
what the look has measured: the time without the cache, with hits, or with two chunks. Where data sets compete for room,
a job whose time without is not known, or was measured long ago, has its reads go past the cache for a look: a probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from millrace.control.caching.profiling import measures, profile_with, summed
from millrace.control.experiments import experiment_of, note, regime_in_force
from millrace.control.journal.transaction import Transaction
from millrace.control.state.cache_state import Given
from millrace.control.state.observed import Observed, SourceObservation
from millrace.control.state.state import Job, State
from millrace.graph.serialize import unpack
from millrace.policies.caching import cache_probe as policy
from millrace.policies.caching.autocache import BatchTime
from millrace.policies.caching.cache_budget import JobTimes
from millrace.policies.caching.cache_cost_model import time_without
from millrace.protocol.cache_server_messages import CacheServersKnown
from millrace.protocol.messages import ConsumerReport

_LEAST_S = 1e-9


def look(tx: Transaction, job: Job, consumer: int, report: ConsumerReport) -> None:
    """Take in a report of a consumer of the job's: is a look over, and what has it measured?"""
    if not tx.observed.cache_servers or not job.prints:
        return
    observation = tx.observed.sources.get(job.name)
    if observation is None:
        observation = tx.observed.sources[job.name] = SourceObservation()
    over = policy.probe_over(_read_on(observation, consumer, report), tx.state.settings.probe_batches).value
    seen = tx.observed.workers
    regime = regime_in_force(tx, job)
    if regime is None or not regime.workers:
        return
    reported = [seen[name].reported if name in seen else -1.0 for name in regime.workers]
    if regime != observation.regime:
        observation.regime, observation.since, observation.marked = regime, tx.now, None
    elif observation.marked is None:
        if (
            min(reported) >= observation.since
        ):  # what they have said before, as they do less often, is of the regime before
            _begin_look(tx, job, observation)
    elif over and min(reported) >= observation.marked and report.batch_time_s > 0:
        # Whoever reads fastest says how fast the job is: others may stand still, or read something else.
        _measured(tx, job, observation, BatchTime(report.batch_time_s, min(report.wait_s, report.batch_time_s), 0.0))
        if observation.past:
            _end_probe(tx, job, observation)
        _begin_look(tx, job, observation)


def _read_on(observation: SourceObservation, consumer: int, report: ConsumerReport) -> int:
    """Note what a consumer has read; return how many of its elements count, if it has read most of all; else 0."""
    epoch, batches, counted = observation.read.get(consumer, (report.epoch, report.batches, 0))
    counted += max(0, report.batches - (batches if report.epoch == epoch else 0))
    observation.read[consumer] = report.epoch, report.batches, counted
    return counted if counted >= max(each for _, _, each in observation.read.values()) else 0


def _begin_look(tx: Transaction, job: Job, observation: SourceObservation) -> None:
    # What lies ready was made before: it is read first, and does not count.
    reports = tx.observed.reports(job.consumers)
    ready = {index: math.ceil(report.queue_elements) for index, report in reports.items()}
    observation.read = {
        index: (*observation.read[index][:2], -ready[index]) for index in reports if index in observation.read
    }
    observation.before, observation.marked = measures(tx.observed, job.name), tx.now


def _measured(tx: Transaction, job: Job, observation: SourceObservation, seen: BatchTime) -> None:
    """Keep what a look has measured."""
    sums = summed(measures(tx.observed, job.name), observation.before)
    graph = unpack(job.spec.structure)
    sources = [number for number, _ in graph.sources()]
    stored = sum(sums[number].stored_bytes for number in sources if number in sums)
    cached = sum(sums[number].cached_bytes for number in sources if number in sums)
    root, readers = sums.get(graph.id_of(graph.root)), same_data(tx.state, job)
    if root is None or not root.elements:
        return
    if not stored + cached:  # what it reads is nothing of a store's: its operators' outputs are kept, say
        observation.miss_s, observation.hit_s, observation.estimated, observation.batch_bytes = (
            seen.batch_s,
            seen.batch_s,
            False,
            0.0,
        )
        return
    observation.share, observation.batch_bytes = cached / (stored + cached), (stored + cached) / root.elements
    if len(readers) != observation.sharers:
        observation.two_chunks_s, observation.sharers = None, len(readers)
    given = tx.state.caches.rooms.get(job.data_set)
    in_chunks = given is not None and given.room == "two chunks" and any(each.chunks for each in job.epochs.values())
    what = policy.measured_by(observation.share, past=observation.past, in_chunks=in_chunks)
    if what == "two chunks":
        observation.two_chunks_s = seen.batch_s
    elif what == "miss":
        observations = tx.observed.sources
        shares = [observations[other.name].share for other in readers if other.name in observations]
        missing = (
            1 if observation.past else max(1, sum(share is not None and share <= policy.NOTHING for share in shares))
        )
        observation.miss_s = policy.believed_miss(seen.batch_s, missing, max(missing, len(readers)), observation.miss_s)
        observation.probed_s = tx.now
        profile = profile_with(tx.state, job, sums, seen, sources)
        if profile is not None and (observation.hit_s is None or observation.estimated):
            observation.hit_s, observation.estimated = max(_LEAST_S, time_without(profile, sources[0])), True
    elif what == "hit":
        observation.hit_s, observation.estimated = seen.batch_s, False


def same_data(state: State, job: Job) -> list[Job]:
    """List the jobs whose only source is the data of this one."""
    return [other for other in state.jobs.values() if other.data_set == job.data_set and reads_alone(other)]


def reads_alone(job: Job) -> bool:
    """Whether a job reads one data set, and goes on."""
    return job.failure is None and bool(job.prints) and job.tables is not None and len(job.tables) == 1


def times_of(tx: Transaction, job: Job, readers: int, *, in_chunks: bool) -> JobTimes:
    """Find the measured times of a job, of whose data there are so many readers."""
    observation = tx.observed.sources.get(job.name, SourceObservation())
    two_chunks_s = observation.two_chunks_s if observation.sharers == readers else None
    accelerators = len(job.consumers) * job.spec.accelerators
    return JobTimes(
        accelerators, observation.miss_s, observation.hit_s, two_chunks_s, observation.batch_bytes, in_chunks
    )


def measured(tx: Transaction, job: Job) -> tuple[object, ...]:
    """Tell what is known of a job, roughly: as long as it is the same, nothing has to be decided anew."""
    observation = tx.observed.sources.get(job.name, SourceObservation())
    known = (
        observation.miss_s is None,
        observation.hit_s is None or observation.estimated,
        observation.two_chunks_s is None,
    )
    gain = (
        0
        if observation.miss_s is None or observation.hit_s is None
        else round(4 * math.log2(observation.miss_s / observation.hit_s))
    )
    return (job.name, len(job.consumers), *known, gain, observation.probes, observation.sharers, awaited(tx, job))


def awaited(tx: Transaction, job: Job) -> bool:
    """Whether a job reads, and will soon have been measured without the cache, if it goes on."""
    observation = tx.observed.sources.get(job.name)
    if observation is None or observation.probed_s is not None:
        return False
    return observation.waiting_s is None or tx.now - observation.waiting_s < policy.PROBE_LIMIT_S


def probe(tx: Transaction, competing: Iterable[tuple[Given, list[Job]]]) -> None:
    """Begin the probes whose time has come, one of each data set that competes for room, and end those of others."""
    wanted, waiting, least_s = set[str](), set[str](), tx.state.settings.probe_interval_s
    for room, jobs in competing:
        waiting.update(job.name for job in jobs)
        observations = {job.name: tx.observed.sources[job.name] for job in jobs if job.name in tx.observed.sources}
        for name, observation in observations.items():
            if observation.past and tx.now - observation.past_s > policy.PROBE_LIMIT_S:
                _end_probe(tx, tx.state.jobs[name], observation)
        probing = next((name for name, each in observations.items() if each.past), None)
        candidates = [
            policy.ProbeCandidate(name, bool(each.batch_bytes), each.probed_s, each.miss_s, each.hit_s, least_s)
            for name, each in observations.items()
            if experiment_of(tx.observed, tx.state.jobs[name]) != "profile"
        ]
        chosen = policy.next_probe(candidates, "none" if room == "free" else room, tx.now, probing).value
        wanted.update(name for name in (probing, chosen) if name is not None)
    for name, observation in tx.observed.sources.items():
        if name not in waiting:
            observation.waiting_s = None
        elif observation.waiting_s is None:
            observation.waiting_s = tx.now
        if observation.past != (name in wanted):
            observation.past, observation.past_s = name in wanted, tx.now
            if name in tx.state.jobs:
                note(tx, tx.state.jobs[name])
    tell_workers(tx)


def _end_probe(tx: Transaction, job: Job, observation: SourceObservation) -> None:
    observation.past, observation.probed_s, observation.probes = False, tx.now, observation.probes + 1
    note(tx, job)
    tell_workers(tx)


# -- who is told -------------------------------------------------------------------------------------------------------


def known(observed: Observed) -> CacheServersKnown:
    """Make the message that tells a worker of cache servers."""
    past = sorted(name for name, observation in observed.sources.items() if observation.past)
    servers = sorted((each.address, each.zone) for each in observed.cache_servers.values())
    return CacheServersKnown([address for address, _ in servers], past, {each: zone for each, zone in servers if zone})


def tell_workers(tx: Transaction) -> None:
    """Tell workers of cache servers, and which jobs read past them, if either has changed.

    After a restart of the dispatcher cache servers come back one by one; until they have had the time for that, workers
    go on with those that they know, as what others own would be fetched anew.
    """
    message = known(tx.observed)
    if message == (tx.observed.cache_told or CacheServersKnown([])) or not tx.observed.all_back:
        return
    tx.observed.cache_told = message
    clients = tx.observed.cache_clients
    tx.observed.cache_clients = {worker: zone for worker, zone in clients.items() if worker in tx.state.workers}
    for worker in sorted(tx.observed.cache_clients):
        tx.to_worker(worker, message)
