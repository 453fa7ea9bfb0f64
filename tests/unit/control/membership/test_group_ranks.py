"""Jobs of several ranks that share one computation: they come and go with all their ranks."""

from __future__ import annotations

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.actions import SendToClient, SendToWorker
from millrace.control.journal.state_validation import validate
from millrace.control.journal.task_events import TaskMoved
from millrace.protocol import messages as msg
from millrace.protocol.group_messages import Audience

RANKS = 2


@pytest.fixture
def service():
    service = Service(FakePlan(6))
    service.add_worker("w")
    return service


def come(service, client, name, rank, **fields):
    """A rank asks to be let in."""
    alike = {"num_consumers": RANKS, "coordinated": "drop", "deterministic": True, "cycle_length": 2}
    return service.join(client, name, consumer=rank, begin=False, sharing="lockstep", **{**alike, **fields})


def member(service, name, run=""):
    """A job comes with all its ranks, and begins an epoch."""
    ranks = [come(service, f"{name}{rank}{run}", name, rank) for rank in range(RANKS)]
    for peer in ranks:
        service.begin(peer, peer.joined.epoch + 1)
    return ranks


def group(service):
    (job,) = service.state.jobs.values()
    return job


def said(service, client):
    return [each.message for each in service.last if isinstance(each, SendToClient) and each.client == client]


def test_a_rank_is_let_in_once_all_ranks_of_its_job_are_there(service):
    first = come(service, "a1", "a", 1)
    assert not first.joined
    assert not service.state.jobs
    (told,) = said(service, "a1")
    assert isinstance(told, msg.Notice)
    assert "job 'a' waits for consumer 0" in told.text
    second = come(service, "a0", "a", 0)
    assert first.joined.job == second.joined.job
    assert (second.joined.consumer, first.joined.consumer) == (0, 1)


def test_each_member_has_readers_that_nobody_was_before_of_which_the_number_tells_the_rank(service):
    member(service, "a")
    (b0, b1), spec = member(service, "b"), group(service).spec
    assert (b0.joined.consumer, b1.joined.consumer) == (2, 3)
    assert [spec.rank(each) for each in group(service).consumers] == [0, 1, 0, 1]
    service.say(inp.ConsumerSaid("b1", msg.LeaveJob()))
    service.say(inp.ConsumerSaid("b0", msg.LeaveJob()))
    member(service, "c")
    assert sorted(group(service).consumers) == [0, 1, 4, 5]


def test_every_rank_of_every_member_reads_every_task_and_each_runs_once(service):
    ranks = [*member(service, "a"), *member(service, "b")]
    while service.work():
        validate(service.state)
    for peer in ranks:
        assert sorted(peer.complete) == list(range(6))
        assert peer.ends == list(range(6))


def test_a_round_is_kept_until_all_ranks_of_all_members_have_it(service):
    ranks = [*member(service, "a"), *member(service, "b")]
    service.work(read=False)
    task = service.readable(ranks[0])[0]
    for peer in ranks[:-1]:
        service.read(peer, task)
        assert task in group(service).epochs[0].live
    service.read(ranks[-1], task)
    assert task not in group(service).epochs[0].live


def test_a_member_that_comes_later_begins_with_the_next_epoch_with_all_its_ranks(service):
    ranks = member(service, "a")
    service.work(read=False)
    for peer in ranks:
        service.read(peer, service.readable(peer)[0])
    later = member(service, "b")
    assert [peer.joined.epoch for peer in later] == [0, 0]
    while service.work():
        validate(service.state)
    for peer in ranks:
        service.begin(peer, 1)
    while service.work():
        validate(service.state)
    assert all(sorted(peer.complete) == list(range(6)) for peer in later)


def test_a_member_that_loses_a_rank_goes_with_all_of_them(service):
    member(service, "a")
    b0, b1 = member(service, "b")
    b1.connected = False
    service.say(inp.ClientSessionLost("b1"))
    for _ in range(4):
        service.now += 0.4 * service.state.settings.job_gc_timeout_s
        for client in ("a0", "a1", "b0"):
            if b0.failure is None or client != "b0":
                service.say(inp.ConsumerSaid(client, msg.ConsumerReport(0)))
        service.tick()
        validate(service.state)
    assert sorted(group(service).consumers) == [0, 1]
    assert b0.failure is not None
    assert "rank 1 of job 'b' did not come back" in b0.failure.message


def test_a_rank_that_is_started_anew_takes_the_whole_place_and_waits_for_the_others(service):
    member(service, "a")
    b0, b1 = member(service, "b")
    b1.connected = False
    service.say(inp.ClientSessionLost("b1"))
    again = come(service, "again1", "b", 1)
    assert not again.joined
    assert b0.failure is not None
    assert come(service, "again0", "b", 0).joined.consumer == 4
    assert again.joined.consumer == 5
    validate(service.state)


def test_a_member_that_holds_up_others_is_detached_with_all_its_ranks(service):
    ranks = [*member(service, "a"), *member(service, "b")]
    service.work(read=False)
    for peer in ranks[:3]:
        service.read(peer, service.readable(peer)[0])
    told = []
    for _ in range(17):
        service.now += 2.0
        for peer in ranks:
            if peer.failure is None:
                service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(0, waits=peer is not ranks[3])))
        service.tick()
        told += [each for client in ("b0", "b1") for each in said(service, client)]
    assert sorted(group(service).consumers) == [0, 1]
    assert [each.detached for each in told if isinstance(each, msg.JobFailed)] == [True, True]


def test_nobody_is_detached_for_whom_only_its_own_other_rank_waits(service):
    a0, a1 = member(service, "a")
    service.work(read=False)
    service.read(a0, service.readable(a0)[0])
    for _ in range(50):
        service.now += 2.0
        for peer, waits in ((a0, True), (a1, False)):
            service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(0, waits=waits)))
        service.tick()
    assert sorted(group(service).consumers) == [0, 1]


def test_ranks_that_wait_for_one_that_does_not_come_are_told_so(service):
    waiting = come(service, "a0", "a", 0)
    for _ in range(3):
        service.tick(0.4 * service.state.settings.job_gc_timeout_s)
    assert waiting.failure is not None
    assert "consumer 1 of job 'a' did not come within" in waiting.failure.message
    assert "start all of them again" in waiting.failure.message


def test_a_rank_whose_session_broke_while_it_waited_is_waited_for(service):
    come(service, "a0", "a", 0)
    service.say(inp.ClientSessionLost("a0"))
    assert come(service, "a1", "a", 1).joined is None
    assert come(service, "a0", "a", 0).joined is not None


def test_who_comes_twice_while_others_are_waited_for_takes_the_place(service):
    older = come(service, "a0", "a", 0)
    come(service, "other0", "a", 0)
    assert older.failure is not None
    assert "another process has come" in older.failure.message


def test_workers_hear_of_all_ranks_of_a_member_at_once(service):
    member(service, "a")
    come(service, "b1", "b", 1)
    come(service, "b0", "b", 0)
    heard = [each.message for each in service.last if isinstance(each, SendToWorker)]
    assert Audience(group(service).name, {0: 0, 1: 0, 2: 0, 3: 0}) in heard


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"coordinated": "", "deterministic": False, "cycle_length": 1}, "each rank reads its batch of every round"),
        ({"sharing": "window", "visitation": "zero_once_or_more"}, "with Sharing.WINDOW AT_MOST_ONCE"),
        ({"sharing": "window", "visitation": "at_most_once", "window_bytes": 9}, "no window_bytes where reads are"),
        ({"consumer": 2}, "a consumer_index below num_consumers"),
        ({"consumer": None}, "a consumer_index below num_consumers"),
    ],
)
def test_what_cannot_be_is_refused(service, fields, words):
    given = {"num_consumers": RANKS, "coordinated": "drop", "deterministic": True, "cycle_length": 2, "consumer": 0}
    refused = service.join("x", "a", begin=False, **{"sharing": "lockstep", **given, **fields})
    assert refused.failure is not None
    assert words in refused.failure.message


def test_what_another_slot_ran_again_is_read_in_its_own_by_a_member_that_comes():
    service = Service(FakePlan(6, fan_in=3))
    for name in ("w", "v"):
        service.add_worker(name)
    ranks = member(service, "a")
    service.work(read=False)
    moved: list[TaskMoved] = []
    while not moved:
        for peer in ranks:
            service.read(peer, service.readable(peer)[0])
        for worker in [name for name, each in service.state.workers.items() if each.kept]:
            service.kill(worker)
            service.add_worker(f"{worker}+")
        moved = [event for event in service.events if isinstance(event, TaskMoved)]
        assert group(service).epochs[0].done == 0
    assert all(group(service).epochs[0].live[event.task].slot != event.task % 2 for event in moved)
    ranks += member(service, "b")
    for task, live in group(service).epochs[0].live.items():
        assert live.slot == task % 2
    validate(service.state)
    service.save()
    assert service.restored().jobs == service.state.jobs
    while service.work():
        validate(service.state)
    assert all(sorted(peer.complete) == list(range(9)) for peer in ranks)
