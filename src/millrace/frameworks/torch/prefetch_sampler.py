"""Sampler that has the samples it is about to hand out fetched into a cache (DELI, sections III-B and IV-C).

With ``look_ahead`` it hands out those first that are cached already (Quiver, section 4.6).
"""

from __future__ import annotations

import bisect
import copy
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Sampler, Subset

from millrace.blocks.samples.sample_cache import SampleCache
from millrace.errors import MillraceWarning, PipelineError, StateError
from millrace.frameworks.torch.cached_dataset import CachedDataset, datasets_of
from millrace.frameworks.torch.prefetcher import Prefetcher
from millrace.frameworks.torch.substituting_pass import SubstitutingPass, draw, is_batch
from millrace.policies.decision import Decision
from millrace.policies.sample_prefetch import PrefetchSizes, is_due, prefetch_sizes, worth_asking
from millrace.policies.sample_substitution import choice_size
from millrace.whole_numbers import is_int, whole

Place = tuple[CachedDataset, int]
SamplerState = tuple[dict[str, Any] | None, dict[str, Any] | None]
"""States of a sampler and of its iterator."""


class PrefetchSampler(Sampler[Any]):
    """The indices of another sampler, whose samples are fetched before a loop reads them.

    They come in that sampler's order, unless ``look_ahead`` is given: then samples that are cached stand in for those
    that aren't, and each index still comes once in every pass.

    It stands wherever that sampler stood, also as a ``batch_sampler``. What it asks for goes to the cache of the
    :class:`CachedDataset` that the indices are of: the dataset itself, or one below a ``Subset`` or a
    ``ConcatDataset``. Fetching begins with ``iter()`` and never holds the loop up.

    Args:
        sampler: of the indices, or of lists of them.
        cache: the cached dataset, or its cache.
        fetch_size: samples to ask for at a time; None: half of what the cache can hold, of which
            the ranks of a host that share it take equal parts.
        prefetch_threshold: samples asked for and not yet read, at or below which the next ones are asked for; None:
            as many as are fetched at a time. What a DataLoader's workers have in hand counts as not yet read.
        look_ahead: how many times as many samples to look up in the cache as are handed out next, which is a batch of a
            batch sampler or up to 64. Those that are there come first, and the others once they are there or nothing
            else is. 10 suits a cache that holds a tenth of the data or more. None: the order is the sampler's.
        threads: fetches at a time; None: as many as pay, from 16 up to 64 if the loop waits for samples.
        positions: makes an index one of the cached dataset, where millrace can't tell what a dataset in between does.

    Raises:
        PipelineError: an argument is out of range, or which samples the indices stand for can't be told.
    """

    def __init__(
        self,
        sampler: Any,
        cache: SampleCache | CachedDataset,
        fetch_size: int | None = None,
        prefetch_threshold: int | None = None,
        *,
        look_ahead: int | None = None,
        threads: int | None = None,
        positions: Callable[[int], int] | None = None,
    ) -> None:
        if isinstance(sampler, SampleCache | CachedDataset) or not isinstance(cache, SampleCache | CachedDataset):
            raise PipelineError(
                "PrefetchSampler(sampler, cache) takes a sampler and then the CachedDataset that its indices are of, or"
                f" its SampleCache, not {type(sampler).__name__} and {type(cache).__name__}"
            )
        for name, value, least in (
            ("fetch_size", fetch_size, 1),
            ("prefetch_threshold", prefetch_threshold, 0),
            ("look_ahead", look_ahead, 1),
            ("threads", threads, 1),
        ):
            if value is not None:
                whole("PrefetchSampler", name, value, least)
        self.sampler = sampler
        self.threads, self.look_ahead = threads, look_ahead
        self._chosen = fetch_size, prefetch_threshold
        self._source = cache if positions is not None else _source_of(sampler)
        self._positions = positions
        known = datasets_of(cache) if isinstance(cache, SampleCache) else [cache]
        self._datasets = _cached_below(self._source) or known
        self._place = self._translation()
        self._prefetchers: dict[int, Prefetcher] = {}
        self._handed = 0
        self._begun: SamplerState | None = None
        self._first: list[Any] = []
        self._pass: SubstitutingPass | None = None
        self._loaded: dict[str, Any] | None = None

    def _translation(self) -> Callable[[int], Place]:
        if self._positions is not None or self._source is None:
            return _only(self._datasets, self._positions)
        return _translation(self._source)

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Pass the number of an epoch on to the sampler, or to the one that makes its batches of indices.

        A ``DistributedSampler`` needs it.
        """
        sampler: Any = self.sampler
        while sampler is not None:
            if (inner := getattr(sampler, "set_epoch", None)) is not None:
                inner(epoch)
                return
            sampler = getattr(sampler, "sampler", None)

    def state_dict(self) -> dict[str, Any]:
        """Say how far the newest pass has come, for torchdata's ``StatefulDataLoader``.

        That is a count, and the wrapped sampler's own state behind the pass's first index if it has one; with
        ``look_ahead`` also a bit for each index that was passed over or is behind one that was.
        """
        if self._loaded is not None:
            return self._loaded
        state: dict[str, Any] = {"handed_out": self._handed, "sampler": self._begun if self._handed else None}
        if self._pass is not None and self._handed:
            state |= {"first": self._first, **self._pass.state()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass begin where the state was taken; what is left out is not fetched.

        What the cache holds by then plays no part: each index comes that had not come, and none a second time.
        The wrapped sampler has to give the same indices again: one with a state of its own does, and one with a seed
        and the same ``set_epoch``. A warning says so where it draws from torch's global generator.

        Raises:
            StateError: this is no state of a PrefetchSampler.
        """
        if not _is_state(state):
            raise StateError(f"this is no state of a PrefetchSampler, as its state_dict() gives it: {state!r:.200}")
        if state["handed_out"] and _is_unseeded(self.sampler):
            warnings.warn(
                f"{type(self.sampler).__name__} draws its order from torch's global generator and has no state: going "
                "on in mid-epoch repeats samples and leaves others out, unless torch.manual_seed has it draw the same "
                "order again. Give it generator=..., or take RandomSampler of torchdata.stateful_dataloader.sampler",
                MillraceWarning,
                stacklevel=2,
            )
        self._loaded = state

    def sizes(self) -> Decision[PrefetchSizes]:
        """Decide how much is fetched ahead now; the reason says why."""
        batch = self._pass.batch if self._pass is not None else 0
        return prefetch_sizes(self._room(), *self._chosen, self.look_ahead, batch)

    def _room(self) -> int | None:
        rooms = [room for each in self._datasets if (room := each.room()) is not None]
        return min(rooms, default=None)

    def __iter__(self) -> Iterator[Any]:
        loaded, before, source = self._begin()
        try:
            if self.look_ahead is None and "pending" not in loaded:
                self._pass = None
                yield from self._in_order(itertools.islice(source, before, None))
            else:
                self._pass = SubstitutingPass(source, self._place, self.look_ahead or 0)
                self._pass.resume(before, loaded)
                yield from self._substituted(self._pass)
        finally:
            for prefetcher in self._prefetchers.values():
                prefetcher.forget()

    def _in_order(self, indices: Iterator[Any]) -> Iterator[Any]:
        """Hand out indices as the sampler gave them."""
        coming: deque[tuple[Any, int]] = deque()  # what the sampler gave, and for how many samples it stands
        source: Iterator[Any] | None = indices
        waiting = handed = 0
        before, threshold = self._reads(), 0
        while True:
            if source is not None and (waiting <= threshold or not coming):
                unread = min(handed, max(0, handed - (self._reads() - before)))
                if not coming or is_due(waiting, unread, threshold):
                    fetch_size, threshold = self.sizes().value
                    fresh, source = draw(source, fetch_size)
                    coming.extend(fresh)
                    drawn = sum(count for _, count in fresh)
                    most = worth_asking(drawn, waiting + unread, self._room())
                    waiting += drawn
                    self._ask(fresh, most, waiting + unread)
            if not coming:
                return
            item, count = coming.popleft()
            waiting, handed = waiting - count, handed + count
            self._handed += 1
            yield item

    def _substituted(self, coming: SubstitutingPass) -> Iterator[Any]:
        """Hand out indices whose samples are cached first."""
        handed, before = 0, self._reads()
        while (chosen := coming.choose(choice_size(room := self._room()))) is not None:
            handed += chosen
            self._ask_pending(coming, min(handed, max(0, handed - (self._reads() - before))), room)
            for item in coming.hand_out():
                self._handed += 1
                yield item

    def _begin(self) -> tuple[dict[str, Any], int, Iterator[Any]]:
        """Begin a pass of the sampler.

        Returns:
            The state that the pass goes on from, how many of its indices were handed out before, and its indices.
        """
        loaded = self._loaded or {}
        self._loaded, begun = None, loaded.get("sampler")
        before = self._handed = loaded.get("handed_out", 0)
        if begun is not None:
            _load(self.sampler, begun[0])
        indices: Iterator[Any] = iter(self.sampler)
        if begun is not None:  # behind the first index
            _load(indices, begun[1])
            self._first = loaded.get("first", [])
            before -= "first" not in loaded
        else:  # torchdata's samplers begin anew when the first index is drawn
            self._first = list(itertools.islice(indices, 1))
            begun = _state(self.sampler), _state(indices)
        self._begun = begun if any(begun) else None
        return loaded, before, itertools.chain(self._first, indices)

    def _reads(self) -> int:
        return sum(each.reads() for each in self._datasets)

    def _ask(self, drawn: Sequence[tuple[Any, int]], most: int, unread: int) -> None:
        """Have the first ``most`` of the samples drawn fetched, ``unread`` of which and before are to be read."""
        wanted: dict[int, tuple[CachedDataset, list[int]]] = {}
        indices = (index for item, _ in drawn for index in (item if is_batch(item) else (item,)))
        for index in itertools.islice(indices, most):
            cached, number = self._place(index)
            wanted.setdefault(id(cached), (cached, []))[1].append(number)
        for cached, numbers in wanted.values():
            self._prefetcher(cached).ask(numbers, unread)

    def _ask_pending(self, coming: SubstitutingPass, unread: int, room: int | None) -> None:
        """Have the oldest pending samples fetched, behind those that are to be read and lack, if it is time to."""
        coming.note_unread(unread)
        (fetch_size, threshold), asked = self.sizes().value, False
        if coming.scarce and coming.waiting <= threshold:
            most = min(threshold + fetch_size - coming.waiting, (self.look_ahead or 1) * coming.size)
            asked = coming.ask(worth_asking(most, coming.waiting + unread, room))
        if not (asked or coming.short):
            return
        for cached, numbers in coming.lacking(room):
            if numbers or id(cached) in self._prefetchers:
                prefetcher = self._prefetcher(cached)
                prefetcher.forget()  # what others have fetched since, or the loop has read
                prefetcher.ask(numbers, len(numbers))

    def _prefetcher(self, cached: CachedDataset) -> Prefetcher:
        key = id(cached)
        if key not in self._prefetchers:
            self._prefetchers[key] = Prefetcher(cached, self.threads)
        return self._prefetchers[key]

    def close(self) -> None:
        """End prefetching, and the process that does it. Idempotent; a further ``iter()`` begins anew."""
        while self._prefetchers:
            self._prefetchers.popitem()[1].close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_prefetchers", "_place", "_pass"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._prefetchers, self._pass, self._handed = {}, None, 0
        self._place = self._translation()


def _state(sampler: Any) -> dict[str, Any] | None:
    """Take the state of a sampler, or of its iterator; None: it has none."""
    return copy.deepcopy(sampler.state_dict()) if hasattr(sampler, "state_dict") else None


def _is_state(state: Any) -> bool:
    if not isinstance(state, dict) or not is_int(state.get("handed_out")) or state["handed_out"] < 0:
        return False
    substituting = {"first", "drawn", "begin", "pending"} & state.keys()
    return "sampler" in state and len(substituting) in (0, 4)


def _is_unseeded(sampler: Any) -> bool:
    """Whether a sampler, or the one that it makes batches of, draws from torch's global generator, and has no state."""
    if hasattr(sampler, "state_dict"):
        return False
    inner = getattr(sampler, "sampler", None)
    return getattr(sampler, "generator", sampler) is None if inner is None else _is_unseeded(inner)


def _load(sampler: Any, state: dict[str, Any] | None) -> None:
    if state is not None:
        sampler.load_state_dict(state)


# -- which samples indices stand for -----------------------------------------------------------------------------------


def _source_of(sampler: Any) -> Any:
    """Find the dataset that a sampler was made for, as torch's samplers remember it; None: it doesn't say."""
    for name in ("data_source", "dataset"):
        if getattr(sampler, name, None) is not None:
            return getattr(sampler, name)
    inner = getattr(sampler, "sampler", None)
    return None if inner is None else _source_of(inner)


def _cached_below(source: Any) -> list[CachedDataset]:
    if isinstance(source, CachedDataset):
        return [source]
    if isinstance(source, Subset):
        return _cached_below(source.dataset)
    if isinstance(source, ConcatDataset):
        return list({id(each): each for part in source.datasets for each in _cached_below(part)}.values())
    return []


def _translation(source: Any) -> Callable[[int], Place]:
    """Make a function from an index of ``source`` to the (cached dataset, position in it) that it stands for."""
    if isinstance(source, CachedDataset):
        return lambda index: (source, source.position(index))
    if isinstance(source, Subset):
        below, indices = _translation(source.dataset), source.indices
        return lambda index: below(indices[index])
    if isinstance(source, ConcatDataset):
        parts, ends = [_translation(part) for part in source.datasets], source.cumulative_sizes

        def place(index: int) -> Place:
            number = index + ends[-1] if index < 0 else index
            part = bisect.bisect_right(ends, number)
            return parts[part](number - (ends[part - 1] if part else 0))

        return place
    raise PipelineError(
        f"PrefetchSampler: the sampler's indices are those of a {type(source).__name__}, and which samples of the "
        "CachedDataset they stand for can't be told: give the sampler the CachedDataset, a Subset or a ConcatDataset "
        "of it, or say it with positions=lambda index: ..."
    )


def _only(datasets: Sequence[CachedDataset], positions: Callable[[int], int] | None) -> Callable[[int], Place]:
    if len(datasets) != 1:
        raise PipelineError(
            f"PrefetchSampler: {len(datasets)} CachedDatasets of this process use that cache, and the sampler doesn't "
            "say which one its indices are of: give the CachedDataset in place of its cache"
        )
    cached = datasets[0]
    return lambda index: (cached, cached.position(index if positions is None else positions(index)))
