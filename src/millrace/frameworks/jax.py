"""Elements for JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millrace.elements.tree import flatten, unflatten
from millrace.frameworks.base import Converted, Readable, View
from millrace.graph.notation import call_notation


class JaxDataset(View):
    """Elements with JAX arrays in place of numeric numpy arrays and numbers; each ``iter()`` is one epoch.

    Strings, bytes and what else JAX has no type for stay as they are. 64-bit numbers become 32-bit ones unless
    ``jax_enable_x64`` is set, as everywhere in JAX.
    """

    def __init__(self, source: Readable, sharding: Any = None) -> None:
        super().__init__(source, call_notation("jax", (), {"sharding": sharding}, {"sharding": None}))
        self._sharding = sharding

    def __iter__(self) -> Converted:
        return Converted(self._source.read_epoch(), self._to_jax)

    def _to_jax(self, element: Any) -> Any:
        leaves, spec = flatten(element)
        arrays = {index: array for index, leaf in enumerate(leaves) if (array := _as_array(leaf)) is not None}
        placed = jax.device_put(list(arrays.values()), self._sharding)  # one call: the transfers overlap
        for index, array in zip(arrays, placed, strict=True):
            leaves[index] = array
        return unflatten(spec, leaves)


def _as_array(leaf: Any) -> np.ndarray[Any, Any] | None:
    """Make ``leaf`` an array that JAX can take; None if it can't."""
    if leaf is None or isinstance(leaf, (str, bytes)):
        return None
    array = np.asarray(leaf)
    if array.dtype.kind == "m" or array.dtype.char in "gG":  # numbers to numpy: times between, and long doubles
        return None
    if array.dtype.kind not in "biufc" and not jnp.issubdtype(array.dtype, np.number):  # bfloat16 and its like
        return None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
