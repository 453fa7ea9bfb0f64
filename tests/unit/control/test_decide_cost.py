"""What deciding costs, in questions asked rather than in seconds."""

from __future__ import annotations

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import schedule, supply, turns


@pytest.fixture
def asked(monkeypatch):
    """Counts how often somebody looks for a task."""
    count = [0]

    def offer(*args, **options):
        count[0] += 1
        return supply.offer(*args, **options)

    monkeypatch.setattr(schedule, "offer", offer)
    monkeypatch.setattr(turns, "offer", offer)
    return count


def busy_service(workers, jobs, **fields):
    service = Service(FakePlan(2000, 16))
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
