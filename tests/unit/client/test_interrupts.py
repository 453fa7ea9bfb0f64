"""Ctrl-C at any moment in the reader's thread leaves no lock held: all others go on, and the program ends."""

import gc
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.client import consumer_io as io
from millrace.client import epoch_reader
from millrace.client.behind import BehindReader
from millrace.client.consumer_core import ConsumerCore
from millrace.client.deferred_reader import DeferredReader
from millrace.client.epoch_iterator import EpochIterator
from millrace.client.notices import Notices
from millrace.client.shared_core import SharedCore
from millrace.elements.chunk import Chunk, Origin
from millrace.elements.codec import encode
from millrace.engine.metrics import Measure
from millrace.engine.run.arrival_metrics import ArrivalMetrics
from millrace.engine.run.local_epoch import LocalIterator
from millrace.engine.run.progress_tracker import ProgressTracker
from millrace.engine.threads.prefetch import PrefetchThread
from millrace.errors import MillraceError
from millrace.frameworks.base import Converted
from millrace.graph.nodes import Arrivals, Map, Opaque
from millrace.graph.operator_graph import Graph
from millrace.planning.checkpoint import Merged
from millrace.planning.epoch_cursor import EpochCursor
from millrace.protocol.data_messages import Delivery
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import EpochBegun, EpochEnds, JobJoined, JoinJob, StepsReady
from millrace.wire.control.client_session import ClientSession


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
        gc.disable()  # what others have the collector call is not to be interrupted
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
            gc.enable()


@pytest.fixture
def free():
    """Whether another thread can have a lock."""
    with ThreadPoolExecutor(1) as other:

        def take(lock):
            return lock.acquire(blocking=False) and (lock.release() or True)

        yield lambda lock: other.submit(take, lock).result()


def test_taking_from_a_core(free):
    talk = Talk(in_order=False, held=False)

    def read():
        talk.shared.take(0)
        talk.shared.handle(io.Beat())
        talk.shared.handle(io.End(0))

    for _ in interrupted(read):
        assert free(talk.shared.lock)


def test_sending(free):
    ready = SimpleNamespace(check_usable=lambda: None, remember_end_of=lambda call: None)
    call = SimpleNamespace(add_done_callback=lambda done: None)
    session = ClientSession(cast("Any", ready), lambda messages: call, lambda answered: None, Any)
    for _ in interrupted(lambda: session.send(b"message")):
        assert free(session._sending)


def test_taking_what_was_computed_ahead(free):
    ahead = PrefetchThread(iter(()), 3, lambda: 1 << 20)
    measure = Measure()

    def read():
        ahead._ready.append((Chunk([1], Origin(0, 0), range(1)), 8))
        return ahead._next(measure)

    for _ in interrupted(read):
        assert free(ahead._lock)


class Talk:
    """A session about one epoch, of which all has come."""

    pid, closed, states, seed, consumer = os.getpid(), False, "", 0, 0

    def __init__(self, *, in_order, held):
        spec = JobSpec("job", b"", "", deterministic=in_order)
        self.core = ConsumerCore(JoinJob(spec, "client", 0), 1 << 20)
        self.shared = SharedCore(self.core, self, buffer_bytes=1 << 20)
        self.notices = Notices(lambda error: None)
        self.tell(JobJoined("job", 0, 1, 5.0))
        self.tell(io.EpochWanted(0), EpochBegun(0, 2, held=held))
        assert self.core.inbox is not None
        for task in range(2):
            self.core.inbox.assign(task, 1, "worker")
            for index in range(0, 6, 3):
                payload = b"".join(encode([10 * task + index + place for place in range(3)]))
                self.tell(io.Delivered("worker", Delivery(0, task, 1, index, 3, last=index > 0), payload, 8))
        self.tell(EpochEnds(0, [0, 1]), StepsReady(0, 4))

    def tell(self, *items):
        for item in items:
            self.shared.handle(item)

    def begin(self, reading):
        self.core.reading, reading.begun = reading, self.core.begun
        return reading.begun

    def end(self, number):
        self.tell(io.End(number))

    def counted(self):
        """Elements that its state says were read."""
        assert self.core.reading is not None
        done, parts = self.core.reading.now()
        return 6 * done.low + sum(outputs for _, outputs in parts)

    check = say = warn = state = report_soon = epoch_left = lambda self, *_: None


def iterator_of(talk):
    reader = epoch_reader.EpochReader(talk, talk, 0, None, None, EpochCursor(), lambda: None)
    return EpochIterator(DeferredReader(lambda state: pytest.fail("nobody loads"), reader=reader))


def behind_of(talk):
    """The same, by way of an operator behind ``distribute()``."""
    reader = epoch_reader.EpochReader(talk, talk, 0, None, None, EpochCursor(), lambda: None)
    held = DeferredReader(lambda state: pytest.fail("nobody loads"), reader=reader)
    graph = Graph(Map(inputs=(Arrivals(),), fn=Opaque(int, "int")))
    return BehindReader(held, graph, "", (), lambda state: (), lambda: None, [], ArrivalMetrics(graph))


COMING = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("held", [False, True], ids=["", "held"])
@pytest.mark.parametrize("view", [iter, lambda reader: Converted(reader, lambda element: element)], ids=["", "view"])
@pytest.mark.parametrize("make", [iterator_of, behind_of])
def test_what_a_state_counts_after_ctrl_c_is_what_the_loop_got(held, view, make, monkeypatch):
    monkeypatch.setattr(epoch_reader, "graph_digest", lambda graph: "")
    monkeypatch.setattr(epoch_reader, "unpack", lambda structure: structure)
    now: Any = None

    def begin():
        nonlocal now
        talk: Any = Talk(in_order=True, held=held)
        reader = make(talk)
        now = talk, reader, [next(reader)] if make is behind_of else []  # what it begins with is no part of this

    def read():
        _, reader, found = now
        for element in view(reader):
            found += [element]
            if len(found) == 4:
                return

    again = 0
    for _ in interrupted(read, begin):
        talk, reader, found = now
        if make is behind_of:
            reader._account.now()
            assert talk.counted() <= len(found), "who goes on from its state lacks none"
        else:
            assert talk.counted() == len(found), "what its state says"
        talk.tell(StepsReady(0, 12, last=True))
        with suppress(MillraceError):
            found += reader
            again += 1
            assert found == COMING
        assert found == COMING[: len(found)]
        if make is behind_of:
            reader.close()
    assert again > 5


@pytest.mark.parametrize("view", [iter, lambda reader: Converted(reader, lambda element: element)], ids=["", "view"])
def test_the_same_in_process(view):
    now: Any = None

    def begin():
        nonlocal now
        reader: Any = LocalIterator.__new__(LocalIterator)  # without what computes, whose threads can be told only once
        reader._lock, reader._failure, reader._back = threading.RLock(), None, ()
        reader._progress = tally = ProgressTracker(Merged(epoch=0))
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
        assert reader._progress.handed_out == len(found), "what its state says"
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
    lost, whole = 0, 0
    now: Any = None

    def begin():
        nonlocal now
        talk: Any = Talk(in_order=in_order, held=held)
        now = talk, iterator_of(talk), []

    def read():
        _, reader, found = now
        for _ in range(2):
            reader._reader.advance()
            found.extend(reader._reader.progress.current)

    for _ in interrupted(read, begin):
        talk, reader, found = now
        talk.tell(StepsReady(0, 12, last=True))
        try:
            found += reader
        except MillraceError:
            with pytest.raises(MillraceError, match="was interrupted"):
                next(reader)
            assert found == COMING[: len(found)]
            assert talk.counted() == len(found), "what its state says"
            lost += 1
        else:
            assert found == COMING
            whole += 1
    assert whole > lost > 0
