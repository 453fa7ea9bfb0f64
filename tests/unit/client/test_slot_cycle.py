"""Order of coordinated reads: the same for every rank, whatever comes when, and from wherever it goes on."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client.epoch_buffer import EpochBuffer
from millrace.client.slot_cycle import SlotCycle
from millrace.errors import ProtocolError
from millrace.planning.plan import tail_inputs
from millrace.planning.progress import TaskSet
from millrace.protocol.messages import TaskProgress

Rounds = tuple[int, int]
UNREAD = 2
"""Tasks of a slot that are named and have not come; no further ones are until one of them has."""
ROOM = 3
"""Messages that lie ready; only what is read next comes beside them."""


def expected(counts: list[int], length: int, tasks: int | None = 0) -> list[Rounds]:
    """Write down (task, round) in the order of the cycle."""
    tasks = len(counts) if tasks == 0 else tasks
    taken, order, turn = [0] * len(counts), list[Rounds](), 0

    def first_of(slot: int, over: list[bool]) -> int | None:
        return next((task for task in range(slot, len(counts), length) if not over[task]), None)

    while True:
        over: list[bool] = []
        for task, count in enumerate(counts):
            before = [*tail_inputs(task, tasks), *([task - length] if task >= length else [])]
            over.append(taken[task] == count and all(over[each] for each in before))
        firsts = [first_of((turn + offset) % length, over) for offset in range(length)]
        able = (t for t in firsts if t is not None and all(over[each] for each in tail_inputs(t, tasks)))
        task = next(able, -1)
        if task < 0:
            return order
        order.append((task, taken[task]))
        taken[task] += 1
        turn = task + 1


class Rank:
    """A rank and what a service does for it, in an order that is drawn, as far as it may be another."""

    def __init__(self, rng: random.Random, counts: list[int], length: int, *, endless: bool = False) -> None:
        self.rng, self.counts, self.length, self.endless = rng, counts, length, endless
        self.read: list[Rounds] = []
        self.ended: set[int] = set()
        self.begin({}, 0)

    def begin(self, starts: dict[int, int], turn: int) -> None:
        """Begin, of each task, behind what was read of it."""
        self.over = TaskSet.of(task for task in self.ended if starts.get(task, 0) == self.counts[task])
        tasks = None if self.endless else len(self.counts)
        self.buffer = EpochBuffer(0, rounds=True, cycle=SlotCycle(self.length, tasks=tasks, turn=turn, over=self.over))
        self.starts, self.lease = starts, 0
        self.unnamed = [
            [t for t in range(slot, len(self.counts), self.length) if t not in self.over] for slot in range(self.length)
        ]
        self.sent: dict[int, int] = {}  # by task that has been named, rounds that its worker has sent
        self.ended = set()
        self.told = False

    def resume(self) -> None:
        """End, and go on from a state."""
        starts: dict[int, int] = {}
        for task, each in self.read:
            starts[task] = each + 1
        self.begin(starts, self.read[-1][0] + 1 if self.read else 0)

    def name(self) -> bool:
        """Name a task of a slot that has not many: a tail once all of its inputs were sent to their ends."""
        able = [
            slot
            for slot, tasks in enumerate(self.unnamed)
            if tasks and sum(t % self.length == slot for t in self.sent.keys() - self.ended) < UNREAD
            if all(each in self.over or each in self.ended for each in self.inputs(tasks[0]))
        ]
        if not able:
            return False
        task = self.unnamed[self.rng.choice(able)].pop(0)
        self.sent[task] = self.starts.get(task, 0)
        self.lease += 1
        self.buffer.assign(task, self.lease, "a:1", self.sent[task])
        return True

    def inputs(self, task: int) -> tuple[int, ...]:
        return tail_inputs(task, None if self.endless else len(self.counts))

    def send(self) -> bool:
        able = [t for t in self.sent if t not in self.ended]
        if self.buffer.ready >= ROOM:
            needed = self.buffer.needed()
            able = [t for t in able if needed is not None and t % self.length == needed[1]][:1]
        if not able:
            return False
        task = self.rng.choice(able)
        self.deliver(task)
        return True

    def deliver(self, task: int) -> None:
        index = self.sent[task]
        there = index < self.counts[task]
        last = index + there == self.counts[task]
        if there and last and self.rng.random() < 0.5:
            last = False  # the mark of the end comes by itself
        self.buffer.accept(task, index, int(there), [(task, index)] * there, 1, "a:1", lease=1, last=last)
        self.sent[task] += there
        if last:
            self.ended.add(task)

    def move(self) -> None:
        """Have another worker run a task again, which sends some of it a second time."""
        if self.sent:
            task = self.rng.choice([*self.sent])
            self.lease += 1
            start = self.buffer.assign(task, self.lease, "b:1")
            if task not in self.ended:
                self.sent[task] = self.rng.randint(min(self.starts.get(task, 0), start), start)

    def take(self) -> bool:
        arrival = self.buffer.take()
        if arrival is not None:
            self.read += arrival.payload[arrival.skip :]
        return arrival is not None

    def step(self) -> bool:
        """Let one thing happen; False if nothing can."""
        if not self.endless and not self.told and not any(self.unnamed) and self.rng.random() < 0.3:
            self.told = True
            self.buffer.ends([*self.sent])
        if self.rng.random() < 0.1:
            self.move()
        steps = [self.name, self.send, self.take]
        self.rng.shuffle(steps)
        return any(step() for step in steps)


COUNTS = st.lists(st.integers(0, 4), max_size=24)


@given(st.integers(0, 2**32), COUNTS, st.integers(1, 4))
def test_all_ranks_read_the_same_whatever_comes_when(seed, counts, length):
    rng = random.Random(seed)
    order = expected(counts, length)
    for _ in range(2):
        rank = Rank(rng, counts, length)
        while rank.step():
            assert rank.read == order[: len(rank.read)]
        assert rank.read == order
        rank.buffer.ends([*rank.sent])
        assert rank.buffer.finished


@given(st.integers(0, 2**32), COUNTS, st.integers(1, 4), st.lists(st.integers(0, 30), max_size=3))
def test_a_rank_goes_on_from_a_state_with_the_round_that_comes_next(seed, counts, length, stops):
    rank = Rank(random.Random(seed), counts, length)
    for steps in stops:
        for _ in range(steps):
            rank.step()
        rank.resume()
    while rank.step():
        pass
    assert rank.read == expected(counts, length)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 4), max_size=12), st.integers(1, 4))
def test_without_end_no_slot_is_left_out(seed, counts, length):
    rank = Rank(random.Random(seed), counts, length, endless=True)
    while rank.step():
        pass
    order = expected(counts, length, None)
    assert rank.read == order[: len(rank.read)]
    assert rank.buffer.needed() is None
    slots = [sum(counts[slot::length]) for slot in range(length)]
    shortest = min(range(length), key=slots.__getitem__)
    assert len(rank.read) == slots[shortest] * length + shortest


def test_a_tail_is_not_read_before_its_inputs_though_it_lies_ready():
    inbox = buffer(tasks=4)  # three tasks, and 3 takes what they leave over
    for task in (0, 1, 2, 3):
        inbox.assign(task, 1, "a:1")
    for task, last in ((1, True), (3, True), (0, False)):
        inbox.accept(task, 0, 1, [f"{task}:0"], 1, "a:1", lease=1, last=last)
    assert [inbox.take().payload, inbox.take().payload] == [["0:0"], ["1:0"]]  # type: ignore[union-attr]
    assert inbox.take() is None
    assert inbox.needed() == ("a:1", 0)
    inbox.accept(0, 1, 1, ["0:1"], 1, "a:1", lease=1, last=True)
    assert inbox.take().payload == ["0:1"]  # type: ignore[union-attr]
    assert inbox.take() is None, "3 is left out or not, as 2 will show"
    assert inbox.needed() == ("a:1", 0)
    inbox.accept(2, 0, 1, ["2:0"], 1, "a:1", lease=1, last=True)
    assert [inbox.take().payload, inbox.take().payload] == [["2:0"], ["3:0"]]  # type: ignore[union-attr]


def buffer(length: int = 2, tasks: int | None = None, **chosen: Any) -> EpochBuffer:
    return EpochBuffer(0, rounds=True, cycle=SlotCycle(length, tasks=tasks, **chosen))


def test_what_comes_next_is_needed_though_more_lies_ready():
    inbox = buffer()
    inbox.assign(0, 1, "a:1")
    inbox.assign(1, 2, "b:1")
    for number in range(9):
        inbox.accept(1, number, 1, [f"1:{number}"], 1, "b:1", lease=1, last=False)
    assert inbox.take() is None
    assert inbox.needed() == ("a:1", 0)
    inbox.accept(0, 0, 1, ["0:0"], 1, "a:1", lease=1, last=True)
    assert inbox.needed() is None
    assert [inbox.take().payload, inbox.take().payload] == [["0:0"], ["1:0"]]  # type: ignore[union-attr]
    assert inbox.take() is None, "the next task of slot 0 is awaited"
    assert inbox.needed() is None, "and nobody knows where it will be"
    assert not inbox.any_will_do


def test_a_slot_whose_tasks_were_all_read_is_left_out():
    inbox = buffer(tasks=3, over=TaskSet.of([0, 2]), turn=4)
    inbox.assign(1, 2, "b:1")
    inbox.accept(1, 0, 1, ["1:0"], 1, "b:1", lease=1, last=False)
    inbox.accept(1, 1, 1, ["1:1"], 1, "b:1", lease=1, last=True)
    assert inbox.take() is not None
    assert inbox.take() is not None
    assert not inbox.finished
    inbox.ends([0, 1, 2])
    assert inbox.finished


def test_the_last_tasks_are_waited_for_until_they_have_a_worker():
    inbox = buffer()
    inbox.ends([0, 1])
    inbox.assign(1, 2, "b:1")
    inbox.accept(1, 0, 1, ["1:0"], 1, "b:1", lease=1, last=True)
    assert inbox.take() is None
    inbox.assign(0, 3, "a:1")
    inbox.accept(0, 0, 0, [], 0, "a:1", lease=1, last=True)
    assert inbox.take() is not None


def test_a_task_of_before_that_is_leased_again_is_not_read_again():
    inbox = buffer(over=TaskSet.of([0]))
    inbox.assign(0, 9, "a:1", 3)
    assert inbox.progress() == [TaskProgress(0, 3, complete=True)]
    assert inbox.wanted(0), "so that its worker hears that it is read"
    assert not inbox.accept(0, 3, 1, ["0:3"], 1, "a:1", lease=1, last=True)
    assert not inbox.wanted(0)


def test_several_rounds_in_one_message_are_no_rounds():
    inbox = buffer()
    inbox.assign(0, 1, "a:1")
    with pytest.raises(ProtocolError, match="a:1 sent 2 rounds in one message"):
        inbox.accept(0, 0, 2, ["0:0", "0:1"], 1, "a:1", lease=1, last=False)


def test_an_input_without_rounds_that_a_state_has_is_not_over_before_those_in_front_of_it():
    over = TaskSet.of([*range(16), 17, 18, 19, 20])  # 20 gives nothing, and came while 16 was read
    cycle = SlotCycle(4, tasks=23, turn=1, over=over)
    for task in (16, 21):
        cycle.name(task)
    assert 20 in tail_inputs(21, 23)
    assert cycle.current(lambda _: False, lambda _: True) == 16, "as for a rank that was not interrupted"


@pytest.mark.parametrize(("task", "count", "over", "words"), [(0, 0, [], "5 in all"), (0, 1, [], ""), (1, 0, [0], "")])
def test_an_epoch_without_a_round_says_why_unless_one_was_read_before(task, count, over, words):
    inbox = buffer(tasks=1, over=TaskSet.of(over))
    inbox.assign(task, 1, "a:1")
    assert not inbox.unfilled
    inbox.accept(task, 0, count, ["0:0"] * count, 1, "a:1", lease=1, last=True, left_out=5)
    assert words in inbox.unfilled
    assert bool(inbox.unfilled) == bool(words)
