"""``millrace digest`` as a command: killed, gone on with, with a real store that counts, and read on a service."""

import functools
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from benchmarks.far_store import Link, link

import millrace as mr
from millrace.errors import SourceChangedError
from millrace.sources import storage
from millrace.sources.digests.digest_file import DigestReader
from millrace.sources.digests.hashed_rows import HashedRows
from millrace.testing.s3 import s3_bucket

WAIT_S = 120.0
OBJECTS = 100
CHANGED = 3
OBJECT_BYTES = 20_000


PIPES_ARE_FILES = """
import sys
from millrace.cli import main
from millrace.sources import storage
storage.S_ISREG = lambda _: True  # so that a test decides when a file can be read
sys.exit(main(sys.argv[1:]))
"""


def command(*arguments):
    return [sys.executable, "-c", PIPES_ARE_FILES, "digest", *arguments, "--json"]


def digested(*arguments):
    done = subprocess.run(command(*arguments), check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def content(number, times=0):
    return b"%d %d" % (number, times) * (OBJECT_BYTES // 10)


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[str, Link]]:
    """A real store behind a link that counts."""
    with (
        s3_bucket() as bucket,
        link(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]), 0.0) as counting,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{counting.port}")
        yield bucket, counting


def test_the_second_time_what_has_changed_is_asked_for_and_nothing_else(store, tmp_path):
    bucket, counting = store
    sizes = [len(content(number)) for number in range(OBJECTS)]
    for number in range(OBJECTS):
        storage.write(f"{bucket}train/{number:04}.bin", content(number))
    arguments = f"{bucket}train", "-o", f"{tmp_path}/train.digest"
    reports, requests, sent = [], [], []
    for changed in (0, 0, CHANGED):
        for number in range(changed):
            storage.write(f"{bucket}train/{number:04}.bin", content(number, 1))
        counting.reset()
        reports.append(digested(*arguments))
        requests.append(counting.requests)
        sent.append(counting.sent)
    assert [report["read_files"] for report in reports] == [OBJECTS, 0, CHANGED]
    assert [report["items"] for report in reports] == [OBJECTS] * 3
    assert requests[0] >= OBJECTS
    assert sent[0] >= sum(sizes)
    # Beside what has changed there is the listing, and what a busy machine has asked for a second time.
    assert CHANGED <= requests[2] <= OBJECTS // 10
    assert sent[2] <= sent[1] + sum(sizes) // 10
    elements = mr.Dataset.from_files(f"{bucket}train/*.bin", digest=f"{tmp_path}/train.digest")
    with elements.map(len_of).batch(50).distribute(workers=2) as batches:
        assert sorted(size for batch in batches for size in batch.tolist()) == sorted(
            len(content(number, number < CHANGED)) for number in range(OBJECTS)
        )


def len_of(file):
    return len(file["bytes"])


def test_a_file_that_changes_after_the_listing_ends_an_epoch_on_a_service(tmp_path):
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / f"{number:02}.txt").write_text(f"content {number:02}")
    digested(f"{tmp_path}/data", "-o", f"{tmp_path}/a.digest")
    (tmp_path / "data" / "13.txt").write_text("content XX")
    dataset = mr.Dataset.from_files(f"{tmp_path}/data/*", digest=f"{tmp_path}/a.digest").map(len_of).batch(4)
    with dataset.distribute(workers=1) as batches, pytest.raises(SourceChangedError, match=r"13\.txt is not what"):
        list(batches)


def test_what_a_killed_process_had_hashed_is_kept(tmp_path):
    """One file of the last group can't be read before somebody writes to it."""
    groups, each, threads = 24, 64, 8
    (tmp_path / "data").mkdir()
    for number in range(groups * each - 1):
        path = tmp_path / "data" / f"{number:04}.txt"
        path.write_text(str(number))
        os.utime(path, (10**9, 10**9))
    blocked = tmp_path / "data" / "blocked"
    os.mkfifo(blocked)
    arguments = f"{tmp_path}/data", "-o", f"{tmp_path}/a.digest"
    given_up = threading.Timer(WAIT_S, os.open, (blocked, os.O_RDWR | os.O_NONBLOCK))
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL) as process:
        given_up.start()
        with open(blocked, "wb"):
            given_up.cancel()
            process.send_signal(signal.SIGKILL)
            assert process.wait(WAIT_S) == -9
    given_up.join()
    with HashedRows(f"{tmp_path}/a.digest.partial", None) as rows:
        kept = sum(len(part.locations) for _, part in rows.recover())
    assert kept >= (groups - threads) * each
    blocked.unlink()
    report = digested(*arguments)
    assert (report["files"], report["read_files"]) == (groups * each - 1, groups * each - 1 - kept)
    assert sorted(os.listdir(tmp_path)) == ["a.digest", "data"]
    with open(tmp_path / "a.digest", "rb") as file:
        assert DigestReader(file, os.path.getsize(file.name)).about.items == groups * each - 1


def has_read(pid, nbytes):
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"]) >= nbytes


def test_ctrl_c_ends_it_in_the_middle_of_a_file(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        large = tarfile.TarInfo("large.bin")
        large.size = 64 << 30
        archive.addfile(large)
    os.truncate(path, (64 << 30) + 10240)  # a hole: it takes no room, and minutes to be hashed
    with subprocess.Popen(command(f"{tmp_path}/*.tar", "-o", f"{tmp_path}/a.digest")) as process:
        deadline = time.monotonic() + WAIT_S
        while not has_read(process.pid, 64 << 20):
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere", "-o", "a.digest"], 1, "does not exist"),
        (["a.txt", "-o", "a.txt"], 1, "nothing is there but the digest itself"),
        (["a.txt", "-o", "b.txt"], 1, "can't be read as a digest"),
        (["a.txt"], 2, "-o"),
        (["a.txt", "-o", "a.digest", "--items", "rows"], 2, "invalid choice"),
    ],
)
def test_what_can_have_no_digest_is_said(tmp_path, arguments, status, message):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    done = subprocess.run(
        command(*arguments), check=False, capture_output=True, text=True, timeout=WAIT_S, cwd=tmp_path
    )
    assert done.returncode == status
    assert message in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b.txt"]


def test_items_of_every_format_in_a_store_are_compared(store, tmp_path):
    bucket, _ = store
    members = [(f"{number:03}.txt", b"member %03d" % number) for number in range(60)]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        for _, data in members:
            writer.write(data)
    table = pa.table({"id": range(60), "text": [data for _, data in members]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20, compression="none", use_dictionary=False)
    for name in ("a.tar", "a.tfrecord", "a.parquet"):
        storage.write(f"{bucket}formats/{name}", (tmp_path / name).read_bytes())
    digest = f"{tmp_path}/formats.digest"
    assert digested(f"{bucket}formats/", "-o", digest)["items"] == 60 + 60 + 3 * 2
    datasets = {
        "a.tar": mr.Dataset.from_webdataset(f"{bucket}formats/a.tar", digest=digest),
        "a.tfrecord": mr.Dataset.from_tfrecords(f"{bucket}formats/a.tfrecord", digest=digest),
        "a.parquet": mr.Dataset.from_parquet(f"{bucket}formats/a.parquet", digest=digest),
    }
    for dataset in datasets.values():
        with iter(dataset) as elements:
            assert len(list(elements)) == 60


def test_an_item_whose_etag_has_stayed_is_compared(tmp_path):
    """As in a store that damages what it holds, or on the way from one."""
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / "data" / f"{number}.txt").write_text(f"content {number}")
    handler = functools.partial(SameEtag, directory=tmp_path / "data")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        digest = f"{tmp_path}/a.digest"
        assert digested(f"{url}/{{0..2}}.txt", "-o", digest)["read_files"] == 3
        (tmp_path / "data" / "1.txt").write_text("content X")
        dataset = mr.Dataset.from_files(f"{url}/{{0..2}}.txt", digest=digest)
        with pytest.raises(SourceChangedError, match=rf"{url}/1\.txt is not what"), iter(dataset) as elements:
            list(elements)
        server.shutdown()
        thread.join()


class SameEtag(http.server.SimpleHTTPRequestHandler):
    """Server of files that gives all of them one etag."""

    def send_header(self, keyword, value):
        if keyword == "Last-Modified":
            keyword, value = "ETag", '"always"'
        super().send_header(keyword, value)

    def log_message(self, *_):
        pass
