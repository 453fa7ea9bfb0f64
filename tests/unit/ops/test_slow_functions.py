"""Elements of operators whose functions take long: they come as they are made."""

import pytest

from millrace.graph import nodes
from millrace.ops import slow_functions


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(slow_functions, "clock", lambda: now[0])
    return now


def _taking(clock, seconds, answer):
    def function(*arguments):
        clock[0] += seconds[arguments[-1]]
        return answer(*arguments)

    return function


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (nodes.Filter, lambda _: True),
        (nodes.TakeWhile, lambda _: True),
        (lambda fn: nodes.Scan(initial_state=0, fn=fn), lambda _state, number: (0, number)),
    ],
    ids=["filter", "take_while", "scan"],
)
def test_until_a_call_is_quick_no_element_waits_for_others(driver, fn, clock, make, answer):
    for seconds, sizes in (
        ([0] * 9, [1, 5, 3]),
        ([1] * 9, [1] * 9),
        ([1, 1, 0, 1, 0, 0, 1, 0, 0], [1, 1, 1, 3, 3]),
        ([1] * 7 + [0] * 2, [1] * 8 + [1]),
    ):
        chunks = driver.run(make(fn=fn(_taking(clock, seconds, answer))), range(9), cuts=[6, 3])
        assert [len(chunk) for chunk in chunks] == sizes
        assert [element for chunk in chunks for element in chunk.elements] == [*range(9)]


def test_what_is_asked_for_later_is_not_read_before(driver, fn, clock):
    asked = []

    def small(number):
        asked.append(number)
        return number < 2

    node = nodes.TakeWhile(fn=fn(_taking(clock, [1] * 6, small)))
    assert driver.elements(node, range(6), cuts=[4, 2]) == [0, 1]
    assert asked == [0, 1, 2]
    assert driver.elements(nodes.Filter(fn=fn(bool)), [], cuts=[1]) == []
