"""Ctrl-C at any moment in the reader's thread leaves no lock held: all others go on, and the program ends."""

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from millrace.client.feed import Feed
from millrace.elements.chunk import Chunk, Origin
from millrace.engine.ahead import Ahead
from millrace.engine.measure import Measure
from millrace.wire.channel import _Outbox


def interrupted(action):
    """Runs ``action()`` again and again, interrupted at each place where the interpreter looks for signals in turn."""
    for place in count():
        left = [place]

        def profile(frame, event, argument, left=left):
            if event in ("call", "c_return"):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt

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
