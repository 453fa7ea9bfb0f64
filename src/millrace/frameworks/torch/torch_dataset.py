"""Elements for PyTorch."""

from __future__ import annotations

import fcntl
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import context, reduction
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from millrace.elements.ragged import is_ragged
from millrace.elements.tree import tree_map
from millrace.frameworks.base import Converted, Readable, View
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.random_keys import derive


class TorchDataset(View, IterableDataset[Any]):
    """Elements with tensors in place of numeric arrays; each ``iter()`` is one epoch.

    In a DataLoader with several workers each worker gets a share of every epoch. Tensors share memory with the
    arrays that arrived; Python numbers, strings and bytes stay as they are. Ragged arrays become nested tensors of the
    jagged layout.
    """

    def __init__(self, source: Readable) -> None:
        super().__init__(source, "torch()")
        self._epochs = _Epochs()
        source.prepare_to_fork()

    def __iter__(self) -> Converted:
        info = get_worker_info()
        share = None if info is None else (info.id, info.num_workers)
        self._source.adopt_seed(self._epochs.seed)
        return Converted(self._source.read_epoch(self._epochs.number, share), _to_torch)


def _to_torch(element: Any) -> Any:
    return _with_jagged(tree_map(to_tensor, element))


def _with_jagged(element: Any) -> Any:
    """Make ragged arrays, of which the parts are tensors, nested tensors of the jagged layout."""
    if isinstance(element, dict):
        return {key: _with_jagged(child) for key, child in element.items()}
    if not isinstance(element, (tuple, list)) or not element:
        return element
    if is_ragged(element):
        values, splits = element
        whole = isinstance(values, torch.Tensor) and isinstance(splits, torch.Tensor)
        return torch.nested.nested_tensor_from_jagged(values, splits) if whole else element
    if isinstance(element, list) and not isinstance(element[0], (dict, tuple, list)):
        return element
    parts = [_with_jagged(child) for child in element]
    return parts if isinstance(element, list) else getattr(type(element), "_make", tuple)(parts)


_REGISTERED = 2
"""What numpy says of a dtype that another package has made, as ml_dtypes those of bfloat16 and float8."""
_INTEGERS = {1: np.dtype(np.int8), 2: np.dtype(np.int16)}


def to_tensor(leaf: Any) -> Any:
    """Make a tensor over the memory of a numeric array; arrays of strings become lists, everything else stays.

    Copies where torch cannot view: read-only memory, other byte orders, strides that are negative or no multiple of
    the item size. bfloat16 and float8 are those of the package ml_dtypes. Arrays of dtypes that torch has not (dates,
    records, long double) stay arrays.
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.dtype.kind in "USO":
        return leaf.tolist()
    if leaf.dtype.isbuiltin == _REGISTERED:
        small, integer = getattr(torch, leaf.dtype.name, None), _INTEGERS.get(leaf.dtype.itemsize)
        if integer is None or not isinstance(small, torch.dtype) or not small.is_floating_point:
            return leaf
        return to_tensor(leaf.view(integer)).view(small)
    if leaf.dtype.kind not in "biufc" or leaf.dtype.char in "gG":
        return leaf
    if not leaf.dtype.isnative:
        leaf = leaf.astype(leaf.dtype.newbyteorder("="))
    if not leaf.flags.writeable or any(stride < 0 or stride % leaf.itemsize for stride in leaf.strides):
        leaf = leaf.copy()
    return torch.from_numpy(leaf)


_KEPT = 64
"""Passes of which the number is remembered: as many may go on at a time."""
_WORKERS = 1024
"""Workers of a loader that are told apart."""
_PASS = np.dtype([("mark", np.uint64), ("number", np.int64), ("of", np.int64), ("came", np.uint8, _WORKERS // 8)])
"""A pass: its mark, the number of its epoch, its workers, and a bit for each of these that has begun it."""
_SEED = _KEPT * _PASS.itemsize
"""Where the file holds the seed of a loaded state, behind the passes."""


class _Epochs:
    """Numbering of epochs that is alike in all workers of a DataLoader, which may remember nothing between epochs.

    torch gives all workers of one pass the same base seed; with the number of passes that a worker has seen itself
    (workers may be persistent) it marks the pass. Passes and the epochs they got stand in a file without a name,
    which all these processes have open: the first of a pass takes the next number, the others find it there. Who sets
    torch's seed anew, or goes back to a state, has the same mark again; but no worker takes part in one pass twice. The
    file's lock goes with the process that holds it, however it ends.
    """

    def __init__(self, begun: int = 0) -> None:
        file, path = tempfile.mkstemp(prefix="millrace-")
        os.unlink(path)
        self._hold(file)
        self._rewind(begun, None)

    def _rewind(self, number: int, seed: int | None) -> None:
        """Have the pass that begins next be epoch ``number`` of a run with this seed."""
        passes = np.zeros(_KEPT, _PASS)
        passes["number"] = number - 1
        os.pwrite(self._file, passes.tobytes() + msgspec.msgpack.encode(seed), 0)

    @property
    def seed(self) -> int | None:
        """Seed of the state that was loaded last."""
        return msgspec.msgpack.decode(os.pread(self._file, _PASS.itemsize, _SEED), type=int | None)

    def _hold(self, file: int, passes: int = 0) -> None:
        self._file, self._passes = file, passes
        weakref.finalize(self, os.close, file).atexit = False

    def number(self, least: int, loaded: Sequence[Checkpoint]) -> int:
        """Return the number of the epoch that begins; at least ``least``, unless another worker has begun this pass.

        If states were loaded it is just that, however many there were before.
        """
        info = get_worker_info()
        self._passes += 1
        mark, of, (byte, bit) = 0, 1, divmod(0 if info is None else info.id % _WORKERS, 8)
        if info is not None:
            mark, of = derive(info.seed - info.id, self._passes), info.num_workers
        with self._locked():
            passes = self._read()
            awaited = (passes["mark"] == mark) & (passes["of"] == of) & (passes["came"][:, byte] & 1 << bit == 0)
            if mark and awaited.any():
                place = int(np.where(awaited, passes["number"], -1).argmax())
            else:
                if loaded:
                    self._rewind(least, loaded[0].seed)
                    passes = self._read()
                number = max(int(passes["number"].max()) + 1, least)
                place = number % _KEPT
                passes[place] = mark, number, of, 0
            passes["came"][place, byte] |= 1 << bit
            os.pwrite(self._file, passes[place].tobytes(), place * _PASS.itemsize)
            return int(passes["number"][place])

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self) -> Any:
        return np.frombuffer(os.pread(self._file, _KEPT * _PASS.itemsize, 0), _PASS).copy()

    def __getstate__(self) -> tuple[int, int, Any]:
        # A child that is being spawned gets the file; whoever else gets a copy begins a numbering of its own.
        spawning = context.get_spawning_popen() is not None
        shared = reduction.DupFd(self._file) if spawning else None
        return int(self._read()["number"].max()) + 1, self._passes, shared

    def __setstate__(self, state: tuple[int, int, Any]) -> None:
        begun, passes, shared = state
        if shared is None:
            _Epochs.__init__(self, begun)
        else:
            self._hold(shared.detach(), passes)
