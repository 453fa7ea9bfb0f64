"""Bugs of the dispatcher and its store, to be planted like :mod:`millrace.simulation.mutants`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from millrace.control.actions import StopWorkers
from millrace.control.caching import cache_capacity, cache_mode
from millrace.control.journal import snapshot
from millrace.control.journal.cache_events import BlocksGivenUp
from millrace.control.journal.consumer_events import Progressed
from millrace.control.journal.epoch_events import EpochClosed, EpochReweighted
from millrace.control.journal.task_events import TaskReleased
from millrace.control.journal.transaction import Transaction
from millrace.control.membership import handover, jobs, late_joins, stalls, task_failures, testimony, workers
from millrace.control.scheduling import allocation, pool_size
from millrace.control.state.cache_state import Caches, split_place
from millrace.control.state.state import Job, State
from millrace.control.state.task_state import Waiting
from millrace.control.tasks import epochs, leases, reweighting, task_queue
from millrace.dispatcher import recovery
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint, said
from millrace.planning.ranks_progress import RanksProgress
from millrace.planning.remainder import left_of
from millrace.policies.scaling import capacity
from millrace.protocol import messages as msg
from millrace.simulation import faults, simulated_dispatcher
from millrace.simulation.planting import MutantList, always
from millrace.simulation.store import Store, UnreadableError

DISPATCHER_MUTANTS = MutantList()
_is, _replaces, _always = DISPATCHER_MUTANTS.add, DISPATCHER_MUTANTS.replaces, always

_is("double-lease", "A lease is taken back, and its worker is not told.", leases, "tell_void", _always(None))
_is(
    "hasty-tail", "A tail runs before all that leaves it something has finished.", task_queue, "is_ready", _always(True)
)
_is(
    "late-tail",
    "In a fixed order, a consumer hears of tasks as they are leased, and goes on before a tail in between is.",
    epochs,
    "first_missing",
    _always(None),
)
_is("endless-promise", "A lease's promise outlives it.", Caches, "lease_ended", _always(None))
_is(
    "dropped-promise",
    "What a lease may have added is forgotten with it, whether or not anybody has said what that was.",
    Caches,
    "lease_ended",
    lambda self, lease: self.reservations.pop(lease, None),
)
_is(
    "too-much-promised",
    "Blocks count, and promises do not.",
    Caches,
    "taken",
    property(lambda caches: sum(cached.bytes for cached in caches.points.values())),
)
_is("no-quota", "A tenant gets what there is.", allocation, "_full", _always(False))
_is(
    "job-removed-before-all-seen",
    "A job is over when the last of those that have come leaves, whoever was still to come.",
    late_joins,
    "waits_for_others",
    _always(False),
)
_is(
    "never-given-up",
    "Who waits for what a consumer leaves over that was never seen waits for ever.",
    stalls,
    "watch",
    _always(None),
)


@_replaces(
    "full-of-unread",
    "Who is to take in more, as others wait for a task of its, is told so only once a worker has that.",
    stalls,
    "_to_take_in",
)
def _only_at_workers(_: Transaction, job: Job, number: int, __: int, task: int) -> int | None:
    live = job.epochs[number].live.get(task)
    return task if live is not None and live.worker else None


_is(
    "hung-for-ever",
    "A worker whose session broke is forgotten, and its process is left as it is.",
    workers,
    "StopWorkers",
    lambda names, reason: StopWorkers([] if "come back" in reason else names, reason),
    (faults, "KINDS", (*faults.KINDS, *["worker hung, its session broken"] * 6)),
)
_is(
    "endless-asking",
    "Workers that a cluster has no room for are asked for all the same.",
    capacity,
    "watch",
    lambda known, short, *_, **__: (known, short),
)
_is(
    "unequal-steps",
    "RankArrivals that are to get equally many elements, how many only reading tells, use whatever comes.",
    epochs,
    "held_back",
    _always(False),
)
_is(
    "begun-again",
    "What was read of tasks in part is forgotten where the rest of an epoch is divided anew.",
    epochs,
    "left_of",
    lambda plan, done, _: left_of(plan, done, {}),
)
_is(
    "silent-loss",
    "What a consumer leaves unread that goes is dropped, and nobody takes note.",
    handover,
    "record",
    _always(None),
)
_is("untold-absence", "Who ends an epoch is not told what nobody has read of it.", epochs, "told", _always(""))
_is("deaf-to-consumers", "Of an older journal only workers say that it is.", testimony, "of_consumer", _always(""))
_is("stillborn", "A process that hangs before it registers goes on.", pool_size, "end_unregistered", _always(None))
_is("hasty-failure", "A job fails as soon as one of its tasks does.", task_failures, "_is_due", _always(True))
_is(
    "half-a-pass",
    "What is repeated without end is taken for empty once some task has given nothing.",
    leases,
    "has_whole_pass",
    _always(True),
)


_is(
    "untold-weights",
    "Who has set weights is told so, and others that read the epoch are not.",
    reweighting,
    "_tell_others",
    _always(None),
)
_is(
    "hasty-weights",
    "Weights hold from the first task on that is not over, whether it was leased or not.",
    reweighting,
    "first_never_leased",
    lambda job, epoch: min((task for task, live in epoch.live.items() if not live.finished), default=0),
)


@_replaces(
    "forgotten-weights",
    "Weights that were set are journalled and told, and the next dispatcher does not know them.",
    simulated_dispatcher,
    "rebuild",
)
def _rebuilt_without_weights(fresh: Callable[[], State], past: Any) -> tuple[State, str]:
    past.events = [[event for event in group if not isinstance(event, EpochReweighted)] for group in past.events]
    return recovery.rebuild(fresh, past)


def _discard_for_all(tx: Transaction, job: Job, number: int, task: int) -> None:
    live = job.epochs[number].live.get(task)
    if live is not None and live.worker and live.complete:
        tx.to_worker(live.worker, msg.OutputsReceived([msg.TaskRef(job.name, number, task)]))


_is(
    "awaited-though-gone",
    "Workers keep rounds for a rank that has left, or reads on.",
    leases,
    "discard_outputs",
    _discard_for_all,
    (jobs, "discard_outputs", _discard_for_all),
    (workers, "discard_outputs", _discard_for_all),
)


@_replaces("resumed-as-one", "All ranks go on where the one had come to that had read most.", epochs, "ranks_progress")
def _furthest(states: Sequence[Checkpoint], number: int, _: int | None) -> RanksProgress:
    most = said([*states], number)
    return RanksProgress(most.tasks_done(), most.begun, {})


@_replaces("replay-skips", "Progress is journalled and not replayed.", simulated_dispatcher, "rebuild")
def _skipping(fresh: Callable[[], State], past: Any) -> tuple[State, str]:
    past.events = [[event for event in group if not isinstance(event, Progressed)] for group in past.events]
    return recovery.rebuild(fresh, past)


@_replaces("snapshot-skips", "A snapshot forgets the number of the next lease.", simulated_dispatcher, "dump")
def _forgetful_dump(state: State) -> bytes:
    kept, state.next_lease = state.next_lease, 1
    try:
        return snapshot.dump(state)
    finally:
        state.next_lease = kept


@_replaces(
    "early-collection",
    "An epoch is closed once the first consumer has left it behind, not the last.",
    jobs,
    "close_epochs",
)
def _hasty_close(tx: Transaction, job: Job) -> None:
    newest = max((consumer.epoch for consumer in job.consumers.values()), default=0)
    for number in [number for number in job.epochs if number < newest]:
        tx.emit(EpochClosed(job.name, number))


_commit = simulated_dispatcher.SimulatedDispatcher._commit  # noqa: SLF001


@_replaces(
    "reply-before-durability",
    "What follows from events is done while they are being written.",
    simulated_dispatcher.SimulatedDispatcher,
    "_commit",
)
def _hasty_commit(self: simulated_dispatcher.SimulatedDispatcher) -> None:
    _commit(self)
    self._perform_all()


def _careless(event: TaskReleased, state: State) -> None:
    live = state.jobs[event.job].epochs[event.epoch].live[event.task]
    worker = state.workers.get(live.worker)
    if worker is not None:
        worker.unfinished.pop(live.lease, None)
        worker.kept.pop(live.lease, None)
    live.phase = Waiting(live.lease)


_is(
    "orphan",
    "The tasks of a lost worker are released, and not leased again.",
    TaskReleased,
    "apply",
    _careless,
)


def _delete_at_once(event: BlocksGivenUp, state: State) -> None:
    state.caches.points[event.place].evicting.update({name: [] for name in event.names})


_is(
    "hasty-deletion",
    "Blocks are deleted as soon as they are given up, whoever may still read them.",
    BlocksGivenUp,
    "apply",
    _delete_at_once,
)

_announce = cache_capacity._announce  # noqa: SLF001


@_replaces(
    "untold-deletion", "Workers hear of new blocks, and not of those that are given up.", cache_capacity, "_announce"
)
def _silent(tx: Transaction, name: str, names: Iterable[str] = (), gone: Iterable[str] = ()) -> None:
    if not gone:
        _announce(tx, name, names)


@_replaces("no-trust", "A job reads what any tenant has kept of its point.", cache_capacity, "others")
def _everybody(state: State, job: Job, point: CachePoint) -> dict[str, str]:
    mine, kept = cache_mode.place(job, point), state.caches.points
    return {name: kept[name].writer for name in kept if name != mine and split_place(name)[0] == point.fingerprint}


def _hasty_use(tx: Transaction, job: Job, number: int) -> Any:
    epoch, point = job.epochs[number], cache_mode.active(job)
    before, epoch.reused = epoch.reused, -1 if point is None else point.node
    try:
        return cache_capacity.use_of(tx, job, number)
    finally:
        epoch.reused = before


_is(
    "untold-reuse",
    "A point is used also in epochs that began with random values of their own, as all do.",
    cache_mode,
    "reused_in",
    _always(-1),
    (leases, "use_of", _hasty_use),
)


@_replaces("torn-block", "A damaged block is read as if it were whole.", Store, "read")
def _trusting_read(self: Store, place: str, name: str, unit: int) -> tuple[int, str]:
    block = self.blocks.get((place, name))
    if block is None:
        raise UnreadableError
    return block.items[unit] + block.damaged, block.writer
