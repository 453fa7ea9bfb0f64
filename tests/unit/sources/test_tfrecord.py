import gzip
import sys
import types
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import PipelineError, SourceCorruptError, SourceNotFoundError
from millrace.graph import nodes
from millrace.sources import crc32c as crc
from millrace.sources import describe, list_source, storage, tfrecord
from millrace.sources.reads import Reads

WRITTEN_BY_TENSORFLOW = bytes.fromhex(
    "000000000000000029039807d8ea82a20500000000000000eab2043e68656c6c6fbb1f1c194001000000000000"
    "2ee7644d" + b"millrace".hex() * 40 + "44a664e5"
)
RECORDS = [bytes([i]) * (i * 37 % 400) for i in range(200)]


@pytest.fixture(scope="module")
def many(tmp_path_factory, make_tfrecords):
    path = tmp_path_factory.mktemp("tfrecord") / "many.tfrecord"
    path.write_bytes(make_tfrecords(RECORDS))
    return str(path)


@pytest.fixture(params=[False, True], ids=["lengths", "data"])
def with_data_checksums(request, monkeypatch, reference_crc32c):
    crc.fast_crc32c.cache_clear()
    for name in ("google_crc32c", "crc32c"):
        monkeypatch.setitem(sys.modules, name, None)
    if request.param:
        module = types.ModuleType("crc32c")
        monkeypatch.setattr(module, "crc32c", reference_crc32c, raising=False)
        monkeypatch.setitem(sys.modules, "crc32c", module)
    yield request.param
    crc.fast_crc32c.cache_clear()


def test_a_file_of_tensorflow(tmp_path, make_tfrecords, with_data_checksums, read_all):
    records = [b"", b"hello", b"millrace" * 40]
    assert make_tfrecords(records) == WRITTEN_BY_TENSORFLOW
    (tmp_path / "a").write_bytes(WRITTEN_BY_TENSORFLOW)
    node = nodes.FromTFRecords(patterns=(f"{tmp_path}/a",))
    assert read_all(node, list_source(node, Reads())) == records


@given(piece=st.integers(1, 20_000), chunk=st.integers(1, 50))
def test_pieces_of_any_size_cover_every_record_once(many, piece, chunk, read_all):
    node = nodes.FromTFRecords(patterns=(many,))
    table = tfrecord.list_source(node, Reads(), size=piece)
    assert table.count == len(RECORDS)
    assert not table.cheap
    assert [split.first_record for split in table.splits] == [
        sum(split.count for split in table.splits[:k]) for k in range(len(table.splits))
    ]
    assert table.bytes == sum(len(record) + 16 for record in RECORDS)
    assert read_all(node, table, chunk) == RECORDS


@given(
    start=st.integers(0, 210), length=st.integers(0, 210) | st.just(-1), chunk=st.integers(1, 60), whole=st.booleans()
)
def test_parts_of_a_split_are_slices(many, start, length, chunk, whole, gzipped, read_all):
    path = gzipped if whole else many
    node = nodes.FromTFRecords(patterns=(path,))
    table = tfrecord.list_source(node, Reads(), size=1 << 30)
    assert table.count == (-1 if whole else len(RECORDS))
    start = min(start, len(RECORDS))
    stop = -1 if length < 0 else min(start + length, len(RECORDS))
    expected = RECORDS[start:] if stop < 0 else RECORDS[start:stop]
    assert read_all(node, table, chunk, start, stop) == expected


@pytest.fixture(scope="module")
def gzipped(tmp_path_factory, make_tfrecords):
    path = tmp_path_factory.mktemp("gz") / "many.tfrecord.gz"
    path.write_bytes(gzip.compress(make_tfrecords(RECORDS)))
    return str(path)


@pytest.mark.parametrize(
    ("name", "compression", "compress"),
    [
        ("a.gz", None, gzip.compress),
        ("a", "GZIP", gzip.compress),
        ("a", "ZLIB", zlib.compress),
        ("a.gz", "", bytes),
        ("two.gz", None, lambda data: gzip.compress(data[:55]) + gzip.compress(data[55:])),
        ("padded.gz", None, lambda data: gzip.compress(data) + bytes(512)),
    ],
)
def test_compression(tmp_path, make_tfrecords, name, compression, compress, read_all):
    (tmp_path / name).write_bytes(compress(make_tfrecords(RECORDS)))
    node = nodes.FromTFRecords(patterns=(f"{tmp_path}/{name}",), compression=compression)
    table = list_source(node, Reads())
    assert table.count == (len(RECORDS) if compression == "" else -1)
    assert read_all(node, table) == RECORDS


def test_unknown_compression(many):
    with pytest.raises(PipelineError, match=r"compression='gzip'\): it must be None, '', 'GZIP' or 'ZLIB'"):
        list_source(nodes.FromTFRecords(patterns=(many,), compression="gzip"), Reads())


def test_empty_file(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    table = list_source(nodes.FromTFRecords(patterns=(f"{tmp_path}/a",)), Reads())
    assert (table.count, len(table.splits)) == (0, 0)


@given(cut=st.integers(1, 1000))
def test_truncated_when_listed(tmp_path_factory, make_tfrecords, cut):
    data = make_tfrecords([b"x" * 100] * 9)
    cut = len(data) - cut % len(data)
    number = cut // 116
    path = tmp_path_factory.mktemp("cut") / "a"
    path.write_bytes(data[:cut])
    node = nodes.FromTFRecords(patterns=(str(path),))
    if cut % 116 == 0:
        assert list_source(node, Reads()).count == number
        return
    with pytest.raises(SourceCorruptError) as caught:
        list_source(node, Reads())
    assert (
        str(caught.value) == f"{path} is truncated: it ends within record {number}, which begins at byte {number * 116}"
    )


@pytest.mark.parametrize("start", [0, 5, 8])
@pytest.mark.parametrize("cut", [1, 3, 50, 104, 110, 116 - 4, 115])
def test_truncated_when_read(tmp_path, make_tfrecords, cut, start, read_all):
    path = tmp_path / "a"
    data = make_tfrecords([b"x" * 100] * 9)
    path.write_bytes(data)
    node = nodes.FromTFRecords(patterns=(str(path),))
    table = list_source(node, Reads())
    path.write_bytes(data[:-cut])
    with pytest.raises(SourceCorruptError, match=rf"^{path} is truncated: it ends within record 8, .* byte 928$"):
        read_all(node, table, 4, start)


def test_truncated_at_a_record_after_listing(tmp_path, make_tfrecords, read_all):
    path = tmp_path / "a"
    path.write_bytes(make_tfrecords([b"x"] * 9))
    node = nodes.FromTFRecords(patterns=(str(path),))
    table = list_source(node, Reads())
    path.write_bytes(make_tfrecords([b"x"] * 5))
    with pytest.raises(SourceCorruptError, match=r"is truncated: it ends within record 5"):
        read_all(node, table)
    with pytest.raises(SourceCorruptError, match=r"is truncated: it ends within record 5"):
        read_all(node, table, start=7)


def test_truncated_gzip(tmp_path, make_tfrecords, read_all):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(make_tfrecords(RECORDS))[:-20])
    node = nodes.FromTFRecords(patterns=(str(path),))
    with pytest.raises(SourceCorruptError, match=rf"^{path} is truncated: its compressed data ends after \d+ inflated"):
        read_all(node, list_source(node, Reads()))


def test_not_gzip(tmp_path, make_tfrecords, read_all):
    path = tmp_path / "a.gz"
    path.write_bytes(make_tfrecords(RECORDS))
    node = nodes.FromTFRecords(patterns=(str(path),))
    with pytest.raises(SourceCorruptError, match=rf"^{path} is not a gzip file or is damaged"):
        read_all(node, list_source(node, Reads()))


@pytest.mark.parametrize("data", [b"garbage " * 100, b"\xff" * 12, gzip.compress(b"x" * 100, mtime=0)])
def test_garbage(tmp_path, bucket, data, read_all):
    (tmp_path / "a").write_bytes(data)
    storage.write(bucket + "a", data)
    for place in (f"{tmp_path}/a", bucket + "a"):
        node = nodes.FromTFRecords(patterns=(place,))
        with pytest.raises(SourceCorruptError, match=rf"^{place}, record 0: .*checksum: it is not a TFRecord file, or"):
            read_all(node, list_source(node, Reads()))


@pytest.mark.parametrize("start", [0, 3])
def test_a_damaged_length(tmp_path, bucket, make_tfrecords, start, read_all):
    data = bytearray(make_tfrecords([b"x" * 100] * 9))
    data[116 * 4 + 1] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(SourceCorruptError, match=r"a, record 4: the record's length does not match its checksum$"):
        list_source(nodes.FromTFRecords(patterns=(f"{tmp_path}/a",)), Reads())
    storage.write(bucket + "a", bytes(data))
    node = nodes.FromTFRecords(patterns=(bucket + "a",))
    with pytest.raises(SourceCorruptError, match=r"a, record 4: the record's length does not match its checksum$"):
        read_all(node, list_source(node, Reads()), start=start)


def test_damaged_data(tmp_path, make_tfrecords, with_data_checksums, read_all):
    data = bytearray(make_tfrecords([b"x" * 100] * 9))
    data[116 * 4 + 20] ^= 1
    (tmp_path / "a").write_bytes(data)
    node = nodes.FromTFRecords(patterns=(f"{tmp_path}/a",))
    table = list_source(node, Reads())
    if with_data_checksums:
        with pytest.raises(SourceCorruptError, match="a, record 4: the data do not match their checksum"):
            read_all(node, table)
    else:
        assert len(read_all(node, table)) == 9


def test_remote_files_are_one_split(bucket, make_tfrecords, read_all):
    storage.write(bucket + "a.tfrecord", make_tfrecords(RECORDS))
    node = nodes.FromTFRecords(patterns=(bucket + "a.tfrecord",))
    table = list_source(node, Reads())
    (split,) = table.splits
    assert (table.count, split.stop, split.first_record) == (-1, -1, 0)
    assert read_all(node, table) == RECORDS
    assert read_all(node, table, start=150) == RECORDS[150:]
    assert describe(node, table, 0, 17) == f"{bucket}a.tfrecord, record 17"


@pytest.mark.parametrize("index", ["a.tfrecord.idx", "a.tfrecord.index", "a.idx", "a.index"])
def test_remote_files_with_an_index_are_cut(bucket, make_tfrecords, index, read_all):
    storage.write(bucket + "a.tfrecord", make_tfrecords(RECORDS))
    lines, at = [], 0
    for record in RECORDS:
        lines.append(f"{at} {len(record) + 16}\n")
        at += len(record) + 16
    storage.write(bucket + index, "".join(lines).encode())
    node = nodes.FromTFRecords(patterns=(bucket + "a.tfrecord",))
    table = tfrecord.list_source(node, Reads(), size=2000)
    assert len(table.splits) > 5
    assert table.count == len(RECORDS)
    assert read_all(node, table) == RECORDS


def test_an_index_of_another_file_is_not_used(bucket, make_tfrecords, read_all):
    storage.write(bucket + "a", make_tfrecords(RECORDS))
    storage.write(bucket + "a.idx", b"0 20\n20 30\n")
    node = nodes.FromTFRecords(patterns=(bucket + "a",))
    with pytest.warns(UserWarning, match=r"a\.idx does not fit .*a \(it ends at byte 50 of \d+\) and is not used"):
        table = list_source(node, Reads())
    assert read_all(node, table) == RECORDS
    storage.write(bucket + "a.idx", b"\x00binary")
    assert len(list_source(node, Reads()).splits) == 1


def test_long_records(tmp_path, make_tfrecords, monkeypatch, read_all):
    monkeypatch.setattr(tfrecord, "_DOUBTFUL_BYTES", 1000)
    records = [b"a" * 5000, b"b", b"c" * 400_000]
    (tmp_path / "a").write_bytes(make_tfrecords(records))
    node = nodes.FromTFRecords(patterns=(f"{tmp_path}/a",))
    assert read_all(node, list_source(node, Reads())) == records


def test_missing(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"a\.tfrecord does not exist"):
        list_source(nodes.FromTFRecords(patterns=(f"{tmp_path}/a.tfrecord",)), Reads())


def test_closing_the_iterator_closes_the_file(many, check_closes):
    check_closes(nodes.FromTFRecords(patterns=(many,)))
