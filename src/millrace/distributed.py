"""A dataset on a service: what ``distribute`` gives."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

from millrace.continued import ContinuedPipeline, continued
from millrace.equivalents import BEHIND
from millrace.errors import PipelineError
from millrace.frameworks.base import Viewable
from millrace.graph import nodes as g
from millrace.operators import Operators
from millrace.served import ServedPipeline
from millrace.whole_numbers import whole

if TYPE_CHECKING:
    from millrace.client.behind import BehindReader
    from millrace.client.epoch_iterator import EpochIterator


class DistributedDataset(Operators, Viewable):
    """A dataset whose elements are computed by a service. Each ``iter()`` is one epoch.

    Operators that are called on it run in this process, over what comes from the service.

    Holds its place in the service (and the service itself, if it is an embedded one) from the first ``iter()`` until
    :meth:`close`, the end of a ``with`` block, or the end of its life.
    """

    _source: ServedPipeline | ContinuedPipeline
    _equivalents = BEHIND

    def __iter__(self) -> EpochIterator | BehindReader:
        """Begin the next epoch: an iterator with ``close()``, and a context manager."""
        return self._source.read_epoch()

    def epochs(self, count: int) -> Iterator[Any]:
        """Elements of ``count`` epochs, one after the other; nothing is prepared beyond the last."""
        count = whole("epochs", "count", count, 0)
        self._source.will_read(count)
        for _ in range(count):
            yield from self

    def status(self) -> dict[str, Any]:
        """Status of the service, as of ``millrace status --json``.

        With ``bottleneck``, that of this dataset's job: its ``reason`` says in one sentence what keeps the loop from
        being faster. None before the first ``iter()``, and once the job is over. Where operators stand behind
        ``distribute()`` it may be one of these, and ``operators`` lists them, as of the last iterator.
        """
        return self._source.status()

    def close(self) -> None:
        """Leave the job; stop the service if it is an embedded one. Idempotent."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def distribute(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Refuse: a dataset is distributed once.

        Raises:
            PipelineError: always.
        """
        raise PipelineError(
            "the dataset is distributed already, and what stands behind distribute() runs in the training process: "
            "call distribute() once, behind all that the service is to compute"
        )

    def __pipeline__(self) -> ServedPipeline | ContinuedPipeline:
        """Pipeline behind the dataset: for millrace's own use."""
        return self._source

    def _then(self, node_type: type[g.Node], **parameters: Any) -> Self:
        return type(self)(continued(self._source, node_type, parameters))
