"""Cache servers of a service that are killed, added and wiped while jobs read: nobody notices but the store."""

import contextlib
import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks.papers.lost_servers import Servers
from tests.integration.service.service_store import FILES, Store, web_store

import millrace as mr

JOBS = 2
WAIT_S = 90.0


class Epochs:
    """Counts the epochs that each job has read."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.read = Counter[int]()
        self._over: list[Future[None]] = []
        self.enough = False

    def ended(self, job: int) -> bool:
        """Count one; whether the job is to read another one."""
        with self._changed:
            self.read[job] += 1
            self._changed.notify_all()
            return not self.enough

    def over(self, job: Future[None]) -> None:
        with self._changed:
            self._over.append(job)
            self._changed.notify_all()

    def await_more(self) -> None:
        """Wait until each job has begun an epoch after now, and read all of it."""
        with self._changed:
            wanted = {job: self.read[job] + 2 for job in range(JOBS)}
            came = self._changed.wait_for(
                lambda: self._over or all(self.read[job] >= count for job, count in wanted.items()), WAIT_S
            )
        assert came
        for job in self._over:
            job.result()


@pytest.fixture
def store():
    with web_store() as found:
        yield found


def test_each_job_gets_each_file_once_and_its_own_bytes(store: Store, tmp_path: Path):
    epochs, whole = Epochs(), sorted(store.files.values())

    def read(service: mr.LocalService, number: int) -> None:
        dataset = mr.Dataset.from_files(store.urls).shuffle(FILES).map(lambda file: file["bytes"])
        with dataset.distribute(service.address, job_name=f"job-{number}", seed=number) as files:
            more = True
            while more:
                assert sorted(files) == whole
                more = epochs.ended(number)

    with (
        mr.LocalService(2, 2) as service,
        contextlib.closing(Servers(service.address, str(tmp_path))) as servers,
        ThreadPoolExecutor(JOBS) as pool,
    ):
        for name in "abc":
            servers.add(name)
        jobs = [pool.submit(read, service, number) for number in range(JOBS)]
        try:
            for job in jobs:
                job.add_done_callback(epochs.over)
            epochs.await_more()
            for event in (lambda: servers.kill("a"), lambda: servers.add("d"), lambda: servers.wipe("b")):
                before = sum(store.read.values())
                event()
                epochs.await_more()
                assert sum(store.read.values()) > before, "what was there, or has moved, is fetched again"
        finally:
            epochs.enough = True
        for job in jobs:
            job.result()
        assert set(servers.counts()) == {"b", "c", "d"}
        # A third has moved each time. While workers have not heard of it yet, they ask the store for that.
        assert sum(store.read.values()) < FILES * epochs.read.total() / 2
