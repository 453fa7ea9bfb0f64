"""Ctrl-C at any moment in the reader's thread leaves no lock held: all others go on, and the program ends."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.client import epoch_reader
from millrace.client.notices import Notices
from millrace.client.receiver import Feed
from millrace.elements.chunk import Chunk, Origin
from millrace.elements.codec import encode
from millrace.engine.metrics import Measure
from millrace.engine.run.local_epoch import LocalIterator
from millrace.engine.run.progress_tracker import Tally
from millrace.engine.threads.prefetch import Ahead
from millrace.errors import MillraceError
from millrace.frameworks.base import Converted
from millrace.planning.checkpoint import Merged
from millrace.planning.epoch_cursor import EpochCursor
from millrace.protocol.messages import EpochBegun
from millrace.wire.control.control_client import _Outbox


def interrupted(action, prepare=lambda: None):
    """Runs ``action()`` again and again, interrupted at each place where the interpreter looks for signals in turn."""
    for place in count():
        left = [place]

        def profile(frame, event, argument, left=left):
            if event in ("call", "c_return"):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt

        prepare()
        sys.setprofile(profile)
        try:
            action()
        except KeyboardInterrupt:
            yield
        else:
            assert place > 3, "nothing was interrupted"
            return
        finally:
            sys.setprofile(None)


@pytest.fixture
def free():
    """Whether another thread can have a lock."""
    with ThreadPoolExecutor(1) as other:

        def take(lock):
            return lock.acquire(blocking=False) and (lock.release() or True)

        yield lambda lock: other.submit(take, lock).result()


def test_taking_from_a_feed(free):
    feed = Feed("job", 0, "client", token=None, buffer_bytes=1 << 20, wake=lambda: None)

    def read():
        feed.begin(0, in_order=False)
        feed.ends(0, [])
        assert feed.ready == 0
        assert feed.take(0) is None
        feed.progress()
        feed.stop(0)

    for _ in interrupted(read):
        assert free(feed._lock)


def test_sending(free):
    outbox = _Outbox(lambda: None)
    for _ in interrupted(lambda: outbox.put(b"message")):
        assert free(outbox._lock)


def test_taking_what_was_computed_ahead(free):
    ahead = Ahead(iter(()), 3, lambda: 1 << 20)
    measure = Measure()

    def read():
        ahead._ready.append((Chunk([1], Origin(0, 0), range(1)), 8))
        return ahead._next(measure)

    for _ in interrupted(read):
        assert free(ahead._lock)


class Talk:
    """A conversation about one epoch, of which all has come."""

    pid, closed, left_out = os.getpid(), False, 0

    def __init__(self, *, in_order, held):
        self.feed = Feed("job", 0, "client", token=None, buffer_bytes=1 << 20, wake=lambda: None)
        self.notices = Notices(lambda error: None)
        self.feed.begin(0, in_order=in_order, held=held)
        inbox = self.feed._inbox
        assert inbox is not None
        for task in range(2):
            inbox.assign(task, 1, "worker")
            for index in range(0, 6, 3):
                payload = b"".join(encode([10 * task + index + place for place in range(3)]))
                inbox.accept(task, index, 3, payload, 8, "worker", last=index > 0)
        self.feed.ends(0, [0, 1])
        self.feed.allow(0, 4, last=False)

    def begin(self, number, measure):
        return EpochBegun(0, 2)

    def end(self, number, *, read):
        self.feed.stop(number)

    check = report = say = look_up = lambda self, *_: None


COMING = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("held", [False, True], ids=["", "held"])
@pytest.mark.parametrize("view", [iter, lambda reader: Converted(reader, lambda element: element)], ids=["", "view"])
def test_what_a_state_counts_after_ctrl_c_is_what_the_loop_got(held, view, monkeypatch):
    monkeypatch.setattr(epoch_reader, "graph_digest", lambda graph: "")
    monkeypatch.setattr(epoch_reader, "unpack", lambda structure: structure)
    monkeypatch.setattr(Talk, "spec", SimpleNamespace(structure=b""), raising=False)
    now: Any = None

    def begin():
        nonlocal now
        talk: Any = Talk(in_order=True, held=held)
        now = talk, epoch_reader.EpochReader(talk, talk, 0, None, None, EpochCursor(), None, lambda: None), []

    def read():
        _, reader, found = now
        for element in view(reader):
            found += [element]
            if len(found) == 4:
                return

    again = 0
    for _ in interrupted(read, begin):
        talk, reader, found = now
        done, parts = reader._tally.now(talk.feed, 0)
        assert 6 * done.low + sum(outputs for _, outputs in parts) == len(found), "what its state says"
        talk.feed.allow(0, 12, last=True)
        with suppress(MillraceError):
            found += reader
            again += 1
            assert found == COMING
        assert found == COMING[: len(found)]
    assert again > 10


@pytest.mark.parametrize("view", [iter, lambda reader: Converted(reader, lambda element: element)], ids=["", "view"])
def test_the_same_in_process(view):
    now: Any = None

    def begin():
        nonlocal now
        reader: Any = LocalIterator.__new__(LocalIterator)  # without what computes, whose threads can be told only once
        reader._lock, reader._failure, reader._back = threading.RLock(), None, ()
        reader._tally = tally = Tally(Merged(epoch=0))
        chunks = iter([Chunk([0, 1, 2], Origin(0, 0), range(3)), Chunk([3, 4, 5], Origin(0, 0), range(3, 6))])
        reader._elements = tally.handed(chunks)
        now = reader, []

    def read():
        reader, found = now
        for element in view(reader):
            found += [element]
            if len(found) == 4:
                return

    again = 0
    for _ in interrupted(read, begin):
        reader, found = now
        assert reader._tally.handed_out == len(found), "what its state says"
        with suppress(MillraceError):
            found += reader
            again += 1
            assert found == list(range(6))
        assert found == list(range(len(found)))
    assert again > 3


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "as it comes"])
@pytest.mark.parametrize("held", [False, True], ids=["", "held"])
def test_reading_an_epoch_loses_nothing_or_fails_for_ever(in_order, held, monkeypatch):
    monkeypatch.setattr(epoch_reader, "graph_digest", lambda graph: "")
    monkeypatch.setattr(epoch_reader, "unpack", lambda structure: structure)
    monkeypatch.setattr(Talk, "spec", SimpleNamespace(structure=b""), raising=False)
    lost, whole = 0, 0
    now: Any = None

    def begin():
        nonlocal now
        talk: Any = Talk(in_order=in_order, held=held)
        now = talk, epoch_reader.EpochReader(talk, talk, 0, None, None, EpochCursor(), None, lambda: None), []

    def read():
        _, reader, found = now
        for _ in range(2):
            reader._advance()
            found.extend(reader._tally.current)

    for _ in interrupted(read, begin):
        talk, reader, found = now
        talk.feed.allow(0, 12, last=True)
        try:
            found += reader
        except MillraceError:
            with pytest.raises(MillraceError, match="was interrupted"):
                next(reader)
            assert found == COMING[: len(found)]
            done, parts = reader._tally.now(talk.feed, 0)
            assert 6 * done.low + sum(outputs for _, outputs in parts) == len(found), "what its state says"
            lost += 1
        else:
            assert found == COMING
            whole += 1
    assert whole > lost > 0
