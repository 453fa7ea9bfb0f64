"""Ragged arrays: the rows of several arrays one behind the other, with where each begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.named import named

_NAME, _FIELDS = "Ragged", ("values", "row_splits")

RaggedArray = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]
"""Namedtuple ``Ragged(values, row_splits)``.

Its ``values`` are of shape (total, ...); ``row_splits`` is int64 of shape (arrays + 1,): array i has the rows
``values[row_splits[i] : row_splits[i + 1]]``.
"""


def ragged(values: npt.NDArray[Any], row_splits: npt.NDArray[np.int64]) -> RaggedArray:
    """Make a ragged array, of a class that is the same in process and on a service."""
    make: Callable[..., RaggedArray] = named(_NAME, _FIELDS)
    return make(values, row_splits)


def is_ragged(element: Any) -> bool:
    """Whether a part of an element is a ragged array."""
    kind = type(element)
    return isinstance(element, tuple) and kind.__name__ == _NAME and getattr(kind, "_fields", None) == _FIELDS
