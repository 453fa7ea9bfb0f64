"""What a worker decides: who runs, waits, goes on and is sent what."""

import pytest
from tests.unit.worker.core.worker_driver import CoreDriver

from millrace.protocol import messages as msg
from millrace.protocol.data_messages import Credit, FetchLeftovers, Open, Read, Received, Short
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.reports import NodeMeasure
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.worker_inputs import OutputMessage

MIB = 1 << 20
FAILURE = msg.Failure("ElementError", "no")


def ref(task, epoch=0, job="a"):
    return msg.TaskRef(job, epoch, task)


def test_who_may_not_send_anything_says_what_there_is_however_little():
    """Else elements that take long lie in the worker until they fill a message, and the consumer waits for them."""
    driver = CoreDriver()
    driver.connect("c", credit=0)
    lane = driver.lease(0, 1)
    driver.begin(lane)
    assert driver.ask(lane, inp.Step()).hungry is False, "nobody has asked"
    driver.say("c", Read(0, 0, 1))
    assert driver.ask(lane, inp.Step()).hungry is True
    driver.put(lane, 0, 10)
    assert [each.header for each in driver.taken(act.Send)] == [Short(10, 1, 0)]
    assert driver.ask(lane, inp.Step()).hungry is False, "one is enough to say so"


def test_messages_are_as_large_as_the_consumer_has_room_for_a_few():
    driver = CoreDriver(64 * MIB)
    lane = driver.lease(0, 1)
    driver.begin(lane)

    def after(peer, share):
        driver.say(peer, Credit(1, share))
        return driver.ask(lane, inp.Step()).message_bytes

    assert driver.ask(lane, inp.Step()).message_bytes == MIB, "nothing is known of it yet"
    driver.connect("c")
    shares = (128 * MIB, 12 * MIB, MIB, 0, 16 * MIB)
    assert [after("c", share) for share in shares] == [4 * MIB, 3 * MIB, MIB, MIB, 4 * MIB]
    for consumer in range(1, 32):
        driver.lease(consumer, 1 + consumer, consumer=consumer)
    assert driver.ask(lane, inp.Step()).message_bytes == MIB // 2, "a few have to fit here, too"
    driver.connect("another")
    assert driver.ask(lane, inp.Step()).message_bytes == MIB // 2, "another connection may have another share"


def test_a_run_waits_until_its_consumer_has_taken_something():
    driver = CoreDriver(100)
    lane = driver.lease(0, 1)
    driver.begin(lane)
    assert isinstance(driver.put(lane, 0, 60), act.GoOn)
    assert driver.put(lane, 1, 60) is None
    driver.connect("c")
    driver.say("c", Read(0, 0, 1))
    assert driver.sent() == [("c", 0, 0, False)]
    assert driver.answer() is None, "it is on its way"
    driver.say("c", Received(0, 0, 1))
    assert isinstance(driver.answer(), act.GoOn)
    assert driver.sent() == [("c", 0, 1, False)]
    driver.finish(lane, 2)
    assert driver.told() == [msg.TaskFinished(ref(0), 1, 2)]
    assert driver.sent() == [("c", 0, 2, True)]


def test_an_output_that_no_outbox_could_hold_is_refused():
    driver = CoreDriver(100)
    lane = driver.lease(0, 1)
    driver.begin(lane)
    assert driver.put(lane, 0, 101) == act.TooLarge(100)
    failure = msg.Failure("ElementTooLargeError", "no", needs=101)
    driver.feed(inp.RunEnded(lane, inp.RunFailed(failure)))
    assert driver.told() == [msg.TaskFailed(ref(0), 1, failure)]


@pytest.mark.parametrize("blocked", [False, True])
def test_a_lease_that_runs_is_returned_once_it_has_stopped(blocked):
    driver = CoreDriver(100)
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.put(lane, 0, 60)
    if blocked:
        assert driver.put(lane, 1, 60) is None
    driver.heard(msg.RevokeTask(ref(0), 1))
    verdict = driver.answer() if blocked else driver.ask(lane, inp.Step())
    assert verdict == act.Halt()
    assert driver.told() == []
    driver.feed(inp.RunEnded(lane, inp.Stopped()))
    assert driver.told() == [msg.TaskReturned(ref(0), 1)]
    assert driver.core.held() == []


def test_a_lease_that_waits_is_returned_at_once():
    driver = CoreDriver()
    lane = driver.lease(0, 1)
    assert driver.lease(1, 2) == 0
    driver.heard(msg.RevokeTask(ref(1), 2))
    assert driver.told() == [msg.TaskReturned(ref(1), 2)]
    driver.begin(lane)
    driver.finish(lane, 0)
    assert driver.taken(act.StartRun) == []


def test_what_nobody_wants_to_hear_of_ends_in_silence():
    driver = CoreDriver()
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.heard(msg.ForgetTasks([ref(0)]))
    driver.finish(lane, 3)  # it had just come to its end
    assert driver.told() == []
    assert driver.core.held() == []


def test_an_earlier_epoch_goes_before_what_is_computed_ahead():
    driver = CoreDriver(100)
    lane = driver.lease(0, 1, epoch=1)
    driver.begin(lane)
    driver.put(lane, 0, 40)
    assert driver.put(lane, 1, 40) is None
    driver.heard(msg.LeaseTask(ref(0), 2, 0))
    assert driver.answer() == act.Halt()
    driver.feed(inp.RunEnded(lane, inp.Stopped()))
    assert driver.told() == [msg.TaskReturned(ref(0, 1), 1)]
    assert [each.lease.lease for each in driver.taken(act.StartRun)] == [2]


def test_what_came_before_a_failure_is_delivered_first():
    driver = CoreDriver()
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.put(lane, 0, 10)
    driver.feed(inp.RunEnded(lane, inp.RunFailed(FAILURE)))
    assert driver.told() == []
    assert driver.lease(1, 2) == 0, "the lane is not free"
    driver.connect("c")
    driver.say("c", Read(0, 0, 1))
    driver.say("c", Received(0, 0, 1))
    assert driver.told() == [msg.TaskFailed(ref(0), 1, FAILURE)]
    assert [each.lease.lease for each in driver.taken(act.StartRun)] == [2]


def test_the_code_of_one_job_runs_at_a_time():
    driver = CoreDriver(1000, "a", "b")
    one, other = driver.lease(0, 1), driver.lease(0, 2, job="b")
    driver.begin(one)
    assert driver.ask(other, inp.Enter()) is None
    driver.feed(inp.CodeWanted("listing", "b"))
    assert driver.taken(act.CodeGranted) == []
    driver.finish(one, 0)
    assert isinstance(driver.answer(), act.GoOn)
    assert driver.taken(act.CodeGranted) == [act.CodeGranted("listing")], "it is of the same job"
    driver.feed(inp.CodeDone("listing"))


def test_with_care_the_dispatcher_knows_first_and_one_runs_at_a_time():
    driver = CoreDriver(100)
    one, other = driver.lease(0, 1, probe_level=2), driver.lease(1, 2, consumer=1, probe_level=2)
    driver.ask(one, inp.Enter())
    assert driver.ask(other, inp.Enter()) is None
    assert driver.ask(one, inp.Announce((1, 0), "map")) is None
    assert driver.told() == [msg.ProbeReport(ref(0), 1, 1, (1, 0), "map")]
    driver.heard(msg.ProbeAck(ref(0), 1, 0))
    assert driver.answer() is None, "that is not what it said"
    driver.feed(inp.SessionClosed())
    driver.feed(inp.SessionOpened(msg.WorkerHello("w", "w:1")))
    driver.heard(msg.WorkerWelcome(1.0))
    assert driver.told()[1:] == [msg.ProbeReport(ref(0), 1, 1, (1, 0), "map")], "it may not have been heard"
    driver.heard(msg.ProbeAck(ref(0), 1, 1))
    assert isinstance(driver.answer(), act.GoOn)
    driver.heard(msg.ProbeAck(ref(0), 1, 1))
    assert driver.answer() is None
    driver.ask(one, inp.BeginOutputs(0))
    driver.put(one, 0, 40)
    driver.feed(inp.RunAsks(one, inp.Put(OutputMessage(1, 1, [], 40), (-2, 1, 0), "between")))
    said = [each for each in driver.told() if isinstance(each, msg.ProbeReport)]
    assert [each.place for each in said] == [()], "while it waits it is not what ends the process"
    assert [each.lane for each in driver.taken(act.Resume)] == [other]
    driver.heard(msg.OutputsReceived([ref(0)]))
    assert driver.answer() is None, "there is room, and it is not its turn"
    driver.ask(other, inp.BeginOutputs(0))
    driver.finish(other, 0)
    assert [each.place for each in driver.told() if isinstance(each, msg.ProbeReport)] == [(-2, 1, 0)]
    driver.heard(msg.ProbeAck(ref(0), 1, 3))
    assert isinstance(driver.answer(), act.GoOn)


def test_leftovers_outlive_outputs_and_are_there_for_who_asks():
    driver = CoreDriver()
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.finish(lane, 0, leftovers=[7])
    assert driver.told()[0].leftovers
    driver.heard(msg.OutputsReceived([ref(0)]))
    assert driver.core.held() == [msg.HeldTask(ref(0), 1, 0, finished=True, leftovers=True)]
    driver.say("tail", FetchLeftovers(ref(0)))
    driver.heard(msg.ForgetTasks([ref(0)]))
    driver.say("tail", FetchLeftovers(ref(0)))
    assert [each.kept for each in driver.taken(act.SendLeftovers)] == [[7], None]


def test_a_second_connection_replaces_the_first_and_is_let_send_anew():
    driver = CoreDriver()
    driver.connect("c", credit=15)
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.say("c", Read(0, 0, 1))
    driver.put(lane, 0, 10)
    assert driver.sent() == [("c", 0, 0, False)]
    driver.connect("d", credit=4)
    assert driver.taken(act.HangUp) == [act.HangUp("c")]
    driver.say("c", Credit(100))
    driver.say("d", Read(0, 0, 1))
    assert driver.sent() == [], "what the first one let it send is void, and what the second one did is given back"
    driver.feed(inp.PeerLeft("c"))
    driver.say("d", Credit(10))
    assert driver.sent() == [("d", 0, 0, False)]


@pytest.mark.parametrize("received", [1, 2])
@pytest.mark.parametrize("ended", [False, True])
def test_a_task_of_which_a_reader_asks_for_what_another_one_acknowledged_is_given_back(received, ended):
    """The dispatcher does not know of who had the place before if its journal is an older one."""
    driver = CoreDriver()
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.put(lane, 0, 10)
    driver.put(lane, 1, 10)
    if ended:
        driver.finish(lane, 2, leftovers=[7])
    driver.connect("before")
    driver.say("before", Read(0, 0, 1))
    driver.say("before", Received(0, 0, received, complete=ended and received == 2))
    driver.connect("after")
    driver.told()
    driver.say("after", Read(0, 0, 1, start=0))
    if not ended:
        assert driver.ask(lane, inp.Step()) == act.Halt()
        driver.feed(inp.RunEnded(lane, inp.Stopped()))
    assert driver.told() == [msg.TaskReturned(ref(0), 1)]
    assert driver.core.held() == []
    driver.sent()
    driver.say("after", Read(0, 0, 2))
    lane = driver.lease(0, 2, again=True)
    driver.begin(lane)
    driver.put(lane, 0, 10)
    assert driver.sent() == [("after", 0, 0, False)]


def test_a_task_is_kept_that_was_leased_for_later_outputs_than_its_reader_asks_for():
    """Another lease would be for the same, so that its reader is to find out."""
    driver = CoreDriver()
    lane = driver.lease(0, 1, received=5)
    driver.begin(lane)
    driver.put(lane, 5, 10)
    driver.connect("c")
    driver.say("c", Read(0, 0, 1, start=0))
    assert driver.sent() == [("c", 0, 5, False)]
    assert driver.told() == []


def test_a_reader_is_sent_what_it_has_not_acknowledged_on_its_next_connection():
    driver = CoreDriver()
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.put(lane, 0, 10)
    driver.connect("c")
    driver.say("c", Read(0, 0, 1))
    driver.say("c", Received(0, 0, 1))
    driver.connect("d")
    driver.say("d", Read(0, 0, 1, start=1))
    driver.sent()
    driver.put(lane, 1, 10)
    driver.finish(lane, 2)
    assert driver.sent() == [("d", 0, 1, False), ("d", 0, 2, True)]
    assert driver.told() == [msg.TaskFinished(ref(0), 1, 2)]


def test_a_consumer_of_another_job_of_that_name_is_not_served():
    driver = CoreDriver()
    driver.say("c", Open("a", 0, generation=3))
    assert driver.taken(act.HangUp) == [act.HangUp("c")]


@pytest.mark.parametrize("consumer", [-1, 1, 7, 1 << 40])
def test_a_number_that_is_no_consumers_makes_no_lane(consumer):
    """Each made one, and a share of the buffer was its own."""
    driver = CoreDriver()
    driver.heard(msg.OpenJob("b", JobSpec("b", b"", "bundle", num_consumers=1), 2, ""))
    driver.say("c", Open("b", consumer))
    assert driver.taken(act.HangUp) == [act.HangUp("c")]
    assert not [key for key in driver.core.lanes if key[0] == "b"]


def test_another_job_of_that_name_begins_with_nothing():
    driver = CoreDriver()
    driver.connect("c")
    lane = driver.lease(0, 1)
    driver.begin(lane)
    driver.heard(msg.OpenJob("a", JobSpec("a", b"", "bundle"), 2, "", generation=1))
    assert driver.taken(act.HangUp) == [act.HangUp("c")]
    assert driver.core.held() == []
    assert driver.ask(lane, inp.Step()) == act.Halt()
    assert driver.taken(act.ClosePipeline) == [act.ClosePipeline("a", [lane])]
    assert driver.taken(act.EndLane) == []
    driver.feed(inp.RunEnded(lane, inp.Stopped()))
    assert driver.taken(act.EndLane) == [act.EndLane(lane)]
    assert driver.lease(0, 2) != lane


def test_who_comes_back_says_what_it_holds_and_drops_what_is_stale():
    driver = CoreDriver()
    lane = driver.lease(0, 1)
    driver.lease(1, 2)
    driver.begin(lane)
    driver.feed(inp.SessionClosed())
    driver.finish(lane, 0)
    assert driver.told() == []
    driver.feed(inp.SessionOpened(msg.WorkerHello("w", "w:1")))
    (hello,) = driver.told()
    assert sorted(each.lease for each in hello.held) == [1, 2]
    driver.heard(msg.WorkerWelcome(1.0, stale=[1]))
    assert [each.lease for each in driver.core.held()] == [2]


def test_who_leaves_gives_back_what_has_not_begun_and_ends_once_the_rest_was_read():
    driver = CoreDriver()
    driver.connect("c")
    lane = driver.lease(0, 1)
    driver.lease(1, 2)
    driver.begin(lane)
    driver.say("c", Read(0, 0, 1))
    driver.put(lane, 0, 10)
    driver.feed(inp.Drain(30.0))
    driver.heard(msg.LeaseTask(ref(2), 3, 0))
    assert driver.told() == [msg.WorkerLeaving(30.0), msg.TaskReturned(ref(1), 2), msg.TaskReturned(ref(2), 3)]
    driver.finish(lane, 1)
    assert driver.taken(act.EndProcess) == []
    driver.say("c", Received(0, 0, 1, complete=True))
    assert driver.taken(act.EndProcess) == [act.EndProcess(in_time=True)]
    driver.feed(inp.TimeUp())
    assert driver.taken(act.EndProcess) == []


def test_who_leaves_ends_at_once_if_it_is_told_twice_or_nobody_is_left_to_read():
    for alone in (False, True):
        driver = CoreDriver()
        driver.begin(driver.lease(0, 1))
        driver.feed(inp.Drain(30.0))
        assert driver.taken(act.EndProcess) == []
        driver.feed(inp.SessionClosed() if alone else inp.Drain(30.0))
        assert driver.taken(act.EndProcess) == [act.EndProcess(in_time=True)]


def test_a_report_says_how_a_lane_fares():
    driver = CoreDriver(100)
    lane = driver.lease(0, 1)  # at 3 s
    driver.begin(lane)
    driver.put(lane, 0, 60)
    driver.put(lane, 1, 60)  # blocked since 7 s
    driver.taken(act.TellDispatcher)
    driver.feed(inp.HeartbeatDue(msg.WorkerReport(job="b", nodes=[NodeMeasure(0, "range", 1, 1, 0.0)])))  # at 8 s
    (report,) = (each.message for each in driver.taken(act.TellDispatcher))
    assert (report.job, report.want, report.nodes, report.busy_s) == ("a", 2, [], 3.0), "nodes are another job's"
    (fares,) = report.lanes
    assert (fares.running, fares.blocked_s, fares.buffered_bytes) == (True, 1.0, 60)
    assert (fares.lived_s, fares.computing_s) == (5.0, 4.0)
