"""Calls of user functions: generators, failures, what becomes of them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from millrace.elements.chunk import Chunk, Origin
from millrace.engine.user_code.user_calls import Calls
from millrace.errors import ElementError, PipelineError
from millrace.graph.nodes import Opaque

ORIGIN = Origin(0, 3, 1)


def calls(on_error: Any = None, *, seed: int = 1, epoch: int = 0) -> Calls:
    return Calls(seed, epoch, (0, 5, 9), on_error, lambda origin, position: f"{origin.split}/{position}")


def chunk(*elements: Any, start: int = 0) -> Chunk:
    return Chunk(list(elements), ORIGIN, range(start, start + len(elements)))


def draws(rng: Any) -> list[float]:
    return [rng.random(), *rng.integers(100, size=3), rng.normal(), rng.random(dtype=np.float32)]


def test_a_generator_depends_on_seed_epoch_node_origin_and_position():
    function = Opaque(lambda element, rng: tuple(draws(rng)), takes_rng=True)

    def found(made: Calls, node: int = 1, origin: Origin = ORIGIN, position: int = 0) -> Any:
        part = Chunk([None], origin, range(position, position + 1))
        return made.call(node, "map", function, part)[1][0]

    first = found(calls())
    assert found(calls()) == first
    others = [
        found(calls(seed=2)),
        found(calls(epoch=1)),
        found(calls(), node=2),
        found(calls(), origin=Origin(0, 4, 1)),
        found(calls(), origin=Origin(0, 3, 2)),
        found(calls(), origin=Origin(-1, 3, 1)),
        found(calls(), position=1),
        found(calls(), position=2**61),
    ]
    assert len({first, *others}) == 9


def test_what_one_element_draws_does_not_show_in_the_next():
    def some(element: int, rng: Any) -> Any:
        rng.integers(2**31, size=element, dtype=np.uint32)  # leaves half a word behind when odd
        return rng.random()

    function = Opaque(some, takes_rng=True)
    together = calls().call(1, "map", function, chunk(1, 2, 3, 4))[1]
    for position, element in enumerate((1, 2, 3, 4)):
        assert calls().call(1, "map", function, chunk(element, start=position))[1] == [together[position]]
    assert calls().call(1, "map", function, chunk(5, 2, 5, 4))[1][1::2] == together[1::2]


def test_random_numbers_are_uniform_over_positions():
    function = Opaque(lambda element, rng: rng.random(), takes_rng=True)
    found = np.array(calls().call(1, "map", function, chunk(*range(20_000)))[1])
    assert found.mean() == pytest.approx(0.5, abs=0.01)
    assert found.var() == pytest.approx(1 / 12, abs=0.003)
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.03


def divide(number: int) -> float:
    return 6 / number


def called(made: Calls, label: str, function: Opaque, part: Chunk) -> tuple[list[int] | None, list[Any]]:
    indices, results, failure = made.call(1, label, function, part)
    if failure is not None:
        raise failure
    return indices, results


def test_what_came_before_a_failure_comes_with_it():
    def odd(number: int) -> int:
        if number == 4:
            raise ValueError
        return 6 // (number % 2)

    indices, results, failure = calls("skip").call(1, "map", Opaque(odd), chunk(1, 2, 3, 5))
    assert (indices, results, failure) == ([0, 2, 3], [6, 6, 6], None)
    indices, results, failure = calls().call(1, "map", Opaque(odd), chunk(1, 3, 4, 5))
    assert (indices, results) == ([0, 1], [6, 6])
    assert isinstance(failure, ElementError)
    assert failure.where == "3/2"


@pytest.mark.parametrize("function", [Opaque(divide), Opaque(lambda number, rng: divide(number), takes_rng=True)])
def test_failures_are_raised_skipped_or_replaced(function):
    part = chunk(1, 0, 3, 0, start=10)
    with pytest.raises(
        ElementError, match=r"map\(divide\) failed on 3/11: ZeroDivisionError: division by zero"
    ) as info:
        called(calls(), "map(divide)", function, part)
    assert (info.value.operator, info.value.where) == ("map(divide)", "3/11")
    assert "return 6 / number" in info.value.user_traceback
    assert isinstance(info.value.__cause__, ZeroDivisionError)
    skipping = calls("skip")
    assert called(skipping, "map", function, part) == ([0, 2], [6, 2])
    assert skipping.skipped == 2
    replacing = calls(Opaque(lambda error: error.where))
    assert called(replacing, "map", function, part) == (None, [6, "3/11", 2, "3/13"])
    assert replacing.skipped == 0


def test_no_element_is_called_twice():
    seen: list[int] = []

    def note(number: int) -> float:
        seen.append(number)
        return divide(number)

    calls("skip").call(1, "map", Opaque(note), chunk(1, 0, 3))
    assert seen == [1, 0, 3]


def test_a_stop_iteration_is_a_failure_and_not_an_end():
    numbers = itertools.chain([1, 2])
    with pytest.raises(ElementError, match="failed on 3/2: StopIteration"):
        called(calls(), "map", Opaque(lambda _: next(numbers)), chunk(0, 0, 0, 0))
    with pytest.raises(ElementError, match="failed on 3/0: StopIteration"):
        called(calls(), "map", Opaque(lambda _, rng: next(numbers), takes_rng=True), chunk(0))


def test_mistakes_in_the_pipeline_are_no_failures_of_an_element():
    def wrong(_: Any) -> Any:
        raise PipelineError("wrong")

    for on_error in (None, "skip", Opaque(lambda error: 5)):
        with pytest.raises(PipelineError, match="wrong") as caught:
            called(calls(on_error), "map(wrong)", Opaque(wrong), chunk(0))
        assert caught.value.__notes__ == ["in map(wrong) of 3/0"]
        with pytest.raises(PipelineError, match="wrong"):
            calls(on_error).guard(1, "flat_map(wrong)", chunk(0), 0, lambda: wrong(0))


@pytest.mark.parametrize("takes_rng", [False, True])
def test_what_fails_is_left_out_or_replaced_and_nothing_else_moves(takes_rng):
    def odd(element: int, rng: Any = None) -> Any:
        if element % 2:
            raise StopIteration if element % 3 else ValueError
        return element, rng and rng.random()

    function = Opaque(odd, takes_rng=takes_rng)
    elements = chunk(*range(12))
    made = calls("skip")
    indices, results = called(made, "map", function, elements)
    assert (indices, made.skipped) == ([0, 2, 4, 6, 8, 10], 6)
    assert [element for element, _ in results] == indices
    _, replaced = called(calls(Opaque(lambda error: error.where)), "map", function, elements)
    assert replaced[1::2] == [f"3/{number}" for number in range(1, 12, 2)]
    assert replaced[::2] == results
    _, alone = called(calls(), "map", function, elements.slice(4, 5))
    assert alone == results[2:3]
