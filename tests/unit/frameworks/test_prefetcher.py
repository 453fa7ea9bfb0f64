"""Who fetches samples ahead once the helper process has ended, and how many at a time."""

import contextlib
import io
import itertools
import os
import queue
import threading
from typing import Any

import pytest

from millrace.errors import CacheError
from millrace.frameworks.torch import prefetcher
from millrace.frameworks.torch.prefetcher import FetchThreads, Prefetcher, _close

PATIENCE_S = 60


class Fetched(queue.Queue):
    """A dataset whose samples, as they are fetched by threads of this process, can be taken from here."""

    def fetch_ahead(self, index):
        self.put(index)

    def take(self, count):
        return [self.get(timeout=PATIENCE_S) for _ in range(count)]


class Pipe(io.RawIOBase):
    """What a helper is sent; writing fails once it is ``broken``, and ``refused`` says that it did."""

    def __init__(self):
        self.broken = False
        self.sent, self.refused = threading.Semaphore(0), threading.Event()

    def writable(self):
        return True

    def write(self, data):
        if self.broken:
            self.refused.set()
            raise BrokenPipeError
        self.sent.release()
        return len(data)


class Helper:
    """A helper process that is ready at once, and ends as the test says."""

    def __init__(self):
        self.pid, self.returncode = 0, None
        self.pipe = Pipe()
        self.stdin = io.BufferedWriter(self.pipe)
        ready, self.end = os.pipe()
        self.stdout = io.FileIO(ready, "rb")
        os.write(self.end, b"!")

    def heard(self, words):
        """Wait until it was sent so many words."""
        for _ in range(words):
            assert self.pipe.sent.acquire(timeout=PATIENCE_S)

    def wait(self, seconds=None):
        self.returncode = -9

    def die(self):
        os.close(self.end)


@pytest.fixture
def helper(monkeypatch):
    helper = Helper()
    monkeypatch.setattr(prefetcher, "pack", lambda *_: b"the dataset")
    monkeypatch.setattr(prefetcher, "spawn", lambda *_, **__: helper)
    return helper


def prefetching(dataset):
    return contextlib.closing(Prefetcher(dataset, threads=1))


def test_threads_go_on_although_the_helper_ended_in_the_middle_of_a_word(helper, caplog):
    fetched = Fetched()
    with prefetching(fetched) as fetching:
        helper.heard(2)  # the dataset, and what was asked for before
        helper.pipe.broken = True
        fetching.ask([1, 2, 3], 3)
        assert helper.pipe.refused.wait(PATIENCE_S)
        helper.die()
        assert fetched.take(3) == [1, 2, 3]
        fetching.ask([4], 4)
        assert fetched.take(1) == [4]
    assert helper.stdin.closed
    assert "was killed by SIGKILL; threads of this one go on" in caplog.records[0].message


def test_threads_fetch_what_a_helper_was_asked_for_and_nobody_has_read_yet(helper):
    fetched = Fetched()
    with prefetching(fetched) as fetching:
        helper.heard(2)
        fetching.ask(range(10), 10)
        fetching.ask(range(10, 14), 6)
        helper.heard(2)
        helper.die()
        assert fetched.take(6) == [8, 9, 10, 11, 12, 13]


class Far:
    """A dataset whose samples come when the test lets them; each round of them the loop has waited for so long more."""

    def __init__(self, waited_s):
        self.begun: queue.Queue[int] = queue.Queue()
        self.let = threading.Semaphore(0)
        self.waits = itertools.count(waited_s, waited_s) if waited_s else itertools.repeat(0.0)

    def fetch_ahead(self, index):
        self.begun.put(index)
        return self.let.acquire(timeout=PATIENCE_S)

    def missed_s(self):
        return next(self.waits)

    def begin(self, count):
        return sorted(self.begun.get(timeout=PATIENCE_S) for _ in range(count))


@pytest.mark.parametrize(
    ("threads", "waited_s", "then"), [(None, 1e6, 32), (None, 0.0, 16), (16, 1e6, 16)], ids=["far", "at hand", "chosen"]
)
def test_as_many_are_fetched_at_a_time_as_pay_where_the_loop_waits(monkeypatch, threads, waited_s, then):
    monkeypatch.setattr(prefetcher, "clock", itertools.count().__next__)
    far: Any = Far(waited_s)
    fetching = FetchThreads(far, threads)
    fetching.ask(range(200), 200)
    assert far.begin(16) == list(range(16))
    for _ in range(8):  # a round
        far.let.release()
    assert len(far.begin(then - 8)) == then - 8
    assert len(fetching._threads) == then
    fetching.close()
    for _ in range(200):
        far.let.release()
    for thread in fetching._threads:
        thread.join(PATIENCE_S)


def test_a_cache_that_is_closed_while_it_is_filled_ends_the_threads():
    far: Any = Far(0.0)
    fetching = FetchThreads(far, None)
    far.missed_s = lambda: (_ for _ in ()).throw(CacheError("this SampleCache was closed"))
    fetching.ask(range(200), 200)
    far.begin(16)
    for _ in range(200):
        far.let.release()
    for thread in fetching._threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert fetching.forget() == []


def test_a_prefetcher_that_is_found_to_be_garbage_in_one_of_its_threads_is_not_waited_for_there():
    """The collector runs in any thread, and the one that it is to wait for waits for this one."""
    words, over = queue.SimpleQueue[Any](), threading.Event()
    feeder = threading.Thread(target=over.wait, daemon=True)
    feeder.start()
    finding = threading.Thread(target=_close, args=(words, feeder, os.getpid()), name="millrace-prefetch-helper")
    finding.start()
    finding.join(20)
    assert not finding.is_alive()
    assert words.get_nowait() == ("close", None)
    over.set()
    feeder.join()
