"""What a consumer decides: of its session, its epochs, its workers and what its user gets. No thread, no socket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.errors import ElementTooLargeError, JobFailedError, MillraceError, ProtocolError, ServiceError, StateError
from millrace.graph import serialize
from millrace.graph.nodes import Range
from millrace.graph.operator_graph import Graph
from millrace.protocol import data_messages as data
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.reports import Flow, Told

ONE, TWO = "one:1", "two:1"
FAILED = JobFailedError("the sources are gone")


class Consumer:
    """A core, and what it said when."""

    def __init__(self, *, buffer_bytes: int = 100, join: bool = True, **options: Any) -> None:
        structure, _ = serialize.pack(Graph(Range(start=0, stop=9, step=1)))
        options = {"num_consumers": 2, **options}
        lingers = options.pop("lingers", False)
        who = msg.JoinJob(JobSpec("", structure, "bundle", **options), "client", 1, lingers=lingers)
        self.core = ConsumerCore(who, buffer_bytes, decode=list)
        self.now = 0.0
        if join:
            self.handle(msg.JobJoined("job", 1, 7, 2.0, generation=3, told=Told("service", "life", 0, -1, 5.0)))

    def handle(self, item: io.Input) -> list[io.Action]:
        actions = self.core.handle(item, self.now)
        said = list(actions)
        actions.clear()
        return said

    def said(self, item: io.Input) -> list[Any]:
        """What the dispatcher is told."""
        return [action.message for action in self.handle(item) if isinstance(action, io.Tell)]

    def begin(self, epoch: int = 0, *, held: bool = False) -> None:
        self.handle(io.EpochWanted(epoch))
        self.handle(msg.EpochBegun(epoch, 4, held=held))

    def read(self, task: int, address: str = ONE, lease: int = 1, start: int = 0, epoch: int = 0) -> list[io.Action]:
        """The task can be read there, from where a connection is made if need be."""
        actions = self.handle(msg.ReadTasks(epoch, [msg.TaskRead(task, lease, "w", address, start)]))
        if io.Connect(address) in actions:
            actions += self.handle(io.Connected(address))
        return actions

    def deliver(
        self,
        task: int,
        index: int,
        outputs: Sequence[int],
        *,
        address: str = ONE,
        last: bool = False,
        epoch: int = 0,
        lease: int = 1,
    ) -> list[io.Action]:
        header = data.Delivery(epoch, task, lease, index, len(outputs), last=last)
        return self.handle(io.Delivered(address, header, list(outputs), 10 * len(outputs)))

    def ask(self, epoch: int = 0) -> io.Answer | None:
        """The answer to a user who wants more, once what came was decoded."""
        ask = io.MoreWanted(epoch, self.now, self.core.ready)
        answer = self._answer(ask)
        if isinstance(answer, io.Decode):
            answer = self._answer(io.Decoded(ask, answer.arrival, answer.arrival.decoded()))
        return answer

    def _answer(self, item: io.Input) -> io.Answer | None:
        answers = [action for action in self.handle(item) if isinstance(action, io.Answer)]
        return answers[-1] if answers else None

    def take(self, epoch: int = 0) -> list[int]:
        """What the user gets."""
        assert isinstance(self.ask(epoch), io.HandedOut)
        assert self.core.reading is not None
        return list(self.core.reading.current)


@pytest.fixture
def consumer() -> Consumer:
    consumer = Consumer()
    consumer.begin()
    return consumer


def report(said: list[Any]) -> msg.ConsumerReport:
    (found,) = [message for message in said if isinstance(message, msg.ConsumerReport)]
    return found


# -- the session -------------------------------------------------------------------------------------------------------


def test_who_joins_first_says_who_it_is_and_who_comes_back_what_it_was_told() -> None:
    consumer = Consumer(join=False)
    first = consumer.core.join(4.0)
    assert (first.resume, first.consumer, first.told, first.age_s) == (False, 1, Told(), 4.0)
    consumer.handle(msg.JobJoined("job", 1, 7, 2.0, generation=3, told=Told("service", "life", 0, -1, 5.0)))
    consumer.begin()
    consumer.read(0, lease=9)
    again = consumer.core.join(8.0)
    assert (again.resume, again.generation, again.spec.name, again.spec.seed) == (True, 3, "job", 7)
    assert again.told == Told("service", "life", 9, 0, 5.0)


def test_who_comes_back_says_all_that_it_has_and_what_it_reads(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2], last=True)
    consumer.handle(io.Beat())
    consumer.handle(io.SessionLost())
    assert consumer.said(io.Beat()) == [], "there is nobody to tell"
    told, begins = consumer.said(msg.JobJoined("job", 1, 7, 2.0))
    assert told.tasks == [msg.TaskProgress(0, 2, complete=True)]
    assert begins == msg.BeginEpoch(0)


def test_who_comes_back_between_two_epochs_says_all_that_was_read_of_the_one_before(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2, 3])
    assert consumer.take() == [1, 2, 3]
    consumer.handle(io.End(0))
    consumer.handle(io.EpochWanted(1))
    consumer.handle(io.SessionLost())
    told, begins = consumer.said(msg.JobJoined("job", 1, 7, 2.0))
    assert (told.epoch, told.tasks, told.batches) == (0, [msg.TaskProgress(0, 3)], 3)
    assert begins == msg.BeginEpoch(1)


def test_an_epoch_that_was_left_is_not_received_when_the_dispatcher_comes_back(consumer: Consumer) -> None:
    consumer.handle(io.End(0))
    consumer.handle(io.SessionLost())
    consumer.handle(msg.JobJoined("job", 1, 7, 2.0))
    consumer.handle(msg.EpochBegun(0, 4))
    assert consumer.read(0) == []


def test_a_report_says_what_moved_since_the_one_before(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2])
    assert report(consumer.said(io.Beat())).tasks == [msg.TaskProgress(0, 2)]
    assert report(consumer.said(io.Beat())).tasks == []


def test_what_ctrl_c_kept_from_being_said_is_said_with_the_next_report(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2])
    with monkeypatch.context() as patch:
        patch.setattr(ConsumerCore, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            consumer.handle(io.Beat())
    assert report(consumer.said(io.Beat())).tasks == [msg.TaskProgress(0, 2)]
    assert report(consumer.said(io.Beat())).tasks == []


def test_who_leaves_says_what_it_does_not_use_unless_it_leaves_its_place_to_another() -> None:
    leaving, lingering = Consumer(), Consumer(lingers=True)
    for consumer in (leaving, lingering):
        consumer.begin()
        consumer.read(0)
        consumer.deliver(0, 0, [1, 2, 3])
    assert leaving.said(io.Leave())[-1] == msg.LeaveJob(3)
    assert [type(each) for each in lingering.said(io.Leave())] == [msg.ConsumerReport]
    assert isinstance(leaving.ask(), io.Refuse)


# -- epochs ------------------------------------------------------------------------------------------------------------


def test_numbers_of_an_epoch_that_was_dropped_are_not_those_of_the_next_one(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2, 3])
    consumer.take()
    of_first, begins = consumer.said(io.EpochWanted(1))
    assert (of_first.epoch, of_first.batches, begins) == (0, 3, msg.BeginEpoch(1))
    consumer.handle(io.End(0))  # as whoever hears of it late does
    consumer.handle(msg.EpochBegun(1, 4))
    assert (report(consumer.said(io.Beat())).epoch, report(consumer.said(io.Beat())).batches) == (1, 0)


def test_an_epoch_that_ends_early_hangs_up_and_is_said_once(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2, 3])
    actions = consumer.handle(io.End(0))
    assert io.Disconnect(ONE) in actions
    assert [action.handed for action in actions if isinstance(action, io.EpochLeft)] == [0]
    assert consumer.handle(io.End(0)) == []
    assert consumer.handle(io.Disconnected(ONE)) == []
    assert not consumer.core.wants(ONE)


def test_the_first_words_of_other_ranks_are_awaited() -> None:
    consumer = Consumer(join=False)
    consumer.handle(msg.JobJoined("job", 1, 7, 2.0, waits=True))
    assert consumer.core.following is None
    consumer.handle(msg.Resumed(4))
    consumer.handle(msg.Resumed(9))
    assert consumer.core.following == 4


def test_what_nobody_reads_is_told_at_the_end_and_later_if_it_is_heard_of_later(consumer: Consumer) -> None:
    consumer.handle(msg.EpochEnds(0, [], "rank 0 has gone"))
    assert consumer.ask() == io.Over("rank 0 has gone")
    consumer.handle(io.End(0))
    assert io.Warn("rank 2 has gone") in consumer.handle(msg.EpochEnds(0, [], "rank 2 has gone"))
    assert consumer.core.read_to == 0


def test_what_nobody_reads_is_told_where_all_stop_at_a_step() -> None:
    consumer = Consumer()
    consumer.begin(held=True)
    consumer.read(0)
    consumer.deliver(0, 0, [1])
    consumer.handle(msg.StepsReady(0, 0, last=True, unread="rank 0 has gone"))
    assert consumer.ask() == io.Over("rank 0 has gone")
    consumer.handle(io.End(0))
    assert consumer.handle(msg.EpochEnds(0, [], "rank 0 has gone")) == [io.ReportSoon()]
    assert io.Warn("rank 2 has gone") in consumer.handle(msg.StepsReady(0, 0, last=True, unread="rank 2 has gone"))


def test_what_others_wait_for_is_let_in_though_the_buffer_is_full_of_what_may_not_be_used_yet() -> None:
    consumer = Consumer(buffer_bytes=2)
    consumer.begin(held=True)
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2])
    assert consumer.ask() is None
    assert consumer.handle(io.TooSmall(ONE, data.Short(5, 5, 0))) == []
    assert consumer.ask() is None
    assert consumer.handle(msg.StepsReady(0, 0, awaited=7)) == []
    assert consumer.handle(msg.StepsReady(0, 0, awaited=0)) == [io.TellWorker(ONE, data.Credit(4, 1))]
    assert consumer.handle(msg.StepsReady(0, 0, awaited=0)) == []


# -- what the user gets ------------------------------------------------------------------------------------------------


def test_what_came_before_a_failure_may_be_used(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2])
    consumer.handle(io.Broke(FAILED))
    consumer.handle(io.Broke(JobFailedError("of something else")))
    assert consumer.take() == [1, 2]
    assert consumer.ask() == io.Refuse(FAILED)


def test_of_what_is_held_until_all_have_as_much_what_was_allowed_may_be_used_before_a_failure() -> None:
    consumer = Consumer()
    consumer.begin(held=True)
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2, 3])
    assert consumer.ask() is None
    consumer.handle(msg.StepsReady(0, 2))
    consumer.handle(io.Broke(FAILED))
    assert consumer.take() == [1, 2]
    assert consumer.ask() == io.Refuse(FAILED)


def test_what_others_have_no_more_of_is_left_out_and_counted_once() -> None:
    consumer = Consumer(equal_steps=True)
    consumer.begin(held=True)
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2, 3])
    consumer.deliver(0, 3, [4, 5], last=True)
    consumer.handle(msg.StepsReady(0, 2, last=True))
    consumer.handle(msg.StepsReady(0, 5))
    assert consumer.take() == [1, 2]
    assert isinstance(consumer.ask(), io.Over)
    assert isinstance(consumer.ask(), io.Over)
    assert consumer.core.left_out == 3


def test_the_first_elements_are_said_before_they_are_used(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2])
    consumer.deliver(0, 2, [3])
    assert consumer.ask() == io.HandedOut(first=True)
    assert report(consumer.said(io.Used())).batches == 1, "one is being handed out"
    assert consumer.ask() == io.HandedOut(first=False)


def test_who_read_an_epoch_without_elements_to_its_end_says_that_it_had_none(consumer: Consumer) -> None:
    consumer.handle(msg.EpochEnds(0, []))
    assert isinstance(consumer.ask(), io.Over)
    told = report(consumer.said(io.End(0)))
    assert (told.batches, told.ended) == (0, True)


def test_nothing_may_be_used_of_what_was_closed_which_says_why(consumer: Consumer) -> None:
    consumer.handle(io.Leave())
    answer = consumer.ask()
    assert isinstance(answer, io.Refuse)
    assert isinstance(answer.error, ServiceError)
    assert "the session was closed" in str(answer.error)


def test_who_failed_before_it_was_closed_says_why_it_failed(consumer: Consumer) -> None:
    consumer.handle(io.Broke(FAILED))
    consumer.handle(io.Leave())
    assert consumer.ask() == io.Refuse(FAILED)


def test_a_message_that_ctrl_c_lost_is_noticed(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2])
    assert consumer.core.inbox is not None
    consumer.core.inbox.take()
    answer = consumer.ask()
    assert isinstance(answer, io.Refuse)
    assert answer.lost
    assert type(answer.error) is MillraceError


def test_a_state_says_what_was_handed_out_and_what_ended(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.read(1)
    consumer.deliver(0, 0, [1, 2], last=True)
    consumer.deliver(1, 0, [3, 4, 5], last=True)
    assert consumer.take() == [1, 2]
    consumer.take()
    reading = consumer.core.reading
    assert reading is not None
    reading.current = iter([5])  # of which the user has not had the last
    state = reading.state(consumer.core.spec, 1, "graph")
    assert (state.seed, state.done, state.begun, state.rank, state.ended) == (7, 1, [(1, 2)], 1, False)


@pytest.mark.parametrize(("options", "reason"), [({"sharding": "off"}, "OFF"), ({"num_consumers": None}, "say num_")])
def test_jobs_whose_place_nobody_can_name_have_no_states(options: dict[str, Any], reason: str) -> None:
    consumer = Consumer(**options)
    consumer.begin()
    assert consumer.core.reading is not None
    with pytest.raises(StateError, match=reason):
        consumer.core.reading.state(consumer.core.spec, 1, "graph")


# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_worker_is_connected_once_and_asked_for_all_that_is_to_come_from_it(consumer: Consumer) -> None:
    reads = [msg.TaskRead(task, task + 5, "w", ONE) for task in (0, 1)]
    assert consumer.handle(msg.ReadTasks(0, reads)) == [io.Connect(ONE)]
    orders = [each.message for each in consumer.handle(io.Connected(ONE)) if isinstance(each, io.TellWorker)]
    assert orders == [data.Credit(50, 50), data.Read(0, 0, 5), data.Read(0, 1, 6)]
    assert consumer.read(2, lease=9) == [io.TellWorker(ONE, data.Read(0, 2, 9))]


def test_a_connection_that_breaks_is_made_again_while_anything_is_to_come(consumer: Consumer) -> None:
    consumer.read(0)
    assert consumer.handle(io.Disconnected(ONE)) == [io.Connect(ONE, again=True)]
    consumer.handle(io.Connected(ONE))
    consumer.deliver(0, 0, [1], last=True)
    assert consumer.handle(io.Disconnected(ONE)) == []


def test_a_task_goes_on_at_another_worker_where_it_was(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2, 3])
    assert consumer.take() == [1, 2, 3]
    assert io.TellWorker(TWO, data.Read(0, 0, 2, 2)) in consumer.read(0, TWO, lease=2), "the last is compared"
    actions = consumer.deliver(0, 2, [3, 4], address=TWO, last=True)
    assert io.TellWorker(TWO, data.Received(0, 0, 4, complete=True)) in actions
    assert consumer.take() == [4]


def test_what_comes_twice_is_dropped_and_its_credit_given_back(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2])
    actions = consumer.deliver(0, 0, [1, 2])
    assert actions == [
        io.TellWorker(ONE, data.Received(0, 0, 2)),
        io.TellWorker(ONE, data.Credit(40, 50)),  # 20 of 100 bytes are held, and 10 of the worker's 50 still granted
    ]
    assert consumer.take() == [1, 2]
    assert consumer.ask() is None


def test_what_comes_of_another_epoch_is_dropped(consumer: Consumer) -> None:
    consumer.read(0)
    assert consumer.deliver(0, 0, [1], epoch=3) == []
    assert consumer.ask() is None


def test_a_gap_is_refused(consumer: Consumer) -> None:
    consumer.read(0)
    with pytest.raises(ProtocolError, match="output 0 is missing"):
        consumer.deliver(0, 4, [5])


def test_a_run_that_gives_less_than_the_one_before_breaks_the_guarantee(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [1, 2, 3])
    consumer.read(0, TWO, lease=2)
    assert io.ReportSoon() in consumer.deliver(0, 1, [2], address=TWO, last=True)
    assert "fewer elements" in str(consumer.core.failure)
    assert report(consumer.said(io.Beat())).differed == 1


def test_a_run_that_gives_something_else_is_told_once(consumer: Consumer) -> None:
    for task in (0, 1):
        consumer.read(task)
        consumer.deliver(task, 0, [1, 2])
    told = []
    for task in (0, 1):
        consumer.read(task, TWO, lease=2)
        told += [each for each in consumer.deliver(task, 1, [9], address=TWO) if isinstance(each, io.Warn)]
    assert len(told) == 1
    assert "another element" in told[0].text
    assert consumer.core.failure is None


def test_an_element_that_fits_no_buffer_is_refused_with_the_remedy(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.handle(io.TooSmall(ONE, data.Short(101, 1, 50)))
    assert isinstance(consumer.core.failure, ElementTooLargeError)
    assert "buffer_bytes=" in str(consumer.core.failure)


def test_what_is_larger_than_the_buffer_allows_is_let_in_when_the_user_waits_for_it() -> None:
    consumer = Consumer(deterministic=True)
    consumer.begin()
    consumer.read(0)
    consumer.read(1, TWO)
    consumer.deliver(1, 0, list(range(5)), address=TWO)
    consumer.handle(io.TooSmall(ONE, data.Short(90, 1, 50)))
    assert consumer.handle(io.MoreWanted(0, 0.0, 0)) == [io.TellWorker(ONE, data.Credit(90, 25))]


def test_what_came_is_counted_by_where_it_came_from(consumer: Consumer) -> None:
    consumer.handle(msg.ReadTasks(0, [msg.TaskRead(0, 1, "w", ONE, local=True)]))
    consumer.handle(io.Connected(ONE))
    consumer.read(1, TWO)
    consumer.deliver(0, 0, [1, 2])
    consumer.deliver(1, 0, [3], address=TWO)
    assert consumer.core.flows.came == (Flow(2, 20), Flow(1, 10))


# -- windows -----------------------------------------------------------------------------------------------------------


def test_what_a_window_did_not_keep_is_acknowledged_and_does_not_come_again(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [10, 11])
    said = consumer.handle(io.OutputsMissed(ONE, data.Skipped(0, 0, 1, 5)))
    assert said == [io.TellWorker(ONE, data.Received(0, 0, 5))]
    assert consumer.handle(io.OutputsMissed(ONE, data.Skipped(0, 0, 1, 5))) == []
    told = report(consumer.said(io.Beat()))
    assert (told.tasks, told.missed) == ([msg.TaskProgress(0, 5, complete=False)], 3)
    consumer.handle(io.Disconnected(ONE))
    assert io.TellWorker(ONE, data.Read(0, 0, 1, 5)) in consumer.handle(io.Connected(ONE))


def test_behind_what_a_lost_worker_skipped_nothing_of_it_is_read(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.deliver(0, 0, [10, 11])
    consumer.read(0, TWO, lease=2, start=2)
    assert consumer.handle(io.OutputsMissed(ONE, data.Skipped(0, 0, 1, 5))) == []
    assert consumer.deliver(0, 5, [15], last=True) == [io.TellWorker(ONE, data.Received(0, 0, 1))]
    consumer.deliver(0, 1, [11, 12], address=TWO, last=True, lease=2)
    assert (consumer.take(), consumer.take()) == ([10, 11], [12])


def test_a_state_counts_what_was_missed_once_all_before_it_was_handed_out(consumer: Consumer) -> None:
    consumer.read(0)
    consumer.read(1)
    consumer.deliver(0, 0, [10, 11])
    consumer.handle(io.OutputsMissed(ONE, data.Skipped(0, 0, 1, 5)))
    consumer.deliver(0, 5, [], last=True)
    consumer.handle(io.OutputsMissed(ONE, data.Skipped(0, 1, 1, 7)))
    consumer.deliver(1, 7, [], last=True)
    reading = consumer.core.reading
    assert reading is not None
    states = [(list(done), begun) for done, begun in [reading.now()]]
    assert states == [([1], [])], "of the other task nothing was handed out"
    assert consumer.take() == [10, 11]
    done, begun = reading.now()
    assert (list(done), begun) == ([0, 1], [])


def test_who_has_no_room_still_takes_what_is_only_compared() -> None:
    consumer = Consumer(buffer_bytes=20)
    consumer.begin()
    consumer.read(0)
    consumer.deliver(0, 0, [10, 11])
    assert consumer.handle(io.TooSmall(ONE, data.Short(10, 1, 0, 0))) == []
    consumer.read(0, TWO, lease=2)
    (granted,) = consumer.handle(io.TooSmall(TWO, data.Short(10, 1, 0, 0)))
    assert isinstance(granted, io.TellWorker)
    assert isinstance(granted.message, data.Credit)
    assert granted.address == TWO
