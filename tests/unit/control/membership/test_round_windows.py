"""Jobs of several ranks that share rounds in a window: who is behind skips whole tasks, all its ranks alike."""

from __future__ import annotations

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import dump
from millrace.control.journal.state_validation import validate
from millrace.control.journal.task_events import TaskLeased
from millrace.protocol import messages as msg
from millrace.protocol.reports import LaneReport

RANKS, COUNT, BEHIND = 2, 24, 2
WINDOW = {"sharing": "window", "visitation": "at_most_once", "num_consumers": RANKS, "coordinated": "drop"}


@pytest.fixture
def service():
    service = Service(FakePlan(COUNT), window_behind=BEHIND)
    service.add_worker("w")
    return service


def member(service, name, **fields):
    """A job comes with all its ranks, and begins an epoch."""
    alike = {**WINDOW, "deterministic": True, "cycle_length": 2, **fields}
    ranks = [service.join(f"{name}{rank}", name, consumer=rank, begin=False, **alike) for rank in range(RANKS)]
    for peer in ranks:
        service.begin(peer, peer.joined.epoch + 1)
    return ranks


def group(service):
    (job,) = service.state.jobs.values()
    return job


def next_of(service, peer):
    """The lowest task of each slot, if it lies ready."""
    heard = sorted(set(peer.reads) - set(peer.complete))
    first = [next((task for task in heard if task % 2 == slot), None) for slot in range(2)]
    return [task for task in first if task in service.readable(peer)]


def read_all(service, *peers):
    """These ranks read what they can, and no others do."""
    moved = True
    while moved:
        moved = service.work(read=False)
        for peer in peers:
            for task in next_of(service, peer):
                service.read(peer, task)
                moved = True
        validate(service.state)


def test_who_keeps_up_reads_all_and_each_task_runs_once(service):
    ranks = [*member(service, "a"), *member(service, "b")]
    read_all(service, *ranks)
    for peer in ranks:
        assert sorted(peer.complete) == list(range(COUNT))
        assert peer.done
    assert sum(isinstance(event, TaskLeased) and event.epoch == 0 for event in service.events) == COUNT


def test_who_is_behind_skips_what_is_dealt_with_all_its_ranks_and_holds_nobody_up(service):
    fast, slow = member(service, "fast"), member(service, "slow")
    read_all(service, *fast)
    for peer in fast:
        assert peer.done
        assert sorted(peer.complete) == list(range(COUNT))
        assert not peer.gone
    one, other = slow
    assert one.gone == other.gone
    assert set(one.gone.values()) == {1}, "once a task has ended they are told how much it had"
    assert 0 < len(one.gone) < COUNT
    assert sorted([*one.reads, *one.gone]) == list(range(COUNT))
    read_all(service, *slow)
    assert one.done
    assert sorted(one.complete) == sorted(other.complete) == sorted(set(range(COUNT)) - set(one.gone))
    assert dump(service.replayed()) == dump(service.state)


def test_a_rank_that_is_ahead_of_another_one_of_its_job_skips_what_that_one_skips(service):
    fast, slow = member(service, "fast"), member(service, "slow")
    read_all(service, *fast, slow[0])
    assert slow[0].gone == slow[1].gone
    assert slow[0].gone, "the member is as far as its last rank"


def test_who_comes_late_skips_what_workers_had_and_reads_the_rest_of_the_epoch(service):
    first = member(service, "first")
    for _ in range(2):
        service.work(read=False)
        for peer in first:
            for task in next_of(service, peer):
                service.read(peer, task)
    assert group(service).epochs[0].done
    dealt = max(group(service).epochs[0].live)
    late = member(service, "late")
    read_all(service, *first, *late)
    assert late[0].epoch.epoch == 0
    assert late[0].gone == late[1].gone
    assert sorted(late[0].gone) == list(range(dealt + 1))
    assert sorted(late[0].complete) == list(range(dealt + 1, COUNT))
    for peer in first:
        assert sorted(peer.complete) == list(range(COUNT))


def test_what_is_lost_with_a_worker_runs_again_for_those_that_read_it(service):
    fast, slow = member(service, "fast"), member(service, "slow")
    service.work(read=False)
    for peer in (*fast, slow[0]):
        service.read(peer, 0)
    before = len(service.events)
    service.kill("w")
    service.add_worker("other")
    read_all(service, *fast, *slow)
    assert [sorted(peer.complete) for peer in (*fast, *slow)] == [list(range(COUNT))] * 4
    leased = [event for event in service.events[before:] if isinstance(event, TaskLeased) and event.epoch == 0]
    assert sum(event.task == 0 for event in leased) == 1, "for the rank that lacks it, though others have it"


def test_who_comes_back_is_told_once_more_what_it_skips(service):
    fast, slow = member(service, "fast"), member(service, "slow")
    read_all(service, *fast)
    before, slow[0].gone = dict(slow[0].gone), {}
    service.rejoin(slow[0])
    assert slow[0].gone.items() >= before.items()


def test_a_member_that_leaves_takes_nothing_with_it(service):
    fast, slow = member(service, "fast"), member(service, "slow")
    read_all(service, *fast)
    for peer in fast:
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    validate(service.state)
    read_all(service, *slow)
    assert slow[0].done
    assert slow[1].done


def crossed(service):
    """Two members, each of which is ahead of the other in one slot, so that the other skips there."""
    one, other = member(service, "one"), member(service, "other")
    for slot, ahead in enumerate((one, other)):
        for _ in range(2 * BEHIND):
            service.work(read=False)
            for peer in ahead:
                service.read(peer, next_of(service, peer)[slot])
    assert one[0].gone
    assert other[0].gone
    assert {task % 2 for task in one[0].gone} == {1}
    assert {task % 2 for task in other[0].gone} == {0}
    service.read(one[0], next(task for task in next_of(service, one[0]) if task % 2))
    return one, other


def watched(service, peers, *, waiting=None, blocked_s=1.0, running=True):
    """For longer than a member may keep others waiting, all or some say so, and the worker that it is blocked."""
    for _ in range(17):
        service.now += 2.0
        service.report("w", lanes=[LaneReport(slot, running, blocked_s, 0) for slot in range(2)])
        for peer in peers:
            if peer.failure is None:
                service.say(
                    inp.ConsumerSaid(peer.client, msg.ConsumerReport(0, waits=waiting is None or peer in waiting))
                )
        service.say(inp.Tick())
    return sorted({place.member for place in group(service).consumers.values()})


def test_of_members_that_wait_for_room_from_one_another_the_furthest_behind_is_detached_and_the_other_goes_on(service):
    one, other = crossed(service)
    assert watched(service, [*one, *other]) == ["one"]
    assert [peer.failure.kind for peer in other] == ["DetachedError"] * RANKS
    read_all(service, *one)
    assert all(peer.done for peer in one)
    assert sorted(one[0].complete) == sorted(one[1].complete)


def test_who_stands_still_in_front_of_what_others_are_to_read_is_detached_though_they_skipped_that(service):
    one, other = member(service, "one"), member(service, "other")
    for _ in range(2 * BEHIND):
        service.work(read=False)
        for peer in other:
            for task in next_of(service, peer):
                service.read(peer, task)
    assert one[0].gone
    while any(next_of(service, peer) for peer in one):
        for peer in one:
            for task in next_of(service, peer):
                service.read(peer, task)
    assert watched(service, [*one, *other], waiting=one) == ["one"]


@pytest.mark.parametrize("seen", [{"waiting": []}, {"blocked_s": 0.0}, {"running": False}])
def test_nobody_is_detached_who_reads_or_for_whom_something_is_computed(service, seen):
    one, other = crossed(service)
    assert watched(service, [*one, *other], **seen) == ["one", "other"]


def test_who_is_there_alone_waits_for_nobody(service):
    one, other = crossed(service)
    for peer in other:
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    assert watched(service, one) == ["one"]
