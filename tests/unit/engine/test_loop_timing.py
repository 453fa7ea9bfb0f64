"""What a loop in this process knows of the processor while it reads."""

import pytest

from millrace.elements.chunk import Chunk, Origin
from millrace.engine import metrics
from millrace.engine.metrics import Loop

A, B = (Chunk([name], Origin(0, 0), range(1)) for name in "ab")


def test_only_the_time_of_the_loop_counts(monkeypatch: pytest.MonkeyPatch):
    """A process that was quiet for long, and is crowded now, lacks cores now."""
    moments = iter([(100.0, 1.0), (102.0, 4.0), (103.0, 6.0)])
    monkeypatch.setattr(metrics, "_cores_s", lambda: next(moments))
    loop = Loop()
    chunks = loop.timed(iter([A, B]))
    next(chunks)
    assert loop.cores_s() == (2.0, 3.0)
    assert list(chunks) == [B]
    assert loop.cores_s() == (3.0, 5.0)
    assert loop.cores_s() == (3.0, 5.0), "what comes after its end does not count"


def test_threads_that_have_ended_take_their_waiting_along(monkeypatch: pytest.MonkeyPatch):
    moments = iter([(100.0, 5.0), (102.0, 1.0)])
    monkeypatch.setattr(metrics, "_cores_s", lambda: next(moments))
    loop = Loop()
    list(loop.timed(iter([])))
    assert loop.cores_s() == (2.0, 0.0)
