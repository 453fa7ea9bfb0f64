"""Ranks that are lost: who reads what was theirs, and who is told what nobody reads."""

import pytest
from tests.unit.control.control_driver import FakePlan, Service
from tests.unit.control.test_late_ranks import job_status, leave

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.control.state.state import UNREAD, UnreadShare
from millrace.control.tasks import epochs, unread
from millrace.control.tasks.unread import NAMED
from millrace.protocol import messages as msg


def two_readers(plan=None, **spec):
    """Two that have begun epoch 0, of which the second one reads nothing by itself."""
    service = Service(plan or FakePlan(16))
    service.say(inp.Started("here:1"))
    service.add_worker("w")
    one, two = (
        service.join(client, host="box", pid=number, num_consumers=2, **spec) for number, client in enumerate("xy")
    )
    service.plan_tasks(service.workers["w"])
    return service, one, two


def read_all(service, peer):
    for _ in range(40):
        service.work(read=False)
        for task in service.readable(peer)[:1]:
            service.read(peer, task)
    assert peer.done


def say_ended(service, peer):
    service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(peer.epoch.epoch, ended=True)))


def wait_until_given_up(service, peer):
    for _ in range(61):
        service.tick(5.0)
        service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(peer.epoch.epoch, ended=peer.done)))


@pytest.mark.parametrize("spec", [{}, {"deterministic": True}, {"sharding": "static"}])
def test_who_ends_an_epoch_is_told_what_of_it_waits_for_one_that_was_lost(spec):
    service, one, two = two_readers(**spec)
    service.say(inp.ClientSessionLost("y"))
    read_all(service, one)
    rest = 16 - len(one.complete)
    assert rest
    assert one.unread.startswith("Epoch 0 of job 'a' lacks ")
    assert (
        f"{rest} task{'s' * (rest > 1)} of consumer 1, which was lost (process 1 on box), and its part is kept for it"
        in one.unread
    )
    assert one.unread.endswith("for 300 s from then on")
    [share] = job_status(service)["unread"]
    assert (share["consumer"], share["tasks"]) == (1, rest)
    service.rejoin(two)
    assert one.unread == ""
    assert job_status(service)["unread"] == []
    service.run()
    assert sorted(one.complete + two.complete) == list(range(16))


@pytest.mark.parametrize("lingers", [True, False])
def test_the_next_worker_of_a_loader_is_not_missed_before_it_has_come(lingers):
    """A DataLoader's workers end with each epoch, and one may read all of the next before the other has begun."""
    service = Service(FakePlan(4))
    service.add_worker("w")
    one, two = (service.join(name, num_consumers=2, consumer=i, lingers=lingers) for i, name in enumerate("xy"))
    service.run()
    say_ended(service, two)
    service.say(inp.ClientSessionLost("y"))
    service.begin(one)
    read_all(service, one)
    assert len(one.complete) < 4
    assert bool(one.unread) is not lingers
    [share] = job_status(service)["unread"]
    assert share["why"].startswith(f"consumer 1 {'ended with an epoch, ' if lingers else 'was lost '}")
    again = service.join("z", num_consumers=2, consumer=1, lingers=lingers)
    service.run()
    assert sorted(one.complete + again.complete) == list(range(4))


def test_who_is_lost_when_others_have_ended_the_epoch_is_told_of_all_the_same():
    service, one, _ = two_readers()
    read_all(service, one)
    assert one.unread == ""
    say_ended(service, one)
    service.say(inp.ClientSessionLost("y"))
    assert "consumer 1, which was lost" in one.unread


def test_what_a_lost_one_had_received_and_may_not_have_used_is_said():
    service, one, two = two_readers()
    service.run()
    assert one.done
    service.say(inp.ConsumerSaid("y", msg.ConsumerReport(0, batches=2, arrived=7)))
    service.say(inp.ClientSessionLost("y"))
    assert "lacks up to 5 elements of consumer 1, which was lost (process 1 on box) and may not have used" in one.unread
    service.rejoin(two)
    assert one.unread == ""


def test_elements_are_counted_where_the_plan_can_tell():
    service, one, _ = two_readers()
    [task, *_] = service.consumers["y"].reads
    service.say(inp.ConsumerSaid("y", msg.ConsumerReport(0, [msg.TaskProgress(task, 1)], batches=1, arrived=3)))
    service.say(inp.ClientSessionLost("y"))
    read_all(service, one)
    rest = 16 - len(one.complete)
    share, buffered = job_status(service)["unread"]
    assert (share["tasks"], share["elements"], buffered["elements"]) == (rest, rest - 1, 2)
    assert f"lacks {rest - 1} elements in {rest} task" in one.unread


def test_what_one_that_is_given_up_leaves_goes_to_those_who_read_the_epoch():
    service, one, _ = two_readers()
    service.say(inp.ClientSessionLost("y"))
    wait_until_given_up(service, one)
    service.run()
    assert sorted(one.complete) == list(range(16))
    assert job_status(service)["unread"] == []


@pytest.mark.parametrize("spec", [{}, {"deterministic": True}])
def test_what_nobody_reads_as_all_others_have_ended_is_said_and_stays_in_the_status(spec):
    service, one, _ = two_readers(**spec)
    service.say(inp.ConsumerSaid("y", msg.ConsumerReport(0, batches=1, arrived=4)))
    service.say(inp.ClientSessionLost("y"))
    read_all(service, one)
    rest = 16 - len(one.complete)
    wait_until_given_up(service, one)
    assert " lacks up to 3 elements of consumer 1, which did not come back within 300 s; it had received" in one.unread
    assert " of consumer 1, which did not come back within 300 s" in one.unread.rpartition("; ")[0]
    service.begin(one)
    shares = [share for share in job_status(service)["unread"] if share["epoch"] == 0]
    assert (shares[0]["tasks"], shares[0]["elements"]) == (0, 3)
    assert sum(share["tasks"] for share in shares) == rest
    assert plain(service.replayed()) == plain(service.state)


@pytest.mark.parametrize("spec", [{}, {"deterministic": True}, {"sharding": "static"}])
@pytest.mark.parametrize("listed", [True, False])
def test_one_that_dies_before_its_first_batch_and_comes_back_has_the_same_epoch(spec, listed):
    service = Service(FakePlan(16))
    service.add_worker("w")
    one, _ = (service.join(client, num_consumers=2, **spec) for client in "xy")
    if listed:
        service.plan_tasks(service.workers["w"])
        for _ in range(5):
            service.work(read=False)
    service.say(inp.ClientSessionLost("y"))
    del service.consumers["y"]
    again = service.join("z", consumer=1, num_consumers=2, **spec)
    assert again.epoch is None or again.epoch.epoch == 0
    assert again.wanted == 0
    assert not again.notices
    service.run()
    assert sorted(one.complete + again.complete) == list(range(16))
    assert again.complete


def test_what_its_workers_have_let_go_of_runs_anew_for_one_that_comes_back():
    service, _, two = two_readers()
    for _ in range(5):
        service.work(read=False)
    before = {task: read.lease for task, read in two.reads.items()}
    service.say(inp.ClientSessionLost("y"))
    del service.consumers["y"]
    again = service.join("z", consumer=1, num_consumers=2)
    for _ in range(5):
        service.work(read=False)
    assert again.reads.keys() >= before.keys()
    assert all(again.reads[task].lease > lease for task, lease in before.items())


def dies_in_mid_epoch(service, two):
    for _ in range(5):
        service.work(read=False)
    service.read(two, service.readable(two)[0])
    service.say(inp.ConsumerSaid("y", msg.ConsumerReport(0, batches=1)))
    service.say(inp.ClientSessionLost("y"))
    del service.consumers["y"]
    return list(two.complete)


def test_who_goes_on_in_the_place_of_a_lost_one_is_told_and_others_get_what_that_had_not_read():
    service, one, two = two_readers()
    had = dies_in_mid_epoch(service, two)
    again = service.join("z", consumer=1, num_consumers=2, begin=False)
    assert again.joined.epoch == 0
    assert "consumer 1 of job 'a' was read by process 1 on box up to epoch 0, which it did not end" in again.notices[0]
    assert "tasks go to other consumers" in again.notices[0]
    service.begin(again, 1)
    while not one.done:
        assert service.work()
    assert sorted(one.complete + had) == list(range(16))


def test_in_a_fixed_order_it_is_said_what_nobody_reads():
    service, one, two = two_readers(deterministic=True)
    had = dies_in_mid_epoch(service, two)
    again = service.join("z", consumer=1, num_consumers=2, deterministic=True, begin=False)
    assert " of consumer 1, which was lost in epoch 0" in again.notices[0]
    service.begin(again, 1)
    while not one.done:
        assert service.work()
    assert " of consumer 1, which was lost in epoch 0" in one.unread
    assert sorted(one.complete + had) != list(range(16))


def test_what_nobody_reads_is_said_however_much_is_remembered_already():
    service, _, two = two_readers(deterministic=True)
    dies_in_mid_epoch(service, two)
    service.state.jobs["a"].unread = [UnreadShare(0, 0, 1, 1, "left")] * UNREAD
    again = service.join("z", consumer=1, num_consumers=2, deterministic=True, begin=False)
    assert " of consumer 1, which was lost in epoch 0" in again.notices[0]


def many_readers(ranks):
    service = Service(FakePlan(2 * ranks))
    service.say(inp.Started("here:1"))
    service.add_worker("w")
    peers = [service.join(f"c{rank}", consumer=rank, num_consumers=ranks, deterministic=True) for rank in range(ranks)]
    service.plan_tasks(service.workers["w"])
    for _ in range(2 * ranks):
        for peer in peers:
            service.work(read=False)
            for task in service.readable(peer)[:1]:
                if peer is not peers[0]:
                    service.read(peer, task)
    assert all(peer.done for peer in peers[1:])
    return service, peers


def test_what_is_not_read_is_worked_out_once_for_all_who_are_told(monkeypatch):
    service, [lost, *_] = many_readers(12)
    asked = []

    def told(*args):
        asked.append(args)
        return unread.told(*args)

    monkeypatch.setattr(epochs, "told", told)
    service.say(inp.ClientSessionLost(lost.client))
    assert len(asked) == 1
    assert sum(isinstance(action.message, msg.EpochEnds) for action in service.last) == 11
    for _ in range(301):
        for client in list(service.state.clients):
            if client != lost.client:
                service.say(inp.ConsumerSaid(client, msg.ConsumerReport(0)))
        asked.clear()
        service.tick(1.0)
        if asked:
            break
    assert len(asked) == 1
    ends = [action for action in service.last if isinstance(getattr(action, "message", None), msg.EpochEnds)]
    assert len(ends) == 11


def test_of_many_that_are_lost_some_are_named():
    service, _ = many_readers(3)
    job = service.state.jobs["a"]
    shares = [UnreadShare(0, consumer, tasks, 4, "left") for consumer in range(9) for tasks in (1, 0)]
    text = unread.said(job, shares)
    assert text.startswith("Epoch 0 of job 'a' lacks 4 elements in 1 task of consumer 0, which left; up to 4 elements")
    assert text.endswith("up to 4 elements of consumer 7, which left; parts of 1 more consumer (9 in all)")
    assert text.count(" of consumer ") == 2 * NAMED


@pytest.mark.parametrize("fields", [{"lingers": True}, {"consumer": 1}])
def test_who_follows_one_that_had_ended_its_epoch_or_left_it_its_place_hears_nothing(fields):
    service, one, two = two_readers()
    if "lingers" in fields:
        dies_in_mid_epoch(service, two)
    else:
        service.run()
        say_ended(service, two)
        service.say(inp.ClientSessionLost("y"))
        del service.consumers["y"]
    again = service.join("z", **{"consumer": 1, "num_consumers": 2, **fields}, begin=False)
    assert (again.joined.epoch, again.notices) == (0, [])
    assert not one.unread


def test_what_comes_too_late_to_one_that_has_ended_is_others():
    service, one, _ = two_readers()
    service.say(inp.ClientSessionLost("y"))
    read_all(service, one)  # has ended, which it has not said yet
    for _ in range(61):
        service.tick(5.0)
        service.say(inp.ConsumerSaid("x", msg.ConsumerReport(0)))
    late = list(service.state.jobs["a"].epochs[0].unread[0])
    assert late
    say_ended(service, one)
    service.begin(one, 1)
    [share] = job_status(service)["unread"]
    assert (share["tasks"], share["epoch"]) == (len(late), 0)
    assert share["why"] == "consumer 0 had ended the epoch before they became its"


def restarted_and_one_is_back():
    service, one, _ = two_readers()
    read_all(service, one)
    service.say(inp.Started("here:1"))
    service.hello("w")
    service.rejoin(one)
    return service, one


def test_after_a_restart_nobody_is_taken_for_lost_who_has_time_to_come_back():
    service, one = restarted_and_one_is_back()
    service.tick(1.0)
    assert one.unread == ""
    service.tick(10.0)
    assert "consumer 1, which was lost" in one.unread


def test_who_is_lost_since_a_restart_is_told_to_the_status_and_to_readers_at_once():
    """The time to come back is over between two ticks, and who ends its epoch then has not been told yet."""
    service, one = restarted_and_one_is_back()
    service.now = service.state.returning
    assert (one.unread, job_status(service)["unread"]) == ("", [])
    service.tick(0.0)
    assert "consumer 1, which was lost" in one.unread
    assert len(job_status(service)["unread"]) == 1


def test_what_one_leaves_of_equal_steps_is_left_out_by_choice():
    plan = FakePlan(6)
    plan.equal = False
    service, one, two = two_readers(plan, equal_steps=True)
    leave(service, two)
    while not one.done:
        assert service.work()
    assert one.unread == ""
    assert job_status(service)["unread"] == []


@pytest.mark.parametrize("spec", [{}, {"deterministic": True}])
def test_what_one_had_received_and_not_handed_out_when_it_closed_is_counted_and_said(spec):
    service, one, two = two_readers(**spec)
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob(24)))
    del service.consumers[two.client]
    while not one.done:
        assert service.work()
    assert "lacks up to 24 elements of consumer 1, which closed before it had handed them out" in one.unread
    share = job_status(service)["unread"][0]
    assert (share["consumer"], share["tasks"], share["elements"]) == (1, 0, 24)
    assert any("closed before" in note for note in job_status(service)["notes"])


def test_who_is_given_up_is_named_to_a_worker_that_goes_on_for_leftovers():
    """It may read on, as it does not know yet, and is not to be told of an end whose outputs it never had."""
    service, one, two = two_readers(FakePlan(2, fan_in=2), sharding="static", deterministic=True)
    before = service.workers["w"]
    for lease in list(before.leases):
        service.finish(before, lease)
    assert service.state.jobs["a"].epochs[0].live[2].lease, "the tail has begun with what these left over"
    service.read(two, 1)
    after = service.add_worker("v")
    service.kill("w")
    [again] = [each for each in after.leases.values() if each.ref.task == 0]
    assert again.received == 0
    service.say(inp.ClientSessionLost(one.client))
    said = []
    while 0 in service.state.jobs["a"].consumers:
        service.tick(5.0)
        said += [each.message for each in service.last if isinstance(each, act.SendToWorker)]
        service.say(inp.ConsumerSaid(two.client, msg.ConsumerReport(0)))
    assert [each for each in said if isinstance(each, msg.OutputsReceived)] == [msg.OutputsReceived([again.ref], [0])]
