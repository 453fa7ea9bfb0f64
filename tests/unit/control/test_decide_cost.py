"""What deciding costs, in questions asked rather than in seconds."""

from __future__ import annotations

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control.scaling import job_placement
from millrace.control.scheduling import allocation, backlog, scheduler
from millrace.control.state.observed import Division
from millrace.control.state.state import Job
from millrace.control.tasks import task_queue


@pytest.fixture
def asked(monkeypatch):
    """Counts how often somebody looks for a task."""
    count = [0]

    def offer(*args, **options):
        count[0] += 1
        return task_queue.candidate_for(*args, **options)

    monkeypatch.setattr(scheduler, "candidate_for", offer)
    monkeypatch.setattr(backlog, "candidate_for", offer)
    return count


@pytest.fixture
def looked(monkeypatch):
    """Counts how often a job is looked at: whether it has work, how many workers it wants, how it stands."""
    count = [0]

    def counted(function):
        def call(*args, **options):
            count[0] += 1
            return function(*args, **options)

        return call

    monkeypatch.setattr(backlog, "_has_work", counted(backlog._has_work))
    monkeypatch.setattr(allocation, "wanted", counted(job_placement.wanted))
    monkeypatch.setattr(Division, "standing", counted(Division.standing))
    return count


def busy_service(workers, jobs, **fields):
    service = Service(FakePlan(2000, 16), checked=False)
    for number in range(workers):
        service.add_worker(f"w{number}")
    for number in range(jobs):
        service.join(f"c{number}", f"job{number}", **fields)
    for _ in range(2):
        for worker in service.workers.values():
            service.plan_tasks(worker)
            for lease in list(worker.leases)[:1]:
                service.finish(worker, lease)
    return service


def cost_of_a_task(service, asked):
    busy = [worker for worker in service.workers.values() if worker.leases]
    asked[0] = 0
    for worker in busy:
        service.finish(worker, min(worker.leases))
    return asked[0] / len(busy)


def test_a_report_without_news_costs_nothing(asked):
    service = busy_service(20, 3)
    asked[0] = 0
    for name in service.workers:
        service.report(name)
    assert asked[0] == 0


def test_what_a_task_costs_hardly_grows_with_the_number_of_workers(asked):
    few, many = (cost_of_a_task(busy_service(workers, 1), asked) for workers in (10, 100))
    assert 0 < many <= few + 8


def test_what_a_task_costs_does_not_grow_with_the_number_of_jobs(asked):
    few, many = (cost_of_a_task(busy_service(2 * jobs, jobs), asked) for jobs in (5, 60))
    assert 0 < many <= few + 2


def test_what_a_task_costs_hardly_grows_with_the_number_of_workers_where_they_own_shares(asked):
    few, many = (cost_of_a_task(busy_service(workers, 1, sharding="static"), asked) for workers in (10, 100))
    assert 0 < many <= few + 2


def test_a_worker_that_comes_costs_as_much_with_many_jobs_as_with_few(asked):
    costs = []
    for jobs in (5, 60):
        service = busy_service(2 * jobs, jobs)
        asked[0] = 0
        service.add_worker("another")
        costs.append(asked[0])
    assert 0 < costs[1] <= costs[0] + 2


def settled_service(workers, jobs):
    """All have what is their share, and a while has passed."""
    service = busy_service(workers, jobs)
    for _ in range(6):
        service.tick(2.0)
        for worker in service.workers.values():
            service.plan_tasks(worker)
            for lease in list(worker.leases)[:1]:
                service.finish(worker, lease)
        for peer in service.consumers.values():
            for task in service.readable(peer):
                service.read(peer, task)
    return service


@pytest.mark.parametrize("spare", [0, 3])
def test_jobs_that_a_task_does_not_concern_are_not_looked_at(looked, spare):
    few, many = (cost_of_a_task(settled_service(2 * jobs + spare, jobs), looked) for jobs in (8, 60))
    assert many <= few + 2


def test_jobs_of_which_enough_lies_ready_are_looked_at_once_at_most(looked):
    jobs = 40
    service = settled_service(2 * jobs, jobs)
    for want in (6, 2):  # so that more lies ready than is allowed in the end
        for name in service.workers:
            service.report(name, want=want)
        while any(worker.leases for worker in service.workers.values()):
            for worker in service.workers.values():
                for lease in list(worker.leases):
                    service.finish(worker, lease)
    service.tick(0.5)
    peer = service.consumers["c0"]
    looked[0] = 0
    service.read(peer, service.readable(peer)[0])
    assert looked[0] <= 2 * jobs
    assert not any(worker.leases for worker in service.workers.values())


def test_the_newest_epoch_is_looked_for_once_at_most_between_two_changes(monkeypatch):
    ranks = 40
    service = Service(FakePlan(2000), checked=False)
    service.add_worker("w")
    for rank in range(ranks):
        service.join(f"c{rank}", num_consumers=ranks, consumer=rank)
    service.plan_tasks(service.workers["w"])
    found = [0]

    def newest(job):
        found[0] += 1
        return 0

    monkeypatch.setattr(Job, "newest", property(newest))
    job, worker = service.state.jobs["a"], service.state.workers["w"]
    service.state.index.invalidate(job.name)
    for rank in range(ranks):
        task_queue.candidate_for(service.state, job, worker, rank, cap=1, ahead=True)
    assert found[0] <= 1
