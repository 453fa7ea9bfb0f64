"""What listing finds reaches everybody, however much it is; what cannot be said ends its job in words."""

import glob
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.integration.service.service_driving import WAIT_S, job_of
from tests.integration.service.service_store import web_store

import millrace as mr
from millrace.client.rerun_check import Reruns
from millrace.wire.control.rpc import MAX_MESSAGE_BYTES

FILES = 20_000


@pytest.fixture(scope="module")
def many_files(tmp_path_factory):
    """A pattern of so many files with paths so long that their names alone do not fit into one message."""
    folder = tmp_path_factory.mktemp("many")
    for _ in range(4):
        folder /= "x" * 220
    folder.mkdir(parents=True)
    first = folder / "00000.bin"
    first.write_bytes(b"1")
    for number in range(1, FILES):
        os.link(first, folder / f"{number:05}.bin")
    assert FILES * len(str(first)) > MAX_MESSAGE_BYTES
    return str(folder / "*.bin")


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("listed", [False, True], ids=["pattern", "list of paths"])
def test_a_listing_that_fits_into_no_message(service, many_files, listed):
    files = sorted(glob.iglob(many_files)) if listed else many_files
    dataset = mr.Dataset.from_files(files).map(lambda file: int(file["path"][-9:-4])).batch(500)
    with dataset.distribute(service.address) as batches:
        read = [number for batch in batches for number in batch.tolist()]
    assert sorted(read) == list(range(FILES))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_jobs_that_begin_together_share_the_listing_of_a_store(service):
    with web_store() as store, ThreadPoolExecutor(2) as pool:
        urls = store.urls[:4]

        def read(name):
            dataset = mr.Dataset.from_files(urls).map(lambda file: file["bytes"][0])
            with dataset.distribute(service.address, job_name=name) as elements:
                return sorted(elements.epochs(1))

        store.gate = threading.Event()
        first = pool.submit(read, "first")
        service.until(lambda status: "to be listed by" in job_of(status, "first").get("why", ""))
        second = pool.submit(read, "second")
        service.until(lambda status: "the listing of job first" in job_of(status, "second").get("why", ""))
        store.gate.set()
        assert first.result() == second.result() == [0, 1, 2, 3]
        assert [*store.looked_at.values()] == [1] * 4
        assert read("later") == [0, 1, 2, 3]
        assert [*store.looked_at.values()] == [2] * 4


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.timeout(4 * WAIT_S)
def test_a_sharding_function_that_raises(service):
    def shards(tasks, workers):
        raise ValueError("these are bad \udc80 shards")

    with (
        mr.Dataset.range(100).distribute(service.address, sharding=shards) as elements,
        pytest.raises(mr.MillraceError, match=r"the sharding function of job .*: ValueError: these are bad \\udc80 sh"),
    ):
        list(elements)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.timeout(4 * WAIT_S)
def test_an_error_whose_words_are_no_text(service):
    def fail(number):
        raise ValueError("bad \udc80 words")

    with (
        mr.Dataset.range(100).map(fail).distribute(service.address) as elements,
        pytest.raises(mr.ElementError, match=r"bad \\udc80 words"),
    ):
        list(elements)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.timeout(4 * WAIT_S)
def test_files_whose_names_are_no_text(service, tmp_path):
    for name in (b"a", b"b\xff"):
        with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
            file.write(name)
    for files in (f"{tmp_path}/*", [f"{tmp_path}/a", f"{tmp_path}/b\udcff"]):
        dataset = mr.Dataset.from_files(files).map(lambda file: file["bytes"])
        with dataset.distribute(service.address) as elements:
            assert sorted(elements) == sorted(dataset) == [b"a", b"b\xff"]


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.timeout(4 * WAIT_S)
def test_a_consumer_that_cannot_say_what_it_has(service, monkeypatch):
    told = property(lambda _self: (1, 1, "impure \udc80"), lambda _self, _told: None)
    monkeypatch.setattr(Reruns, "told", told, raising=False)
    with (
        mr.Dataset.range(10_000_000).batch(10).distribute(service.address) as batches,
        pytest.raises(mr.MillraceError, match="the message ConsumerReport cannot be encoded: "),
    ):
        for _ in batches:
            pass
