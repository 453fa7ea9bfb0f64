"""Tasks that fail: what comes before them is read first, and then the job fails of the first of them."""

from typing import Any

import pytest
from tests.unit.control.control_driver import FakeConsumer, FakePlan, FakeWorker, Service

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.protocol import messages as msg

EACH: dict[str, Any] = {"num_consumers": 2, "deterministic": True}


def failure(task: int) -> msg.Failure:
    return msg.Failure("ElementError", f"map(decode) failed in task {task}")


def lease_of(service: Service, task: int, epoch: int = 0) -> tuple[FakeWorker, int]:
    return next(
        (worker, number)
        for worker in service.workers.values()
        for number, lease in worker.leases.items()
        if (lease.ref.epoch, lease.ref.task) == (epoch, task)
    )


def fail(service: Service, task: int) -> None:
    service.fail(*lease_of(service, task), failure(task))


def started(workers: int = 2, *, plan: FakePlan | None = None) -> Service:
    service = Service(plan or FakePlan(8))
    for number in range(workers):
        service.add_worker(f"w{number}")
    return service


def listed(service: Service) -> None:
    for worker in service.workers.values():
        service.plan_tasks(worker)


def finish_and_read(service: Service, peer: FakeConsumer, task: int) -> None:
    service.finish(*lease_of(service, task))
    service.read(peer, task)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_job_in_order_fails_when_what_comes_before_was_read(restarted):
    service = started()
    peer = service.join("x", deterministic=True)
    listed(service)
    fail(service, 2)
    service.tick()
    assert not peer.failure
    if restarted:
        service.restart()
        for name in service.workers:
            service.hello(name)
        service.rejoin(peer)
    finish_and_read(service, peer, 0)
    assert not peer.failure
    finish_and_read(service, peer, 1)
    assert peer.failure == failure(2)
    assert plain(service.replayed()) == plain(service.state)


def test_a_task_that_failed_does_not_run_again_while_it_waits():
    service = started()
    peer = service.join("x", deterministic=True)
    listed(service)
    fail(service, 3)
    for _ in range(3):
        service.tick(1.0)
    running = {lease.ref.task for worker in service.workers.values() for lease in worker.leases.values()}
    assert 3 not in running
    assert {0, 1, 2} <= running
    service.run()
    assert (peer.complete, peer.failure) == ([0, 1, 2], failure(3))


def test_of_several_failures_the_first_in_order_wins():
    service = started()
    peer = service.join("x", deterministic=True)
    listed(service)
    for task in (3, 1, 2):
        fail(service, task)
        assert not peer.failure
    finish_and_read(service, peer, 0)
    assert peer.failure == failure(1)


def test_without_an_order_a_job_fails_at_once():
    service = started()
    peer = service.join("x")
    listed(service)
    fail(service, 2)
    assert peer.failure == failure(2)


def test_what_comes_before_in_order_and_has_no_worker_is_waited_for():
    service = started()
    peer = service.join("x", sharding="static", deterministic=True)
    listed(service)
    worker, _ = lease_of(service, 1)
    other = next(each for each in service.workers.values() if each is not worker)
    service.kill(other.name)  # which had task 0
    fail(service, 1)
    assert not peer.failure
    service.run()
    assert (peer.complete, peer.failure) == ([0], failure(1))


def test_a_rank_waits_for_what_it_reads_itself_and_not_for_what_others_do():
    service = started()
    one, other = (service.join(f"x{rank}", consumer=rank, **EACH) for rank in range(2))
    listed(service)
    fail(service, 2)
    finish_and_read(service, one, 0)
    assert one.failure == other.failure == failure(2)
    assert not other.complete


@pytest.mark.parametrize("kind", [EACH, {"num_consumers": 2}])
def test_a_rank_that_is_in_an_earlier_epoch_reads_that_first(kind):
    service = started(plan=FakePlan(4))
    ahead, behind = (service.join(f"x{rank}", consumer=rank, **kind) for rank in range(2))
    listed(service)
    while not ahead.done:
        service.work(read=False)
        for task in service.readable(ahead):
            service.read(ahead, task)
    service.begin(ahead)
    theirs = next(
        lease.ref.task
        for worker in service.workers.values()
        for lease in worker.leases.values()
        if (lease.ref.epoch, lease.consumer) == (1, 1)
    )
    service.fail(*lease_of(service, theirs, 1), failure(theirs))
    assert not behind.failure
    for task in service.readable(behind):
        service.read(behind, task)
    assert behind.done
    assert not behind.failure
    service.begin(behind)
    assert behind.failure == failure(theirs)


def test_a_consumer_that_leaves_takes_its_failure_along():
    service = started()
    one, other = (service.join(f"x{rank}", consumer=rank, **EACH) for rank in range(2))
    listed(service)
    fail(service, 2)
    service.say(inp.ConsumerSaid(one.client, msg.LeaveJob()))
    service.run()
    assert (other.failure, sorted(other.complete)) == (None, [1, 3, 5, 7])


def test_a_failure_of_a_rank_that_never_comes_keeps_nobody_from_reading():
    service = started()
    other = service.join("x1", consumer=1, **EACH)
    listed(service)
    fail(service, 0)
    service.run()
    assert (other.failure, sorted(other.complete)) == (None, [1, 3, 5, 7])
    late = service.join("x0", consumer=0, **EACH)
    assert late.failure == failure(0)


def test_a_tail_goes_without_what_failed_once_its_consumer_has_left():
    service = started(plan=FakePlan(6, 3))  # tasks 0, 1 and 2 leave something to task 3, which is the other's
    one, other = (service.join(f"x{rank}", consumer=rank, **EACH) for rank in range(2))
    listed(service)
    service.finish(*lease_of(service, 0))
    finish_and_read(service, other, 1)
    fail(service, 2)
    assert not other.failure
    service.say(inp.ConsumerSaid(one.client, msg.LeaveJob()))
    service.run()
    assert other.done
    assert not other.failure


def test_a_run_for_leftovers_alone_fails_the_job_at_once():
    service = started(plan=FakePlan(6, 3))
    peer = service.join("x", deterministic=True)
    listed(service)
    worker, lease = lease_of(service, 2)
    service.finish(worker, lease)
    for task in (0, 1):
        finish_and_read(service, peer, task)
    service.read(peer, 2)
    service.kill(worker.name)
    again, lease = lease_of(service, 2)
    assert again.leases[lease].received < 0
    fail(service, 2)
    assert peer.failure == failure(2)


def test_ranks_that_wait_for_one_another_do_not_wait_for_what_comes_before():
    service = started()
    one, other = (service.join(f"x{rank}", consumer=rank, equal_steps=True, **EACH) for rank in range(2))
    listed(service)
    fail(service, 2)
    assert one.failure == other.failure == failure(2)


def test_who_comes_in_the_place_of_one_that_used_nothing_has_the_task_run_again():
    service = started()
    first, _ = (service.join(f"x{rank}", consumer=rank, **EACH) for rank in range(2))
    listed(service)
    fail(service, 2)
    service.say(inp.ClientSessionLost(first.client))
    service.join("again", consumer=0, **EACH)
    lease_of(service, 2)
    assert not service.state.jobs["a"].epochs[0].failures
