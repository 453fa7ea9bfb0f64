"""Columns hold what they were given in few bytes, and bytes that are none are refused."""

import tracemalloc

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace.errors import ProtocolError
from millrace.planning.columns import BLOCK, Integers, Strings, StringsWriter, integers
from millrace.planning.split_table import (
    Split,
    files_table,
    pack_tables,
    positions_table,
    splits_table,
    summaries,
    unpack_tables,
)

SIGNED = st.lists(st.integers(-(1 << 63), (1 << 63) - 1))
UNSIGNED = st.lists(st.integers(0, (1 << 64) - 1))
NAMES = st.lists(st.text("ab/-é\0\udc80", max_size=6), max_size=80)
SIZES = st.integers(0, 1 << 40)


def strings(values):
    writer = StringsWriter()
    for value in values:
        writer.add(value)
    return writer.column()


@given(SIGNED | UNSIGNED | st.lists(st.integers(-3, 3)))
@example([-(1 << 63), (1 << 63) - 1])
@example([1 << 63, (1 << 64) - 1])
def test_integers_come_back(numbers):
    column = integers(numbers)
    assert list(column) == [column[index] for index in range(len(column))] == numbers
    assert column.total == sum(numbers)
    assert column.within(min(numbers, default=0), max(numbers, default=0))
    assert not numbers or not column.within(min(numbers) + 1, max(numbers))
    if not any(number >= 1 << 63 for number in numbers):
        assert column.array().tolist() == numbers


@given(SIGNED | UNSIGNED | st.lists(st.integers(-3, 3)), st.integers(-(1 << 64), 1 << 64), st.randoms())
@example([1 << 63, (1 << 64) - 1], 0, None)
@example([7, 7], 7, None)
def test_numbers_are_found_in_any_column(numbers, other, random):
    for wanted in (other, random.choice(numbers) if random and numbers else 0):
        places = [place for place, number in enumerate(numbers) if number == wanted]
        assert integers(numbers).places_of(wanted).tolist() == places


@pytest.mark.parametrize(("numbers", "size"), [([7] * 100, 0), ([1000, 1255] * 50, 100), ([0, 256] * 50, 200)])
def test_integers_take_as_many_bytes_as_they_differ_by(numbers, size):
    assert len(integers(numbers).data) == size


def test_there_is_nothing_behind_the_ends():
    for column in (integers([1, 2]), strings(["a", "b"])):
        assert column[-1] == column[1]
        for index in (2, -3):
            with pytest.raises(IndexError, match=f"{index} of 2"):
                column[index]


@given(NAMES, st.randoms())
def test_strings_come_back_in_any_order(names, random):
    column = strings(names)
    assert list(column) == names
    for index in random.sample(range(len(names)), len(names)):
        assert column[index] == names[index]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(column), type=Strings) == column


def test_strings_that_resemble_one_another_take_few_bytes():
    names = [f"/data/imagenet/train/n{n // 1300:08}/n{n // 1300:08}_{n % 1300 * 7}.JPEG" for n in range(50_000)]
    assert len(msgspec.msgpack.encode(strings(names))) < 12 * len(names) < len("".join(names)) / 4
    same = strings(["one/and/the/same"] * 1000)
    assert len(msgspec.msgpack.encode(same)) < 1000 + 1000 + 16 * (1000 // BLOCK + 1) + 50


def test_strings_are_compressed_in_little_memory_however_long_some_are():
    names = [
        "a" * 200_000,
        *(f"{'a' * (number % 7)}{number}" for number in range(9000)),
        "b" * 200_000 + "\0",
        "b" * 200_000,
    ]
    tracemalloc.start()
    try:
        column = strings(names)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(column) == names
    assert most < 16 << 20


@given(st.lists(st.tuples(st.text("ab/\udc80", max_size=5), SIZES, st.sampled_from(["", "v1", "v2"])), max_size=50))
def test_tables_of_files_come_back(files):
    table = files_table(files)
    assert (list(table.names), list(table.sizes)) == ([name for name, _, _ in files], [size for _, size, _ in files])
    assert table.bytes == sum(size for _, size, _ in files)
    assert unpack_tables(pack_tables({3: table, 0: positions_table(9)})) == {0: positions_table(9), 3: table}


SPLITS = st.builds(
    Split,
    st.sampled_from(["a", "b/c"]),
    st.integers(0, 1 << 50),
    st.integers(-1, 1 << 50),
    st.integers(-1, 9),
    st.integers(-1, 9),
    SIZES,
    st.sampled_from(["", "etag"]),
)


@given(st.lists(SPLITS, max_size=50))
def test_tables_of_splits_come_back(splits):
    table = unpack_tables(pack_tables({0: splits_table(splits)}))[0]
    assert list(table.splits) == [table.splits[index] for index in range(len(splits))] == splits
    assert table.splits[1:3] == splits[1:3]
    assert table.count == (-1 if any(split.count < 0 for split in splits) else sum(split.count for split in splits))
    assert table.summary().pieces == len(splits)


def test_what_a_plan_needs_of_a_million_files_is_a_few_bytes():
    table = files_table((f"{number:07}", 3, "") for number in range(100_000))
    assert len(msgspec.msgpack.encode(summaries({0: table}))) < 40


def test_tables_that_were_packed_before_there_were_columns():
    files = {"cheap": True, "count": 2, "locations": ["x", "y"], "sizes": [3, 4], "splits": [], "stamps": [1, 1 << 63]}
    splits = {"cheap": False, "count": -1, "splits": [["s", 0, 5, 0, 7, 50, "v"], ["s", 5, -1, 7, -1, 60, "v"]]}
    positions = {"cheap": True, "count": 100, "locations": [], "sizes": [], "splits": []}
    tables = unpack_tables(msgspec.msgpack.encode({0: files, 1: splits, 2: positions}))
    assert list(zip(tables[0].names, tables[0].sizes, tables[0].stamps, strict=True)) == [
        ("x", 3, 1),
        ("y", 4, 1 << 63),
    ]
    assert list(tables[1].splits) == [Split("s", 0, 5, 0, 7, 50, "v"), Split("s", 5, -1, 7, -1, 60, "v")]
    assert tables[2] == positions_table(100)


# -- hostile bytes -----------------------------------------------------------------------------------------------------

GOOD = pack_tables(
    {
        0: files_table((f"folder/{n}", n, f"v{n}") for n in range(40)),
        1: splits_table([Split(f"file{n // 4}", n, n + 1, n, 2, 9, "v") for n in range(40)]),
    }
)


def read_all(data):
    """Everything that is in bytes which are split tables or are not."""
    for table in unpack_tables(data).values():
        summary = table.summary()
        assert summary.bytes >= 0
        assert len(list(table.names)) == len(list(table.sizes)) == len(table.names)
        assert len(list(table.splits)) in (0, len(table.names))
        assert all(table.names[index] == name for index, name in enumerate(table.names))


@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=5)
)
def test_bytes_that_were_tampered_with_are_tables_or_are_refused(changes):
    data = bytearray(GOOD)
    for at, put, gone in changes:
        data[at : at + gone] = put
    try:
        read_all(bytes(data))
    except ProtocolError as error:
        assert "split tables" in str(error)  # noqa: PT017 (not all are refused)


@given(st.binary(max_size=200))
def test_any_bytes_are_tables_or_are_refused(data):
    try:
        read_all(data)
    except ProtocolError as error:
        assert "split tables" in str(error)  # noqa: PT017


HUGE = 1 << 47
ONE = [[1], [1, 1], b"a"]
LIES = {
    "equal integers without end": [2, {0: {"cheap": True, "count": HUGE, "names": [[HUGE], [HUGE], b""]}}],
    "sizes of nobody": [2, {0: {"cheap": True, "count": HUGE, "sizes": [HUGE, 1]}}],
    "counts that overflow": [
        2,
        {
            0: {
                "cheap": False,
                "count": 0,
                "names": [[1], [1, 1], b"a"],
                "sizes": [1],
                "pieces": [*[[1]] * 3, [1, 1 << 63]],
            }
        },
    ],
    "another format": [3, {}],
    "a length before the first": [2, {0: {"cheap": True, "count": 1, "names": [[1], [1, -1], b""], "sizes": [1]}}],
    "more in common than there is": [
        2,
        {0: {"cheap": True, "count": 2, "names": [[2, 0, 1, b"\0\5"], [2, 1], b"ab"], "sizes": [2], "stamps": [2]}},
    ],
}


@pytest.mark.parametrize("lie", LIES)
def test_what_claims_more_than_it_has_is_refused_before_anything_is_made_of_it(lie):
    data = msgspec.msgpack.encode(LIES[lie])
    tracemalloc.start()
    with pytest.raises(ProtocolError, match="split tables"):
        unpack_tables(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_column_whose_bytes_are_missing():
    with pytest.raises(ValueError, match="a column of 3 integers has 5 bytes, of 2 each"):
        Integers(3, 0, 2, bytes(5))
