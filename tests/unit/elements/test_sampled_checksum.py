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
