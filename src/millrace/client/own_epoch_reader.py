"""Reader of an epoch of a member's own: as many elements as the data has, out of its group's epochs as they come."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from millrace.client.consumer_progress import EpochProgress
from millrace.client.epoch_reader import EpochReader
from millrace.client.own_epoch import OwnEpoch
from millrace.client.own_figures import OwnFigures
from millrace.errors import MillraceError, anew
from millrace.planning.checkpoint import Checkpoint, OwnEpochState, Part
from millrace.planning.epoch_cursor import EpochCursor


class OwnEpochs:
    """Own epochs of a member: each leaves to the next one the group's epoch in which it ended, or was left.

    Attributes:
        group: reader of the group's epoch; None: the next one is to be begun.
        following: least number of a group's epoch that nobody has begun.
    """

    def __init__(self) -> None:
        self.group: EpochReader | None = None
        self.following = 0
        self._last: weakref.ref[OwnEpochReader] | None = None
        self._place: Place | None = None

    @property
    def reading(self) -> bool:
        """Whether one of them is being read."""
        last = self._last() if self._last is not None else None
        return last is not None and last.is_open

    def take(self, reader: OwnEpochReader) -> EpochReader | None:
        """Hand over what the last one has left to the reader of the next."""
        self._last = weakref.ref(reader)
        place, self._place = self._place, reader.place
        if place is not None:
            place.freeze()
        if self.group is not None and not self.group.is_open:
            self.group = None
        if self.group is not None:
            self.group.tell(None)
            self.group.hand_on()
        return self.group

    def drop(self) -> None:
        """Forget the group's epoch, as another one is to be read."""
        group, self.group = self.group, None
        if group is not None:
            group.close()


class Place:
    """How far an own epoch is, without what reads it."""

    def __init__(self, number: int, own: OwnEpoch, checkpoint: Callable[[], Checkpoint]) -> None:
        self.number, self.own, self.checkpoint = number, own, checkpoint
        self.progress = OwnProgress(self)
        self.group: EpochProgress | None = None  # of the group's epoch
        self._frozen: Checkpoint | None = None

    def freeze(self) -> None:
        """Keep the state as it is, whatever the next own epoch reads of the group's."""
        self._frozen, self.group = self.state(), None

    def state(self) -> Checkpoint:
        """State of who reads it."""
        if self._frozen is not None:
            return self._frozen
        there, own = self.checkpoint(), self.own
        held = self.progress.held
        if own.left is not None:
            left = OwnEpochState(self.number, own.left + held, known=True)
        else:
            read = 0 if self.group is None else self.group.read()
            left = OwnEpochState(self.number, read - (own.used - held))
        return replace(there, own=left)


class OwnProgress:
    """Progress of an own epoch: who iterates takes elements from ``current``.

    Attributes:
        current: elements of the message that was taken last.
    """

    def __init__(self, place: Place) -> None:
        self.current: Iterator[Any] = iter(())
        self._place = place
        self.behind = 0  # elements that operators behind distribute() took, of which not all is handed out
        self.ended = 0  # of these, elements of epochs of the group that are over

    @property
    def held(self) -> int:
        """Number of elements that count as used and were not handed out."""
        return operator.length_hint(self.current) + self.behind

    @property
    def untouched(self) -> bool:
        """Whether nothing was handed out."""
        return self._place.own.used <= 0 and not self._place.own.over

    def made_of(self, task: int, outputs: int, count: int) -> None:
        """See :meth:`EpochProgress.made_of`; the elements of former epochs of the group come first."""
        before = min(self.ended, count)
        self.behind, self.ended = self.behind - count, self.ended - before
        group = self._place.group
        if group is not None and group.behind is not None:
            if before:
                group.behind -= count - before
            else:
                group.made_of(task, outputs, count)


class OwnEpochReader:
    """Reader of one epoch of a member's own. It goes on with the group's next epoch when one is over.

    Args:
        number: of the epoch.
        epochs: of the member.
        begin: begins the group's next epoch; what it belongs to lives as long as somebody reads.
        passes: of the dataset: told what is read.
        own: how far the epoch was read before.
        fresh: state of who has read nothing of it.

    Attributes:
        number: of the epoch.
        progress: of it; who iterates takes elements from there.
        place: how far it is.
        checkpoint: how far it was read; may be asked when the reader is gone, and does not keep it.
    """

    coordinated = False

    def __init__(
        self,
        number: int,
        epochs: OwnEpochs,
        begin: Callable[[], EpochReader],
        passes: EpochCursor,
        own: OwnEpoch,
        fresh: Checkpoint,
        epoch: int | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._failure: MillraceError | None = None
        self._epochs, self._passes = epochs, passes
        self._begin: Callable[[], EpochReader] | None = begin
        self._own, self.number = own, number
        self.place = Place(number, own, lambda: fresh)
        self._figures = OwnFigures(number)
        self._group: EpochReader | None = None
        self._shown: EpochReader | None = None  # says in lines how far this is
        self._epoch, self._behind = epoch, False
        self.progress, self.checkpoint = self.place.progress, self.place.state
        if own.over:
            self._begin = None
        else:
            self._read_on(epochs.take(self) or begin())
        self._load_id = passes.load_id
        passes.begin(number, self.checkpoint)

    def _read_on(self, group: EpochReader) -> None:
        """Go on with an epoch of the group."""
        group.tell(self._figures)
        self._shown = group
        self._figures.begin(*group.figures, group.missed, group.skipped)
        self._own.begin(group.progress.used)
        group.progress.behind = 0 if self._behind else None
        self.place.checkpoint, self.place.group = group.checkpoint, group.progress
        self._group = self._epochs.group = group

    @property
    def is_open(self) -> bool:
        """Whether there may be more to read."""
        return self._begin is not None

    @property
    def over(self) -> bool:
        """Whether it began at its epoch's end, or was closed."""
        return self._begin is None

    def advance(self) -> bool:
        """Make the next elements current; False if there are none.

        Ctrl-C may come anywhere: then nothing is lost, or the reader has failed.
        """
        try:
            self._passes.started(self._load_id)
            if self._failure is not None:
                raise anew(self._failure)  # noqa: TRY301 (no other frame is to hold this)
            return self._advance()
        except BaseException as error:
            if isinstance(error, MillraceError):
                self._failure = anew(error)
                self.close()
            del self  # whoever keeps the traceback must not keep what reads
            raise

    def _advance(self) -> bool:
        own = self._own
        while self._begin is not None and not self._closing.is_set():
            group = self._group
            if group is not None:
                own.count(group.progress.used)  # also of what Ctrl-C came upon
                if operator.length_hint(group.progress.current):
                    self.progress.current = group.progress.current
                    return True
            if own.over:
                self.close()
                break
            if group is None:
                self._read_on(self._begin())
                continue
            group.progress.most = own.most
            if group.advance():
                continue
            if not group.progress.ended:
                return False  # it was closed meanwhile
            own.count(group.progress.used)
            self._look()
            own.group_ended(group.outputs)
            self.progress.ended = self.progress.behind
            self._group = self._epochs.group = None
        return False

    def _look(self) -> None:
        group = self._group
        if group is not None:
            self._figures.look(*group.figures, group.missed, group.skipped, group.members)

    def put_back(self, element: Any) -> None:
        """Hand this element out once more, as who has just got it could not use it; no state counts it."""
        with self._lock:
            if self._group is not None:
                self._group.put_back(element)
                self.progress.current = self._group.progress.current

    def take(self) -> tuple[list[Any], int, int]:
        """Take elements for operators behind ``distribute()``, see :meth:`EpochReader.take`."""
        with self._lock:
            if not self._behind and self._group is not None:
                self._group.progress.behind, self._behind = 0, True
            if not (operator.length_hint(self.progress.current) or self.advance()) or self._group is None:
                return [], 0, 0
            taken = self._group.progress.take_current()
            self.progress.behind += len(taken[0])
            return taken

    def wake(self) -> None:
        """Have whoever waits for an element give up, for good."""
        self._closing.set()
        if self._group is not None:
            self._group.wake()

    def fail(self, error: MillraceError) -> None:
        """Note that what reads here has failed."""
        self._failure = anew(error)
        if self._group is not None:
            self._group.fail(error)

    @property
    def opening(self) -> tuple[int, int, int, list[Part]]:
        """See :attr:`EpochReader.opening`; the epoch is the group's, or that of the state which this goes on from."""
        if self._group is None:
            state = self.checkpoint()
            return state.seed or 0, state.epoch, state.rank, []
        seed, epoch, consumer, parts = self._group.opening
        return seed, epoch if self._epoch is None else self._epoch, consumer, parts

    @property
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out so far."""
        self._look()
        return self._figures.skipped

    @property
    def missed(self) -> int:
        """Number of elements so far that the window no longer had, and others came in their place."""
        self._look()
        return self._figures.missed

    @property
    def members(self) -> int:
        """Number of jobs that share the computation."""
        self._look()
        return self._figures.members

    def begins_with(self, _state: Any) -> bool:
        """See :meth:`EpochReader.begins_with`; there are no other ranks."""
        return False

    def close(self) -> None:
        """Stop reading; the next own epoch begins where this one was left. May be called any number of times."""
        self.wake()
        with self._lock:
            self._look()
            shown, self._shown = self._shown, None
            if shown is not None:
                shown.tell(None)
            group, self._begin, self._group = self._group, None, None
            if group is not None and group.is_open:  # the member's next epoch goes on there
                group.hand_on()
                self._own.count(group.progress.used)
            self.progress.current = iter(())
