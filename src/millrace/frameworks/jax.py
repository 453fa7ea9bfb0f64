"""Elements for JAX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from millrace.elements.tree import tree_map
from millrace.frameworks.readable import Readable


class JaxDataset:
    """Elements with JAX arrays in place of numeric numpy arrays and numbers; each ``iter()`` is one epoch.

    Strings and bytes stay as they are. 64-bit numbers become 32-bit ones unless ``jax_enable_x64`` is set, as
    everywhere in JAX.
    """

    def __init__(self, source: Readable, sharding: Any = None) -> None:
        self._source, self._sharding = source, sharding

    def __iter__(self) -> Iterator[Any]:
        return (tree_map(self._put, element) for element in self._source.read_epoch())

    def __len__(self) -> int:
        """Elements of an epoch, where that is known."""
        return len(self._source)

    def _put(self, leaf: Any) -> Any:
        if isinstance(leaf, (str, bytes)) or leaf is None:
            return leaf
        array = np.asarray(leaf)
        if array.dtype.kind not in "biufcV" or array.dtype.names is not None:
            return leaf
        return jax.device_put(array, self._sharding)
