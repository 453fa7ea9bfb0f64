"""Map-style dataset of PyTorch with a cache on a local disk (DELI, section IV-B)."""

from __future__ import annotations

import operator
import os
import secrets
import uuid
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, IterableDataset

from millrace.blocks.samples.counters import SampleCounts
from millrace.blocks.samples.sample_cache import SampleCache
from millrace.errors import PipelineError, UnsureError
from millrace.frameworks.torch import sample_pickle
from millrace.functions.fingerprint import fingerprint
from millrace.host_limits import siblings

_cached: weakref.WeakSet[CachedDataset]


class CachedDataset(Dataset[Any]):
    """A map-style dataset whose samples are kept on a local disk once they were read.

    It stands wherever the dataset stood: in a DataLoader with or without workers, under a ``Subset``, in
    ``random_split``. What it holds is what ``dataset[index]`` returned: random augmentation belongs behind it, as it
    would otherwise be drawn once for each sample.

    Args:
        dataset: what has ``__getitem__`` and ``__len__``. With a :class:`PrefetchSampler` it is asked by several
            threads at once.
        cache: where samples are kept; several datasets may share one. An int stands for ``SampleCache(max_bytes)``.
        name: of the dataset in a cache whose folder several processes or runs share; None: made of what the dataset is,
            so that a changed one begins anew.

    Raises:
        PipelineError: the dataset isn't a map-style one, or the cache none.
        UnsureError: what the dataset is can't be told by looking at it, and its cache is shared: give ``name``.
    """

    def __init__(self, dataset: Any, cache: SampleCache | int, *, name: str | None = None) -> None:
        map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        if not map_style or isinstance(dataset, IterableDataset):
            raise PipelineError(
                f"CachedDataset: {type(dataset).__name__} has not both __getitem__ and __len__, so it is no map-style "
                "dataset; an iterable one is read in order by nature: use millrace.Dataset for it"
            )
        if isinstance(cache, int):
            cache = SampleCache(cache)
        if not isinstance(cache, SampleCache):
            raise PipelineError(f"CachedDataset: cache={cache!r} is no SampleCache, and no number of bytes for one")
        self.dataset = dataset
        self.cache = cache
        cache.dumps = sample_pickle.dumps
        self.name = _name(dataset, cache) if name is None else name
        self._owner = secrets.randbits(62) + 1  # copies in a DataLoader's workers read for the same one
        _cached.add(self)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        number = self.position(index)
        return self.cache.read(self.name, number, lambda: self.dataset[number], self._owner)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Read several samples, in order; DataLoaders ask for a batch this way."""
        return [self[index] for index in indices]

    def position(self, index: Any) -> int:
        """Make an index an int from 0 on; negative ones count from the end.

        Raises:
            IndexError: there is no such sample.
        """
        number, length = operator.index(index), len(self.dataset)
        if not -length <= number < length:
            raise IndexError(f"sample {number} of {length}")
        return number % length

    def fetch_ahead(self, index: int) -> bool:
        """Put a sample into the cache, unless it is there or somebody is fetching it; failures are counted only.

        Returns:
            Whether it was fetched.
        """
        return self.cache.fetch_ahead(self.name, index, lambda: self.dataset[index], self._owner)

    def holds(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Look up which samples are in the cache, with one question for all; they may be gone when they are read.

        Args:
            numbers: of the samples, from 0 on.
        """
        held = self.cache.held(self.name, numbers.tolist()) if len(numbers) else []
        return np.isin(numbers, held)

    def renew(self, numbers: NDArray[np.int64]) -> None:
        """Let samples that are about to be read, in this order, go no sooner than what is fetched from now on."""
        if len(numbers):
            self.cache.renew(self.name, numbers.tolist())

    def reads(self) -> int:
        """Count the samples that were read through this object and its copies in other processes."""
        return self.cache.reads(self.name, self._owner)

    def missed_s(self) -> float:
        """Sum the seconds for which reads have waited for samples that the cache did not have yet."""
        return self.stats().missed_s

    def room(self) -> int | None:
        """Estimate how many samples the cache can hold for this rank of those that share it; None: not known yet."""
        room = self.cache.room()
        return room // siblings() if room is not None and self.cache.shared else room

    def stats(self) -> SampleCounts:
        """Hits, misses, waits and more, in all processes that read this dataset through this cache."""
        return self.cache.stats(self.name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)  # classes, transforms and whatever else users ask their dataset for

    def __repr__(self) -> str:
        return f"CachedDataset({self.dataset!r}, {self.cache!r})"


_cached = weakref.WeakSet()


def datasets_of(cache: SampleCache) -> list[CachedDataset]:
    """Datasets of this process that keep their samples in ``cache``."""
    return [each for each in _cached if each.cache is cache]


def _name(dataset: Any, cache: SampleCache) -> str:
    if not cache.shared:
        return uuid.uuid4().hex
    try:
        return fingerprint(dataset).hex()
    except UnsureError as error:
        raise UnsureError(
            f"CachedDataset: {error}; so samples in {cache.folder} can't be told from those of another dataset: give "
            f"it a name, such as CachedDataset(dataset, cache, name='train-{os.path.basename(cache.folder)}'), and "
            "another one when the dataset changes"
        ) from error
