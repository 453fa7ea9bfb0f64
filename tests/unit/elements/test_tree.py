"""Pytrees: taking apart, putting together, mapping, measuring."""

import importlib.util
import sys
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.elements import tree
from millrace.elements.tree import NumberList, flatten, nbytes, nbytes_of, sizes_of, tree_map, unflatten

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024  # what users write

leaves = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
keys = st.text() | st.integers()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=12,
)


@given(trees)
def test_unflatten_undoes_flatten_and_keeps_the_order_of_keys(element: Any):
    values, spec = flatten(element)
    rebuilt = unflatten(spec, values)
    assert repr(rebuilt) == repr(element)  # types and the order of keys too


def test_structures_are_equal_whatever_the_order_of_keys():
    first, second = {"b": [1], "a": 2}, {"a": 3, "b": [4]}
    leaves_1, spec_1 = flatten(first)
    leaves_2, spec_2 = flatten(second)
    assert spec_1 == spec_2
    assert hash(spec_1) == hash(spec_2)
    assert unflatten(spec_1, leaves_2) == second
    assert list(unflatten(spec_1, leaves_2)) == ["b", "a"]
    assert unflatten(spec_2, leaves_1) == first


@pytest.mark.parametrize(
    "other", [{"a": 1, "b": (2,)}, {"a": 1}, {"a": 1, "c": [2]}, {"a": 1, "b": [2, 3]}, [1, [2]], 1]
)
def test_other_structures_are_unequal(other: Any):
    assert flatten({"a": 1, "b": [2]})[1] != flatten(other)[1]


def test_namedtuples_and_subclasses():
    assert type(unflatten(flatten(Point(1, 2))[1], [3, 4])) is Point
    assert flatten(Point(1, 2))[1] != flatten((1, 2))[1]
    assert type(unflatten(flatten(OrderedDict(a=1))[1], [3])) is dict


def test_keys_of_different_types_have_an_order():
    assert flatten({"a": 1, 2: "two", None: 3}) == flatten({None: 3, "a": 1, 2: "two"})


@pytest.mark.parametrize(("given", "what"), [([], "too few"), ([1], "too few"), ([1, 2, 3], "too many")])
def test_wrong_number_of_leaves(given: list[int], what: str):
    with pytest.raises(ValueError, match=what):
        unflatten(flatten((1, [2]))[1], given)


def test_tree_map_of_one_keeps_structure_and_order():
    mapped = tree_map(lambda leaf: leaf + 1, {"b": Point(1, [2]), "a": (3,)})
    assert repr(mapped) == "{'b': Point(x=2, y=[3]), 'a': (4,)}"


def test_tree_map_of_several_goes_by_key():
    result = tree_map(lambda *each: each, {"b": 1, "a": [2]}, {"a": [20], "b": 10}, {"a": [200], "b": 100})
    assert result == {"b": (1, 10, 100), "a": [(2, 20, 200)]}
    assert list(result) == ["b", "a"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"image": [(1, 2), 0]},
            {"image": [(1, 2, 3), 0]},
            r'at \["image"\]\[0\]: element 0 has a tuple of 2, element 1 has a tuple of 3',
        ),
        ({"a": 1}, {"b": 1}, r"at \(root\): element 0 has a dict with keys 'a', element 1 has a dict with keys 'b'"),
        ([1], (1,), r"element 0 has a list of 1, element 1 has a tuple of 1"),
        ([{}], [3], r"at \[0\]: element 0 has a dict with keys \(none\), element 1 has a leaf of type int"),
    ],
)
def test_tree_map_names_the_first_difference(first: Any, second: Any, message: str):
    with pytest.raises(ValueError, match=message):
        tree_map(lambda *each: each, first, second)


def test_sizes():
    array = np.zeros((100, 10), np.float32)
    assert nbytes(5) == nbytes(1.5) == nbytes(None) == nbytes(True) == 32
    assert 4000 <= nbytes(array) <= 4200
    assert 1000 <= nbytes(b"x" * 1000) <= 1100
    assert 4000 <= nbytes("\N{GRINNING FACE}" * 1000) <= 4100
    assert 4000 <= nbytes({"a": (array, [None])}) <= 4400
    assert 32 <= nbytes(np.float32(3)) <= 64


def test_sizes_of_what_is_not_plain():
    class Tensor:
        nbytes = 10_000

    assert nbytes(Tensor()) >= 10_000
    assert nbytes(np.array([b"x" * 1000, None], object)) >= 1000
    assert nbytes(np.zeros(100).view(np.matrix)) >= 800
    assert nbytes(object()) > 0
    assert nbytes_of([np.array([b"x" * 1000], object)] * 2) >= 2000


@given(st.lists(trees, max_size=6) | st.lists(st.fixed_dictionaries({"a": st.integers(), "b": st.text()})))
def test_size_of_many_is_the_sum(elements: list[Any]):
    assert nbytes_of(elements) == sum(map(nbytes, elements))
    assert sizes_of(elements) == list(map(nbytes, elements))


def test_size_of_many_alike_is_the_sum():
    elements = [{"x": np.zeros(n), "y": (n, "n" * n, [b""])} for n in range(20)]
    assert nbytes_of(elements) == sum(map(nbytes, elements))
    assert sizes_of(elements) == list(map(nbytes, elements))
    assert nbytes_of(tuple(range(10))) == 320
    assert nbytes_of(NumberList(range(10))) == nbytes_of(list(range(10))) == 320


def test_importing_trees_does_not_import_pyarrow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # importing it raises
    spec = importlib.util.spec_from_file_location("tree_alone", tree.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tree_alone", module)  # dataclasses look there
    spec.loader.exec_module(module)
    assert module.nbytes(3) == 32
    codec = importlib.util.find_spec("millrace.elements.layout")
    assert codec is not None
    assert codec.loader is not None
    with pytest.raises(ImportError):
        codec.loader.exec_module(importlib.util.module_from_spec(codec))
