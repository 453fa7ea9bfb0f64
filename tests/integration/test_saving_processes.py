"""Saved datasets between processes: savers that are killed, that meet, that have no room; in folders and in S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO

import pytest

import millrace as mr
from millrace.sources.saved_manifest import MANIFEST
from millrace.sources.saved_place import ConflictError, SavedPlace, Version
from millrace.testing.s3 import s3_bucket

COUNT = 400
SAVER = """
import os
import resource
import sys

import numpy as np

import millrace as mr


def made(number):
    if number == int(os.environ["STOP"]):  # which is no part of what it computes
        print("stopped", flush=True)
        sys.stdin.readline()
    return np.full(20_000, FACTOR * number % 251, np.uint8)


if __name__ == "__main__":
    path, limit = sys.argv[1], int(sys.argv[2])
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    dataset = mr.Dataset.range(400).map(made).with_options(buffer_bytes=1 << 20)
    print(dataset.save(path, file_bytes=1_000_000, if_exists="refresh").reason, flush=True)
"""


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as location:
        yield location


@pytest.fixture(params=["folder", "s3"])
def path(request, tmp_path, bucket) -> str:
    return str(tmp_path / "saved") if request.param == "folder" else f"{bucket}{tmp_path.name}"


def saver(tmp_path, path: str, stop: int = -1, factor: int = 1, limit: int = 0) -> subprocess.Popen[str]:
    """Saver whose function computes with ``factor``, and waits before element ``stop``; no file exceeds ``limit``."""
    script = tmp_path / "saver.py"
    script.write_text(SAVER.replace("FACTOR", str(factor)))
    command, environment = [sys.executable, str(script), path, str(limit)], {**os.environ, "STOP": str(stop)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


def saved(tmp_path, path: str, **options) -> str:
    """What a saver says that goes on to its end."""
    process = saver(tmp_path, path, **options)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return said


def stopped(tmp_path, path: str, **options) -> subprocess.Popen[str]:
    """Saver that waits for a line."""
    process = saver(tmp_path, path, **options)
    assert out(process).readline() == "stopped\n"
    return process


def out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def names(path: str) -> list[str]:
    return sorted(name for name, _ in SavedPlace(path)._names())


def expect(path: str, factor: int = 1) -> None:
    """Look at every element, and for what nobody needs."""
    found = [int(each[0]) for each in mr.Dataset.load(path)]
    assert found == [factor * number % 251 for number in range(COUNT)]


def test_a_saver_that_is_killed_is_gone_on_with_and_nothing_of_it_is_left(tmp_path, path):
    kill(stopped(tmp_path, path, stop=300))
    assert MANIFEST not in names(path)
    assert len(names(path)) > 4
    kill(stopped(tmp_path, path, stop=380))  # and again, by who goes on
    said = saved(tmp_path, path)
    assert "nothing was there; an interrupted save had 3" in said  # of 400 elements, in files of 50
    expect(path)
    assert len(names(path)) == mr.Dataset.saved_info(path).files + 1
    assert "by the same pipeline from the same data" in saved(tmp_path, path)


def test_what_a_killed_saver_was_to_replace_is_there_and_what_it_left_goes(tmp_path, path):
    saved(tmp_path, path)
    reading = iter(mr.Dataset.load(path))
    assert int(next(reading)[0]) == 0
    kill(stopped(tmp_path, path, stop=300, factor=2))
    expect(path)
    assert "a function of the pipeline, or what it refers to, has changed" in saved(tmp_path, path, factor=3)
    expect(path, 3)
    assert [int(each[0]) for each in reading] == [number % 251 for number in range(1, COUNT)]
    assert len(names(path)) == 2 * mr.Dataset.saved_info(path).files + 1  # with what others may read for a day


def test_in_a_folder_the_second_process_is_refused_at_once(tmp_path):
    path = str(tmp_path / "saved")
    first = stopped(tmp_path, path, stop=300)
    first.send_signal(signal.SIGSTOP)  # what it has computed ahead it would still write
    os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        before = names(path)
        with pytest.raises(mr.PipelineError, match=r"another process is saving to .* now"):
            mr.Dataset.range(3).save(path, if_exists="replace")
        assert names(path) == before
    finally:
        first.send_signal(signal.SIGCONT)
    said, errors = first.communicate("go on\n", timeout=100)
    assert (first.returncode, said) == (0, "nothing was there\n"), errors
    expect(path)
    assert len(names(path)) == mr.Dataset.saved_info(path).files + 1


@pytest.mark.parametrize("factor", [1, 2])
def test_in_a_bucket_the_later_process_takes_over_and_the_earlier_one_stops(tmp_path, bucket, factor):
    path = f"{bucket}taken-{factor}"
    first = stopped(tmp_path, path, stop=300)
    assert ("an interrupted save had" in saved(tmp_path, path, factor=factor)) == (factor == 1)
    said, errors = first.communicate("go on\n", timeout=100)
    if factor == 1:
        assert (first.returncode, said) == (0, "another process has saved the same meanwhile\n")
    else:
        assert first.returncode != 0
        assert "each rank to one of its own" in errors
    expect(path, factor)
    assert len(names(path)) == mr.Dataset.saved_info(path).files + 1


def test_a_disk_that_takes_no_more_is_said_and_nothing_is_left(tmp_path):
    path = str(tmp_path / "saved")
    process = saver(tmp_path, path, limit=500_000)
    _, errors = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "cannot be written: File too large; a file may not be so large here" in errors
    assert os.listdir(path) == []
    saved(tmp_path, path)
    expect(path)


def expect_compared(place):
    """A writer publishes over what it has seen, and over nothing else."""
    assert place.published() == Version()
    place.publish(b"1", Version())
    first = place.published()
    with pytest.raises(ConflictError):
        place.publish(b"2", Version())
    place.publish(b"3", first)
    with pytest.raises(ConflictError):
        place.publish(b"4", first)
    assert place.published().raw == b"3"


def test_a_store_publishes_what_its_writer_has_seen_and_nothing_else(bucket):
    expect_compared(SavedPlace(f"{bucket}compared"))


class _CloudStorage(BaseHTTPRequestHandler):
    """Objects as Google Cloud Storage has them: a write is compared by the number of the object's generation."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, tuple[int, bytes]]

    def do_GET(self) -> None:
        generation, data = self.objects.get(self.path, (0, b""))
        self._answer(200 if generation else 404, generation, data)

    def do_PUT(self) -> None:
        generation, _ = self.objects.get(self.path, (0, b""))
        data = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = self.headers.get("x-goog-if-generation-match")
        if wanted is not None and int(wanted) != generation:
            self._answer(412, generation, b"")
            return
        self.objects[self.path] = generation + 1, data
        self._answer(200, generation + 1, b"")

    def _answer(self, status: int, generation: int, data: bytes) -> None:
        self.send_response(status)
        told = {"ETag": f'"{generation}"', "x-goog-generation": str(generation), "Content-Length": str(len(data))}
        for name, value in {**told, "Last-Modified": self.date_time_string()}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_store_that_compares_generations_publishes_what_its_writer_has_seen(monkeypatch):
    _CloudStorage.objects = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), _CloudStorage) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            own = {"gcs_base_url": f"http://127.0.0.1:{server.server_port}", "disable_oauth": True}
            key = {**own, "client_email": "", "private_key": "", "private_key_id": ""}
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
            expect_compared(SavedPlace("gs://generations/saved"))
        finally:
            server.shutdown()
            thread.join()
