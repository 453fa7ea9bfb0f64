"""Lines of text and rows of CSV, from any byte range of a file."""

import gzip
import zlib

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import ElementTooLargeError, PipelineError, SourceCorruptError
from millrace.graph.source_nodes import FromCSV, FromText
from millrace.planning.split_table import SplitTable
from millrace.sources import describe, list_source, open_source, storage
from millrace.sources.line_blocks import list_lines
from millrace.sources.reads import Reads
from millrace.sources.source import ignore_progress

LINE = st.text(st.sampled_from("ab\r ,é☃"), max_size=6)


def read(node: FromText | FromCSV, table: SplitTable | None = None, chunk: int = 3) -> list[list[object]]:
    """Elements of each split."""
    with Reads() as reads:
        table = list_source(node, reads) if table is None else table
        source = open_source(node, table, reads)
        found = [[*source.read(split, 0, -1, lambda: chunk)] for split in table.splits]  # type: ignore[union-attr]
    assert all(0 < len(each) <= chunk for split in found for each in split)
    return [[element for each in split for element in each] for split in found]


def flat(lists: list[list[object]]) -> list[object]:
    return [element for each in lists for element in each]


@settings(max_examples=30)
@given(st.lists(LINE, max_size=12), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.integers(1, 40))
def test_each_line_is_read_once_wherever_files_are_cut(tmp_path_factory, lines, end, ended, size):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes((end.join(lines) + end * ended).encode())
    node = FromText(patterns=(str(path),))
    table = list_lines(node, ignore_progress, size=size)
    theirs = [line.decode() for line in tf.data.TextLineDataset(str(path)).as_numpy_iterator()]
    # A carriage return that doesn't end a line is a part of it.
    inside = path.read_bytes().decode().split("\n")
    inside = inside if inside[-1] else inside[:-1]
    assert flat(read(node, table)) == [line.removesuffix("\r") for line in inside]
    if not any("\r" in line for line in lines):
        assert flat(read(node, table)) == theirs
    assert sum(split.bytes for split in table.splits) == path.stat().st_size
    assert table.count == (-1 if table.splits else 0)


@pytest.mark.parametrize(
    ("name", "compression", "compress"),
    [("a.gz", None, gzip.compress), ("a", "GZIP", gzip.compress), ("a", "ZLIB", zlib.compress), ("a.gz", "", bytes)],
)
def test_compressed_files_are_read_whole(tmp_path, name, compression, compress):
    (tmp_path / name).write_bytes(compress(b"one\ntwo\n\nfour"))
    node = FromText(patterns=(str(tmp_path / name),), compression=compression)
    assert read(node) == [["one", "two", "", "four"]]


def test_files_in_a_store_are_cut_too():
    storage.write("memory://lines/a.txt", b"".join(b"%d\n" % number for number in range(50_000)))
    node = FromText(patterns=("memory://lines/a.txt",))
    found = read(node, chunk=1000)
    assert len(found) == 4
    assert flat(found) == list(map(str, range(50_000)))


def test_text_that_is_none_is_named_with_its_byte(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\n")
    with pytest.raises(SourceCorruptError, match=r"a\.txt is no text in UTF-8: byte 5 is none of it"):
        read(FromText(patterns=(str(tmp_path / "a.txt"),)))


def test_a_line_that_does_not_fit_is_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x\n" + b"y" * (3 << 20))
    dataset = Dataset.from_text(str(tmp_path / "*.txt")).map(len)
    assert list(dataset) == [1, 3 << 20]
    with pytest.raises(
        ElementTooLargeError, match=r"a\.txt has a line of more than \d+ bytes, which begins at byte 2,"
    ):
        list(dataset.with_options(buffer_bytes=3_000_000))


def test_elements_are_named_by_their_line(tmp_path):
    (tmp_path / "a.txt").write_text("1\n2\nthree\n")
    with pytest.raises(Exception, match=r"map\(int\) failed on .*a\.txt, line 2: ValueError"):
        list(Dataset.from_text(str(tmp_path / "a.txt")).map(int))
    node = FromText(patterns=(str(tmp_path / "a.txt"),))
    table = list_lines(node, ignore_progress, size=4)
    assert describe(node, table, 1, 0).endswith("a.txt, line 0 after byte 5")


# -- CSV ---------------------------------------------------------------------------------------------------------------

ROWS: list[dict[str, object]] = [
    {"id": n, "name": f'row "{n}", é' if n % 3 else "", "score": n / 4 if n % 5 else None} for n in range(400)
]


def csv_of(rows: list[dict[str, object]], delimiter: str = ",", header: bool = True) -> bytes:
    def cell(value: object) -> str:
        text = "" if value is None else str(value)
        return '"' + text.replace('"', '""') + '"' if set(text) & {'"', delimiter} else text

    lines = [delimiter.join(map(cell, row.values())) for row in rows]
    return "".join(line + "\n" for line in ([delimiter.join(rows[0])] if header else []) + lines).encode()


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("header", [True, False])
def test_rows_by_column_wherever_files_are_cut(tmp_path, delimiter, header):
    (tmp_path / "a.csv").write_bytes(csv_of(ROWS, delimiter, header))
    names = None if header else ("id", "name", "score")
    node = FromCSV(patterns=(str(tmp_path / "a.csv"),), names=names, delimiter=delimiter)
    for size in (50, 1000, 1 << 20):
        assert flat(read(node, list_lines(node, ignore_progress, size=size))) == ROWS
    chosen = FromCSV(patterns=node.patterns, names=names, delimiter=delimiter, columns=("score", "id"))
    assert flat(read(chosen)) == [{"score": row["score"], "id": row["id"]} for row in ROWS]


def test_types_are_given_or_those_of_the_first_file(tmp_path):
    (tmp_path / "a.csv").write_text("x,day\n1,2020-01-01\n2,2020-01-02\n")
    (tmp_path / "b.csv").write_text("day,x\n2020-01-03,3\n")
    both = str(tmp_path / "*.csv")
    assert list(Dataset.from_csv(both)) == [{"x": n, "day": f"2020-01-0{n}"} for n in (1, 2)] + [
        {"day": "2020-01-03", "x": 3}
    ]
    typed = Dataset.from_csv(both, types={"x": float, "day": bytes}, columns=["x", "day"])
    assert list(typed) == [{"x": float(n), "day": b"2020-01-0%d" % n} for n in (1, 2, 3)]
    (tmp_path / "b.csv").write_text("day,x\n2020-01-03,three\n")
    with pytest.raises(SourceCorruptError, match=r"b\.csv, in the lines from byte 0 on: .*three.* with types="):
        list(Dataset.from_csv(both))


def test_nan_is_a_value_in_a_column_of_floats_and_missing_in_others(tmp_path):
    (tmp_path / "a.csv").write_text("x,n,s\n1.5,1,nan\nnan,nan,NaN\n,,\n-NaN,2,b\n")
    rows = list(Dataset.from_csv(str(tmp_path / "a.csv")))
    assert [row["n"] for row in rows] == [1, None, None, 2]
    assert [row["s"] for row in rows] == ["nan", "NaN", "", "b"]
    assert [str(row["x"]) for row in rows] == ["1.5", "nan", "None", "nan"]
    assert [str(row["x"]) for row in Dataset.from_csv(str(tmp_path / "a.csv"), columns=["x"], types={"x": float})] == [
        "1.5",
        "nan",
        "None",
        "nan",
    ]


def test_types_are_those_of_the_first_mib_however_files_are_cut(tmp_path):
    numbers = range(100_000, 130_000)
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{number}\n" for number in numbers) + "0.5\n")
    assert [row["x"] for row in Dataset.from_csv(str(tmp_path / "a.csv"))] == [*map(float, numbers), 0.5]


def test_what_is_kept_of_files_is_not_used_where_another_first_file_gives_other_types(tmp_path):
    (tmp_path / "b.csv").write_text("x\n1\n2\n")
    kept, files = str(tmp_path / "kept"), str(tmp_path / "*.csv")
    numbers = [{"x": 1}, {"x": 2}]
    assert list(Dataset.from_csv(files).cache(kept)) == numbers
    (tmp_path / "c.csv").write_text("x\n3\n")
    assert list(Dataset.from_csv(files).cache(kept)) == [*numbers, {"x": 3}]
    (tmp_path / "a.csv").write_text("x\n")
    assert list(Dataset.from_csv(files).cache(kept)) == [*numbers, {"x": 3}]
    (tmp_path / "ab.csv").write_text("x\nabc\n")
    words = [{"x": word} for word in ("abc", "1", "2", "3")]
    assert list(Dataset.from_csv(files)) == words
    assert list(Dataset.from_csv(files).cache(kept)) == words


def test_rows_are_what_tf_data_makes_of_them(tmp_path):
    (tmp_path / "a.csv").write_bytes(csv_of([{"n": n, "f": n / 3, "s": f"a,{n}"} for n in range(5)]))
    theirs = tf.data.experimental.CsvDataset(
        str(tmp_path / "a.csv"), [tf.int64, tf.float64, tf.string], header=True
    ).as_numpy_iterator()
    ours = Dataset.from_csv(str(tmp_path / "a.csv"), types={"s": bytes})
    assert [tuple(row.values()) for row in ours] == [(int(n), float(f), s) for n, f, s in theirs]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,a\n1,2\n", {}, r"its first line should say its columns, and says \['a', 'a'\]\. Give names="),
        ("a,b\n1\n", {}, r"Expected 2 columns, got 1"),
        ("a,b\n1,2\n", {"columns": ("c",)}, r"has no column 'c'\. Its columns are 'a', 'b'"),
        ("a,b\n1,2\n", {"types": {"A": "int"}}, r" has no column 'A'\. Its columns are 'a', 'b'"),
        ('a,b\n"1\n2",2\n', {}, r"one has an odd number of quotes\. A value in quotes must not"),
        ("a,b\n1,18446744073709551615\n", {}, r"column 'b' has whole numbers that 64 bits don't hold\. Say types="),
    ],
)
def test_files_that_are_no_csv_are_named(tmp_path, text, options, said):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises((SourceCorruptError, PipelineError), match=rf"a\.csv.*{said}"):
        read(FromCSV(patterns=(str(tmp_path / "a.csv"),), **options))


def test_a_file_with_its_first_line_alone_has_no_rows(tmp_path):
    for number, text in enumerate(("a,b", "a,b\n", "\n" * 3)):
        (tmp_path / "a.csv").write_text(text)
        names = ("a", "b") if number == 2 else None
        assert flat(read(FromCSV(patterns=(str(tmp_path / "a.csv"),), names=names))) == []


def test_types_are_those_of_the_first_rows_there_are_and_all_files_have_the_same_columns(tmp_path):
    for number, text in enumerate(["a\n", "a\n3\n", "b,a\n4,5\n"]):
        (tmp_path / f"{number}.csv").write_text(text)
    assert list(Dataset.from_csv(f"{tmp_path}/*.csv", columns=["a"])) == [{"a": 3}, {"a": 5}]
    with pytest.raises(
        SourceCorruptError, match=r"2\.csv has the columns 'b', 'a', and .*0\.csv has 'a'\. Say columns="
    ):
        list(Dataset.from_csv(f"{tmp_path}/*.csv"))


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(PipelineError, match=r"names are different names, not \['a', 'a'\]"):
        Dataset.from_csv(str(tmp_path), names=["a", "a"])


def test_numbers_with_points_may_be_as_large_as_floats_are(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1e300\n20000000000000000000.0\n")
    assert [each["a"] for each in Dataset.from_csv(str(tmp_path / "a.csv"))] == [1e300, 2e19]
    (tmp_path / "a.csv").write_text("a\n18446744073709551615\n")
    for kind, value in ((str, "18446744073709551615"), (float, 18446744073709551615.0)):
        assert list(Dataset.from_csv(str(tmp_path / "a.csv"), types={"a": kind})) == [{"a": value}]


@pytest.mark.parametrize("empty", [b"", gzip.compress(b"")], ids=["no bytes", "no lines"])
@pytest.mark.parametrize("name", ["a", "z"], ids=["first", "last"])
def test_a_compressed_file_without_a_line_has_no_rows(tmp_path, empty, name):
    (tmp_path / "m.csv.gz").write_bytes(gzip.compress(b"x,y\n1,2\n"))
    (tmp_path / f"{name}.csv.gz").write_bytes(empty)
    assert list(Dataset.from_csv(str(tmp_path / "*.csv.gz"), compression="GZIP")) == [{"x": 1, "y": 2}]


@pytest.mark.parametrize("text", ["x,y\r\n1,2\r\n".encode("utf-16"), b"x,y\r1,2\r"], ids=["UTF-16", "CR alone"])
def test_a_first_line_that_is_none(tmp_path, text):
    (tmp_path / "a.csv").write_bytes(text)
    with pytest.raises(SourceCorruptError, match=r"a\.csv: its first line should say its columns"):
        list(Dataset.from_csv(str(tmp_path / "a.csv")))
