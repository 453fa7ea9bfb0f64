"""Bugs to be planted: what the simulation must find, to be believed when it finds nothing.

Each replaces something of the dispatcher's, a worker's or a consumer's decisions, or of what stands around them, for as
long as a context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.client.consumer_progress import EpochProgress
from millrace.client.credit import CreditPool
from millrace.client.epoch_buffer import EpochBuffer
from millrace.control.actions import StopWorkers
from millrace.control.caching import cache_capacity, cache_mode
from millrace.control.journal import snapshot
from millrace.control.journal.cache_events import BlocksGivenUp
from millrace.control.journal.consumer_events import Progressed
from millrace.control.journal.epoch_events import EpochClosed
from millrace.control.journal.task_events import TaskReleased
from millrace.control.journal.transaction import Transaction
from millrace.control.membership import handover, jobs, stalls, task_failures, testimony, workers
from millrace.control.scheduling import allocation, pool_size
from millrace.control.state.cache_state import Caches, split_place
from millrace.control.state.state import Job, State
from millrace.control.state.task_state import Waiting
from millrace.control.tasks import epochs, leases, task_queue
from millrace.dispatcher import recovery
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint, said
from millrace.planning.ranks_progress import RanksProgress
from millrace.planning.remainder import left_of
from millrace.policies.scaling import capacity
from millrace.protocol import messages as msg
from millrace.simulation import faults, simulated_dispatcher
from millrace.simulation.member_mutants import MEMBER_MUTANTS
from millrace.simulation.store import Store, UnreadableError
from millrace.worker.core.code_turns import CodeTurns
from millrace.worker.core.lane import Lane
from millrace.worker.core.outbox import SendCredit, TaskKey
from millrace.worker.core.run_control import RunControl
from millrace.worker.core.run_state import Blocked, Delivering, TaskRun, Working
from millrace.worker.core.worker_core import WorkerCore


class Mutant(NamedTuple):
    """A bug: what is wrong, and (owner, attribute or key, what it is replaced by) of each thing that makes it so."""

    says: str
    changes: tuple[tuple[Any, Any, Any], ...]


MUTANTS: dict[str, Mutant] = {name: Mutant(*each) for name, each in MEMBER_MUTANTS.items()}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug while the body runs; none with an empty name."""
    before = []
    try:
        for owner, key, value in MUTANTS[name].changes if name else ():
            before.append((owner, key, owner[key] if isinstance(owner, dict) else vars(owner)[key]))
            _put(owner, key, value)
        yield
    finally:
        for change in reversed(before):
            _put(*change)


def _put(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner[key] = value
    else:
        setattr(owner, key, value)


def _is(name: str, says: str, owner: Any, key: Any, value: Any, *more: tuple[Any, Any, Any]) -> None:
    MUTANTS[name] = Mutant(says, ((owner, key, value), *more))


def _replaces(name: str, says: str, owner: Any, key: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make the decorated function a bug in the place of another one."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _is(name, says, owner, key, function)
        return function

    return add


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


# -- the dispatcher ----------------------------------------------------------------------------------------------------

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
    jobs,
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


# -- a consumer's core -------------------------------------------------------------------------------------------------

_accept, _holds, _hand_out = EpochBuffer.accept, EpochBuffer.holds, EpochProgress.hand_out
_report, _let_in, _ask = ConsumerCore._report, ConsumerCore._let_in, ConsumerCore._ask  # noqa: SLF001

_is(
    "hasty-receipt",
    "A consumer says that it has all of a task when it has the first outputs.",
    EpochBuffer,
    "holds",
    lambda self, task: (_holds(self, task)[0], True),
)
_is(
    "lost-credit",
    "What a consumer has used takes room in its buffer for ever, and nothing is let in beyond that.",
    CreditPool,
    "used",
    _always({}),
    (CreditPool, "force", _always({})),
)
_is(
    "forgotten-loss",
    "A consumer whose connection to a worker broke waits for what was to come from it.",
    ConsumerCore,
    "_disconnected",
    _always(None),
)
_is(
    "overrun",
    "A consumer uses what it has, how much others have or not.",
    EpochProgress,
    "hand_out",
    lambda self, limit, *times: _hand_out(self, None, *times),
)
_is(
    "closed-door",
    "What is larger than a worker's share of a consumer's buffer is not let in, though its user waits for that.",
    CreditPool,
    "force",
    _always({}),
)


@_replaces("lost-ack", "A consumer that comes back does not say again what it has.", ConsumerCore, "_report")
def _forgetful_report(self: ConsumerCore, now: float, *, everything: bool = False) -> None:
    if not everything:
        _report(self, now)


@_replaces("stale-delivery", "A consumer takes what comes, whether it has it or not.", EpochBuffer, "accept")
def _trusting(self: EpochBuffer, task: int, index: int, *args: Any, **options: Any) -> bool:
    inbox = self._tasks.get(task)
    if inbox is not None and index < inbox.held:
        inbox.held = index
    return _accept(self, task, index, *args, **options)


@_replaces(
    "wrong-epoch",
    "A consumer that comes back says what it read of the epoch before as if that were the one it reads.",
    ConsumerCore,
    "_let_in",
)
def _confused(self: ConsumerCore, joined: msg.JobJoined, now: float) -> None:
    _let_in(self, joined, now)
    if self.inbox is not None:
        self._tell(msg.ConsumerReport(self.inbox.number, self._left[1]))


@_replaces("impatient", "A consumer gets the error before what had come before it.", ConsumerCore, "_ask")
def _impatient(self: ConsumerCore, item: io.MoreWanted, now: float) -> None:
    if self.failure is None:
        _ask(self, item, now)
    else:
        self.actions.append(io.Refuse(self.failure))


@_replaces("mute-end", "A consumer is told what nobody reads of an epoch, and its user is not.", ConsumerCore, "_over")
def _mute(self: ConsumerCore, ask: io.MoreWanted, reading: EpochProgress) -> None:
    reading.end(ask.since)
    self.actions.append(io.Over())


# -- a worker's core ---------------------------------------------------------------------------------------------------

_revoke, _unblock, _spare = Lane.revoke, RunControl._unblock, WorkerCore._spare  # noqa: SLF001

_is("old-credit", "What a worker may send on one connection is sent on the next.", SendCredit, "void", _always(None))
_is("kept-though-stale", "What somebody else runs by now is kept where it was.", Lane, "drop", _always(None))
_is(
    "deaf-outbox",
    "A run that waits for room is not looked at when the consumer has received something.",
    RunControl,
    "_unblock",
    _always(None),
)


@_replaces(
    "lost-beginning",
    "What a task gave before it failed is dropped, if it has not gone out by then.",
    RunControl,
    "_deliver",
)
def _hasty_end(self: RunControl, lane: Lane, run: TaskRun, delivering: Delivering, now: float) -> None:
    self._conclude(lane, run, delivering.outcome, now)


@_replaces("running-on", "A lease that runs is given back at once, and runs on.", Lane, "revoke")
def _hasty_revoke(self: Lane, key: TaskKey, lease: int) -> bool:
    running = self.run is not None and self.run.lease.lease == lease
    return True if running else _revoke(self, key, lease)


@_replaces("resumed-twice", "A run that has waited for room goes on, and once more.", RunControl, "_unblock")
def _eager(self: RunControl, lane: Lane, run: TaskRun, blocked: Blocked, now: float) -> None:
    _unblock(self, lane, run, blocked, now)
    if isinstance(run.state, Working):
        self._go_on(lane, run)


@_replaces(
    "spared-leftovers",
    "Whoever has all outputs of a task is taken to need nothing of it any more.",
    WorkerCore,
    "_spare",
)
def _thorough(self: WorkerCore, message: msg.OutputsReceived) -> None:
    _spare(self, message)
    self.leftovers.drop(lambda ref, _: ref in message.refs)


_is(
    "spared-for-all",
    "What one rank lacks no more is taken to be lacked by none.",
    WorkerCore,
    "_spare",
    lambda self, message: _spare(self, msg.OutputsReceived(message.refs)),
)


@_replaces(
    "silent-drain",
    "A worker that leaves drops the leases that it has not begun, and nobody hears of it.",
    Lane,
    "unstarted",
)
def _silent_drain(self: Lane) -> list[Any]:
    self.pending.clear()
    return []


@_replaces(
    "jobs-beside-one-another", "The code of one job runs while another one's modules are in force.", CodeTurns, "want"
)
def _beside(self: CodeTurns, who: Any, name: str) -> bool:
    self.name = name
    self.inside.add(who)
    return True
