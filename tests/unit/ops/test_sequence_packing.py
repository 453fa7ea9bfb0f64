"""Sequence packing: every token once, in rows of one length, whatever the chunks and the tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import PipelineError
from millrace.graph import nodes

LENGTH = 8
cuts = st.lists(st.integers(1, 7), min_size=1, max_size=5)
lengths = st.lists(st.integers(0, LENGTH), max_size=40)
windows = st.integers(1, 5)


def packing(length: int = LENGTH, **options: Any) -> nodes.Pack:
    return nodes.Pack(length=length, **options)


def sequences(sizes: list[int]) -> list[np.ndarray]:
    """Sequences of these lengths, none of whose tokens comes twice; 0 is none of them."""
    ends = np.cumsum(sizes, dtype=int) + 1
    return [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def segments(row: dict[str, np.ndarray], leaf: str = "tokens") -> list[list[int]]:
    """The sequences of a row that is sound."""
    ids, positions, tokens = row["segment_ids"], row["positions"], row[leaf]
    assert (ids.shape, positions.shape, len(tokens)) == ((LENGTH,), (LENGTH,), LENGTH)
    assert ids.dtype == positions.dtype == np.int32
    used = int(np.count_nonzero(ids))
    count = int(ids.max())
    assert ids.tolist() == [*sorted(ids[:used].tolist()), *[0] * (LENGTH - used)]
    assert set(ids[:used].tolist()) == set(range(1, count + 1))
    assert not tokens[used:].any()
    found = [tokens[ids == number].tolist() for number in range(1, count + 1)]
    assert positions.tolist() == [at for tokens in found for at in range(len(tokens))] + [0] * (LENGTH - used)
    return found


def packed(rows: list[Any]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sequence) for row in rows for sequence in segments(row))


def expected(given: list[Any]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(sequence.tolist()) for sequence in given if len(sequence))


def test_a_sequence_goes_where_the_least_room_is_left(driver):
    rows = driver.elements(packing(), sequences([5, 6, 2, 3, 4, 8, 4]))
    # 2 fits best beside 6, and 3 beside 5
    assert [[len(each) for each in segments(row)] for row in rows] == [[6, 2], [5, 3], [8], [4, 4]]
    assert rows[0] | {"tokens": rows[0]["tokens"].tolist()} == {
        "tokens": [6, 7, 8, 9, 10, 11, 12, 13],
        "segment_ids": pytest.approx([1] * 6 + [2] * 2),
        "positions": pytest.approx([0, 1, 2, 3, 4, 5, 0, 1]),
    }


def test_of_equal_rows_the_oldest_is_taken_and_the_fullest_is_closed(driver):
    rows = driver.elements(packing(window=2), sequences([5, 5, 2, 7, 6]))
    assert [[len(each) for each in segments(row)] for row in rows] == [[5, 2], [7], [5], [6]]


@given(lengths, windows, cuts)
def test_every_sequence_comes_once(driver, sizes, window, sizes_of_chunks):
    node, elements = packing(window=window), sequences(sizes)
    found = driver.positioned(node, elements, cuts=sizes_of_chunks)
    assert [(origin, position) for origin, position, _ in found] == [(driver.mixed, i) for i in range(len(found))]
    assert packed([row for _, _, row in found]) == expected(elements)
    again = driver.elements(node, elements, cuts=[1])
    assert all(driver.same(one, other) for one, (_, _, other) in zip(again, found, strict=True))


@given(lengths, windows)
def test_no_more_rows_are_open_than_the_window(driver, sizes, window):
    node, elements = packing(window=window), sequences(sizes)
    context = driver.context(node)
    most = given_out = 0
    for chunk in driver.start(node, [driver.chunks(elements, [1])], context):
        most = max(most, context.allocated - given_out - len(chunk))
        given_out += len(chunk)
    assert most <= window
    assert context.allocated == given_out


@given(st.lists(lengths, max_size=4), windows, cuts)
def test_what_tasks_leave_is_packed_by_a_later_one(driver, parts, window, sizes_of_chunks):
    node = packing(window=window)
    all_of_them = sequences([size for sizes in parts for size in sizes])
    rows: list[Any] = []
    left: list[Any] = []
    start = 0
    for sizes in parts:
        elements = all_of_them[start : start + len(sizes)]
        start += len(sizes)
        context = driver.context(node, leaves=True)
        for chunk in driver.start(node, [driver.chunks(elements, sizes_of_chunks)], context):
            rows += chunk.elements
        assert [int(each[0]) for each in context.left] == sorted(int(each[0]) for each in context.left)
        left += context.left
    rows += driver.elements(node, [], leftovers=left)
    assert packed(rows) == expected(all_of_them)


def test_a_task_leaves_no_row_that_is_nearly_full(driver):
    node = packing(64)
    context = driver.context(node, leaves=True)
    rows = [
        row for chunk in driver.start(node, [driver.chunks(sequences([62, 61]))], context) for row in chunk.elements
    ]
    assert [int(np.count_nonzero(row["segment_ids"])) for row in rows] == [62]
    assert [len(each) for each in context.left] == [61]


@given(st.lists(st.integers(0, 4 * LENGTH), max_size=12), windows)
def test_what_is_too_long_is_split_or_cut(driver, sizes, window):
    elements = sequences(sizes)
    parts = [each[start : start + LENGTH] for each in elements for start in range(0, len(each), LENGTH)]
    assert packed(driver.elements(packing(window=window, too_long="split"), elements)) == expected(parts)
    heads = [each[:LENGTH] for each in elements]
    assert packed(driver.elements(packing(window=window, too_long="truncate"), elements)) == expected(heads)


def test_leaves_of_dicts_are_packed_side_by_side(driver):
    elements = [
        {"input_ids": [number] * number, "labels": np.full(number, -number, np.int16), "id": number}
        for number in (3, 0, 4, 2)
    ]
    node = packing(keys=("labels", "input_ids"), padding_values={"labels": -100})
    first, second = driver.elements(node, elements)
    assert list(first) == ["labels", "input_ids", "segment_ids", "positions"]
    assert (first["input_ids"].dtype, first["labels"].dtype) == (np.int64, np.int16)
    assert first["input_ids"].tolist() == [3, 3, 3, 4, 4, 4, 4, 0]
    assert first["labels"].tolist() == [-3, -3, -3, -4, -4, -4, -4, -100]
    assert first["segment_ids"].tolist() == [1, 1, 1, 2, 2, 2, 2, 0]
    assert second["labels"].tolist() == [-2, -2, *[-100] * 6]


def test_dicts_are_left_as_dicts(driver):
    context = driver.context(packing(), leaves=True)
    elements = [{"a": [1, 2], "b": [0.5, 1.5]}, {"b": [2.5], "a": [3]}]
    assert list(driver.start(packing(), [driver.chunks(elements)], context)) == []
    assert [{key: leaf.tolist() for key, leaf in each.items()} for each in context.left] == elements
    (row,) = driver.elements(packing(), [], leftovers=context.left)
    assert row["b"].tolist() == [0.5, 1.5, 2.5, *[0.0] * 5]


def test_tokens_may_be_vectors_lists_and_tensors(driver):
    vectors = [np.full((2, 3), 1.0), np.full((5, 3), 2.0)]
    (row,) = driver.elements(packing(padding_values=-1), vectors)
    assert row["tokens"].shape == (LENGTH, 3)
    assert row["tokens"][:, 0].tolist() == [1, 1, 2, 2, 2, 2, 2, -1]
    (row,) = driver.elements(packing(padding_values={"tokens": 9}), [[1, 2], torch.tensor([3]), []])
    assert row["tokens"].tolist() == [1, 2, 3, 9, 9, 9, 9, 9]


A = np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("elements", "options", "said"),
    [
        (
            [A, np.zeros(9, np.int64)],
            {},
            r'of 9 tokens does not fit into a row of 8\. .* write too_long="split" or .* is element 1 of split 3\.$',
        ),
        ([{"a": A, "b": np.zeros(2)}], {}, r'different numbers of tokens: 1 at \["a"\], 2 at \["b"\].* keys='),
        ([A, np.zeros(1, np.int32)], {}, r"dtype int32 and shape \(\) follow some of dtype int64 .* element 1 of"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], {}, r"shape \(3,\) follow .* \(2,\)"),
        ([A, {"a": A}], {}, "a dict with 'a' follows a sequence that is no dict"),
        ([{"a": A}, A], {}, "a sequence that is no dict follows a dict with 'a'"),
        ([{"a": A}, {"b": A}], {}, "a dict with 'b' follows a dict with 'a'"),
        ([{"a": A}], {"keys": ("b",)}, "there is no 'b' in a dict with 'a'"),
        ([A], {"keys": ("b",)}, "a value of type ndarray is no dict with 'b'"),
        ([{"segment_ids": A}], {}, "cannot be packed: rows get 'segment_ids' and 'positions'"),
        ([{}], {}, "a dict with no keys cannot be packed"),
        ([{"a": A, "id": 3}], {}, r'a value of type int at \["id"\] is no sequence of tokens\. .* keys='),
        ([np.array(3)], {}, "a value of type ndarray is no sequence of tokens"),
        (
            [b"abc"],
            {},
            r"a value of type bytes is no sequence of tokens\. For bytes as tokens, write map\(.*np\.frombuffer",
        ),
        (["abc"], {}, "a value of type str is no sequence"),
        ([(1, 2)], {}, "a value of type tuple is no sequence"),
        ([["a"]], {}, "tokens have dtype <U1. Tokens are numbers"),
        ([[[1], [1, 2]]], {}, "items of different shapes are no sequence of tokens"),
        ([A], {"padding_values": 0.5}, "padding value 0.5 is no int64"),
        ([A], {"padding_values": {"labels": 1}}, "padding_values has 'labels', and there is no such leaf"),
    ],
)
def test_what_cannot_be_packed_is_named(driver, elements, options, said):
    with pytest.raises(PipelineError, match=rf"^pack\(\): .*{said}"):
        driver.elements(packing(**options), elements)
