import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.graph import nodes

cuts = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(st.integers(0, 40), st.integers(1, 50), cuts, st.integers(1, 9))
def test_all_elements_in_an_order_that_chunks_do_not_change(driver, size, window, sizes, chunk_size):
    node = nodes.Shuffle(buffer_size=window)
    result = driver.positioned(node, range(size), cuts=sizes, chunk_size=chunk_size)
    assert sorted(element for _, _, element in result) == list(range(size))
    assert [(origin, position) for origin, position, _ in result] == [(driver.mixed, i) for i in range(size)]
    assert [element for _, _, element in result] == driver.elements(node, range(size), cuts=[100])


@given(st.integers(1, 20), st.integers(0, 5))
def test_no_element_comes_earlier_than_the_window_allows(driver, window, seed):
    result = driver.elements(nodes.Shuffle(buffer_size=window), range(60), seed=seed)
    assert all(element <= place + window for place, element in enumerate(result))


def test_a_window_of_one_holds_each_element_back_by_one(driver):
    assert driver.elements(nodes.Shuffle(buffer_size=1), range(9)) == list(range(9))


def test_other_seeds_other_orders(driver):
    orders = {tuple(driver.elements(nodes.Shuffle(buffer_size=8), range(30), seed=seed)) for seed in range(20)}
    assert len(orders) == 20


def test_every_element_of_a_full_window_comes_first_equally_often(driver):
    node = nodes.Shuffle(buffer_size=5)
    firsts = [driver.elements(node, range(5), seed=seed)[0] for seed in range(1000)]
    streaming = [driver.elements(node, range(6), seed=seed)[0] for seed in range(1000)]
    assert np.bincount(firsts).min() > 150
    assert np.bincount(streaming).min() > 150


@given(cuts)
def test_the_window_is_bounded_in_bytes(driver, sizes):
    elements = [np.zeros(n * 1000, np.uint8) for n in (1, 2, 3, 1, 9, 1, 1, 1, 2, 5)]
    node = nodes.Shuffle(buffer_size=100)
    context = driver.context(node, budget=6500)
    taken = given_out = peak = 0

    def watched():
        nonlocal taken, peak
        for chunk in driver.chunks(elements, cuts=[1]):
            peak = max(peak, taken - given_out)
            taken += chunk.elements[0].nbytes
            yield chunk

    def consume():
        nonlocal given_out
        for chunk in driver.start(node, [watched()], context):
            yield from map(len, chunk.elements)
            given_out += sum(element.nbytes for element in chunk.elements)

    with pytest.warns(RuntimeWarning, match=r"shuffle\(\): the window is smaller.*buffer_bytes"):
        order = list(consume())
    assert peak <= 9000  # the budget, or the one element that is larger than it
    assert sorted(order) == sorted(map(len, elements))
    with pytest.warns(RuntimeWarning):
        again = driver.elements(node, elements, cuts=sizes, budget=6500)
    assert [len(element) for element in again] == order
