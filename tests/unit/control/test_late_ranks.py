"""Ranks that come late, never, or once more: each element comes once all the same, or it is said why not."""

from typing import Any

import pytest
from tests.unit.control.control_driver import OTHER_STRUCTURE, FakePlan, Service
from tests.unit.control.membership.test_resume import states_of
from tests.unit.control.test_random_schedules import KINDS

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.dispatcher.status_report import status
from millrace.protocol import messages as msg
from millrace.protocol.reports import LaneReport

GRACE_S = 300.0


def leave(service, peer):
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    del service.consumers[peer.client]


def read(service, peer, epochs=1):
    """All tasks of its epochs, of which it has begun the first; then it closes."""
    tasks = []
    for epoch in range(epochs):
        service.run(room=3)
        assert peer.done
        tasks.append(list(peer.complete))
        if epoch + 1 < epochs:
            service.begin(peer)
    leave(service, peer)
    return tasks


def started(plan=None, **settings):
    service = Service(plan or FakePlan(12), **settings)
    service.add_worker("w")
    return service


def job_status(service, job="a"):
    jobs = status(service.state, service.observed, service.now)["jobs"]
    return next(each for each in jobs if each["name"] == job)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"off"}))
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("epochs", [1, 3])
def test_ranks_that_read_one_after_the_other_get_each_task_once(kind, ranks, epochs):
    service = started()
    got = []
    for rank in range(ranks):
        peer = service.join(f"c{rank}", consumer=rank, num_consumers=ranks, **KINDS[kind])
        got.append(read(service, peer, epochs))
        service.tick(100.0)
    for epoch in range(epochs):
        assert sorted(task for tasks in got for task in tasks[epoch]) == list(range(12))
    assert not service.state.jobs
    assert plain(service.replayed()) == plain(service.state)


def test_a_rank_without_an_index_is_the_one_that_has_not_come():
    service = started()
    first = read(service, service.join("x", num_consumers=2))
    late = service.join("y", num_consumers=2)
    assert late.joined.consumer == 1
    assert sorted(first[0] + read(service, late)[0]) == list(range(12))


def test_what_a_rank_leaves_in_mid_epoch_is_kept_for_the_one_that_has_not_come():
    service = started()
    peer = service.join("x", num_consumers=2)
    for _ in range(3):
        service.work(room=1)
    had = list(peer.complete)
    assert 0 < len(had) < 12
    leave(service, peer)
    late = service.join("y", num_consumers=2)
    assert sorted(had + read(service, late)[0]) == list(range(12))


def test_a_restarted_dispatcher_still_keeps_the_job():
    service = started()
    first = read(service, service.join("x", num_consumers=2))
    service.restart()
    service.hello("w")
    service.tick(20.0)
    assert sorted(first[0] + read(service, service.join("y", num_consumers=2))[0]) == list(range(12))


def test_late_ranks_go_on_from_the_states_of_all():
    service = started()
    peers = [service.join(f"c{rank}", consumer=rank, num_consumers=2) for rank in range(2)]
    for _ in range(3):
        service.work(room=1)
    had = [task for peer in peers for task in peer.complete]
    states = states_of(service, peers)
    for peer in peers:
        leave(service, peer)
    for rank in range(3):
        peer = service.join(f"d{rank}", consumer=rank, num_consumers=3, states=states, begin=False)
        assert peer.failure is None
        service.begin(peer, 0)
        had += read(service, peer)[0]
    assert sorted(had) == list(range(12))


def test_the_status_says_for_whom_a_job_is_kept_and_it_ends_when_they_do_not_come():
    service = started()
    read(service, service.join("x", num_consumers=3))
    service.tick(60.0)
    job = job_status(service)
    assert job["kept"] == {"consumers": [1, 2], "for_s": GRACE_S - 60.0}
    assert job["why"] == "job a is kept for consumers 1, 2, not seen yet, for 4 min more"
    service.tick(241.0)
    assert not service.state.jobs
    assert not service.workers["w"].open
    assert service.state.ended["a"].reason == "consumers 1, 2 did not come within 300 s after the others had left"


def test_workers_are_others_while_nobody_reads():
    service = started(FakePlan(40))
    service.add_worker("v")
    peer = service.join("x", num_consumers=2)
    for _ in range(60):
        service.work(read=False, room=1)
        for task in service.readable(peer):
            service.read(peer, task)
    leave(service, peer)
    assert any(worker.unfinished for worker in service.state.workers.values())  # blocked, as nobody reads it
    other = service.join("o", "other")
    for _ in range(60):
        service.tick(6.0)
        for name, worker in service.workers.items():
            lanes = [LaneReport(task.consumer, True, 100.0, 0) for task in worker.leases.values()]
            service.report(name, lanes=lanes)
        service.work(room=1)
        if other.done:
            break
    assert other.done
    assert {worker.job for worker in service.state.workers.values()} == {"other"}


@pytest.mark.parametrize(
    "fields", [{"consumer": 0}, {"consumer": 1, "structure": OTHER_STRUCTURE}, {"consumer": 1, "seed": 4}]
)
def test_another_run_begins_a_kept_job_anew_and_is_told_so(fields):
    service = started()
    read(service, service.join("x", consumer=0, num_consumers=2, seed=3))
    again = service.join("x2", **{"num_consumers": 2, "seed": 3, **fields})
    assert "begins anew" in again.notices[0]
    assert "consumer 1" in again.notices[0]
    other = service.join("y2", **{"num_consumers": 2, "seed": 3, **fields, "consumer": 1 - fields["consumer"]})
    service.run()
    assert sorted(again.complete + other.complete) == list(range(12))
    assert not other.notices


def test_who_has_read_nothing_keeps_no_job():
    service = started()
    leave(service, service.join("x", num_consumers=2, begin=False))
    assert not service.state.jobs


def test_a_job_that_has_failed_or_has_no_name_is_not_kept():
    service = started()
    for client, name in (("x", "a"), ("anonymous", "")):
        service.join(client, name, num_consumers=2)
    service.plan_tasks(service.workers["w"])
    lease = next(lease for lease in service.workers["w"].leases.values() if lease.ref.job == "a")
    failed = msg.TaskFailed(lease.ref, lease.lease, msg.Failure("ElementError", "bad"))
    service.say(inp.WorkerSaid("w", failed))
    for client in ("x", "anonymous"):
        leave(service, service.consumers[client])
    assert not service.state.jobs


def over(service, **fields):
    """A job of two ranks that is over, as the second one did not come."""
    read(service, service.join("x", consumer=0, num_consumers=2, **fields))
    service.tick(GRACE_S + 1.0)
    assert not service.state.jobs
    service.tick(60.0)


def test_a_rank_that_comes_when_its_job_is_over_is_refused():
    service = started()
    over(service)
    late = service.join("y", consumer=1, num_consumers=2, age_s=100.0)
    assert late.failure.kind == "JobFailedError"
    assert (
        "job 'a' ended 60 s ago, as consumer 1 did not come within 300 s after the others had left: "
        in late.failure.message
    )
    assert "--job-gc-timeout" in late.failure.message
    assert not service.state.jobs


@pytest.mark.parametrize("fields", [{"age_s": 5.0}, {}])
def test_a_rank_that_was_started_when_its_job_was_over_begins_anew_and_is_told_so(fields):
    service = started()
    over(service)
    peer = service.join("y", consumer=1, num_consumers=2, **fields)
    assert "this process begins it anew" in peer.notices[0]
    first = service.join("x2", consumer=0, num_consumers=2, age_s=5.0)
    assert not first.notices
    service.run()
    assert sorted(peer.complete + first.complete) == list(range(12))


def test_a_script_that_runs_again_hears_nothing():
    service = started()
    for run in range(3):
        for rank in range(2):
            peer = service.join(f"c{rank}.{run}", consumer=rank, num_consumers=2, pid=run, age_s=1.0)
            read(service, peer)
            assert not peer.notices
        service.tick(10.0)


LATE: list[tuple[dict[str, Any], bool]] = [
    ({"pid": 8, "age_s": 1.0}, False),  # the script once more
    ({"pid": 7, "age_s": 100.0}, False),  # the same process once more
    ({"pid": 8, "age_s": 100.0}, True),
    ({"pid": 8, "age_s": 1.0, "consumer": 1}, True),
    ({"pid": 7, "age_s": 1.0, "consumer": 1}, True),
    ({"pid": 8}, False),  # nobody can tell
]


@pytest.mark.parametrize(("fields", "told"), LATE)
def test_without_a_number_of_consumers_who_may_be_late_is_told_what_to_say(fields, told):
    service = started()
    read(service, service.join("x", host="box", pid=7, age_s=50.0))
    service.tick(10.0)
    peer = service.join("y", host="box", **fields)
    assert ["num_consumers=" in text for text in peer.notices] == [True] * told
    service.run()
    assert sorted(peer.complete) == list(range(12))


def test_long_after_its_end_nobody_is_late():
    service = started()
    read(service, service.join("x", host="box", pid=7))
    service.tick(GRACE_S + 1.0)
    assert not service.join("y", host="box", pid=8, consumer=1, age_s=1e6).notices


def test_jobs_that_are_over_are_not_remembered_for_ever():
    service = started(FakePlan(0))
    for number in range(300):
        leave(service, service.join(f"x{number}", f"job{number}"))
    assert len(service.state.ended) == 256
    assert "job299" in service.state.ended


@pytest.mark.parametrize(("fields", "waits"), [({}, False), ({"deterministic": True}, True)])
def test_nobody_waits_for_ever_for_what_a_rank_leaves_over_that_never_comes(fields, waits):
    """Its tasks fill their worker, so that the tail of the other one cannot run."""
    service = started(FakePlan(8, 8))
    peer = service.join("x", consumer=0, num_consumers=2, **fields)
    for _ in range(40):
        service.work(room=1)
    service.tick()
    for _ in range(40):
        service.work(room=1)
    if waits:
        assert not peer.done
        for _ in range(62):
            service.tick(5.0)
            service.say(inp.ConsumerSaid("x", msg.ConsumerReport(0)))
        for _ in range(40):
            service.work(room=1)
        assert service.state.jobs["a"].left == {1}
    assert peer.done
    late = service.join("y", consumer=1, num_consumers=2, **fields)
    service.run()
    assert late.done
    assert not set(late.complete) & set(peer.complete)


@pytest.mark.parametrize(("inputs", "fields"), [(3, {}), (2, {"deterministic": True})])
def test_what_runs_again_for_a_rank_that_was_away_leaves_the_lane_of_one_that_never_came(inputs, fields):
    """Nobody reads there, so that the lane may stand still for ever."""
    service = started(FakePlan(inputs, inputs))
    gone = service.workers["w"]
    peer = service.join("x", consumer=0, num_consumers=2, **fields)
    service.plan_tasks(gone)
    service.report("w", want=8)
    [first] = [number for number, lease in gone.leases.items() if lease.ref.task == 0]
    service.finish(gone, first)
    service.read(peer, 0)
    service.say(inp.ClientSessionLost("x"))
    service.kill("w")
    worker = service.add_worker("v")
    assert [lease.consumer for lease in worker.leases.values() if lease.ref.task == 0] == [1]
    service.rejoin(peer)
    service.tick()
    assert [lease.consumer for lease in worker.leases.values() if lease.ref.task == 0] == [0]
    service.run()
    assert inputs in peer.complete


def test_two_that_nobody_expected_and_come_one_after_the_other_begin_with_an_epoch_that_is_read():
    """The first has not begun it yet as the second comes, and the one before it is over."""
    service = started()
    first = service.join("c0", consumer=2)
    service.run(room=3)
    assert first.done
    service.begin(first, 1)
    second = service.join("c1", consumer=0, begin=False)
    third = service.join("c2", consumer=1)
    assert [each.joined.epoch for each in (second, third)] == [0, 0]
    service.begin(second, 1)
    service.run(room=3)
    assert 0 not in service.state.jobs["a"].epochs
    assert sorted(task for peer in (first, second, third) for task in peer.complete) == list(range(12))
