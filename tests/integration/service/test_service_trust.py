"""Tenants of one service, and services on one folder: each reads what it may, and what it may not is made."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.integration.service.service_driving import Service

import millrace as mr
from millrace.blocks import store_benchmark
from millrace.blocks.block_reader import BlockReader
from millrace.blocks.block_writer import BlockWriter
from millrace.blocks.stores.file_store import FileStore
from millrace.control.state.cache_state import place_of

COUNT = 120
TASKS = 6
NUMBERS = list(range(COUNT))


def pipeline(calls):
    return mr.Dataset.range(COUNT).map(lambda number: np.full(50, calls.note(number))).cache()


def epoch(dataset, service, tenant):
    """Which numbers a tenant's job of one epoch gets."""
    with dataset.distribute(service.address, tasks=TASKS, tenant=tenant) as distributed:
        return sorted(int(element[0]) for element in distributed.epochs(1))


def kept(service):
    """Items by writer, once nothing is promised any more."""
    status = service.until(lambda status: status["cache"]["taken"] == status["cache"]["bytes"] and status)
    return {point["writer"]: point["items"] for point in status["cache"]["points"] if point["blocks"]}


def places(folder):
    return {path.name for path in folder.iterdir()} - {".drafts", store_benchmark.POINT}


WITHHELD = pytest.mark.filterwarnings("ignore:tenant '[a-z]+' may not read:millrace.MillraceWarning")


@WITHHELD
def test_tenants_share_what_they_trust_each_other_with(folder, calls, capsys):
    from millrace.cli import main

    dataset = pipeline(calls)
    with Service(1, cache_dir=folder, options=["--trust", "blue=red,green", "--trust", "red=green"]) as service:
        assert epoch(dataset, service, "red") == NUMBERS
        assert kept(service) == {"red": COUNT}
        assert calls.take() == Counter(NUMBERS)
        assert epoch(dataset, service, "blue") == NUMBERS
        assert not calls.take()
        for tenant in ("green", "default"):  # who trust nobody, but themselves
            for made in (Counter(NUMBERS), Counter()):
                assert epoch(dataset, service, tenant) == NUMBERS
                assert calls.take() == made
        assert kept(service) == {"red": COUNT, "green": COUNT, "default": COUNT}
        with dataset.distribute(service.address, tenant="blue", job_name="reader") as distributed:
            assert len(list(distributed.epochs(1))) == COUNT
            assert main(["cache", "stats", "--service", service.address]) == 0
            assert "it reads what red and green kept, too" in capsys.readouterr().out
    assert len(places(folder)) == 3
    assert not calls.take()


def rewritten(folder, place, writer, change):
    """Each block of a place, with other elements and in the name of somebody, put where it was."""
    store = FileStore(str(folder))
    for _, name in store.blocks(place):
        block = store.open(place, name)
        reader = BlockReader(block)
        items = reader.read(range(len(reader.index)))
        with store.draft() as draft:
            forged = BlockWriter(draft, writer=writer)
            for key, elements in zip(reader.index.keys, items, strict=True):
                forged.add(key.tobytes(), [change(element) for element in elements])
            draft.publish(place, forged.finish().name)
        block.close()


@pytest.mark.parametrize("forger", ["", "mallory"])
@pytest.mark.parametrize("when", ["while the service runs", "before it starts"])
def test_a_block_in_anothers_name_is_not_read(folder, calls, forger, when):
    dataset = pipeline(calls)
    with Service(1, cache_dir=folder) as service:
        assert epoch(dataset, service, "red") == NUMBERS
        assert kept(service) == {"red": COUNT}
        (place,) = places(folder)
        assert place == place_of(place.partition("-")[0], "", "red")
        rewritten(folder, place, forger, lambda element: element + 1000)
        service.add(1)  # which has read no index yet
        if when == "while the service runs":
            service.kill("w0")
            calls.take()
            assert epoch(dataset, service, "red") == NUMBERS
            assert calls.take() == Counter(NUMBERS)
    if when == "before it starts":
        calls.take()
        with Service(1, cache_dir=folder) as service:
            service.until(lambda status: status["cache"]["measured"])
            assert epoch(dataset, service, "red") == NUMBERS
            assert calls.take() == Counter(NUMBERS)


@WITHHELD
def test_what_strangers_left_in_the_folder_counts_and_is_not_read(folder, calls):
    """Another service with other tenants has written there, and somebody by hand, with no name at all."""
    dataset = pipeline(calls)
    with Service(1, cache_dir=folder) as service:
        assert epoch(dataset, service, "stranger") == NUMBERS
        assert kept(service) == {"stranger": COUNT}
    (place,) = places(folder)
    fingerprint = place.partition("-")[0]
    shutil.copytree(folder / place, folder / fingerprint)
    rewritten(folder, fingerprint, "", lambda element: element + 1000)
    calls.take()
    with Service(1, cache_dir=folder, options=["--trust", "red=blue"]) as service:
        service.until(lambda status: len(status["cache"]["points"]) == 2)  # the store is listed meanwhile
        assert kept(service) == {"stranger": COUNT, None: COUNT}
        assert epoch(dataset, service, "red") == NUMBERS
        assert calls.take() == Counter(NUMBERS)
        assert kept(service) == {"stranger": COUNT, None: COUNT, "red": COUNT}


def test_a_tenant_is_warned_of_what_it_may_not_read_or_refused(folder, calls):
    dataset = pipeline(calls)
    with Service(1, cache_dir=folder) as service:
        assert epoch(dataset, service, "red") == NUMBERS
        kept(service)
        refuse = {"tasks": TASKS, "tenant": "blue", "untrusted_cache": "refuse"}
        with (
            dataset.distribute(service.address, **refuse) as refused,
            pytest.raises(mr.AccessDeniedError, match=r"'blue' may not read what 'red' keeps of map.*--trust blue="),
        ):
            list(refused)
        with pytest.warns(mr.MillraceWarning, match=r"'blue' may not read .* these elements are made again"):
            assert epoch(dataset, service, "blue") == NUMBERS
        with dataset.distribute(service.address, **refuse) as own:
            assert len(list(own.epochs(1))) == COUNT  # it has made all of it


@WITHHELD
def test_what_two_tenants_keep_is_within_the_bound_of_all(folder, calls):
    size = sum(path.stat().st_size for path in filled(folder, calls))
    shutil.rmtree(folder)
    dataset = pipeline(calls)
    with Service(1, cache_dir=folder, cache_bytes=int(1.5 * size)) as service:
        for tenant in ("red", "blue", "red", "blue"):
            assert epoch(dataset, service, tenant) == NUMBERS
            cache = service.status()["cache"]
            assert cache["bytes"] <= cache["taken"] <= cache["limit"]
            assert sum(path.stat().st_size for path in folder.glob("*-*/*")) <= 1.5 * size


def filled(folder: Path, calls) -> list[Path]:
    with Service(1, cache_dir=folder) as service:
        assert epoch(pipeline(calls), service, "red") == NUMBERS
        kept(service)
    return list(folder.glob("*-*/*"))
