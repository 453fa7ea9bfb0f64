"""Epoch cursor: one reader's passes over a dataset; the next epoch, its begin, and how far the last one was read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from millrace.errors import PipelineError, StateError
from millrace.planning.checkpoint import (
    Checkpoint,
    Merged,
    PipelineIdentity,
    fit,
    merge,
    pack,
    parse_all,
    parts_of,
    said,
)
from millrace.planning.weight_changes import Reweighted

Number = int | Callable[[int, "tuple[Checkpoint, ...]"], int] | None
"""Number of an epoch, or a function of the next number and the states that it begins with; None: the next."""
Share = tuple[int, int]
"""Share (i, n): the i-th of n helpers of one reader."""


class Reader(Protocol):
    """Iterator that reads a pass."""

    def set_weights(self, weights: Sequence[float]) -> int:
        """See :meth:`millrace.engine.run.element_iterator.StatefulIterator.set_weights`."""


R = TypeVar("R", bound=Reader)


class EpochCursor:
    """Memory of a dataset about its own iterators.

    Attributes:
        following: number of the epoch after the last one begun.
        loaded: states that the next pass begins with. They stay until an element is asked for: who makes iterators
            and asks them for nothing, as loaders do, loses nothing.
        load_id: says which loading that was, if whoever has loaded them notes it.
        reweighted: weights of mixtures that the next epoch begins with, as the training loop has set them.
    """

    def __init__(self) -> None:
        self.following = 0
        self.loaded: tuple[Checkpoint, ...] = ()
        self.load_id = 0
        self.reweighted: Reweighted = ()
        self._now: Callable[[], Checkpoint] | None = None
        self._reader: weakref.ref[Any] | None = None

    def load(self, states: Any, here: PipelineIdentity) -> None:
        """Load states: the next pass begins where these were taken.

        Args:
            states: one, or those of all ranks.
            here: what is known of the pipeline that they are loaded into.

        Raises:
            StateError: it is no state, or one of another pipeline.
        """
        loaded = parse_all(states)
        for each in loaded:
            fit(each.identity, here)
        self.loaded, self._now = loaded, None

    def choose(
        self, number: Number, loaded: tuple[Checkpoint, ...] | None = None
    ) -> tuple[int, tuple[Checkpoint, ...]]:
        """Choose the epoch of a pass, of which ``following`` is the least, and the states that it begins with.

        Args:
            number: see there.
            loaded: states that were loaded into the pass's iterator; None: those of the dataset.
        """
        if isinstance(number, int):
            return number, ()
        loaded = self.loaded if loaded is None else loaded
        return self.following if number is None else number(self.following, loaded), loaded

    def choose_shared(self, number: Number, there: int, *, late: bool, leads: bool) -> tuple[int, bool]:
        """Choose the epoch of a pass that is to be read together with others; whether it can be.

        Args:
            number: see :meth:`choose`.
            there: the epoch that the others begin next.
            late: they are in the middle of another one.
            leads: none of them has begun any: they begin with the one that is chosen.
        """
        there = max(there, self.following) if leads else there
        self.following = self.following if late else max(there, self.following)
        chosen, _ = self.choose(number)
        return chosen, chosen == there and not late

    def begin(self, number: int, now: Callable[[], Checkpoint]) -> None:
        """Begin a pass over epoch ``number``; ``now`` says how far it is, also when it is over."""
        self.following = number + 1
        self._now = now

    def is_last(self, now: Callable[[], Checkpoint]) -> bool:
        """Whether the pass that began with ``now`` is the last one, and no states were loaded since."""
        return self._now is now

    def read_by(self, reader: R) -> R:
        """Remember who reads the last pass, as long as somebody holds it; return it."""
        self._reader = weakref.ref(reader)
        return reader

    def set_weights(self, weights: Sequence[float]) -> int:
        """Set the weights of the mixture in the last pass.

        Raises:
            PipelineError: nobody in this process reads one.
        """
        reader = None if self._reader is None else self._reader()
        if reader is None:
            raise PipelineError(
                "set_weights sets the weights of an epoch that is being read, and this process reads none: begin it "
                "first; a DataLoader with worker processes reads there, so use num_workers=0, with distribute() where "
                "processes are to compute"
            )
        element: int = reader.set_weights(weights)
        return element

    def started(self, load_id: int | None) -> None:
        """Forget the loaded states, as somebody asks a pass for elements that was begun when these had been loaded.

        Args:
            load_id: the one that there was as the pass was begun; of an older pass it is another one.
        """
        if load_id == self.load_id:
            self.loaded = ()

    def forget(self) -> None:
        """Forget the loaded states."""
        self.loaded = ()

    def why_unlike(self, fresh: Callable[[], Checkpoint]) -> str:
        """Say why the next epoch may not be what the pipeline gives as it is written, from its beginning; empty: it is.

        Args:
            fresh: gives the state before the first epoch.
        """
        if self.loaded:
            return "a state was loaded, so that the next epoch may be the rest of one"
        try:
            reweighted = self.reweighted or self.state(fresh).get("reweighted")  # a service tells its readers
        except StateError as error:
            return f"whether set_weights has set other weights is not known here: {error}"
        return "set_weights has set other weights than those in the pipeline" if reweighted else ""

    def state(self, fresh: Callable[[], Checkpoint]) -> dict[str, Any]:
        """State of the last pass; ``fresh`` gives the state before the first.

        Raises:
            StateError: see :meth:`before`.
        """
        return pack(self.before(fresh) if self._now is None else self._now())

    def before(self, fresh: Callable[[], Checkpoint]) -> Checkpoint:
        """State before the next pass, of those that were loaded; ``fresh`` gives the one if there were none.

        Raises:
            StateError: states of several ranks were loaded, and do not fit together.
        """
        if len(self.loaded) == 1:
            return self.loaded[0]
        start = fresh()
        return together(self.loaded, start.rank, start.ranks) if self.loaded else start

    def copy(self) -> EpochCursor:
        """Copy for a copy of the dataset, in another process perhaps: it goes on from here, and has read nothing."""
        twin = EpochCursor()
        twin.following, twin.reweighted = self.following, self.reweighted
        twin.loaded, twin.load_id = self.loaded, self.load_id
        return twin


def together(loaded: tuple[Checkpoint, ...], rank: int, ranks: int) -> Checkpoint:
    """Make the one state that says what those of several ranks say together.

    Args:
        loaded: states of all ranks of one run.
        rank: of who asks, where each rank has a state of its own whatever was read: with coordinated reads.
        ranks: number of these; 1: any number of ranks can go on from the one state.

    Raises:
        StateError: the states do not fit together, or operators behind ``distribute()`` count what each rank gets.
    """
    begin = merge(loaded)
    if ranks > 1:
        return next(each for each in loaded if each.rank == rank)
    if any(each.counts for each in loaded):
        raise StateError(
            f"operators behind distribute() count what each process gets, and the states of {loaded[0].ranks} were "
            "loaded, of which none is read yet: begin to read before you save a state"
        )
    read = {name: getattr(begin, name) for name in Merged.__struct_fields__}
    parts = parts_of(loaded, begin.epoch)
    base = next((each for each in loaded if each.epoch == begin.epoch), None)
    if base is None:  # all have ended: how the next epoch is divided, nobody has seen yet
        base = replace(loaded[0], tasks=None, sources=[])
    return replace(base, **read, rank=0, ranks=1, ended=False, parts=parts, counts=[], turn=0, own=None)


def start_of(loaded: tuple[Checkpoint, ...], share: Share | None, *, at_end: bool = False) -> Merged:
    """Decide where a reader without a service begins.

    Args:
        loaded: its own state, or those of all ranks.
        share: which helper it is; None: it reads alone.
        at_end: begin at the end of an epoch that had ended, not with the next one.

    Raises:
        StateError: the states are not this reader's.
    """
    first = loaded[0]
    if first.untouched and (share is not None or first.helpers):
        return Merged(epoch=first.epoch, reweighted=first.reweighted)
    if share is None and all(each.anonymous for each in loaded):
        return said(loaded, first.epoch)
    if share is None and not first.helpers:
        if not (at_end and len(loaded) == first.ranks == 1):
            return merge(loaded)
    elif share is None:
        raise StateError(
            f"the state is that of process {first.rank} of {first.ranks} in a DataLoader: load it there, with "
            f"num_workers={first.ranks}"
        )
    elif not first.helpers or len(loaded) > 1 or share != (first.rank, first.ranks):
        whose = f"process {first.rank} of {first.ranks}" if first.helpers else "one that read alone"
        raise StateError(
            f"the state is of {whose}, and this is process {share[0]} of {share[1]} in a DataLoader: without a "
            "service a state is loaded with the num_workers that it was saved with"
        )
    return said(loaded, first.epoch)


def place_of(
    share: Share | None, consumer: int | None, parameters: Mapping[str, Any], *, named: bool
) -> tuple[int | None, dict[str, Any]]:
    """Index of the consumer, and which of the job's parameters differ: helpers are consumers of their own."""
    if share is None:
        return consumer, {}
    part, parts = share
    name, consumers = parameters["name"], parameters["num_consumers"] or 1
    return (consumer or 0) * parts + part, {
        "num_consumers": consumers * parts,
        "name": name if named else f"{name}/{parts}",
    }
