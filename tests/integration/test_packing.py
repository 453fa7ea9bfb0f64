"""``millrace pack`` as a command: killed, interrupted, gone on with, and read on a service."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import millrace as mr

COUNT = 8
BLOCKED = 5
WAIT_S = 60.0


PIPES_ARE_FILES = """
import sys
from millrace.cli import main
from millrace.sources import storage
storage.S_ISREG = lambda _: True  # so that a test decides when a file can be read
sys.exit(main(sys.argv[1:]))
"""


def command(*arguments):
    return [sys.executable, "-c", PIPES_ARE_FILES, "pack", *arguments]


def packed(*arguments):
    done = subprocess.run(command(*arguments), check=False, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def files(tmp_path):
    """Small files, of which one can't be read before somebody writes to it."""
    (tmp_path / "files").mkdir()
    for number in range(COUNT):
        path = tmp_path / "files" / f"{number}.txt"
        if number == BLOCKED:
            os.mkfifo(path)
        else:
            path.write_text(str(number))
    return tmp_path / "files"


@contextlib.contextmanager
def blocked(files):
    """Wait until somebody reads the file that can't be read, and let them wait."""
    path = files / f"{BLOCKED}.txt"
    given_up = threading.Timer(WAIT_S, os.open, (path, os.O_RDWR | os.O_NONBLOCK))
    given_up.start()
    with open(path, "wb"):
        given_up.cancel()
        yield
    given_up.join()


def heal(path):
    """Make an empty file of a pipe, with the time that it had when it was listed."""
    listed = path.stat()
    path.unlink()
    path.touch()
    os.utime(path, ns=(listed.st_atime_ns, listed.st_mtime_ns))


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)], ids=["kill", "ctrl-c"])
def test_a_pack_that_is_ended_is_gone_on_with(files, tmp_path, number, status):
    folder, arguments = tmp_path / "packed", (f"{files}/*.txt", f"{tmp_path}/packed", "--shard-bytes", "1", "--json")
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL) as process, blocked(files):
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(WAIT_S) == status
    there = {name for name in os.listdir(folder) if name.endswith(".tar")}
    assert there == {f"shard-{shard:06}.tar" for shard in range(BLOCKED)}
    assert not (folder / "index.parquet").exists()
    heal(files / f"{BLOCKED}.txt")
    report = packed(*arguments, "--verify")
    assert (report["shards"], report["made"], report["verified"], report["wrong"]) == (
        COUNT,
        COUNT - BLOCKED,
        COUNT,
        [],
    )
    assert sorted(os.listdir(folder)) == ["index.parquet", *(f"shard-{shard:06}.tar" for shard in range(COUNT))]


def test_samples_of_a_pack_are_permuted_and_come_once_from_a_service(tmp_path):
    (tmp_path / "files").mkdir()
    for number in range(300):
        (tmp_path / "files" / f"{number:03}.txt").write_text(str(number))
    packed(f"{tmp_path}/files/*.txt", f"{tmp_path}/packed", "--shard-bytes", "40KiB", "--json")
    dataset = mr.Dataset.from_webdataset(f"{tmp_path}/packed/*.tar", random_access=True).shuffle(2, seed=5)
    with dataset.map(lambda sample: int(sample["txt"])).batch(10).distribute(workers=2, seed=1) as batches:
        epochs = [[number for batch in batches for number in batch.tolist()] for _ in range(2)]
    for numbers in epochs:
        assert sorted(numbers) == list(range(300))
    assert epochs[0] != epochs[1]
    distances = [abs(after - before) for before, after in zip(epochs[0], epochs[0][1:], strict=False)]
    assert sum(distances) / len(distances) > 50  # 100 where all are permuted, 1 in their order


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere/*.jpg", "packed"], 1, "matches no file"),
        (["packed"], 2, "name what to pack, and behind it the folder; or a folder with --verify"),
        (["packed", "--verify"], 1, "is not there, or can't be read as the index of a pack"),
        (["a.jpg", "packed", "--shard-bytes", "none"], 2, "is not a size such as"),
    ],
)
def test_what_cannot_be_packed_is_said(tmp_path, arguments, status, message):
    done = subprocess.run(
        command(*arguments), check=False, capture_output=True, text=True, timeout=WAIT_S, cwd=tmp_path
    )
    assert done.returncode == status
    assert message in done.stderr
