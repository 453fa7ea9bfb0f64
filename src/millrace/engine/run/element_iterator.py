"""Iterators over the elements of an epoch: what they have in common wherever elements come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

from millrace.errors import ShippingError


class StatefulIterator(Iterator[Any], ABC):
    """Iterator over an epoch that can say how far it was read; leaving a ``with`` block ends the epoch."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """State: how far this epoch was read, as plain values."""

    @abstractmethod
    def load_state_dict(self, state: Any) -> None:
        """Go on where ``state`` was taken: in that epoch, or at its end.

        Args:
            state: what ``state_dict()`` gave, in process or on a service; or the list of all ranks' states.

        Raises:
            StateError: it is not of this pipeline over these data.
        """

    @abstractmethod
    def set_weights(self, weights: Sequence[float]) -> int:
        """Set the weights of the pipeline's ``sample_from_datasets``, while its epoch is read.

        They hold from the first task on that has not begun, wherever it would run; in later epochs too, until they are
        set again. They are in :meth:`state_dict`, and whoever goes on from there gets the same elements.

        Args:
            weights: one for each dataset, none negative and one above 0; datasets are drawn in proportion to them.

        Returns:
            Number of the mixture's element in this epoch, from 0 on, from which on they hold: the epoch is the one of
            ``sample_from_datasets(..., {0: before, number: weights}, weights_by="element")``. Where all tasks have
            begun that is where the epoch ends, as far as the mixture is read, and a ``MillraceWarning`` says so.

        Raises:
            PipelineError: the pipeline has no mixture or several, or operators behind it that reorder its elements; or
                this iterator was closed, has come to its end, or is not the one of its dataset that is being read.
        """

    def get_state(self) -> dict[str, Any]:
        """Equal to :meth:`state_dict`."""
        return self.state_dict()

    def set_state(self, state: Any) -> None:
        """Equal to :meth:`load_state_dict`."""
        self.load_state_dict(state)

    @abstractmethod
    def close(self) -> None:
        """Stop reading and let go of everything; what was not handed out is dropped. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("an iterator over an epoch cannot be pickled; iterate anew on the other side")


class ElementIterator(StatefulIterator):
    """Iterator over the elements of an epoch as they are. Several threads may read from it: each element goes to one.

    Once it has failed, it fails in the same way for ever.
    """

    @abstractmethod
    def put_back(self, element: Any) -> None:
        """Hand this element out once more, as who has just got it could not use it; no state counts it."""

    @property
    @abstractmethod
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out so far."""
