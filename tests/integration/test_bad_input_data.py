"""Data that is missing or damaged: what is said, in process and by a service, which goes on serving."""

import gzip
import io
import re
import struct
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def service():
    with mr.LocalService(max_workers=1) as service:
        yield service


@pytest.fixture(params=["in process", "on a service"])
def read(request, service):
    """Reads a whole epoch; on a service, the service must be as good as new afterwards."""
    if request.param == "in process":
        yield list
        return

    def far(dataset):
        with dataset.distribute(service.address) as there:
            return list(there)

    yield far
    assert sorted(far(mr.Dataset.range(10))) == list(range(10))


def checksum(data):
    """The masked CRC-32C of the TFRecord format."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecords(path, count, *, compress=False):
    frames = []
    for number in range(count):
        data = f"record {number}".encode() * 20
        size = struct.pack("<Q", len(data))
        frames.append(size + checksum(size) + data + checksum(data))
    content = b"".join(frames)
    path.write_bytes(gzip.compress(content, mtime=0) if compress else content)
    return path


def tar(path, count):
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
        for number in range(count):
            data = np.random.default_rng(number).bytes(3000)
            info = tarfile.TarInfo(f"{number:04}.bin")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def parquet(path, rows):
    values = np.random.default_rng(0).integers(0, 1 << 60, rows)
    pq.write_table(pa.table({"x": values}), path, row_group_size=rows // 4, compression="zstd", use_dictionary=False)
    return path


def cut(path, keep):
    """Keeps the beginning of a file: a part of it, or so many bytes."""
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])


SOURCES = [mr.Dataset.from_files, mr.Dataset.from_tfrecords, mr.Dataset.from_webdataset, mr.Dataset.from_parquet]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_a_missing_file_is_named_with_what_is_there(source, read, tmp_path):
    (tmp_path / "train").mkdir()
    missing = tmp_path / "train" / "part-0.bin"
    said = f"{missing} does not exist: the folder '{tmp_path / 'train'}' exists, but has nothing that matches"
    with pytest.raises(mr.SourceNotFoundError, match=re.escape(said)) as caught:
        read(source(str(missing)))
    assert isinstance(caught.value, FileNotFoundError)


def test_a_pattern_that_matches_nothing_says_how_far_it_matched(read, tmp_path):
    (tmp_path / "images").mkdir()
    pattern = f"{tmp_path}/images/*/*.jpg"
    said = f"{pattern!r} matches no file: the folder '{tmp_path}/images' exists, but has nothing that matches '*'"
    with pytest.raises(mr.SourceNotFoundError, match=re.escape(said)):
        read(mr.Dataset.from_files(pattern))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
@pytest.mark.parametrize(("patterns", "said"), [("", "is empty; name a file"), ([], "at least one path or pattern")])
def test_no_pattern_at_all_is_refused_where_it_is_written(source, patterns, said):
    with pytest.raises(mr.PipelineError, match=f"{source.__name__}.*{said}"):
        source(patterns)


def test_a_tfrecord_file_that_is_cut_off_is_found_as_it_is_listed(read, tmp_path):
    path = tfrecords(tmp_path / "a.tfrecord", 10)
    cut(path, 0.75)
    with pytest.raises(mr.SourceCorruptError, match=rf"{re.escape(str(path))}.*truncated.*record 7"):
        read(mr.Dataset.from_tfrecords(str(path)))


def test_a_tfrecord_file_that_is_cut_off_within_its_compression(read, tmp_path):
    path = tfrecords(tmp_path / "a.tfrecord.gz", 50, compress=True)
    cut(path, 0.9)
    with pytest.raises(mr.SourceCorruptError, match=rf"{re.escape(str(path))}.*truncated"):
        read(mr.Dataset.from_tfrecords(str(path)))


def test_a_damaged_record_is_named_by_its_number(read, tmp_path):
    path = tfrecords(tmp_path / "a.tfrecord", 10)
    content = bytearray(path.read_bytes())
    content[content.index(b"record 6") - 12] ^= 1  # in its length
    path.write_bytes(content)
    with pytest.raises(mr.SourceCorruptError, match=rf"{re.escape(str(path))}.*record 6"):
        read(mr.Dataset.from_tfrecords(str(path)))


@pytest.mark.parametrize("name", ["shard.tar", "shard.tar.gz"])
def test_a_tar_file_that_is_cut_off(name, read, tmp_path):
    path = tar(tmp_path / name, 12)
    cut(path, 0.6)
    with pytest.raises(mr.SourceCorruptError, match=rf"{re.escape(str(path))} is truncated"):
        read(mr.Dataset.from_webdataset(str(path)))


def test_a_parquet_file_that_is_cut_off(read, tmp_path):
    path = parquet(tmp_path / "rows.parquet", 1000)
    cut(path, 0.5)
    said = rf"{re.escape(str(path))} is no Parquet file, truncated or damaged"
    with pytest.raises(mr.SourceCorruptError, match=said):
        read(mr.Dataset.from_parquet(str(path)))


def test_a_parquet_file_that_is_damaged_in_its_middle(read, tmp_path):
    path = parquet(tmp_path / "rows.parquet", 1000)
    content = bytearray(path.read_bytes())
    middle = pq.ParquetFile(path).metadata.row_group(2).column(0)
    begin = middle.data_page_offset
    content[begin : begin + 200] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(mr.SourceCorruptError, match=rf"{re.escape(str(path))}.*is damaged in row group 2"):
        read(mr.Dataset.from_parquet(str(path)))


@pytest.mark.parametrize(
    ("write", "source"),
    [
        (lambda folder: tfrecords(folder / "a.tfrecord", 50), mr.Dataset.from_tfrecords),
        (lambda folder: tar(folder / "a.tar", 50), mr.Dataset.from_webdataset),
        (lambda folder: parquet(folder / "a.parquet", 1000), mr.Dataset.from_parquet),
        (lambda folder: parquet(folder / "a.bin", 1000), mr.Dataset.from_files),
    ],
    ids=["tfrecord", "tar", "parquet", "files"],
)
@pytest.mark.parametrize("change", ["cut", "gone"])
def test_a_file_that_changes_after_it_was_listed(write, source, change, tmp_path):
    path = write(tmp_path)
    dataset = source(str(path))
    dataset.__pipeline__().tables()
    if change == "gone":
        path.unlink()
        with pytest.raises(mr.SourceNotFoundError, match=re.escape(str(path))):
            list(dataset)
        return
    cut(path, 0.6)
    if source == mr.Dataset.from_files:
        assert [len(each["bytes"]) for each in dataset] == [path.stat().st_size]  # as good as any other content
    else:
        with pytest.raises(mr.SourceCorruptError, match=rf"{re.escape(str(path))}.*(truncated|damaged|changed)"):
            list(dataset)


@pytest.mark.parametrize("rows", [5, 200], ids=["shorter", "longer"])
@pytest.mark.parametrize("kind", ["csv", "text", "gzip", "parquet", "records"])
def test_a_file_that_is_written_anew_after_it_was_listed(kind, rows, tmp_path):
    def write(count):
        text = "".join(f"{1000 * count + number}\n" for number in range(count)).encode()
        path = tmp_path / f"a.{kind}"
        if kind == "parquet":
            pq.write_table(pa.table({"x": range(count)}), path, row_group_size=10)
        elif kind == "records":
            path.write_bytes(bytes(4 + 3 * count + 7))
        else:
            path.write_bytes(gzip.compress(text) if kind == "gzip" else text)
        return str(path)

    sources = {
        "csv": lambda path: mr.Dataset.from_csv(path, names=["x"]),
        "text": mr.Dataset.from_text,
        "gzip": lambda path: mr.Dataset.from_text(path, compression="GZIP"),
        "parquet": mr.Dataset.from_parquet,
        "records": lambda path: mr.Dataset.from_fixed_length_records(path, 3, header_bytes=4, footer_bytes=7),
    }
    path = write(13)
    dataset = sources[kind](path)
    assert len(list(dataset)) == 13
    write(rows)
    with pytest.raises(mr.SourceChangedError, match=rf"{re.escape(path)} has changed since it was listed"):
        list(dataset)
    assert len(list(sources[kind](path))) == rows


@pytest.mark.parametrize("on_error", ["skip", lambda error: b""], ids=["skip", "function"])
def test_damaged_data_is_never_skipped(on_error, read, tmp_path):
    path = tfrecords(tmp_path / "a.tfrecord.gz", 50, compress=True)
    cut(path, 0.9)
    pipeline = mr.Dataset.from_tfrecords(str(path)).map(len).with_options(on_error=on_error)
    with pytest.raises(mr.SourceCorruptError, match=re.escape(str(path))):
        read(pipeline)
    missing = mr.Dataset.from_files(f"{tmp_path}/nothing.bin").with_options(on_error=on_error)
    with pytest.raises(mr.SourceNotFoundError, match=r"nothing\.bin"):
        read(missing)


def test_missing_data_of_a_nested_dataset_says_which_element_asked_for_it(read, tmp_path):
    (tmp_path / "0.bin").write_bytes(b"0")

    def open_path(path):
        return mr.Dataset.from_files(path)

    paths = [str(tmp_path / f"{number}.bin") for number in range(2)]
    pipeline = mr.Dataset.from_list(paths).flat_map(open_path)
    with pytest.raises(mr.SourceNotFoundError, match=r"1\.bin does not exist") as caught:
        read(pipeline)
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert re.search(r"in flat_map\(.*open_path\) of item 1", told), told
