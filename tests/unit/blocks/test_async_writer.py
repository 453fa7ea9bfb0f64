"""Drafts that are written on a thread of their own."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millrace.blocks import async_writer as behinds
from millrace.blocks.async_writer import write_async
from millrace.errors import StoreFullError


class Paper:
    def __init__(self, room=1 << 40):
        self.room, self.data, self.published, self.threads = room, b"", [], set()
        self.go = threading.Event()
        self.go.set()

    def write(self, data, /):
        assert self.go.wait(20)
        self.threads.add(threading.current_thread())
        if len(self.data) + len(data) > self.room:
            raise StoreFullError("there is no room")
        self.data += bytes(data)

    def publish(self, point, name):
        self.published.append((point, name, len(self.data)))


@pytest.fixture
def threads():
    with ThreadPoolExecutor(1) as made:
        yield made


def pieces(count, size=300_000):
    return [bytes([number % 251]) * size for number in range(count)]


def test_all_is_written_in_order_and_elsewhere_before_it_is_published(threads):
    paper, parts = Paper(), pieces(50)
    with write_async(paper, threads) as draft:
        for part in parts:
            draft.write(part)
        draft.publish("point", "name")
    assert paper.data == b"".join(parts)
    assert paper.published == [("point", "name", len(paper.data))]
    assert threading.current_thread() not in paper.threads


def test_no_more_than_some_megabytes_wait(threads, monkeypatch):
    monkeypatch.setattr(behinds, "_UNDER_WAY", 2)
    paper = Paper()
    paper.go.clear()
    with write_async(paper, threads) as draft:
        written = []

        def write():
            for part in pieces(40):
                draft.write(part)
                written.append(len(part))

        writer = threading.Thread(target=write)
        writer.start()
        writer.join(0.2)
        held = sum(written)
        paper.go.set()
        writer.join(20)
        draft.publish("point", "name")
    assert held < 4 * (1 << 20) + 300_000
    assert len(paper.data) == 40 * 300_000


@pytest.mark.parametrize("room", [0, 5_000_000])
def test_what_cannot_be_written_is_said_in_the_end_at_the_latest(threads, room):
    paper = Paper(room)
    with pytest.raises(StoreFullError), write_async(paper, threads) as draft:
        for part in pieces(20):
            draft.write(part)
        draft.publish("point", "name")
    assert not paper.published


def test_what_is_given_up_is_not_written_any_more(threads):
    paper = Paper()
    with write_async(paper, threads) as draft:
        for part in pieces(20):
            draft.write(part)
    before = len(paper.data)
    threads.submit(int).result()
    assert len(paper.data) == before
    assert not paper.published
