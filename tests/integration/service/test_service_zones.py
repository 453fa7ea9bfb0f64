"""Cache servers and workers in two zones: each zone fetches each file once, and goes on when it has no server left."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.own_host import OWN_HOST
from tests.integration.service.service_driving import Service
from tests.integration.service.service_store import FILES, Store, web_store

import millrace as mr
from millrace.clusters.child_process import hang_up, reap, spawn

ZONES = ("east", "west")


@pytest.fixture
def store() -> Iterator[Store]:
    with web_store() as found:
        yield found


@pytest.fixture
def cache_server(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts one in a zone, and waits until the dispatcher knows it."""
    started = list[subprocess.Popen[bytes]]()

    def begin(service: Service, zone: str) -> subprocess.Popen[bytes]:
        folder = tmp_path / f"{zone}-{len(started)}"
        command = ["cache-server", "--dispatcher", service.address, "--dir", str(folder), "--bytes", "1GB"]
        process = spawn([*command, "--host", OWN_HOST, "--zone", zone], worker=False)
        started.append(process)
        service.until(lambda status: process.pid in [each["pid"] for each in status["source_cache"]["servers"]])
        return process

    yield begin
    for process in started:
        hang_up(process)
        reap(process)


@pytest.fixture
def own_service(service_with: type[Service]) -> Iterator[Service]:
    """One that gives nobody up for being slow on a busy machine: that would change who is asked."""
    with service_with(0, heartbeat_s=5.0) as running:
        yield running


def test_each_zone_fetches_each_file_once(own_service: Service, store: Store, cache_server):
    servers = {zone: cache_server(own_service, zone) for zone in ZONES}
    for zone in ZONES:  # each serves the job of its zone alone
        own_service.add(1, "--zone", zone, "--job", f"job-{zone}")
    status = own_service.status()
    assert sorted(worker["zone"] for worker in status["workers"]) == sorted(ZONES)
    assert {each["pid"]: each["zone"] for each in status["source_cache"]["servers"]} == {
        process.pid: zone for zone, process in servers.items()
    }

    def read(zone: str, epochs: int) -> None:
        dataset = mr.Dataset.from_files(store.urls).shuffle(FILES).map(lambda file: file["bytes"][0])
        with dataset.distribute(own_service.address, job_name=f"job-{zone}") as files:
            assert sorted(files.epochs(epochs)) == sorted(list(range(FILES)) * epochs)

    # A request that takes long is made a second time, one of twenty at most.
    read("east", 2)
    assert len(store.read) == FILES
    assert FILES <= store.read.total() <= 1.1 * FILES
    read("west", 2)
    assert min(store.read.values()) == 2, "what lies in the east is not asked for across the border"
    assert 2 * FILES <= store.read.total() <= 2.2 * FILES
    counts = {each["zone"]: each["counts"] for each in until_all_is_kept(own_service)}
    assert {zone: (each["items"], each["misses"]) for zone, each in counts.items()} == dict.fromkeys(
        ZONES, (FILES, FILES)
    ), "each was told to be fetched once"

    before = store.read.total()
    servers["east"].kill()
    own_service.until(lambda status: len(status["source_cache"]["servers"]) == 1)
    read("east", 1)
    assert store.read.total() <= before + 0.1 * FILES, "a zone without servers asks those of the others"

    cache_server(own_service, "east")
    read("east", 1)
    assert store.read.total() >= before + FILES, "the first one of a zone is asked at once, and has nothing yet"


def until_all_is_kept(service: Service) -> list[dict]:
    def kept(status: dict) -> list[dict]:
        servers: list[dict] = status["source_cache"]["servers"]
        return servers if all(each["counts"]["items"] == FILES for each in servers) else []

    found: list[dict] = service.until(kept)
    return found
