"""What a dataset offers to frameworks, in process and distributed alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

    from millrace.frameworks.jax import JaxDataset
    from millrace.frameworks.numpy import NumpyDataset
    from millrace.frameworks.torch import TorchDataset


class Readable(ABC):
    """Something that is read epoch by epoch; its elements as the arrays of a framework."""

    @abstractmethod
    def read_epoch(self, number: int | None = None, share: tuple[int, int] | None = None) -> Iterator[Any]:
        """Elements of one epoch; the iterator may have ``close()``.

        Args:
            number: of the epoch, from 0; None: the next.
            share: (i, n): this process is helper i of n that read for one consumer, and may come and go between epochs;
                what they get is disjoint, and together the consumer's. None: it is the consumer.
        """

    @abstractmethod
    def peek(self, count: int) -> list[Any]:
        """The first elements, computed in this process."""

    @abstractmethod
    def __len__(self) -> int:
        """Elements of an epoch.

        Raises:
            UnknownLengthError: if only reading can tell.
        """

    def prepare_to_fork(self) -> None:
        """Called before copies of this object go to other processes, which will read parts of it."""

    def torch(self) -> TorchDataset:
        """A torch ``IterableDataset`` of tensors that share memory with what arrived.

        It can be iterated as it is, or given to torch's DataLoader (with ``batch_size=None`` where the pipeline batches),
        also with several workers: they share each epoch, element by element.
        """
        from millrace.frameworks.torch import TorchDataset

        return TorchDataset(self)

    def jax(self, sharding: Any = None) -> JaxDataset:
        """Elements as JAX arrays.

        Args:
            sharding: a device or ``jax.sharding.Sharding`` to put them on; None: the default device.
        """
        from millrace.frameworks.jax import JaxDataset

        return JaxDataset(self, sharding)

    def tensorflow(self, element_spec: Any = None) -> tf.data.Dataset:
        """A ``tf.data.Dataset`` of the elements.

        Args:
            element_spec: pytree of ``tf.TensorSpec``; None: found by computing the first elements in this process. Dimensions in
                which these differ, and the rows of batches that may be short, are None.
        """
        from millrace.frameworks.tensorflow import to_tensorflow

        return to_tensorflow(self, element_spec)

    def numpy(self) -> NumpyDataset:
        """Elements with numpy arrays or scalars for all numbers."""
        from millrace.frameworks.numpy import NumpyDataset

        return NumpyDataset(self)
