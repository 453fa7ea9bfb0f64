"""Many jobs on few workers: shares over time, priorities, quotas, who leaves for whom."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.job_events import TurnCut
from millrace.control.journal.snapshot import plain
from millrace.control.journal.task_events import TaskReleased
from millrace.control.journal.transaction import Transaction
from millrace.control.journal.worker_events import WorkerAssigned
from millrace.control.scheduling import allocation
from millrace.control.scheduling.backlog import having_work
from millrace.protocol import messages as msg


def service_of(workers, jobs, **settings):
    """Jobs by name with the fields of their specs, on so many workers, which came first."""
    service = Service(FakePlan(None), **settings)
    for number in range(workers):
        service.add_worker(f"w{number}")
    for name, fields in jobs.items():
        service.join(f"c-{name}", name, **fields)
    return service


def counts(service):
    return Counter(worker.job for worker in service.state.workers.values())


def run(service, seconds, step=0.5):
    """Time passes, a task of each worker ending every ``step`` seconds; returns worker-seconds by job."""
    had: Counter[str] = Counter()
    for _ in range(round(seconds / step)):
        service.work()
        for peer in service.consumers.values():  # of tasks without end
            peer.reads = {task: read for task, read in peer.reads.items() if task not in peer.complete}
            peer.complete.clear()
        service.tick(step)
        for name, count in counts(service).items():
            had[name] += count * step
    return had


def test_jobs_that_outnumber_workers_have_equal_time():
    service = service_of(2, {f"job{i}": {} for i in range(16)})
    run(service, 20)
    had = run(service, 160)
    assert min(had.values()) >= 0.85 * max(had.values())
    assert len(had) == 16


def test_whose_shares_belong_to_workers_has_its_time_like_others_after_one_job_had_more():
    service = service_of(1, {"long": {"priority": 0.2}})
    service.join("c-first", "first", priority=5.0)
    service.join("c-other", "other")
    service.join("c-owner", "owner", sharding="static")
    for _ in range(25):  # in which the worker computes one task
        service.tick(1.0)
    assert counts(service) == {"long": 1}
    had = run(service, 100)
    assert had["owner"] >= 0.7 * had["other"] > 0


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_time_is_by_priority(workers):
    service = service_of(workers, {"high": {"priority": 3.0}, "low": {}, "other": {}})
    run(service, 60, 1.0)
    had = run(service, 200, 1.0)
    total = sum(had.values())
    assert total == workers * 200
    assert had["high"] / total == pytest.approx(0.6, abs=0.05)
    assert had["low"] / total == pytest.approx(0.2, abs=0.04)


def test_whole_shares_are_kept_without_changing():
    service = service_of(6, {"a": {"priority": 2.0}, "b": {}})
    run(service, 20)
    before = len(service.events)
    run(service, 100)
    assert counts(service) == {"a": 4, "b": 2}
    assert not [event for event in service.events[before:] if isinstance(event, WorkerAssigned)]


def test_a_job_that_comes_has_its_workers_after_one_turn():
    service = service_of(8, {"a": {}})
    run(service, 100)
    service.join("late", "late")
    run(service, 4)
    assert counts(service) == {"a": 4, "late": 4}


def test_who_has_served_for_long_ends_its_tasks_before_it_goes():
    service = service_of(2, {"a": {}})
    run(service, 100)
    service.join("late", "late")
    service.tick(1)
    leased = service.state.workers["w0"].unfinished | service.state.workers["w1"].unfinished
    assert {job for job, _, _ in leased.values()} == {"a"}
    run(service, 5)
    assert counts(service) == {"a": 1, "late": 1}
    assert not [event for event in service.events if isinstance(event, TaskReleased | TurnCut)]


def test_a_job_that_was_alone_does_not_pay_for_it_when_others_come():
    service = service_of(4, {"first": {}})
    run(service, 20)
    for number in range(7):
        service.join(f"c{number}", f"job{number}")
    for _ in range(4):
        service.tick(1.0)  # its tasks take so long
    without = longest = 0
    for _ in range(30):
        without = without + 1 if run(service, 1)["first"] == 0 else 0
        longest = max(longest, without)
    assert 1 <= longest <= 12


def test_a_job_alone_has_all_and_has_them_again_when_others_are_gone():
    service = service_of(4, {"a": {}, "b": {}})
    run(service, 10)
    assert counts(service) == {"a": 2, "b": 2}
    service.say(inp.ConsumerSaid("c-b", msg.LeaveJob()))
    run(service, 10)
    assert counts(service) == {"a": 4}


def test_what_an_idle_job_does_not_use_is_shared_by_the_others():
    service = service_of(3, {"a": {}, "b": {}, "idle": {}})
    run(service, 10)
    assert counts(service) == {"a": 1, "b": 1, "idle": 1}
    service.say(inp.ClientSessionLost("c-idle"))
    run(service, 30, 1.0)
    had = run(service, 200, 1.0)
    assert had["idle"] == 0
    assert had["a"] / had["b"] == pytest.approx(1.0, abs=0.3)
    service.rejoin(service.consumers["c-idle"])
    run(service, 5)
    assert counts(service)["idle"] == 1


def test_a_tenant_has_at_most_its_quota_and_its_jobs_share_that():
    jobs = {"a": {"tenant": "red"}, "b": {"tenant": "red"}, "c": {"tenant": "red"}, "free": {}}
    service = service_of(6, jobs, quotas={"red": 2})
    had: Counter[str] = Counter()
    for _ in range(60):
        had += run(service, 1)
        assert sum(count for name, count in counts(service).items() if name in "abc") <= 2
    assert counts(service)["free"] == 4
    assert min(had[name] for name in "abc") >= 25


def test_beyond_a_quota_workers_stand_still_even_if_nobody_else_has_use_for_them():
    service = service_of(4, {"a": {}, "b": {}}, quotas={"default": 1})
    had = run(service, 40)
    assert counts(service)[""] == 3
    assert had["a"] / had["b"] == pytest.approx(1.0, abs=0.25)
    service.join("other", "other", tenant="blue")
    run(service, 3)
    assert counts(service)["other"] == 3


def test_a_lowered_quota_sends_workers_away():
    service = service_of(4, {"a": {}})
    run(service, 5)
    service.settings = turns_settings(service, quotas={"default": 2})
    service.restart()
    for name in service.workers:
        service.hello(name)
    for peer in service.consumers.values():
        service.rejoin(peer)
    run(service, 5)
    assert counts(service) == {"a": 2, "": 2}


def turns_settings(service, **changes):
    return type(service.settings)(**{**{n: getattr(service.settings, n) for n in ("version", "python")}, **changes})


def test_no_more_workers_than_a_job_wants(monkeypatch):
    monkeypatch.setattr(allocation, "wanted", lambda state, job: {"a": 1, "b": None}[job.name])
    service = service_of(5, {"a": {}, "b": {}})
    run(service, 10)
    assert counts(service) == {"a": 1, "b": 4}
    service.say(inp.ConsumerSaid("c-b", msg.LeaveJob()))
    run(service, 10)
    assert counts(service) == {"a": 1, "": 4}


def test_shares_that_belong_to_workers_are_run_whatever_the_quota():
    service = Service(FakePlan(40), quotas={"default": 2})
    for number in range(3):
        service.add_worker(f"w{number}")
    peers = [service.join(f"c{i}", f"job{i}", sharding="static", epochs=1) for i in range(3)]
    for _ in range(600):
        if not service.work():
            service.tick(0.5)
        service.tick(0.1)
        if all(peer.done for peer in peers):
            break
    assert all(peer.done for peer in peers)


def test_the_same_events_give_the_same_state():
    service = service_of(
        3, {f"job{i}": {"priority": 1.0 + i, "tenant": f"t{i % 2}"} for i in range(5)}, quotas={"t0": 1}
    )
    run(service, 30)
    assert plain(service.replayed()) == plain(service.state)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"priority": 0.0}, "priority is a number from 0.01 to 100, not 0"),
        ({"priority": 1000.0}, "priority is a number from 0.01 to 100, not 1000"),
        ({"priority": float("nan")}, "not nan"),
        ({"tenant": ""}, "tenant is a name"),
    ],
)
def test_claims_that_cannot_be_are_refused(fields, words):
    peer = Service().join("c", "a", **fields)
    assert words in peer.failure.message


def test_consumers_of_a_job_agree_on_its_claims():
    service = Service()
    service.join("c", "a")
    assert "priority (2.0 here, 1.0 there)" in service.join("d", "a", priority=2.0).failure.message
    assert "tenant ('red' here, 'default' there)" in service.join("e", "a", tenant="red").failure.message


def test_a_job_of_which_enough_lies_ready_has_work_for_others_again_as_soon_as_it_is_read():
    service = service_of(1, {"a": {}})
    worker, peer = service.workers["w0"], service.consumers["c-a"]
    service.plan_tasks(worker)
    service.report("w0", want=10)
    while worker.leases:
        service.finish(worker, min(worker.leases))
    service.report("w0", want=2)
    tx = Transaction(service.state, service.observed, service.now)
    assert having_work(tx, service.state.workers["w0"], {"a"}) == set()
    for task in service.readable(peer)[2:]:
        service.read(peer, task)
    assert having_work(tx, service.state.workers["w0"], {"a"}) == {"a"}


def test_who_was_to_leave_for_a_job_that_is_gone_is_given_tasks_again():
    service = service_of(2, {"a": {}})
    run(service, 20)
    service.join("late", "late")
    service.tick(1)
    leaving = service.workers[next(iter(service.observed.leaving))]
    service.finish(leaving, next(iter(leaving.leases)))
    assert len(leaving.leases) == 1
    service.say(inp.ConsumerSaid("late", msg.LeaveJob()))
    service.tick()
    assert len(leaving.leases) == 2


@pytest.mark.parametrize("consumers", [1, 2, 4, 16])
def test_a_job_with_many_consumers_and_tasks_without_end_gives_workers_away_as_any_other(consumers):
    """Its workers get a task of some of its consumers each, and never another one."""
    service = Service(FakePlan(400))
    for number in range(4):
        service.add_worker(f"w{number}")
    for rank in range(consumers):
        service.join(f"a{rank}", "a", consumer=rank, num_consumers=consumers)
    for worker in list(service.workers.values()):
        service.plan_tasks(worker)
    service.now = 50.0
    service.join("b", "b")
    for now in (60.0, 100.0, 130.0, 160.0, 200.0):
        service.now = now
        for worker_seen in service.observed.workers.values():
            worker_seen.last_seen = now
        for client_seen in service.observed.clients.values():
            client_seen.last_seen = now
        service.say(inp.Tick())
    assert counts(service)["b"] > 0
    assert [event for event in service.events if isinstance(event, TurnCut)]
