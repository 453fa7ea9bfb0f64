"""Samplers of torch, for :meth:`millrace.Dataset.sample`."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from millrace.errors import PipelineError
from millrace.planning.random_keys import derive

_GENERATOR = threading.Lock()
"""Held while torch's own generator is seeded: a worker's threads may draw at the same time."""


class TorchSampler:
    """Sampler that draws what one of torch's would, in whatever process.

    Its generator, if it has one, is seeded by the pipeline's seed and the epoch, and its ``set_epoch`` is called, if it
    has that. A sampler that holds its dataset (``RandomSampler(dataset)`` does) takes that along to the workers;
    ``RandomSampler(range(len(dataset)))`` draws the same. One without a generator of its own draws from torch's, which
    is seeded for it and is then as it was before.

    Args:
        sampler: gives positions, one by one.

    Raises:
        PipelineError: it is none, or gives batches.
    """

    def __init__(self, sampler: Sampler[Any]) -> None:
        if not hasattr(sampler, "__iter__") or not hasattr(sampler, "__len__"):
            raise PipelineError(f"TorchSampler takes a sampler of torch that has a length, not {sampler!r}")
        if hasattr(sampler, "batch_size"):
            raise PipelineError(
                f"TorchSampler takes a sampler of single positions, and {type(sampler).__name__} gives batches: write"
                " .sample(...).batch(n)"
            )
        self._sampler: Any = sampler
        self.num_samples = len(sampler)

    def positions(self, size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Draw an epoch, see :class:`millrace.samplers.Sampler`."""
        sampler = copy.copy(self._sampler)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        key = derive(seed, epoch) >> 1
        if hasattr(sampler, "generator"):
            sampler.generator = torch.Generator().manual_seed(key)
            return np.array([int(position) for position in sampler], np.int64)
        with (
            _GENERATOR,
            torch.random.fork_rng(devices=[]),
        ):  # one of the user's own, perhaps, that goes by torch's generator
            torch.manual_seed(key)
            return np.array([int(position) for position in sampler], np.int64)
