import threading

import pytest

from millrace.engine.run.pooled_reads import PooledReads


def names():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace-read")]


def test_closed_reads_begin_no_thread():
    """A read that ended as they were closed began another one, whose thread stayed."""
    pooled, done = PooledReads(), threading.Event()
    pooled.reads.beside(done.set)
    assert done.wait(60)
    pooled.close()
    ran: list[int] = []
    pooled.reads.beside(lambda: ran.append(threading.get_ident()))
    assert ran == [threading.get_ident()]
    assert names() == []


@pytest.mark.parametrize("at_hand", [False, True])
def test_reads_at_hand_have_no_threads(at_hand):
    pooled, ran = PooledReads(at_hand=at_hand), list[int]()
    pooled.reads.beside(lambda: ran.append(threading.get_ident()))
    pooled.close()
    assert (ran == [threading.get_ident()]) == at_hand
