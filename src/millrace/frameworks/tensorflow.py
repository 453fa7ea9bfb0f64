"""Elements for TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.errors import PipelineError
from millrace.frameworks.readable import Readable

_PEEKED = 4


def to_tensorflow(source: Readable, element_spec: Any = None) -> tf.data.Dataset:
    """See :meth:`millrace.frameworks.readable.Readable.tensorflow`."""
    spec = _infer(source) if element_spec is None else element_spec

    def elements() -> Iterator[Any]:
        for element in source.read_epoch():
            value = _tensorlike(element)
            _check(value, spec)
            yield value

    return tf.data.Dataset.from_generator(elements, output_signature=spec)


def _tensorlike(element: Any) -> Any:
    """The element with dicts and tuples kept and every other node a numpy array or scalar, as tf.data wants it."""
    if isinstance(element, dict):
        return {key: _tensorlike(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(_tensorlike(value) for value in element)
    if isinstance(element, list):
        if all(isinstance(value, (str, bytes)) for value in element):
            return np.array(element, dtype=object)
        return tuple(_tensorlike(value) for value in element)
    if isinstance(element, (str, bytes)):
        return element
    array = np.asarray(element)
    return array.astype(object) if array.dtype.kind in "US" else array


def _infer(source: Readable) -> Any:
    elements = [_tensorlike(element) for element in source.peek(_PEEKED)]
    if not elements:
        raise PipelineError("this dataset has no element to find its element_spec by; give element_spec=")
    return tf.nest.map_structure(_spec, *elements)


def _spec(*leaves: Any) -> tf.TensorSpec:
    first = leaves[0]
    if isinstance(first, (str, bytes)):
        return tf.TensorSpec((), tf.string)
    shapes = {leaf.shape for leaf in leaves}
    if len({leaf.ndim for leaf in leaves}) > 1:
        raise PipelineError(f"a leaf has different ranks, {sorted(map(len, shapes))}; give element_spec=")
    common = [size if all(shape[axis] == size for shape in shapes) else None for axis, size in enumerate(first.shape)]
    dtype = tf.string if first.dtype.kind == "O" else tf.as_dtype(first.dtype)
    return tf.TensorSpec(common, dtype)


def _check(value: Any, spec: Any) -> None:
    for leaf, expected in zip(tf.nest.flatten(value), tf.nest.flatten(spec), strict=True):
        if not isinstance(leaf, (str, bytes)) and not expected.shape.is_compatible_with(leaf.shape):
            raise PipelineError(
                f"an element has shape {leaf.shape} where the element_spec says {expected.shape}; "
                "give tensorflow(element_spec=...) with None for dimensions that vary"
            )
