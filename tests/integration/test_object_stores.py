"""Every format through real servers: S3 (moto, a process of its own) and HTTP."""

import functools
import gzip
import http.server
import io
import os
import re
import socket
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import millrace as mr
from millrace.errors import PipelineError, SourceCorruptError, SourceError, SourceNotFoundError
from millrace.graph import nodes
from millrace.graph.nodes import Node
from millrace.graph.source_nodes import FromParquet
from millrace.sources import list_source, open_source, storage, stores
from millrace.sources.listing import expand
from millrace.sources.reads import Reads
from millrace.testing.s3 import s3_bucket

RECORDS = [bytes([i % 256]) * (i * 997 % 30_000) for i in range(300)]
SAMPLES: list[dict[str, Any]] = [
    {"__key__": f"{i:04d}", "bin": data, "cls": str(i).encode()} for i, data in enumerate(RECORDS)
]


def read_all(node: Node) -> list[Any]:
    table = list_source(node, Reads())
    source: Any = open_source(node, table, Reads())
    if table.cheap:
        elements: list[Any] = source.fetch(np.arange(table.count))
        return elements
    return [
        element
        for split in table.splits
        for chunk in source.read(split, 0, split.count, lambda: 64)
        for element in chunk
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data set of each format, as its own library writes it."""
    root = tmp_path_factory.mktemp("formats")
    with tf.io.TFRecordWriter(str(root / "a.tfrecord")) as writer:
        for record in RECORDS:
            writer.write(record)
    (root / "a.tfrecord.gz").write_bytes(gzip.compress((root / "a.tfrecord").read_bytes()))
    with tarfile.open(root / "a.tar", "w") as archive:
        for sample in SAMPLES:
            for field in ("bin", "cls"):
                info = tarfile.TarInfo(f"{sample['__key__']}.{field}")
                info.size = len(sample[field])
                archive.addfile(info, io.BytesIO(sample[field]))
    pq.write_table(pa.table({"id": range(len(RECORDS)), "data": RECORDS}), root / "a.parquet", row_group_size=100)
    for i in range(40):
        (root / "files" / f"{i % 3}").mkdir(parents=True, exist_ok=True)
        (root / "files" / f"{i % 3}" / f"ü {i:02d}+%41.bin").write_bytes(RECORDS[i])
    return root


def check_formats(place: str) -> None:
    assert read_all(nodes.FromTFRecords(patterns=(place + "a.tfrecord",))) == RECORDS
    assert read_all(nodes.FromTFRecords(patterns=(place + "a.tfrecord.gz",))) == RECORDS
    assert read_all(nodes.FromWebDataset(patterns=(place + "a.tar",))) == SAMPLES
    rows = read_all(FromParquet(patterns=(place + "a.parquet",)))
    assert rows == [{"id": i, "data": data} for i, data in enumerate(RECORDS)]
    with storage.open_range(place + "a.tar", 100, 2_000_000) as stream:
        stream.seek(1_500_000)
        assert stream.read() == storage.read(place + "a.tar")[1_500_000:2_000_000]
    for read in (lambda: storage.read(place + "no/such"), lambda: expand([place + "no/such"])):
        with pytest.raises(SourceNotFoundError, match=rf"^{re.escape(place)}no/such does not exist( \(asked .*\))?$"):
            read()


# -- S3 ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3(files: Path) -> Iterator[str]:
    """``s3://`` URL of a bucket that holds the files."""
    with s3_bucket() as bucket:
        fill_bucket(files, os.environ["AWS_ENDPOINT_URL"])
        yield bucket


def fill_bucket(files: Path, address: str) -> None:
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
    for path in files.rglob("*.*"):
        client.put_object(Bucket="millrace-test", Key=str(path.relative_to(files)), Body=path.read_bytes())
    client.put_object(Bucket="millrace-test", Key="files/2/", Body=b"")  # as consoles mark folders
    client.close()


def test_s3_formats(s3: str) -> None:
    check_formats(s3)


def test_s3_files(s3: str, files: Path) -> None:
    local = read_all(nodes.FromFiles(patterns=(f"{files}/files/**/*.bin",)))
    remote = read_all(nodes.FromFiles(patterns=(s3 + "files/**/*.bin",)))
    assert [element["path"].removeprefix(s3) for element in remote] == [
        element["path"].removeprefix(f"{files}/") for element in local
    ]
    assert [element["bytes"] for element in remote] == [element["bytes"] for element in local]
    assert len(expand([s3 + "files/1/*"])) == 13
    assert len(expand([s3 + "files/**"])) == 40, "a folder's marker is no file"
    with pytest.raises(SourceNotFoundError, match="matches no file"):
        expand([s3 + "files/*"])


def test_s3_cuts_at_an_index(s3: str) -> None:
    lines, at = [], 0
    for record in RECORDS:
        lines.append(f"{at} {len(record) + 16}")
        at += len(record) + 16
    storage.write(s3 + "indexed/a.tfrecord", storage.read(s3 + "a.tfrecord"))
    storage.write(s3 + "indexed/a.tfrecord.idx", "\n".join(lines).encode())
    node = nodes.FromTFRecords(patterns=(s3 + "indexed/*.tfrecord",))
    table = list_source(node, Reads())
    assert table.count == len(RECORDS)
    assert len(table.splits) > 2
    assert read_all(node) == RECORDS


def test_s3_truncated(s3: str) -> None:
    for name, node in (
        ("t.tfrecord", nodes.FromTFRecords),
        ("t.tfrecord.gz", nodes.FromTFRecords),
        ("t.tar", nodes.FromWebDataset),
        ("t.parquet", FromParquet),
    ):
        data = storage.read(s3 + "a" + name[1:])
        storage.write(s3 + name, data[: len(data) // 2])
        with pytest.raises(SourceCorruptError, match=rf"^{s3}{re.escape(name)} .*truncated"):
            read_all(node(patterns=(s3 + name,)))


def test_s3_says_what_is_missing(s3: str) -> None:
    with pytest.raises(SourceNotFoundError, match=rf"{s3}files/ exists, but has nothing that matches 'x'"):
        expand([s3 + "files/x/*.jpg"])
    with pytest.raises(SourceNotFoundError, match=r"s3://millrace-nowhere/x does not exist"):
        expand(["s3://millrace-nowhere/x"])


def test_s3_settings_that_were_put_right_are_heard(
    s3: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(stores, "_RETRY", {"max_retries": 0})
    right, dataset = os.environ["AWS_ENDPOINT_URL"], mr.Dataset.from_files(s3 + "a.tar")
    nobody = socket.socket()
    request.addfinalizer(nobody.close)
    nobody.bind(("127.0.0.1", 0))  # and does not listen
    wrong = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", wrong)
    with pytest.raises(
        SourceError, match=rf"\(Connection refused\) \(asked AWS_ENDPOINT_URL={wrong}, region us-east-1\)"
    ):
        list(dataset)
    monkeypatch.setenv("AWS_ENDPOINT_URL", right)
    assert len(list(dataset)) == 1
    monkeypatch.setenv("AWS_ENDPOINT_URL", wrong)
    with pytest.raises(SourceError, match="Connection refused"):
        storage.read(s3 + "a.tar")


# -- HTTP --------------------------------------------------------------------------------------------------------------


class Site(http.server.SimpleHTTPRequestHandler):
    """Files with byte ranges; troubles by request are counted down in ``server.troubles``."""

    server: Any

    def log_message(self, *args: Any) -> None:
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))

    def do_GET(self) -> None:
        self.serve(body=True)

    def do_HEAD(self) -> None:
        self.serve(body=False)

    def serve(self, *, body: bool) -> None:
        troubles = self.server.troubles
        if troubles.get("secret") and "key=1%2F2" not in self.path:
            self.send_error(403)
            return
        if troubles.get("signed to read") and not body:
            self.send_error(403)
            return
        if troubles.get("busy", 0) > 0:
            troubles["busy"] -= 1
            self.send_error(503)
            return
        try:
            data = Path(self.translate_path(self.path)).read_bytes()
        except OSError:
            self.send_error(404)
            return
        start, stop = 0, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not troubles.get("no ranges"):
            start, stop = int(asked[1]), min(len(data), int(asked[2] or len(data)) + 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(stop - start))
        if not troubles.get("no etag"):
            self.send_header("ETag", '"1"')
        self.end_headers()
        if body and troubles.get("hang up", 0) > 0:
            troubles["hang up"] -= 1
            self.wfile.write(data[start : (start + stop) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif body:
            self.wfile.write(data[start:stop])


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = False

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Site, directory=str(root)))
        self.troubles: dict[str, int] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # who has read enough may leave
            super().handle_error(request, client_address)


@pytest.fixture
def site(files: Path) -> Iterator[Server]:
    with Server(files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_http_formats(site: Server) -> None:
    check_formats(site.url)


def test_http_files_are_asked_for_at_once(site: Server, files: Path) -> None:
    (element,) = read_all(nodes.FromFiles(patterns=(site.url + "files/1/%C3%BC%2001+%2541.bin",)))
    assert element["bytes"] == RECORDS[1]
    pattern = site.url + "files/{0..2}/%C3%BC%20{00..02}+%2541.bin"
    with pytest.raises(SourceNotFoundError, match="files/0/%C3%BC%2001"):
        expand([pattern])


@pytest.mark.parametrize("trouble", ["busy", "hang up"])
@pytest.mark.parametrize(
    "read", [storage.read, lambda at: storage.open_range(at).read(), lambda at: storage.read_range(at, 0, 1 << 30)]
)
def test_transient_errors_are_retried(site: Server, files: Path, trouble: str, read: Callable[[str], bytes]) -> None:
    site.troubles[trouble] = 2
    assert read(site.url + "a.tar") == (files / "a.tar").read_bytes()
    assert site.troubles[trouble] == 0, "the trouble was met"


def test_a_signature_in_the_query_is_kept(site: Server) -> None:
    site.troubles["secret"] = 1
    node = nodes.FromTFRecords(patterns=(site.url + "a.tfrecord?key=1%2F2",))
    assert read_all(node) == RECORDS
    node = nodes.FromTFRecords(patterns=(site.url + "a.tfrecord.gz?key=1%2F2",))
    assert read_all(node) == RECORDS
    with pytest.raises(SourceError, match=r"a\.tfrecord: access denied$"):
        expand([site.url + "a.tfrecord"])


def test_a_url_that_is_signed_for_reading_alone_is_read(site: Server, files: Path) -> None:
    site.troubles["signed to read"] = 1
    assert read_all(nodes.FromTFRecords(patterns=(site.url + "a.tfrecord",))) == RECORDS
    (found,) = expand([site.url + "a.tar"])
    assert found.size == (files / "a.tar").stat().st_size
    assert found.version == '"1"'
    site.troubles["secret"] = 1
    with pytest.raises(SourceError, match=r"a\.tar: access denied$"):
        expand([site.url + "a.tar"])


def test_rows_of_a_url_that_is_signed_for_reading_alone_are_read(site: Server, files: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), files / "rows.parquet")
    site.troubles["signed to read"] = 1
    assert [row["x"] for row in read_all(FromParquet(patterns=(site.url + "rows.parquet",)))] == [1, 2, 3]


@pytest.mark.parametrize("name", ["refs%2Fa.bin", "caf%E9.bin"])
def test_a_path_that_would_be_written_in_another_way_is_asked_for_as_it_is(site: Server, name: str) -> None:
    """Web services have names with a slash in them, and some names are no text."""
    for url in (site.url + name, site.url + name + "?alt=media"):
        with pytest.raises(SourceError):
            storage.read(url)
        assert site.requests[-1][1] == url.removeprefix(site.url.rstrip("/"))


def test_a_server_that_says_no_version_gives_none(site: Server) -> None:
    site.troubles["no etag"] = 1
    assert storage.stat(site.url + "a.tar").version == ""
    assert read_all(nodes.FromTFRecords(patterns=(site.url + "a.tfrecord",))) == RECORDS


def test_patterns_need_a_listing(site: Server) -> None:
    with pytest.raises(PipelineError, match=r"web servers have no listing to match '\*' with"):
        expand([site.url + "*.tar"])


def test_a_server_without_ranges(site: Server) -> None:
    site.troubles["no ranges"] = 1
    assert read_all(nodes.FromWebDataset(patterns=(site.url + "a.tar",))) == SAMPLES
    with pytest.raises(SourceError, match="the server cannot serve parts of a file"):
        storage.read_range(site.url + "a.tar", 5, 10)


def test_a_server_without_ranges_is_read_past_what_nobody_wants(site: Server, files: Path) -> None:
    """Large members that are no samples, and those before the place that a state says."""
    with tarfile.open(files / "large.tar", "w") as tar:
        for name, size in (("a.bin", 100), ("README", 6 << 20), ("b.bin", 3 << 20), ("c.bin", 10), ("d.bin", 20)):
            member = tarfile.TarInfo(name)
            member.size = size
            tar.addfile(member, io.BytesIO(bytes(size)))
    site.troubles["no ranges"] = 1
    node = nodes.FromWebDataset(patterns=(site.url + "large.tar",))
    assert [len(sample["bin"]) for sample in read_all(node)] == [100, 3 << 20, 10, 20]
    table = list_source(node, Reads())
    source: Any = open_source(node, table, Reads())
    for start in (2, 3, 0):
        assert len(next(source.read(table.splits[0], start, -1, lambda: 1))[0]["bin"]) == [100, 3 << 20, 10, 20][start]


def test_reading_can_be_given_up(site: Server) -> None:
    node = nodes.FromWebDataset(patterns=(site.url + "a.tar",))
    table = list_source(node, Reads())
    source: Any = open_source(node, table, Reads())
    reading = source.read(table.splits[0], 0, -1, lambda: 2)
    assert next(reading) == SAMPLES[:2]
    reading.close()
    assert next(source.read(table.splits[0], 290, -1, lambda: 2)) == SAMPLES[290:292]
