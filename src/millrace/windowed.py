"""Pipeline of a job that shares a window, and whose epochs are its own: each has as many elements as the data."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from millrace.errors import DetachedError
from millrace.guarantees import Sharing, Visitation
from millrace.own_job import own_job
from millrace.planning.checkpoint import Checkpoint, parse_all, said
from millrace.planning.epoch_cursor import EpochCursor, Number, Share
from millrace.served import ServedPipeline

if TYPE_CHECKING:
    from millrace.client.deferred_reader import AnyReader, DeferredReader
    from millrace.client.epoch_reader import ConsumerSession, EpochReader
    from millrace.client.own_epoch import OwnEpoch
    from millrace.client.own_epoch_reader import OwnEpochReader, OwnEpochs


class WindowedPipeline(ServedPipeline):
    """A pipeline of which each epoch is filled from the epochs of those that it shares a window with, as they come."""

    _known: OwnEpochs | None = None

    @property
    def _epochs(self) -> OwnEpochs:
        from millrace.client.own_epoch_reader import OwnEpochs

        self._known = self._known or OwnEpochs()
        return self._known

    def _next_epoch(self, number: Number, share: Share | None) -> DeferredReader:
        from millrace.client.deferred_reader import DeferredReader
        from millrace.client.own_epoch import OwnEpoch

        chosen, _ = self._passes.choose(number)
        reload = functools.partial(self._reload, number, share)
        if not self._epochs.reading:
            return DeferredReader(reload, reader=self._begin_own(chosen, OwnEpoch()))
        begin = functools.partial(self._begin_beside, chosen, share, self._closings)
        return DeferredReader(reload, begin=begin, fresh=self._fresh_state(chosen), passes=self._passes)

    def _begin_own(self, number: int, own: OwnEpoch, epoch: int | None = None) -> OwnEpochReader:
        """Begin an epoch of its own, with what the last one has left of the group's."""
        if self._alone:
            self._epochs.drop()  # what is left of an epoch that was read alone, from a state
        return self._read_own(number, own, epoch)

    def _read_own(
        self, number: int, own: OwnEpoch, epoch: int | None, passes: EpochCursor | None = None
    ) -> OwnEpochReader:
        from millrace.client.own_epoch_reader import OwnEpochReader

        begin = functools.partial(self._begin_group, self._closings)
        fresh = self._passes.loaded[0] if self._passes.loaded else self._fresh_state(number)
        return OwnEpochReader(number, self._epochs, begin, passes or self._passes, own, fresh, epoch)

    def _begin_group(self, closings: int) -> EpochReader:
        """Begin the next epoch of the group.

        Raises:
            ServiceError: the dataset was closed since it had been so many times.
        """
        with self._lock:
            self._check_open(closings)
            session = self._joined(None)
            there = session.next_epoch
            number = max(there, self._epochs.following) if session.leads else there
            reader = self._group_epoch(session, number)
            self._epochs.following = number + 1
            return reader

    def _group_epoch(self, session: ConsumerSession, number: int, **chosen: Any) -> EpochReader:
        # It lives between two epochs of this dataset, too, and must not keep it.
        alone, failed = functools.partial(_go_on_alone, weakref.ref(self)), weakref.WeakMethod(self._leave)
        return session.epoch(number, passes=EpochCursor(), failed=failed, alone=alone, **chosen)

    def _begin_beside(self, number: int, share: Share | None, closings: int) -> AnyReader:
        from millrace.client.own_epoch import OwnEpoch

        with self._lock:
            self._check_open(closings)
            if not self._epochs.reading:
                return self._begin_own(number, OwnEpoch())
            other = self._join(share, own_job(self._parameters, epochs=number + 1))
            self._others.add(other)
            return self._begin(other, number, EpochCursor())

    def _resume(self, number: Number, share: Share | None) -> AnyReader:
        """Begin the epoch that the loaded states lead to: with the group, if it is known how much of it is to come."""
        from millrace.client.own_epoch import OwnEpoch

        loaded = self._passes.loaded
        resumed = self._resumed() if self._resumed is not None else None
        if resumed is not None and (share is not None or not resumed.over):
            return resumed
        first, epochs = loaded[0], self._epochs
        own = first.own if len(loaded) == 1 else None
        following = first.next_epoch if own is None else own.number + own.over
        epochs.drop()
        reader: OwnEpochReader
        if first.untouched or (first.ended if own is None else own.known):
            epochs.following = max(epochs.following, first.epoch + (not first.untouched))
            left = own.left if own is not None and own.known else 0
            reader = self._begin_own(following, OwnEpoch(left or None), first.epoch if left else None)
        else:
            session = self._joined(share, loaded)
            there = session.next_epoch
            epochs.group = self._group_epoch(session, there, read=said(loaded, there))
            epochs.following = there + 1
            reader = self._read_own(following, OwnEpoch(used=0 if own is None else -own.left), None)
        self._resumed = weakref.ref(reader)
        return reader

    def _reload(self, number: Number, share: Share | None, state: Any) -> AnyReader:
        from millrace.client.own_epoch import OwnEpoch

        with self._lock:
            resumed = self._resumed() if self._resumed is not None else None
            if resumed is not None and self._passes.loaded == parse_all(state):
                return resumed
            self.load_state_dict(state)
            first, *others = self._passes.loaded
            if not others and (first.ended if first.own is None else first.own.over):
                ended = first.epoch if first.own is None else first.own.number
                return self._read_own(ended, OwnEpoch(0), None, EpochCursor())
            reader = self._resume(number if callable(number) else None, share)
            self._passes.forget()
            return reader

    def _end(self) -> None:
        super()._end()
        self._known = None

    def __getstate__(self) -> dict[str, Any]:
        """See :class:`ServedPipeline`; a copy has epochs of its own."""
        return {**super().__getstate__(), "_known": None}


def _go_on_alone(whose: weakref.ref[WindowedPipeline], state: Checkpoint, why: DetachedError) -> ConsumerSession:
    pipeline = whose()
    if pipeline is None:
        raise why
    return pipeline._go_on_alone(state, why)  # noqa: SLF001


def pipeline_of(sharing: Any, visitation: Any) -> type[ServedPipeline]:
    """Choose the pipeline for these choices of ``distribute``."""
    windowed = sharing is Sharing.WINDOW and visitation is Visitation.ZERO_ONCE_OR_MORE
    return WindowedPipeline if windowed else ServedPipeline
