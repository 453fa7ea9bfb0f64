"""Elements as a tf.data.Dataset: specs, epochs, errors."""

import gc

import numpy as np
import pytest
import tensorflow as tf

import millrace as mr

TEXT = "text"


def shape_of(dataset):
    return dataset.tensorflow().element_spec.shape.as_list()


class TestSpecs:
    def test_scalars_strings_arrays(self):
        element = {"i": 1, "f": 0.5, "b": True, "s": TEXT, "y": b"x", "a": np.zeros((2, 3), np.uint8)}
        spec = mr.Dataset.from_list([element] * 2).tensorflow().element_spec
        assert spec == {
            "i": tf.TensorSpec((), tf.int64),
            "f": tf.TensorSpec((), tf.float64),
            "b": tf.TensorSpec((), tf.bool),
            "s": tf.TensorSpec((), tf.string),
            "y": tf.TensorSpec((), tf.string),
            "a": tf.TensorSpec((2, 3), tf.uint8),
        }

    def test_nested_and_lists(self):
        element = (1, {"words": ["a", "bc"], "pair": [np.zeros(2), 3]})
        tensors = mr.Dataset.from_list([element]).tensorflow()
        assert tensors.element_spec[1]["words"] == tf.TensorSpec((2,), tf.string)
        ((_, found),) = list(tensors)
        assert found["words"].numpy().tolist() == [b"a", b"bc"]
        assert found["pair"][0].shape == (2,)

    @pytest.mark.parametrize(("drop", "rows"), [(False, None), (True, 3)])
    def test_ragged_arrays(self, drop, rows):
        batches = mr.Dataset.range(8).map(lambda i: {"x": np.full((i, 2), i), "y": i}).ragged_batch(3, drop)
        tensors = batches.tensorflow()
        assert tensors.element_spec["x"] == tf.RaggedTensorSpec((rows, None, 2), tf.int64, 1, tf.int64)
        assert tensors.element_spec["y"] == tf.TensorSpec((rows,), tf.int64)
        found = [row.numpy().tolist() for batch in tensors for row in batch["x"]]
        assert found == [[[i, i]] * i for i in range(6 if drop else 8)]

    def test_dimensions_that_differ(self):
        assert shape_of(mr.Dataset.from_list([np.zeros((2, 3)), np.zeros((2, 5))])) == [2, None]

    @pytest.mark.parametrize(
        ("build", "rows"),
        [
            (lambda d: d.batch(32), None),
            (lambda d: d.batch(25), 25),
            (lambda d: d.batch(32, drop_remainder=True), 32),
            (lambda d: d.batch(32).map(lambda b: b + 1).prefetch(), None),
            (lambda d: d.filter(lambda x: x[0] < 90).batch(25), None),
            (lambda d: d.filter(lambda x: x[0] < 90).batch(25, drop_remainder=True), 25),
            (lambda d: d.repeat().batch(32), 32),
            (lambda d: d.batch(50).rebatch(32), None),
            (lambda d: d.batch(50).rebatch(32, drop_remainder=True), 32),
            (lambda d: d.batch(25).concatenate(d.batch(20)), None),
            (lambda d: d.batch(2).unbatch(), 2),
            (lambda d: d.skip(4).batch(24).shuffle(10), 24),
        ],
    )
    def test_rows_of_batches(self, build, rows):
        dataset = build(mr.Dataset.range(100).map(lambda i: np.full(2, i)))
        tensors = dataset.tensorflow()
        assert tensors.element_spec.shape[0] == rows
        found = list(tensors.take(12))
        assert found

    def test_padded_dimensions(self):
        rows = mr.Dataset.range(40).map(lambda i: np.zeros((4 if i < 36 else 9, 3)))
        assert shape_of(rows.padded_batch(8)) == [8, None, None]
        assert shape_of(rows.padded_batch(8, padded_shapes=(None, 3))) == [8, None, 3]
        assert shape_of(rows.padded_batch(8, padded_shapes=(16, 3))) == [8, 16, 3]
        assert len(list(rows.padded_batch(8).tensorflow())) == 5

    def test_buckets(self):
        rows = mr.Dataset.range(64).map(lambda i: np.zeros(1 + i % 16))
        dataset = rows.bucket_by_sequence_length(len, [4, 8], [8, 4, 2])
        tensors = dataset.tensorflow()
        assert tensors.element_spec.shape.as_list() == [None, None]
        assert sum(len(batch) for batch in tensors) == 64

    def test_windows(self):
        dataset = mr.Dataset.range(20).group_by_window(
            lambda x: x % 3, lambda _, window: window.batch(4), window_size=4
        )
        tensors = dataset.tensorflow()
        assert tensors.element_spec.shape.as_list() == [None]
        assert sorted(int(x) for batch in tensors for x in batch) == list(range(20))

    def test_windows_of_any_length_are_refused(self):
        with pytest.raises(mr.PipelineError, match=r"lists of different lengths at \(root\) have no form"):
            mr.Dataset.range(10).window(3).tensorflow()
        tensors = mr.Dataset.range(10).window(3, drop_remainder=True).tensorflow()
        assert [[int(x) for x in window] for window in tensors] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]

    def test_explicit(self):
        spec = (tf.TensorSpec((None,), tf.float32), tf.TensorSpec((), tf.int32))
        tensors = mr.Dataset.from_list([([1, 2], 3), ([4.5], 5)]).tensorflow(spec)
        assert tensors.element_spec == spec
        assert [(a.numpy().tolist(), int(b)) for a, b in tensors] == [([1, 2], 3), ([4.5], 5)]

    @pytest.mark.parametrize("tags", [[[], ["a"]], [["a", "b"], []], [[], [], [b"a"]]])
    def test_lists_of_strings_may_be_empty(self, tags):
        tensors = mr.Dataset.from_list([{"tags": each} for each in tags]).tensorflow()
        assert tensors.element_spec["tags"] == tf.TensorSpec((None,), tf.string)
        found = [each["tags"].numpy().tolist() for each in tensors]
        assert found == [[tag.encode() if isinstance(tag, str) else tag for tag in each] for each in tags]

    def test_computes_nothing_if_explicit(self):
        def fail(x):
            raise AssertionError("computed")

        spec = tf.TensorSpec((), tf.int64)
        assert mr.Dataset.range(3).map(fail).tensorflow(spec).element_spec == spec

    def test_length(self):
        assert mr.Dataset.range(100).batch(32).tensorflow().cardinality() == 4
        assert mr.Dataset.range(9).filter(lambda x: x > 3).tensorflow().cardinality() == tf.data.UNKNOWN_CARDINALITY

    def test_of_what_may_be_shorter_it_is_unknown(self):
        """TensorFlow fails where there are fewer elements than it was told."""
        dataset, resumed = mr.Dataset.range(100), mr.Dataset.range(100)
        next(iter(dataset))
        resumed.load_state_dict(dataset.state_dict())
        assert resumed.tensorflow().cardinality() == tf.data.UNKNOWN_CARDINALITY
        assert list(resumed.tensorflow().as_numpy_iterator()) == list(range(1, 100))
        with mr.LocalService(max_workers=1) as service:
            for chosen, length in (
                ({"job_name": "all"}, tf.data.UNKNOWN_CARDINALITY),
                ({"job_name": "one", "num_consumers": 1}, 100),
                ({}, 100),
                ({"visitation": mr.Visitation.AT_MOST_ONCE}, tf.data.UNKNOWN_CARDINALITY),
            ):
                with dataset.distribute(service.address, **chosen) as distributed:
                    assert distributed.tensorflow().cardinality() == length
                    assert distributed.map(lambda x: x).tensorflow().cardinality() == length


class TestMistakes:
    @pytest.mark.parametrize(
        ("elements", "message"),
        [
            ([], "has no element to find its element_spec by"),
            ([{"a": None}], r'None at \["a"\] is no tensor'),
            ([{"a": {1}}], r'set at \["a"\] is no tensor'),
            ([np.zeros(2, "M8[s]")], r"no type for datetime64\[s\] at \(root\)"),
            ([(1, 2), (1, 2, 3)], r"differ in structure at \(root\)"),
            ([{"a": 1}, {"b": 1}], r"differ in structure at \(root\)"),
            ([(1, [2]), (1, 2)], r"differ in structure at \[1\]"),
            ([{"a": 1}, {"a": 1.5}], r'differ at \["a"\]: float64 of rank 0 and int64 of rank 0'),
            ([np.zeros(2), np.zeros((2, 2))], "float64 of rank 1 and float64 of rank 2"),
        ],
    )
    def test_no_spec(self, elements, message):
        with pytest.raises(mr.PipelineError, match=message):
            mr.Dataset.from_list(elements).tensorflow()

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ({"a": tf.TensorSpec((2,), tf.int64)}, r"int64 of shape \(3,\) at \['a'\]|int64 of shape \(3,\)"),
            ({"a": tf.TensorSpec((3,), tf.float32)}, r"says float32 of shape \(3,\)"),
            ({"b": tf.TensorSpec((3,), tf.int64)}, "a dict with keys 'a' at .root. where the element_spec says"),
            ((tf.TensorSpec((3,), tf.int64),), "says a tuple of 1"),
            ({"a": tf.TensorSpec((3,), tf.string)}, "says string of shape"),
        ],
    )
    def test_an_element_that_does_not_fit(self, spec, message):
        tensors = mr.Dataset.from_list([{"a": np.arange(3)}]).tensorflow(spec)
        with pytest.raises(tf.errors.OpError, match=message):
            list(tensors)

    @pytest.mark.parametrize("element", [3_000_000_000, [1, -3_000_000_000]])
    def test_a_number_that_the_type_cannot_hold(self, element):
        spec = tf.TensorSpec(np.shape(element), tf.int32)
        with pytest.raises(tf.errors.OpError, match=r"int32, which the element_spec says at .root., cannot hold the"):
            list(mr.Dataset.from_list([element]).tensorflow(spec))


class TestTraining:
    def fit(self, tensors):
        weight = tf.Variable(0.0)

        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(weight * x - y))
            weight.assign_sub(0.2 * tape.gradient(loss, weight))

        epochs = []
        for _ in range(2):
            seen = []
            for x, y in tensors:
                step(x, y)
                seen.extend(x.numpy().tolist())
            epochs.append(seen)
        return float(weight), epochs

    def pipeline(self):
        numbers = mr.Dataset.range(100).shuffle(100, seed=3)
        return numbers.map(lambda i: (np.float32(i / 50), np.float32(i / 25))).batch(32)

    @pytest.mark.parametrize("distributed", [False, True])
    def test_two_epochs(self, distributed):
        dataset = self.pipeline()
        if distributed:
            with dataset.distribute(workers=1) as source:
                weight, (first, second) = self.fit(source.tensorflow())
        else:
            weight, (first, second) = self.fit(dataset.tensorflow())
        assert weight == pytest.approx(2, abs=0.1)
        assert first != second
        assert sorted(first) == sorted(second) == sorted(np.float32(i / 50) for i in range(100))

    def test_repeat_within_tensorflow(self):
        found = [x for batch, _ in self.pipeline().tensorflow().repeat(2) for x in batch.numpy().tolist()]
        assert len(found) == 200
        assert found[:100] != found[100:]

    def test_tensors_outlive_the_service(self):
        with (
            mr.LocalService(max_workers=1) as service,
            mr.Dataset.range(64)
            .map(lambda i: np.full(256, i))
            .batch(8)
            .distribute(service.address, deterministic=True) as distributed,
        ):
            kept = list(distributed.tensorflow())
        gc.collect()
        np.testing.assert_array_equal(tf.concat(kept, 0)[:, 3], np.arange(64))
