import numpy as np
import pytest

from millrace.errors import PipelineError
from millrace.ops.padding import fill_unknown, stack_padded


def pad(elements, shapes=None, values=None, **options):
    return stack_padded(elements, shapes, values, "padded_batch", **options)


def test_each_leaf_is_padded_to_the_longest(driver):
    elements = [{"t": np.array([1, 2, 3]), "y": 5, "s": "a"}, {"t": np.array([4]), "y": 6, "s": "bc"}]
    assert driver.same(
        pad(elements), {"t": np.array([[1, 2, 3], [4, 0, 0]]), "y": np.array([5, 6]), "s": np.array(["a", "bc"])}
    )


def test_padding_is_counted_of_each_leaf_that_can_have_some(driver):
    counted = []
    elements = [
        {"t": np.ones((3, 2)), "y": 5, "s": "a", "z": np.ones(2)},
        {"t": np.ones((1, 2)), "y": 6, "s": "bc", "z": np.ones(2)},
    ]
    pad(elements, count=lambda padding, size: counted.append((padding, size)))
    assert counted == [(4, 12), (0, 4)]


def test_every_dimension_is_padded(driver):
    batch = pad([np.ones((1, 3), np.float32), np.full((2, 2), 2, np.float32)], values=-1)
    assert driver.same(batch, np.array([[[1, 1, 1], [-1, -1, -1]], [[2, 2, -1], [2, 2, -1]]], np.float32))


@pytest.mark.parametrize(
    ("shapes", "shape"),
    [
        (None, (2, 3)),
        ((None,), (2, 3)),
        ([None], (2, 3)),
        ((-1,), (2, 3)),
        ((5,), (2, 5)),
        ((np.int64(4),), (2, 4)),
        ({"t": (4,)}, (2, 4)),
        ({"t": None}, (2, 3)),
    ],
)
def test_shapes_may_be_given_for_all_or_by_leaf(shapes, shape):
    assert pad([{"t": np.zeros(3)}, {"t": np.zeros(1)}], shapes)["t"].shape == shape


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ((None, 4), [(1, 2, 4), (1, 1, 4)]),
        (((3, 3), None), [(1, 3, 3), (1, 1, 2)]),
        ((None, None), [(1, 2, 2), (1, 1, 2)]),
        ([(None, 3), (2, None)], [(1, 2, 3), (1, 2, 2)]),
    ],
)
def test_a_tuple_is_a_shape_if_it_holds_numbers_and_a_structure_otherwise(shapes, expected):
    assert [leaf.shape for leaf in pad([(np.zeros((2, 2)), np.zeros((1, 2)))], shapes)] == expected


@pytest.mark.parametrize(
    ("leaf", "value", "filled"),
    [
        (np.ones(1, np.int32), -1, -1),
        (np.ones(1, np.uint8), 255, 255),
        (np.ones(1, np.int64), 2.0, 2),
        (np.ones(1, np.float32), 0.1, np.float32(0.1)),
        (np.ones(1, np.float32), np.nan, np.nan),
        (np.ones(1, bool), True, True),
        (np.array(["a"]), "long", "long"),
        (np.array(["a"]), None, ""),
        (np.array([b"a"]), b"-", b"-"),
        (np.ones(1, np.complex64), 1j, 1j),
        (np.ones(1), None, 0),
    ],
)
def test_values_take_the_dtype_of_the_leaf(leaf, value, filled):
    batch = pad([leaf], (2,), value)
    assert batch[0, 0] == leaf[0]
    assert batch[0, 1] == filled or np.isnan(filled)
    assert batch.dtype.kind == leaf.dtype.kind


def test_values_by_leaf():
    batch = pad([(np.ones(1), {"a": np.ones(1, int)})], (2,), (0.5, {"a": -1}))
    assert batch[0].tolist() == [[1, 0.5]]
    assert batch[1]["a"].tolist() == [[1, -1]]


def test_bytes_and_numbers_are_not_padded():
    assert pad([(1, b"a"), (2, b"bcd")]) == (pytest.approx([1, 2]), [b"a", b"bcd"])


def test_arrays_are_written_into_what_the_allocator_gives():
    given = []

    def allocate(shape, dtype):
        given.append(np.empty(shape, dtype))
        return given[-1]

    batch = pad([np.zeros(2), np.zeros(3)], allocate=allocate)
    assert batch is given[0]


@pytest.mark.parametrize(
    ("elements", "shapes", "values", "said"),
    [
        (
            [{"t": np.zeros(3)}, {"t": np.zeros(7)}],
            {"t": (5,)},
            None,
            [
                'padded_batch: shape (7,) at ["t"] of the batch\'s element 1 is larger than its padded shape (5,)',
                "filter()",
            ],
        ),
        ([np.zeros((2, 2)), np.zeros(2)], None, None, ["different numbers of dimensions: 2", "1 in its element 1"]),
        ([np.zeros(2), np.zeros(2, int)], None, None, ["different dtypes: float64"]),
        (
            [{"a": np.zeros(2), "y": 1}],
            (3,),
            None,
            ['padded shape (3,) at ["y"] has 1 dimensions, the element there 0'],
        ),
        ([np.zeros((2, 2))], (3,), None, ["padded shape (3,) has 1 dimensions, the element there 2 (shape (2, 2))"]),
        ([{"a": np.zeros(2)}], {"b": (3,)}, None, ["padded_shapes {'b': (3,)} does not fit", "a dict with keys 'a'"]),
        ([(np.zeros(2), 1)], ((3,),), None, ["padded_shapes ((3,),) does not fit", "a tuple of 2"]),
        ([{"a": np.zeros(2)}], {"a": "3"}, None, ["padded_shapes has '3' at [\"a\"]", "tuple of int"]),
        ([{"a": np.zeros(2)}], None, {"b": 0}, ["padding_values {'b': 0} does not fit"]),
        ([np.zeros(1, np.uint8)], (2,), -1, ["padding value -1 is no uint8"]),
        ([np.zeros(1, int)], (2,), 0.5, ["padding value 0.5 is no int64"]),
        ([np.zeros(1, int)], (2,), np.nan, ["padding value nan is no int64"]),
        ([np.zeros(1)], (2,), "x", ["padding value 'x' is no float64"]),
        ([np.array(["a"])], (2,), 0, ["padding value 0 is no <U1"]),
        ([[1, 2], [3]], None, None, ["make it one array (np.asarray)"]),
    ],
)
def test_what_does_not_fit_is_named(elements, shapes, values, said):
    with pytest.raises(PipelineError) as caught:
        pad(elements, shapes, values)
    for part in said:
        assert part in str(caught.value)


def test_unknown_dimensions_are_filled():
    elements = [{"t": np.zeros(3), "f": np.zeros((3, 8)), "y": 1}]
    assert fill_unknown({"t": (None,), "f": (None, 8), "y": ()}, 9, elements, "b") == {"t": (9,), "f": (9, 8), "y": ()}
    assert fill_unknown(None, 9, [{"t": np.zeros(3), "y": 1}], "b") == {"t": (9,), "y": ()}


def test_which_dimension_is_the_sequence_must_be_said():
    with pytest.raises(PipelineError, match=r"needs padded_shapes.*\[\"f\"\] has 2 dimensions.*e\.g\. \(None, 8\)"):
        fill_unknown(None, 9, [{"f": np.zeros((3, 8))}], "bucket_by_sequence_length")
