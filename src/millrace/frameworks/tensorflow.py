"""Elements for TensorFlow."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.elements.tree import Path, path_text
from millrace.errors import PipelineError, UnknownLengthError
from millrace.frameworks.base import Readable, View
from millrace.graph.notation import call_notation
from millrace.planning.shapes import Varying

_PEEKED = 4


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
    spec = _infer(source) if element_spec is None else element_spec

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
    if element_spec is None:  # else nothing is computed here, so that the data need not be within reach
        with suppress(UnknownLengthError):
            length = len(source)
    made = call_notation("tensorflow", (), {"element_spec": element_spec}, {"element_spec": None})
    return TensorflowDataset(source, dataset.with_options(options), length, made)


def _infer(source: Readable) -> Any:
    elements = source.peek(_PEEKED)
    if not elements:
        raise PipelineError("this dataset has no element to find its element_spec by; give element_spec=")
    return _spec(elements, source.varying(), ())


def _is_strings(element: Any) -> bool:
    return isinstance(element, list) and bool(element) and all(isinstance(item, (str, bytes)) for item in element)


def _spec(elements: Sequence[Any], varying: Varying, path: Path) -> Any:
    """Find the spec that all ``elements`` fit."""
    first = elements[0]
    if isinstance(first, dict):
        if any(not isinstance(other, dict) or other.keys() != first.keys() for other in elements):
            raise _differ(path)
        return {key: _spec([each[key] for each in elements], varying, (*path, key)) for key in first}
    if isinstance(first, (tuple, list)) and not _is_strings(first):
        if any(not isinstance(other, (tuple, list)) or len(other) != len(first) for other in elements):
            raise _differ(path)
        columns = zip(*elements, strict=True)
        return tuple(_spec(column, varying, (*path, index)) for index, column in enumerate(columns))
    return _leaf_spec([_array(leaf, path) for leaf in elements], varying, path)


def _leaf_spec(arrays: Sequence[np.ndarray[Any, Any]], varying: Varying, path: Path) -> tf.TensorSpec:
    first = arrays[0]
    types = sorted({str(array.dtype) for array in arrays})
    if len(types) > 1 or len({array.ndim for array in arrays}) > 1:
        kinds = " and ".join(sorted({f"{array.dtype} of rank {array.ndim}" for array in arrays}))
        raise PipelineError(f"elements differ at {path_text(path)}: {kinds}; make them alike in a map()")
    shape: list[int | None] = list(first.shape)
    for axis, size in enumerate(first.shape):
        padded = varying.padded and axis > 0 and size not in varying.fixed
        short = axis == 0 and size in varying.rows
        if padded or short or any(array.shape[axis] != size for array in arrays):
            shape[axis] = None
    return tf.TensorSpec(shape, _dtype(first, path))


def _dtype(array: np.ndarray[Any, Any], path: Path) -> tf.DType:
    if array.dtype.kind == "O":
        return tf.string
    try:
        return tf.as_dtype(array.dtype)
    except TypeError:
        raise PipelineError(
            f"TensorFlow has no type for {array.dtype} at {path_text(path)}; convert it in a map(), or leave it out"
        ) from None


def _array(leaf: Any, path: Path) -> np.ndarray[Any, Any]:
    """Make a leaf what TensorFlow takes: strings become objects, other arrays stay as they are."""
    if isinstance(leaf, (str, bytes)) or _is_strings(leaf):
        return np.array(leaf, dtype=object)
    array = np.asarray(leaf)
    if array.dtype.kind in "US":
        return array.astype(object)
    if array.dtype.kind == "O" and not all(isinstance(item, (str, bytes)) for item in array.flat):
        kind = "None" if leaf is None else f"{type(leaf).__name__}"
        raise PipelineError(f"{kind} at {path_text(path)} is no tensor; convert it in a map(), or leave it out")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


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
    if not isinstance(spec, tf.TensorSpec):
        return element  # ragged, sparse: TensorFlow's to check
    array = _array(element, path)
    dtype = spec.dtype.as_numpy_dtype
    if not isinstance(element, (np.ndarray, np.generic)) and np.can_cast(array.dtype, dtype, "same_kind"):
        array = array.astype(dtype)  # Python's numbers have no size of their own
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


def _differ(path: Path) -> PipelineError:
    return PipelineError(f"elements differ in structure at {path_text(path)}; make them alike in a map()")
