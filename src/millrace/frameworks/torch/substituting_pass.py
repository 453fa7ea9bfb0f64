"""Pass over a sampler in which samples that are cached stand in for those that aren't (Quiver, section 4.6)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.frameworks.torch.cached_dataset import CachedDataset
from millrace.policies.sample_substitution import LOOKED_UP, MOST_PENDING, Drawn, PendingOrder, kept_of


class SubstitutingPass:
    """Indices of a sampler, each of them once, those first whose samples are cached.

    They are chosen for one batch at a time where the sampler gives lists. A batch is as large as the one of the sampler
    in its place.

    Args:
        source: gives indices, or lists of them.
        place: makes an index a cached dataset and a position in it.
        look_ahead: how many times as many samples are looked up as are chosen; 0: none are, and the order is the
            sampler's, behind what is pending.

    Attributes:
        size: samples that were chosen last.
        scarce: whether some were not cached of the first ones that were looked up for them.
        short: whether fewer were cached than were to be chosen, so that others were chosen too.
    """

    def __init__(
        self, source: Iterator[Any], place: Callable[[Any], tuple[CachedDataset, int]], look_ahead: int
    ) -> None:
        self._source: Iterator[Any] | None = source
        self._place, self._look_ahead = place, look_ahead
        self._datasets: list[CachedDataset] = []
        self._owners: dict[int, int] = {}  # by id() of a dataset, its number among these
        self._order = PendingOrder()
        self._sizes: deque[int] | None = None  # of batches that were drawn and not chosen; None: there are none
        self._chosen: deque[tuple[int, Any]] = deque()  # positions and indices that come next
        self._unread: deque[tuple[int, int]] = deque()  # datasets and positions of samples that were chosen
        self.size = LOOKED_UP
        self.scarce = self.short = False

    @property
    def waiting(self) -> int:
        """Samples that were asked for and not chosen."""
        return self._order.waiting

    @property
    def batch(self) -> int:
        """Samples of the newest batch; 0: the sampler gives single indices."""
        return 0 if self._sizes is None else self.size

    # -- choosing ------------------------------------------------------------------------------------------------------

    def choose(self, single: int = LOOKED_UP) -> int | None:
        """Choose what is handed out next.

        Args:
            single: how many indices to choose, where they are no batches.

        Returns:
            For how many samples it stands; None at the end.
        """
        order = self._order
        if not self._sizes:
            self._draw(1 - order.left)
        if self._sizes is None:
            self._draw(single - order.left)
            size = min(single, order.left)
            if not size:
                return None
        elif self._sizes:
            size = self._sizes.popleft()
        else:
            return None
        self.size = size
        overdue = order.overdue(size)
        self._take(overdue)
        lacking = size - len(overdue)
        if lacking and self._look_ahead:
            lacking -= self._take_cached(self._coming(size), lacking)
        self.scarce = bool(lacking) or len(overdue) > 0
        if lacking and self._look_ahead > 1:
            lacking -= self._take_cached(self._coming((self._look_ahead - 1) * size), lacking)
        self.short = bool(lacking) or len(overdue) > 0
        if lacking and self.waiting:
            asked = order.asked()
            came = self._cached(asked)
            asked = np.concatenate([asked[came], asked[~came]])[:lacking]
            lacking -= len(asked)
            self._take(asked)
        if lacking:
            self._take(order.oldest(lacking))
        if self.scarce:
            for cached, numbers in self._by_dataset(itertools.islice(self._unread, len(self._unread) - size, None)):
                cached.renew(numbers)
        return size

    def _by_dataset(self, samples: Iterable[tuple[int, int]]) -> list[tuple[CachedDataset, NDArray[np.int64]]]:
        owners, numbers = np.array(list(samples), np.int64).reshape(-1, 2).T
        return [(cached, numbers[owners == owner]) for owner, cached in enumerate(self._datasets)]

    def _coming(self, most: int) -> NDArray[np.int64]:
        """Rows that the pass comes to next; it begins anew where the order ends, or where too many are pending."""
        order = self._order
        if self._source is not None:
            self._draw(min(most - order.ahead(), MOST_PENDING - order.left))
        rows = order.scan(most)
        if not len(rows):
            order.begin_pass()
            rows = order.scan(most)
        return rows

    def _take_cached(self, rows: NDArray[np.int64], most: int) -> int:
        found = rows[self._cached(rows)]
        if len(found) > most:
            self._order.scan_again(int(found[most - 1]))
        self._take(found[:most])
        return min(len(found), most)

    def _cached(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which samples the caches hold, with one look-up for each dataset."""
        owners, numbers = self._order.places(rows)
        found = np.zeros(len(rows), bool)
        for owner, cached in enumerate(self._datasets):
            mine = owners == owner
            if mine.any():
                found[mine] = cached.holds(numbers[mine])
        return found

    def _take(self, rows: NDArray[np.int64]) -> None:
        owners, numbers = self._order.places(rows)
        self._unread.extend(zip(owners.tolist(), numbers.tolist(), strict=True))
        self._chosen.extend(self._order.take(rows))

    def hand_out(self) -> Iterator[Any]:
        """Give what was chosen: a batch, or one index after the other. What was given is pending no more."""
        if self._sizes is not None:
            batch = [index for _, index in self._chosen]
            self._chosen.clear()
            yield batch
        while self._chosen:
            yield self._chosen.popleft()[1]

    # -- drawing -------------------------------------------------------------------------------------------------------

    def _draw(self, least: int, kept: NDArray[np.bool_] | None = None) -> None:
        """Take so many samples more from the sampler, if it has as many."""
        if self._source is not None and least > 0:
            drawn, self._source = draw(self._source, least)
            self._add(drawn, kept)

    def _add(self, drawn: list[tuple[Any, int]], kept: NDArray[np.bool_] | None = None) -> None:
        if drawn and self._sizes is None and is_batch(drawn[0][0]):
            self._sizes = deque()
        if self._sizes is not None:
            self._sizes.extend(count for _, count in drawn)
            indices = [index for batch, _ in drawn for index in batch]
        else:
            indices = [index for index, _ in drawn]
        if kept is None:
            kept = np.ones(len(indices), bool)
        else:  # a state of batches of another size may end within one
            kept = np.concatenate([kept, np.ones(len(indices), bool)])[: len(indices)]
            indices = list(itertools.compress(indices, kept.tolist()))
        places = [self._place(index) for index in indices]
        for cached, _ in places:
            if id(cached) not in self._owners:
                self._owners[id(cached)] = len(self._datasets)
                self._datasets.append(cached)
        owners = np.array([self._owners[id(cached)] for cached, _ in places], np.int32)
        numbers = np.array([number for _, number in places], np.int64)
        self._order.extend(Drawn(indices, owners, numbers), kept)

    # -- fetching ------------------------------------------------------------------------------------------------------

    def ask(self, most: int) -> bool:
        """Look up the oldest pending samples, up to ``most``, and count those as asked for that are not cached.

        Returns:
            Whether there are any.
        """
        order = self._order
        self._draw(min(most - (order.left - order.waiting), MOST_PENDING - order.left))
        rows = order.consider(most)
        rows = rows[~self._cached(rows)]
        order.ask(rows)
        return len(rows) > 0

    def note_unread(self, count: int) -> None:
        """Forget all that was chosen but for the last ``count`` samples, as it has been read."""
        for _ in range(len(self._unread) - count):
            self._unread.popleft()

    def lacking(self, most: int | None) -> list[tuple[CachedDataset, list[int]]]:
        """Look up which samples are still to be fetched.

        Args:
            most: samples of a dataset that its cache can hold; None: not known.

        Returns:
            Each dataset with positions in it: first of what was chosen and is unread, then of what was asked for,
            without what is cached.
        """
        asked = zip(*(column.tolist() for column in self._order.places(self._order.asked())), strict=True)
        wanted = self._by_dataset(itertools.chain(self._unread, asked))
        return [(cached, numbers[:most][~cached.holds(numbers[:most])].tolist()) for cached, numbers in wanted]

    # -- states --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Say which samples are pending: a bit for each from the oldest one on, up to the last one drawn."""
        begin, bits = self._order.pending([position for position, _ in self._chosen])
        return {"drawn": self._order.drawn, "begin": begin, "pending": bits}

    def resume(self, handed_out: int, state: dict[str, Any]) -> None:
        """Leave out what was handed out before.

        Args:
            handed_out: indices, or lists of them, that were.
            state: as :meth:`state` gave it; an empty one: those handed out are the first ones of the sampler.
        """
        if "pending" in state:
            self._draw(state["drawn"], kept_of(state["begin"], state["pending"], state["drawn"]))
        elif self._source is not None:
            drawn = [(item, count_of(item)) for item in itertools.islice(self._source, handed_out)]
            self._add(drawn, np.zeros(sum(count for _, count in drawn), bool))
        if self._sizes is not None:
            over = self._order.drawn - self._order.left
            while over:  # batches come in the sampler's sizes, so that those handed out are its first ones
                over -= self._sizes.popleft()
                if over < 0:
                    self._sizes.appendleft(-over)
                    over = 0


def is_batch(item: Any) -> bool:
    """Whether what a sampler gave is a list of indices."""
    return isinstance(item, (list, tuple))


def count_of(item: Any) -> int:
    """Count the samples that an index, or a list of them, stands for."""
    return len(item) if is_batch(item) else 1


def draw(source: Iterator[Any], least: int) -> tuple[list[tuple[Any, int]], Iterator[Any] | None]:
    """Take indices, or lists of them, until they stand for ``least`` samples; the source is None once it has ended."""
    drawn: list[tuple[Any, int]] = []
    samples = 0
    for item in source:
        count = count_of(item)
        drawn.append((item, count))
        samples += count
        if samples >= least:
            return drawn, source
    return drawn, None
