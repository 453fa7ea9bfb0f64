from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

from millrace.dataset import Dataset
from millrace.errors import PipelineError, StateError
from millrace.sources.arrays import Arrays, arrays_of, open_shipped

X = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
Y = np.arange(6)


class Pair(NamedTuple):
    x: Any
    y: Any


def plain(element: Any) -> Any:
    """As lists and numbers, with the containers that it has."""
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return getattr(type(element), "_make", tuple)(map(plain, element))
    return [plain(each) for each in element] if isinstance(element, list) else element.tolist()


@pytest.mark.parametrize(
    ("arrays", "second"),
    [
        (Y, 1),
        (X, [[4.0, 5.0], [6.0, 7.0]]),
        ({"x": X, "y": Y}, {"x": [[4.0, 5.0], [6.0, 7.0]], "y": 1}),
        ((Y, {"a": [Y, Y]}), (1, {"a": [1, 1]})),
        (Pair(Y, Y[::-1]), Pair(1, 4)),
        ({"y": Y, "nothing": {}}, {"y": 1, "nothing": {}}),
    ],
)
def test_elements_are_rows_in_the_structure_of_the_arrays(arrays: Any, second: Any) -> None:
    dataset = Dataset.from_arrays(arrays)
    elements = list(dataset)
    assert len(elements) == len(dataset) == 6
    assert plain(elements[1]) == second
    again = open_shipped([arrays_of(arrays).shipped()], lambda digest: arrays_of(arrays).share().view())[0]
    assert [plain(row) for row in again.fetch(np.array([1, 5]))] == [plain(elements[1]), plain(elements[5])]


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "bcd", ""]),
        np.array([b"a", b"bcd", b""]),
        np.array(["2020-01-01", "2021-01-01", "NaT"], "datetime64[D]"),
        np.array([(1, 2.0), (3, 4.0), (5, 6.0)], [("a", "i4"), ("b", "f8")]),
        np.arange(3, dtype=">u2"),
        np.arange(12).reshape(4, 3).T,
        np.arange(6)[::2],
        np.zeros((3, 0)),
        np.zeros((0, 4)),
        np.array([], np.int8),
        np.asfortranarray(np.arange(24.0).reshape(3, 4, 2)),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_of_all_kinds_are_the_same_where_they_are_mapped(array: np.ndarray[Any, Any]) -> None:
    arrays = arrays_of({"first": np.arange(len(array)), "it": array})
    memory = arrays.share()
    shipped = pickle.loads(pickle.dumps(arrays.shipped()))
    (there,) = open_shipped([shipped], lambda digest: {memory.digest: memory.view()}[digest])
    assert there.arrays[1].dtype == array.dtype
    np.testing.assert_array_equal(there.arrays[1], array)
    assert list(map(repr, there.fetch(range(len(array))))) == list(map(repr, arrays.fetch(range(len(array)))))
    assert there.contents() == arrays.contents()


def test_rows_are_views_that_cannot_be_written_to() -> None:
    mine = X.copy()
    row = next(iter(Dataset.from_arrays(mine)))
    assert np.shares_memory(row, mine)
    with pytest.raises(ValueError, match="read-only"):
        row += 1
    assert mine.flags.writeable, "the user's own array is as it was"
    with pytest.raises(ValueError, match="read-only"):
        open_shipped([arrays_of(X).shipped()], lambda digest: arrays_of(X).share().view())[0].fetch(range(1))[0][:] = 0


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (
            {"x": X, "y": Y[:4]},
            'all arrays need equally many rows, and the array at ["x"] has 6, the array at ["y"] has 4: cut or fill',
        ),
        ({"x": [1, 2]}, 'the array at ["x"][0] is no array but int; write np.asarray(...)'),
        (np.array([None]), "the array holds Python objects"),
        (np.float32(3), "the array is a single value and has no rows"),
        ("train", "the array is no array but str"),
        ({}, "from_arrays takes arrays, and there is none in {}"),
        (np.ma.masked_array([1], [True]), "the array is masked"),
    ],
)
def test_what_has_no_rows_in_common_is_refused_with_its_name(arrays: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        Dataset.from_arrays(arrays)
    assert isinstance(caught.value, PipelineError)
    assert said in str(caught.value)


def test_contents_decide_what_they_are() -> None:
    same = {arrays_of({"x": each, "y": Y}).contents() for each in (X, X.copy(), np.asfortranarray(X))}
    assert len(same) == 1
    other = X.copy()
    other[5, 1, 1] = -1
    changed = [
        {"x": other, "y": Y},
        {"x": X.reshape(6, 4), "y": Y},
        {"x": X.view(np.int32), "y": Y},
        {"z": X, "y": Y},
        (X, Y),
    ]
    assert len(same | {arrays_of(each).contents() for each in changed}) == 1 + len(changed)


def test_contents_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, pieces = list[int](), Arrays._pieces

    def counted(arrays: Arrays) -> Any:
        passes.append(1)
        return pieces(arrays)

    monkeypatch.setattr(Arrays, "_pieces", counted)
    dataset = Dataset.from_arrays({"x": X, "y": Y})
    assert sum(len(batch["y"]) for batch in dataset.batch(4)) == 6
    assert passes == [], "nothing needs the hash while elements are read in process"
    with dataset.distribute() as first, dataset.batch(2).distribute() as second:
        assert first.state_dict()["graph"] != second.state_dict()["graph"]
        dataset.state_dict()
    assert passes == [1]


def test_arrays_that_were_written_to_after_they_were_hashed_are_refused() -> None:
    mine = X.copy()
    dataset = Dataset.from_arrays(mine)
    dataset.state_dict()
    mine[0] = -1
    with pytest.raises(PipelineError, match=r"float32\[6, 2, 2\] were written to since their hash was taken"):
        dataset.distribute()


def test_a_state_goes_on_over_the_same_arrays_and_no_others() -> None:
    first = iter(Dataset.from_arrays({"y": Y}).shuffle(6, seed=1))
    begun = [next(first)["y"] for _ in range(2)]
    again = iter(Dataset.from_arrays({"y": Y.copy()}).shuffle(6, seed=1))
    again.load_state_dict(first.state_dict())
    assert sorted([*begun, *(each["y"] for each in again)]) == Y.tolist()
    other = iter(Dataset.from_arrays({"y": Y + 1}).shuffle(6, seed=1))
    with pytest.raises(StateError, match="other operators or parameters"):
        other.load_state_dict(first.state_dict())


def test_a_copy_of_the_dataset_has_arrays_of_its_own() -> None:
    twin = pickle.loads(pickle.dumps(Dataset.from_arrays({"y": Y})))
    assert [each["y"] for each in twin] == Y.tolist()
    assert twin.state_dict()["graph"] == Dataset.from_arrays({"y": Y}).state_dict()["graph"]
