"""What is handed out in process is of the same kinds as what comes from a service."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.elements.codec import decode, encode
from millrace.elements.plain import plain

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024  # what users write


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Data(bytes):
    __slots__ = ()


class Real(float):
    __slots__ = ()


class Items(list[Any]):
    pass


class Several(tuple[Any, ...]):
    __slots__ = ()


leaves = st.sampled_from([1, 2.0, None, True, "a", b"b", Level.HIGH, Text("t"), Data(b"d"), Real(1.5), np.float32(2)])
elements = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(Items)
        | st.lists(inner, max_size=3).map(Several)
        | st.tuples(inner, inner).map(Point._make)
        | st.dictionaries(st.sampled_from("ab"), inner)
        | st.dictionaries(st.sampled_from("ab"), inner).map(OrderedDict)
        | st.dictionaries(st.sampled_from("ab"), inner).map(lambda each: defaultdict(int, each))
    ),
    max_leaves=6,
)


def kinds(element: Any) -> Any:
    """The names of all types in an element."""
    inside = element.values() if isinstance(element, dict) else element if isinstance(element, (list, tuple)) else ()
    return type(element).__name__, [kinds(each) for each in inside]


@given(st.lists(elements, max_size=4))
def test_is_what_comes_back_from_the_codec(given: list[Any]) -> None:
    here, there = plain(given), decode(b"".join(encode(given)))
    assert here == there
    assert list(map(kinds, here)) == list(map(kinds, there))


@given(st.lists(elements, max_size=4))
def test_is_left_alone_once_it_is_plain(given: list[Any]) -> None:
    made = plain(given)
    assert plain(made) is made


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda n: OrderedDict(a=n), {"a": 1}),
        (lambda n: {"a": Items([Text("t")])}, {"a": ["t"]}),
        (lambda n: Level.HIGH if n else n, 3),
    ],
)
def test_of_a_dataset(make: Any, expected: Any) -> None:
    *_, last = Dataset.range(2).map(make)
    assert last == expected
    assert kinds(last) == kinds(expected)


def test_other_objects_are_leaves_and_namedtuples_stay_what_they_are() -> None:
    @dataclass
    class Own:
        number: int

    own = Own(1)
    points = [Point(1, own), Point(2, own)]
    assert plain(points) is points
    assert next(iter(Dataset.range(1).map(lambda n: Point(n, own)))) == Point(0, own)


class Checked(namedtuple("Checked", ["x", "y"])):  # noqa: PYI024
    """Its constructor takes something else."""

    __slots__ = ()

    def __new__(cls, both: int) -> Self:
        return tuple.__new__(cls, (both, np.float32(both)))


@pytest.mark.parametrize(
    "elements",
    [[{np.str_("a"): 1}], [{np.str_("a"): 1}, {"b": 2}], [[{Text("a"): 1, Level.HIGH: 2}]], [{"a": 1}, {Text("a"): 2}]],
)
def test_keys_are_plain_here_and_on_a_service(elements: list[Any]) -> None:
    here, there = plain(elements), decode(b"".join(encode(elements)))
    for found in (here, there):
        assert found == elements
        assert all(map(in_plain_keys, found))
    assert plain(here) is here


def in_plain_keys(element: Any) -> bool:
    (inner,) = element if isinstance(element, list) else (element,)
    return all(type(key) in (str, int) for key in inner)


@pytest.mark.parametrize("wrapped", [lambda each: [each], lambda each: [each, 1]], ids=["alone", "beside others"])
def test_a_namedtuple_is_rebuilt_without_a_constructor_of_the_users(wrapped: Any) -> None:
    before: Any = Checked(1)._replace(x=Text("t"))
    made: Any = plain(wrapped(before))[0]
    assert type(made) is Checked
    assert (type(made.x), made) == (str, before)
