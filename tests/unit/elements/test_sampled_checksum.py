"""A sampled checksum is the same for what is the same, and another one for what differs."""

import numpy as np
import pytest
from hypothesis import given
from tests.unit.elements.test_codec_properties import elements, fingerprint

from millrace.elements.codec import decode, encode
from millrace.elements.sampled_checksum import sampled_checksum


def received(element):
    return decode(b"".join(encode([element])))[0]


@given(elements, elements)
def test_checksums_are_equal_where_elements_are(one, other):
    one, other = received(one), received(other)
    assert sampled_checksum(one) == sampled_checksum(received(one))
    # By chance one in 4 billion pairs is wrong, which Hypothesis does not find.
    assert (sampled_checksum(one) == sampled_checksum(other)) == (fingerprint(one) == fingerprint(other))


def batch(**changes):
    images = np.arange(32 * 64 * 64 * 3, dtype=np.uint8).reshape(32, 64, 64, 3)
    return {"image": images, "label": np.arange(32), "name": "n" * 9000, "raw": b"r" * 9000, **changes}


def test_of_large_leaves_samples_count():
    flipped = batch()["image"].copy()
    flipped[::2] = flipped[::2, :, ::-1]
    changes = {
        "image": flipped,
        "label": np.arange(32)[::-1],
        "name": "n" * 8000 + "m" * 1000,
        "raw": b"r" * 8999 + b"s",
    }
    assert sampled_checksum(received(batch())) == sampled_checksum(received(batch()))
    for name, value in changes.items():
        assert sampled_checksum(received(batch())) != sampled_checksum(received(batch(**{name: value}))), name


@pytest.mark.parametrize("other", [{"b": 1}, [1], (1,), 1, {"a": 1.0}, {"a": True}, {"a": [1]}])
def test_structure_and_types_count(other):
    assert sampled_checksum({"a": 1}) != sampled_checksum(other)


def test_bytes_between_what_is_there_do_not_count():
    """An array of numbers of 80 bits, or of aligned fields, has bytes that nobody sets."""
    aligned = np.dtype([("a", np.uint8), ("b", np.float64)], align=True)
    for dtype in (aligned, np.dtype(np.longdouble), np.dtype(np.clongdouble)):
        found = []
        for filled in (0, 255):
            array = np.frombuffer(bytearray([filled]) * (3 * dtype.itemsize), dtype).copy()
            for number in range(3):
                array[number] = (number, number) if dtype.names else number
            found.append(sampled_checksum(array))
            array[1] = (9, 9) if dtype.names else 9
            assert sampled_checksum(array) != found[0]
        assert found[0] == found[1]


def test_whole_numbers_of_any_size_count():
    for number in (1 << 20_000, -(1 << 20_000)):
        assert sampled_checksum({"m": number}) == sampled_checksum(received({"m": number}))
        assert sampled_checksum(number) != sampled_checksum(number + 1)
    assert len({sampled_checksum(each) for each in (0, 1, -1, 255, 256, True, 1.0)}) == 7
