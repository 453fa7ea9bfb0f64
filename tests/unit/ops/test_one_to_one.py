from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ElementError, PipelineError
from millrace.graph import nodes

cuts = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def test_map_keeps_origins_and_positions(driver, fn):
    node = nodes.Map(fn=fn(lambda x: x * 2), num_parallel_calls=3)
    assert driver.positioned(node, [5, 6, 7, 8]) == [(driver.source, i, 2 * (5 + i)) for i in range(4)]


def test_map_asks_for_the_parallelism_of_the_node(driver, fn):
    node = nodes.Map(fn=fn(abs), num_parallel_calls=3)
    context = driver.context(node)
    assert len(list(driver.start(node, [driver.chunks([1])], context))) == 1
    assert context.parallel == [3]


@given(cuts)
def test_a_random_map_knows_positions_not_chunks(driver, fn, sizes):
    node = nodes.Map(fn=fn(lambda x, rng: rng.integers(1000), takes_rng=True))
    assert driver.elements(node, range(20), cuts=sizes) == driver.elements(node, range(20), cuts=[20])


@given(cuts)
def test_map_leaves_a_hole_for_what_is_skipped(driver, fn, sizes):
    node = nodes.Map(fn=fn(lambda x: 6 // x))
    result = driver.positioned(node, [1, 0, 0, 2, 0, 3], cuts=sizes, on_error="skip")
    assert [(position, element) for _, position, element in result] == [(0, 6), (3, 3), (5, 2)]


def test_map_raises_or_replaces(driver, fn):
    node = nodes.Map(fn=fn(lambda x: 6 // x))
    with pytest.raises(ElementError, match="ZeroDivisionError"):
        driver.elements(node, [1, 0])
    assert driver.elements(node, [1, 0, 2], on_error=lambda error: -1) == [6, -1, 3]


@given(st.lists(st.integers(0, 9)), cuts)
def test_filter_keeps_positions(driver, fn, elements, sizes):
    node = nodes.Filter(fn=fn(lambda x: x % 3 == 0))
    kept = [(position, element) for _, position, element in driver.positioned(node, elements, cuts=sizes)]
    assert kept == [(i, x) for i, x in enumerate(elements) if x % 3 == 0]


def test_filter_takes_all_kinds_of_bool(driver, fn):
    node = nodes.Filter(fn=fn(lambda x: [True, np.True_, np.array(True), np.array(False), np.False_, False][x]))
    assert driver.elements(node, range(6)) == [0, 1, 2]


def test_filter_skips_and_replaces_what_fails(driver, fn):
    node = nodes.Filter(fn=fn(lambda x: 6 % x == 0))
    assert driver.elements(node, [1, 0, 4, 2], on_error="skip") == [1, 2]
    assert driver.elements(node, [1, 0, 4, 2], on_error=lambda error: True) == [1, 0, 2]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, ["filter(keep): the predicate returned None, not True or False", "forget to return"]),
        (1, ["returned 1 (int)", "bool()"]),
        (np.array([True, False]), ["returned array([ True, False]) (ndarray)", ".any() or .all()"]),
        ("x" * 200, ["(str)", "...", "bool()"]),
        (np.int64(1), ["(int64)"]),
    ],
)
def test_a_predicate_that_returns_something_else(driver, fn, returned, said):
    def keep(element):
        return returned if element == 2 else True

    with pytest.raises(PipelineError) as caught:
        driver.elements(nodes.Filter(fn=fn(keep)), range(4))
    for part in said:
        assert part in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "node", [nodes.Cache(), nodes.Autocache(), nodes.WithOptions(seed=1), nodes.Prefetch()], ids=str
)
def test_some_change_nothing(driver, node):
    assert driver.positioned(node, range(7)) == [(driver.source, i, i) for i in range(7)]


def test_prefetch_works_ahead(driver):
    node = nodes.Prefetch(buffer_size=12)
    context = driver.context(node)
    assert len(list(driver.start(node, [driver.chunks([1, 2])], context))) == 1
    assert context.ahead_of == [12]


@given(st.integers(0, 12), st.integers(-1, 14), cuts)
def test_take_and_skip(driver, size, number, sizes):
    elements = list(range(size))
    taken = driver.positioned(nodes.Take(count=number), elements, cuts=sizes)
    skipped = driver.positioned(nodes.Skip(count=number), elements, cuts=sizes)
    all_of_it = driver.positioned(nodes.Cache(), elements)
    assert taken == (all_of_it if number < 0 else all_of_it[:number])
    assert skipped == ([] if number < 0 else all_of_it[number:])


@pytest.mark.parametrize(("number", "asked"), [(0, 0), (3, 1), (4, 2), (6, 2)])
def test_take_asks_for_no_more_than_it_needs(driver, number, asked):
    chunks = list(driver.chunks(range(9)))
    remaining = iter(chunks)
    assert sum(map(len, driver.start(nodes.Take(count=number), [remaining], driver.context(nodes.Cache())))) == number
    assert len(list(remaining)) == len(chunks) - asked


@given(st.integers(1, 5), st.data(), cuts)
def test_shard(driver, number, data, sizes):
    index = data.draw(st.integers(0, number - 1))
    result = driver.positioned(nodes.Shard(num_shards=number, index=index), range(17), cuts=sizes)
    assert result == [(driver.source, i, i) for i in range(index, 17, number)]


@given(cuts)
def test_enumerate(driver, sizes):
    result = driver.positioned(nodes.Enumerate(start=5), "abcdefg", cuts=sizes)
    assert result == [(driver.source, i, (5 + i, letter)) for i, letter in zip(count(), "abcdefg", strict=False)]
