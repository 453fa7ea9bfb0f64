"""Elements for PyTorch."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from millrace.elements.tree import tree_map
from millrace.frameworks.readable import Readable
from millrace.planning.keys import derive

_SLOTS = 1024
"""Largest number of DataLoader workers, plus one."""
_EPOCH_BITS = 32


class TorchDataset(IterableDataset[Any]):
    """Elements with tensors in place of numeric arrays; each ``iter()`` is one epoch.

    In a DataLoader with several workers each worker gets a share of every epoch. Tensors share memory with the
    arrays that arrived; Python numbers, strings and bytes stay as they are.
    """

    def __init__(self, source: Readable) -> None:
        super().__init__()
        self._source = source
        self._epochs = _Epochs()
        source.prepare_to_fork()

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        share = None if info is None else (info.id, info.num_workers)
        elements = self._source.read_epoch(self._epochs.next(), share)
        return (tree_map(to_tensor, element) for element in elements)

    def __len__(self) -> int:
        """Elements of an epoch, where that is known."""
        return len(self._source)


def to_tensor(leaf: Any) -> Any:
    """A tensor over the memory of a numeric array; arrays of strings become lists, everything else stays."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.dtype.kind in "USO":
        return leaf.tolist()
    if leaf.dtype.kind not in "biufc":
        return leaf
    if not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))
    if not leaf.flags.writeable or any(stride < 0 for stride in leaf.strides):
        leaf = leaf.copy()
    return torch.from_numpy(leaf)


class _Epochs:
    """Numbers epochs alike in all workers of a DataLoader, which start anew each epoch and remember nothing.

    torch gives all workers of one pass the same base seed; with the number of passes that a worker has seen itself (workers
    may be persistent) it identifies the pass. Each worker writes that, with the epoch it took, into a slot of shared memory, one
    64-bit word, so that no lock is needed: who finds its pass in another's slot takes the same epoch, who doesn't takes
    the next; two that look at the same time find the same.
    """

    def __init__(self) -> None:
        self._slots = torch.zeros(_SLOTS, dtype=torch.int64).share_memory_()
        self._passes = 0

    def next(self) -> int:
        """Number of the epoch that begins."""
        info = get_worker_info()
        slot, seed = (0, secrets.randbits(63)) if info is None else (info.id + 1, info.seed - info.id)
        self._passes += 1
        mark = (derive(seed, self._passes) >> (_EPOCH_BITS + 1)) or 1
        words = self._slots.tolist()
        known = [word & (2**_EPOCH_BITS - 1) for word in words if word >> _EPOCH_BITS == mark]
        number = known[0] if known else max(word & (2**_EPOCH_BITS - 1) for word in words) + 1
        self._slots[slot] = (mark << _EPOCH_BITS) | number
        return number - 1
