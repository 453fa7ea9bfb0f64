"""Invariants, which hold at any moment, whatever fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from millrace.control import inputs as inp
from millrace.control.journal.consumer_events import ConsumerJoined, ConsumerLeft
from millrace.control.journal.epoch_events import EpochClosed, EpochReweighted
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobBroke, JobCreated, JobRemoved, StatesLoaded
from millrace.control.journal.task_events import TaskDone, TaskSpared
from millrace.control.journal.worker_events import WorkerAssigned, WorkerLost
from millrace.control.membership.jobs import WITH_RANK
from millrace.control.membership.late_joins import named
from millrace.control.tasks.unread import told as told_of
from millrace.protocol import messages as msg
from millrace.simulation.cache_invariants import CacheInvariants
from millrace.simulation.drawn_failures import check_before
from millrace.simulation.drawn_mixtures import weights_at
from millrace.simulation.job_history import EpochHistory, JobHistory
from millrace.simulation.last_words import LastWords
from millrace.simulation.member_invariants import HELD_UP, MemberInvariants
from millrace.simulation.pipelines import Output, bare, unit_of, values_of
from millrace.simulation.pool_invariants import PoolInvariants
from millrace.simulation.round_invariants import RoundInvariants
from millrace.simulation.round_window_invariants import RoundWindowInvariants
from millrace.simulation.state_invariants import check_bounds, check_jobs, check_leases, check_quota, in_force
from millrace.simulation.virtual_network import Violation
from millrace.simulation.waiting_invariants import WaitingJobs
from millrace.simulation.window_invariants import WindowInvariants

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer
    from millrace.simulation.simulated_dispatcher import SimulatedDispatcher
    from millrace.simulation.simulated_worker import SimulatedWorker


BEFORE = "somebody before"
"""Who has what states say was read."""
ANEW = "begun anew from saved states"


class Invariants:
    """Hears of everything, and raises :class:`Violation`.

    Args:
        cluster: finds processes and pipelines.

    Attributes:
        events: how many events became durable.
        kinds: how often each kind of event was decided.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.events = 0
        self.elements = 0
        self.kinds: Counter[str] = Counter()
        self._cluster = cluster
        self._histories: dict[tuple[str, int], JobHistory] = {}
        self._seeds: dict[str, int] = {}
        self._clients: dict[tuple[str, int], str] = {}
        self._there: dict[str, bool] = {}
        self._given_up: set[str] = set()
        self._journal: list[Event] = []
        self._saved: dict[str, tuple[int, set[int]]] = {}
        self.rounds, self.words = RoundInvariants(), LastWords(cluster)
        self.caches = CacheInvariants(cluster)
        self.pool, self._waiting = PoolInvariants(cluster), WaitingJobs()
        self.members, self.windows = MemberInvariants(cluster), WindowInvariants(cluster)
        self.round_windows = RoundWindowInvariants(cluster)

    # -- elements ------------------------------------------------------------------------------------------------------

    def _history(self, consumer: SimulatedConsumer) -> JobHistory:
        assert consumer.joined is not None
        key = consumer.joined.job, consumer.joined.seed
        if key not in self._histories:
            raise Violation(f"{consumer.name} was let into job {key[0]} before that was durable")
        return self._histories[key]

    def began(self, consumer: SimulatedConsumer, epoch: int, reused: int) -> None:
        """Note that a consumer reads an epoch, which is as the first one below a cache point."""
        history, older = self._history(consumer).epoch(epoch), self._cluster.older_journal
        if history.reused not in {None, reused}:
            if not all(older.came_again(each, consumer.client) for each in history.told):
                text = f"epoch {epoch} of {consumer.name} is as the first one below {reused} and {history.reused}"
                raise Violation(text)
            history.told.clear()  # it was decided once more
        history.begun, history.reused = True, reused
        history.told.add(consumer.client)

    def received(self, consumer: SimulatedConsumer, epoch: int, outputs: Sequence[Output]) -> None:
        """Note outputs that the consumer had not before."""
        self._history(consumer).epoch(epoch).received.update(bare(element) for output in outputs for element in output)

    def yielded(self, consumer: SimulatedConsumer, epoch: int, task: int, outputs: Sequence[Output]) -> None:
        """Its user has outputs of a task."""
        job = self._history(consumer)
        history, pipeline = job.epoch(epoch), self._cluster.pipelines[job.spec.structure]
        wrong = self.rounds.yielded(consumer, epoch, outputs, pipeline.plan) if job.spec.coordinated else ""
        if consumer.client in self._given_up:
            # It does not know yet, and what it does is void; unless the dispatcher dies before that is durable.
            history.void.update((bare(element), consumer.client) for output in outputs for element in output)
            return
        before = history.at.get(consumer.client, -1)
        if job.spec.deterministic and not job.spec.coordinated and task < before:
            raise Violation(f"task {task} of epoch {epoch} of job {job.spec.name} was read after task {before}")
        if wrong and not self._cluster.older_journal.came_again(consumer.client):
            raise Violation(wrong)
        history.at[consumer.client] = task
        values = pipeline.epoch_of_values(epoch, -1 if history.reused is None else history.reused)
        begun = consumer.core.reading.begun if consumer.core.reading is not None else None
        known = () if begun is None else begun.reweighted
        for output in outputs:
            self.elements += len(output)
            for given in output:
                element = bare(given)
                if pipeline.mixed:
                    values = weights_at(known, unit_of(given))
                if values_of(given) != values and not self._cluster.older_journal.came_again(consumer.client):
                    where = f"element {element} of epoch {epoch} of job {job.spec.name}"
                    what = "weights that its reader knows" if pipeline.mixed else "random values"
                    raise Violation(f"{where} has not the {what}: those of {values_of(given)}, not of {values}")
                first = history.yielded.get(element)
                if first is not None and first not in self._given_up and job.spec.sharding != "off":
                    if self._cluster.older_journal.came_again(first, consumer.client):
                        continue
                    where = f"element {element} of epoch {epoch} of job {job.spec.name}"
                    raise Violation(f"{where} came to {first} and to {consumer.client}")
                history.yielded[element] = consumer.client

    def interrupted(self, consumer: SimulatedConsumer, epoch: int) -> bool:
        """Somebody stopped before the epoch's end, or came in the place of another, whose state nobody has."""
        return self._history(consumer).epoch(epoch).interrupted

    def saved(self, ranks: Sequence[SimulatedConsumer], epoch: int) -> None:
        """All ranks of a job have saved their states."""
        self._saved[ranks[0].spec.name] = epoch, set(self._history(ranks[0]).epoch(epoch).yielded)
        self.rounds.saved(ranks, epoch)

    def ended(self, consumer: SimulatedConsumer, epoch: int, steps: int) -> None:
        """Note that the consumer has read the epoch to its end, in so many steps."""
        job = self._history(consumer)
        history = job.epoch(epoch)
        if consumer.consumer in history.dealt.values():  # else it came when others had its part
            history.steps[consumer.client] = steps
        if job.spec.coordinated and consumer.client not in self._given_up:
            wrong = self.rounds.ended(consumer, epoch, whole=not job.skipped)
            if wrong and not self._cluster.older_journal.came_again(consumer.client):
                raise Violation(wrong)
        pipeline = self._cluster.pipelines[consumer.spec.structure]
        if pipeline.plan.length is None and pipeline.fruitful != frozenset():
            raise Violation(f"epoch {epoch} of {consumer.name} has no end, and was read to its end")

    def told(self, consumer: SimulatedConsumer, epoch: int, text: str) -> None:
        """Its user has come to the end of an epoch, and is told what of it is not read ("": all is)."""
        dispatcher, session = self._cluster.dispatcher, consumer.session
        job = None if dispatcher is None else dispatcher.state.jobs.get(consumer.spec.name)
        if dispatcher is None or job is None or session is None or not (session.live and session.open_at(dispatcher)):
            return
        if any(session.under_way) or dispatcher.owes_client(consumer.client) or session.ends[1] is not dispatcher:
            return
        place = job.consumers.get(consumer.consumer)
        if place is None or place.client != consumer.client or place.lost_at is not None:
            return
        expected = told_of(dispatcher.state, dispatcher.observed, job, epoch)
        if expected and not (text or self._cluster.older_journal.refused):
            raise Violation(f"{consumer.name} ends epoch {epoch}, and is not told: {expected}")

    def abandoned(self, consumer: SimulatedConsumer, epoch: int) -> None:
        """Note that the consumer won't read the epoch to its end, and may not have said what it had before."""
        if consumer.joined is not None:
            job = self._history(consumer)
            job.epoch(epoch)
            job.interrupt(epoch)

    def failed(self, consumer: SimulatedConsumer, failure: msg.Failure) -> None:
        """Its user gets an error."""
        if self._cluster.failing.job == consumer.spec.name and failure.kind == "ElementError":
            self._check_before(consumer, failure)
            return
        if failure.kind == "ElementTooLargeError":
            return  # it was looked at as that was decided
        if consumer.joined is not None and self._history(consumer).broken:
            return  # others were told why, and began anew
        if consumer.client not in self._given_up and not self._cluster.older_journal.refused:
            raise Violation(f"{consumer.name} failed, and was never away for long: {failure}")

    def _check_before(self, consumer: SimulatedConsumer, failure: msg.Failure) -> None:
        """Check that what comes before a failure of a consumer's own task has come."""
        spec, epoch = consumer.spec, consumer.reading
        if consumer.joined is None or epoch < 0 or consumer.client in self._given_up:
            return
        job = self._history(consumer)
        history = job.epoch(epoch)
        owner = job.epoch(int(failure.where.split()[0])).dealt.get(int(failure.where.split()[1]))
        pipeline = self._cluster.pipelines[spec.structure]
        held_back = spec.equal_steps and not pipeline.plan_for(spec).equal  # what others have no more of is not used
        exact = spec.visitation == "exactly_once" and not (held_back or history.resumed or job.skipped)
        exact = exact and not spec.coordinated
        if exact and owner == consumer.consumer:
            came = history.yielded.keys() | history.void.keys()
            plan = pipeline.plan_for(spec, history.chunks)
            check_before(failure, pipeline, plan, spec, consumer.consumer, epoch, came, history.dropped)

    def too_late(self, consumer: SimulatedConsumer) -> None:
        """Check that the job of a consumer which is refused for that is over."""
        if self._there[consumer.client]:
            raise Violation(f"{consumer.name} is refused as too late, and its job is there")

    # -- what is durable -----------------------------------------------------------------------------------------------

    def durable(self, events: Iterable[Event]) -> None:
        """Note events that are on the disk."""
        for event in events:
            self.events += 1
            self._journal.append(event)
            self.windows.durable(event)
            if isinstance(event, JobCreated):
                if any(name == event.spec.name for name, _ in self._histories):
                    self._cluster.job_again(event.spec.name)
                self._histories[event.spec.name, event.seed] = JobHistory(event.spec)
            job = self._job_of(event)
            if job is not None:
                self._check(job, event)
                job.enter(event)
            self._enter(event)

    def put_back(self, last: int) -> None:
        """Note that the journal ends behind the event of this number."""
        del self._journal[last:]
        self.words.put_back()
        self._seeds.clear()
        for job in self._histories.values():
            job.forget(job.spec)
        for event in self._journal:
            job_or_none = self._job_of(event)
            if job_or_none is not None:
                job_or_none.enter(event)
            self._enter(event)

    def _job_of(self, event: Event) -> JobHistory | None:
        name = getattr(event, "job", "")
        return self._histories[name, self._seeds[name]] if name in self._seeds else None

    def _enter(self, event: Event) -> None:
        """Note which jobs there are."""
        match event:
            case JobCreated(spec=spec, seed=seed):
                self._seeds[spec.name] = seed
                self._histories[spec.name, seed].forget(spec)  # if it was begun anew from saved states
            case JobRemoved(job=name):
                self._seeds.pop(name, None)

    def _check(self, job: JobHistory, event: Event) -> None:
        if job.spec.sharing:
            return  # each member is looked at for itself
        match event:
            case StatesLoaded():
                self._goes_on(job)
            case TaskDone(epoch=epoch, task=task, dropped=True) | TaskSpared(epoch=epoch, task=task):
                self._check_dropped(job, epoch, task)
            case EpochClosed(epoch=epoch):
                self._complete(job, epoch)
            case EpochReweighted(epoch=epoch, element=first):
                there = [unit_of(each) for each in job.epoch(epoch).yielded if unit_of(each) >= first]
                if there and not self._cluster.older_journal.refused:
                    where = f"epoch {epoch} of job {job.spec.name}"
                    raise Violation(f"weights of {where} hold from element {first} on, and {sorted(there)} were read")
            case JobRemoved():
                self._removed(job, event)

    def _goes_on(self, job: JobHistory) -> None:
        """Note that the job goes on from saved states, which say what was read before."""
        epoch, read = self._saved[job.spec.name]
        history = job.epoch(epoch)
        history.yielded.update(dict.fromkeys(read, BEFORE))
        history.resumed = True

    def _check_dropped(self, job: JobHistory, number: int, task: int) -> None:
        """Nobody reads a task to its end: by a reader's own choice, as it reads on, or it was said."""
        history = job.epoch(number)
        owner = history.dealt.get(task, -1)
        by_choice = job.reads.get(owner, -1) > number or job.spec.visitation != "exactly_once"
        if job.spec.coordinated:
            ranks = range(job.spec.num_consumers or 1)
            past = history.said | job.gone  # who is gone and had read it all lacked nothing that could be said
            by_choice = all(job.reads.get(rank, -1) > number or rank in past for rank in ranks)
        by_choice |= (
            self._cluster.older_journal.refused or job.spec.equal_steps
        )  # what one has more than others is left out, and counted as that
        if not (by_choice or owner in history.said):
            raise Violation(
                f"task {task} of epoch {number} of job {job.spec.name} was {owner}'s, and dropped in silence"
            )

    def _removed(self, job: JobHistory, event: JobRemoved) -> None:
        """Check what everybody stopped reading, as it is over as well."""
        if ANEW in event.reason:
            return  # what was read of it says the history of the job that goes on
        self._check_kept(job, event)
        for epoch in [number for number, history in job.epochs.items() if not history.interrupted]:
            self._complete(job, epoch)

    def _check_kept(self, job: JobHistory, event: JobRemoved) -> None:
        """Check that a job was kept its grace for those who never came, and that its end says who they are."""
        job.never = sorted(set(range(job.spec.num_consumers or 0)) - job.joined.keys() - job.gone)
        if not job.never or job.broken or max(job.reads.values(), default=-1) < 0:
            return
        where = f"job {job.spec.name} was removed though consumers {job.never} had never come"
        if event.absent != len(job.never):
            raise Violation(f"{where}, and {event.absent} are said not to have: {event.reason}")
        if "started again" in event.reason:
            return  # by one that had left, which was told
        kept = event.at - job.kept_at
        if named(job.never) not in event.reason or kept < self._cluster.settings.job_gc_timeout_s:
            raise Violation(f"{where}, and was kept for {kept:.1f} s: {event.reason}")

    def _complete(self, job: JobHistory, number: int) -> None:
        """All that an epoch should have given was given."""
        history = job.epochs.get(number)
        chunks = 0 if history is None else history.chunks
        plan = self._cluster.pipelines[job.spec.structure].plan_for(job.spec, chunks)
        if history is None or history.closed or not history.begun or job.broken or job.spec.sharding == "off":
            return
        if self._cluster.older_journal.refused:
            return  # what was read since the journal's end comes again, as was said
        where = f"epoch {number} of job {job.spec.name}"
        if job.spec.equal_steps and not history.interrupted and not job.skipped and len({*history.steps.values()}) > 1:
            raise Violation(f"{where} had unequal steps: {history.steps}")
        if plan.length is None or (job.spec.equal_steps and not plan.equal):
            return  # without end, or with what some ranks have more than others left out
        loose = job.spec.visitation != "exactly_once"
        if history.dropped and not (history.interrupted or loose):
            raise Violation(f"tasks {sorted(history.dropped)} of {where} were dropped, though all read to the end")
        if history.resumed:
            self._complete_resumed(job, number, where)
            return
        came = history.yielded.keys() | {each for each, client in history.void.items() if client not in self._given_up}
        lost = set()
        for index in range(plan.length):
            task = plan.task(index)
            absent = set(self._cluster.pipelines[job.spec.structure].born_in(task)) - came - job.skipped
            if history.interrupted:
                absent -= history.received  # and were lost with whoever had them
            if absent and not self._excused(job, history, plan, index, loose=loose):
                lost |= absent
        if job.spec.coordinated:
            self._complete_rounds(job, number, lost, where)
        elif lost:
            raise Violation(f"elements {sorted(lost)} of {where} never came")

    def _complete_rounds(self, job: JobHistory, number: int, lost: set[int], where: str) -> None:
        """Check that no more is left out than fills no round."""
        pipeline, ranks = self._cluster.pipelines[job.spec.structure], job.spec.num_consumers or 1
        lost = lost - self.rounds.elements(job.spec.name, self._seeds[job.spec.name], number)
        most = ranks if pipeline.mixes else ranks * pipeline.batch_size
        if len(lost) >= most and not (job.epochs[number].interrupted or job.never):
            raise Violation(f"elements {sorted(lost)} of {where} were left out, though they fill a round")

    def _complete_resumed(self, job: JobHistory, number: int, where: str) -> None:
        """Check that of what was left all came that could be divided."""
        history, pipeline = job.epochs[number], self._cluster.pipelines[job.spec.structure]
        everything = {
            each for index in range(pipeline.plan.length or 0) for each in pipeline.born_in(pipeline.plan.task(index))
        }
        left = everything - history.yielded.keys() - job.skipped
        excused = history.interrupted or job.skipped or job.never
        if job.spec.coordinated:
            self._complete_rounds(job, number, set() if excused else left, where)
        elif not excused and len(left) >= (job.spec.num_consumers or 1):
            raise Violation(f"elements {sorted(left)} of {where} were left out, though they could be divided")

    @staticmethod
    def _excused(job: JobHistory, history: EpochHistory, plan: Any, index: int, *, loose: bool) -> bool:
        """Return whether a task, or a tail above it, was dropped or never dealt as somebody stopped reading."""
        while index >= 0:
            if index in history.dropped and (history.interrupted or loose):
                return True
            if history.dealt.get(index) in job.never:
                return True
            in_turn = job.spec.deterministic or job.spec.equal_steps
            turn = index % (job.spec.num_consumers or 1) if in_turn else -1
            if index not in history.dealt and (history.interrupted or turn in job.never or turn in job.gone):
                return True
            index = plan.task(index).parent
        return False

    # -- the dispatcher's state ----------------------------------------------------------------------------------------

    def _note_advance(self, events: Sequence[Event]) -> None:
        if any(isinstance(event, TaskDone) for event in events):
            self._cluster.advanced_at = self._cluster.network.now

    def decided(self, dispatcher: SimulatedDispatcher, item: inp.Input, events: Sequence[Event]) -> None:
        """Check a state that has just been brought up to date."""
        state = dispatcher.state
        self._note_advance(events)
        self.caches.decided(dispatcher, events)
        self._cluster.sources.invariants.decided(dispatcher, events)
        self.pool.decided(dispatcher, events)
        for event in events:
            self.kinds[type(event).__name__] += 1
            self.members.decided(event)
            self.round_windows.decided(event)
            self.windows.enters(state, event)
            if isinstance(event, ConsumerJoined):
                self._came(event)
                check_jobs(state, event.job)
            elif isinstance(event, JobRemoved) and ANEW in event.reason:
                self._given_up.update(client for (name, _), client in self._clients.items() if name == event.job)
            elif isinstance(event, ConsumerLeft) and (event.job, event.consumer) not in self._clients:
                continue  # it never came
            elif isinstance(event, ConsumerLeft) and event.reason != "left":
                client = self._clients[event.job, event.consumer]
                self._given_up.add(client)
                if any(why in event.reason for why in ("came under its name", HELD_UP, WITH_RANK)):
                    continue
                settings, broken = self._cluster.settings, self._broke(dispatcher, event.job)
                self.words.given_up(client, settings.anonymous_grace_s if broken else settings.job_gc_timeout_s)
            elif (
                isinstance(event, WorkerLost)
                and "leaving" not in event.reason
                and self._cluster.workers[f"{event.worker}:1"].alive
            ):
                self.words.given_up(event.worker, self._cluster.settings.heartbeat_s)
            elif isinstance(event, WorkerAssigned) and not state.workers[event.worker].pinned_job:
                check_quota(state, event.job)  # local workers are their job's own
        if isinstance(item, inp.JoinRequested):
            self._there[item.message.client] = item.message.spec.name in state.jobs
        if isinstance(item, inp.Tick):
            check_leases(state)
            self.caches.ticked(dispatcher)
            self._cluster.sources.invariants.ticked(dispatcher)
            self.pool.ticked(dispatcher)
            check_bounds(state, dispatcher)
            self.windows.ticked(state)
            self._waiting.check(dispatcher.observed.division, self._cluster.network.now)
            for worker in self._cluster.workers.values():
                self._check_held(dispatcher, worker)

    def _came(self, event: ConsumerJoined) -> None:
        before = self._clients.get((event.job, event.consumer), event.client)
        self._clients[event.job, event.consumer] = event.client
        self.words.let_in(event.client)
        # Who was given up before it heard that it was in asks once more, and reads the next job of that name.
        self._given_up.discard(event.client)
        if before != event.client:
            self._given_up.add(before)  # another process has its place

    def _broke(self, dispatcher: SimulatedDispatcher, name: str) -> bool:
        """Return whether the job has failed, durably or not: its places are kept for less long."""
        undurable = (isinstance(each, JobBroke) and each.job == name for each in dispatcher.undurable())
        history = self._histories.get((name, self._seeds.get(name, -1)))  # None: that it began isn't durable either
        return (history is not None and history.broken) or any(undurable)

    def _check_held(self, dispatcher: SimulatedDispatcher, worker: SimulatedWorker) -> None:
        """Check that a worker which was told everything holds what the state knows of, and nothing else."""
        if not worker.alive or not self._settled(dispatcher, worker):
            return
        state, stopping = dispatcher.state, worker.core.stopping()
        held = {entry.lease: entry for entry in worker.core.held()}
        for lease, kept in held.items():
            if lease not in stopping and not in_force(state, worker.name, kept.ref, lease):
                raise Violation(f"{worker.name} holds {kept.ref} under lease {lease}, and nobody will tell it")
        known = state.workers.get(worker.name)
        if known is None or known.lost_at is not None:
            return
        for lease, (name, number, task) in [*known.unfinished.items(), *known.kept.items()]:
            live = state.jobs[name].epochs[number].live[task]
            entry = held.get(lease)
            keeps = live.phase.leftovers and not live.freed
            if entry is None if lease in known.unfinished else keeps and not (entry and entry.leftovers):
                where = f"task {task} of epoch {number} of job {name}, lease {lease}"
                raise Violation(f"{worker.name} has {where}, and does not know, or what it left is gone")

    def served(self, worker: SimulatedWorker, ref: msg.TaskRef, lease: int) -> None:
        """Check that a worker may send outputs of a task, perhaps before it has stopped as it was told to."""
        dispatcher = self._cluster.dispatcher
        if dispatcher is None or in_force(dispatcher.state, worker.name, ref, lease):
            return
        if self._settled(dispatcher, worker) and lease not in worker.core.stopping():
            raise Violation(f"{worker.name} serves {ref} under lease {lease}, which is not in force")

    def _settled(self, dispatcher: SimulatedDispatcher, worker: SimulatedWorker) -> bool:
        """Nothing is under way between the dispatcher and the worker, nor about to be."""
        session = worker.session
        return (
            session is not None
            and session.live
            and session.ends[1] is dispatcher
            and session.open_at(dispatcher)
            and not any(session.under_way)
            and not dispatcher.owes(worker.name)
        )
