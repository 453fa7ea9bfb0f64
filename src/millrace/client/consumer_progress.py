"""Progress of one epoch that a consumer receives: how much was handed out, and how fast. Pure: times come in."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable
from typing import Any

from millrace.client.epoch_buffer import Arrival
from millrace.client.read_rate import Rates, ReadRateMeter
from millrace.engine.run.progress_tracker import ProgressTracker
from millrace.errors import StateError
from millrace.planning.checkpoint import Checkpoint, Merged
from millrace.planning.progress import Progress, TaskSet
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import EpochBegun


class EpochProgress(ProgressTracker):
    """Progress of one epoch that is received. Who iterates takes elements from ``current``, and nothing else does.

    Args:
        number: of the epoch.
        read: what was read of it before; None: nothing.

    Attributes:
        number: of the epoch; ``begun``: what the dispatcher says of it.
        alone: tasks that are known to leave nothing over.
        pending: the message of which something is still to be decoded, or to be handed out.
        surplus: elements of that message, decoded and not handed out.
        behind: elements that operators behind ``distribute()`` took, of which not all is handed out that they make;
            None: there are none.
        most: number of elements that may be made current in all, as others are for who reads on; None: any.
        seen: what :meth:`measure` gave as the epoch ended; None: it is still read.
    """

    def __init__(self, number: int, read: Merged | None = None) -> None:
        super().__init__(read or Merged(epoch=number))
        self.number = number
        self.begun: EpochBegun | None = None
        self.alone = TaskSet() if read is None else read.tasks_alone()
        self.pending: Arrival | None = None
        self.surplus: list[Any] = []
        self.behind: int | None = None
        self.most: int | None = None
        self.seen: tuple[int, Rates] | None = None
        self._given = Progress(self._progress.now()[0], dict(self._progress.now()[1]))  # as far as it became current
        self._last: Arrival | None = None  # what is current, or was, belongs to it
        self._meter = ReadRateMeter()
        self._messages = 0
        self._left_out: Collection[int] = frozenset()

    @property
    def untouched(self) -> bool:
        """Whether nothing was handed out, nor the end said."""
        return not self._taken and not self.ended

    @property
    def used(self) -> int:
        """Number of elements that were made current."""
        return self._taken

    @property
    def task(self) -> int:
        """Task of what is current, or was last."""
        return -1 if self._last is None else self._last.task.number

    def forget(self) -> None:
        """Forget what was read before: nothing of what comes now was."""
        self.alone, self._progress, self._given = TaskSet(), Progress(), Progress()

    def resume(self, read: Merged) -> None:
        """Note what was read before."""
        self.alone |= read.tasks_alone()
        for each in (self._progress, self._given):
            each.resume(read.tasks_done(), dict(read.begun))

    def go_on(self, begun: EpochBegun) -> None:
        """Begin where the dispatcher says that this reader is, which knows all that the loaded states said."""
        for each in (self._progress, self._given):
            each.resume(begun.read.done(), dict(begun.read.begun))

    def detach(self) -> None:
        """Count what was left out as read, as all ranks have heard of it by the time that their job is detached."""
        for task in self._left_out:
            self._progress.ends(task, 0)
            self._given.ends(task, 0)
        self._left_out = frozenset()

    def detached(self) -> None:
        """Note that what is to come comes from another job, which begins behind what was taken of this one."""
        self.pending, self.surplus, self._messages = None, [], 0

    def ends(self, epoch: int, ended: Iterable[tuple[int, int, int]], left_out: Collection[int] | None = None) -> None:
        """Note tasks of an epoch that ended: how far they are to be handed out, and what is missed behind that.

        Those that are ``left_out`` (which may become more) count as read once something behind them in their slots was
        handed out. Else states of ranks, which hear of it one after the other, would differ.
        """
        if epoch != self.number:
            return
        self._left_out = self._left_out if left_out is None else left_out
        for task, outputs, missed in ended:
            self._progress.ends(task, outputs, missed)
            self._given.ends(task, outputs, missed)

    # -- handing out ---------------------------------------------------------------------------------------------------

    def take(self, arrival: Arrival) -> None:
        """Take the message that comes next."""
        self.pending, self._messages = arrival, self._messages + 1  # at once, as Ctrl-C may come in any call

    def lost(self, taken: int) -> bool:
        """Whether Ctrl-C lost one of so many messages that were taken for this reader."""
        return taken != self._messages

    def hand_out(self, limit: int | None, asked: float, now: float, queued: int) -> bool:
        """Make current what may be used; False if nothing may.

        Args:
            limit: number of the epoch's elements that may be used in all; None: any.
            asked: when the user came for more.
            now: when there was more.
            queued: elements that lay ready when the user came.
        """
        arrival, surplus = self.pending, self.surplus
        limits = [each - self._taken for each in (limit, self.most) if each is not None]
        count = min([len(surplus), *limits])
        if arrival is None or count <= 0:
            return False
        self._count()
        if self.behind is None:
            self._runs.append((arrival.task.number, self._taken, arrival.end - len(surplus)))
        else:
            self._given.yielded(arrival.task.number, arrival.end - len(surplus) + count)
        elements, rest = (surplus, []) if count == len(surplus) else (surplus[:count], surplus[count:])
        current, taken, left = iter(elements), self._taken + count, arrival if rest else None
        # At once, as Ctrl-C may come in any call.
        self.current, self._taken, self.surplus, self.pending, self._last = current, taken, rest, left, arrival
        self._meter.took(count, asked, now, queued)
        return True

    def _count(self) -> None:
        if self.behind is None:
            super()._count()

    def hand_on(self) -> None:
        """Have another reader go on: what is current comes again, and what operators took counts as read."""
        elements = list(self.current)
        self.current, self._taken = iter(()), self._taken - len(elements)
        if self.behind is None:
            self._count()
            self._given = self._progress.copy()
        else:
            self._progress = self._given.copy()
        self._runs.clear()
        self.surplus, self.behind, self.most = [*elements, *self.surplus], None, None
        self.pending = self.pending or (self._last if self.surplus else None)

    def read(self, *, taken: bool = False) -> int:
        """Count the outputs that a state of now says were read, see :meth:`state`; those of before a resume aside."""
        self._count()
        return (self._given if taken and self.behind is not None else self._progress).outputs

    def end(self, asked: float) -> None:
        """Note that the reader, who came for more at ``asked``, is told that there is none."""
        self._meter.ended(asked)
        self.ended = True

    def close(self) -> None:
        """Let go of all that is not handed out by now."""
        self.now()
        self.closed()
        self.surplus, self.pending = [], None

    def measure(self, now: float) -> tuple[int, Rates]:
        """Elements handed out since the epoch began, and how fast."""
        if self.seen is not None:
            return self.seen
        left = operator.length_hint(self.current) + (self.behind or 0)
        return max(self._taken - left, min(1, self._taken)), self._meter.rates(now, left)

    def state(self, spec: JobSpec, consumer: int, graph: str, *, taken: bool = False) -> Checkpoint:
        """State of who reads the epoch, without asking anybody.

        Args:
            spec: of the job.
            consumer: who reads it, by its rank; each member of a group goes on with its states alone.
            graph: digest of the job's graph.
            taken: count what operators behind ``distribute()`` took as read, whatever they have made of it.

        Raises:
            StateError: the job has no states.
        """
        if spec.sharding == "off":
            raise StateError(
                "ShardingPolicy.OFF reads the data any number of times, so that there is no place to go on"
            )
        if consumer and spec.num_consumers is None:
            raise StateError("which consumers there are is in their states: say num_consumers= in distribute()")
        begun = self.begun
        assert begun is not None
        ahead = taken and self.behind is not None
        done, parts = self._given.now() if ahead else self.now()
        last = (self._given if ahead else self._progress).last  # behind which the next round is that of another slot
        if self._left_out:
            progress = self._given if ahead else self._progress
            for task in _passed(done, [task for task, _ in parts], self._left_out, spec.cycle_length):
                progress.ends(task, 0)
            done, parts = progress.now()
        return Checkpoint(
            seed=spec.seed,
            epoch=begun.epoch,
            graph=graph,
            sources=begun.sources,
            tasks=begun.tasks,
            done=done.low,
            later=done.text(),
            begun=parts,
            ended=self.ended,
            rank=consumer,
            ranks=spec.num_consumers or 1,
            alone=(self.alone.low, self.alone.text()),
            cycle_length=spec.cycle_length if spec.coordinated else 0,
            turn=(begun.turn if last < 0 else (last + 1) % spec.cycle_length) if spec.coordinated else 0,
            **begun.fields(),
        )

    # -- operators behind distribute() ---------------------------------------------------------------------------------

    def take_current(self) -> tuple[list[Any], int, int]:
        """Take what is current, its task, and the number of the first of these outputs; :meth:`made_of` counts them."""
        elements = list(self.current)
        self.behind = (self.behind or 0) + len(elements)
        if not elements:
            return [], 0, 0
        assert self._last is not None
        return elements, self._last.task.number, self._last.end - len(self.surplus) - len(elements)

    def made_of(self, task: int, outputs: int, count: int) -> None:
        """Note that all that was made of so many outputs of a task was handed out, ``count`` more than before."""
        self.behind = (self.behind or 0) - count
        self._progress.yielded(task, outputs)


def _passed(done: TaskSet, begun: Collection[int], left_out: Collection[int], slots: int) -> list[int]:
    """List the tasks that were left out of which something behind them in their slots was read."""
    last = {slot: done.low - 1 - (done.low - 1 - slot) % slots for slot in range(slots)}
    for task in (*itertools.chain.from_iterable(each.tolist() for each in done.beyond()), *begun):
        last[task % slots] = max(last[task % slots], task)
    return [task for task in left_out if task < last[task % slots] and task not in done]
