"""Jobs that share one computation: which are alike, who comes and goes, and what each gets."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.control.control_driver import OTHER_STRUCTURE, STRUCTURE, FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.actions import Action, CloseClient, SendToClient, SendToWorker
from millrace.control.journal.state_validation import validate
from millrace.control.journal.task_events import TaskLeased, TaskReleased
from millrace.control.journal.transaction import merged
from millrace.control.membership.groups import group_key
from millrace.protocol import messages as msg
from millrace.protocol.group_messages import Audience
from millrace.protocol.job_spec import JobSpec

SPEC = JobSpec("a", STRUCTURE, "bundle", sharing="lockstep", functions="alike")


@pytest.mark.parametrize("fields", [{"name": "b"}, {"bundle": "packed otherwise"}, {"epochs": 7}])
def test_jobs_are_alike_whatever_they_are_called_and_however_long_they_read(fields):
    assert group_key(msgspec.structs.replace(SPEC, **fields)) == group_key(SPEC)


@pytest.mark.parametrize(
    "fields",
    [
        {"structure": OTHER_STRUCTURE},
        {"functions": "others"},
        {"functions": ""},
        {"seed": 3},
        {"tenant": "another"},
        {"deterministic": True},
        {"visitation": "at_most_once"},
        {"tasks": 3},
        {"sharing": "window"},
        {"window_bytes": 1 << 20},
        {"arrays": ("digest",)},
    ],
)
def test_jobs_that_ask_for_something_else_are_not_alike(fields):
    assert group_key(msgspec.structs.replace(SPEC, **fields)) != group_key(SPEC)


def test_where_nobody_knows_the_functions_the_bundle_tells_jobs_apart():
    unknown = msgspec.structs.replace(SPEC, functions="")
    assert group_key(msgspec.structs.replace(unknown, bundle="another")) != group_key(unknown)


@pytest.fixture
def service():
    service = Service(FakePlan(6))
    service.add_worker("w")
    return service


def join(service, client, name, **fields):
    return service.join(client, name, **{"sharing": "lockstep", **fields})


def group(service):
    (job,) = service.state.jobs.values()
    return job


def test_two_jobs_that_are_alike_are_computed_once_and_each_has_everything(service):
    one, other = join(service, "c0", "one"), join(service, "c1", "other")
    assert one.joined.job == other.joined.job == group(service).name
    assert one.joined.seed == other.joined.seed
    while service.work():
        validate(service.state)
    assert sorted(one.complete) == sorted(other.complete) == list(range(6))
    assert one.ends == other.ends == list(range(6))
    assert sum(isinstance(event, TaskLeased) and event.epoch == 0 for event in service.events) == 6


def test_who_comes_before_anything_is_over_reads_the_same_epoch_from_its_beginning(service):
    one = join(service, "c0", "one")
    service.work(read=False)
    other = join(service, "c1", "other")
    assert other.joined.epoch == -1
    while service.work():
        validate(service.state)
    assert sorted(one.complete) == sorted(other.complete) == list(range(6))
    assert not released(service), "workers keep it for both"


@pytest.mark.parametrize("received", [0, 1])
def test_what_all_have_outputs_of_runs_again_for_who_comes_and_what_some_lack_does_not(service, received):
    one, other = join(service, "c0", "one"), join(service, "c1", "other")
    service.work(read=False)
    task = service.readable(one)[0]
    for member, count in ((one, 1), (other, received)):
        progress = [msg.TaskProgress(task, count)]
        service.say(inp.ConsumerSaid(member.client, msg.ConsumerReport(0, progress)))
    third = join(service, "c2", "third")
    assert released(service) == [(task, "member 2 came, and lacks what others have")] * received
    while service.work():
        validate(service.state)
    assert sorted(one.complete) == sorted(other.complete) == sorted(third.complete) == list(range(6))


def test_what_all_have_and_only_its_tail_needs_runs_again_for_who_comes():
    service = Service(FakePlan(4, fan_in=4))
    service.add_worker("w")
    one = join(service, "c0", "one")
    service.work(read=False)
    task = service.readable(one)[0]
    service.read(one, task)
    assert task in group(service).epochs[0].live
    other = join(service, "c1", "other")
    assert released(service) == [(task, "member 1 came, and lacks what others have")]
    while service.work():
        validate(service.state)
    assert sorted(one.complete) == sorted(other.complete) == list(range(5))


def released(service):
    return [(event.task, event.reason) for event in service.events if isinstance(event, TaskReleased)]


def test_who_comes_later_begins_with_the_next_epoch(service):
    one = join(service, "c0", "one")
    service.work(read=False)
    service.read(one, service.readable(one)[0])
    other = join(service, "c1", "other", begin=False)
    assert other.joined.epoch == 0
    service.begin(other, 1)
    while service.work():
        validate(service.state)
    assert one.ends == list(range(6))
    service.begin(one, 1)
    while service.work():
        validate(service.state)
    assert sorted(one.complete) == sorted(other.complete) == list(range(6))


def test_what_one_lacks_is_kept_until_it_leaves(service):
    one, other = join(service, "c0", "one"), join(service, "c1", "other")
    service.work(read=False)
    task = service.readable(one)[0]
    service.read(one, task)
    assert task in group(service).epochs[0].live
    service.say(inp.ConsumerSaid(other.client, msg.LeaveJob()))
    validate(service.state)
    assert task not in group(service).epochs[0].live
    last = [each.message for each in service.last if isinstance(each, SendToWorker)]
    assert Audience(group(service).name, {0: 0}) in last


def test_the_first_may_leave_and_the_group_ends_with_the_last(service):
    one, other = join(service, "c0", "one"), join(service, "c1", "other")
    service.say(inp.ConsumerSaid(one.client, msg.LeaveJob()))
    while service.work():
        validate(service.state)
    assert sorted(other.complete) == list(range(6))
    service.say(inp.ConsumerSaid(other.client, msg.LeaveJob()))
    assert not service.state.jobs


def test_a_name_is_one_process_at_a_time_and_who_comes_after_it_takes_its_place(service):
    join(service, "c0", "one")
    twice = join(service, "c1", "one")
    assert twice.failure.kind == "ConsumerConflictError"
    assert "'one' is being read already" in twice.failure.message
    service.say(inp.ClientSessionLost("c0"))
    again = join(service, "c2", "one")
    assert again.failure is None
    assert [place.client for place in group(service).consumers.values()] == ["c2"]


def test_who_was_away_for_too_long_is_told_to_go_on_from_its_state(service):
    one, _ = join(service, "c0", "one"), join(service, "c1", "other")
    one.connected = False
    service.say(inp.ClientSessionLost("c0"))
    for _ in range(4):
        service.now += 0.4 * service.state.settings.job_gc_timeout_s
        service.say(inp.ConsumerSaid("c1", msg.ConsumerReport(0)))
        service.tick()
    assert list(group(service).consumers) == [1]
    one.spec = msgspec.structs.replace(one.spec, name=one.joined.job)  # as consumers have it once they have joined
    service.rejoin(one)
    assert one.failure.kind == "DetachedError"
    assert "they have gone on without it" in one.failure.message


def look(service, one, other, *, other_waits=False):
    """The first one says that its user waits."""
    service.now += 2.0
    for peer, waits in ((one, True), (other, other_waits)):
        service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(0, waits=waits)))
    service.tick()


def held_up(service):
    """Two members, of which one has read a task that the other lacks."""
    one, other = join(service, "c0", "one"), join(service, "c1", "other")
    service.work(read=False)
    service.read(one, service.readable(one)[0])
    return one, other


def test_who_holds_up_the_others_for_too_long_is_detached_and_what_it_lacked_is_dropped(service):
    one, other = held_up(service)
    for _ in range(16):
        assert len(group(service).consumers) == 2
        look(service, one, other)
    look(service, one, other)
    assert list(group(service).consumers) == [0]
    sent = [each for each in service.last if isinstance(each, SendToClient | CloseClient) and each.client == "c1"]
    assert isinstance(sent[0], SendToClient)
    told = sent[0].message
    assert isinstance(told, msg.JobFailed)
    assert told.detached
    assert "'other' was detached" in told.failure.message
    assert "held up the others for 30 s" in told.failure.message
    assert isinstance(sent[1], CloseClient)
    while service.work():
        validate(service.state)
    assert sorted(one.complete) == list(range(6))


def test_nobody_is_detached_where_all_wait(service):
    one, other = held_up(service)
    for _ in range(50):
        look(service, one, other, other_waits=True)
    assert len(group(service).consumers) == 2


def test_nobody_is_detached_who_has_all_that_the_others_have(service):
    one, other = held_up(service)
    service.read(other, one.complete[0])
    for _ in range(50):
        look(service, one, other)
    assert len(group(service).consumers) == 2


def test_who_has_all_of_an_epoch_that_the_others_are_two_ahead_of_is_detached():
    """The one between gave nothing, as its workers were lost, and nothing is computed behind it yet."""
    service = Service(FakePlan(2))
    service.add_worker("w")
    one, other = (join(service, client, name, visitation="at_most_once") for client, name in (("c0", "a"), ("c1", "b")))
    service.run()
    assert one.done
    assert other.done
    service.begin(one)
    service.kill("w")
    service.add_worker("v")
    service.plan_tasks(service.workers["v"])
    assert one.done
    assert one.complete == []
    service.begin(one)
    assert one.epoch.epoch == 2
    assert service.readable(one) == []
    for _ in range(17):
        assert len(group(service).consumers) == 2
        service.now += 2.0
        service.say(inp.ConsumerSaid(one.client, msg.ConsumerReport(2, waits=True)))
        service.say(inp.ConsumerSaid(other.client, msg.ConsumerReport(0)))
        service.tick()
    assert list(group(service).consumers) == [0]
    assert other.failure.kind == "DetachedError"
    service.run()
    assert sorted(one.complete) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_consumers": 2}, "jobs of one consumer each"),
        ({"sharding": "off", "visitation": "zero_once_or_more"}, "a sharding"),
        ({"target_workers": "local"}, "workers of the service"),
        ({"sharing": "window"}, "skips elements, so Visitation.EXACTLY_ONCE cannot be kept"),
        ({"sharing": "window", "visitation": "at_most_once", "num_consumers": 2}, "jobs of one consumer each"),
        ({"sharing": "window", "visitation": "at_most_once", "window_bytes": -1}, "window_bytes is at least 1"),
        ({"window_bytes": 1}, "say sharing=Sharing.WINDOW"),
    ],
)
def test_what_cannot_be_shared_is_refused(service, fields, text):
    assert text in join(service, "c0", "one", **fields).failure.message


@pytest.mark.parametrize("visitation", ["at_most_once", "zero_once_or_more"])
def test_with_a_window_elements_may_be_skipped_and_counted_or_made_up_for(service, visitation):
    assert join(service, "c0", "one", sharing="window", visitation=visitation).failure is None


def test_words_about_different_readers_are_not_joined():
    ref = msg.TaskRef("a", 0, 0)
    said: list[Action] = [SendToWorker("w", msg.OutputsReceived([ref], readers)) for readers in ([1], [1], [2])]
    assert merged(said) == [SendToWorker("w", msg.OutputsReceived([ref, ref], [1])), said[2]]


def test_a_group_that_begins_anew_is_not_blamed_for_what_its_former_members_did(service):
    one, other = held_up(service)
    for _ in range(10):
        look(service, one, other)
    for peer in (one, other):
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    one, other = join(service, "c2", "one"), join(service, "c3", "other")
    service.work(read=False)
    service.read(one, service.readable(one)[0])
    for _ in range(10):
        look(service, one, other)
    assert len(group(service).consumers) == 2
