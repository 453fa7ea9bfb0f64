import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from millrace.elements import codec
from millrace.elements.scattered_buffer import ScatteredBuffer
from millrace.errors import CodecError


def cut(data, cuts):
    bounds = [0, *sorted(min(each, len(data)) for each in cuts), len(data)]
    return ScatteredBuffer([data[start:stop].copy() for start, stop in itertools.pairwise(bounds)])


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6), st.data())
def test_any_stretch_is_what_it_is_in_one_place(data, cuts, draw):
    raw = np.frombuffer(data, np.uint8)
    pieces = cut(raw, cuts)
    assert pieces.nbytes == len(raw)
    start = draw.draw(st.integers(0, len(raw)))
    stop = draw.draw(st.integers(start, len(raw)))
    assert pieces.view(start, stop).tobytes() == data[start:stop]


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=6), st.data())
def test_rows_are_what_they_are_in_one_place(data, cuts, draw):
    raw = np.frombuffer(data, np.uint8)
    size = draw.draw(st.integers(0, 5))
    start = draw.draw(st.integers(0, len(raw)))
    count = draw.draw(st.integers(0, (len(raw) - start) // size if size else 4))
    rows = cut(raw, cuts).rows(start, count, (size,), np.dtype(np.uint8))
    assert [row.tobytes() for row in rows] == [data[start + i * size : start + (i + 1) * size] for i in range(count)]


def test_stretches_within_a_part_are_views():
    part = np.arange(100, dtype=np.uint8)
    pieces = ScatteredBuffer([np.zeros(7, np.uint8), part])
    assert np.shares_memory(pieces.view(7, 107), part)
    assert all(np.shares_memory(row, part) for row in pieces.rows(17, 3, (4,), np.dtype(np.uint8)))
    assert not np.shares_memory(pieces.view(6, 20), part)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (0, 4), (2, 1)])
def test_bytes_that_are_not_there_are_refused(start, stop):
    with pytest.raises(ValueError, match="bytes"):
        ScatteredBuffer([np.zeros(3, np.uint8)]).view(start, stop)


LEAVES = st.one_of(
    st.integers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
    stn.arrays(
        st.sampled_from(["u1", "f8", "i4", "U3", "?"]).map(np.dtype),
        stn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
)


def same(left, right):
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return type(left) is type(right) and left == right


@given(st.lists(st.fixed_dictionaries({"a": LEAVES, "b": LEAVES}), max_size=4), st.data())
def test_a_message_in_pieces_is_the_message(elements, draw):
    whole = np.frombuffer(b"".join(codec.encode(elements)), np.uint8)
    body = len(codec.encode(elements)[0]) if len(codec.encode(elements)) > 1 else len(whole)
    cuts = draw.draw(st.lists(st.integers(min(body, len(whole)), len(whole)), max_size=5))
    assert same(codec.decode(cut(whole, cuts)), codec.decode(whole))


def test_large_arrays_of_several_elements_are_views_where_they_lie():
    images = [np.full((64, 1024), i, np.uint8) for i in range(3)]
    buffers = [np.frombuffer(buffer, np.uint8) for buffer in codec.encode([{"x": image, "y": 1} for image in images])]
    decoded = codec.decode(ScatteredBuffer(buffers))
    assert all(np.shares_memory(element["x"], image) for element, image in zip(decoded, images, strict=True))


@given(st.binary(max_size=400), st.integers(0, 400))
def test_garbage_is_refused_whatever_it_is(garbage, at):
    raw = np.frombuffer(garbage, np.uint8)
    with pytest.raises(CodecError):
        codec.decode(cut(raw, [at]))


@given(st.integers(0, 2000), st.integers(0, 255), st.integers(0, 2000))
def test_a_damaged_message_decodes_or_is_refused(at, value, stop):
    whole = np.frombuffer(b"".join(codec.encode([{"x": np.arange(50), "y": "text"}] * 3)), np.uint8).copy()
    whole[at % len(whole)] = value
    try:
        codec.decode(cut(whole, [stop]))
    except CodecError as error:
        assert "damaged" in str(error) or "millrace" in str(error) or "refused" in str(error)  # noqa: PT017
