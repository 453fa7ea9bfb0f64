"""Reads begun before they are asked for: in which order, how many, and what is let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from millrace.errors import SourceError
from millrace.sources.reads import Array, ReadScheduler, ReadStream


class Store:
    """Reads wait until they are told to go on."""

    def __init__(self, *, budget: int = 10_000, chosen: int | None = None, size: int = 10, bad: int = -1) -> None:
        self.asked: list[int] = []
        self.waiting: list[Callable[[], None]] = []
        self.bad = bad
        self.reads = ReadScheduler(self._read, [size] * 1000, self.waiting.append, budget=budget, chosen=chosen)

    def _read(self, position: int) -> str:
        self.asked.append(position)
        if position == self.bad:
            raise SourceError(f"no {position}")
        return f"<{position}>"

    def go(self, count: int = 1) -> None:
        for _ in range(count):
            self.waiting.pop(0)()

    def fetch(self, stream: ReadStream, *positions: int) -> list[str]:
        while self.waiting and not set(positions) <= set(self.asked):
            self.go()
        elements, error = stream.fetch(np.array(positions))
        assert error is None
        return elements


def feed(*positions: int) -> Iterator[Array]:
    return iter([np.array(positions[:2], np.int64), np.array(positions[2:], np.int64)])


def test_reads_are_under_way_before_they_are_asked_for() -> None:
    store = Store(chosen=3)
    stream = store.reads.stream(None, (0, 0), feed(5, 6, 7, 8, 9))
    assert len(store.waiting) == 3
    assert store.fetch(stream, 5, 6) == ["<5>", "<6>"]
    assert store.fetch(stream, 7, 8, 9) == ["<7>", "<8>", "<9>"]
    assert store.asked == [5, 6, 7, 8, 9]


def test_no_more_bytes_are_held_than_there_is_room_for() -> None:
    store = Store(budget=25)
    stream = store.reads.stream(None, (0, 0), feed(1, 2, 3, 4))
    assert len(store.waiting) == 2
    store.go(2)
    assert not store.waiting, "what lies ready counts too"
    assert store.fetch(stream, 1) == ["<1>"]
    assert len(store.waiting) == 1


def test_an_element_larger_than_all_is_read_when_it_is_due() -> None:
    store = Store(budget=5)
    stream = store.reads.stream(None, (0, 0), feed(1, 2, 3))
    assert not store.waiting
    store.waiting = Immediately()
    store.reads._start = store.waiting.append
    assert stream.fetch(np.array([1, 2, 3]))[0] == ["<1>", "<2>", "<3>"]


class Immediately(list[Callable[[], None]]):
    def append(self, work: Callable[[], None]) -> None:
        work()


def test_what_comes_next_is_read_when_what_runs_has_enough() -> None:
    store = Store(chosen=4)
    store.reads.expect(None, [((0, 1), feed(11, 12, 13)), ((0, 2), feed(21, 22))])
    stream = store.reads.stream(None, (0, 0), feed(1, 2))
    store.fetch(stream, 1, 2)
    stream.close()
    store.go(len(store.waiting))
    assert store.asked[:4] == [11, 12, 13, 21], "what was announced first had all four places"
    following = store.reads.stream(None, (0, 1), feed(11, 12, 13))
    assert store.fetch(following, 11, 12, 13) == ["<11>", "<12>", "<13>"]
    assert sorted(store.asked) == [1, 2, 11, 12, 13, 21, 22], "nothing was read twice"


def test_what_runs_goes_before_what_comes() -> None:
    store = Store(chosen=2)
    stream = store.reads.stream(None, (0, 0), feed(1, 2, 3))
    store.reads.expect(None, [((0, 1), feed(11, 12))])
    store.go(4)
    assert store.asked == [1, 2, 3, 11]
    stream.close()


def test_who_announces_anew_takes_back_what_was_announced_before() -> None:
    store = Store(chosen=1)
    store.reads.expect("one", [((0, 1), feed(11, 12, 13))])
    store.reads.expect("other", [((0, 5), feed(51, 52))])
    store.reads.expect("one", [((0, 2), feed(21))])
    store.go(4)
    assert store.asked == [11, 51, 52, 21], "but for what was under way"


def test_a_task_that_asks_for_something_else_is_served_all_the_same() -> None:
    store = Store(chosen=2)
    store.reads.expect(None, [((0, 1), feed(11, 12, 13))])
    stream = store.reads.stream(None, (0, 1), feed(31, 32))
    assert store.fetch(stream, 31, 32) == ["<31>", "<32>"]
    assert stream.fetch(range(40, 42))[0] == ["<40>", "<41>"], "not announced: read at once"


def test_an_error_comes_where_it_belongs_and_the_rest_goes_on() -> None:
    store = Store(chosen=4, bad=2)
    stream = store.reads.stream(None, (0, 0), feed(1, 2, 3))
    store.go(3)
    assert stream.fetch(range(1, 2))[0] == ["<1>"]
    elements, error = stream.fetch(range(2, 3))
    assert (elements, str(error)) == ([], "no 2")
    assert stream.fetch(range(3, 4))[0] == ["<3>"]


def test_what_was_read_before_an_error_is_kept_and_not_read_again() -> None:
    store = Store(chosen=4, bad=3)
    stream = store.reads.stream(None, (0, 0), feed(1, 2, 3, 4))
    store.go(4)
    elements, error = stream.fetch(range(1, 5))
    assert (elements, str(error)) == (["<1>", "<2>"], "no 3")
    assert store.asked == [1, 2, 3, 4]


def test_who_leaves_early_begins_no_more() -> None:
    store = Store(chosen=1)
    with store.reads.stream(None, (0, 0), feed(1, 2, 3)) as stream:
        assert store.fetch(stream, 1) == ["<1>"]
    stream.close()
    store.go(len(store.waiting))
    assert not store.waiting
    store.reads.expect(None, [((0, 1), feed(11, 12))])
    store.reads.close()
    store.go(len(store.waiting))
    assert not store.waiting
    assert 12 not in store.asked


def test_two_tasks_at_once_share_what_may_be_under_way() -> None:
    store = Store(chosen=4)
    one = store.reads.stream("a", (0, 0), feed(1, 2, 3, 4, 5, 6))
    other = store.reads.stream("b", (0, 1), feed(11, 12, 13, 14))
    store.go(8)
    assert set(store.asked) >= {1, 2, 3, 4, 11, 12}, "who has least is next"
    one.close()
    other.close()


def test_the_time_that_reads_take_is_told() -> None:
    store = Store()
    stream = store.reads.stream(None, (0, 0), feed(1, 2))
    assert store.fetch(stream, 1, 2) == ["<1>", "<2>"]
    assert stream.reading_s > 0
    assert stream.waited_s >= 0


class Exhausted(Store):
    """Of the threads that reads are begun on, ``left`` can be started."""

    def __init__(self, left: int) -> None:
        super().__init__(chosen=3)
        self.left = left
        self.reads._start = self._try

    def _try(self, work: Callable[[], None]) -> None:
        if not self.left:
            raise RuntimeError("can't start new thread")
        self.left -= 1
        self.waiting.append(work)


@pytest.mark.parametrize("left", range(6))
def test_what_no_thread_can_be_started_for_is_read_by_who_asks(left: int) -> None:
    store = Exhausted(left)
    stream = store.reads.stream(None, (0, 0), feed(1, 2, 3, 4, 5))
    found = []
    for position in range(1, 6):
        store.go(len(store.waiting))
        found += stream.fetch(np.array([position]))[0]
    assert found == ["<1>", "<2>", "<3>", "<4>", "<5>"]
    assert sorted(store.asked) == [1, 2, 3, 4, 5], "nothing was read twice"


def test_a_read_has_come_though_no_other_can_be_begun_after_it() -> None:
    store = Exhausted(1)
    stream = store.reads.stream(None, (0, 0), feed(1, 2, 3))
    (work,) = store.waiting
    store.waiting.clear()
    store.reads._begin_more = refuse  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        work()
    assert stream._queue.begun[0].result.done()


def refuse() -> None:
    raise MemoryError
