"""A service with a cache of stored bytes: what jobs read from a store is read once, whatever happens to the cache."""

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.integration.service.service_store import BYTES, FILES, Store, web_store

import millrace as mr
from millrace.errors import PipelineError


@pytest.fixture
def store() -> Iterator[Store]:
    with web_store() as found:
        yield found


def job(store: Store, service: mr.LocalService, name: str, **options) -> mr.DistributedDataset:
    dataset = mr.Dataset.from_files(store.urls).shuffle(FILES).map(lambda file: file["bytes"][0])
    return dataset.distribute(service.address, job_name=name, **options)


def epoch(store: Store, service: mr.LocalService, name: str, **options) -> list[int]:
    return sorted(job(store, service, name, **options))


def test_seven_jobs_read_each_file_once(store: Store, tmp_path: Path):
    with (
        mr.LocalService(1, 2, source_cache=str(tmp_path / "cache")) as service,
        ThreadPoolExecutor(7) as pool,
    ):
        wait_for_cache(service)
        read = list(pool.map(lambda number: epoch(store, service, f"job-{number}"), range(7)))
        assert read == [list(range(FILES))] * 7
        assert len(store.read) == FILES
        read_once = sum(store.read.values())
        # A request that takes long is made a second time, one of twenty at most.
        assert read_once <= 1.1 * FILES
        assert epoch(store, service, "later") == list(range(FILES))
        assert sum(store.read.values()) <= 1.2 * FILES
    with mr.LocalService(1, 1, source_cache=str(tmp_path / "cache")) as another:
        wait_for_cache(another)
        assert epoch(store, another, "another") == list(range(FILES))
        assert sum(store.read.values()) <= 1.3 * FILES, "what one service has read another one finds"


def test_the_length_of_what_is_read_is_the_services_word(store: Store):
    with mr.LocalService(1, 1) as service:
        reading = job(store, service, "job")
        assert len(list(reading)) == FILES, "as list() asks how long it is"
        assert len(reading) == FILES
        assert len(reading.batch(7, drop_remainder=True)) == FILES // 7
    assert set(store.looked_at.values()) == {1}, "by the worker, and not by this process as well"


def test_data_larger_than_the_cache_are_read_in_chunks_two_of_which_are_kept(tmp_path: Path):
    count, size = 960, 16_000  # of a chunk of which workers have a small part ahead
    with web_store(count, size) as store:
        dataset = mr.Dataset.from_files(store.urls).shuffle(count, seed=5).map(number_of)
        most = count * size // 4
        with (
            mr.LocalService(2, 2, source_cache=str(tmp_path / "cache"), source_cache_bytes=most) as service,
            ThreadPoolExecutor(2) as pool,
        ):
            wait_for_cache(service)

            def read(number: int) -> list[int]:
                shuffled = mr.Dataset.from_files(store.urls).shuffle(count).map(number_of)
                with shuffled.distribute(service.address, job_name=f"job-{number}", seed=number) as reading:
                    return list(reading)

            orders = list(pool.map(read, range(2)))
            assert [sorted(order) for order in orders] == [list(range(count))] * 2
            assert orders[0] != orders[1]
            assert sum(store.read.values()) < 2 * count

            with dataset.distribute(service.address, job_name="stopped", seed=5) as stopped:
                reading = iter(stopped)
                first = [next(reading) for _ in range(count // 3)]
                state = stopped.state_dict()
            assert state["chunks"] == 10
        with contextlib.closing(sqlite3.connect(tmp_path / "cache" / "index.db")) as index:
            kept = [label for (label,) in index.execute("select distinct label from segments")]
        assert 0 < len(kept) <= 2
        assert {int.from_bytes(label[16:20], "big") for label in kept} == {10}
        # Without a cache, what is left is still what the state says, in chunks.
        dataset.load_state_dict(state)
        assert sorted(first + list(dataset)) == list(range(count))
        assert sorted(dataset) == list(range(count)), "the next epoch is read as a whole"
        # Ranks that get equally many divide it, and what these leave is gone on with in process.
        with mr.LocalService(2, 2) as another, ThreadPoolExecutor(2) as pool:

            def read_some(rank: int) -> tuple[list[int], Any]:
                mine = mr.Dataset.from_files(store.urls).shuffle(count, seed=5).map(number_of)
                ranks: dict[str, Any] = {"num_consumers": 2, "consumer_index": rank, "equal_steps": True}
                with mine.distribute(another.address, job_name="ranks", seed=5, **ranks) as reading:
                    reading.load_state_dict([state])
                    elements = iter(reading)
                    return [next(elements) for _ in range(count // 8)], reading.state_dict()

            ranks = list(pool.map(read_some, range(2)))
        rest = mr.Dataset.from_files(store.urls).shuffle(count, seed=5).map(number_of)
        rest.load_state_dict([state for _, state in ranks])
        assert sorted(first + ranks[0][0] + ranks[1][0] + list(rest)) == list(range(count))


def test_data_sets_that_do_not_fit_together_are_measured_and_one_of_them_gets_the_room(tmp_path: Path):
    """The one that is there first is measured without the cache in the midst of its training, and nothing is lost."""
    count, size = 240, 20_000
    with (
        web_store(count, size) as store,
        web_store(count, size, b"others") as another,
        mr.LocalService(
            2, 2, source_cache=str(tmp_path / "cache"), source_cache_bytes=count * size * 3 // 2
        ) as service,
        ThreadPoolExecutor(2) as pool,
    ):
        wait_for_cache(service)
        over = threading.Event()

        def read(urls: list[str], name: str) -> list[list[int]]:
            shuffled = mr.Dataset.from_files(urls).shuffle(count).map(lambda file: file["bytes"][0])
            epochs = []
            with shuffled.distribute(service.address, job_name=name) as reading:
                while not over.is_set():
                    epochs.append(sorted(reading))
            return epochs

        def rooms() -> dict[str, Any]:
            found = service.status()["source_cache"]["rooms"]
            return {job: (each["room"], times) for each in found for job, times in each["jobs"].items()}

        def measured() -> bool:
            return all(name in rooms() and rooms()[name][1]["miss_s"] is not None for name in ("first", "second"))

        deadline = time.monotonic() + 90

        def wait_until(happened: Callable[[], bool]) -> None:
            while not happened():
                assert time.monotonic() < deadline, service.status()["source_cache"]
                over.wait(0.1)

        try:
            first = pool.submit(read, store.urls, "first")
            wait_until(lambda: "first" in rooms() and rooms()["first"][1]["hit_s"] is not None)
            assert rooms()["first"][0] == "full"
            second = pool.submit(read, another.urls, "second")
            wait_until(measured)
            seen = sorted(room for room, _ in rooms().values())
        finally:
            over.set()
        for epochs in (first.result(60), second.result(60)):
            assert epochs
            assert all(epoch == list(range(count)) for epoch in epochs)
        assert len(seen) == 2
        assert seen != ["full", "full"], "they do not fit together"


def number_of(file: Any) -> int:
    return int.from_bytes(file["bytes"][:4], "big")


def wait_for_cache(service: mr.LocalService) -> Any:
    deadline = time.monotonic() + 60
    while not (servers := service.status()["source_cache"]["servers"]):
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    return servers[0]


def test_a_file_that_changed_is_read_anew(store: Store, tmp_path: Path):
    with mr.LocalService(1, 1, source_cache=str(tmp_path / "cache")) as service:
        wait_for_cache(service)
        assert epoch(store, service, "one") == list(range(FILES))
        name = "/007.bin"
        store.read[name] = 1
        before = sum(store.read.values())
        store.files[name], store.versions[name] = bytes([200]) * BYTES, "2"
        assert epoch(store, service, "two") == sorted([*range(7), *range(8, FILES), 200])
        assert store.read[name] > 1
        # A request that is made a second time may leave an item out of the cache, as its job has ended meanwhile.
        assert sum(store.read.values()) - before <= 0.1 * FILES


def test_tenants_do_not_find_what_others_have_read_by_its_name(store: Store, tmp_path: Path):
    with mr.LocalService(1, 1, source_cache=str(tmp_path / "cache")) as service:
        wait_for_cache(service)
        assert epoch(store, service, "one", tenant="ours") == list(range(FILES))
        assert epoch(store, service, "two", tenant="theirs") == list(range(FILES))
        assert min(store.read.values()) == 2
        deadline = time.monotonic() + 60
        # A request that is made a second time may leave an item out of the cache, as its job has ended meanwhile.
        while (kept := wait_for_cache(service)["counts"])["inserted"] < 1.8 * FILES or kept["bytes"] < FILES * BYTES:
            assert time.monotonic() < deadline, kept
            threading.Event().wait(0.1)
        assert kept["bytes"] == FILES * BYTES, "equal bytes are kept once"


def test_the_cache_server_is_killed_again_and_again(store: Store, tmp_path: Path):
    with mr.LocalService(1, 2, source_cache=str(tmp_path / "cache")) as service:
        pids = set[int]()
        done = threading.Event()

        def kill() -> None:
            while not done.wait(0.5):
                with contextlib.suppress(IndexError, ProcessLookupError):
                    pid = service.status()["source_cache"]["servers"][0]["pid"]
                    if pid not in pids:
                        pids.add(pid)
                        os.kill(pid, signal.SIGKILL)

        wait_for_cache(service)
        killer = threading.Thread(target=kill)
        killer.start()
        try:
            for number in range(100):
                assert epoch(store, service, f"job-{number}") == list(range(FILES))
                if len(pids) >= 3:
                    break
        finally:
            done.set()
            killer.join()
        assert len(pids) >= 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source_cache_bytes": 10}, "say where it is"),
        ({"source_cache": "x", "source_cache_bytes": 0}, "at least 1"),
        ({"source_cache": 5}, "path of a folder"),
    ],
)
def test_what_makes_no_sense_is_refused(options, said):
    with pytest.raises(PipelineError, match=said):
        mr.LocalService(1, 1, **options)
