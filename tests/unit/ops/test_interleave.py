from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.elements.chunk import Origin
from millrace.errors import ElementError, PipelineError
from millrace.graph import nodes
from millrace.ops import slow_functions

cuts = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def interleaved(lists: list[list[Any]], cycle_length: int, block_length: int) -> list[Any]:
    """The definition, one element at a time, as tf.data's kernel does it."""
    waiting = iter(lists)
    places: list[Iterator[Any] | None] = [None] * cycle_length
    turn, block, ended = 0, 0, False
    result = []
    while not ended or any(place is not None for place in places):
        place = places[turn]
        if place is None:
            following = None if ended else next(waiting, None)
            if following is None:
                ended = True
                turn, block = (turn + 1) % cycle_length, 0
            else:
                places[turn] = iter(following)
            continue
        element = next(place, None)
        if element is None:
            places[turn] = None
            turn, block = (turn + 1) % cycle_length, 0
            continue
        result.append(element)
        block += 1
        if block == block_length:
            turn, block = (turn + 1) % cycle_length, 0
    return result


@given(st.lists(st.integers(0, 7), max_size=9), st.integers(1, 4), st.integers(1, 4), cuts, st.integers(1, 6))
def test_interleave_is_its_definition(driver, fn, lengths, cycle_length, block_length, sizes, chunk_size):
    node = nodes.Interleave(
        fn=fn(lambda pair: [(pair[0], i) for i in range(pair[1])]), cycle_length=cycle_length, block_length=block_length
    )
    result = driver.positioned(node, list(enumerate(lengths)), cuts=sizes, chunk_size=chunk_size)
    lists = [[(number, i) for i in range(length)] for number, length in enumerate(lengths)]
    assert [element for _, _, element in result] == interleaved(lists, cycle_length, block_length)
    assert all(position == 1000 * number + i for _, position, (number, i) in result)


@given(st.lists(st.integers(0, 7), max_size=9), cuts, st.integers(1, 6))
def test_flat_map_is_one_after_the_other(driver, fn, lengths, sizes, chunk_size):
    node = nodes.FlatMap(fn=fn(lambda n: (n * 10 + i for i in range(n))))
    result = driver.elements(node, lengths, cuts=sizes, chunk_size=chunk_size)
    assert result == list(chain.from_iterable(range(n * 10, n * 10 + n) for n in lengths))


def test_chunks_have_the_size_asked_for(driver, fn):
    chunks = driver.run(nodes.FlatMap(fn=fn(lambda n: range(100))), range(3), chunk_size=64)
    assert [len(chunk) for chunk in chunks] == [64, 64, 64, 64, 44]


def test_elements_that_take_long_wait_for_no_others(driver, fn, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(slow_functions, "clock", lambda: now[0])

    def slow(number):
        for second in (0, 0, 0, 1, 1, 0, 0):
            now[0] += second
            yield number

    def slowly(number):
        now[0] += number
        return [number]

    chunks = driver.run(nodes.FlatMap(fn=fn(slow)), range(2), chunk_size=64)
    assert [len(chunk) for chunk in chunks] == [4, 1, 6, 1, 2]
    chunks = driver.run(nodes.FlatMap(fn=fn(slowly)), [0, 0, 1, 1, 0], chunk_size=64)
    assert [chunk.elements for chunk in chunks] == [[0, 0, 1], [1], [0]]
    chunks = driver.run(nodes.Interleave(fn=fn(slow), cycle_length=2, block_length=2), range(2), chunk_size=64)
    assert list(chain.from_iterable(chunk.elements for chunk in chunks)) == [0, 0, 1, 1] * 3 + [0, 1]
    assert len(chunks) > 3


def test_functions_are_called_when_their_turn_comes(driver, fn):
    called = []

    def read(number):
        called.append(number)
        return range(10)

    node = nodes.Interleave(fn=fn(read), cycle_length=2, block_length=3)
    chunks = driver.start(node, [driver.chunks(range(50), cuts=[50])], driver.context(node, chunk_size=6))
    assert len(next(chunks)) == 6
    assert called == [0, 1]


def test_an_endless_dataset_is_read_bit_by_bit(driver, fn):
    node = nodes.FlatMap(fn=fn(lambda x: iter(lambda: x, None)))
    chunks = driver.start(node, [driver.chunks([7])], driver.context(node))
    assert [chunk.elements for chunk in islice(chunks, 2)] == [[7] * 4] * 2


def test_chunks_of_several_origins_are_kept_apart(driver, fn):
    node = nodes.Interleave(fn=fn(lambda x: [x, x]), cycle_length=2)
    other = Origin(0, 4)
    inputs = chain(driver.chunks([1]), driver.chunks([2], origin=other))
    chunks = list(driver.start(node, [inputs], driver.context(node)))
    assert [(chunk.origin.split, chunk.elements) for chunk in chunks] == [(3, [1]), (4, [2]), (3, [1]), (4, [2])]


def test_what_is_open_is_closed(driver, fn):
    closed = []

    def read(number):
        try:
            yield from range(100)
        finally:
            closed.append(number)

    node = nodes.Interleave(fn=fn(read), cycle_length=3)
    chunks = driver.start(node, [driver.chunks(range(9))], driver.context(node))
    next(chunks)
    chunks.close()
    assert sorted(closed) == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("make", [lambda f: nodes.FlatMap(fn=f), lambda f: nodes.Interleave(fn=f, cycle_length=1)])
def test_a_dataset_that_fails_ends_there(driver, fn, make, size):
    def read(number):
        yield number
        yield number + 1
        if number == 10:
            raise OSError("unreadable")
        yield number + 2

    node = make(fn(read))
    with pytest.raises(ElementError, match="unreadable"):
        driver.elements(node, [0, 10, 20], chunk_size=size)
    expected = [0, 1, 2, 10, 11, 20, 21, 22]
    assert driver.elements(node, [0, 10, 20], chunk_size=size, on_error="skip") == expected
    expected.insert(5, -1)
    assert driver.elements(node, [0, 10, 20], chunk_size=size, on_error=lambda error: -1) == expected


def test_a_function_that_fails_is_no_dataset(driver, fn):
    node = nodes.Interleave(fn=fn(lambda n: [6 // n] * 3), cycle_length=2, block_length=2)
    assert driver.elements(node, [1, 0, 2, 0, 3], on_error="skip") == [6, 6, 3, 3, 6, 3, 2, 2, 2]
    assert driver.elements(node, [0, 1], on_error=lambda error: []) == [6, 6, 6]


def test_what_is_no_dataset_is_refused(driver, fn):
    with pytest.raises(PipelineError, match="neither a dataset nor iterable"):
        driver.elements(nodes.FlatMap(fn=fn(lambda n: n)), [1])


@given(st.lists(st.integers(0, 5), max_size=6), cuts)
def test_unbatch(driver, lengths, sizes):
    batches = [{"x": np.full((n, 2), n), "y": [b"%d" % i for i in range(n)]} for n in lengths]
    result = driver.positioned(nodes.Unbatch(), batches, cuts=sizes)
    assert [element["y"] for _, _, element in result] == [b"%d" % i for n in lengths for i in range(n)]
    assert [element["x"].tolist() for _, _, element in result] == [[n, n] for n in lengths for _ in range(n)]
    assert [position for _, position, _ in result] == [
        1000 * i + row for i, n in enumerate(lengths) for row in range(n)
    ]
