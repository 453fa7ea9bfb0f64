"""Reads begun before they are asked for: in which order, how many, what is held, and what is let go."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SourceError
from millrace.policies import read_hedging
from millrace.sources import read_scheduler
from millrace.sources.reads import AnnouncedReads, Reads, joined
from millrace.sources.store_requests import Entry, RequestWatch
from millrace.sources.stores import NoRangesError

SIZE = 10


def entry(number: int, size: int = SIZE) -> Entry:
    return Entry(f"http://far/{number}", 0, size, "v", size)


def feed(*numbers: int) -> Iterator[Entry]:
    return map(entry, numbers)


@contextlib.contextmanager
def announced(reads: Reads, owner: object, key: tuple[int, int], entries: Iterator[Entry]) -> Iterator[AnnouncedReads]:
    """Announce what is asked for in the body."""
    with reads.announce(owner, key, entries) as begun, begun.asking():
        yield begun


class Store:
    """Requests wait until they are told to go on."""

    def __init__(self, *, budget: int = 10_000, chosen: int | None = None, bad: int = -1) -> None:
        self.asked: list[int] = []
        self.waiting: list[Callable[[], None]] = []
        self.bad = bad
        self.reads = Reads(self.start, chosen=chosen, budget=budget, request=self.request)

    def start(self, work: Callable[[], None]) -> None:
        self.waiting.append(work)

    def request(self, entry: Entry, watch: RequestWatch) -> bytes:
        watch.began()
        number = int(entry.location.rpartition("/")[2])
        self.asked.append(number)
        if number == self.bad:
            raise SourceError(f"no {number}")
        return b"%010d" % number

    def go(self, count: int = 1) -> None:
        for _ in range(count):
            self.waiting.pop(0)()

    def fetch(self, *numbers: int) -> list[int]:
        while self.waiting and not set(numbers) <= set(self.asked):
            self.go()
        return [self.one(number) for number in numbers]

    def one(self, number: int) -> int:
        if number not in self.asked:  # it is begun by the fetch, and runs on its thread
            self.waiting = Immediately()
        return int(self.reads.fetch([entry(number)])[0])


class Immediately(list[Callable[[], None]]):
    def append(self, work: Callable[[], None]) -> None:
        work()


def test_reads_are_under_way_before_they_are_asked_for() -> None:
    store = Store(chosen=3)
    with announced(store.reads, None, (0, 0), feed(5, 6, 7, 8, 9)):
        assert len(store.waiting) == 3
        assert store.fetch(5, 6) == [5, 6]
        assert store.fetch(7, 8, 9) == [7, 8, 9]
    assert store.asked == [5, 6, 7, 8, 9]
    assert store.reads.account.requests == 5
    assert store.reads.account.bytes == 50
    assert store.reads.account.held == 0


def test_no_more_bytes_are_held_than_there_is_room_for() -> None:
    store = Store(budget=25)
    with announced(store.reads, None, (0, 0), feed(1, 2, 3, 4)):
        assert len(store.waiting) == 2
        store.go(2)
        assert not store.waiting, "what lies ready counts too"
        assert store.fetch(1) == [1]
        assert len(store.waiting) == 1


def test_an_element_larger_than_all_is_read_when_it_is_due() -> None:
    store = Store(budget=5)
    with announced(store.reads, None, (0, 0), feed(1, 2, 3)):
        assert not store.waiting
        assert store.fetch(1, 2, 3) == [1, 2, 3]
    assert store.asked == [1, 2, 3]


def test_what_comes_next_is_read_when_what_runs_has_enough() -> None:
    store = Store(chosen=4)
    store.reads.expect(None, [((0, 1), feed(11, 12, 13)), ((0, 2), feed(21, 22))])
    with announced(store.reads, None, (0, 0), feed(1, 2)):
        store.fetch(1, 2)
    store.go(len(store.waiting))
    assert store.asked[:4] == [11, 12, 13, 21], "what was announced first had all four places"
    with announced(store.reads, None, (0, 1), feed(11, 12, 13)):
        assert store.fetch(11, 12, 13) == [11, 12, 13]
    assert sorted(store.asked) == [1, 2, 11, 12, 13, 21, 22], "nothing was read twice"


def test_what_runs_goes_before_what_comes() -> None:
    store = Store(chosen=2)
    with announced(store.reads, None, (0, 0), feed(1, 2, 3)):
        store.reads.expect(None, [((0, 1), feed(11, 12))])
        store.go(4)
        assert store.asked == [1, 2, 3, 11]


def test_who_announces_anew_takes_back_what_was_announced_before() -> None:
    store = Store(chosen=1)
    store.reads.expect("one", [((0, 1), feed(11, 12, 13))])
    store.reads.expect("other", [((0, 5), feed(51, 52))])
    store.reads.expect("one", [((0, 2), feed(21))])
    store.go(4)
    assert store.asked == [11, 51, 52, 21], "but for what was under way"
    store.reads.expect("one", [])
    store.reads.expect("other", [])
    assert store.reads.account.held == 0


def test_a_task_that_asks_for_something_else_is_served_all_the_same() -> None:
    store = Store(chosen=2)
    store.reads.expect(None, [((0, 1), feed(11, 12, 13))])
    with announced(store.reads, None, (0, 1), feed(31, 32)):
        assert store.fetch(31, 32, 40, 41) == [31, 32, 40, 41]


def test_two_tasks_at_once_share_what_may_be_under_way() -> None:
    store = Store(chosen=4)
    one = store.reads.announce("a", (0, 0), feed(1, 2, 3, 4, 5, 6))
    other = store.reads.announce("b", (0, 1), feed(11, 12, 13, 14))
    store.go(8)
    assert set(store.asked) >= {1, 2, 3, 4, 11, 12}, "who has least is next"
    one.close()
    other.close()
    store.go(len(store.waiting))
    assert store.reads.account.held == 0, "what nobody asked for is let go"


def test_an_error_comes_where_it_belongs_and_the_rest_goes_on() -> None:
    store = Store(chosen=4, bad=2)
    with announced(store.reads, None, (0, 0), feed(1, 2, 3)):
        store.go(3)
        assert store.fetch(1) == [1]
        with pytest.raises(SourceError, match="no 2"):
            store.fetch(2)
        assert store.fetch(3) == [3]
    assert store.asked == [1, 2, 3]


def test_who_leaves_early_begins_no_more() -> None:
    store = Store(chosen=1)
    with announced(store.reads, None, (0, 0), feed(1, 2, 3)) as begun:
        assert store.fetch(1) == [1]
    begun.close()
    store.go(len(store.waiting))
    assert not store.waiting
    store.reads.expect(None, [((0, 1), feed(11, 12))])
    store.reads.close()
    store.go(len(store.waiting))
    assert not store.waiting
    assert 12 not in store.asked


def test_what_depends_on_a_read_is_asked_for_when_that_has_come() -> None:
    store = Store(chosen=4)
    known: list[int] = []

    def entries() -> Iterator[Entry | None]:
        yield entry(1)
        while not known:
            yield None
        yield entry(2)

    store.reads.expect(None, [((0, 1), entries())])
    store.go()
    assert not store.waiting
    known.append(2)
    store.reads.expect("other", [])
    assert len(store.waiting) == 1
    store.go()
    assert store.asked == [1, 2]


def test_the_time_that_reads_take_is_told() -> None:
    store = Store()
    with announced(store.reads, None, (0, 0), feed(1, 2)):
        assert store.fetch(1, 2) == [1, 2]
    assert store.reads.meter.reading_s > 0
    assert store.reads.meter.waited_s >= 0


class Exhausted(Store):
    """Of the threads that reads are begun on, ``left`` can be started."""

    def __init__(self, left: int) -> None:
        super().__init__(chosen=3)
        self.left = left

    def start(self, work: Callable[[], None]) -> None:
        if not self.left:
            raise RuntimeError("can't start new thread")
        self.left -= 1
        self.waiting.append(work)


@pytest.mark.parametrize("left", range(6))
def test_what_no_thread_can_be_started_for_is_read_by_who_asks(left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_scheduler, "_LOOK_S", 0.0)
    store = Exhausted(left)
    found = []
    with announced(store.reads, None, (0, 0), feed(1, 2, 3, 4, 5)):
        for number in range(1, 6):
            store.go(len(store.waiting))
            found.append(int(store.reads.fetch([entry(number)])[0]))
    assert found == [1, 2, 3, 4, 5]
    assert sorted(store.asked) == [1, 2, 3, 4, 5], "nothing was read twice"


def test_a_read_has_come_though_no_other_can_be_begun_after_it() -> None:
    store = Exhausted(1)
    store.reads.announce(None, (0, 0), feed(1, 2, 3))
    (work,) = store.waiting
    store.reads._scheduler._begin_more = refuse  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        work()
    assert next(iter(store.reads._scheduler._running[0].begun)).result.done()


def refuse() -> None:
    raise MemoryError


# -- requests that take long -------------------------------------------------------------------------------------------


def test_a_request_that_takes_long_is_made_a_second_time_and_the_first_answer_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(read_hedging, "hedge_after_s", lambda durations, requests, hedged: 0.0)
    store = Store(chosen=1)
    starts = list[Callable[[], None]]()

    def start(work: Callable[[], None]) -> None:
        starts.append(work)
        if len(starts) == 2:
            work()  # the first one hangs

    store.reads._scheduler._start = start
    assert store.reads.fetch([entry(1)]) == [b"%010d" % 1]
    account = store.reads.account
    assert (account.requests, account.hedged, account.held) == (2, 1, 0)
    starts[0]()
    assert (account.under_way, account.held) == (0, 0)


# -- slowing down ------------------------------------------------------------------------------------------------------


def test_requests_that_were_under_way_together_slow_the_rest_down_once() -> None:
    store = Store()
    store.request = slow_down(store.request)  # type: ignore[method-assign]
    store.reads._scheduler._request = store.request
    with announced(store.reads, None, (0, 0), feed(*range(40))):
        assert store.reads.in_flight.level == 16
        store.go(16)
        assert store.reads.in_flight.level == 8
        assert "slow down" in store.reads.in_flight.reason
    assert store.reads.account.retried == 16


def slow_down(request: Callable[..., bytes]) -> Callable[..., bytes]:
    def failing(entry: Entry, watch: RequestWatch) -> bytes:
        if int(entry.location.rpartition("/")[2]) < 16:
            watch.again(slow_down=True)
        return request(entry, watch)

    return failing


# -- ranges and streams ------------------------------------------------------------------------------------------------

FILE = random.Random(0).randbytes(3_000_000)
LISTED = Entry("http://far/file", 0, len(FILE), "v", len(FILE))


class Ranges:
    """Answers requests for ranges of :data:`FILE` at once."""

    def __init__(self, budget: int = 1 << 20, *, ranges: bool = True) -> None:
        self.asked: list[Entry] = []
        self.ranges = ranges
        self.reads = Reads(lambda work: work(), budget=budget, request=self.request)

    def request(self, entry: Entry, watch: RequestWatch) -> bytes:
        watch.began()
        if not self.ranges and not entry.whole:
            raise NoRangesError("no ranges here")
        self.asked.append(entry)
        return FILE[entry.start : entry.stop]


def test_a_stream_reads_blocks_ahead_each_once_within_its_bound() -> None:
    store = Ranges()
    with store.reads.open(LISTED) as stream:
        assert stream.read(10) == FILE[:10]
        assert 2 <= len(store.asked) <= 9, "ahead, and bounded"
        assert store.reads.account.held <= 1 << 20
        assert stream.read() == FILE[10:]
    assert [each.start for each in store.asked] == [0, *[each.stop for each in store.asked[:-1]]]
    assert store.reads.account.held == 0


@given(st.lists(st.tuples(st.integers(0, len(FILE)), st.integers(0, 300_000)), max_size=8), st.integers(0, 1 << 20))
def test_a_stream_reads_what_the_file_has_wherever_it_is_sought(places: list[tuple[int, int]], first: int) -> None:
    store, plain = Ranges(), io.BytesIO(FILE)
    with store.reads.open(LISTED._replace(start=first)) as stream:
        assert stream.tell() == first
        for place, size in places:
            at = max(first, place)
            assert stream.seek(at) == plain.seek(at)
            assert stream.read(size) == plain.read(size)
    assert store.reads.account.held == 0


def test_of_two_that_read_the_same_neither_takes_what_is_read_for_the_other() -> None:
    """Else the other's would be read once more, and let fall, if it came first to its end."""
    store = Store()
    store.waiting = Immediately()
    one = store.reads.announce("a", (0, 0), feed(1, 2, 3))
    other = store.reads.announce("a", (0, 0), feed(3, 4))
    with other, other.asking():
        assert store.fetch(3, 4) == [3, 4]
    with one, one.asking():
        assert store.fetch(1, 2, 3) == [1, 2, 3]
    assert store.asked == [1, 2, 3, 3, 4]
    assert store.reads.account.held == 0


def test_a_stream_takes_what_was_announced() -> None:
    store = Ranges()
    ahead = list(store.reads.blocks(LISTED))
    store.reads.expect(None, [((0, 0), iter(ahead))])
    before = len(store.asked)
    assert before > 1
    with announced(store.reads, None, (0, 0), iter(ahead)), store.reads.open(LISTED) as stream:
        assert stream.read() == FILE
    assert sorted(store.asked) == sorted(ahead), "each once"


def test_ranges_that_lie_together_are_asked_for_together() -> None:
    store = Ranges()
    parts = [LISTED.part(start, start + 100) for start in (5000, 0, 100, 1_000_000, 5050, 2_000_000)]
    assert store.reads.fetch(parts) == [FILE[part.start : part.stop] for part in parts]
    assert [(each.start, each.stop) for each in store.asked] == [
        (0, 5150),
        (1_000_000, 1_000_100),
        (2_000_000, 2_000_100),
    ]


def test_the_same_file_twice_is_read_once_and_given_twice() -> None:
    store = Ranges()
    assert store.reads.fetch([LISTED, LISTED]) == [FILE, FILE]
    assert len(store.asked) == 1
    assert joined([LISTED, entry(1), LISTED.part(0, 5)]) == [LISTED, entry(1)]


def test_a_part_is_counted_and_bounded_on_its_own() -> None:
    store = Ranges()
    one, other = store.reads.part(100), store.reads.part(200)
    one.fetch([LISTED.part(0, 50)])
    assert (one.account.bytes, other.account.bytes, store.reads.account.bytes) == (50, 0, 0)
    assert (one.account.budget, other.account.budget) == (100, 200)


# -- announcements change nothing --------------------------------------------------------------------------------------


@given(st.data())
def test_whatever_was_announced_who_asks_gets_what_is_there(data: st.DataObject) -> None:
    """Announce anything, for tasks that run or come, in any order, and ask for something else in between."""
    store = Ranges(budget=data.draw(st.sampled_from([40_000, 1 << 20])))
    blocks = list(store.reads.blocks(LISTED))[:12]
    some = st.lists(st.sampled_from([*blocks, None]), max_size=12)
    steps = data.draw(st.lists(st.sampled_from(["expect", "begin", "end", "ask", "open"]), max_size=12))
    running = []
    for number, step in enumerate(steps):
        if step == "expect":
            tasks = [((0, task), iter(data.draw(some))) for task in data.draw(st.lists(st.integers(0, 4), max_size=3))]
            store.reads.expect(data.draw(st.sampled_from("ab")), tasks)
        elif step == "begin":
            running.append(store.reads.announce("a", (0, number % 5), iter(data.draw(some))))
        elif step == "end" and running:
            running.pop(data.draw(st.integers(0, len(running) - 1))).close()
        elif step == "ask":
            who = data.draw(st.sampled_from([None, *running]))
            for asked in data.draw(st.lists(st.sampled_from(blocks), max_size=4)):
                with contextlib.nullcontext() if who is None else who.asking():
                    assert store.reads.fetch([asked]) == [FILE[asked.start : asked.stop]]
        elif step == "open":
            with store.reads.open(LISTED) as stream:
                assert stream.read(200_000) == FILE[:200_000]
    for each in running:
        each.close()
    for owner in "ab":
        store.reads.expect(owner, [])
    assert (store.reads.account.held, store.reads.account.under_way) == (0, 0)
    assert not store.reads._scheduler._ahead
    assert not store.reads.account.tasks


def test_what_runs_is_still_announced_when_only_what_comes_is() -> None:
    store = Store(chosen=4)
    store.reads.expect("a", [((0, 1), feed(1, 2, 3, 4, 5, 6)), ((0, 2), feed(11, 12))])
    with announced(store.reads, "a", (0, 1), feed(1, 2, 3, 4, 5, 6)):
        for number in range(1, 7):
            assert store.fetch(number) == [number]
            store.reads.expect("a", [((0, 2), feed(11, 12))])
            store.reads.expect("a", [((0, 1), feed(1, 2, 3, 4, 5, 6)), ((0, 2), feed(11, 12))])
    store.go(len(store.waiting))
    store.reads.expect("a", [])
    assert sorted(store.asked) == [1, 2, 3, 4, 5, 6, 11, 12], "each once"
    assert store.reads.account.held == 0


# -- with a cache ------------------------------------------------------------------------------------------------------


class Tier:
    """Cache that has what was read before."""

    def __init__(self, *, there: bool = True) -> None:
        self.there = there
        self.kept: dict[Entry, bytes] = {}
        self.asked: list[Entry] = []

    def tier(self, fetch: Callable[[Entry, RequestWatch], bytes]) -> Callable[[Entry, RequestWatch], bytes]:
        def read(entry: Entry, watch: RequestWatch) -> bytes:
            self.asked.append(entry)
            if entry not in self.kept:
                self.kept[entry] = fetch(entry, watch)
            return self.kept[entry]

        return read


def test_with_a_cache_each_range_is_asked_for_by_itself_so_that_others_find_it() -> None:
    tier, store = Tier(), Ranges()
    reads = Reads(lambda work: work(), request=store.request, tier=tier)
    parts = [LISTED.part(start, start + 100) for start in (0, 200, 50, 200)]
    assert reads.fetch(parts) == [FILE[each.start : each.stop] for each in parts]
    assert store.asked == list(dict.fromkeys(parts))
    tier.there = False
    reads.fetch(parts)
    assert tier.asked[-1] == LISTED.part(0, 300), "where there is none, they are joined"


def test_with_a_cache_streams_ask_for_the_same_blocks_wherever_they_begin() -> None:
    tier, store = Tier(), Ranges()
    reads = Reads(lambda work: work(), request=store.request, tier=tier)
    with reads.open(LISTED) as stream:
        assert stream.read() == FILE
    whole = [(each.start, each.stop) for each in store.asked]
    assert whole == [(0, 1 << 20), (1 << 20, 2 << 20), (2 << 20, len(FILE))]
    with reads.open(LISTED.part(1_500_000, len(FILE))) as stream:
        assert stream.read() == FILE[1_500_000:]
    assert [(each.start, each.stop) for each in store.asked[3:]] == [(1_500_000, 2 << 20)]


def test_what_a_cache_has_says_nothing_about_the_store() -> None:
    """Else every read that a nearly full cache lacks would be slow beside the rest, and be made a second time."""
    tier, store = Tier(), Ranges()
    reads = Reads(lambda work: work(), request=store.request, tier=tier)
    part = LISTED.part(0, 100)
    for _ in range(100):
        reads.fetch([part])
    assert sum(map(len, reads._scheduler._durations.values())) == 1
    assert (reads.account.requests, reads.account.bytes) == (1, 100), "what a store is paid for"
    assert reads.account.cached == 99 * 100
