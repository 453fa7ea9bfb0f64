"""Batches that a consumer on the workers' host looks at where the worker wrote them."""

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from tests.integration.service.service_driving import Service

import millrace as mr
from millrace.elements import file_mapping, shared
from millrace.elements.file_mapping import OpenFile
from millrace.errors import ProtocolError
from millrace.wire.data.fd_passing import FdChannel

# Alone: they count what is mapped, and what lies in memory.
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not shared.AVAILABLE, reason="this platform cannot pass memory"),
]

SHAPE = (32, 224, 56, 3)
COUNT = 40


def memory_at(pid, address):
    """(inode, offset) of what is mapped there."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, offset, _, inode, *_ = line.split()
        start, stop = (int(each, 16) for each in span.split("-"))
        if start <= address < stop:
            return int(inode), int(offset, 16) + address - start
    raise AssertionError(hex(address))


def image(number):
    return np.full(SHAPE[1:], number % 251, np.uint8)


def located(batch):
    """The batch, and where it is in the worker."""
    return {"x": batch, "place": np.array([os.getpid(), *memory_at(os.getpid(), batch.ctypes.data)])}


def pipeline(count=COUNT):
    return mr.Dataset.range(count * SHAPE[0]).map(image).batch(SHAPE[0])


def checked(batch, numbers):
    """Whether a batch is what it was when it came."""
    return (batch[:, 0, 0, 0] == numbers).all() and (batch == numbers[:, None, None, None]).all()


@pytest.mark.parametrize("service", [2], indirect=True)
def test_no_byte_is_copied_between_worker_and_consumer(service):
    with pipeline().map(located).distribute(service.address) as dataset:
        places, epochs = set(), 5
        for element in dataset.epochs(epochs):
            pid, *place = element["place"].tolist()
            assert memory_at(os.getpid(), element["x"].ctypes.data) == tuple(place)
            places.add((pid, *place))
        assert len({pid for pid, *_ in places}) == 2
        # A single epoch may lie ready as a whole before any of it was read: workers are at most an epoch ahead.
        assert len(places) < epochs * COUNT, "memory is used again"


def test_batches_that_are_kept_never_change_however_little_memory_there_is():
    with Service() as service:
        service.add(1, "--buffer-bytes", str(4 << 20))
        kept = []
        with pipeline().distribute(service.address) as dataset:
            for epoch in range(3):
                for number, batch in enumerate(dataset):
                    if (number + epoch) % 3 == 0:
                        kept.append((batch, batch[:, 0, 0, 0].copy()))
                    else:
                        batch[:] = 255  # what is read on is one's own
        assert len(kept) == 3 * COUNT // 3
        assert all(checked(*each) for each in kept)


def test_batches_outlive_their_workers_and_the_session():
    with Service(2) as service:
        kept = []
        with pipeline().distribute(service.address) as dataset:
            for number, batch in enumerate(dataset.epochs(1)):
                kept.append((batch, batch[:, 0, 0, 0].copy()))
                if number == COUNT // 4:
                    service.kill("w0")
        assert sorted(int(numbers[0]) for _, numbers in kept) == sorted(i * SHAPE[0] % 251 for i in range(COUNT))
        service.kill("w1")
    assert all(checked(*each) for each in kept)
    kept[0][0][:] = 1


@pytest.mark.parametrize("own_service", [1], indirect=True)
def test_a_worker_gives_memory_up_with_the_job(own_service):
    (worker,) = own_service.workers.values()

    def segments():
        links = Path(f"/proc/{worker.pid}/fd").iterdir()
        return sum("memfd:millrace" in os.path.realpath(link) for link in links)

    with pipeline().distribute(own_service.address) as dataset:
        batches = list(dataset.epochs(1))
        assert segments() > 0
        del batches
    own_service.until(lambda status: not status["jobs"] and not segments())


@pytest.mark.skipif(not file_mapping.AVAILABLE, reason="only newer Linux can tell whether a page is there")
def test_what_a_cache_has_is_looked_at_in_its_blocks_unless_it_was_written_to(tmp_path):
    folder = OpenFile(os.open(tmp_path, os.O_RDONLY))
    if not file_mapping.stays_readable(folder.fd):
        pytest.skip("temporary files lie on a network's file system")
    kept = mr.Dataset.range(24).map(lambda n: np.full(1 << 20, n, np.uint8)).cache()

    def changed(element):
        element[: 1 << 19] += 1  # in place: where the worker has mapped the block
        return element

    with Service(2, cache_dir=tmp_path) as service:
        assert len(list(kept.distribute(service.address).epochs(1))) == 24
        inodes = {entry.stat().st_ino for entry in tmp_path.rglob("*")}
        for pipeline, more, mapped in [(kept, 0, 24), (kept.map(changed), 1, 0), (kept, 0, 24)]:
            numbers, found = [], 0
            with pipeline.distribute(service.address) as dataset:
                for element in dataset.epochs(1):
                    numbers.append(int(element[-1]))
                    assert (element[: 1 << 19] == numbers[-1] + more).all()
                    assert (element[1 << 19 :] == numbers[-1]).all()
                    found += memory_at(os.getpid(), element.ctypes.data)[0] in inodes
                    element[:] = 255  # is one's own
            assert sorted(numbers) == list(range(24))
            assert found == mapped


@pytest.mark.parametrize(("lacks", "told"), [(errno.EMFILE, "ulimit -n"), (errno.ENOMEM, "ulimit -v")])
@pytest.mark.parametrize("own_service", [1], indirect=True)
def test_a_consumer_without_a_free_descriptor_or_memory_to_map_reads_on_through_a_socket(
    own_service, monkeypatch, caplog, lacks, told
):
    receive, refused = FdChannel.receive, list[bool]()

    def full(self, *arguments):
        if len(refused) >= 3:
            refused.append(True)
            if refused.count(True) > 1:
                raise ProtocolError("it shares memory again")
            raise OSError(lacks, os.strerror(lacks))
        refused.append(False)
        return receive(self, *arguments)

    monkeypatch.setattr(FdChannel, "receive", full)
    with pipeline().distribute(own_service.address) as dataset:
        for _ in range(2):
            firsts = sorted(int(batch[0, 0, 0, 0]) for batch in dataset)
            assert firsts == sorted(i * SHAPE[0] % 251 for i in range(COUNT))
    assert refused.count(True) == 1, "once, and then by TCP"
    assert told in caplog.text


def overlapping(dataset):
    return dataset.window(3, shift=1, drop_remainder=True)


def echoed(dataset):
    return dataset.flat_map(lambda batch: [batch] * 3)


@pytest.mark.parametrize("handed_on", [overlapping, echoed])
@pytest.mark.parametrize("service", [1], indirect=True)
def test_what_a_loop_writes_into_one_element_is_in_no_other_one(service, handed_on):
    """The same memory of the worker is in several of them, and some wait there while the loop writes."""
    batches = mr.Dataset.range(64).map(lambda i: np.full(1 << 16, i + 1, np.int32)).batch(8)
    wrong = 0
    with handed_on(batches).distribute(service.address, deterministic=True) as dataset:
        for element in dataset:
            for batch in element if isinstance(element, (list, tuple)) else [element]:
                wrong += batch[0, 0] % 8 != 1 or (batch != batch[:, :1]).any() or (np.diff(batch[:, 0]) != 1).any()
                np.negative(batch, out=batch)
    assert not wrong


@pytest.mark.parametrize("flag", [[], ["--no-shared-memory"]])
def test_both_ways_give_the_same(flag):
    with Service() as service:
        service.add(1, *flag)
        with pipeline(6).distribute(service.address, deterministic=True, seed=3) as dataset:
            read = list(dataset.epochs(1))
    inside = list(pipeline(6))
    assert len(read) == len(inside)
    assert all((ours == theirs).all() for ours, theirs in zip(read, inside, strict=True))


@pytest.mark.parametrize("service", [1], indirect=True)
def test_who_keeps_what_it_was_lent_alters_nothing_of_another_jobs(service, monkeypatch):
    kept: list[tuple[int, mmap.mmap]] = []
    adopt = shared.BorrowedSegments.adopt

    def keep(borrowed, number, size, fd, **options):
        kept.append((os.fstat(fd).st_ino, mmap.mmap(fd, size)))
        adopt(borrowed, number, size, fd, **options)

    def scribble():
        for _, memory in kept:
            memory[:] = b"\xff" * len(memory)

    with pipeline(10 * COUNT).distribute(service.address, job_name="hostile") as hostile:
        monkeypatch.setattr(shared.BorrowedSegments, "adopt", keep)
        reading = iter(hostile.epochs(1))
        for _ in range(COUNT):
            next(reading)
        others: set[int] = set()
        assert kept, "what was to be kept was not lent"

        def note(borrowed, number, size, fd, **options):
            others.add(os.fstat(fd).st_ino)
            adopt(borrowed, number, size, fd, **options)

        monkeypatch.setattr(shared.BorrowedSegments, "adopt", note)
        with pipeline(2 * COUNT).map(located).distribute(service.address, job_name="honest") as honest:
            seen = 0
            for element in honest.epochs(1):
                next(reading)
                scribble()
                numbers = np.sort(element["x"][:, 0, 0, 0])
                assert (element["x"] == element["x"][:, :1, :1, :1]).all()
                assert not (numbers == 0xFF).any()
                seen += 1
            assert seen == 2 * COUNT
        assert others
    assert others.isdisjoint(inode for inode, _ in kept)
    for _, memory in kept:
        memory.close()
