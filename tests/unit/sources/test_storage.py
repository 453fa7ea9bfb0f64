import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SourceError, SourceNotFoundError
from millrace.sources import storage
from millrace.sources.reads import Reads
from millrace.sources.store_requests import Entry

DATA = os.urandom(3 << 20)


@pytest.fixture(params=["local", "memory"])
def location(request, tmp_path, bucket):
    if request.param == "memory":
        storage.write(bucket + "data", DATA)
        return bucket + "data"
    (tmp_path / "data").write_bytes(DATA)
    return str(tmp_path / "data")


def test_read(location):
    assert storage.read(location) == DATA
    assert Reads().fetch([Entry(location), Entry(location, 0, len(DATA))]) == [DATA, DATA]


def test_read_range(location):
    assert storage.read_range(location, 5, 2_000_000) == DATA[5:2_000_000]
    assert storage.read_range(location, 7, 7) == b""
    assert storage.read_range(location, len(DATA) - 3, len(DATA) + 9) == DATA[-3:]


@given(
    start=st.integers(0, len(DATA)),
    length=st.integers(0, len(DATA)) | st.just(-1),
    steps=st.lists(st.tuples(st.integers(0, 1 << 20), st.booleans()), max_size=12),
)
def test_open_range_reads_and_seeks_as_a_file(start, length, steps, bucket_once, file_once):
    stop = -1 if length < 0 else min(len(DATA), start + length)
    end = len(DATA) if stop < 0 else stop
    for place in (file_once, bucket_once):
        with storage.open_range(place, start, stop) as stream:
            at = start
            assert stream.tell() == at
            for amount, seek in steps:
                if seek:
                    at += amount
                    stream.seek(at)
                else:
                    expected = DATA[at : min(at + amount, max(at, end))]
                    assert stream.read(amount) == expected
                    at += len(expected)
                assert stream.tell() == at


@pytest.fixture(scope="module")
def file_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("storage") / "data"
    path.write_bytes(DATA)
    return str(path)


@pytest.fixture(scope="module")
def bucket_once():
    storage.write("memory://test_storage/data", DATA)
    return "memory://test_storage/data"


def test_missing(tmp_path, bucket):
    for place in (str(tmp_path / "x"), bucket + "x"):
        for look in (
            storage.read,
            storage.stat,
            lambda at: storage.read_range(at, 0, 4),
            lambda at: storage.open_range(at).read(1),
        ):
            with pytest.raises(SourceNotFoundError) as caught:
                look(place)
            assert str(caught.value) == f"{place} does not exist"


def test_unreadable(tmp_path):
    with pytest.raises(SourceError, match="Is a directory"):
        storage.read(str(tmp_path))


def test_existing_keeps_order(tmp_path, bucket):
    (tmp_path / "b").write_bytes(b"1")
    storage.write(bucket + "a", b"22")
    places = [bucket + "x", str(tmp_path / "b"), bucket + "a", str(tmp_path / "c")]
    assert [(file.location, file.size) for file in storage.existing(places)] == [(places[1], 1), (places[2], 2)]


def test_file_urls(tmp_path):
    (tmp_path / "a b").write_bytes(b"x")
    assert storage.read(f"file://{tmp_path}/a%20b") == b"x"


def test_a_bad_key_is_a_source_error():
    with pytest.raises(SourceError, match="memory://a//b"):
        storage.read("memory://a//b")
