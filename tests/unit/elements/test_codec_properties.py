"""The codec under Hypothesis: any pytree comes back the same, any bytes decode or raise CodecError."""

import contextlib
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millrace.elements.codec import decode, encode
from millrace.elements.tree import flatten
from millrace.errors import CodecError

dtypes = (
    hnp.scalar_dtypes()
    | hnp.byte_string_dtypes()
    | hnp.unicode_string_dtypes()
    | hnp.nested_dtypes(max_leaves=3, max_itemsize=64)
    | st.sampled_from([np.dtype(name) for name in ("<f4", "<i8", "|u1", "|b1")])
)
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
scalars = arrays.filter(lambda array: array.size and not array.dtype.subdtype).map(lambda array: array.flat[0])
text = st.text(st.characters(exclude_categories=()), max_size=5)
leaves = (
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), text, st.binary(max_size=5))
    | arrays
    | scalars
)
keys = st.text(max_size=3) | st.integers(-(2**63), 2**63 - 1)
elements = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
messages = st.lists(elements, max_size=5) | elements.map(lambda element: [element] * 4)


def fingerprint(element: Any) -> Any:
    """Equal for elements that are the same in value, type, dtype, shape and the order of keys."""
    if isinstance(element, dict):
        return dict, [(key, fingerprint(child)) for key, child in element.items()]
    if isinstance(element, list | tuple):
        return type(element), [fingerprint(child) for child in element]
    if isinstance(element, np.ndarray | np.generic) and not isinstance(element, str | bytes):
        return type(element), element.dtype, element.shape, element.tobytes()
    return type(element), repr(element)


@settings(max_examples=300)
@given(messages)
def test_round_trip(message: list[Any]):
    encoded = bytearray(b"".join(encode(message)))
    assert fingerprint(decode(encoded)) == fingerprint(message)
    table = pa.ipc.open_stream(encoded).read_all()
    table.validate(full=True)
    assert table.num_rows == len(message)


@given(messages, st.integers(-1, 6), st.none() | st.integers(-1, 6))
def test_some_elements_of_a_message(message: list[Any], start: int, stop: int | None):
    encoded = bytearray(b"".join(encode(message)))
    expected = fingerprint(message[start:stop])
    assert fingerprint(decode(encoded, start, stop)) == expected
    owned = decode(encoded, start, stop, own=True)
    encoded[:] = bytes(len(encoded))
    assert fingerprint(owned) == expected
    assert all(leaf.flags.writeable for leaf in flatten(owned)[0] if isinstance(leaf, np.ndarray))


@given(dtypes, st.data())
def test_arrays_that_do_not_lie_in_order(dtype: np.dtype, data: st.DataObject):
    array = data.draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)))
    view = array[data.draw(hnp.basic_indices(array.shape, allow_ellipsis=False))]
    if isinstance(view, np.ndarray):
        for element in (view, view.T, np.asfortranarray(view)):
            back = decode(b"".join(encode([element, element])))
            assert fingerprint(back) == fingerprint([element, element])


@given(messages, st.data())
def test_a_message_cut_short_is_refused(message: list[Any], data: st.DataObject):
    encoded = b"".join(encode(message))
    with pytest.raises(CodecError):
        decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def decodes_or_refuses(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what warns has been believed
        try:
            back = decode(data)
        except CodecError:
            return
    with contextlib.suppress(ValueError, OverflowError):  # dates beyond what can be printed
        repr(back)  # touches every value


@settings(max_examples=300)
@given(messages, st.data())
def test_a_damaged_message_decodes_or_is_refused(message: list[Any], data: st.DataObject):
    encoded = bytearray(b"".join(encode(message)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    decodes_or_refuses(bytes(encoded))


@given(st.binary(max_size=200), st.booleans())
@example(b"\xff\xff\xff\xff\x00\x00\x00\x00", False)
@example(b"", False)
def test_random_bytes_are_refused(data: bytes, framed: bool):
    with pytest.raises(CodecError):
        decode(b"\xff\xff\xff\xff" + len(data).to_bytes(4, "little") + data if framed else data)
