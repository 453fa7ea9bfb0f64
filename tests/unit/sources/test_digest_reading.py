"""Sources that are given a digest: what they know of their items, and what they find out as they read."""

import gzip
import hashlib
import logging
import os
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.errors import PipelineError, SourceChangedError, SourceCorruptError, SourceNotFoundError
from millrace.graph import nodes, serialize
from millrace.graph.operator_graph import Graph
from millrace.graph.source_nodes import FromParquet
from millrace.planning.item_hashes import UNKNOWN
from millrace.sources import list_source, open_source, storage, tfrecord, webdataset
from millrace.sources.digests.digest_file import ItemKind
from millrace.sources.digests.digest_maker import make_digest
from millrace.sources.reads import Reads

MEMBERS = [(f"{number:03}.{field}", b"%d %s" % (number, field.encode()) * 9) for number in range(40) for field in "ab"]
RECORDS = [b"%d" % number * (number % 7) for number in range(50)]
LONG_AGO = (10**9, 10**9)


def digest_of(pattern, **options):
    location = f"memory://{uuid.uuid4().hex}.digest"
    folder = os.getcwd()
    with Reads() as reads:
        make_digest([pattern], location, reads, **options)
    assert os.listdir(folder) == []
    return location


@pytest.fixture(autouse=True)
def _nothing_beside(tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


def write(path, data):
    path.write_bytes(data)
    os.utime(path, LONG_AGO)
    return str(path)


def sha256(data):
    return hashlib.sha256(data).digest()


def listed(node):
    return list_source(node, Reads())


@pytest.fixture
def files(tmp_path):
    return [write(tmp_path / f"{number}.txt", b"content %d" % number) for number in range(6)]


@pytest.fixture
def shard(tmp_path, make_tar):
    return write(tmp_path / "a.tar", make_tar(MEMBERS))


@pytest.fixture
def records(tmp_path, make_tfrecords):
    return write(tmp_path / "a.tfrecord", make_tfrecords(RECORDS))


@pytest.fixture
def rows(tmp_path):
    table = pa.table({"id": range(100), "text": [str(number) for number in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=30)
    os.utime(tmp_path / "a.parquet", LONG_AGO)
    return str(tmp_path / "a.parquet")


def damaged(path, old, new, *, touch=False):
    """Give a file another content of the same length."""
    with open(path, "rb") as file:
        data = file.read()
    assert len(old) == len(new)
    assert data.count(old)
    with open(path, "wb") as file:
        file.write(data.replace(old, new, 1))
    os.utime(path, (10**9, 2 * 10**9) if touch else LONG_AGO)


# -- what a table knows ------------------------------------------------------------------------------------------------


def test_the_hash_of_a_file_stands_at_its_position_in_the_table(files, tmp_path):
    node = nodes.FromFiles(patterns=(files[4], f"{tmp_path}/*.txt"), digest=digest_of(str(tmp_path)))
    table = listed(node)
    order = [4, *range(6)]
    assert table.items is not None
    assert table.items.array[np.array([0, 3])].tobytes() == sha256(b"content 4") + sha256(b"content 2")
    assert table.items.hashes == b"".join(sha256(b"content %d" % number) for number in order)
    source: Any = open_source(node, table, Reads())
    assert [element["bytes"] for element in source.fetch(range(7))] == [b"content %d" % number for number in order]


@given(piece=st.integers(1, 40_000))
def test_a_piece_of_a_shard_has_its_members(piece, tmp_path_factory, make_tar):
    folder = tmp_path_factory.mktemp("pieces")
    path = write(folder / "a.tar", make_tar(MEMBERS))
    node = nodes.FromWebDataset(patterns=(path,), digest=digest_of(path))
    table = webdataset.list_source(node, Reads(), size=piece)
    assert table.items is not None
    first = 0
    for entry, split in enumerate(table.splits):
        contents = [sha256(data) for _, data in MEMBERS[first : first + 2 * split.count]]
        assert table.items.array[table.items.rows(entry)].tobytes() == b"".join(contents)
        first += 2 * split.count
    assert first == len(MEMBERS)


@given(piece=st.integers(1, 2000), chunk=st.integers(1, 20))
def test_a_piece_of_records_has_them(piece, chunk, tmp_path_factory, make_tfrecords, read_all):
    path = write(tmp_path_factory.mktemp("pieces") / "a.tfrecord", make_tfrecords(RECORDS))
    node = nodes.FromTFRecords(patterns=(path,), digest=digest_of(path))
    table = tfrecord.list_source(node, Reads(), size=piece)
    assert table.items is not None
    found = [table.items.array[table.items.rows(entry)].tobytes() for entry in range(len(table.splits))]
    assert b"".join(found) == b"".join(map(sha256, RECORDS))
    assert read_all(node, table, chunk) == RECORDS


def test_a_row_group_has_the_column_chunks_of_its_file(rows, read_all):
    node = FromParquet(patterns=(rows,), digest=digest_of(rows))
    table = listed(node)
    assert table.items is not None
    with open(rows, "rb") as file:
        data = file.read()
    places = zip(table.items.offsets, table.items.sizes, map(bytes, table.items.array), strict=True)
    assert all(sha256(data[start : start + size]) == known for start, size, known in places)
    assert [table.items.rows(entry) for entry in range(4)] == [slice(0, 8)] * 4
    assert [row["id"] for row in read_all(node, table)] == list(range(100))


def test_every_format_reads_the_same_with_a_digest(shard, records, rows, files, tmp_path, make_tar):
    packed = write(tmp_path / "b.tar.gz", gzip.compress(make_tar(MEMBERS)))
    digest = digest_of(str(tmp_path))
    pairs = [(mr.Dataset.from_files(files, digest=known), known) for known in (None, digest)] + [
        (mr.Dataset.from_webdataset([shard, packed], digest=known), known) for known in (None, digest)
    ]
    pairs += [(mr.Dataset.from_webdataset(shard, random_access=True, digest=known), known) for known in (None, digest)]
    pairs += [(mr.Dataset.from_tfrecords(records, digest=known), known) for known in (None, digest)]
    pairs += [(mr.Dataset.from_parquet(rows, columns=["text"], digest=known), known) for known in (None, digest)]
    found = [list(dataset.shuffle(30, seed=3).batch(4)) for dataset, _ in pairs]
    for without, known in zip(found[::2], found[1::2], strict=True):
        assert len(without) > 1
        assert str(without) == str(known)


def test_states_and_caches_do_not_depend_on_a_digest(files, tmp_path):
    graphs = [Graph(nodes.FromFiles(patterns=tuple(files), digest=digest)) for digest in ("", digest_of(str(tmp_path)))]
    assert serialize.outline(graphs[0]) == serialize.outline(graphs[1])
    assert str(vars(serialize.unpack(serialize.pack(graphs[1])[0]).root)) == str(vars(graphs[1].root))
    known, unknown = (
        mr.Dataset.from_files(files, digest=digest).shuffle(6, seed=1) for digest in (digest_of(str(tmp_path)), None)
    )
    half, elements = iter(known), list(unknown)
    assert [next(half) for _ in range(3)] == elements[:3]
    rest = iter(unknown)
    rest.load_state_dict(half.state_dict())
    assert list(rest) == elements[3:]


# -- what has changed --------------------------------------------------------------------------------------------------


def test_a_file_of_another_content_is_named_as_it_is_read(files, tmp_path):
    digest = digest_of(str(tmp_path))
    for touch in (False, True):
        damaged(files[3], b"content 3", b"content X", touch=touch)
        elements = iter(mr.Dataset.from_files(files, digest=digest))
        with pytest.raises(SourceChangedError, match=rf"3\.txt is not what {digest} says") as error:
            list(elements)
        assert sha256(b"content 3").hex() not in str(error.value)
        damaged(files[3], b"content X", b"content 3")


@pytest.mark.parametrize("random_access", [False, True])
def test_a_member_of_another_content_is_named(shard, random_access):
    digest = digest_of(shard)
    damaged(shard, b"17 b", b"71 b")
    elements = mr.Dataset.from_webdataset(shard, random_access=random_access, digest=digest)
    with pytest.raises(SourceChangedError, match=r"a\.tar, record 17, '017\.b' is not what"):
        list(elements)


@pytest.mark.parametrize("random_access", [False, True])
def test_empty_members_are_known_wherever_they_lie(tmp_path, make_tar, random_access):
    members = [(f"{n}.{kind}", b"" if kind == "txt" or n == 0 else b"x") for n in range(3) for kind in ("jpg", "txt")]
    path = str(tmp_path / "empty.tar")
    with open(path, "wb") as file:
        file.write(make_tar(members))
    elements = mr.Dataset.from_webdataset(path, random_access=random_access, digest=digest_of(path))
    assert [(each["jpg"], each["txt"]) for each in elements] == [(b"", b""), (b"x", b""), (b"x", b"")]


def test_a_member_that_lies_elsewhere_is_named(shard, make_tar):
    digest = digest_of(shard)
    other = make_tar([("00.a", b""), *MEMBERS[1:-1]])
    size = os.path.getsize(shard)
    write_to = other[:-1024].ljust(size, b"\0")
    assert len(write_to) == size
    with open(shard, "wb") as file:
        file.write(write_to)
    with pytest.raises(SourceChangedError, match="record 0"):
        list(mr.Dataset.from_webdataset(shard, digest=digest))


def test_a_record_of_another_content_is_named(records, make_tfrecords):
    digest = digest_of(records)
    others = [*RECORDS[:20], bytes(len(RECORDS[20])), *RECORDS[21:]]
    with open(records, "wb") as file:
        file.write(make_tfrecords(others))
    with pytest.raises(SourceChangedError, match=r"a\.tfrecord, record 20 is not what"):
        list(mr.Dataset.from_tfrecords(records, digest=digest))


def test_a_column_chunk_of_another_content_is_named(rows):
    digest = digest_of(rows)
    table = listed(FromParquet(patterns=(rows,), digest=digest))
    assert table.items is not None
    at = int(table.items.starts[5]) + 3
    with open(rows, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(rows, LONG_AGO)
    assert len(list(mr.Dataset.from_parquet(rows, columns=["id"], digest=digest))) == 100
    with pytest.raises(SourceChangedError, match=r"a\.parquet, the column chunk at byte \d+ is not what"):
        list(mr.Dataset.from_parquet(rows, digest=digest))


def test_another_size_is_found_at_the_listing(files, shard, tmp_path):
    digest = digest_of(str(tmp_path))
    for path in (files[2], shard):
        with open(path, "ab") as file:
            file.write(bytes(512))
    with pytest.raises(SourceChangedError, match=r"2\.txt has changed since .* it had 9 bytes, and has 521 bytes"):
        listed(nodes.FromFiles(patterns=tuple(files), digest=digest))
    with pytest.raises(SourceChangedError, match=r"a\.tar has changed since"):
        listed(nodes.FromWebDataset(patterns=(shard,), digest=digest))


def test_another_version_in_a_store_is_found_at_the_listing(bucket):
    storage.write(f"{bucket}a.txt", b"one")
    digest = digest_of(f"{bucket}a.txt")
    storage.write(f"{bucket}a.txt", b"two")
    with pytest.raises(SourceChangedError, match=r"a\.txt has changed .* has another version"):
        listed(nodes.FromFiles(patterns=(f"{bucket}*",), digest=digest))


def test_a_time_of_its_own_says_nothing_of_a_copy_that_is_compared(files, shard, rows, tmp_path, make_tar):
    packed = write(tmp_path / "b.tar.gz", gzip.compress(make_tar(MEMBERS)))
    digest = digest_of(str(tmp_path))
    for path in (*files, shard, rows, packed):
        os.utime(path, (10**9, 3 * 10**9))
    assert len(list(mr.Dataset.from_files(files, digest=digest))) == 6
    assert len(list(mr.Dataset.from_webdataset(shard, digest=digest))) == 40
    for dataset in (mr.Dataset.from_parquet(rows, digest=digest), mr.Dataset.from_webdataset(packed, digest=digest)):
        with pytest.raises(SourceChangedError, match="another version"):
            list(dataset)


# -- digests that do not fit -------------------------------------------------------------------------------------------


def test_files_that_a_digest_does_not_have_are_warned_of_and_read(files, tmp_path, caplog):
    digest = digest_of(str(tmp_path))
    more = write(tmp_path / "new.txt", b"new")
    with caplog.at_level(logging.WARNING):
        table = listed(nodes.FromFiles(patterns=(f"{tmp_path}/*.txt",), digest=digest))
    assert "does not have 1 of the 7 files that were listed, such as" in caplog.text
    assert more in caplog.text
    assert table.items is not None
    assert table.items.array[6].tobytes() == UNKNOWN
    assert len(list(mr.Dataset.from_files(f"{tmp_path}/*.txt", digest=digest))) == 7


def test_shards_that_a_digest_does_not_have_are_read(shard, tmp_path, make_tar, caplog):
    digest = digest_of(shard)
    write(tmp_path / "b.tar", make_tar(MEMBERS[:4]))
    assert len(list(mr.Dataset.from_webdataset(f"{tmp_path}/*.tar", digest=digest))) == 42
    assert "b.tar" in caplog.text


def test_the_digest_of_another_data_set_is_refused(files, shard, tmp_path):
    (tmp_path / "other").mkdir()
    write(tmp_path / "other" / "0.txt", b"content 0")
    digest = digest_of(f"{tmp_path}/other")
    for node in (
        nodes.FromFiles(patterns=tuple(files), digest=digest),
        nodes.FromWebDataset(patterns=(shard,), digest=digest),
    ):
        with pytest.raises(PipelineError, match=r"is the digest of another data set: it has none of the"):
            listed(node)


def test_a_digest_of_other_items_is_refused(shard):
    digest = digest_of(shard)
    with pytest.raises(PipelineError, match=r"by members of tar archives, and read by files .* --items file"):
        listed(nodes.FromFiles(patterns=(shard,), digest=digest))
    digest = digest_of(shard, kind=ItemKind.FILE)
    with pytest.raises(PipelineError, match="--items member"):
        listed(nodes.FromWebDataset(patterns=(shard,), digest=digest))


def test_a_digest_of_other_columns_is_refused(rows):
    digest = digest_of(rows, columns=("id",))
    assert len(list(mr.Dataset.from_parquet(rows, columns=["id"], digest=digest))) == 100
    for columns in (None, ("id", "text")):
        with pytest.raises(PipelineError, match=r"digest of the columns id alone, and .* read: make it with"):
            listed(FromParquet(patterns=(rows,), columns=columns, digest=digest))


@pytest.mark.parametrize("chosen", ["", 3, b"a.digest"])
def test_what_can_be_no_digest_is_refused_where_it_is_given(chosen):
    with pytest.raises(PipelineError, match=r"from_files\(digest=\) takes the path or URL of a file"):
        mr.Dataset.from_files("a", digest=chosen)


def test_a_path_is_taken_from_where_it_was_written(files, tmp_path, monkeypatch):
    with Reads() as reads:
        make_digest([str(tmp_path)], f"{tmp_path}/a.digest", reads)
    monkeypatch.chdir(tmp_path)
    dataset = mr.Dataset.from_files("?.txt", digest="a.digest")
    monkeypatch.chdir("/")
    assert len(list(dataset)) == 6


def test_no_digest_or_a_damaged_one_is_said(files, tmp_path):
    (tmp_path / "a.digest").write_bytes(b"x" * 100)
    with pytest.raises(SourceCorruptError, match=r"a\.digest can't be read as a digest"):
        list(mr.Dataset.from_files(files, digest=tmp_path / "a.digest"))
    with pytest.raises(SourceNotFoundError, match=r"b\.digest does not exist"):
        list(mr.Dataset.from_files(files, digest=tmp_path / "b.digest"))
