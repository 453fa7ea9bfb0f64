"""One schedule: a service, what is read from it, and what fails on the way, all drawn from a seed."""

from __future__ import annotations

import os
import random
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millrace.control.journal.replay import apply
from millrace.control.state.settings import Settings
from millrace.planning.checkpoint import Checkpoint
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.simulation import faults
from millrace.simulation.cache_server_fleet import CacheServerFleet, drawn_probes
from millrace.simulation.disk import Disk
from millrace.simulation.drawn_failures import OF_THE_DATA, DrawnFailures
from millrace.simulation.drawn_mixtures import DrawnMixtures
from millrace.simulation.drawn_quotas import drawn_quotas
from millrace.simulation.drawn_rounds import DrawnRounds
from millrace.simulation.invariants import Invariants
from millrace.simulation.job_resumes import JobResumes
from millrace.simulation.member_arrivals import MemberArrivals
from millrace.simulation.older_journal import OlderJournal
from millrace.simulation.pipelines import SimulatedPipeline, barren, catalogue, uneven
from millrace.simulation.rank_arrivals import RankArrivals
from millrace.simulation.schedule_outcome import ScheduleOutcome
from millrace.simulation.simulated_consumer import SimulatedConsumer
from millrace.simulation.simulated_dispatcher import HOST, SimulatedDispatcher, restored
from millrace.simulation.simulated_pool import SCALED, SimulatedPool
from millrace.simulation.simulated_worker import SimulatedWorker
from millrace.simulation.state_invariants import difference
from millrace.simulation.store import Store
from millrace.simulation.virtual_network import Violation, VirtualNetwork
from millrace.simulation.window_arrivals import WindowArrivals, remembered_tasks, tasks_behind

SETTINGS = Settings(heartbeat_s=2.0, job_gc_timeout_s=15.0, patience_s=3.0, cache="a store", lockstep_wait_s=6.0)
CACHE_BYTES = (24 << 20, 128 << 20, 4 << 30)
"""Of one of the pipelines a fraction fits, or all of most of them, or all of all."""
EVENTS = 200
"""A schedule goes on until so many are durable."""
JOBS = (1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 4)
"""That there are at first, as likely as they are here: one with four takes as long as eight with one."""
CACHED = 0.7
"""Share of the jobs that use the cache: few pipelines, so that jobs meet there."""
LIKE = 0.6
"""Share of the jobs that have the pipeline of one before, if there was any."""
HOMELY = 0.25
"""Share of the schedules in which jobs have local workers."""
EQUAL = 0.2
"""Share of the jobs of which all consumers get equally many elements, of those that can."""
DEADLY = 0.08
"""Share of the jobs that have an element which ends its worker."""
LARGE = 0.1
"""Share of the jobs that have a task whose output is too large for some workers."""
LIMIT_S = 400.0
"""Seconds in which something must get on: after the last fault, after anybody stood still, after a job was let in that
had to wait until its tenant had fewer, and after a task was over, of which one worker may have many to do."""
TRACE = 60
"""Happenings that a violation is reported with."""
MODES: tuple[dict[str, Any], ...] = (
    {},
    {"deterministic": True},
    {"visitation": "at_most_once"},
    {"sharding": "static"},
    {"sharding": "static", "deterministic": True},
    {"sharding": "static", "visitation": "at_most_once"},
    {"sharding": "static_contiguous"},
    {"sharding": "custom"},
    {"sharding": "custom", "deterministic": True},
    {"sharding": "off", "visitation": "zero_once_or_more"},
    {"visitation": "zero_once_or_more"},
)
BY_LENGTH = {"custom", "static_contiguous"}
"""Shardings that need to know how many tasks there are."""


class SimulatedCluster:
    """All processes of a schedule, and who starts them anew.

    Args:
        seed: of everything.

    Attributes:
        workers: by address, of all lives.
        pipelines: by the structure that a job's spec has.
        tenants: by job; ``structures``: of pipelines.
        failing: which tasks fail, and which pipelines give nothing.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.network: VirtualNetwork = VirtualNetwork(seed)
        rng = self.network.rng
        self.settings: Settings = msgspec.structs.replace(
            SETTINGS,
            cache_bytes=rng.choice(CACHE_BYTES),
            quotas={"small": rng.choice((1, 2))},
            window_tasks=remembered_tasks(seed),
            window_behind=tasks_behind(seed),
            trust=rng.choice(({}, {"small": ["default"]}, {"small": ["default"], "default": ["small"]})),
            **drawn_probes(seed),
        )
        self.settings = msgspec.structs.replace(self.settings, **drawn_quotas(seed, self.settings.cache_bytes))
        self.rounds = DrawnRounds(seed)
        self.store: Store = Store()
        self.older_journal = OlderJournal(self)
        self.sources = CacheServerFleet(self, seed)
        self.invariants = Invariants(self)
        self.disk: Disk = Disk(rng.choice((30, 100, 1000)))
        self.fired: Counter[str] = Counter()
        self.pipelines = {each.structure: each for each in (*catalogue(), *barren(), *self.sources.pipelines, uneven())}
        self.workers: dict[str, SimulatedWorker] = {}
        self.consumers: list[SimulatedConsumer] = []
        self.ranks: dict[tuple[str, int], SimulatedConsumer] = {}
        self._followed: set[SimulatedConsumer] = set()
        self.expected = 0
        self.faults_to_come = 0
        self.failing = DrawnFailures(seed)
        self.tenants, self.structures = dict[str, str](), dict[str, bytes]()
        self.mixtures = DrawnMixtures(seed, self.fired)
        self._deadly: dict[str, int] = {}
        self._large: dict[str, tuple[int, int]] = {}
        self._sizes = random.Random(f"sizes {seed}")
        self._jobs = 0
        self._before: list[SimulatedPipeline] = []
        self.stirred_at = self.advanced_at = self._slow_until = 0.0
        self._local = rng.random() < 0.3
        chance = random.Random(f"cluster {seed}")
        self.pool = SimulatedPool(self, chance) if chance.random() < SCALED else None
        if self.pool is not None:
            self.settings = msgspec.structs.replace(self.settings, **self.pool.settings())
        where = random.Random(f"where {seed}")
        self._where = where if where.random() < HOMELY else None
        self._homes: dict[str, int] = {}
        self._equal = random.Random(f"equal {seed}")
        self.resumes = JobResumes(self, self._equal)
        self.late_ranks = RankArrivals(self, seed)
        self._count = 0
        self.dispatcher: SimulatedDispatcher | None = None
        self.start_dispatcher()
        self.least = rng.randrange(1, 4)
        for _ in range(self.least + rng.randrange(3) if self.pool is None else 0):
            self.add_worker()
        for _ in range(rng.choice(JOBS) + self.sources.more_jobs):
            self._add_job()
        self.sources.begin()
        self.members = MemberArrivals(self, seed)
        self.windows = WindowArrivals(self, seed)
        faults.arrange(self)
        for _ in range(2):
            self.network.at(rng.uniform(1.0, 40.0), self.check_replay)

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_dispatcher(self) -> None:
        """Another life of the dispatcher, with what the one before has left."""
        if not self.older_journal.go_on(self.disk, restored(self.disk, self.settings)):
            self.network.after(1.0, self.start_dispatcher)
            return
        self.dispatcher = SimulatedDispatcher(self)
        if self._count and self._local and self.pool is None:
            for _ in range(self.least):
                self.add_worker()

    def kill_dispatcher(self) -> None:
        """End the dispatcher, and with it the workers that it started."""
        dispatcher = self.dispatcher
        assert dispatcher is not None
        self.check_replay()
        dispatcher.die()
        self.dispatcher = None
        if self._local:
            for worker in self.alive_workers():
                if not worker.only:
                    worker.die()

    def end_service(self, reason: str) -> None:
        """Have the dispatcher go on with a journal with which it will not by itself."""
        self.older_journal.end_service(reason)
        self.network.after(0.0, self._start_all_the_same)

    def _start_all_the_same(self) -> None:
        if self.dispatcher is not None:  # others may have had it ended at the same time
            self.kill_dispatcher()
            self.network.after(self.network.rng.uniform(0.05, 8.0), self.start_dispatcher)

    def check_replay(self) -> None:
        """Check that the journal gives the state, with what is still to be written."""
        dispatcher = self.dispatcher
        if dispatcher is None:
            return
        state = restored(self.disk, self.settings)
        for event in dispatcher.undurable():
            apply(state, event)
        found = difference(dispatcher.state, state)
        if found:
            raise Violation(f"the journal replays to another state: {found}")

    def add_worker(self, only: str = "") -> None:
        """One more, of the service or local to a job."""
        self._count += 1
        host = "" if only else HOST if self._local else "elsewhere"  # consumers have none
        worker = SimulatedWorker(f"w{self._count}", host, self, only)
        self.workers[worker.address] = worker
        faults.born(self, worker)

    def _house(self, job: str) -> None:
        """Start the local workers of a job that is being read; end those of another one."""
        there = [worker for worker in self.alive_workers() if worker.only == job]
        if self._read(job):
            for _ in range(self._homes.get(job, 0) - len(there)):
                self.add_worker(job)
        else:
            for worker in there:
                worker.resume()
                worker.end()

    def _read(self, job: str) -> bool:
        return any(each.alive and not each.done for each in self.consumers if each.spec.name == job)

    def stop(self, workers: list[str]) -> None:
        """End these processes, as the dispatcher wants."""
        if self.owned:
            for worker in self.alive_workers():
                if worker.name in workers and not worker.only:
                    worker.resume()
                    worker.end()

    def running(self) -> list[str]:
        """Return the processes that the dispatcher or its cluster has started."""
        return [each.name for each in self.alive_workers() if not each.only] if self.owned else []

    @property
    def owned(self) -> bool:
        """Workers are processes of the dispatcher, or of its cluster, and so it has them ended."""
        return self._local or self.pool is not None

    def resize(self, workers: int) -> None:
        """Run so many workers, as the dispatcher wants."""
        if self.pool is not None:
            self.pool.resize(workers)

    def ended(self, worker: str) -> bool:
        """Whether the process is no more."""
        return not self.workers[f"{worker}:1"].alive

    def alive_workers(self) -> list[SimulatedWorker]:
        """Return the workers that run, or hang."""
        return [worker for worker in self.workers.values() if worker.alive]

    def worker_over(self, worker: SimulatedWorker) -> None:
        """Tell the dispatcher that a worker's process has ended, and start another one if need be."""
        rng = self.network.rng
        if worker.only:
            self.network.after(rng.uniform(0.1, 1.0), self._house, worker.only)
            return
        if self.owned and self.dispatcher is not None:
            self.dispatcher.after(0.05, self.dispatcher.worker_ended, worker.name)
        if self.pool is not None:
            self.pool.fill_soon()
        elif self._lacks():
            self.network.after(rng.uniform(0.1, 3.0), self._refill)

    def _lacks(self) -> bool:
        return sum(not worker.only for worker in self.alive_workers()) < self.least

    def _refill(self) -> None:
        if self._lacks() and (self.dispatcher is not None or not self._local):
            self.add_worker()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _add_job(self) -> None:
        rng = self.network.rng
        self._jobs += 1
        name = f"job-{self._jobs}"
        self.stirred()
        cached = rng.random() < CACHED
        before = [each for each in self._before if each.cached is cached]
        some = before if rng.random() < LIKE else []
        pipeline = rng.choice(some or [each for each in catalogue() if each.cached is cached])
        pipeline = self.failing.instead(pipeline)
        self._before.append(pipeline)
        modes = [mode for mode in MODES if pipeline.plan.length is not None or mode.get("sharding") not in BY_LENGTH]
        mode = rng.choice(modes)
        count = rng.randrange(1, 4)
        spec = JobSpec(
            name,
            pipeline.structure,
            "bundle",
            tasks=pipeline.tasks,
            num_consumers=count if mode.get("deterministic") or rng.random() < 0.8 else None,
            epochs=rng.randrange(1, 4) + 2 * any(point.mode == "auto" for point in pipeline.points(0)),
            priority=rng.choice((0.2, 1.0, 1.0, 5.0)),
            tenant=rng.choice(("default", "default", "small")),
            **mode,
        )
        spec, pipeline = self.sources.draw(spec, pipeline)
        exact = spec.visitation == "exactly_once" and spec.num_consumers is not None
        equal = self._equal.random() < EQUAL and exact
        if exact and self.failing.uneven(count):
            pipeline, equal = uneven(), True
        if equal:
            spec = msgspec.structs.replace(spec, equal_steps=True, structure=pipeline.structure, tasks=pipeline.tasks)
            self.resumes.draw(name)
        spec = self.mixtures.draw(self.rounds.draw(spec, self.pipelines), self.pipelines)
        if spec.structure != pipeline.structure:
            pipeline, count = self.pipelines[spec.structure], spec.num_consumers or 1
            self.resumes.draw(name)
        if self._where is not None:
            spec = msgspec.structs.replace(spec, target_workers=self._where.choice(("auto", "auto", "local", "any")))
            self._homes[name] = self._where.randrange(1, 3)
        self.tenants[name], self.structures[name] = spec.tenant, spec.structure
        if self.failing.fails(spec) and pipeline.plan.length:
            self.failing.draw(name, pipeline.plan.length)
        born = pipeline.born_in(pipeline.plan.task(0)) if pipeline.plan.length else []
        if born and not self._deadly and rng.random() < DEADLY:
            self._deadly[name] = rng.choice(born)
        if pipeline.plan.length and self._sizes.random() < LARGE:
            self._large[name] = self._sizes.randrange(pipeline.plan.length), self._sizes.choice((4, 8, 64))
        late = self.late_ranks.late(spec)
        for index in range(count):
            stops = {
                epoch: rng.randrange(1, 20)
                for epoch in range(spec.epochs or 1)
                if pipeline.plan.length is None or rng.random() < 0.1
            }
            at = rng.uniform(0.0, 3.0)
            if index in late:
                self.late_ranks.expect(spec, index, stops, late[index])
                continue
            self.expected += 1
            self.network.after(at, self.add_consumer, spec, index, stops)

    def add_consumer(
        self,
        spec: JobSpec,
        index: int,
        stops: Mapping[int, int],
        born: float | None = None,
        states: Sequence[Checkpoint] = (),
    ) -> None:
        """Start a process that reads as this consumer.

        Args:
            spec: of the job.
            index: of the consumer.
            stops: by epoch, after how many elements it breaks off.
            born: when it was started; None: now.
            states: where all ranks go on.
        """
        name = f"{spec.name}-c{index}.{len(self.consumers)}"
        at = self.network.now if born is None else born
        consumer = SimulatedConsumer(name, spec, index, stops, self, at, states)
        self.stirred()
        self.consumers.append(consumer)
        self.ranks[spec.name, index] = consumer
        self._house(spec.name)

    def job_again(self, name: str) -> None:
        """Have whoever has read a job that had to begin anew read it again, as the others wait for it."""
        for consumer in [each for (job, _), each in self.ranks.items() if job == name]:
            consumer.outlived = consumer.joined is not None  # and hears of it, or of why the job before it failed
            if consumer.done:
                self._start_again(consumer)

    def run_again(self, name: str) -> None:
        """Whoever has read the job and closed it reads it once more: another run of the training."""
        for consumer in [each for (job, _), each in self.ranks.items() if job == name]:
            if consumer.done and consumer.failure is None:
                self._start_again(consumer)

    def _start_again(self, consumer: SimulatedConsumer) -> None:
        if consumer in self._followed:
            return  # whoever runs the training starts one process for each that has ended
        self._followed.add(consumer)
        self.expected += 1
        arguments = (consumer.spec, consumer.consumer, consumer.stops, None, consumer.states)
        self.network.after(self.network.rng.uniform(0.1, 1.0), self.add_consumer, *arguments)

    def consumer_over(self, consumer: SimulatedConsumer) -> None:
        """Note that a consumer has read all that it wanted, or failed."""
        self.expected -= 1
        if consumer.failure is not None and (consumer.outlived or consumer.failure.kind not in OF_THE_DATA):
            self._start_again(consumer)  # the training begins anew
        self.one_less(consumer.spec.name)

    def one_less(self, name: str) -> None:
        """Note that a consumer of the job has ended, and is not expected any more."""
        self._house(name)
        if not self._read(name):
            self.late_ranks.nobody_reads(name)
        if self.expected == 0 and (self.invariants.events < EVENTS or self.faults_to_come > 0):
            self._add_job()

    def stirred(self) -> None:
        """Something new has happened, from which everybody needs time to recover."""
        self.stirred_at = self.network.now

    def stands_still(self, seconds: float) -> None:
        """Note that somebody does nothing for so long: it needs its time from then on."""
        self._slow_until = max(self._slow_until, self.network.now + seconds)

    def let_in_late(self) -> None:
        """Note that somebody was let in whom a quota of jobs had kept out until another job was over."""
        self._slow_until = max(self._slow_until, self.network.now)

    def needs(self, ref: msg.TaskRef) -> int:
        """Return the bytes of buffer that the outputs of a task need."""
        task, needs = self._large.get(ref.job, (-1, 0))
        return needs if task == ref.task else 0

    def deadly(self, job: str, element: int) -> bool:
        """Whether this element ends every process that comes to it."""
        return self._deadly.get(job) == element

    # -- the course of things ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Everybody has what is theirs, and nothing of it is left, but for what is kept for later."""
        state = None if self.dispatcher is None else self.dispatcher.state
        if self.expected > 0 or state is None or state.jobs or state.caches.reservations:
            return False
        return not any(cached.evicting for cached in state.caches.points.values())

    def run(self) -> None:
        """Until it is over.

        Raises:
            Violation: something was wrong.
        """
        network = self.network
        while not self.over:
            network.step()
            if network.now > max(self.stirred_at, self.advanced_at, self._slow_until) + LIMIT_S:
                raise Violation(f"nothing gets on: {self._waiting()}")
        self.check_replay()

    def _waiting(self) -> str:
        dispatcher = self.dispatcher
        waiting = [consumer for consumer in self.consumers if consumer.alive and not consumer.done]
        jobs = {} if dispatcher is None else dispatcher.state.jobs
        parts = [f"{each.name} waits in epoch {each.inbox.number if each.inbox else None}" for each in waiting]
        parts += [f"job {name} is still there" for name in jobs if not waiting]
        if dispatcher is not None and not parts:
            caches = dispatcher.state.caches
            going = {name: list(cached.evicting) for name, cached in caches.points.items() if cached.evicting}
            parts = [f"promised: {caches.reservations}, to be deleted: {going}"]
        return ", ".join(parts)


def play(seed: int, tell: Callable[[str], None] | None = None) -> ScheduleOutcome:
    """One schedule.

    Args:
        seed: of everything in it.
        tell: hears of all that happens, a line each.
    """
    last: deque[tuple[float, str, object]] = deque(maxlen=TRACE)
    outcome = ScheduleOutcome(seed)
    cluster: SimulatedCluster | None = None
    try:
        cluster = SimulatedCluster(seed)
        network = cluster.network

        def note(who: str, what: object) -> None:
            if tell is not None:
                tell(_line(network.now, who, what))
            last.append((network.now, who, what))

        network.note = note
        cluster.run()
    except Exception as error:  # noqa: BLE001 (a bug of the core or of a model, which the seed shows again)
        bug = "" if isinstance(error, Violation) else f"{type(error).__name__} in {_place_of(error)}: "
        outcome.violation = f"{bug}{error}"
        outcome.trace = [_line(*each) for each in last]
    if cluster is not None:
        seen = cluster.invariants
        outcome.events, outcome.elements, outcome.kinds = seen.events, seen.elements, seen.kinds
        outcome.faults, outcome.seconds = cluster.fired, cluster.network.now
        outcome.items = cluster.sources.invariants.items
    return outcome


def _place_of(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.name} ({os.path.basename(frame.filename)}:{frame.lineno})"


def _line(now: float, who: str, what: object) -> str:
    text = str(what)
    return f"{now:9.3f}  {who:24} {text if len(text) <= 400 else text[:397] + '...'}"
