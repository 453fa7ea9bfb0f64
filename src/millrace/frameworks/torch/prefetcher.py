"""Fetching of samples ahead of a training loop, by threads here and then by a helper process (DELI, section IV-C)."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import struct
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import IO, Literal

import numpy as np

from millrace.clusters.child_process import describe_exit, hang_up, kill, reap, spawn
from millrace.errors import CacheError, ShippingError
from millrace.frameworks.torch.cached_dataset import CachedDataset
from millrace.functions.bundles import pack
from millrace.policies import read_concurrency
from millrace.policies.read_concurrency import Round

_log = logging.getLogger(__name__)
_LENGTH = struct.Struct("<q")
_THREADS = "millrace-prefetch"
"""Beginning of the names of all threads here."""
MOST_THREADS = 64
"""Most fetches at a time, where the user has chosen no number: each takes a thread, in two processes."""
clock = time.perf_counter

Asked = tuple[Sequence[int], int]
"""Indices of samples, in the order in which they will be read, and how many of those asked for are unread by now."""
Word = tuple[Literal["ask"], Asked] | tuple[Literal["forget", "ready", "ended", "close"], None]


class FetchThreads:
    """Threads that fetch samples into their cache, in the order in which they were asked for.

    Args:
        dataset: whose samples are fetched.
        count: threads; None: as many as pay, found out while the loop waits for samples.
    """

    def __init__(self, dataset: CachedDataset, count: int | None) -> None:
        self._dataset = dataset
        self._state = read_concurrency.begin(count, MOST_THREADS, said="as threads=... says")
        self._fetching = 0  # threads that do now
        self._round = self._fetched = self._peak = 0
        self._fetch_s = self._waited_s = 0.0
        self._since = clock()
        self._pending: deque[int] = deque()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def ask(self, indices: Sequence[int], unread: int) -> None:
        """Fetch these samples, after those asked for before; of all these only the last ``unread`` are still wanted."""
        with self._changed:
            self._pending.extend(indices)
            for _ in range(len(self._pending) - unread):  # the loop came first, and got them itself
                self._pending.popleft()
            self._start_more()
            self._changed.notify(len(indices))

    def _start_more(self) -> None:
        try:
            while len(self._threads) < min(self._state.level, self._fetching + len(self._pending)):
                thread = threading.Thread(target=self._run, name=_THREADS, daemon=True)
                thread.start()
                self._threads.append(thread)
        except (RuntimeError, MemoryError) as error:  # the next request tries again
            most = self._state.level
            _log.warning("%d threads fetch samples ahead, and not %d: %s", len(self._threads), most, error)

    def forget(self) -> list[int]:
        """Fetch nothing more of what was not begun, and return it."""
        with self._changed:
            left = list(self._pending)
            self._pending.clear()
            return left

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._pending and self._fetching < self._state.level))
                if self._closed:
                    return
                index, number, began = self._pending.popleft(), self._round, clock()
                self._fetching += 1
                self._peak = max(self._peak, self._fetching)
            fetched = self._dataset.fetch_ahead(index)
            with self._changed:
                self._fetching -= 1
                if fetched and number == self._round and not self._closed:
                    try:
                        self._learn(clock(), began)
                    except CacheError:  # it was closed before its sampler was
                        self.close()

    def _learn(self, now: float, began: float) -> None:
        """Note a fetch; after a round of them, let more or fewer go on at a time."""
        self._fetched += 1
        self._fetch_s += now - began
        if not self._state.adapts or 2 * self._fetched < self._state.level:
            return
        waited_s = self._dataset.missed_s()
        seen = Round(self._fetch_s / self._fetched, self._peak, now - self._since, waited_s - self._waited_s)
        self._state = read_concurrency.step(self._state, seen)
        self._round, self._since, self._waited_s = self._round + 1, now, waited_s
        self._fetched, self._fetch_s, self._peak = 0, 0.0, self._fetching
        self._start_more()
        self._changed.notify_all()

    def close(self) -> None:
        """End the threads; fetches that were begun go on to their end without being waited for."""
        with self._changed:
            self._closed = True
            self._pending.clear()
            self._changed.notify_all()


class Prefetcher:
    """Fetches samples of one dataset ahead of the loop; asking waits for nothing.

    Threads of this process begin at once. Meanwhile a helper process comes up, which takes a few seconds, and takes
    over: fetching then competes with the loop for no interpreter lock. If it ends, or the dataset can't be pickled, the
    threads go on.

    Args:
        dataset: whose samples are fetched.
        threads: that fetch at a time; None: as many as pay.
    """

    def __init__(self, dataset: CachedDataset, threads: int | None) -> None:
        self._words: queue.SimpleQueue[Word] = queue.SimpleQueue()
        feeder = threading.Thread(
            target=_feed, args=(self._words, dataset, threads), name=f"{_THREADS}-feeder", daemon=True
        )
        feeder.start()
        self._close = weakref.finalize(self, _close, self._words, feeder, os.getpid())

    def ask(self, indices: Sequence[int], unread: int) -> None:
        """Fetch samples, after those asked for before.

        Args:
            indices: of the samples, in the order in which they will be read.
            unread: of all samples asked for, the last so many have not been read; the others need no fetching now.
        """
        self._words.put(("ask", (indices, unread)))

    def forget(self) -> None:
        """Fetch nothing more of what was asked for and not begun."""
        self._words.put(("forget", None))

    def close(self) -> None:
        """End the threads and the process. Idempotent."""
        self._close()


def _close(words: queue.SimpleQueue[Word], feeder: threading.Thread, owner: int) -> None:
    if owner == os.getpid():  # a forked child has neither
        words.put(("close", None))
        # Python may come upon it as garbage in one of its own threads, which the others wait for.
        if not threading.current_thread().name.startswith(_THREADS):
            feeder.join()


class _Helper:
    """Process that fetches samples, and the thread that starts it and waits for its end.

    Args:
        words: gets ``ready`` once the process can fetch, and ``ended`` after that.
        dataset: whose samples it fetches.
        threads: that fetch at a time; None: as many as pay.
    """

    def __init__(self, words: queue.SimpleQueue[Word], dataset: CachedDataset, threads: int | None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(words, dataset, threads), name=f"{_THREADS}-helper", daemon=True
        )
        self._thread.start()

    def _run(self, words: queue.SimpleQueue[Word], dataset: CachedDataset, threads: int | None) -> None:
        module, arguments = f"{__package__}.prefetch_process", [str(threads or 0)]
        try:
            bundle = pack([dataset], ["CachedDataset"])
            process = spawn(arguments, worker=True, module=module, stdout=subprocess.PIPE)
        except (ShippingError, OSError) as error:
            _log.info("samples are fetched by threads of this process only: %s", error)
            return
        self._process = process
        if self._closed.is_set():
            kill(process)
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # it ended, or was hung up on, before it had read that
            _send(process.stdin, bundle)
        if process.stdout.read(1):
            self._ready = True
            words.put(("ready", None))
            process.stdout.read()
        status = reap(process)
        process.stdout.close()
        if not self._closed.is_set():
            _log.warning("the process that fetched samples ahead %s; threads of this one go on", describe_exit(status))
            words.put(("ended", None))

    def ask(self, indices: Sequence[int], unread: int) -> None:
        """Do as :meth:`FetchThreads.ask` does; nothing happens if the process has just ended."""
        self._send(np.array([unread, *indices], np.int64).tobytes())

    def forget(self) -> None:
        """Fetch nothing more of what was not begun."""
        self._send(b"")

    def _send(self, message: bytes) -> None:
        assert self._process is not None
        with contextlib.suppress(OSError, ValueError):  # the thread that waits for its end says so
            _send(self._process.stdin, message)

    def close(self) -> None:
        """End the process, and wait for that."""
        self._closed.set()
        if self._process is not None:
            if not self._ready:  # it may take seconds to import what it needs, and doesn't listen meanwhile
                kill(self._process)
            hang_up(self._process)
        self._thread.join()


def _send(pipe: IO[bytes] | None, message: bytes) -> None:
    assert pipe is not None
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Receive a message that a :class:`Prefetcher` sent to its process; None at the end."""
    head = pipe.read(_LENGTH.size)
    return pipe.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else None


def _feed(words: queue.SimpleQueue[Word], dataset: CachedDataset, threads: int | None) -> None:
    """Pass on what is asked for, to the threads or to the helper; the thread of a :class:`Prefetcher`."""
    here = FetchThreads(dataset, threads)
    helper = _Helper(words, dataset, threads)
    fetching: FetchThreads | _Helper = here
    asked: deque[int] = deque()  # and not read yet: of others a cache may have let go, for what is still to be read
    while True:
        word, samples = words.get()
        if word == "ask" and samples is not None:
            asked.extend(samples[0])
            for _ in range(len(asked) - samples[1]):
                asked.popleft()
            fetching.ask(*samples)
        elif word == "forget":
            asked.clear()
            fetching.forget()
        elif word == "ready":
            fetching, pending = helper, here.forget()
            fetching.ask(pending, len(pending))
        elif word == "ended":
            fetching = here
            here.forget()  # of which all stands among what was asked for
            fetching.ask(list(asked), len(asked))  # those that are there by now cost a look
        else:
            here.close()
            helper.close()
            return
