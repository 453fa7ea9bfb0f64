"""The same input through tf.data and through the operators here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import PipelineError
from millrace.graph import nodes

few = settings(max_examples=25)
fewer = settings(max_examples=12)
cuts = st.lists(st.integers(1, 7), min_size=1, max_size=4)
lengths = st.lists(st.integers(1, 9), max_size=20)


def by_tf(dataset: Any) -> list[Any]:
    return [plain(element) for element in dataset.as_numpy_iterator()]


def plain(element: Any) -> Any:
    """An element as lists and Python's numbers, so that a tf.data element compares with one of ours."""
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, (tuple, list)):
        return tuple(map(plain, element))
    if isinstance(element, np.ndarray) and element.dtype.kind == "O":
        return tuple(element.tolist())
    return element.tolist() if isinstance(element, (np.ndarray, np.generic)) else element


def by_us(driver: Any, node: nodes.Node, *inputs: Any, **options: Any) -> list[Any]:
    return [plain(element) for element in driver.elements(node, *inputs, **options)]


def sequences(sizes: list[int]) -> list[np.ndarray]:
    return [np.arange(size, dtype=np.int64) + 100 * number for number, size in enumerate(sizes)]


def tf_sequences(sizes: list[int]) -> Any:
    spec = tf.TensorSpec([None], tf.int64)
    return tf.data.Dataset.from_generator(lambda: iter(sequences(sizes)), output_signature=spec)


def test_map(driver, fn):
    ours = by_us(driver, nodes.Map(fn=fn(lambda x: x * x)), range(10))
    assert ours == by_tf(tf.data.Dataset.range(10).map(lambda x: x * x))


def test_filter(driver, fn):
    ours = by_us(driver, nodes.Filter(fn=fn(lambda x: x % 3 == 1)), range(20))
    assert ours == by_tf(tf.data.Dataset.range(20).filter(lambda x: x % 3 == 1))


def test_flat_map(driver, fn):
    ours = by_us(driver, nodes.FlatMap(fn=fn(range)), range(6))
    assert ours == by_tf(tf.data.Dataset.range(6).flat_map(tf.data.Dataset.range))


@few
@given(st.lists(st.integers(0, 6), max_size=8), st.integers(1, 4), st.integers(1, 4), st.booleans(), cuts)
def test_interleave(driver, fn, sizes, cycle_length, block_length, parallel, cut):
    node = nodes.Interleave(
        fn=fn(lambda pair: [pair[0] * 10 + i for i in range(pair[1])]),
        cycle_length=cycle_length,
        block_length=block_length,
    )
    theirs = tf.data.Dataset.from_tensor_slices(np.array(sizes, np.int64)).enumerate()
    theirs = theirs.interleave(
        lambda number, size: tf.data.Dataset.range(number * 10, number * 10 + size),
        cycle_length=cycle_length,
        block_length=block_length,
        num_parallel_calls=min(2, cycle_length) if parallel else None,
        deterministic=True if parallel else None,
    )
    assert by_us(driver, node, list(enumerate(sizes)), cuts=cut) == by_tf(theirs)


def test_unbatch(driver):
    batches = [{"x": np.arange(6).reshape(n, -1), "y": np.arange(n)} for n in (2, 3)]
    theirs = [tf.data.Dataset.from_tensors(batch).unbatch() for batch in batches]
    assert by_us(driver, nodes.Unbatch(), batches) == by_tf(theirs[0]) + by_tf(theirs[1])


def test_batches_of_scalars_arrays_and_bytes(driver):
    elements: list[Any] = [{"n": i, "x": np.full((2, 2), i, np.float32), "b": b"%d" % i} for i in range(5)]
    columns = {
        "n": np.arange(5),
        "x": np.stack([element["x"] for element in elements]),
        "b": [element["b"] for element in elements],
    }
    for drop in (False, True):
        ours = driver.elements(nodes.Batch(batch_size=2, drop_remainder=drop), elements)
        theirs = list(tf.data.Dataset.from_tensor_slices(columns).batch(2, drop_remainder=drop).as_numpy_iterator())
        assert plain(ours) == plain(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert all(one[key].dtype == other[key].dtype for key in ("n", "x"))


@fewer
@given(lengths, st.integers(1, 5), st.booleans(), cuts)
def test_ragged_batch(driver, sizes, batch_size, drop, cut):
    node = nodes.RaggedBatch(batch_size=batch_size, drop_remainder=drop)
    pairs = [(row, number) for number, row in enumerate(sequences(sizes))]
    spec = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
    theirs = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=spec)
    theirs = theirs.ragged_batch(batch_size, drop_remainder=drop)
    ours = driver.elements(node, pairs, cuts=cut)
    assert [(row.values.tolist(), row.row_splits.tolist(), numbers.tolist()) for row, numbers in ours] == [
        (row.values.numpy().tolist(), row.row_splits.numpy().tolist(), numbers.numpy().tolist())
        for row, numbers in theirs
    ]


def test_ragged_batches_are_refused(driver):
    with pytest.raises(tf.errors.InvalidArgumentError):
        by_tf(tf_sequences([1, 2]).batch(2))
    with pytest.raises(PipelineError):
        by_us(driver, nodes.Batch(batch_size=2), sequences([1, 2]))


@few
@given(lengths, st.integers(1, 5), st.booleans(), st.sampled_from([None, 9, 12]), st.sampled_from([None, -1]), cuts)
def test_padded_batch(driver, sizes, batch_size, drop, shape, value, cut):
    node = nodes.PaddedBatch(batch_size=batch_size, padded_shapes=(shape,), padding_values=value, drop_remainder=drop)
    given_value = None if value is None else np.int64(value)
    theirs = tf_sequences(sizes).padded_batch(batch_size, [shape], given_value, drop)
    assert by_us(driver, node, sequences(sizes), cuts=cut) == by_tf(theirs)


def test_padded_batch_of_a_structure(driver):
    elements = [{"t": np.full((n, 3), n, np.float32), "n": n} for n in (2, 1, 4)]
    spec = {"t": tf.TensorSpec([None, 3], tf.float32), "n": tf.TensorSpec([], tf.int64)}
    dataset = tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=spec)
    shapes, values = {"t": (None, 4), "n": ()}, {"t": 0.5, "n": None}
    ours = by_us(driver, nodes.PaddedBatch(batch_size=2, padded_shapes=shapes, padding_values=values), elements)
    assert ours == by_tf(dataset.padded_batch(2, shapes, {"t": 0.5, "n": np.int64(0)}))


def test_elements_larger_than_padded_shapes_are_refused(driver):
    with pytest.raises(tf.errors.DataLossError):
        by_tf(tf_sequences([3]).padded_batch(1, [2]))
    with pytest.raises(PipelineError):
        by_us(driver, nodes.PaddedBatch(batch_size=1, padded_shapes=(2,)), sequences([3]))


@few
@given(lengths, st.booleans(), st.booleans(), st.sampled_from([None, -1]), cuts)
def test_bucket_by_sequence_length(driver, fn, sizes, to_boundary, drop, value, cut):
    options = {"pad_to_bucket_boundary": to_boundary, "drop_remainder": drop}
    node = nodes.BucketBySequenceLength(
        element_length_fn=fn(len),
        bucket_boundaries=(3, 6, 10),
        bucket_batch_sizes=(4, 3, 2, 1),
        padding_values=value,
        **options,
    )
    theirs = tf_sequences(sizes).bucket_by_sequence_length(
        lambda x: tf.shape(x)[0],
        [3, 6, 10],
        [4, 3, 2, 1],
        padding_values=None if value is None else np.int64(value),
        **options,
    )
    assert by_us(driver, node, sequences(sizes), cuts=cut) == by_tf(theirs)


def test_bucket_without_padding(driver, fn):
    options: dict[str, Any] = {"bucket_boundaries": (2, 3), "bucket_batch_sizes": (2, 2, 2), "no_padding": True}
    sizes = [1, 2, 1, 2, 4, 2]
    node = nodes.BucketBySequenceLength(element_length_fn=fn(len), **options)
    options = {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
    theirs = tf_sequences(sizes).bucket_by_sequence_length(lambda x: tf.shape(x)[0], **options)
    assert by_us(driver, node, sequences(sizes)) == by_tf(theirs)


def test_beyond_the_last_boundary_there_is_nothing_to_pad_to(driver, fn):
    options: dict[str, Any] = {"bucket_boundaries": [3], "bucket_batch_sizes": [1, 1], "pad_to_bucket_boundary": True}
    with pytest.raises(tf.errors.InternalError, match="elements must have length < max"):
        by_tf(tf_sequences([3]).bucket_by_sequence_length(lambda x: tf.shape(x)[0], **options))
    with pytest.raises(PipelineError):
        by_us(driver, nodes.BucketBySequenceLength(element_length_fn=fn(len), **options), sequences([3]))


@few
@given(st.lists(st.integers(0, 30), max_size=25), st.booleans(), cuts)
def test_group_by_window(driver, fn, values, by_key, cut):
    size_of: dict[str, Any] = {"window_size_fn": fn(lambda key: key + 1)} if by_key else {"window_size": 3}
    node = nodes.GroupByWindow(
        key_fn=fn(lambda x: x % 4), reduce_fn=fn(lambda key, elements: [np.array(elements)]), **size_of
    )
    theirs = tf.data.Dataset.from_tensor_slices(np.array(values, np.int64)).group_by_window(
        key_func=lambda x: x % 4,
        reduce_func=lambda key, window: window.batch(100),
        **({"window_size_func": lambda key: key + 1} if by_key else {"window_size": 3}),
    )
    assert by_us(driver, node, values, cuts=cut) == by_tf(theirs)


@few
@given(st.lists(st.integers(1, 6), max_size=8), st.integers(1, 6), st.booleans(), cuts)
def test_rebatch(driver, sizes, batch_size, drop, cut):
    node = nodes.Rebatch(batch_size=batch_size, drop_remainder=drop)
    theirs = tf_sequences(sizes).rebatch(batch_size, drop_remainder=drop)
    assert by_us(driver, node, sequences(sizes), cuts=cut) == by_tf(theirs)


@pytest.mark.parametrize("count", [-1, 0, 1, 4, 9, 10, 11])
def test_take_and_skip(driver, count):
    dataset = tf.data.Dataset.range(10)
    assert by_us(driver, nodes.Take(count=count), range(10)) == by_tf(dataset.take(count))
    assert by_us(driver, nodes.Skip(count=count), range(10)) == by_tf(dataset.skip(count))


@pytest.mark.parametrize(("number", "index"), [(1, 0), (3, 0), (3, 2), (12, 9), (12, 11)])
def test_shard(driver, number, index):
    node = nodes.Shard(num_shards=number, index=index)
    assert by_us(driver, node, range(10)) == by_tf(tf.data.Dataset.range(10).shard(number, index))


def test_enumerate(driver):
    assert by_us(driver, nodes.Enumerate(start=3), range(5)) == by_tf(tf.data.Dataset.range(5).enumerate(3))


def test_zip_and_concatenate(driver):
    short, long = tf.data.Dataset.range(4), tf.data.Dataset.range(7)
    assert by_us(driver, nodes.Zip(), range(4), range(7)) == by_tf(tf.data.Dataset.zip(short, long))
    named = nodes.Zip(keys=("a", "b"))
    assert by_us(driver, named, range(7), range(4)) == by_tf(tf.data.Dataset.zip({"a": long, "b": short}))
    assert by_us(driver, nodes.Concatenate(), range(4), range(7)) == by_tf(short.concatenate(long))


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, 0.0, 0.0)])
def test_sample_from_datasets_where_nothing_is_left_to_chance(driver, weights, stop):
    inputs = [list(range(10 * i, 10 * i + 3)) for i in range(len(weights))]
    node = nodes.SampleFromDatasets(weights=weights, stop_on_empty_dataset=stop)
    datasets = [tf.data.Dataset.from_tensor_slices(np.array(values, np.int64)) for values in inputs]
    theirs = tf.data.Dataset.sample_from_datasets(datasets, list(weights), stop_on_empty_dataset=stop)
    assert by_us(driver, node, *inputs) == by_tf(theirs)


@pytest.mark.parametrize("stop", [False, True])
def test_sample_from_datasets_ends_where_tf_data_does(driver, stop):
    # With an input that is empty from the start: other random numbers, but the same possible lengths and contents.
    node = nodes.SampleFromDatasets(weights=(0.5, 0.5), stop_on_empty_dataset=stop)
    ours = {tuple(by_us(driver, node, [], range(3), seed=seed)) for seed in range(50)}
    theirs = {
        tuple(
            by_tf(
                tf.data.Dataset.sample_from_datasets(
                    [tf.data.Dataset.range(0), tf.data.Dataset.range(3)], [0.5, 0.5], seed, stop_on_empty_dataset=stop
                )
            )
        )
        for seed in range(50)
    }
    assert ours == theirs
    assert len(ours) == (4 if stop else 1)


@pytest.mark.parametrize("stop", [True, False])
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
@settings(max_examples=20)
def test_choose_from_datasets(driver, stop, lengths, data):
    choices = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=15))
    inputs = [list(range(10 * number, 10 * number + length)) for number, length in enumerate(lengths)]
    theirs = by_tf(
        tf.data.Dataset.choose_from_datasets(
            [tf.data.Dataset.from_tensor_slices(np.array(values, np.int64)) for values in inputs],
            tf.data.Dataset.from_tensor_slices(np.array(choices, np.int64)),
            stop_on_empty_dataset=stop,
        )
    )
    read = nodes.ChooseFromDatasets(
        inputs=(nodes.Range(start=0, stop=1),) * (len(lengths) + 1), stop_on_empty_dataset=stop
    )
    assert by_us(driver, read, *inputs, choices) == theirs
    ours = Dataset.choose_from_datasets([Dataset.from_list(each) for each in inputs], Dataset.from_list(choices), stop)
    assert list(ours) == theirs


def test_a_shuffle_of_one_changes_nothing_and_a_larger_one_loses_nothing(driver):
    assert by_us(driver, nodes.Shuffle(buffer_size=1), range(20)) == by_tf(tf.data.Dataset.range(20).shuffle(1))
    ours = by_us(driver, nodes.Shuffle(buffer_size=7), range(20))
    assert sorted(ours) == sorted(by_tf(tf.data.Dataset.range(20).shuffle(7)))
    # In both, what comes out at place i was among the first i + 7.
    assert all(element < place + 7 for place, element in enumerate(by_tf(tf.data.Dataset.range(20).shuffle(7))))
    assert all(element < place + 7 for place, element in enumerate(ours))


@fewer
@given(st.lists(st.integers(0, 9), max_size=20), cuts)
def test_take_while(driver, fn, values, cut):
    ours = by_us(driver, nodes.TakeWhile(fn=fn(lambda x: x < 7)), values, cuts=cut)
    theirs = tf.data.Dataset.from_tensor_slices(np.array(values, np.int64)).take_while(lambda x: x < 7)
    assert ours == by_tf(theirs)


@fewer
@given(st.lists(st.integers(-9, 9), max_size=20), cuts)
def test_scan(driver, fn, values, cut):
    node = nodes.Scan(initial_state=3, fn=fn(lambda state, x: (state + x, (state, x * 2))))
    theirs = tf.data.Dataset.from_tensor_slices(np.array(values, np.int64))
    theirs = theirs.scan(np.int64(3), lambda state, x: (state + x, (state, x * 2)))
    assert by_us(driver, node, values, cuts=cut) == by_tf(theirs)


@fewer
@given(st.lists(st.integers(0, 9), max_size=20), st.booleans(), cuts)
def test_unique(driver, values, as_text, cut):
    column = [str(value).encode() for value in values] if as_text else values
    theirs = tf.data.Dataset.from_tensor_slices(np.array(column, object if as_text and column else np.int64)).unique()
    assert by_us(driver, nodes.Unique(), column, cuts=cut) == by_tf(theirs)


windows = st.tuples(st.integers(1, 6), st.integers(1, 7), st.integers(1, 4), st.booleans())


@few
@given(st.integers(0, 20), windows, cuts)
def test_window(driver, count, window, cut):
    size, shift, stride, drop = window
    node = nodes.SlidingWindow(size=size, shift=shift, stride=stride, drop_remainder=drop)
    theirs = tf.data.Dataset.range(count).window(size, shift, stride, drop)
    assert by_us(driver, node, range(count), cuts=cut) == [tuple(by_tf(each)) for each in theirs]


@pytest.mark.parametrize("count", [0, 4, 5, 6])
def test_assert_cardinality(driver, count):
    node = nodes.AssertCardinality(count=5)
    theirs = tf.data.Dataset.range(count).filter(lambda x: x >= 0)
    theirs = theirs.apply(tf.data.experimental.assert_cardinality(5))
    if count == 5:
        assert by_us(driver, node, range(count)) == by_tf(theirs)
        return
    with pytest.raises(tf.errors.FailedPreconditionError, match="5 elements"):
        by_tf(theirs)
    said = "has more" if count > 5 else f"had {count}"
    with pytest.raises(PipelineError, match=rf"expects 5 elements, and its input {said}"):
        by_us(driver, node, range(count))


def test_ragged_batches_are_unbatched():
    arrays = [np.arange(size) for size in (1, 0, 3, 2)]
    ours = list(Dataset.from_list(arrays).ragged_batch(3).unbatch())
    theirs = tf.data.Dataset.from_generator(lambda: arrays, output_signature=tf.TensorSpec((None,), tf.int64))
    expected = theirs.ragged_batch(3).unbatch()
    assert [each.tolist() for each in ours] == [each.numpy().tolist() for each in expected]
    again = list(Dataset.from_list(arrays).ragged_batch(1).rebatch(4))
    assert [part.tolist() for batch in again for part in np.split(batch.values, batch.row_splits[1:-1])] == [
        each.tolist() for each in arrays
    ]
