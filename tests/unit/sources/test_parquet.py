import datetime as dt
import errno
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import PipelineError, SourceCorruptError, SourceError, SourceNotFoundError
from millrace.graph.source_nodes import FromParquet
from millrace.sources import describe, list_source, open_source, storage
from millrace.sources.reads import Reads
from millrace.sources.rows import to_rows, to_values

ROWS = 1000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("parquet") / "a.parquet"
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int32()),
            "name": [f"row {i}" for i in range(ROWS)],
            "picture": [bytes([i % 256]) * (i % 7) for i in range(ROWS)],
            "vector": pa.array([np.arange(i % 5, dtype=np.float32) for i in range(ROWS)], pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, path, row_group_size=300)
    return str(path)


def test_a_split_per_row_group(path, read_all):
    node = FromParquet(patterns=(path,))
    table = list_source(node, Reads())
    assert [(split.start, split.stop, split.count, split.first_record) for split in table.splits] == [
        (0, 1, 300, 0),
        (1, 2, 300, 300),
        (2, 3, 300, 600),
        (3, 4, 100, 900),
    ]
    assert table.count == ROWS
    assert all(split.bytes > 0 for split in table.splits)
    rows = read_all(node, table, 64)
    assert [row["id"] for row in rows] == list(range(ROWS))
    row = rows[13]
    assert list(row) == ["id", "name", "picture", "vector"]
    assert (type(row["id"]), row["name"], row["picture"]) == (int, "row 13", b"\r" * 6)
    assert row["vector"].dtype == np.float32
    assert row["vector"].tolist() == [0, 1, 2]
    assert describe(node, table, 2, 17) == f"{path}, row 617"


@given(start=st.integers(0, 300), length=st.integers(0, 310) | st.just(-1), chunk=st.integers(1, 400))
def test_parts_of_a_split_are_slices(path, start, length, chunk):
    node = FromParquet(patterns=(path,), columns=("id",))
    table = list_source(node, Reads())
    source: Any = open_source(node, table, Reads())
    stop = -1 if length < 0 else start + length
    got = [row["id"] for rows in source.read(table.splits[1], start, stop, lambda: chunk) for row in rows]
    everything = list(range(300, 600))
    assert got == (everything[start:] if stop < 0 else everything[start:stop])


def test_batches_of_bounded_bytes(tmp_path, monkeypatch):
    from millrace.sources import parquet

    monkeypatch.setattr(parquet, "_BATCH_BYTES", 10_000)
    pq.write_table(pa.table({"x": [bytes(1000) + bytes([i]) for i in range(100)]}), tmp_path / "a", compression="none")
    node = FromParquet(patterns=(f"{tmp_path}/a",))
    table = list_source(node, Reads())
    source: Any = open_source(node, table, Reads())
    chunks = list(source.read(table.splits[0], 25, 95, lambda: 1000))
    assert max(map(len, chunks)) < 100
    assert [row["x"][-1] for chunk in chunks for row in chunk] == list(range(25, 95))


def test_columns_in_the_order_asked_for(path, read_all):
    node = FromParquet(patterns=(path,), columns=("name", "id"))
    assert list(read_all(node, list_source(node, Reads()))[0].items()) == [("name", "row 0"), ("id", 0)]


def test_unknown_column(path):
    with pytest.raises(PipelineError) as caught:
        list_source(FromParquet(patterns=(path,), columns=("id", "nme", "x")), Reads())
    assert str(caught.value) == (
        f"from_parquet(columns=...): {path} has no column 'nme', 'x'. Its columns are 'id', 'name', 'picture', 'vector'"
    )


def test_remote_is_the_same(path, bucket, read_all):
    with open(path, "rb") as file:
        storage.write(bucket + "a.parquet", file.read())
    local, remote = FromParquet(patterns=(path,)), FromParquet(patterns=(bucket + "*",))
    table = list_source(remote, Reads())
    assert table.count == ROWS
    assert repr(read_all(remote, table)) == repr(read_all(local, list_source(local, Reads())))


def test_large_remote_row_groups_are_read_in_small_requests(path, bucket, monkeypatch, read_all):
    from millrace.sources import parquet

    monkeypatch.setattr(parquet, "_TOGETHER_BYTES", 0)
    monkeypatch.setattr(parquet, "_FOOTER_BYTES", 100)
    test_remote_is_the_same(path, bucket, read_all)


def test_reading_can_be_given_up(path, bucket):
    with open(path, "rb") as file:
        storage.write(bucket + "a.parquet", file.read())
    for place in (path, bucket + "a.parquet"):
        node = FromParquet(patterns=(place,))
        table = list_source(node, Reads())
        source: Any = open_source(node, table, Reads())
        reading = source.read(table.splits[0], 0, -1, lambda: 3)
        next(reading)
        reading.close()


def test_no_rows(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a")
    assert list_source(FromParquet(patterns=(f"{tmp_path}/a",)), Reads()).count == 0


@pytest.mark.parametrize("keep", [0, 3, 100, -1, -9])
def test_truncated_when_listed(tmp_path, bucket, path, keep):
    with open(path, "rb") as file:
        data = file.read()[:keep]
    (tmp_path / "a").write_bytes(data)
    storage.write(bucket + "a", data)
    for place in (f"{tmp_path}/a", bucket + "a"):
        with pytest.raises(SourceCorruptError, match=rf"^{place} is no Parquet file, truncated or damaged: "):
            list_source(FromParquet(patterns=(place,)), Reads())


def test_damaged_when_read(tmp_path, path, read_all):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    place = tmp_path / "a"
    place.write_bytes(data)
    node = FromParquet(patterns=(str(place),))
    table = list_source(node, Reads())
    data[4:3000] = b"\xff" * 2996
    place.write_bytes(data)
    with pytest.raises(SourceCorruptError, match=rf"^{place} is damaged in row group 0: "):
        read_all(node, table)
    place.unlink()
    with pytest.raises(SourceNotFoundError, match=rf"^{place} does not exist"):
        read_all(node, table)


# -- values ------------------------------------------------------------------------------------------------------------


def same(left, right):
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return (
            isinstance(left, np.ndarray)
            and isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and np.array_equal(left, right)
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


def i32(*numbers):
    return np.array(numbers, dtype=np.int32)


FIXED = pa.list_(pa.int32(), 2)
CASES: dict[str, tuple[Any, list[Any]]] = {
    "int": (pa.array([1, 2], pa.uint8()), [1, 2]),
    "int with none": (pa.array([1, None]), [1, None]),
    "float": (pa.array([1.5, None]), [1.5, None]),
    "half": (pa.array(np.array([1.5, 2], np.float16)), [1.5, 2.0]),
    "bool": (pa.array([True, False]), [True, False]),
    "bool with none": (pa.array([True, None]), [True, None]),
    "string": (pa.array(["a", None, "ü"]), ["a", None, "ü"]),
    "large string": (pa.array(["a"], pa.large_string()), ["a"]),
    "string view": (pa.array(["a", None], pa.string_view()), ["a", None]),
    "binary": (pa.array([b"a", None]), [b"a", None]),
    "large binary": (pa.array([b"a"], pa.large_binary()), [b"a"]),
    "fixed binary": (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "null": (pa.nulls(2), [None, None]),
    "date": (pa.array([dt.date(2020, 1, 2), None]), [np.datetime64("2020-01-02"), None]),
    "timestamp": (pa.array([1, None], pa.timestamp("us")), [np.datetime64(1, "us"), None]),
    "duration": (pa.array([3], pa.duration("ms")), [np.timedelta64(3, "ms")]),
    "list": (pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32())), [i32(1, 2), i32(), None, i32(3)]),
    "large list": (pa.array([[1], [2]], pa.large_list(pa.int32())), [i32(1), i32(2)]),
    "list with none": (pa.array([[1, None], [2]], pa.list_(pa.int32())), [[1, None], i32(2)]),
    "list of bool": (pa.array([[True], [False, True]]), [np.array([True]), np.array([False, True])]),
    "list of bool with none": (pa.array([[True, None], [False]]), [[True, None], np.array([False])]),
    "list of strings": (pa.array([["a", "b"], []]), [["a", "b"], []]),
    "list of lists": (pa.array([[[1], [2, 3]]], pa.list_(pa.list_(pa.int32()))), [[i32(1), i32(2, 3)]]),
    "fixed list": (pa.array([[1, 2], [3, 4]], FIXED), [i32(1, 2), i32(3, 4)]),
    "fixed list with none": (pa.array([[1, 2], None, [None, 4]], FIXED), [i32(1, 2), None, [None, 4]]),
    "fixed matrix": (
        pa.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], pa.list_(FIXED, 2)),
        [np.array([[1, 2], [3, 4]], np.int32), np.array([[5, 6], [7, 8]], np.int32)],
    ),
    "fixed matrix with none": (
        pa.array([[[1, 2], None], [[5, None], [7, 8]], None, [[1, 2], [3, 4]]], pa.list_(FIXED, 2)),
        [[[1, 2], None], [[5, None], [7, 8]], None, np.array([[1, 2], [3, 4]], np.int32)],
    ),
    "fixed list of strings": (pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2)), [["a", "b"], ["c", "d"]]),
    "struct": (pa.array([{"a": 1, "b": [1]}, None]), [{"a": 1, "b": np.array([1])}, None]),
    "empty struct": (pa.array([{}, {}], pa.struct([])), [{}, {}]),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), [[("a", 1)]]),
    "tensor": (
        pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), [1, 2]), pa.array([[1, 2], [3, 4]], FIXED)),
        [np.array([[1, 2]], np.int32), np.array([[3, 4]], np.int32)],
    ),
    "tensor with none": (
        pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), [1, 2]), pa.array([[1, 2], None], FIXED)),
        [np.array([[1, 2]], np.int32), None],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_values(case):
    array, expected = CASES[case]
    got = to_values(array)
    assert same(got, expected), got


@pytest.mark.parametrize("case", CASES)
def test_a_value_does_not_depend_on_its_neighbours(case):
    array, expected = CASES[case]
    doubled = pa.concat_arrays([array, array]) if not isinstance(array, pa.DictionaryArray) else array
    for start in range(len(doubled) + 1):
        for stop in range(start, len(doubled) + 1):
            got = to_values(doubled.slice(start, stop - start))
            assert same(got, (expected * 2)[start:stop]), (start, stop, got)


@pytest.mark.parametrize("case", ["list", "fixed list", "fixed matrix", "tensor"])
def test_arrays_are_the_users_to_change_and_keep(case):
    for value in to_values(CASES[case][0]):
        if value is not None:
            assert value.flags.writeable
            assert value.base is None or value.base.nbytes == value.nbytes


def test_no_columns():
    assert to_rows(pa.record_batch({"a": [1, 2]}), []) == [{}, {}]


def test_a_file_whose_name_is_no_text(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path / "donn") + b"\xe9es.parquet")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "a.parquet")
    os.rename(tmp_path / "a.parquet", path)
    assert [row["x"] for row in Dataset.from_parquet(str(tmp_path / "*.parquet"))] == [1, 2]


def test_what_the_system_refuses_is_no_damage(path, monkeypatch):
    def refused(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(pa, "OSFile", refused)
    with pytest.raises(SourceError, match=r"a\.parquet: Too many open files") as raised:
        list(Dataset.from_parquet(path))
    assert not isinstance(raised.value, SourceCorruptError)
