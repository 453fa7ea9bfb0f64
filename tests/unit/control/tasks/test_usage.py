"""What jobs use, by epoch."""

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.state.observed import ResourceUsage
from millrace.dispatcher.status_report import status
from millrace.policies.prices import Machine, Prices, PriceTable
from millrace.protocol import messages as msg


def spent(service, job="a"):
    found = next(each for each in status(service.state, service.observed, service.now)["jobs"] if each["name"] == job)
    return {
        each["epoch"]: (round(3600 * each["worker_hours"]), round(3600 * each["training_hours"]))
        for each in found["spent"]
    }


def test_time_goes_to_the_epoch_that_is_read_and_the_job_that_is_served():
    service = Service(FakePlan(None))
    service.tick(5.0)
    for name in ("w0", "w1", "w2"):
        service.add_worker(name)
    peer = service.join("x", num_consumers=2)
    service.join("y", num_consumers=2)
    for worker in service.workers.values():
        service.plan_tasks(worker)
    for _ in range(4):
        service.tick(1.0)
    assert spent(service) == {0: (12, 8)}
    service.kill("w2")
    service.begin(peer)
    for _ in range(2):
        service.tick(1.0)
    assert spent(service) == {0: (12, 8), 1: (4, 4)}
    service.say(inp.ConsumerSaid("x", msg.LeaveJob()))
    service.tick(1.0)
    assert spent(service) == {0: (14, 9), 1: (4, 4)}  # the other one is still in the first
    service.say(inp.ConsumerSaid("y", msg.LeaveJob()))
    service.tick(1.0)
    assert not service.observed.usage


def test_what_workers_are_measured_to_use_goes_to_the_job_that_they_serve():
    service = Service(FakePlan(None))
    service.tick(5.0)
    for name in ("w0", "w1"):
        service.add_worker(name)
    service.join("x")
    for worker in service.workers.values():
        service.plan_tasks(worker)
    service.tick(1.0)
    for cpu_s in (0.0, 1.0, 4.0):  # seconds of each of its cores
        service.report("w0", cpu_s=cpu_s, cores=2, memory_bytes=3 << 30)
        for _ in range(2):
            service.now += 2.0
            service.say(inp.Tick())
    service.kill("w0")
    service.tick(2.0)
    (job,) = status(service.state, service.observed, service.now)["jobs"]
    (epoch,) = job["spent"]
    assert 3600 * epoch["core_hours"] == pytest.approx(8.0)  # the other one has not said anything
    assert 3600 * epoch["gib_hours"] == pytest.approx(3 * 12.0)


def test_what_workers_used_before_the_dispatcher_began_is_not_charged_again():
    service = Service(FakePlan(None))
    service.tick(5.0)
    service.add_worker("w0")
    service.join("x")
    service.plan_tasks(service.workers["w0"])
    service.report("w0", cpu_s=7_200.0, cores=4)
    service.restart()
    service.hello("w0")
    service.rejoin(service.consumers["x"])
    for cpu_s in (None, 7_201.0, 7_203.0):
        if cpu_s is not None:
            service.report("w0", cpu_s=cpu_s, cores=4)
        for _ in range(2):
            service.now += 1.0
            service.say(inp.Tick())
    (job,) = status(service.state, service.observed, service.now)["jobs"]
    (epoch,) = job["spent"]
    assert 3600 * epoch["core_hours"] == pytest.approx(4 * 2.0)


def test_the_dispatcher_is_one_more_worker():
    prices = PriceTable(Prices(core=3.6, gib=0.36))
    service = Service(FakePlan(None), prices=prices)
    own = ResourceUsage(worker_s=100.0, core_s=10.0, gib_s=50.0)
    found = status(service.state, service.observed, service.now, dispatcher=own)["dispatcher"]
    assert found["service"] == pytest.approx(10.0 * 1e-3 + 50.0 * 1e-4)
    assert found["core_hours"] == pytest.approx(10.0 / 3600)


def test_a_service_that_knows_prices_says_what_epochs_have_cost():
    prices = PriceTable(Prices(accelerator=2.0), Machine(hour=0.1), Machine(hour=1.0), "USD")
    service = Service(FakePlan(None), prices=prices)
    service.tick(5.0)
    service.add_worker("w0")
    service.join("x", accelerators=4)
    for _ in range(36):
        service.tick(0.1)
    found = status(service.state, service.observed, service.now)
    (epoch,) = found["jobs"][0]["spent"]
    assert (epoch["service"], epoch["training"]) == (pytest.approx(0.1e-3), pytest.approx(9e-3))
    assert found["prices"]["currency"] == "USD"


def test_old_epochs_are_added_up():
    service = Service(FakePlan(None))
    service.add_worker("w0")
    peer = service.join("x")
    service.plan_tasks(service.workers["w0"])
    service.tick(0.0)
    for _ in range(250):
        service.tick(1.0)
        service.begin(peer)
    found = spent(service)
    assert len(found) == 100
    assert sum(workers for workers, _ in found.values()) == pytest.approx(250, abs=1)


def test_of_jobs_that_shared_and_are_gone_the_last_are_told_apart_and_old_epochs_of_the_others_added_up():
    service = Service(FakePlan(None))
    service.add_worker("w0")
    stays = service.join("x", "stays", sharing="lockstep")
    service.plan_tasks(service.workers["w0"])
    service.tick(0.0)
    for number in range(250):
        service.join("y", f"goes-{number}", sharing="lockstep")
        service.tick(1.0)
        service.say(inp.ConsumerSaid("y", msg.LeaveJob()))
        del service.consumers["y"]
        service.begin(stays)
    [group] = service.observed.groups.values()
    assert [name for name in group.spent if name.startswith("goes")] == [f"goes-{n}" for n in range(149, 250)]
    assert len(group.spent["stays"]) == len(group.spent[""]) == 100
    total = sum(each.worker_s for epochs in group.spent.values() for each in epochs.values())
    assert total == pytest.approx(250, abs=1)
