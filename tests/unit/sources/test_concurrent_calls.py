import threading

import pytest

from millrace.sources import concurrent_calls
from millrace.sources.concurrent_calls import concurrently, in_order


def test_results_come_in_order_and_of_errors_the_first():
    together = threading.Barrier(4, timeout=30)

    def work(number):
        together.wait()
        if number in (1, 3):
            raise ValueError(number)
        return number * 10

    with pytest.raises(ValueError, match=r"^1$"):
        concurrently(work, [0, 1, 2, 3], 4)
    assert concurrently(lambda number: number * 10, list(range(50))) == [n * 10 for n in range(50)]
    assert concurrently(str, []) == []
    assert concurrently(lambda _: threading.current_thread(), [1]) == [threading.current_thread()]


class FarServer:
    """Server that takes 50 ms for each call, however many there are, of time that goes on only when it says so."""

    def __init__(self):
        self.now, self.waiting, self.turn, self.over = 0.0, 0, 0, False
        self.changed = threading.Condition()

    def call(self, item):
        with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            mine = self.turn
            assert self.changed.wait_for(lambda: self.turn > mine or self.over, 30)
        return item

    def answer(self, expected):
        """Answer all calls once so many are waiting."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.waiting >= expected, 30), self.waiting
            found, self.waiting = self.waiting, 0
            self.turn += 1
            self.now += 0.05
            self.changed.notify_all()
        return found


def test_a_server_far_away_is_asked_by_twice_as_many_while_that_pays_and_no_more_than_are_bearable(monkeypatch):
    server = FarServer()
    found: list[int] = []
    monkeypatch.setattr(concurrent_calls, "clock", lambda: server.now)
    lister = threading.Thread(target=lambda: found.extend(in_order(server.call, range(2000))))
    lister.start()
    try:
        assert [server.answer(expected) for expected in (64, 128, 256, 256)] == [64, 128, 256, 256]
    finally:
        with server.changed:
            server.over = True
            server.changed.notify_all()
        lister.join()
    assert found == list(range(2000))


def test_a_result_that_is_long_in_coming_holds_up_those_behind_it_in_bounded_number(monkeypatch):
    monkeypatch.setattr(concurrent_calls, "clock", lambda: 0.0)  # calls take no time: more at once always pay
    first, begun, go_on = threading.Event(), [], threading.Event()

    def items():
        for number in range(5000):
            begun.append(number)
            if len(begun) == 1024:
                go_on.set()
            yield number

    def work(number):
        if number == 0:
            assert first.wait(30)
        return number

    results = in_order(work, items())
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.extend(results))
    reader.start()
    assert go_on.wait(30)
    seen = len(begun)
    first.set()
    reader.join()
    assert seen == 1024
    assert found == list(range(5000))


def test_who_stops_early_has_no_more_begun_and_leaves_no_thread():
    before = threading.active_count()
    begun: list[int] = []
    results = in_order(begun.append, range(5000))
    next(results)
    results.close()
    assert len(begun) <= 1024 + 64
    assert threading.active_count() == before


def test_where_the_system_has_no_more_threads_those_that_there_are_do_it(monkeypatch):
    started: list[threading.Thread] = []

    class Scarce(threading.Thread):
        def start(self):
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
            started.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Scarce)
    assert concurrently(lambda number: number + 1, list(range(500))) == list(range(1, 501))
    assert len(started) == 3
