import gzip
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SourceCorruptError
from millrace.graph import nodes
from millrace.sources import describe, list_source, storage, webdataset
from millrace.sources.packs.pack_plan import split_name
from millrace.sources.reads import Reads

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
MEMBERS = [
    (f"d/{i:04d}.{field}", bytes([i % 256]) * (i * 91 % 1500))
    for i in range(120)
    for field in (("jpg", "cls", "seg.png") if i % 3 else ("jpg",))
]


def group(members):
    samples: dict[str, dict[str, Any]] = {}
    for name, data in members:
        key, _, field = name.partition(".")
        samples.setdefault(key, {"__key__": key})[field] = data
    return list(samples.values())


SAMPLES = group(MEMBERS)


@pytest.fixture
def read_bytes(tmp_path, read_all):
    def read(data, name="a.tar"):
        (tmp_path / name).write_bytes(data)
        node = nodes.FromWebDataset(patterns=(f"{tmp_path}/{name}",))
        return read_all(node, list_source(node, Reads()))

    return read


@pytest.fixture(scope="module")
def archive(tmp_path_factory, make_tar):
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    path.write_bytes(make_tar(MEMBERS))
    return str(path)


@pytest.fixture(scope="module")
def gzipped(tmp_path_factory, make_tar):
    path = tmp_path_factory.mktemp("tgz") / "a.tar.gz"
    path.write_bytes(gzip.compress(make_tar(MEMBERS)))
    return str(path)


@given(piece=st.integers(1, 100_000), chunk=st.integers(1, 50))
def test_pieces_of_any_size_cover_every_sample_once(archive, piece, chunk, read_all):
    node = nodes.FromWebDataset(patterns=(archive,))
    table = webdataset.list_source(node, Reads(), size=piece)
    assert table.count == len(SAMPLES)
    assert read_all(node, table, chunk) == SAMPLES
    first = 0
    for split in table.splits:
        assert split.first_record == first
        first += split.count


@given(
    start=st.integers(0, 120), length=st.integers(0, 120) | st.just(-1), chunk=st.integers(1, 50), whole=st.booleans()
)
def test_parts_of_a_split_are_slices(archive, gzipped, start, length, chunk, whole, read_all):
    node = nodes.FromWebDataset(patterns=(gzipped if whole else archive,))
    table = webdataset.list_source(node, Reads(), size=1 << 30)
    assert table.count == (-1 if whole else len(SAMPLES))
    stop = -1 if length < 0 else min(start + length, len(SAMPLES))
    expected = SAMPLES[start:] if stop < 0 else SAMPLES[start:stop]
    assert read_all(node, table, chunk, start, stop) == expected


@pytest.mark.parametrize("tar_format", FORMATS)
def test_formats(tmp_path, make_tar, tar_format, read_bytes):
    long = "folder/" * 13 + "n" * 90
    members = [("a.txt", b"1"), (f"{long}.txt", b"22"), (f"{long}.cls", b"3"), ("b.txt", b"")]
    assert read_bytes(make_tar(members, tar_format=FORMATS[tar_format])) == group(members)


@pytest.mark.parametrize("tar_format", ["gnu", "pax"])
def test_long_and_foreign_names(tmp_path, make_tar, tar_format, read_all):
    members = [("x" * 600 + ".txt", b"1"), ("größe-日本.txt", b"2"), ("ü" * 200 + ".txt", b"3")]
    for piece in (1, 1 << 20):
        (tmp_path / "a.tar").write_bytes(make_tar(members, tar_format=FORMATS[tar_format]))
        node = nodes.FromWebDataset(patterns=(f"{tmp_path}/a.tar",))
        table = webdataset.list_source(node, Reads(), size=piece)
        assert len(table.splits) == (3 if piece == 1 else 1)
        assert read_all(node, table) == group(members)


def test_sizes_beyond_octal(tmp_path, make_tar, read_bytes):
    data = bytearray(make_tar([("a.txt", b"hello")]))
    data[124:136] = b"\x80" + (5).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    assert read_bytes(bytes(data)) == [{"__key__": "a", "txt": b"hello"}]


def test_signed_checksums_of_old_writers(tmp_path, make_tar, read_bytes):
    data = bytearray(make_tar([("ä.txt", b"hello")], tar_format=tarfile.GNU_FORMAT))
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in data[:512])
    assert read_bytes(bytes(data)) == [{"__key__": "ä", "txt": b"hello"}]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a.seg.PNG", ("a", "seg.png")),
        ("v1.2/a.jpg", ("v1.2/a", "jpg")),
        ("./a.jpg", ("./a", "jpg")),
        ("a", None),
        ("v1.2/a", None),
        (".hidden", None),
        ("d/.hidden", None),
        ("__meta__/info.json", None),
        ("__worker__.json", ("__worker__", "json")),
        ("__a.json", ("__a", "json")),
        ("a.", ("a", "")),
    ],
)
def test_names_are_split_as_webdataset_splits_them(path, expected):
    assert split_name(path) == expected


def test_what_is_no_sample_is_left_out(tmp_path, make_tar, read_bytes):
    members = [
        ("README", b"no dot"),
        ("a.txt", b"1"),
        ("__meta__/x.json", b"{}"),
        ("a.cls", b"2"),
        (".DS_Store", b"x"),
        ("b.txt", b"3"),
        ("LICENSE", b""),
    ]
    expected = [{"__key__": "a", "txt": b"1", "cls": b"2"}, {"__key__": "b", "txt": b"3"}]
    data = make_tar(members, folders=["d", "e.x"])
    assert read_bytes(data) == expected
    assert read_bytes(gzip.compress(data), "b.tgz") == expected
    (tmp_path / "only.tar").write_bytes(make_tar([("README", b"")]))
    assert list_source(nodes.FromWebDataset(patterns=(f"{tmp_path}/only.tar",)), Reads()).count == 0


def test_links_have_no_data(tmp_path, read_all):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        (tmp_path / "a.txt").write_bytes(b"1" * 1000)
        archive.add(tmp_path / "a.txt", "a.txt")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo("b.txt")
            link.type, link.linkname, link.size = kind, "a.txt", 1000
            archive.addfile(link)
        archive.add(tmp_path / "a.txt", "c.txt")
    node = nodes.FromWebDataset(patterns=(f"{tmp_path}/a.tar",))
    assert [sample["__key__"] for sample in read_all(node, list_source(node, Reads()))] == ["a", "c"]


@pytest.mark.parametrize("kind", ["gnu", "pax"])
def test_sparse_files_are_refused(tmp_path, read_bytes, kind):
    with tarfile.open(tmp_path / "made.tar", "w", format=FORMATS[kind]) as archive:
        member = tarfile.TarInfo("a.npy")
        if kind == "gnu":
            member.type = tarfile.GNUTYPE_SPARSE
        else:
            member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "a.npy"}
        archive.addfile(member)
    with pytest.raises(SourceCorruptError, match=r"a\.tar, member 0: it is a sparse file.* without --sparse"):
        read_bytes((tmp_path / "made.tar").read_bytes())


def test_two_files_of_one_field(tmp_path, make_tar, read_bytes):
    with pytest.raises(SourceCorruptError, match=r"a\.tar, record 1: two files 'b\.TXT'"):
        read_bytes(make_tar([("a.txt", b""), ("b.txt", b"1"), ("b.TXT", b"2")]))


def test_braces(tmp_path, make_tar, read_all):
    for i in range(3):
        (tmp_path / f"s-{i:03d}.tar").write_bytes(make_tar([(f"{i}.txt", b"x")]))
    node = nodes.FromWebDataset(patterns=(f"{tmp_path}/s-{{000..002}}.tar",))
    table = list_source(node, Reads())
    assert [sample["__key__"] for sample in read_all(node, table)] == ["0", "1", "2"]
    assert describe(node, table, 2, 0) == f"{tmp_path}/s-002.tar, record 0"


def test_describe_counts_from_the_start_of_the_file(archive):
    node = nodes.FromWebDataset(patterns=(archive,))
    table = webdataset.list_source(node, Reads(), size=10_000)
    assert describe(node, table, 1, 2) == f"{archive}, record {table.splits[0].count + 2}"


def test_remote(bucket, make_tar, read_all):
    storage.write(bucket + "a.tar", make_tar(MEMBERS))
    storage.write(bucket + "b.tar.gz", gzip.compress(make_tar(MEMBERS)))
    node = nodes.FromWebDataset(patterns=(bucket + "*",))
    table = list_source(node, Reads())
    assert (table.count, len(table.splits)) == (-1, 2)
    assert read_all(node, table) == SAMPLES * 2
    assert read_all(node, table, start=100) == SAMPLES[100:] * 2


def test_an_archive_without_end_blocks_is_whole(tmp_path, make_tar, read_bytes):
    data = make_tar([("a.txt", b"1"), ("b.txt", b"2")])[: 4 * 512]
    assert len(read_bytes(data)) == 2
    assert len(read_bytes(gzip.compress(data), "a.tgz")) == 2


ENDS = [*range(1, 512, 100), 512, 513, 1511, 1512, 1535, 1537, 3000]


@pytest.mark.parametrize("cut", ENDS)
@pytest.mark.parametrize("tar_format", FORMATS)
def test_truncated(tmp_path, bucket, make_tar, cut, tar_format, read_all):
    # each member: 512 bytes of header, 1000 of data, 24 of padding
    data = make_tar([(f"{i}.bin", b"x" * 1000) for i in range(3)], tar_format=FORMATS[tar_format])[:cut]
    (tmp_path / "a.tar").write_bytes(data)
    (tmp_path / "a.tgz").write_bytes(gzip.compress(data))
    storage.write(bucket + "a.tar", data)
    for place in (f"{tmp_path}/a.tar", f"{tmp_path}/a.tgz", bucket + "a.tar"):
        node = nodes.FromWebDataset(patterns=(place,))
        with pytest.raises(SourceCorruptError) as caught:
            read_all(node, list_source(node, Reads()))
        message = str(caught.value)
        assert message.startswith(f"{place} is truncated: it ends within ")
        if cut > 1536:
            assert "1, whose header is at byte 1536" in message or "record 1, in '1.bin'" in message


def test_truncated_after_listing(tmp_path, make_tar, read_all):
    path = tmp_path / "a.tar"
    data = make_tar([(f"{i}.bin", b"x" * 1000) for i in range(3)])
    path.write_bytes(data)
    node = nodes.FromWebDataset(patterns=(str(path),))
    table = webdataset.list_source(node, Reads(), size=1)
    path.write_bytes(data[: 1536 + 700])
    with pytest.raises(SourceCorruptError, match=r"ends within record 1, in '1.bin', whose header is at byte 1536$"):
        read_all(node, table)
    path.write_bytes(data[:1536])
    with pytest.raises(SourceCorruptError, match="ends before sample 1, which was there when it was listed"):
        read_all(node, table)


@pytest.mark.parametrize(
    "data", [b"garbage " * 200, b"\x00" * 100 + b"\xff" * 1000, gzip.compress(b"x" * 10000, mtime=0)]
)
def test_garbage(tmp_path, bucket, data, read_all):
    data = data.ljust(600, b"z")
    (tmp_path / "a.tar").write_bytes(data)
    storage.write(bucket + "a.tar", data)
    for place in (f"{tmp_path}/a.tar", bucket + "a.tar"):
        node = nodes.FromWebDataset(patterns=(place,))
        with pytest.raises(SourceCorruptError, match=rf"^{place} is not a tar archive: its first 512 bytes"):
            read_all(node, list_source(node, Reads()))


def test_an_empty_file_is_no_archive(tmp_path, read_bytes):
    with pytest.raises(SourceCorruptError, match=r"a\.tar is truncated: it ends within its first member"):
        read_bytes(b"")


def test_a_damaged_header(tmp_path, make_tar, read_bytes):
    data = bytearray(make_tar([(f"{i}.bin", b"x" * 1000) for i in range(3)]))
    data[1536 + 5] ^= 0xFF
    with pytest.raises(SourceCorruptError, match=r"a\.tar, member 1: damaged header at byte 1536"):
        read_bytes(bytes(data))


def test_closing_the_iterator_closes_the_file(archive, check_closes):
    check_closes(nodes.FromWebDataset(patterns=(archive,)))
