"""Elements for plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.elements.tree import tree_map
from millrace.frameworks.base import Converted, View


class NumpyDataset(View):
    """Elements with numpy scalars in place of Python numbers; each ``iter()`` is one epoch."""

    def __iter__(self) -> Converted:
        return Converted(self._source.read_epoch(), _to_numpy)


def _to_numpy(element: Any) -> Any:
    return tree_map(_scalar, element)


def _scalar(leaf: Any) -> Any:
    return np.asarray(leaf)[()] if isinstance(leaf, (bool, int, float, complex)) else leaf
