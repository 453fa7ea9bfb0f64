"""Shards that are ten times as large as the source cache: jobs read them in the same chunks, two of which are kept."""

import contextlib
import functools
import io
import sqlite3
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.service.service_store import Store, web_store_of

import millrace as mr
from millrace.sources.crc32c import mask

RECORDS, BYTES, SHARDS = 960, 64_000, 480


def record(number: int) -> bytes:
    return number.to_bytes(4, "big") * (BYTES // 4)


@functools.cache
def tfrecords(shards: int) -> dict[str, bytes]:
    """Shards with an index beside each, by which they are cut into pieces."""
    rows = np.frombuffer(b"".join(map(record, range(RECORDS))), np.uint8).reshape(RECORDS, BYTES)
    length = BYTES.to_bytes(8, "little")
    of_length = _crcs(np.frombuffer(length, np.uint8)[None])[0]
    framed = [length + of_length + row.tobytes() + crc for row, crc in zip(rows, _crcs(rows), strict=True)]
    files, each = {}, RECORDS // shards
    for shard in range(shards):
        its = framed[shard * each : (shard + 1) * each]
        files[f"/{shard:03}.tfrecord"] = b"".join(its)
        lines = (f"{at * len(its[0])} {len(its[0])}\n" for at in range(each))
        files[f"/{shard:03}.tfrecord.idx"] = "".join(lines).encode()
    return files


def _crcs(rows: np.ndarray) -> list[bytes]:
    """Masked CRC-32C of each row."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    crcs = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crcs = table[(crcs ^ column) & 0xFF] ^ (crcs >> 8)
    return [mask(int(crc) ^ 0xFFFFFFFF).to_bytes(4, "little") for crc in crcs]


def tars(shards: int) -> dict[str, bytes]:
    """Shards of which nobody knows where their samples are, so that each is read as a whole."""
    files, each = {}, RECORDS // shards
    for shard in range(shards):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for number in range(shard * each, (shard + 1) * each):
                info = tarfile.TarInfo(f"{number:05}.bin")
                info.size = BYTES
                archive.addfile(info, io.BytesIO(record(number)))
        files[f"/{shard:03}.tar"] = file.getvalue()
    return files


def number_of(element: Any) -> int:
    return int.from_bytes((element["bin"] if isinstance(element, dict) else element)[:4], "big")


def samples(store: Store) -> mr.Dataset:
    shards = [store.address + name for name in store.files if not name.endswith(".idx")]
    found = mr.Dataset.from_webdataset(shards) if shards[0].endswith("tar") else mr.Dataset.from_tfrecords(shards)
    return found.shuffle(64).map(number_of)


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)


def read_by_two_jobs(store: Store, folder: Path, most: int, **options: Any) -> list[tuple[list[int], int]]:
    """Read an epoch with each of two jobs at a time: its elements, and in how many chunks it was read.

    Nothing comes from the store before both jobs ask for something of it.
    """

    def read(number: int) -> tuple[list[int], int]:
        reading = samples(store).distribute(service.address, job_name=f"job-{number}", seed=number, **options)
        with reading:
            elements = reading.epochs(1)
            found = [next(elements)]
            chunks = reading.state_dict().get("chunks", 0)
            return found + list(elements), chunks

    def both_read() -> bool:
        leased = [each["tasks"]["leased"] for each in service.status()["jobs"]]
        return len(leased) == 2 and all(leased)

    with (
        mr.LocalService(2, 2, source_cache=str(folder), source_cache_bytes=most) as service,
        ThreadPoolExecutor(2) as pool,
    ):
        wait_until(lambda: bool(service.status()["source_cache"]["servers"]))
        store.held = threading.Event()
        try:
            running = [pool.submit(read, number) for number in range(2)]
            wait_until(both_read)
        finally:
            store.held.set()
        return [each.result(200) for each in running]


def size_of(files: dict[str, bytes]) -> int:
    return sum(len(content) for name, content in files.items() if not name.endswith(".idx"))


def labels_in(folder: Path) -> list[bytes]:
    """List the labels of what a cache server that has ended has kept."""
    with contextlib.closing(sqlite3.connect(folder / "index.db")) as index:
        return [label for (label,) in index.execute("select distinct label from segments")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "indexed", [pytest.param(True, id="indexed"), pytest.param(False, id="whole", marks=pytest.mark.nightly)]
)
def test_two_jobs_read_the_same_chunks_and_less_than_all_of_it_twice(indexed: bool, tmp_path: Path) -> None:
    files = (tfrecords if indexed else tars)(SHARDS)
    data = size_of(files)
    with web_store_of(files) as store:
        read = read_by_two_jobs(store, tmp_path / "cache", data // 10, tasks=SHARDS)  # jobs hold some tasks ahead
        assert [sorted(order) for order, _ in read] == [list(range(RECORDS))] * 2
        assert read[0][0] != read[1][0]
        assert read[0][1] == read[1][1] >= 20, "two chunks fit into a cache of a tenth"
        kept = labels_in(tmp_path / "cache")
        assert 0 < len(kept) <= 2
        assert {int.from_bytes(label[16:20], "big") for label in kept} == {read[0][1]}
        sent = sum(size for name, size in store.sent.items() if not name.endswith(".idx"))
        assert data <= sent < 2 * data, "what one has read the other one finds, some of it"


@pytest.mark.timeout(300)
def test_shards_of_several_pieces_are_read_in_chunks_of_pieces(tmp_path: Path) -> None:
    files = tfrecords(16)
    with web_store_of(files) as store:
        read = read_by_two_jobs(store, tmp_path / "cache", size_of(files) // 10)
        assert [sorted(order) for order, _ in read] == [list(range(RECORDS))] * 2
        assert read[0][1] == read[1][1] >= 20, "16 shards alone would make eight chunks at most"
        assert len(labels_in(tmp_path / "cache")) <= 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "cut", [pytest.param(True, id="pieces"), pytest.param(False, id="shards", marks=pytest.mark.nightly)]
)
def test_a_state_is_gone_on_with_in_the_same_chunks_without_a_cache(cut: bool, tmp_path: Path) -> None:
    files = tfrecords(16) if cut else tars(120)
    most = size_of(files) // 4
    with web_store_of(files) as store:
        with mr.LocalService(1, 1, source_cache=str(tmp_path / "cache"), source_cache_bytes=most) as service:
            wait_until(lambda: bool(service.status()["source_cache"]["servers"]))
            with samples(store).distribute(service.address, job_name="stopped", seed=5) as stopped:
                reading = iter(stopped)
                first = [next(reading) for _ in range(RECORDS // 3)]
                state = stopped.state_dict()
        assert state["chunks"] == 10
        here = samples(store)
        here.load_state_dict(state)
        assert sorted(first + list(here)) == list(range(RECORDS))
