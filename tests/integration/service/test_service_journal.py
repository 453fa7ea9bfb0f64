"""The dispatcher dies at any moment, or its disk is full: it goes on where its journal ends, each element once."""

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.integration.service.service_driving import WAIT_S, Reading, Service, job_of, together

import millrace as mr
from millrace import ShardingPolicy
from millrace.cli import main
from millrace.client import job_session
from millrace.wire.control.blob_transfer import put_blob

COUNT = 400
TASKS = 20
BATCH = 16


def pipeline(look):
    return mr.Dataset.range(COUNT).map(look).filter(lambda number: number % 3 != 0).batch(BATCH)


def gated(gate, stops):
    def look(number):
        if number in stops:
            gate.pass_through()
        return number

    return pipeline(look)


def readers(dataset, service, count, **options):
    return [
        dataset.distribute(service.address, job_name="ours", num_consumers=count, tasks=TASKS, **options)
        for _ in range(count)
    ]


def check(read):
    for epoch in together(read):
        assert Counter(n for batch in epoch for n in batch.tolist()) == Counter(n for n in range(COUNT) if n % 3)
        assert sum(len(batch) < BATCH for batch in epoch) <= 1


@contextlib.contextmanager
def all_reading(data, read):
    """``read(dataset, its first epoch)`` of each in a thread, once all have begun; yields what waits for them."""
    with ThreadPoolExecutor(len(data)) as pool, contextlib.ExitStack() as closing:
        for dataset in data:
            closing.callback(dataset.close)  # a thread that waits for what never comes ends with it
        begun = [iter(dataset) for dataset in data]
        reading = [pool.submit(read, *pair) for pair in zip(data, begun, strict=True)]
        yield lambda: [each.result(WAIT_S) for each in reading]


def all_there(status):
    """Everybody has found the dispatcher again."""
    consumers = [consumer for job in status["jobs"] for consumer in job["consumers"]]
    return all(c["connected"] for c in consumers) and not any("session broke" in w["why"] for w in status["workers"])


@pytest.mark.parametrize("count", [1, 3])
def test_a_restarted_dispatcher_goes_on_with_what_is_leased(tmp_path, gate, keeper, count):
    with Service(2, work_dir=tmp_path / "work") as service:
        data = readers(gated(gate, {200}), service, count)
        with all_reading(data, lambda dataset, begun: [list(begun), list(dataset)]) as result:
            holder = service.named(keeper.wait())
            service.restart_dispatcher()
            back = service.until(lambda status: all_there(status) and {w["id"]: w["leases"] for w in status["workers"]})
            assert back[holder]  # nothing was taken from it
            keeper.open()
            check(result())
        assert not service.status()["jobs"]
        with mr.Dataset.range(3).distribute(service.address) as another:
            assert len(list(another)) == 3  # and so the journal has what was before
        service.restart_dispatcher()
        [over] = [job for job in service.status()["finished"] if job["name"] == "ours"]
        assert (over["epochs"], over["elements"]) == (2, sum(len(epoch) for read in result() for epoch in read))


def test_work_goes_on_while_the_dispatcher_is_down(tmp_path, gate, keeper):
    """What is leased is computed, sent and read without it."""
    came = threading.Event()

    def look(number):
        if number == 200:
            gate.pass_through()
        return number

    def read(dataset, begun):
        epoch = []
        for number in begun:
            epoch.append(number)
            if number == 200:
                came.set()
        return epoch

    with Service(2, work_dir=tmp_path / "work") as service:
        data = readers(mr.Dataset.range(COUNT).map(look), service, 1)
        with all_reading(data, read) as result:
            keeper.wait()
            service.until(lambda status: any(worker["leases"] for worker in status["workers"]))
            service.dispatcher.kill()
            service.dispatcher.wait()
            keeper.open()  # only now is the element computed
            assert came.wait(WAIT_S)
            service.restart_dispatcher()
            assert Counter(*result()) == Counter(range(COUNT))


@pytest.mark.parametrize("work_dir", [True, False])
def test_who_joins_as_the_dispatcher_dies_waits_for_the_next_one(tmp_path, monkeypatch, caplog, work_dir):
    deaths: list[int] = []

    def put(channel, data):
        """The real one; the first time the dispatcher has ended by then."""
        if not deaths:
            deaths.append(service.dispatcher.pid)
            service.dispatcher.kill()
            service.dispatcher.wait()
            restarted.append(pool.submit(service.restart_dispatcher))
        return put_blob(channel, data)

    restarted: list[Any] = []
    with ThreadPoolExecutor(1) as pool, Service(1, work_dir=tmp_path / "work" if work_dir else None) as service:
        monkeypatch.setattr(job_session, "put_blob", put)
        with pipeline(lambda n: n).distribute(service.address) as data:
            check([[list(data)]])
        restarted[0].result(WAIT_S)
    assert len(deaths) == 1
    assert "waiting for it to come back" in caplog.text


KILLS = 6


@pytest.mark.parametrize("sharding", [ShardingPolicy.DYNAMIC, ShardingPolicy.STATIC])
@pytest.mark.parametrize(("count", "deterministic"), [(1, True), (3, False)])
def test_a_dispatcher_that_is_killed_again_and_again(tmp_path, sharding, count, deterministic):
    rng = random.Random(f"{sharding} {count}")
    killed = [threading.Event() for _ in range(KILLS)]

    def read(dataset, begun):
        """An epoch for each death, which comes while it is read or after that."""
        epochs = [list(begun)]
        for event in killed:
            assert event.wait(WAIT_S)
            epochs.append(list(dataset))
        return epochs

    with Service(2, work_dir=tmp_path / "work") as service:
        data = readers(pipeline(lambda n: n), service, count, sharding=sharding, deterministic=deterministic)
        with all_reading(data, read) as result:
            for number, event in enumerate(killed):
                # Any moment will do; the machine's own unevenness adds to this.
                threading.Event().wait(rng.uniform(0.0, 0.2))
                service.restart_dispatcher()
                if number == 2:
                    service.kill("w0")
                    service.add(1)
                service.until(all_there)
                event.set()
            check(result())


@contextlib.contextmanager
def small_disk(path):
    """A file system of a few MiB; yields what fills it, and gives back what makes room."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", path], check=True)
    filler = path / "filler"

    def fill(service):
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        return filler.unlink

    try:
        yield fill
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@contextlib.contextmanager
def small_files(path):
    """The same by a limit on the size of the files that the dispatcher writes."""

    def fill(service):
        _, most = resource.prlimit(service.dispatcher.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.dispatcher.pid, resource.RLIMIT_FSIZE, (0, most))
        return lambda: resource.prlimit(service.dispatcher.pid, resource.RLIMIT_FSIZE, (most, most))

    yield fill


@pytest.mark.alone  # beside all others the journal stayed unwritable when there was room, in two whole runs of three
@pytest.mark.filterwarnings("ignore:.*The service stands still:millrace.MillraceWarning")
@pytest.mark.parametrize("disk", [small_disk, small_files])
def test_a_full_disk_stops_new_work_until_there_is_room(tmp_path, gate, keeper, disk):
    if disk is small_disk and os.geteuid() != 0:
        pytest.skip("only root can mount a small file system; a limit on the size of files stands for it")
    with disk(tmp_path / "work") as fill, Service(1, work_dir=tmp_path / "work") as service:
        with Reading(readers(gated(gate, {200}), service, 1)) as reading:
            keeper.wait()
            make_room = fill(service)
            keeper.open()
            service.until(lambda status: "stands still: the journal cannot be written" in status["journal"]["why"])
            with pytest.raises(mr.ServiceError, match=r"blobs cannot be written: (No space left|File too large)"):
                next(iter(pipeline(str).distribute(service.address)))
            with pytest.raises(mr.ServiceError, match=r"journal cannot be written: .*; the service takes nothing new"):
                next(iter(gated(gate, {200}).distribute(service.address)))
            assert [job["name"] for job in service.status()["jobs"]] == ["ours"]
            make_room()
            service.until(lambda status: "stands still" not in status["journal"]["why"])
            check(reading.result())
        assert "outlives" in service.status()["journal"]["why"]


def test_a_dispatcher_on_a_full_disk_starts_when_there_is_room(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system; the unit of it is in test_dispatcher.py")
    with small_disk(tmp_path / "work") as fill:
        make_room = fill(None)
        command = [sys.executable, "-m", "millrace", "dispatcher", "--port", "0", "--work-dir", tmp_path / "work"]
        pipe = subprocess.PIPE

        def start() -> Any:
            return subprocess.Popen([*command, "--parent-pipe"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)

        with start() as dispatcher:
            said = dispatcher.stderr.readline()
            assert "No space left on device" in said or "disk is full" in said
            assert "trying again until there is room" in said
            make_room()
            assert "address" in json.loads(dispatcher.stdout.readline())
            dispatcher.stdin.close()
            assert dispatcher.wait(30) == 0
        fill(None)  # what it has written is there, and what it writes at the start is not
        with start() as dispatcher:
            assert "there is room" in dispatcher.stderr.readline()
            dispatcher.stdin.close()  # whoever started it has no patience
            assert dispatcher.wait(30) == 0


def test_a_service_started_again_knows_its_jobs(tmp_path):
    dataset = mr.Dataset.range(100).batch(10)
    with mr.LocalService(max_workers=1, work_dir=str(tmp_path)) as service:
        batches = dataset.distribute(service.address, job_name="ours")
        assert len(list(batches)) == 10
        assert batches.status()["journal"]["work_dir"] == str(tmp_path)
        with pytest.raises(
            mr.ServiceError, match=rf"work_dir {tmp_path} is in use by another dispatcher, process \d+;"
        ):
            mr.LocalService(max_workers=1, work_dir=str(tmp_path))
    with mr.LocalService(max_workers=1, work_dir=str(tmp_path)) as service:
        assert job_of(service.status(), "ours")["epoch"] == 0
        with dataset.distribute(service.address, job_name="ours") as again:
            assert len(list(again)) == 10
            assert job_of(service.status(), "ours")["epoch"] == 1
    batches.close()


def test_the_command_refuses_a_damaged_journal(tmp_path, capsys):
    (tmp_path / "journal.db").write_bytes(b"something else" * 1000)
    assert main(["dispatcher", "--port", "0", "--work-dir", str(tmp_path)]) == 1
    assert "is damaged: file is not a database. Start the dispatcher with --recover" in capsys.readouterr().err
    assert main(["dispatcher", "--port", "0", "--recover"]) == 1
    assert "--recover needs --work-dir" in capsys.readouterr().err
