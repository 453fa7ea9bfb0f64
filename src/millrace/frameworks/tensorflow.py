"""Elements for TensorFlow."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.elements.ragged import is_ragged
from millrace.elements.tree import Path, path_text
from millrace.errors import PipelineError, UnknownLengthError
from millrace.frameworks.base import Readable, View
from millrace.frameworks.element_spec import ListSpec, as_leaf, infer
from millrace.graph.notation import call_notation


class TensorflowDataset(View, tf.data.Dataset):  # type: ignore[misc]  # TensorFlow has no types
    """A ``tf.data.Dataset`` that has the states of what it reads; what tf.data's operators make of it has none.

    Args:
        source: the dataset.
        dataset: its elements, however many there are.
        length: of an epoch; None: unknown.
        made: the call that made it.
    """

    def __init__(self, source: Readable, dataset: tf.data.Dataset, length: int | None, made: str) -> None:
        View.__init__(self, source, made)
        self._any_length = self._dataset = dataset
        if length is not None:
            self._dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
        tf.data.Dataset.__init__(self, self._dataset._variant_tensor)  # noqa: SLF001 (as all that extend tf.data do)

    def load_state_dict(self, state: Any) -> None:
        """Have the next iterator go on where ``state`` was taken. From then on the cardinality is unknown.

        Load before tf.data's operators are applied: those know how many elements there are already.

        Raises:
            StateError: it is not of this pipeline, or not of one run.
        """
        super().load_state_dict(state)
        self._dataset = self._any_length  # the rest of an epoch is shorter
        self._variant_tensor_attr = self._dataset._variant_tensor  # noqa: SLF001

    set_state = load_state_dict

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        """Pytree of ``tf.TensorSpec``."""
        return self._dataset.element_spec

    __str__ = __repr__ = View.__str__  # tf.data's say nothing of where the elements come from
    __len__, __bool__ = tf.data.Dataset.__len__, tf.data.Dataset.__bool__


def to_tensorflow(source: Readable, element_spec: Any = None) -> TensorflowDataset:
    """See :meth:`millrace.frameworks.base.Viewable.tensorflow`."""
    spec = _tensor_spec(infer(source, "give element_spec=")) if element_spec is None else element_spec

    # TensorFlow keeps every function that it was given. The source lives as long as datasets that were made of it.
    kept = weakref.ref(source)

    def elements() -> Iterator[Any]:
        source = kept()
        if source is None:
            raise PipelineError("the dataset that tensorflow() gave was dropped; keep it as long as it is read")
        with closing(source.read_epoch()) as epoch:
            del source
            for element in epoch:
                yield _conform(element, spec, ())

    dataset = tf.data.Dataset.from_generator(elements, output_signature=spec)
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # states count what the loop was given
    length = None
    # With a specification nothing is computed here, so that the data need not be within reach.
    if element_spec is None and source.whole and source.load_id is None:  # TensorFlow fails where it is not so long
        with suppress(UnknownLengthError):
            length = len(source)
    made = call_notation("tensorflow", (), {"element_spec": element_spec}, {"element_spec": None})
    return TensorflowDataset(source, dataset.with_options(options), length, made)


def _tensor_spec(spec: Any, path: Path = ()) -> Any:
    """Convert a specification of elements to TensorFlow's, in which lists are tuples."""
    if isinstance(spec, dict):
        return {key: _tensor_spec(inner, (*path, key)) for key, inner in spec.items()}
    if isinstance(spec, ListSpec):
        raise PipelineError(
            f"lists of different lengths at {path_text(path)} have no form in TensorFlow: leave the short ones out "
            "with drop_remainder=True, or make arrays of them in a map()"
        )
    if is_ragged(spec):
        values, splits = spec
        rows = None if splits.shape[0] is None else splits.shape[0] - 1
        shape = (rows, None, *values.shape[1:])
        return tf.RaggedTensorSpec(shape, _dtype(values.dtype, path), ragged_rank=1, row_splits_dtype=tf.int64)
    if isinstance(spec, (tuple, list)):
        return tuple(_tensor_spec(inner, (*path, index)) for index, inner in enumerate(spec))
    return tf.TensorSpec(spec.shape, _dtype(spec.dtype, path))


def _dtype(dtype: np.dtype[Any], path: Path) -> tf.DType:
    if dtype.kind in "US":
        return tf.string
    try:
        return tf.as_dtype(dtype)
    except TypeError:
        raise PipelineError(
            f"TensorFlow has no type for {dtype} at {path_text(path)}; convert it in a map(), or leave it out"
        ) from None


def _conform(element: Any, spec: Any, path: Path) -> Any:
    """Make ``element`` fit ``spec``, and check it: TensorFlow's own words don't say which leaf is wrong."""
    if isinstance(spec, dict):
        if not isinstance(element, dict) or element.keys() != spec.keys():
            raise _misfit(element, f"a dict with keys {', '.join(map(repr, spec))}", path)
        return {key: _conform(element[key], inner, (*path, key)) for key, inner in spec.items()}
    if isinstance(spec, tuple):
        if not isinstance(element, (tuple, list)) or len(element) != len(spec):
            raise _misfit(element, f"a tuple of {len(spec)}", path)
        pairs = enumerate(zip(element, spec, strict=True))
        parts = [_conform(part, inner, (*path, index)) for index, (part, inner) in pairs]
        return getattr(type(spec), "_make", tuple)(parts)
    if isinstance(spec, tf.RaggedTensorSpec) and is_ragged(element):
        values, splits = element
        return tf.RaggedTensor.from_row_splits(as_leaf(values, path), splits, validate=False)
    if not isinstance(spec, tf.TensorSpec):
        return element  # ragged, sparse: TensorFlow's to check
    array = as_leaf(element, path)
    dtype = spec.dtype.as_numpy_dtype
    if not isinstance(element, (np.ndarray, np.generic)) and np.can_cast(array.dtype, dtype, "same_kind"):
        given, array = array, array.astype(dtype)  # Python's numbers have no size of their own
        if given.dtype.kind in "iu" and np.any(given != array):
            raise PipelineError(
                f"{spec.dtype.name}, which the element_spec says at {path_text(path)}, cannot hold the "
                f"{given.flat[np.argmax(np.ravel(given != array))]} that an element has there; give it a larger type"
            )
    if array.dtype != dtype or not spec.shape.is_compatible_with(array.shape):
        raise _misfit(array, f"{spec.dtype.name} of shape {spec.shape}", path)
    return array


def _misfit(value: Any, expected: str, path: Path) -> PipelineError:
    if isinstance(value, np.ndarray):
        got = f"{'string' if value.dtype.kind == 'O' else value.dtype} of shape {value.shape}"
    elif isinstance(value, dict):
        got = f"a dict with keys {', '.join(map(repr, value))}"
    else:
        got = f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
    return PipelineError(
        f"an element has {got} at {path_text(path)} where the element_spec says {expected}; "
        "give tensorflow(element_spec=...), with None for dimensions that vary"
    )
