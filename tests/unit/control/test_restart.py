"""A dispatcher that goes on with its journal: who is waited for, and what everybody is told anew."""

import msgspec
import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.consumer_events import ConsumerJoined, EpochBegan
from millrace.control.journal.job_events import JobCreated
from millrace.control.journal.snapshot import dump, load
from millrace.control.journal.task_events import TaskLeased
from millrace.dispatcher.recovery import fence_off_newer
from millrace.dispatcher.status_report import status
from millrace.protocol import messages as msg
from millrace.protocol.reports import Pace, Told


def running(address="here:1", **fields):
    """A service with two workers, and a consumer that reads; its dispatcher restarts at ``address``."""
    service = Service(FakePlan(9, 3))
    service.say(inp.Started("here:1"))
    for name in ("w0", "w1"):
        service.add_worker(name)
    peer = service.join("c", **fields)
    for _ in range(3):
        service.work(room=1)
    service.save()
    service.work(room=1)
    service.now += 100.0
    service.restart(address)
    return service, peer


def leases(service):
    return {name: (set(worker.unfinished), set(worker.kept)) for name, worker in service.state.workers.items()}


def test_who_had_a_session_is_waited_for_longer_than_a_heartbeat_and_keeps_its_leases():
    service, peer = running()
    before = leases(service)
    for _ in range(9):
        service.tick(1.0)
    assert leases(service) == before
    service.hello("w0")
    service.hello("w1")
    assert service.workers["w0"].stale == service.workers["w1"].stale == []
    assert leases(service) == before
    service.rejoin(peer)
    service.run(room=1)
    assert peer.done


def test_who_does_not_come_back_is_given_up():
    service, peer = running()
    service.hello("w0")
    service.rejoin(peer)
    service.tick(9.0)
    assert set(service.state.workers) == {"w0", "w1"}
    service.tick(2.0)
    assert set(service.state.workers) == {"w0"}
    service.run(room=1)
    assert peer.done


def test_at_another_address_nobody_is_waited_for():
    service, _ = running("there:1")
    service.tick(5.1)
    assert not service.state.workers


def test_a_place_is_its_holders_until_that_had_the_time_to_come_back():
    service, peer = running(num_consumers=1)
    early = service.join("early", num_consumers=1, begin=False)
    assert early.failure.kind == "ConsumerConflictError"
    service.rejoin(peer)
    assert (peer.joined.consumer, peer.failure) == (0, None)
    service, _ = running(num_consumers=1)
    service.tick(10.1)
    assert service.join("late", num_consumers=1, begin=False).joined.consumer == 0
    service, _ = running("there:1", num_consumers=1)
    assert service.join("at once", num_consumers=1, begin=False).joined.consumer == 0


def test_a_job_whose_consumers_are_away_lives_as_long_after_a_restart():
    service, _ = running()
    service.tick(299.0)
    assert "a" in service.state.jobs
    service.tick(2.0)
    assert not service.state.jobs


def test_what_was_read_and_not_known_is_kept_from_being_dropped_by_the_next_epoch():
    service, peer = running()
    service.hello("w0")
    service.hello("w1")
    service.rejoin(peer)
    service.deaf = True
    service.run(room=1)
    service.restart()
    assert service.state.jobs["a"].epochs[0].unread
    peer.wanted = 1
    service.rejoin(peer)
    assert 0 not in service.state.jobs["a"].epochs or not service.state.jobs["a"].epochs[0].dropped


def test_who_was_free_to_leave_is_told_again():
    service, _ = running()
    service.hello("w0")
    service.say(inp.WorkerSaid("w0", msg.WorkerLeaving()))
    service.restart()
    service.state.workers["w0"].released = True
    service.hello("w0")
    assert service.workers["w0"].stopped


def test_who_comes_back_to_a_job_that_is_over_is_told_so():
    service = Service(durable=True)
    peer = service.join("c", resume=True, begin=False)
    assert "job 'a' is over: its consumers were away for too long; start" in peer.failure.message


def ends(service):
    return [action.reason for action in service.last if isinstance(action, act.EndService)]


def leased(drawn):
    """A service whose worker has leases, and whose consumer reads."""
    service = Service(FakePlan(8))
    service.say(inp.Started("here:1", drawn))
    service.add_worker("w")
    service.now = 10.0
    peer = service.join("c", num_consumers=2)
    service.plan_tasks(service.workers["w"])
    return service, peer


def put_back(service, copy, now=10.0):
    """Another life, with what the journal was when there were so many events, and its clock."""
    service.now = now
    service.events = service.events[:copy]
    service.saved = (dump(service.fresh_state()), 0)
    service.restart(drawn="the next life")


def come_back(service, peer, lease=0, epoch=-1):
    told = msgspec.structs.replace(peer.joined.told, lease=lease, epoch=epoch)
    service.consumers[peer.client].connected = True
    service.join(peer.client, consumer=0, num_consumers=2, resume=True, begin=False, told=told)
    return ends(service)


def test_a_worker_that_knows_more_than_the_journal_ends_the_service():
    """A folder was restored from a copy that was older than what was done since."""
    service, _ = leased("the first life")
    told = service.workers["w"].welcome.told
    highest = service.state.next_lease - 1
    service.restart(drawn="the second life")
    service.hello("w", told=msgspec.structs.replace(told, lease=highest))
    assert not ends(service)
    service.restart(drawn="the third life")
    service.hello("w", told=msgspec.structs.replace(told, lease=highest + 1))
    (reason,) = ends(service)
    assert reason.startswith("the journal is older than what this service has done since: worker w heard of lease")
    assert "--recover" in reason


def test_leases_that_are_given_again_do_not_hide_that_they_were_given_before():
    service, peer = leased("the first life")
    told = msgspec.structs.replace(service.workers["w"].welcome.told, lease=max(service.workers["w"].leases))
    put_back(service, service.events.index(next(each for each in service.events if isinstance(each, TaskLeased))))
    service.add_worker("another")
    assert not come_back(service, peer)
    service.begin(peer, 0)
    service.run()
    assert service.state.next_lease > told.lease
    service.hello("w", told=told)
    assert ends(service)


def test_a_worker_of_another_service_knows_nothing_of_this_one():
    """The folder is a new one, or there is none: then its leases are no news."""
    service, _ = leased("this one")
    service.add_worker("late", told=Told("another", "its life", 1 << 40))
    assert not ends(service)
    assert service.state.workers["late"].lost_at is None


def test_a_consumer_that_knows_more_than_the_journal_ends_the_service():
    service, peer = leased("the first life")
    lease = service.state.next_lease - 1
    service.restart(drawn="the second life")
    assert not come_back(service, peer, lease, 0)
    service.restart(drawn="the third life")
    assert "consumer 0 of job 'a' heard of lease" in come_back(service, peer, lease + 1, 0)[0]
    service.restart(drawn="the fourth life")
    (reason,) = come_back(service, peer, lease, 1)
    assert "consumer 0 of job 'a' has begun epoch 1, and the journal knows of epoch 0 at most" in reason
    assert "--recover" in reason


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (JobCreated, 8.0, "was let in 2 s after the journal's end"),
        (ConsumerJoined, 8.0, "was let in 2 s after the journal's end"),
        (EpochBegan, 10.0, "has begun epoch 0, and the journal knows of epoch -1 at most"),
    ],
)
def test_a_consumer_is_missed_by_a_journal_that_ended_before_it_came(before, now, sentence):
    service, peer = leased("the first life")
    put_back(service, next(number for number, event in enumerate(service.events) if isinstance(event, before)), now)
    assert sentence in come_back(service, peer, 0, 0)[0]


def test_an_older_journal_that_is_gone_on_with_by_choice_is_another_service():
    service, peer = leased("the first life")
    put_back(service, next(n for n, event in enumerate(service.events) if isinstance(event, EpochBegan)))
    known = service.state.next_lease
    fence_off_newer(service.state)
    service.say(inp.Started("here:1", "the chosen life"))
    assert service.state.service == service.state.life.name == "the chosen life"
    assert not come_back(service, peer, 1000, 5)
    service.begin(peer, 0)
    service.hello("w", told=service.workers["w"].welcome.told)
    service.run()
    assert peer.complete
    assert min(read.lease for read in peer.reads.values()) > known + 1000


def test_a_service_keeps_its_name_in_all_of_its_lives():
    service, _ = leased("the first life")
    service.say(inp.Started("here:1", "the second"))
    assert service.state.service == "the first life"
    state = service.fresh_state()
    load(state, dump(service.state))
    assert state.service == "the first life"


def finished(service):
    return status(service.state, service.observed, service.now)["finished"]


def test_what_became_of_jobs_that_are_over_outlives_the_dispatcher():
    service, peer = running()
    for name in ("w0", "w1"):
        service.hello(name)
    service.rejoin(peer)
    service.run(room=1)
    report = msg.ConsumerReport(0, batches=9, pace=Pace(9, 4.0, 1.0), ended=True)
    service.say(inp.ConsumerSaid(peer.client, report))
    service.now += 1.0
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    [row] = finished(service)
    assert (row["name"], row["epochs"], row["elements"], row["wait_share"]) == ("a", 1, 9, 0.25)
    assert row["seconds"] == 101.0, "from the life of the dispatcher before"
    for _ in range(2):
        service.restart()
        assert finished(service) == [row]
        service.save()


def test_a_job_of_which_nothing_was_heard_since_a_restart_is_remembered_too():
    service, peer = running()
    service.rejoin(peer)
    service.observed.progress.clear()
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    [row] = finished(service)
    assert (row["name"], row["epochs"], row["seconds"]) == ("a", 0, 100.0)
