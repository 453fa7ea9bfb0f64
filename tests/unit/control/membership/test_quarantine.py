"""What ends workers is found in few steps; who only happens to be there when workers are killed is not blamed."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.job_events import PlanningDied
from millrace.control.journal.snapshot import plain
from millrace.control.journal.task_events import PoisonFound, TaskDied
from millrace.control.membership.quarantine import MOST_DEATHS, MOST_POISON, PLANNING_DEATHS
from millrace.planning.split_table import positions_table
from millrace.protocol import messages as msg
from millrace.protocol.crash_sites import Poison

MAP = (1, 0, 0, 0, 17, 0)
"""Node 1, given item 17 of source 0 for the first time."""
BATCH = (2, -2, 3, 0, 5, 0)
"""Node 2, given element 5 behind a node that mixes, in task 3: another element in another epoch."""


def planned(plan=None, **fields):
    """A service with one worker at a time and a consumer."""
    service = Service(plan or FakePlan(3))
    service.add_worker("w0")
    peer = service.join("c", **fields)
    service.plan_tasks(service.workers["w0"])
    return service, peer


def lease_of(service, task):
    """(worker, lease) that has the task now."""
    for worker in service.workers.values():
        for lease in worker.leases.values():
            if lease.ref.task == task:
                return worker, lease
    return None


def go(service, worker, lease, place=(), where="", number=1):
    """The worker says where it is, and is told to go on."""
    service.say(inp.WorkerSaid(worker.name, msg.ProbeReport(lease.ref, lease.lease, number, place, where)))
    [told] = [action.message for action in service.last]
    assert told == msg.ProbeAck(lease.ref, lease.lease, number)


def next_worker(service):
    """The worker is killed, and another one takes its place."""
    [name] = service.workers
    service.kill(name)
    service.add_worker(f"w{int(name[1:]) + 1}")


def die_at(service, task, place, where="map(decode) of a.jpg"):
    """The worker that has the task is killed there."""
    found = lease_of(service, task)
    assert found is not None
    worker, lease = found
    if lease.probe_level:
        go(service, worker, lease, place if lease.probe_level > 1 else (-1, 0), where)
    next_worker(service)
    return lease.probe_level


def kinds(service, kind):
    return [event for event in service.events if isinstance(event, kind)]


def test_two_deaths_suspect_a_task_and_two_more_convict_an_element():
    service, peer = planned()
    assert [die_at(service, 0, MAP) for _ in range(4)] == [0, 1, 2, 2]
    [found] = kinds(service, PoisonFound)
    assert found == PoisonFound("a", 0, 0, Poison(MAP, "map(decode) of a.jpg"), everywhere=True)
    [notice] = peer.notices
    assert notice.startswith("map(decode) of a.jpg has ended the process of every worker that came to it")
    for lease in next(iter(service.workers.values())).leases.values():
        assert lease.poison == [found.poison]
    service.run()
    assert peer.done
    assert plain(service.replayed()) == plain(service.state)


def test_no_epoch_is_prepared_while_something_is_suspected():
    service, peer = planned()
    die_at(service, 0, MAP)
    service.work(read=False)
    service.work(read=False)
    assert [lease for worker in service.workers.values() for lease in worker.leases.values()] == []
    service.run()
    assert peer.done
    assert 1 in {lease.ref.epoch for worker in service.workers.values() for lease in worker.leases.values()} | {
        key[1] for worker in service.workers.values() for key in worker.finished
    }


def test_what_was_only_waiting_at_a_dead_worker_is_not_suspected_further():
    service, _ = planned()
    for _ in range(4):
        die_at(service, 0, MAP)
    _, other = lease_of(service, 1) or (None, None)
    assert other is not None
    assert other.probe_level == 1  # it had been leased to the first that died, and began nowhere


def test_an_element_behind_a_shuffle_is_poison_for_its_task_only():
    service, _ = planned()
    for _ in range(4):
        die_at(service, 0, BATCH)
    [found] = kinds(service, PoisonFound)
    assert not found.everywhere
    assert (lease_of(service, 0) or (None, msg.LeaseTask))[1].poison == [found.poison]
    assert (lease_of(service, 1) or (None, msg.LeaseTask))[1].poison == []


def test_who_waits_while_another_one_kills_the_worker_is_not_blamed():
    service, _ = planned()
    for _ in range(2):
        die_at(service, 0, MAP)
    for _ in range(5):
        worker, lease = lease_of(service, 0) or pytest.fail("nobody has it")
        go(service, worker, lease, MAP, "map(decode) of a.jpg")
        go(service, worker, lease, (), "", number=2)
        next_worker(service)
    assert not kinds(service, PoisonFound)


@given(seed=st.integers(0, 2**32), deaths=st.integers(3, MOST_DEATHS - 1))
def test_workers_that_are_killed_at_random_convict_nothing(seed, deaths):
    """As long as it is not the same element twice in a row, which is then no accident."""
    rng = random.Random(seed)
    service, peer = planned()
    last: dict[int, int] = {}
    for _ in range(deaths):
        task = rng.choice([task for task in range(3) if lease_of(service, task)])
        last[task] = rng.choice([position for position in range(9) if position != last.get(task)])
        die_at(service, task, (1, 0, 0, 0, last[task], 0))
    assert not kinds(service, PoisonFound)
    service.run()
    assert peer.done


def test_what_is_no_function_ends_the_job():
    service, peer = planned()
    for _ in range(4):
        die_at(service, 0, (-2, 5), "putting output 5 of task 0 together, which is no function of the pipeline,")
    assert peer.failure.kind == "JobFailedError"
    assert "job 'a' cannot go on: putting output 5 of task 0 together" in peer.failure.message
    assert not next(iter(service.workers.values())).leases


def test_a_job_does_not_take_workers_down_for_ever():
    service, peer = planned()
    deaths = 0
    while peer.failure is None:
        die_at(service, 0, (1, 0, 0, 0, deaths // 2, 0))
        deaths += 1
        assert deaths <= 2 * MOST_POISON + 4
    assert f"more than {MOST_POISON} elements have ended workers" in peer.failure.message


def test_a_task_that_ends_workers_wherever_it_is_ends_the_job():
    service, peer = planned()
    deaths = 0
    while peer.failure is None:
        die_at(service, 0, (1, 0, 0, 0, deaths, 0), f"map(leak) of {deaths}.jpg")
        deaths += 1
    assert deaths == MOST_DEATHS
    assert "task 0 of epoch 0 has ended 16 workers, each time elsewhere, the last one at map(leak) of 15.jpg" in (
        peer.failure.message
    )


@pytest.mark.parametrize("asked", ["listing", "sharding"])
def test_sources_that_end_whoever_lists_them_end_the_job(asked):
    service = Service(FakePlan(3))
    service.add_worker("w0")
    peer = service.join("c", sharding="custom" if asked == "sharding" else "dynamic")
    for number in range(PLANNING_DEATHS):
        assert peer.failure is None
        [worker] = service.workers.values()
        if asked == "sharding" and isinstance(worker.planning[0], msg.ListSources):
            service.say(inp.WorkerSaid(worker.name, msg.SourcesListed("a", {0: positions_table(100).summary()})))
            worker.planning.popleft()
        assert worker.planning, number
        next_worker(service)
    assert peer.failure.kind == "JobFailedError"
    assert "4 workers ended while they listed its sources or ran its sharding function" in peer.failure.message
    assert plain(service.replayed()) == plain(service.state)


def test_an_element_is_not_taken_for_the_sharding_function_that_its_worker_is_asked_meanwhile():
    service = Service(FakePlan(2))
    worker = service.add_worker("w0")
    peer = service.join("c", sharding="custom")
    service.say(inp.WorkerSaid("w0", msg.SourcesListed("a", {0: positions_table(100).summary()})))
    service.say(inp.WorkerSaid("w0", msg.ShardingChosen("a", 0, [0, 0])))
    assert worker.planning[-1].epoch == 1
    assert [die_at(service, 0, MAP) for _ in range(4)] == [0, 1, 2, 2]
    assert kinds(service, PoisonFound)
    assert not kinds(service, PlanningDied)
    assert peer.failure is None


def test_nothing_is_run_again_at_most_once_so_nobody_is_suspected():
    service, peer = planned(visitation="at_most_once")
    next_worker(service)
    assert not kinds(service, TaskDied)
    service.run()
    assert peer.done


def test_a_lease_that_is_not_in_force_gets_no_answer():
    service, _ = planned()
    worker, lease = lease_of(service, 0) or pytest.fail("nobody has it")
    service.say(inp.WorkerSaid(worker.name, msg.ProbeReport(lease.ref, lease.lease + 100, 1, MAP, "")))
    assert not service.last
