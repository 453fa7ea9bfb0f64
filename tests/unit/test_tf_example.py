"""Examples of TensorFlow, read as TensorFlow reads them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import ElementError, PipelineError
from millrace.tf_example import ExampleParser, FixedLenFeature, VarLenFeature

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FLOAT = st.floats(width=32, allow_nan=False)
LISTS = {
    "int64": st.one_of(st.lists(INT64, max_size=5), st.lists(st.integers(0, 1 << 20), min_size=20, max_size=40)),
    "float": st.lists(FLOAT, max_size=20),
    "bytes": st.lists(st.binary(max_size=5), max_size=4),
}
DTYPES: dict[str, tuple[Any, Any]] = {
    "int64": (np.int64, tf.int64),
    "float": (np.float32, tf.float32),
    "bytes": (bytes, tf.string),
}


def example(**features: tuple[str, list[Any]]) -> bytes:
    made = {}
    for name, (kind, values) in features.items():
        if kind == "int64":
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        elif kind == "float":
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    raw: bytes = tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()
    return raw


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@settings(max_examples=40)
@given(st.data())
def test_features_are_what_tensorflow_reads(data):
    features: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for number in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(list(LISTS)))
        values = data.draw(LISTS[kind])
        name, (dtype, tf_dtype) = f"f{number}", DTYPES[kind]
        features[name] = (kind, values)
        if data.draw(st.booleans()):
            ours[name], theirs[name] = VarLenFeature(dtype), tf.io.VarLenFeature(tf_dtype)
        else:
            shape = data.draw(st.sampled_from([(len(values),), (len(values), 1)] + [()] * (len(values) == 1)))
            ours[name], theirs[name] = FixedLenFeature(shape, dtype), tf.io.FixedLenFeature(shape, tf_dtype)
    raw = example(**features, other=("int64", [1]))
    found = ExampleParser(ours)(raw)
    expected = tf.io.parse_single_example(raw, theirs)
    for name, value in expected.items():
        dense = value.values if isinstance(value, tf.SparseTensor) else value
        assert plain(found[name]) == plain(dense.numpy())
        if features[name][0] != "bytes":
            assert found[name].dtype == dense.numpy().dtype
    assert repr(ExampleParser(theirs)) == repr(ExampleParser(ours))
    assert {name: plain(value) for name, value in ExampleParser(theirs)(raw).items()} == {
        name: plain(value) for name, value in found.items()
    }


def test_numbers_that_are_not_packed_are_read_too():
    # Field 1 of an example, of features, and of an entry; 26 is the list of int64, 18 the one of float32.
    ints = b"\x08\x05\x08\x96\x01" + b"\x0a\x01\x07"
    floats = b"\x0d" + np.float32(1.5).tobytes() + b"\x0d" + np.float32(2).tobytes()

    def entry(name: bytes, field: bytes, listed: bytes) -> bytes:
        feature = field + bytes([len(listed)]) + listed
        pair = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
        return b"\x0a" + bytes([len(pair)]) + pair

    features = entry(b"i", b"\x1a", ints) + entry(b"f", b"\x12", floats)
    raw = b"\x0a" + bytes([len(features)]) + features
    found = ExampleParser({"i": VarLenFeature(np.int64), "f": FixedLenFeature((2,), np.float32)})(raw)
    assert (found["i"].tolist(), found["f"].tolist()) == ([5, 150, 7], [1.5, 2.0])
    read = tf.train.Example.FromString(raw).features.feature
    assert (list(read["i"].int64_list.value), list(read["f"].float_list.value)) == ([5, 150, 7], [1.5, 2.0])


def test_what_lacks_has_its_default():
    schema: dict[str, Any] = {
        "a": FixedLenFeature((), np.int64, 7),
        "b": FixedLenFeature((2, 2), np.float32, 0.5),
        "c": FixedLenFeature((2,), bytes, b"x"),
        "d": VarLenFeature(bytes),
        "e": VarLenFeature(np.float32),
        "f": FixedLenFeature((2,), np.int64, [1, 2]),
    }
    (found,) = Dataset.from_list([example(z=("int64", [1]))]).parse_example(schema)
    assert (found["a"], found["b"].tolist(), found["c"], found["d"]) == (7, [[0.5, 0.5]] * 2, [b"x", b"x"], [])
    assert (found["e"].dtype, found["e"].shape, found["f"].tolist()) == (np.float32, (0,), [1, 2])
    batch = next(iter(Dataset.from_list([example(a=("int64", [n])) for n in (1, 2)]).parse_example(schema).batch(2)))
    assert batch["a"].tolist() == [1, 2]
    assert batch["b"].shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("record", "feature", "said"),
    [
        (example(), FixedLenFeature((), np.int64), "the example has no feature 'a', which has no default_value"),
        (example(a=("int64", [1, 2])), FixedLenFeature((), np.int64), "feature 'a' has 2 values, not 1"),
        (example(a=("float", [1])), VarLenFeature(np.int64), "feature 'a' holds float32, not int64"),
        (b"\xff\xff", VarLenFeature(np.int64), "the record is no tf.train.Example"),
        (example(a=("int64", [1]))[:-1], VarLenFeature(np.int64), "the record is no tf.train.Example, or is cut off"),
    ],
)
def test_records_that_are_otherwise_are_errors_of_the_element(record, feature, said):
    dataset = Dataset.from_list([record]).parse_example({"a": feature})
    with pytest.raises(ElementError, match=rf"map\(parse_example\) failed on item 0: ValueError: {re.escape(said)}"):
        list(dataset)
    assert list(dataset.with_options(on_error="skip")) == []


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ({}, "parse_example takes a FixedLenFeature or VarLenFeature of millrace.tf_example for each name"),
        ({"a": np.int64}, "'a' is a FixedLenFeature or a VarLenFeature of np.int64, np.float32 or bytes, not <class"),
        ({"a": VarLenFeature(np.int32)}, "'a' is a FixedLenFeature or a VarLenFeature of np.int64, np.float32 or byt"),
        ({"a": FixedLenFeature((2,), np.int64, [1, 2, 3])}, "the default of 'a' has 3 values, and the feature 2"),
    ],
)
def test_a_schema_that_is_none_is_refused_where_it_is_written(features, said):
    with pytest.raises(PipelineError, match=re.escape(said)):
        Dataset.from_list([b""]).parse_example(features)


def test_who_writes_to_a_default_changes_no_other_element():
    def write(features: dict[str, Any]) -> dict[str, Any]:
        features["a"] += 1
        features["b"].append(b"more")
        return features

    schema = {"a": FixedLenFeature((2,), np.int64, 0), "b": FixedLenFeature((1,), bytes, b"")}
    for found in Dataset.from_list([b""] * 3).parse_example(schema).map(write, num_parallel_calls=1):
        assert (found["a"].tolist(), found["b"]) == ([1, 1], [b"", b"more"])


def test_a_default_of_bytes_may_be_given_as_text():
    assert ExampleParser({"a": FixedLenFeature((), bytes, "é")})(b"") == {"a": "é".encode()}
    with pytest.raises(PipelineError, match="the default of 'a' is bytes, not 3"):
        ExampleParser({"a": FixedLenFeature((), bytes, 3)})


@pytest.mark.parametrize("shape", [2, (None,)])
def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(PipelineError, match="the shape of 'a' is a tuple of whole numbers"):
        ExampleParser({"a": FixedLenFeature(shape, np.int64)})
