"""Views of datasets, in process and distributed alike, and the pipeline that each of them reads."""

from __future__ import annotations

import copy
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

from millrace.engine.run.element_iterator import ElementIterator, StatefulIterator
from millrace.equivalents import NamesEquivalents
from millrace.errors import PipelineError
from millrace.functions.signature import describe
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.epoch_cursor import EpochCursor, Number, Share
from millrace.planning.shapes import Varying

if TYPE_CHECKING:
    from millrace.frameworks.jax import JaxDataset
    from millrace.frameworks.numpy import NumpyDataset
    from millrace.frameworks.tensorflow import TensorflowDataset
    from millrace.frameworks.torch import TorchDataset
    from millrace.policies.saved_data import MadeOf
    from millrace.sources.saved_manifest import SaveResult


class Readable(ABC):
    """Pipeline behind a dataset and its views, which read it epoch by epoch."""

    _passes: EpochCursor

    def state_dict(self) -> dict[str, Any]:
        """See :meth:`Stateful.state_dict`."""
        return self._passes.state(self._fresh_state)

    def load_state_dict(self, state: Any) -> None:
        """See :meth:`Stateful.load_state_dict`."""
        self._passes.load(state, self._fresh_state().identity)
        self._passes.load_id = secrets.randbits(63)

    def set_weights(self, weights: Sequence[float]) -> int:
        """See :meth:`Stateful.set_weights`."""
        return self._passes.set_weights(weights)

    @property
    def load_id(self) -> int | None:
        """Which loading of states the next epoch begins with; copies of this object know it too. None: no states."""
        return self._passes.load_id if self._passes.loaded else None

    @property
    def whole(self) -> bool:
        """Whether an epoch is sure to have as many elements as ``len()`` says, of those that aren't resumed."""
        return True

    def forget_state(self) -> None:
        """Forget loaded states that the next epoch was to begin with: it is a whole one."""
        self._passes.forget()

    def adopt_seed(self, seed: int | None) -> None:
        """Take over the seed of loaded states, in the place of one that was drawn; None: nothing was loaded."""
        if seed is not None:
            vars(self)["seed"] = seed

    @abstractmethod
    def _fresh_state(self) -> Checkpoint:
        """State before the first epoch."""

    @abstractmethod
    def read_epoch(self, number: Number = None, share: Share | None = None) -> ElementIterator:
        """Elements of one epoch.

        Args:
            number: of the epoch, from 0, or what says it when told which is the next; None: the next.
            share: (i, n): this process is helper i of n that read for one consumer, and may come and go between epochs;
                what they get is disjoint, and together the consumer's. None: it is the consumer.
        """

    @abstractmethod
    def peek(self, count: int) -> list[Any]:
        """Compute the first ``count`` elements of the first epoch in this process."""

    @abstractmethod
    def made_of(self) -> MadeOf:
        """Identify what the next epoch is made of: operators, functions and data. May list files.

        Of one that goes on from a loaded state, or has other weights than the pipeline as written, nobody can tell.
        """

    @abstractmethod
    def __str__(self) -> str:
        """Expression that makes the dataset."""

    @abstractmethod
    def varying(self) -> Varying:
        """Dimensions in which elements may differ although the first ones don't."""

    @abstractmethod
    def __len__(self) -> int:
        """Elements of an epoch.

        Raises:
            UnknownLengthError: if only reading can tell.
        """

    @abstractmethod
    def has_no_end(self) -> bool:
        """Whether operators say that an epoch has no end; where only reading can tell, they don't."""

    def prepare_to_fork(self) -> None:  # noqa: B027 (most have nothing to prepare)
        """Prepare for copies of this object in other processes, which will read parts of it."""


class Stateful(NamesEquivalents):
    """Object with the states and the length of what it reads.

    Args:
        source: what it reads.
    """

    def __init__(self, source: Readable) -> None:
        self._source = source

    def state_dict(self) -> dict[str, Any]:
        """State: how far the epoch begun last was read, as a dict of plain values that any checkpoint format takes.

        Counts what was handed out, not what lies ready. May be asked for at any time: before the first epoch, between
        two elements, after ``break``, at an epoch's end.

        A StatefulDataLoader asks for it in each of its worker processes.
        """
        return self._source.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Have the next ``iter()`` go on where ``state`` was taken, with the next epoch if that one had ended.

        Args:
            state: what ``state_dict()`` of this dataset, or of a service's, gave; or the list of all ranks' states, of
                which there may have been another number.

        Raises:
            StateError: it is not of this pipeline, or not of one run.
        """
        self._source.load_state_dict(state)

    get_state, set_state = state_dict, load_state_dict

    def set_weights(self, weights: Sequence[float]) -> int:
        """Set the weights of the pipeline's ``sample_from_datasets`` in the epoch that is being read in this process.

        For loops that don't have its iterator, as those over a DataLoader; of several iterators it is the last that
        counts. Arguments, result and errors are those of
        :meth:`millrace.engine.run.element_iterator.StatefulIterator.set_weights`.

        Raises:
            PipelineError: also if this process reads no epoch, as with a DataLoader that has worker processes.
        """
        return self._source.set_weights(weights)

    def __len__(self) -> int:
        """Elements of an epoch; may list files.

        Raises:
            UnknownLengthError: if only reading can tell.
        """
        return len(self._source)

    def __bool__(self) -> bool:
        """Return True, also where the dataset is empty or its length unknown."""
        return True


class Viewable(Stateful):
    """A dataset as users see it: its elements as they are, or as the arrays of a framework."""

    def __copy__(self) -> Self:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), _source=copy.copy(self._source))  # each has iterators of its own
        return twin

    def __pipeline__(self) -> Readable:
        """Pipeline behind the dataset: for millrace's own use."""
        return self._source

    def peek(self, count: int) -> list[Any]:
        """Compute the first ``count`` elements of the first epoch in this process."""
        return self._source.peek(count)

    @property
    def element_spec(self) -> Any:
        """Pytree of :class:`millrace.frameworks.element_spec.ArraySpec` like the elements; computes the first few here.

        Dimensions in which these differ are None, and so are the rows of batches that need not be full and padded
        dimensions, unless ``padded_shapes`` says how long they are.

        Raises:
            PipelineError: there is no element, or the first ones differ in structure, dtype or number of dimensions.
        """
        from millrace.frameworks.element_spec import infer

        return infer(self._source, "it is empty")

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Read the next epoch and fold it: ``reduce_func(state, element)`` gives the next state, the last is returned.

        Args:
            initial_state: the first state; what an epoch without elements gives.
            reduce_func: runs in this process, element by element in the order in which they come.

        Raises:
            PipelineError: an epoch has no end, or ``reduce_func`` takes something else.
        """
        describe(reduce_func, "reduce", ("state", "element"), passes_rng=False)
        state = initial_state
        self._refuse_endless("reduce")
        with self._source.read_epoch() as epoch:
            for element in epoch:
                state = reduce_func(state, element)
        return state

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        file_bytes: int | Literal["auto"] = "auto",
        if_exists: Literal["error", "refresh", "replace"] = "error",
        max_age: float | timedelta | None = None,
        keep_replaced: float | timedelta = timedelta(days=1),
    ) -> SaveResult:
        """Read the next epoch, and keep its elements in a folder or a prefix of a bucket, for :meth:`Dataset.load`.

        Elements go one after the other into sequential files (OneAccess, sections 3 and 4.1), and none of these is held
        in memory. A save that was interrupted is gone on with by the next one of the same pipeline and data, from its
        last complete file on. ``reason`` of what it gives says in a sentence what was done and why.

        Args:
            path: of a folder, or an ``s3://``, ``gs://`` or ``az://`` prefix.
            file_bytes: size in bytes at which a file is complete, about. "auto": the smallest of which opening takes a
                hundredth of the time to read it, 64 MiB to 2 GiB, by a short measurement of the store where there are
                more than 64 MiB.
            if_exists: where a saved dataset is: refuse ("error"); leave it as it is, if the same pipeline made it from
                the same data, else make it again ("refresh"); make it again in any case ("replace").
            max_age: of "refresh": what is older, a timedelta or seconds, is made again; None: age doesn't matter.
            keep_replaced: how long the files stay that this save replaces, for those who are reading them; a later save
                removes them.

        Raises:
            PipelineError: there is a saved dataset, another process saves there too, or an epoch has no end.
            UnsureError: of "refresh": nobody can tell what a function computes, or a state was loaded or weights set,
                so that the next epoch is another one.
            CodecError: an element has no form as bytes.
            SourceError: it cannot be written.
        """
        from millrace.sources.saving import save
        from millrace.sources.storage import absolute

        self._refuse_endless("save")
        return save(
            absolute(os.fspath(path)),
            self._source,
            file_bytes=file_bytes,
            if_exists=if_exists,
            max_age=max_age,
            keep_replaced=keep_replaced,
        )

    def __str__(self) -> str:
        """Expression that makes the dataset."""
        return str(self._source)

    __repr__ = __str__

    def _refuse_endless(self, method: str) -> None:
        if self._source.has_no_end():
            raise PipelineError(f"{method}() of {self} would never end; put take(n) behind repeat()")

    def torch(self) -> TorchDataset:
        """View as a torch ``IterableDataset`` of tensors that share memory with what arrived.

        It can be iterated as it is, or given to torch's DataLoader (with ``batch_size=None`` where the pipeline
        batches), also with several workers: they share each epoch, element by element.
        """
        from millrace.frameworks.torch import TorchDataset

        return TorchDataset(self._source)

    def jax(self, sharding: Any = None) -> JaxDataset:
        """Elements as JAX arrays.

        Args:
            sharding: a device or ``jax.sharding.Sharding`` to put all arrays on; None: the default device.
        """
        from millrace.frameworks.jax import JaxDataset

        return JaxDataset(self._source, sharding)

    def tensorflow(self, element_spec: Any = None) -> TensorflowDataset:
        """View as a ``tf.data.Dataset`` of the elements; lists become tuples, lists of strings tensors.

        Args:
            element_spec: pytree of ``tf.TensorSpec``; None: found by computing the first elements in this process.
                Dimensions in which these differ are None, and so are the rows of batches that need not be full and
                padded dimensions, unless ``padded_shapes`` says how long they are.

        Raises:
            PipelineError: if no spec can be found; of an element that doesn't fit, while it is read.
        """
        from millrace.frameworks.tensorflow import to_tensorflow

        return to_tensorflow(self._source, element_spec)

    def numpy(self) -> NumpyDataset:
        """Elements with numpy arrays or scalars for all numbers."""
        from millrace.frameworks.numpy import NumpyDataset

        return NumpyDataset(self._source, "numpy()")


class View(Stateful):
    """A dataset's elements as a framework wants them.

    Args:
        source: what is read.
        made: the call that made the view of the dataset, e.g. ``numpy()``.
    """

    def __init__(self, source: Readable, made: str) -> None:
        super().__init__(source)
        self._made = made

    if not TYPE_CHECKING:  # else type checkers believe that every name is there

        def __getattr__(self, name: str) -> Any:
            place = "" if name.startswith("_") else f"; operators and distribute() come before {self._made}"
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}{place}")

    def __str__(self) -> str:
        """Expression that makes the dataset."""
        return f"{self._source}.{self._made}"

    __repr__ = __str__


class Converted(StatefulIterator):
    """Elements of an epoch as a framework wants them."""

    def __init__(self, epoch: ElementIterator, convert: Callable[[Any], Any]) -> None:
        self._epoch, self._convert = epoch, convert

    def __next__(self) -> Any:
        for element in self._epoch:
            try:
                return self._convert(element)
            except Exception:
                raise
            except BaseException:  # Ctrl-C: nobody has it
                self._epoch.put_back(element)
                raise
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """See :class:`StatefulIterator`."""
        return self._epoch.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """See :class:`StatefulIterator`."""
        self._epoch.load_state_dict(state)

    def set_weights(self, weights: Sequence[float]) -> int:
        """See :class:`StatefulIterator`."""
        return self._epoch.set_weights(weights)

    def close(self) -> None:
        """See :class:`StatefulIterator`."""
        self._epoch.close()
