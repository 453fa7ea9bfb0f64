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
from millrace.errors import StateError
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
        if source not in _numberings:
            _numberings[source] = _Epochs()
        self._epochs = _numberings[source]
        source.prepare_to_fork()

    def __iter__(self) -> Converted:
        info, epochs, source = get_worker_info(), self._epochs, self._source
        share = None if info is None else (info.id, info.num_workers)
        epochs.own()
        if share is not None and epochs.were_for_another(source.load_id):
            source.forget_state()  # this process is a copy of one that loaded them, and another pass began with them
        if source.load_id is None:
            source.adopt_seed(epochs.seed)
        begun = False

        def number(least: int, loaded: Sequence[Checkpoint]) -> int:
            nonlocal begun
            if begun and share is not None:
                return least  # a state that is loaded into this iterator: the loader's other workers have theirs
            begun = True
            return epochs.number(least, loaded, source.load_id)

        return Converted(source.read_epoch(number, share), _to_torch)

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`millrace.frameworks.base.Stateful.state_dict`.

        Raises:
            StateError: worker processes of a DataLoader read the last epoch, and they alone know how far they are.
        """
        if get_worker_info() is None and self._epochs.read_by_workers(self._source.load_id):
            raise StateError(
                f"worker processes of a DataLoader read {self}, and they alone know how far they are: use torchdata's "
                "StatefulDataLoader, whose state_dict() asks them, or num_workers=0"
            )
        return super().state_dict()

    get_state = state_dict


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


class _Loaded(msgspec.Struct, frozen=True, array_like=True):
    """Part of the file behind the passes: the states that were loaded last.

    Attributes:
        seed: of their run.
        load_id: says which loading it was; None: nothing was loaded.
        mark: of the pass that began with them.
    """

    seed: int | None = None
    load_id: int | None = None
    mark: int = 0


class _Epochs:
    """Numbering of epochs that is alike in all workers of a DataLoader, which may remember nothing between epochs.

    torch gives all workers of one pass the same base seed; with the number of passes that a worker has seen itself
    (workers may be persistent) it marks the pass. Passes and the epochs they got stand in a file without a name,
    which all these processes have open: the first of a pass takes the next number, the others find it there. Who sets
    torch's seed anew, or goes back to a state, has the same mark again; but no worker takes part in one pass twice. The
    file's lock goes with the process that holds it, however it ends.

    Other processes than a loader's workers, as ranks are that were started with a view, go on with numberings of their
    own (:meth:`own`): what one rank reads is no epoch less for the next.
    """

    def __init__(self) -> None:
        self._begin(0, _Loaded())

    def _begin(self, begun: int, loaded: _Loaded) -> None:
        """Begin a numbering with epoch ``begun``, after ``loaded``."""
        file, path = tempfile.mkstemp(prefix="millrace-")
        os.unlink(path)
        self._hold(file, os.getpid())
        self._rewind(begun, loaded)

    def _hold(self, file: int, owner: int, passes: int = 0) -> None:
        self._file, self._owner, self._passes = file, owner, passes
        self._close = weakref.finalize(self, os.close, file)
        self._close.atexit = False
        _held.add(self)

    def own(self) -> None:
        """Go on with a numbering of this process's own, unless it has one or is a worker of a loader."""
        if self._owner == os.getpid() or get_worker_info() is not None:
            return
        close = self._close
        self._begin(self._following(), self._loaded())
        close()

    def _rewind(self, number: int, loaded: _Loaded) -> None:
        """Have the pass that begins next be epoch ``number``."""
        passes = np.zeros(_KEPT, _PASS)
        passes["number"] = number - 1
        os.pwrite(self._file, passes.tobytes() + msgspec.msgpack.encode(loaded), 0)

    def _loaded(self) -> _Loaded:
        return msgspec.msgpack.decode(os.pread(self._file, _PASS.itemsize, _KEPT * _PASS.itemsize), type=_Loaded)

    @property
    def seed(self) -> int | None:
        """Seed of the state that was loaded last."""
        return self._loaded().seed

    def were_for_another(self, load_id: int | None) -> bool:
        """Whether these loaded states were what another pass than the one that this worker begins next began with."""
        loaded = self._loaded()
        return load_id is not None and loaded.load_id == load_id and loaded.mark != self._mark(self._passes + 1)

    def read_by_workers(self, load_id: int | None) -> bool:
        """Whether workers of a loader read the last pass, and no states were loaded since."""
        passes = self._read()
        newest = passes[int(passes["number"].argmax())]
        return bool(newest["mark"]) and (load_id is None or self._loaded().load_id == load_id)

    def _mark(self, passes: int) -> int:
        info = get_worker_info()
        return 0 if info is None else derive(info.seed - info.id, passes)

    def number(self, least: int, loaded: Sequence[Checkpoint], load_id: int | None) -> int:
        """Return the number of the epoch that begins; at least ``least``, unless another worker has begun this pass.

        If states were loaded it is just that, however many there were before.
        """
        info = get_worker_info()
        self._passes += 1
        mark, of, (byte, bit) = 0, 1, divmod(0 if info is None else info.id % _WORKERS, 8)
        if info is not None:
            mark, of = self._mark(self._passes), info.num_workers
        with self._locked():
            passes = self._read()
            awaited = (passes["mark"] == mark) & (passes["of"] == of) & (passes["came"][:, byte] & 1 << bit == 0)
            if mark and awaited.any():
                place = int(np.where(awaited, passes["number"], -1).argmax())
            else:
                if loaded:
                    self._rewind(least, _Loaded(loaded[0].seed, load_id, mark))
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

    def _following(self) -> int:
        return int(self._read()["number"].max()) + 1

    def __getstate__(self) -> tuple[int, int, int, Any]:
        # A child that is being spawned gets the file; whoever else gets a copy begins a numbering of its own.
        spawning = context.get_spawning_popen() is not None
        if spawning:
            self.own()
        shared = reduction.DupFd(self._file) if spawning else None
        return self._following(), self._passes, self._owner, shared

    def __setstate__(self, state: tuple[int, int, int, Any]) -> None:
        begun, passes, owner, shared = state
        if shared is None:
            self._begin(begun, _Loaded())
        else:
            self._hold(shared.detach(), owner, passes)


_held: weakref.WeakSet[_Epochs] = weakref.WeakSet()
_numberings: weakref.WeakKeyDictionary[Readable, _Epochs] = weakref.WeakKeyDictionary()
"""By dataset: all views of one go on with each other's epochs, also those that are made anew for each."""


def _own_all() -> None:
    """Before a fork: a loader's workers share the numbering of the process that starts them."""
    for each in list(_held):
        each.own()


os.register_at_fork(before=_own_all)
