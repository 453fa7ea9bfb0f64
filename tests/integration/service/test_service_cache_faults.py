"""Whatever becomes of a cache, or of who reads and writes it: each element once, and nothing is left lying about."""

import contextlib
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.integration.service.service_driving import WAIT_S, Reading, Service, consume, together

import millrace as mr
from millrace.blocks import store_benchmark

COUNT = 160
TASKS = 8
NUMBERS = list(range(COUNT))


@pytest.fixture
def cached(folder):
    """With a cache in ``folder``, for one test that may do to it what it likes."""
    with Service(1, cache_dir=folder) as running:
        yield running


def pipeline(calls):
    return mr.Dataset.range(COUNT).map(lambda number: np.full(100, calls.note(number))).cache()


def epoch(dataset, service):
    """Which numbers a job of one epoch gets."""
    with dataset.distribute(service.address, tasks=TASKS) as distributed:
        return sorted(int(element[0]) for element in distributed.epochs(1))


def blocks(folder):
    return [path for path in folder.glob("*/*") if path.parent.name not in {".drafts", store_benchmark.POINT}]


def drafts(folder):
    return list((folder / ".drafts").iterdir())


def items(status):
    return sum(point["items"] for point in status["cache"]["points"])


def fill(dataset, cached):
    """Has all that is to be kept be kept."""
    assert epoch(dataset, cached) == NUMBERS
    cached.until(lambda status: items(status) == COUNT)


def reuse(dataset, cached, calls):
    """Reads what is kept."""
    calls.take()
    assert epoch(dataset, cached) == NUMBERS
    assert not calls.take()


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 1
    path.write_bytes(raw)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def replace(path):
    path.write_bytes(b"something else")


def empty(path):
    path.write_bytes(b"")


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def link(path):
    path.unlink()
    path.symlink_to("/dev/zero")


def loop(path):
    path.unlink()
    path.symlink_to(path)


def test_damaged_blocks_are_made_again_and_kept_again(cached, folder, calls):
    dataset = pipeline(calls)
    for harm in (flip, truncate, replace, empty, pipe, link, loop, os.unlink):
        fill(dataset, cached)
        for path in blocks(folder):
            harm(path)
        calls.take()
        assert epoch(dataset, cached) == NUMBERS
        assert calls.take() == Counter(NUMBERS), harm
        # What is made anew before it was deleted is deleted, too.
        cached.until(lambda status: not status["cache"]["bytes"])
    fill(dataset, cached)
    reuse(dataset, cached, calls)


def clear(folder):
    shutil.rmtree(folder)


def block_the_way(folder):
    shutil.rmtree(folder)
    folder.write_text("no folder")


def swap(path):
    """What another block has is there under this name."""
    others = [other for other in path.parent.iterdir() if other.is_file() and not other.is_symlink()]
    draft = shutil.copy(random.choice(others), f"{path}.draft")
    os.replace(draft, path)


def sweep(path):
    shutil.rmtree(path.parent)


def sweep_drafts(path):
    shutil.rmtree(path.parent.parent / ".drafts")


def test_whatever_becomes_of_blocks_while_they_are_read_each_element_is_right(cached, folder, calls):
    cached.add(1)
    over = threading.Event()
    done: Counter[str] = Counter()

    def disturb():
        while not over.wait(0.005):
            there = [path for path in blocks(folder) if path.is_file() and not path.is_symlink()]
            harm = random.choice([*[flip, truncate, empty, os.unlink, pipe, link, swap] * 5, sweep, sweep_drafts])
            with contextlib.suppress(OSError, IndexError):  # others are faster, or nothing is left of it
                if there:
                    harm(random.choice(there))
                    done[harm.__name__] += 1

    dataset = mr.Dataset.range(COUNT).map(lambda number: (calls.note(number), np.full(1000, number))).cache()
    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturb)
        try:
            with dataset.shuffle(COUNT).distribute(cached.address, tasks=TASKS) as distributed:
                for _ in range(30):
                    found = list(distributed)
                    assert sorted(number for number, _ in found) == NUMBERS
                    assert all((array == number).all() for number, array in found)
        finally:
            over.set()
        disturbing.result()
    assert done.total() > 30
    assert calls.take().total() > COUNT  # some of it was noticed


def test_folders_in_the_place_of_blocks_stop_no_job(cached, folder, calls):
    dataset = pipeline(calls)
    fill(dataset, cached)
    for path in blocks(folder):
        path.unlink()
        path.mkdir()
    for _ in range(2):
        calls.take()
        assert epoch(dataset, cached) == NUMBERS
        assert calls.take() == Counter(NUMBERS)
    for path in blocks(folder):
        path.rmdir()
    cached.until(lambda status: not status["cache"]["bytes"])
    fill(dataset, cached)
    reuse(dataset, cached, calls)


@pytest.mark.parametrize("harm", [clear, block_the_way])
def test_a_cache_that_is_gone_stops_no_job(cached, folder, calls, gate, keeper, harm):
    def held(element):
        if element[0] == COUNT // 2:
            gate.pass_through()
        return int(element[0])

    dataset = pipeline(calls)
    with Reading([dataset.map(held).distribute(cached.address, tasks=TASKS)], epochs=2) as reading:
        keeper.wait()
        harm(folder)
        keeper.open()
        assert [sorted(numbers) for numbers in together(reading.result())] == [NUMBERS, NUMBERS]
    if harm is block_the_way:
        folder.unlink()

    def all_is_read(status):
        """Perhaps after some epochs: what is made anew before it was deleted is deleted, too."""
        calls.take()
        assert epoch(dataset, cached) == NUMBERS
        return items(status) == COUNT and not calls.take()

    cached.until(all_is_read)


def test_a_store_without_room_keeps_nothing_and_stops_no_job(folder, calls, capfd):
    with Service(cache_dir=folder) as service:
        (name,) = service.add(1, "--no-shared-memory")
        service.until(lambda status: status["cache"]["measured"])
        resource.prlimit(service.workers[name].pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        dataset = pipeline(calls)
        assert epoch(dataset, service) == NUMBERS
        assert not blocks(folder)
        assert not drafts(folder)
        resource.prlimit(service.workers[name].pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        assert epoch(dataset, service) == NUMBERS
        assert blocks(folder)
    assert "a file may not be so large here: raise the limit (ulimit -f)" in capfd.readouterr().err


def test_a_worker_that_is_killed_while_it_adds_leaves_nothing_that_counts(folder, calls, gate, keeper, tmp_path):
    def held(number):
        if number == COUNT // 2 + 3:
            gate.pass_through()
        return np.full(100_000, calls.note(number))  # so large that a draft is begun

    dataset = mr.Dataset.range(COUNT).map(held, key=str(tmp_path)).cache().map(lambda array: int(array[0]))
    with Service(2, cache_dir=folder) as service:
        with Reading([dataset.distribute(service.address, tasks=TASKS)], epochs=2) as reading:
            name = service.named(keeper.wait())
            service.kill(name)
            keeper.open()
            assert [sorted(numbers) for numbers in together(reading.result())] == [NUMBERS, NUMBERS]
        cache = service.until(lambda status: status["cache"]["taken"] == status["cache"]["bytes"] and status["cache"])
        assert cache["bytes"] == sum(path.stat().st_size for path in blocks(folder))
    with Service(cache_dir=folder):
        assert not drafts(folder)


@pytest.mark.parametrize("journal", [True, False])
def test_a_dispatcher_that_is_killed_finds_the_blocks_again(folder, calls, tmp_path, gate, keeper, journal):
    def held(element):
        if element[0] == COUNT // 2:
            gate.pass_through()
        return int(element[0])

    dataset = pipeline(calls)
    with Service(2, cache_dir=folder, work_dir=tmp_path / "work" if journal else None) as service:
        with dataset.map(held).distribute(service.address, job_name="ours", tasks=TASKS) as distributed:
            numbers = iter(distributed)
            head = list(itertools.islice(numbers, COUNT // TASKS))
            keeper.wait()
            service.restart_dispatcher()
            keeper.open()
            if journal:
                assert sorted([*head, *numbers]) == NUMBERS
                assert sorted(distributed) == NUMBERS
        for _ in range(2):
            assert epoch(dataset, service) == NUMBERS
        cache = service.until(lambda status: status["cache"]["taken"] == status["cache"]["bytes"] and status["cache"])
        assert cache["bytes"] == sum(path.stat().st_size for path in blocks(folder))
        calls.take()
        service.restart_dispatcher()
        service.until(lambda status: len(status["workers"]) == 2 and status["cache"]["points"])
        assert epoch(dataset, service) == NUMBERS
        assert not calls.take()


def test_blocks_that_somebody_asked_to_remove_go_and_come_again(cached, folder, calls, capsys):
    from millrace.cli import main

    dataset = pipeline(calls)
    fill(dataset, cached)
    (point,) = cached.until(lambda status: status["cache"]["points"])
    assert main(["cache", "ls", "--service", cached.address]) == 0
    assert point["point"] in capsys.readouterr().out
    assert main(["cache", "rm", point["point"][:6], "--service", cached.address]) == 0
    assert "of 1 points are deleted as soon as nobody reads them" in capsys.readouterr().out
    cached.until(lambda status: not status["cache"]["bytes"])
    assert not blocks(folder)
    assert main(["cache", "rm", point["point"], "--service", cached.address]) == 1
    assert "no points begin with" in capsys.readouterr().err
    assert epoch(dataset, cached) == NUMBERS
    assert blocks(folder)


INTERRUPTED = """
import threading
import millrace as mr
from millrace.blocks import store_benchmark as calibration

def held(number):
    if number == 50:
        with open({bell!r}, "w") as bell:
            bell.write("there")
        threading.Event().wait()
    return bytes(100_000)

if __name__ == "__main__":
    dataset = mr.Dataset.range(100).map(held).cache({own!r})
    list(dataset{how})
"""


def interrupt(process: subprocess.Popen) -> str:
    """What a process says whom Ctrl-C ends. CPython may lose one that comes as it begins to wait for a lock."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        try:
            return str(process.communicate(timeout=WAIT_S / 4)[1])
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    raise AssertionError(f"Ctrl-C does not end it; it said {process.communicate()[1]}")


@pytest.mark.parametrize("where", ["in process", "on a service"])
def test_an_interrupt_leaves_no_drafts(folder, tmp_path, where):
    script = tmp_path / "script.py"
    how = "" if where == "in process" else ".distribute(workers=1)"
    bell = tmp_path / "bell"
    os.mkfifo(bell)
    script.write_text(INTERRUPTED.format(own=str(folder), how=how, bell=str(bell)))
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert bell.read_text() == "there"
        said = interrupt(process)
    assert "KeyboardInterrupt" in said
    assert list(mr.Dataset.range(1).cache(str(folder))) == [0]  # whoever comes next sweeps what is left
    assert not drafts(folder)


def test_what_two_consumers_read_is_kept_once(cached, folder, calls):
    cached.add(1)
    dataset = pipeline(calls).map(lambda array: int(array[0]))
    readers = [
        dataset.distribute(cached.address, job_name="ours", num_consumers=2, consumer_index=rank, tasks=TASKS)
        for rank in range(2)
    ]
    assert [sorted(numbers) for numbers in together(consume(readers, 2))] == [NUMBERS, NUMBERS]
    calls.take()
    assert epoch(pipeline(calls), cached) == NUMBERS
    assert not calls.take()
