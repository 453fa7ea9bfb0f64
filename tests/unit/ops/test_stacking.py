import enum
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.elements.ragged import is_ragged, ragged
from millrace.errors import PipelineError
from millrace.ops.stacking import concatenate, count_rows, slice_rows, split_rows, splits_of, stack

Pair = namedtuple("Pair", ["left", "right"])  # noqa: PYI024 - the plain kind
Twin: Any = type("Pair", (tuple,), {"_fields": (), "__new__": lambda kind, *values: tuple.__new__(kind, values)})


@pytest.mark.parametrize(
    ("elements", "batch"),
    [
        ([1, 2, 3], np.array([1, 2, 3], np.int64)),
        ([1.5, 2.5], np.array([1.5, 2.5], np.float64)),
        ([1, 2.5], np.array([1, 2.5], np.float64)),
        ([True, False], np.array([True, False])),
        ([1j, 2j], np.array([1j, 2j], np.complex128)),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([np.int64(1), 2], np.array([1, 2], np.int64)),
        ([np.uint8(7)], np.array([7], np.uint8)),
        (["a", "long"], np.array(["a", "long"])),
        (["a", np.str_("bc")], np.array(["a", "bc"])),
        ([b"a\0", b""], [b"a\0", b""]),
        ([np.zeros(2, np.int16), np.ones(2, np.int16)], np.array([[0, 0], [1, 1]], np.int16)),
        ([np.array(3.0), np.array(4.0)], np.array([3.0, 4.0])),
        ([np.array(["a"]), np.array(["bcd"])], np.array([["a"], ["bcd"]])),
        ([np.array("2020", "M8[D]")] * 2, np.array(["2020", "2020"], "M8[D]")),
        ([(1, "x"), (2, "y")], (np.array([1, 2]), np.array(["x", "y"]))),
        ([[1, 2], [3, 4]], [np.array([1, 3]), np.array([2, 4])]),
        ([Pair(1, 2.0)], Pair(np.array([1]), np.array([2.0]))),
        ([{"a": {"b": 1}, "c": ()}] * 2, {"a": {"b": np.array([1, 1])}, "c": ()}),
        ([{"b": 1, "a": 2}, {"a": 4, "b": 3}], {"b": np.array([1, 3]), "a": np.array([2, 4])}),
        ([{"a": 1}, OrderedDict(a=2)], {"a": np.array([1, 2])}),
    ],
)
def test_leaves_become_what_the_docstring_says(driver, elements, batch):
    assert driver.same(stack(elements, "batch"), batch)


class Split(str, enum.Enum):  # noqa: UP042 - what people have
    TRAIN, TEST = "train", "a longer one"


class Shouted(str):
    __slots__ = ()

    def __str__(self):
        return self.upper()


def test_of_strings_that_show_something_else_the_content_counts():
    for column in ([Split.TRAIN, Split.TEST], [Shouted("ab"), "c"], [np.str_("x"), Split.TRAIN]):
        assert stack(column, "batch").tolist() == [str.__str__(value) for value in column]
        assert stack([{"s": value} for value in column], "batch")["s"].tolist() == stack(column, "batch").tolist()


def test_a_namedtuple_that_is_made_in_a_way_of_its_own_is_rebuilt_as_it_is():
    class Both(namedtuple("Both", ["one", "two"])):  # noqa: PYI024, SLOT002
        def __new__(cls, pair):
            return super().__new__(cls, *pair)

    batch = stack([Both((1, 2)), Both((3, 4))], "batch")
    assert type(batch) is Both
    assert [each.tolist() for each in batch] == [[1, 3], [2, 4]]
    assert split_rows(batch, 2) == [Both((1, 2)), Both((3, 4))]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
def test_ragged_rows_are_cut_and_joined_as_rows(sizes, data):
    """Whatever their number and that of their values, which may be one."""
    rows = [np.arange(size) + 10 * number for number, size in enumerate(sizes)]
    batch: dict[str, Any] = {"x": ragged(np.concatenate(rows), splits_of(sizes)), "y": np.arange(len(sizes))}
    assert count_rows(batch, "unbatch") == len(sizes)
    found = split_rows(batch, len(sizes))
    assert [row["x"].tolist() for row in found] == [row.tolist() for row in rows]
    assert [row["y"] for row in found] == list(range(len(sizes)))
    at = data.draw(st.integers(0, len(sizes) - 1))
    parts = [
        part for part in (slice_rows(batch, 0, at), slice_rows(batch, at, len(sizes))) if count_rows(part, "rebatch")
    ]
    joined = concatenate(parts, "rebatch")
    assert is_ragged(joined["x"])
    assert joined["x"].values.tolist() == batch["x"].values.tolist()
    assert joined["x"].row_splits.tolist() == batch["x"].row_splits.tolist()
    assert joined["x"].row_splits.dtype == np.int64


def test_containers_keep_their_kind_and_the_order_of_keys():
    batch = stack([{"b": Pair(1, [2])}, {"b": Pair(3, [4])}], "batch")
    assert type(batch["b"]) is Pair
    assert type(batch["b"].right) is list
    assert list(stack([{"b": 1, "a": 2}], "batch")) == ["b", "a"]


def test_arrays_are_written_into_what_the_allocator_gives():
    given = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        given.append(np.empty(shape, dtype))
        return given[-1]

    batch = stack([{"x": np.full((2, 3), i, np.float32)} for i in range(4)], "batch", allocate)
    assert batch["x"] is given[0]
    assert given[0].shape == (4, 2, 3)
    assert given[0][:, 0, 0].tolist() == [0, 1, 2, 3]


def test_not_contiguous_and_foreign_byte_order():
    arrays = [np.arange(12, dtype=">i4").reshape(3, 4).T[::2] for _ in range(2)]
    batch = stack(arrays, "batch")
    assert batch.dtype == np.dtype(">i4")
    assert np.array_equal(batch[1], arrays[1])


def test_what_has_an_array_interface_counts_as_an_array():
    class Tensor:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return np.arange(2.0)

    assert stack([Tensor(), Tensor()], "batch").tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        (
            [{"image": np.zeros((4, 5))}, {"image": np.zeros((4, 5))}, {"image": np.zeros((3, 5))}],
            [
                'batch: ragged shapes at ["image"]',
                "(4, 5) in the batch's first",
                "(3, 5) in its element 2",
                "padded_batch()",
            ],
        ),
        ([np.zeros(2), np.zeros(3)], ["batch: ragged shapes: (2,)", "padded_batch()"]),
        (
            [(0, np.zeros(2)), (0, np.zeros(2, "f4"))],
            ["different dtypes at [1]: float64", "float32 in its element 1", "map()"],
        ),
        ([1, "a"], ["different types: int", "str in its element 1"]),
        ([1, True], ["different types: int", "bool in its element 1"]),
        ([b"a", "a"], ["different types: bytes", "str in its element 1"]),
        ([np.zeros(()), 1], ["different dtypes: float64", "int64"]),
        (
            [{"a": 1}, {"b": 1}],
            ["different structures: dict with keys 'a'", "dict with keys 'b' in its element 1", "map()"],
        ),
        ([{"a": 1}, {"a": 1, "b": 1}], ["dict with keys 'a', 'b' in its element 1"]),
        (
            [{"a": (1, 2)}, {"a": (1, 2, 3)}],
            ['different structures at ["a"]: tuple of 2', "tuple of 3 in its element 1"],
        ),
        ([[1, 2], [1]], ["list of 2", "list of 1", "make it one array (np.asarray)"]),
        ([1, (1,)], ["a leaf in the batch's first element, tuple of 1 in its element 1"]),
        ([(1,), 1], ["tuple of 1 in the batch's first element, a leaf in its element 1"]),
        ([(1, 2), [1, 2]], ["tuple of 2", "list of 2"]),
        ([{"x": None}], ['batch: None at ["x"] cannot be a part of a batch', "leave it out"]),
        ([object()], ["a value of type object cannot be", "convert it"]),
        ([np.array([object()])], ["an array of object cannot be"]),
        (
            [{"x": np.ma.masked_array([1, 2], [False, True])}] * 2,
            ['a masked array at ["x"] would lose its mask', ".filled(...)"],
        ),
        (
            [Pair(1, 2), Twin(1, 2)],
            ["two classes of one name: Pair of 2 in", "once"],
        ),
        ([1, 2**63], ["batch: 9223372036854775808 does not fit into int64", "np.uint64"]),
        (["fine", "a\0"], ["'a\\x00' ends in a NUL", "bytes"]),
    ],
)
def test_what_does_not_fit_together_is_named(elements, said):
    with pytest.raises(PipelineError) as caught:
        stack(elements, "batch")
    for part in said:
        assert part in str(caught.value)


BATCH = {
    "x": np.arange(12).reshape(4, 3),
    "name": np.array(["a", "b", "c", "d"]),
    "raw": [b"1", b"2", b"3", b"4"],
    "none": (),
}


def test_rows_of_a_batch(driver):
    assert count_rows(BATCH, "unbatch") == 4
    rows = split_rows(BATCH, 4)
    assert driver.same(rows[2], {"x": np.array([6, 7, 8]), "name": "c", "raw": b"3", "none": ()})
    assert all(np.shares_memory(row["x"], BATCH["x"]) for row in rows)
    assert driver.same(stack(rows, "batch"), BATCH)


def test_rows_keep_dtypes():
    assert type(split_rows(np.zeros(2, np.float32), 2)[0]) is np.float32
    assert type(split_rows(np.array(["a"]), 1)[0]) is str


def test_a_slice_of_a_batch_is_a_view(driver):
    part = slice_rows(BATCH, 1, 3)
    assert driver.same(part, stack(split_rows(BATCH, 4)[1:3], "batch"))
    assert np.shares_memory(part["x"], BATCH["x"])


def test_slices_make_a_batch_again(driver):
    parts = [slice_rows(BATCH, 0, 1), slice_rows(BATCH, 1, 3), slice_rows(BATCH, 3, 4)]
    assert driver.same(concatenate(parts, "rebatch"), BATCH)


def test_concatenation_widens_strings(driver):
    joined = concatenate([np.array(["a"]), np.array(["bcd"])], "rebatch")
    assert driver.same(joined, np.array(["a", "bcd"]))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            {"x": np.zeros(3), "y": np.zeros((2, 1))},
            ['unbatch: 3 rows at ["x"], 2 rows at ["y"]', "same first dimension"],
        ),
        ({"x": 5}, ['unbatch: a value of type int at ["x"] has no rows', "needs batches"]),
        (b"bytes", ["a value of type bytes has no rows"]),
        ({"x": np.float64(1)}, ['at ["x"] has no rows']),
    ],
)
def test_what_is_no_batch_is_named(batch, said):
    with pytest.raises(PipelineError) as caught:
        count_rows(batch, "unbatch")
    for part in said:
        assert part in str(caught.value)


def test_rows_that_do_not_fit_together_are_named():
    with pytest.raises(PipelineError, match=r'rebatch: rows of different shapes at \["x"\]: \(2,\) .* \(3,\)'):
        concatenate([{"x": np.zeros((1, 2))}, {"x": np.zeros((1, 3))}], "rebatch")
    with pytest.raises(PipelineError, match=r"different dtypes: float64 .* int64"):
        concatenate([np.zeros(1), np.zeros(1, int)], "rebatch")
