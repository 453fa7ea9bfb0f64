"""Events of epochs."""

from __future__ import annotations

from typing import ClassVar

from millrace.control.journal.event import Changes, EpochEvent, Event
from millrace.control.state.state import Epoch, State
from millrace.control.state.task_state import ReaderProgress, TaskState
from millrace.planning.epoch_shape import EpochShape, WeightChange
from millrace.planning.progress import TaskSet
from millrace.planning.weight_changes import carried, with_change


class EpochOpened(Event, EpochShape, frozen=True, tag="EpochOpened"):
    """Tasks of an epoch of this shape may be leased.

    Attributes:
        tasks: number of those of a plan of its own; -1: it has the job's.
        why: it is read in chunks, or as a whole though the source cache does not hold it.
    """

    job: str
    epoch: int
    tasks: int = -1
    why: str = ""

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch] = Epoch.shaped(self)
        epoch.tasks, epoch.why, epoch.ahead = self.tasks, self.why, self.epoch > job.newest


class EpochResumed(Event, EpochShape, frozen=True, tag="EpochResumed"):
    """Tasks of an epoch of this shape may be leased, those aside that were read before the states were taken.

    Attributes:
        done: all tasks below were read to their end; ``later``: and those of this ``TaskSet.text()``.
        begun: (task, outputs that were read) of others.
        again: those done that run once more, unread by anybody, as their leftovers are still needed.
        freed: those not done whose leftovers have become outputs that were read.
        alone: those that give what they would leave over themselves, done or not.
        anew: a plan of its own, which divides ``pieces`` into ``tasks``, holds from now on, and not since before.
        own: by reader, (task, outputs that it had read; -1: all) where that is not what all of them had.
    """

    job: str
    epoch: int
    done: int = 0
    later: str = ""
    begun: list[tuple[int, int]] = []
    again: list[int] = []
    freed: list[int] = []
    alone: list[int] = []
    anew: bool = False
    tasks: int = -1
    own: dict[int, list[tuple[int, int]]] = {}

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        done = TaskSet.parse(self.done, self.later)
        epoch = job.epochs[self.epoch] = Epoch.shaped(self)
        job.reweighted = carried(self.reweighted)
        epoch.low, epoch.later, epoch.done = done.low, done.bitmap(), len(done) - len(self.again)
        epoch.starts = dict(self.begun)
        epoch.freed = set(self.freed)
        epoch.alone = set(self.alone)
        epoch.anew, epoch.tasks = self.anew, self.tasks
        epoch.own = {reader: dict(tasks) for reader, tasks in self.own.items()}
        if job.spec.deterministic or job.spec.equal_steps:
            epoch.dealt = dict(enumerate(done.counts(job.stride)))
        else:
            epoch.dealt[-1] = len(done)
        heir = min(job.slots_of([min(job.consumers, default=0)]))
        for task in self.again:
            epoch.live[task] = TaskState(heir, {reader: ReaderProgress(complete=True) for reader in job.audience(heir)})
            epoch.pending.setdefault(heir, set()).add(task)


class EpochReweighted(EpochEvent, frozen=True, tag="EpochReweighted"):
    """Weights of a mixture were set: they hold from an element on that no task before ``task`` has, and none behind it.

    Attributes:
        node: number of the mixture's node, and ``weights``: one for each of its inputs.
        element: number of the mixture's element in the epoch from which on they hold.
        task: the first that was never leased.
        client: who asked, and ``asked``: the number of its question; "": it was asked of an epoch before.
        replaced: number of changes from the same element on that count no more.
    """

    node: int
    element: int
    weights: tuple[float, ...]
    task: int = 0
    client: str = ""
    asked: int = -1
    replaced: int = 0

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch, change = job.epochs[self.epoch], WeightChange(self.node, self.element, self.weights, self.replaced)
        epoch.reweighted = with_change(epoch.reweighted, change)
        job.reweighted = carried((change,))
        if self.client:
            epoch.asked[self.client] = self.asked, self.element


class OwnersAsked(EpochEvent, frozen=True, tag="OwnersAsked"):
    """``worker`` asks the user's function which of ``workers`` runs what ("": nobody does)."""

    worker: str
    workers: list[str] = []

    def apply(self, state: State) -> None:
        epoch = state.jobs[self.job].epochs[self.epoch]
        epoch.chooser = self.worker
        epoch.candidates = self.workers


class OwnersFixed(EpochEvent, frozen=True, tag="OwnersFixed"):
    """Task i belongs to ``workers[choice[i]]``, or without a choice to ``workers[i % len(workers)]``.

    With ``contiguous``, the number of all tasks, it belongs to ``workers[i * len(workers) // contiguous]``.
    """

    workers: list[str]
    choice: list[int] | None = None
    contiguous: int = 0

    def apply(self, state: State) -> None:
        epoch = state.jobs[self.job].epochs[self.epoch]
        epoch.owners = list(self.workers)
        epoch.owned = {}
        for share, owner in enumerate(self.workers):
            epoch.owned.setdefault(owner, []).append(share)
        epoch.choice = self.choice
        epoch.contiguous = self.contiguous
        epoch.chooser = ""
        epoch.candidates = []


class OwnerReplaced(EpochEvent, frozen=True, tag="OwnerReplaced"):
    """Share number ``share`` of the epoch has another owner."""

    share: int
    worker: str

    def apply(self, state: State) -> None:
        epoch = state.jobs[self.job].epochs[self.epoch]
        former = epoch.owned[epoch.owners[self.share]]
        former.remove(self.share)
        if not former:
            del epoch.owned[epoch.owners[self.share]]
        epoch.owners[self.share] = self.worker
        epoch.owned.setdefault(self.worker, []).append(self.share)


class EpochHeld(EpochEvent, frozen=True, tag="EpochHeld"):
    """A task of it failed as it was prepared; no more of it is leased until a consumer begins it."""

    def apply(self, state: State) -> None:
        state.jobs[self.job].epochs[self.epoch].held = True


class SamplersDrawn(EpochEvent, frozen=True, tag="SamplersDrawn"):
    """A worker said what users' own samplers have drawn for the epoch: by sampler, what nobody had said before."""

    drawn: dict[str, str]

    def apply(self, state: State) -> None:
        state.jobs[self.job].epochs[self.epoch].drawn.update(self.drawn)


class EpochSettled(EpochEvent, frozen=True, tag="EpochSettled"):
    """All of its tasks have a slot, but for those of readers that have left; or no longer (``undone``): one is back."""

    changes: ClassVar = Changes.TASKS

    undone: bool = False

    def apply(self, state: State) -> None:
        state.jobs[self.job].epochs[self.epoch].settled = not self.undone


class StepsEnded(EpochEvent, frozen=True, tag="StepsEnded"):
    """One of the ranks that get equally many elements of the epoch has no more than ``steps``: all end there."""

    steps: int

    def apply(self, state: State) -> None:
        state.jobs[self.job].epochs[self.epoch].steps = self.steps


class EpochCut(EpochEvent, frozen=True, tag="EpochCut"):
    """A whole pass of what is repeated without end gave nothing: the epoch has no more than its first ``tasks``."""

    tasks: int

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch]
        epoch.tasks = self.tasks
        epoch.nothing = None
        # Where there is no end nobody counts what readers have; from now on they have to have what is listed here.
        found: dict[int, list[int]] = {}
        for slot in epoch.unread:
            for reader in job.audience(slot):  # with coordinated reads of all slots
                found.setdefault(reader, []).extend(epoch.unread_by(reader, slot))
        epoch.shares = {reader: sorted(tasks) for reader, tasks in found.items()}


class EpochClosed(EpochEvent, frozen=True, tag="EpochClosed"):
    """All consumers are past it; or it was prepared, nobody has begun it, and it runs anew (``forgotten``)."""

    forgotten: bool = False

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs.pop(self.epoch)
        if self.forgotten:
            job.skipped -= epoch.skipped
        else:
            job.left_out += sum(epoch.left_out.values())
        for live in epoch.live.values():
            state.let_go(live)
