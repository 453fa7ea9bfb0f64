from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import ElementError, PipelineError, SourceNotFoundError
from millrace.graph import nodes
from millrace.graph.nodes import Opaque
from millrace.graph.source_nodes import FromList, FromMapStyle
from millrace.sources import describe, list_source, open_source, storage
from millrace.sources.reads import Reads


def fetch(node, positions):
    source: Any = open_source(node, list_source(node, Reads()), Reads())
    return source.fetch(positions)


@given(
    start=st.integers(-(2**70), 2**70),
    step=st.sampled_from([1, 3, -2, 2**61, -(2**65)]),
    count=st.integers(0, 50),
    data=st.data(),
)
def test_range(start, step, count, data):
    node = nodes.Range(start=start, stop=start + step * count, step=step)
    table = list_source(node, Reads())
    assert (table.cheap, table.count) == (True, count)
    expected = list(range(start, start + step * count, step))
    positions = data.draw(st.lists(st.integers(0, count - 1)) if count else st.just([]))
    got = fetch(node, np.array(positions, dtype=np.int64))
    assert got == [expected[i] for i in positions]
    assert all(type(number) is int for number in got)
    low = data.draw(st.integers(0, count))
    assert fetch(node, range(low, count)) == expected[low:]
    assert fetch(node, range(count - 1, low - 1, -1)) == expected[low:][::-1]


def test_from_list():
    node = FromList(items=Opaque(("a", "b", "c")), count=3)
    assert fetch(node, np.array([2, 0, 2])) == ["c", "a", "c"]
    assert fetch(node, range(1, 3)) == ["b", "c"]
    assert describe(node, list_source(node, Reads()), 0, 2) == "item 2"


class Plain:
    def __init__(self):
        self.asked = []

    def __getitem__(self, index):
        assert type(index) is int
        self.asked.append(index)
        if index == 7:
            raise KeyError("seven")
        return index * 10


class Batched(Plain):
    def __getitems__(self, indices):
        assert all(type(index) is int for index in indices)
        return [self[index] for index in indices]


class Short(Plain):
    def __getitems__(self, indices):
        return [0]


@pytest.mark.parametrize("kind", [Plain, Batched])
def test_map_style(kind):
    node = FromMapStyle(dataset=Opaque(kind(), name="Pictures"), count=10)
    assert fetch(node, np.array([3, 1])) == [30, 10]
    assert fetch(node, range(2, 4)) == [20, 30]
    with pytest.raises(ElementError) as caught:
        fetch(node, np.array([3, 7]))
    assert str(caught.value).startswith("Pictures[7] failed: KeyError: 'seven'")
    assert (caught.value.where, caught.value.operator) == ("item 7", "from_map_style(Pictures)")
    assert 'raise KeyError("seven")' in caught.value.user_traceback


def test_getitems_is_asked_once_for_several():
    calls = []

    class Counting(Plain):
        def __getitems__(self, indices):
            calls.append(indices)
            return [self[index] for index in indices]

    fetch(FromMapStyle(dataset=Opaque(Counting()), count=5), np.array([4, 0, 2]))
    assert calls == [[4, 0, 2]]


def test_getitems_of_a_wrong_length():
    with pytest.raises(PipelineError, match=r"Short.__getitems__ returned 1 items for 3 indices"):
        fetch(FromMapStyle(dataset=Opaque(Short()), count=5), range(3))


@pytest.mark.parametrize("where", ["local", "memory"])
def test_from_files(where, tmp_path, bucket):
    place = bucket if where == "memory" else f"{tmp_path}/"
    for name in "abc":
        if where == "memory":
            storage.write(place + name, name.encode() * 3)
        else:
            (tmp_path / name).write_bytes(name.encode() * 3)
    node = nodes.FromFiles(patterns=(place + "*",))
    table = list_source(node, Reads())
    assert (table.count, table.cheap, list(table.sizes), table.bytes) == (3, True, [3, 3, 3], 9)
    assert fetch(node, np.array([2, 0])) == [
        {"path": place + "c", "bytes": b"ccc"},
        {"path": place + "a", "bytes": b"aaa"},
    ]
    assert describe(node, table, 0, 1) == place + "b"


def test_a_file_that_vanished_is_named(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    node = nodes.FromFiles(patterns=(f"{tmp_path}/a",))
    table = list_source(node, Reads())
    source: Any = open_source(node, table, Reads())
    (tmp_path / "a").unlink()
    with pytest.raises(SourceNotFoundError, match=rf"{tmp_path}/a does not exist"):
        source.fetch(range(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: Dataset.from_list([path]).flat_map(Dataset.from_text),
        lambda path: Dataset.from_list([path]).interleave(Dataset.from_tfrecords),
        lambda path: Dataset.from_text(path).unique(),
        lambda path: Dataset.from_tfrecords(path).filter(bool).take(5),
        lambda path: Dataset.zip(Dataset.from_text(path), Dataset.from_list(["a"]).filter(bool)),
    ],
)
def test_a_file_in_which_there_is_nothing_gives_nothing(make, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert list(make(str(tmp_path / "empty"))) == []
