"""Bugs to be planted: what the simulation must find, to be believed when it finds nothing.

Each replaces one thing of the mind, or of what stands around it, for as long as a context lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.client.consumer_progress import EpochProgress
from millrace.client.credit import CreditPool
from millrace.client.epoch_buffer import EpochInbox
from millrace.control.actions import StopWorkers
from millrace.control.caching import cache_capacity, cache_mode
from millrace.control.journal import snapshot
from millrace.control.journal.cache_events import BlocksGivenUp
from millrace.control.journal.consumer_events import Progressed
from millrace.control.journal.epoch_events import EpochClosed
from millrace.control.journal.event import REDUCERS, Changes, Reducer
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
from millrace.planning.remainder import left_of
from millrace.policies.scaling import capacity
from millrace.protocol import messages as msg
from millrace.simulation import faults, simulated_dispatcher
from millrace.simulation.store import Store, UnreadableError
from millrace.simulation.worker_mutants import WORKER_PLANTS


def _double_lease() -> AbstractContextManager[Any]:
    """A lease is taken back, and its worker is not told."""
    return mock.patch.object(leases, "tell_void", return_value=None)


@contextmanager
def _hung_for_ever() -> Iterator[None]:
    """A worker whose session broke is forgotten, and its process is left as it is."""

    def spare(workers: list[str], reason: str) -> StopWorkers:
        return StopWorkers([] if "come back" in reason else workers, reason)

    often = (*faults.KINDS, *["worker hung, its session broken"] * 6)
    with mock.patch.object(workers, "StopWorkers", spare), mock.patch.object(faults, "KINDS", often):
        yield


def _lost_ack() -> AbstractContextManager[Any]:
    """A consumer that comes back does not say again what it has."""
    report = ConsumerCore._report  # noqa: SLF001

    def forgetful(self: ConsumerCore, now: float, *, everything: bool = False) -> None:
        if not everything:
            report(self, now)

    return mock.patch.object(ConsumerCore, "_report", forgetful)


def _replay_skips() -> AbstractContextManager[Any]:
    """Progress is journalled and not replayed."""
    rebuild = recovery.rebuild

    def skipping(fresh: Callable[[], State], past: Any) -> tuple[State, str]:
        past.events = [[event for event in group if not isinstance(event, Progressed)] for group in past.events]
        return rebuild(fresh, past)

    return mock.patch.object(simulated_dispatcher, "rebuild", skipping)


def _snapshot_skips() -> AbstractContextManager[Any]:
    """A snapshot forgets the number of the next lease."""
    dump = snapshot.dump

    def forgetful(state: State) -> bytes:
        kept, state.next_lease = state.next_lease, 1
        try:
            return dump(state)
        finally:
            state.next_lease = kept

    return mock.patch.object(simulated_dispatcher, "dump", forgetful)


def _early_collection() -> AbstractContextManager[Any]:
    """An epoch is closed once the first consumer has left it behind, not the last."""

    def hasty(tx: Any, job: Job) -> None:
        newest = max((consumer.epoch for consumer in job.consumers.values()), default=0)
        for number in [number for number in job.epochs if number < newest]:
            tx.emit(EpochClosed(job.name, number))

    return mock.patch.object(jobs, "close_epochs", hasty)


def _reply_before_durability() -> AbstractContextManager[Any]:
    """What follows from events is done while they are being written."""
    real = simulated_dispatcher.Dispatcher._commit  # noqa: SLF001

    def hasty(self: simulated_dispatcher.Dispatcher) -> None:
        real(self)
        self._perform_all()

    return mock.patch.object(simulated_dispatcher.Dispatcher, "_commit", hasty)


def _stale_delivery() -> AbstractContextManager[Any]:
    """A consumer takes what comes, whether it has it or not."""
    accept = EpochInbox.accept

    def trusting(self: EpochInbox, task: int, index: int, *args: Any, **options: Any) -> bool:
        inbox = self._tasks.get(task)
        if inbox is not None and index < inbox.held:
            inbox.held = index
        return accept(self, task, index, *args, **options)

    return mock.patch.object(EpochInbox, "accept", trusting)


def _hasty_tail() -> AbstractContextManager[Any]:
    """A tail runs before all that leaves it something has finished."""
    return mock.patch.object(task_queue, "_ready", return_value=True)


def _orphan() -> AbstractContextManager[Any]:
    """The tasks of a lost worker are released, and not leased again."""

    def careless(state: State, event: TaskReleased) -> None:
        epoch = state.jobs[event.job].epochs[event.epoch]
        live = epoch.live[event.task]
        worker = state.workers.get(live.worker)
        if worker is not None:
            worker.unfinished.pop(live.lease, None)
            worker.kept.pop(live.lease, None)
        live.phase = Waiting(live.lease)

    return mock.patch.dict(REDUCERS, {TaskReleased: Reducer(careless, Changes.TASKS)})


def _late_tail() -> AbstractContextManager[Any]:
    """In a fixed order, a consumer hears of tasks as they are leased, and goes on before a tail in between is."""
    return mock.patch.object(epochs, "first_missing", return_value=None)


def _dropped_promise() -> AbstractContextManager[Any]:
    """What a lease may have added is forgotten with it, whether or not anybody has said what that was."""
    return mock.patch.object(Caches, "lease_ended", lambda self, lease: self.promises.pop(lease, None))


def _endless_promise() -> AbstractContextManager[Any]:
    """What a lease was promised stays promised when it is over."""
    return mock.patch.object(Caches, "lease_ended", return_value=None)


def _too_much_promised() -> AbstractContextManager[Any]:
    """Blocks count, and promises do not."""

    def hopeful(caches: Caches) -> int:
        return sum(cached.bytes for cached in caches.points.values())

    return mock.patch.object(Caches, "taken", property(hopeful))


def _hasty_deletion() -> AbstractContextManager[Any]:
    """Blocks are deleted as soon as they are given up, whoever may still read them."""

    def hasty(state: State, event: BlocksGivenUp) -> None:
        state.caches.points[event.place].evicting.update({name: [] for name in event.names})

    return mock.patch.dict(REDUCERS, {BlocksGivenUp: Reducer(hasty, Changes.JOBS)})


def _untold_deletion() -> AbstractContextManager[Any]:
    """Workers hear of new blocks, and not of those that are given up."""
    announce = cache_capacity._announce  # noqa: SLF001

    def silent(tx: Transaction, name: str, names: Iterable[str] = (), gone: Iterable[str] = ()) -> None:
        if not gone:
            announce(tx, name, names)

    return mock.patch.object(cache_capacity, "_announce", silent)


def _no_trust() -> AbstractContextManager[Any]:
    """A job reads what any tenant has kept of its point."""

    def everybody(state: State, job: Job, point: CachePoint) -> dict[str, str]:
        mine, kept = cache_mode.place(job, point), state.caches.points
        return {name: kept[name].writer for name in kept if name != mine and split_place(name)[0] == point.fingerprint}

    return mock.patch.object(cache_capacity, "others", everybody)


def _torn_block() -> AbstractContextManager[Any]:
    """A damaged block is read as if it were whole."""

    def trusting(self: Store, place: str, name: str, unit: int) -> tuple[int, str]:
        block = self.blocks.get((place, name))
        if block is None:
            raise UnreadableError
        return block.items[unit] + block.damaged, block.writer

    return mock.patch.object(Store, "read", trusting)


@contextmanager
def _untold_reuse() -> Iterator[None]:
    """A point is used also in epochs that began with random values of their own, as all do."""
    use_of = cache_capacity.use_of

    def hasty(tx: Transaction, job: Job, number: int) -> Any:
        epoch, point = job.epochs[number], cache_mode.active(job)
        before, epoch.reused = epoch.reused, -1 if point is None else point.node
        try:
            return use_of(tx, job, number)
        finally:
            epoch.reused = before

    with mock.patch.object(cache_mode, "reused_in", return_value=-1), mock.patch.object(leases, "use_of", hasty):
        yield


def _no_quota() -> AbstractContextManager[Any]:
    """A tenant gets what there is."""
    return mock.patch.object(allocation, "_full", return_value=False)


def _job_removed_before_all_seen() -> AbstractContextManager[Any]:
    """A job is over when the last of those that have come leaves, whoever was still to come."""
    return mock.patch.object(jobs, "waits_for_others", return_value=False)


def _never_given_up() -> AbstractContextManager[Any]:
    """Who waits for what a consumer leaves over that was never seen waits for ever."""
    return mock.patch.object(stalls, "watch", return_value=None)


def _endless_asking() -> AbstractContextManager[Any]:
    """Workers that a cluster has no room for are asked for all the same."""
    return mock.patch.object(capacity, "watch", lambda known, short, *_, **__: (known, short))


def _unequal_steps() -> AbstractContextManager[Any]:
    """Ranks that are to get equally many elements, how many only reading tells, use whatever comes."""
    return mock.patch.object(epochs, "held_back", return_value=False)


def _begun_again() -> AbstractContextManager[Any]:
    """What was read of tasks in part is forgotten where the rest of an epoch is divided anew."""
    return mock.patch.object(epochs, "left_of", lambda plan, done, _: left_of(plan, done, {}))


def _silent_loss() -> AbstractContextManager[Any]:
    """What a consumer leaves unread that goes is dropped, and nobody takes note."""
    return mock.patch.object(handover, "record", return_value=None)


def _untold_absence() -> AbstractContextManager[Any]:
    """Who ends an epoch is not told what of it somebody else has not read."""
    return mock.patch.object(epochs, "told", return_value="")


def _deaf_to_consumers() -> AbstractContextManager[Any]:
    """Of an older journal only workers say that it is."""
    return mock.patch.object(testimony, "of_consumer", return_value="")


def _stillborn() -> AbstractContextManager[Any]:
    """A process that hangs before it registers is left as it is."""
    return mock.patch.object(pool_size, "end_unregistered", return_value=None)


def _hasty_failure() -> AbstractContextManager[Any]:
    """A job fails as soon as one of its tasks does."""
    return mock.patch.object(task_failures, "_is_due", return_value=True)


def _half_a_pass() -> AbstractContextManager[Any]:
    """What is repeated without end is taken for empty once some task has given nothing."""
    return mock.patch.object(leases, "has_whole_pass", return_value=True)


def _hasty_receipt() -> AbstractContextManager[Any]:
    """A consumer says that it has all of a task when it has the first outputs."""
    holds = EpochInbox.holds
    return mock.patch.object(EpochInbox, "holds", lambda self, task: (holds(self, task)[0], True))


def _lost_credit() -> AbstractContextManager[Any]:
    """What a consumer has used or dropped takes room in its buffer for ever."""
    return mock.patch.object(CreditPool, "used", return_value={})


def _wrong_epoch() -> AbstractContextManager[Any]:
    """A consumer that comes back says what it read of the epoch before as if that were the one it reads."""
    let_in = ConsumerCore._let_in  # noqa: SLF001

    def confused(self: ConsumerCore, joined: msg.JobJoined, now: float) -> None:
        let_in(self, joined, now)
        if self.inbox is not None:
            self._tell(msg.ConsumerReport(self.inbox.number, self._left[1]))

    return mock.patch.object(ConsumerCore, "_let_in", confused)


def _forgotten_loss() -> AbstractContextManager[Any]:
    """A consumer whose connection to a worker broke waits for what was to come from it."""
    return mock.patch.object(ConsumerCore, "_disconnected", return_value=None)


def _overrun() -> AbstractContextManager[Any]:
    """A consumer uses what it has, how much others have or not."""
    hand_out = EpochProgress.hand_out
    return mock.patch.object(EpochProgress, "hand_out", lambda self, limit, *times: hand_out(self, None, *times))


def _impatient() -> AbstractContextManager[Any]:
    """A consumer gets the error before what had come before it."""
    ask = ConsumerCore._ask  # noqa: SLF001

    def impatient(self: ConsumerCore, item: io.MoreWanted, now: float) -> None:
        if self.failure is None:
            ask(self, item, now)
        else:
            self.actions.append(io.Refuse(self.failure))

    return mock.patch.object(ConsumerCore, "_ask", impatient)


def _closed_door() -> AbstractContextManager[Any]:
    """What is larger than a worker's share of a consumer's buffer is not let in, though its user waits for that."""
    return mock.patch.object(CreditPool, "force", return_value={})


def _mute_end() -> AbstractContextManager[Any]:
    """A consumer is told what nobody reads of an epoch, and its user is not."""

    def mute(self: ConsumerCore, ask: io.MoreWanted, reading: EpochProgress) -> None:
        reading.end(ask.since)
        self.actions.append(io.Over())

    return mock.patch.object(ConsumerCore, "_over", mute)


PLANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "double-lease": _double_lease,
    "lost-ack": _lost_ack,
    "replay-skips": _replay_skips,
    "snapshot-skips": _snapshot_skips,
    "early-collection": _early_collection,
    "reply-before-durability": _reply_before_durability,
    "stale-delivery": _stale_delivery,
    "hasty-tail": _hasty_tail,
    "orphan": _orphan,
    "late-tail": _late_tail,
    "dropped-promise": _dropped_promise,
    "endless-promise": _endless_promise,
    "too-much-promised": _too_much_promised,
    "hasty-deletion": _hasty_deletion,
    "untold-deletion": _untold_deletion,
    "no-trust": _no_trust,
    "torn-block": _torn_block,
    "untold-reuse": _untold_reuse,
    "no-quota": _no_quota,
    "job-removed-before-all-seen": _job_removed_before_all_seen,
    "never-given-up": _never_given_up,
    "hung-for-ever": _hung_for_ever,
    "endless-asking": _endless_asking,
    "unequal-steps": _unequal_steps,
    "begun-again": _begun_again,
    "silent-loss": _silent_loss,
    "untold-absence": _untold_absence,
    "deaf-to-consumers": _deaf_to_consumers,
    "stillborn": _stillborn,
    "hasty-failure": _hasty_failure,
    "half-a-pass": _half_a_pass,
    "hasty-receipt": _hasty_receipt,
    "lost-credit": _lost_credit,
    "wrong-epoch": _wrong_epoch,
    "forgotten-loss": _forgotten_loss,
    "overrun": _overrun,
    "impatient": _impatient,
    "closed-door": _closed_door,
    "mute-end": _mute_end,
    **WORKER_PLANTS,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While the body runs, this bug is there; none with an empty name."""
    if name:
        with PLANTS[name]():
            yield
    else:
        yield
