"""What a training process holds of a job: a session, and one epoch at a time to iterate over."""

from __future__ import annotations

import operator
import os
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn, Self

from millrace.client.conversation import CLOSE, Conversation
from millrace.client.meter import Meter, Rates
from millrace.control.messages import JobSpec
from millrace.errors import ServiceError, ShippingError
from millrace.wire.compression import Compression

BUFFER_BYTES = 256 << 20
LEAST_BUFFER_BYTES = 1 << 20
"""A message of small elements."""


class ConsumerSession:
    """One consumer of one job on a service. Ends with :meth:`close`, or when it is dropped.

    Args:
        address: of the dispatcher, e.g. ``grpc://127.0.0.1:5050``.
        spec: what the job is; ``bundle`` is filled in here.
        bundle: the graph's user functions, from :mod:`millrace.functions.shipping`; uploaded if need be.
        consumer: index among the job's consumers; None takes the lowest that is free.
        token: of the service; None if it has none.
        compression: of what comes from workers over the network; None, ``"lz4"`` or ``"zstd"``.
        buffer_bytes: bound on the elements that wait here to be read.
        connect_timeout: seconds until the service must have answered.
        gone: why the dispatcher will not come back, "" while it may; None: it always may.
        linger: :meth:`close` keeps the consumer's place for a successor, e.g. the same DataLoader worker in its next
            life.

    Attributes:
        job: the job's name.
        consumer: this consumer's index.
        seed: the job's seed.

    Raises:
        ServiceUnreachableError: nobody answered in time.
        AuthenticationError, VersionMismatchError: the service does not let this process in.
        JobConflictError: a job of that name is another pipeline.
        ConsumerConflictError: another process reads as that consumer.
        PipelineError: what ``spec`` asks for cannot be.
    """

    def __init__(
        self,
        address: str,
        spec: JobSpec,
        bundle: bytes,
        *,
        consumer: int | None = None,
        token: str | None = None,
        compression: Compression | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        connect_timeout: float = 10.0,
        gone: Callable[[], str] | None = None,
        linger: bool = False,
    ) -> None:
        self._conversation = Conversation(
            address,
            spec,
            bundle,
            consumer=consumer,
            token=token,
            compression=compression,
            buffer_bytes=buffer_bytes,
            timeout=connect_timeout,
            gone=gone,
            linger=linger,
        )
        # Dropped without close(), which may happen in any thread, inside anything: only leave a word.
        weakref.finalize(self, self._conversation.say, CLOSE).atexit = False
        self._reader: weakref.ref[EpochReader] | None = None
        self.job = self._conversation.job
        self.consumer = self._conversation.consumer
        self.seed = self._conversation.seed

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._conversation.closed

    @property
    def next_epoch(self) -> int:
        """Number of the first epoch that this consumer, in this session or an earlier one, has not begun."""
        return self._conversation.next_epoch

    def epoch(self, number: int | None = None, *, keep: object = None) -> EpochReader:
        """Begins an epoch, which ends the one before; None: the next one.

        Args:
            number: of the epoch.
            keep: lives at least as long as the epoch is being read, e.g. the service it comes from.

        Raises:
            MillraceError: why the job cannot go on.
            ServiceError: if the session is closed, or belongs to another process.
        """
        self.check()
        former = self._reader() if self._reader is not None else None
        if former is not None:
            former.close()
        reader = EpochReader(self, self._conversation, number, keep)
        self._reader = weakref.ref(reader)
        return reader

    def check(self) -> None:
        """Whether it can be used here and now.

        Raises:
            ServiceError: if the session is closed, or belongs to another process.
        """
        if os.getpid() != self._conversation.pid:
            raise ServiceError(
                f"this session of job {self.job!r} belongs to process {self._conversation.pid}, this is "
                f"{os.getpid()}, forked from it: open another one here"
            )
        if self.closed:
            raise ServiceError(f"this session of job {self.job!r} is closed")

    def close(self) -> None:
        """Leaves the job: its consumer's place is free. May be called any number of times."""
        self._conversation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("a session cannot be pickled: it is a connection; open another one on the other side")


class EpochReader(Iterator[Any]):
    """The elements of one epoch, in the order in which they come (or in plan order, if the job is deterministic).

    Arrays are views of the memory they were received into. Made by :meth:`ConsumerSession.epoch`.

    Attributes:
        number: of the epoch.
    """

    def __init__(self, session: ConsumerSession, conversation: Conversation, number: int | None, keep: object) -> None:
        self._session: ConsumerSession | None = session  # it lives as long as somebody reads
        self._keep = keep
        self._conversation = conversation
        self._tally = tally = _Tally()
        self.number = conversation.begin(number, tally.measure)
        self._finalizer = weakref.finalize(self, conversation.say, self.number)
        self._finalizer.atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        for element in self._tally.current:
            return element
        self._advance()
        return next(self._tally.current)

    def _advance(self) -> None:
        if self._session is None:
            raise StopIteration
        self._session.check()
        tally, feed = self._tally, self._conversation.feed
        asked = time.perf_counter()
        queued = feed.ready
        arrival = feed.take(self.number)
        got = time.perf_counter()
        if arrival is None:
            tally.meter.ended(asked)
            self.close()
            raise StopIteration
        elements = arrival.decoded()
        tally.meter.took(len(elements), asked, got, queued)
        tally.current = iter(elements)

    @property
    def skipped(self) -> int:
        """Elements that ``on_error`` left out so far."""
        return self._conversation.feed.skipped

    def close(self) -> None:
        """Stops reading; what was not read of the epoch is dropped. May be called any number of times."""
        self._session = self._keep = None
        self._tally.current = iter(())
        if self._finalizer.detach() is not None:
            self._conversation.end(self.number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("an iterator over an epoch cannot be pickled; iterate anew on the other side")


class _Tally:
    """What the reporting thread sees of a reader, without keeping it alive."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.current: Iterator[Any] = iter(())

    def measure(self) -> tuple[int, Rates]:
        left = operator.length_hint(self.current)  # of a list's iterator, so exact
        now = time.perf_counter()
        return self.meter.handed + self.meter.pending - left, self.meter.rates(now, left)
