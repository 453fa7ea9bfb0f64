import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millrace.elements.chunk import Origin
from millrace.errors import ElementError, PipelineError
from millrace.graph import nodes

cuts = st.lists(st.integers(1, 7), min_size=1, max_size=5)


def lists(batches):
    return [batch.tolist() for batch in batches]


def groups(elements, size, drop_remainder=False):
    cut = [list(elements[start : start + size]) for start in range(0, len(elements), size)]
    return [group for group in cut if len(group) == size or not drop_remainder]


batchers = pytest.mark.parametrize("make", [nodes.Batch, nodes.PaddedBatch])


@batchers
@given(st.integers(0, 20), st.integers(1, 7), st.booleans(), cuts)
def test_batches_as_elements_come(driver, make, size, batch_size, drop, sizes):
    node = make(batch_size=batch_size, drop_remainder=drop)
    result = driver.positioned(node, range(size), cuts=sizes)
    assert lists(element for _, _, element in result) == groups(range(size), batch_size, drop)
    assert [(origin, position) for origin, position, _ in result] == [(driver.mixed, i) for i in range(len(result))]


@batchers
@given(st.lists(st.integers(1, 5), max_size=6), cuts)
def test_batches_as_planned(driver, make, planned, sizes):
    outputs = [(Origin(2, i // 3), 10 * i, size) for i, size in enumerate(planned)]
    node = make(batch_size=99, drop_remainder=True)
    result = driver.positioned(node, range(sum(planned)), cuts=sizes, outputs=outputs, leftovers=[-1, -2])
    assert [(origin, position, len(batch)) for origin, position, batch in result] == outputs
    assert [x for _, _, batch in result for x in batch.tolist()] == list(range(sum(planned)))


def test_planned_batches_of_neighbouring_positions_share_a_chunk(driver):
    here, there = Origin(2, 0), Origin(2, 1)
    outputs = [(here, 4, 2), (here, 5, 2), (here, 9, 2), (there, 10, 2)]
    chunks = driver.run(nodes.Batch(batch_size=2), range(8), cuts=[8], outputs=outputs)
    assert [(chunk.origin, list(chunk.positions)) for chunk in chunks] == [(here, [4, 5]), (here, [9]), (there, [10])]


@pytest.mark.parametrize(("drop", "last"), [(False, [[4, 5]]), (True, [])])
def test_input_that_ends_before_the_plan(driver, drop, last):
    node = nodes.Batch(batch_size=4, drop_remainder=drop)
    outputs = [(driver.mixed, i, 4) for i in range(3)]
    assert lists(driver.elements(node, range(6), outputs=outputs, leaves=True)) == [[0, 1, 2, 3], *last]


def test_a_plan_without_batches(driver):
    assert driver.elements(nodes.Batch(batch_size=2), range(4), outputs=[]) == []


def collect(driver, node, parts, cuts):
    """What tasks over ``parts`` and the tail task after them give."""
    results, left = [], []
    for part in parts:
        context = driver.context(node, leaves=True)
        for chunk in driver.start(node, [driver.chunks(part, cuts)], context):
            results += chunk.elements
        left += context.left
    return results, left, driver.elements(node, [], leftovers=left)


@batchers
@given(st.lists(st.integers(0, 9), max_size=4), st.booleans(), cuts)
def test_what_tasks_leave_makes_full_batches(driver, make, lengths, drop, sizes):
    parts = [[(number, i) for i in range(length)] for number, length in enumerate(lengths)]
    node = make(batch_size=4, drop_remainder=drop)
    results, left, last = collect(driver, node, parts, sizes)
    assert left == [pair for part in parts for pair in part[len(part) // 4 * 4 :]]
    batches = [[(a, b) for a, b in zip(*map(np.ndarray.tolist, batch), strict=True)] for batch in [*results, *last]]
    assert batches == [g for part in parts for g in groups(part, 4, drop_remainder=True)] + groups(left, 4, drop)


def test_leftovers_come_before_the_input(driver):
    result = driver.elements(nodes.Batch(batch_size=3), [3, 4, 5], leftovers=iter([0, 1, 2, 9]), chunk_size=2)
    assert lists(result) == [[0, 1, 2], [9, 3, 4], [5]]


def test_a_large_batch_is_not_held_back(driver):
    def elements():
        for i in range(6):
            yielded.append(i)
            yield np.full(1 << 19, i, np.uint8)

    yielded: list[int] = []
    node = nodes.Batch(batch_size=2)
    source = (chunk for element in elements() for chunk in driver.chunks([element]))
    chunks = driver.start(node, [source], driver.context(node, chunk_size=100))
    assert len(next(chunks)) == 1
    assert yielded == [0, 1]


def test_small_batches_of_one_input_chunk_stay_together(driver):
    chunks = driver.run(nodes.Batch(batch_size=2), range(16), cuts=[8])
    assert [len(chunk) for chunk in chunks] == [4, 4]


def test_large_batches_of_one_input_chunk_come_one_by_one(driver):
    arrays = [np.zeros(1 << 20, np.uint8)] * 4
    assert [len(chunk) for chunk in driver.run(nodes.Batch(batch_size=2), arrays, cuts=[4])] == [1, 1]


def test_errors_name_the_operator(driver):
    with pytest.raises(PipelineError, match=r"batch\(\): ragged shapes.*padded_batch"):
        driver.elements(nodes.Batch(batch_size=2), [np.zeros(1), np.zeros(2)])
    with pytest.raises(PipelineError, match=r"padded_batch\(\): shape \(2,\).*larger than its padded shape \(1,\)"):
        driver.elements(nodes.PaddedBatch(batch_size=2, padded_shapes=(1,)), [np.zeros(1), np.zeros(2)])


@batchers
@given(size=st.integers(2, 6), odd=st.integers(0, 11), leftovers=st.integers(0, 3), sizes=cuts)
def test_what_does_not_fit_into_a_batch_is_named(driver, make, size, odd, leftovers, sizes):
    elements = [np.zeros((1, 1) if number == odd else 1) for number in range(12)]
    before = [np.zeros(1)] * leftovers
    first, place = divmod(leftovers + odd, size)
    assume(place or odd < 11)  # alone in its batch it would fit
    all_names = ["a leftover"] * leftovers + [f"element {number} of split 3" for number in range(12)]
    names = all_names[first * size :]
    with pytest.raises(PipelineError) as caught:
        driver.elements(make(batch_size=size), elements, cuts=sizes, leftovers=before)
    other = place or 1  # whichever of the two came first is the batch's first element
    said = f"the batch's first element is {names[0]}, and element {other} is {names[other]}."
    assert str(caught.value).endswith(f" Here {said}")


def test_what_cannot_be_in_a_batch_at_all_is_named(driver):
    with pytest.raises(PipelineError, match=r"None cannot be .*, or leave it out\. Here .*element 1 is element 4 of "):
        driver.elements(nodes.Batch(batch_size=3), [0, 1, 2, 3, None], cuts=[2, 3])
    with pytest.raises(
        PipelineError, match=r"larger than its padded shape .*\. Here element 0 is element 3 of split 3"
    ):
        driver.elements(nodes.PaddedBatch(batch_size=3, padded_shapes=(1,)), [np.zeros(1)] * 3 + [np.zeros(2)])


# -- bucket_by_sequence_length -----------------------------------------------------------------------------------------


def bucketing(fn, length=len, **options):
    return nodes.BucketBySequenceLength(
        element_length_fn=fn(length), bucket_boundaries=(3, 5), bucket_batch_sizes=(3, 2, 2), **options
    )


def sequences(lengths):
    return [np.full(length, number) for number, length in enumerate(lengths, 1)]


def test_buckets_are_padded(driver, fn):
    result = driver.elements(bucketing(fn), sequences([1, 4, 3, 5, 6, 2]))
    assert lists(result) == [
        [[2, 2, 2, 2], [3, 3, 3, 0]],
        [[4, 4, 4, 4, 4, 0], [5, 5, 5, 5, 5, 5]],
        [[1, 0], [6, 6]],
    ]


def test_buckets_are_padded_to_their_boundary(driver, fn):
    node = bucketing(fn, pad_to_bucket_boundary=True)
    assert [batch.shape for batch in driver.elements(node, sequences([1, 3, 1, 1, 3]))] == [(3, 2), (2, 4)]


def test_no_padding(driver, fn):
    node = bucketing(fn, no_padding=True)
    assert lists(driver.elements(node, sequences([1, 1, 4]))) == [[[1], [2]], [[3, 3, 3, 3]]]
    ragged = r"ragged shapes.* Here the batch's first element is element 1 of split 3, and element 1 is element 2 of"
    with pytest.raises(PipelineError, match=ragged):
        driver.elements(node, sequences([4, 1, 2]))


def test_padding_options(driver, fn):
    node = bucketing(fn, padded_shapes=(6,), padding_values=-1)
    assert lists(driver.elements(node, sequences([2]))) == [[[1, 1, -1, -1, -1, -1]]]


@given(st.lists(st.integers(1, 7), max_size=25), st.booleans(), cuts)
def test_buckets_keep_the_order_and_leave_in_order_of_arrival(driver, fn, lengths, drop, sizes):
    node = bucketing(fn, drop_remainder=drop)
    elements = sequences(lengths)
    whole = driver.positioned(node, elements, cuts=sizes)
    assert [(origin, position) for origin, position, _ in whole] == [(driver.mixed, i) for i in range(len(whole))]
    results, left, last = collect(driver, node, [elements], sizes)
    assert lists([*results, *last]) == lists(batch for _, _, batch in whole)
    arrivals = [int(element[0]) for element in left]
    assert arrivals == sorted(arrivals)
    used = sum(len(batch) for batch in [*results, *last])
    assert used == len(elements) or drop
    assert not (drop and last)


@pytest.mark.parametrize(
    ("length", "options", "said"),
    [
        (lambda x: None, {}, "length function returned None, not an int. Return the element's length"),
        (lambda x: 1.0, {}, "returned a float, not an int"),
        (lambda x: True, {}, "returned a bool, not an int"),
        (lambda x: [1], {}, "returned a list, not an int"),
        (lambda x: 5, {"pad_to_bucket_boundary": True}, "length 5 is beyond the last bucket boundary, 5.*filter"),
    ],
)
def test_lengths_that_make_no_sense(driver, fn, length, options, said):
    with pytest.raises(PipelineError, match=rf"^bucket_by_sequence_length\(.*{said}"):
        driver.elements(bucketing(fn, length, **options), sequences([1]))


def test_numpy_lengths(driver, fn):
    node = bucketing(fn, lambda x: np.int32(len(x)))
    assert lists(driver.elements(node, sequences([1]))) == [[[1]]]


def test_elements_whose_length_fails_are_skipped(driver, fn):
    node = bucketing(fn, lambda x: 1 // 0 if len(x) == 1 else len(x))
    with pytest.raises(ElementError, match="ZeroDivisionError"):
        driver.elements(node, sequences([2, 1]))
    assert lists(driver.elements(node, sequences([2, 1, 2]), on_error="skip")) == [[[1, 1], [3, 3]]]


# -- group_by_window ---------------------------------------------------------------------------------------------------


def grouping(fn, key=lambda x: x % 3, reduce=lambda key, elements: [(key, elements)], **options):
    options = options or {"window_size": 2}
    return nodes.GroupByWindow(key_fn=fn(key), reduce_fn=fn(reduce), **options)


def test_windows_are_reduced_when_full_and_at_the_end_by_key(driver, fn):
    result = driver.positioned(grouping(fn), [2, 5, 8, 1, 0])
    assert [element for _, _, element in result] == [(2, [2, 5]), (0, [0]), (1, [1]), (2, [8])]
    assert [(origin, position) for origin, position, _ in result] == [(driver.mixed, i) for i in range(4)]


def test_windows_give_any_number_of_elements(driver, fn):
    node = grouping(fn, reduce=lambda key, elements: (x for x in elements if x > 3))
    assert driver.elements(node, [0, 3, 6, 9, 12], chunk_size=1) == [6, 9, 12]


def test_window_sizes_by_key(driver, fn):
    node = grouping(fn, window_size_fn=fn(lambda key: np.int64(key + 1)))
    assert driver.elements(node, [1, 0, 4, 3, 2]) == [(0, [0]), (1, [1, 4]), (0, [3]), (2, [2])]


def test_keys_may_be_numpy_numbers_and_need_no_order(driver, fn):
    keys = {0: np.int64(0), 1: np.array(0), 2: "b", 3: (1, 2)}
    node = grouping(fn, key=keys.__getitem__, window_size=3)
    assert driver.elements(node, [3, 0, 2, 1]) == [((1, 2), [3]), (0, [0, 1]), ("b", [2])]


def test_keys_that_are_no_number_are_one(driver, fn):
    node = grouping(fn, key=lambda x: np.float64("nan"), reduce=lambda _, elements: [elements], window_size=3)
    assert driver.elements(node, [0, 1, 2, 3]) == [[0, 1, 2], [3]]


class Tensor:
    """What numpy makes an array of, as it does of torch's tensors."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_whatever_is_an_array_is_ragged_in_a_ragged_batch(driver):
    node = nodes.RaggedBatch(batch_size=2)
    for elements in ([Tensor([1, 2]), Tensor([3])], [Tensor([1, 2]), np.array([3])]):
        (batch,) = driver.elements(node, elements)
        assert (batch.values.tolist(), batch.row_splits.tolist()) == ([1, 2, 3], [0, 2, 3])
    (batch,) = driver.elements(node, [Tensor(1), Tensor(2)])
    assert batch.tolist() == [1, 2]
    masked = np.ma.masked_array([1, 2], [False, True])
    with pytest.raises(PipelineError, match="a masked array would lose its mask in a batch"):
        driver.elements(node, [masked, masked])


@given(st.lists(st.integers(0, 8), max_size=25), cuts)
def test_windows_leave_in_order_of_arrival(driver, fn, values, sizes):
    node = grouping(fn, window_size=3)
    whole = driver.elements(node, values, cuts=sizes)
    results, left, last = collect(driver, node, [values], sizes)
    assert results + last == whole
    expected = list(values)
    for _, window in results:
        for element in window:
            expected.remove(element)
    assert left == expected


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": lambda x: [x]}, r"key function returned a list, which is not hashable\. Return a number"),
        ({"key": lambda x: np.zeros(2)}, "key function returned a ndarray, which is not hashable"),
        ({"window_size_fn": None}, r"window size for key 1 is 0\. It must be an int above 0"),
        ({"reduce": lambda key, elements: None, "window_size": 1}, "neither a dataset nor iterable"),
    ],
)
def test_what_makes_no_sense_is_named(driver, fn, options, said):
    if "window_size_fn" in options:
        options = {"window_size_fn": fn(lambda key: 0)}
    with pytest.raises(PipelineError, match=rf"^group_by_window\(.*{said}"):
        driver.elements(grouping(fn, **options), [1])


def test_failures_of_every_function_are_skipped(driver, fn):
    def failing_on(bad):
        return lambda key, *rest: 1 // 0 if key == bad else [(key, *rest)]

    assert driver.elements(grouping(fn, key=lambda x: 6 // x), [1, 0, 1], on_error="skip") == [(6, [1, 1])]
    assert driver.elements(grouping(fn, reduce=failing_on(1)), [1, 4, 0], on_error="skip") == [(0, [0])]
    node = grouping(fn, window_size_fn=fn(lambda key: 2 // key))
    assert driver.elements(node, [0, 1, 3, 4], on_error="skip") == [(1, [1, 4])]
    with pytest.raises(ElementError, match="ZeroDivisionError"):
        driver.elements(node, [0])


def test_a_window_that_fails_midway_keeps_what_it_gave(driver, fn):
    def reduce(key, elements):
        yield key
        raise ValueError("midway")

    for size in (1, 2, 9):
        assert driver.elements(grouping(fn, reduce=reduce), [1, 2], on_error="skip", chunk_size=size) == [1, 2]


# -- rebatch -----------------------------------------------------------------------------------------------------------


def batches_of(lengths):
    rows = np.arange(2 * sum(lengths)).reshape(-1, 2)
    ends = np.cumsum(lengths)
    return [
        {"x": rows[end - length : end], "y": [b"%d" % i for i in range(end - length, end)]}
        for end, length in zip(ends, lengths, strict=True)
    ]


@given(st.lists(st.integers(0, 7), max_size=8), st.integers(1, 6), st.booleans(), cuts)
def test_rebatch_cuts_anew(driver, lengths, size, drop, sizes):
    node = nodes.Rebatch(batch_size=size, drop_remainder=drop)
    result = driver.positioned(node, batches_of(lengths), cuts=sizes)
    expected = groups(np.arange(2 * sum(lengths)).reshape(-1, 2).tolist(), size, drop)
    assert [batch["x"].tolist() for _, _, batch in result] == expected
    assert [len(batch["y"]) for _, _, batch in result] == list(map(len, expected))
    assert [(origin, position) for origin, position, _ in result] == [(driver.mixed, i) for i in range(len(result))]


def test_rebatch_copies_only_where_it_joins(driver):
    batches = [np.arange(4), np.arange(4)]
    result = driver.elements(nodes.Rebatch(batch_size=3), batches)
    assert lists(result) == [[0, 1, 2], [3, 0, 1], [2, 3]]
    assert [any(np.shares_memory(batch, whole) for whole in batches) for batch in result] == [True, False, True]


@given(st.lists(st.integers(0, 7), max_size=5), st.booleans(), cuts)
def test_rebatch_leaves_rows(driver, lengths, drop, sizes):
    node = nodes.Rebatch(batch_size=4, drop_remainder=drop)
    batches = batches_of(lengths)
    results, left, last = collect(driver, node, [batches], sizes)
    whole = driver.elements(node, batches)
    assert sum(len(batch["y"]) for batch in left) == sum(lengths) % 4
    assert [batch["x"].tolist() for batch in [*results, *last]] == [batch["x"].tolist() for batch in whole]


def test_what_cannot_be_rebatched_is_named(driver):
    with pytest.raises(PipelineError, match=r"rebatch\(\): a value of type int has no rows"):
        driver.elements(nodes.Rebatch(batch_size=3), [1])
    with pytest.raises(PipelineError, match=r"rebatch\(\): rows of different shapes: \(2,\)"):
        driver.elements(nodes.Rebatch(batch_size=3), [np.zeros((2, 2)), np.zeros((2, 3))])
