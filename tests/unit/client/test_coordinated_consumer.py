"""A consumer of coordinated reads: what it grants, what it reads next, and its states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.planning.checkpoint import Checkpoint, TasksRead, pack, unpack
from millrace.planning.progress import TaskSet
from millrace.protocol import data_messages as data
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec

ONE = "one:1"


class Rank:
    """A core that reads slots 0 and 1, and what it says."""

    def __init__(self, state: Checkpoint | None = None, *, tasks: int | None = 6) -> None:
        spec = JobSpec(
            "job", b"", "bundle", num_consumers=2, deterministic=True, coordinated="drop", cycle_length=2, seed=7
        )
        self.core = ConsumerCore(msg.JoinJob(spec, "client", 1), 100, decode=list)
        self.handle(msg.JobJoined("job", 1, 7, 2.0))
        self.handle(io.EpochWanted(0))
        state = state or Checkpoint()
        read = TasksRead(state.done, state.later, state.begun)
        self.handle(msg.EpochBegun(0, tasks, turn=state.turn, read=read))

    def handle(self, item: io.Input) -> list[io.Action]:
        actions = self.core.handle(item, 0.0)
        said = list(actions)
        actions.clear()
        return said

    def read(self, *tasks: int, start: int = 0) -> list[io.Action]:
        said = self.handle(msg.ReadTasks(0, [msg.TaskRead(task, 1, "w", ONE, start) for task in tasks]))
        return said + (self.handle(io.Connected(ONE)) if io.Connect(ONE) in said else [])

    def deliver(self, task: int, index: int, size: int = 1, *, last: bool = False) -> list[io.Action]:
        header = data.Delivery(0, task, 1, index, 1, last=last)
        return self.handle(io.Delivered(ONE, header, [f"{task}:{index}"], size))

    def ask(self) -> list[io.Action]:
        ask = io.MoreWanted(0, 0.0, self.core.ready)
        said = self.handle(ask)
        if said and isinstance(said[-1], io.Decode):
            arrival = said[-1].arrival
            said += self.handle(io.Decoded(ask, arrival, arrival.decoded()))
        return said

    def take(self) -> list[Any]:
        """What the user gets."""
        assert any(isinstance(action, io.HandedOut) for action in self.ask())
        assert self.core.reading is not None
        return list(self.core.reading.current)

    def state(self) -> Checkpoint:
        assert self.core.reading is not None
        return unpack(pack(self.core.reading.state(self.core.spec, 1, "graph")))


def granted(actions: Iterable[io.Action]) -> list[tuple[int, int]]:
    """(slot, bytes) of what workers are granted."""
    told = [action.message for action in actions if isinstance(action, io.TellWorker)]
    return [(message.slot, message.bytes) for message in told if isinstance(message, data.Credit)]


def test_each_slot_of_a_worker_is_granted_bytes_as_it_is_read() -> None:
    rank = Rank()
    assert granted(rank.read(0)) == [(0, 50)]
    assert granted(rank.read(1, 2)) == [(1, 25)]


def test_what_is_read_next_is_let_in_beside_a_full_buffer_and_nothing_else() -> None:
    rank = Rank()
    rank.read(0, 1)
    rank.deliver(1, 0, 25)
    rank.handle(io.TooSmall(ONE, data.Short(75, 1, 0, slot=1)))
    assert granted(rank.handle(io.TooSmall(ONE, data.Short(90, 1, 50, slot=0)))) == [(1, 75)]
    rank.deliver(1, 1, 75)
    rank.handle(io.TooSmall(ONE, data.Short(80, 1, 0, slot=1)))
    assert granted(rank.ask()) == [(0, 90)]
    assert granted(rank.ask()) == [], "until it has come"
    rank.deliver(0, 0, 90)
    assert rank.take() == ["0:0"]


def test_nothing_is_let_in_while_nobody_knows_where_the_next_round_will_be() -> None:
    rank = Rank()
    rank.read(1)
    rank.deliver(1, 0, 90)
    rank.handle(io.TooSmall(ONE, data.Short(80, 1, 0, slot=1)))
    assert granted(rank.ask()) == []


def test_a_state_of_what_operators_took_goes_on_behind_it_and_names_the_rank_of_a_member() -> None:
    rank = Rank()
    rank.read(0, 1)
    reading = rank.core.reading
    assert reading is not None
    reading.take_current()
    for task in (0, 1):
        rank.deliver(task, 0)
        rank.ask()
        assert reading.take_current()[1] == task
    reading.made_of(0, 1, 1)
    spec = msgspec.structs.replace(rank.core.spec, sharing="lockstep")
    states = [reading.state(spec, 1, "graph", taken=taken) for taken in (False, True)]
    assert [(state.rank, state.turn, state.begun) for state in states] == [(1, 1, [(0, 1)]), (1, 0, [(0, 1), (1, 1)])]


def test_a_state_says_which_slot_is_next_and_a_rank_goes_on_there() -> None:
    rank = Rank()
    assert rank.state().turn == 0
    rank.read(0, 1)
    rank.deliver(0, 0)
    rank.deliver(0, 1, last=True)
    rank.deliver(1, 0)
    assert rank.take() == ["0:0"]
    state = rank.state()
    assert (state.turn, state.begun, state.done) == (1, [(0, 1)], 0)
    assert rank.take() == ["1:0"]
    assert rank.take() == ["0:1"]
    state = rank.state()
    assert (state.turn, state.begun, state.done) == (1, [(1, 1)], 1)

    successor = Rank(state)
    assert successor.state() == state, "before anything came"
    successor.read(1, start=1)
    successor.read(2)
    successor.deliver(2, 0)
    assert not any(isinstance(action, io.HandedOut) for action in successor.ask()), "slot 1 is next"
    successor.deliver(1, 1)
    assert successor.take() == ["1:1"]


def test_what_was_handed_back_is_not_counted() -> None:
    rank = Rank()
    rank.read(0, 1)
    rank.deliver(0, 0)
    rank.deliver(1, 0)
    rank.take()
    assert any(isinstance(action, io.HandedOut) for action in rank.ask())
    assert rank.state().turn == 1, "the round of slot 1 lies there, and nobody has taken it"


@pytest.mark.parametrize("tasks", [6, None])
def test_a_rank_that_is_ahead_waits_for_what_it_lacks_alone(tasks: int | None) -> None:
    done = TaskSet.of([0, 1, 2])
    rank = Rank(Checkpoint(done=done.low, later=done.text(), turn=0), tasks=tasks)
    rank.read(3)
    rank.deliver(3, 0, last=True)
    assert not any(isinstance(action, io.HandedOut) for action in rank.ask()), "task 4 of slot 0 is next"
    rank.read(4)
    rank.deliver(4, 0, last=True)
    assert rank.take() == ["4:0"]
    assert rank.take() == ["3:0"]
    rank.handle(msg.EpochEnds(0, [3, 4]))
    assert any(isinstance(action, io.Over) for action in rank.ask())
    assert rank.state().ended
