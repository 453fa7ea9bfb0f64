"""Outputs that are larger than what some workers may keep."""

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.job_events import JobBroke
from millrace.control.journal.snapshot import plain
from millrace.control.journal.worker_events import WorkerAssigned
from millrace.planning.split_table import positions_table
from millrace.protocol import messages as msg

MIB = 1 << 20
LARGE = 100 * MIB


def fail(service: Service, name: str, needs: int = LARGE) -> None:
    """The first task of the worker gives an output that is larger than its buffer."""
    worker = service.workers[name]
    number, lease = next(iter(worker.leases.items()))
    del worker.leases[number]
    text = f"output 0 of task {lease.ref.task} has {needs:,} bytes"
    failure = msg.Failure("ElementTooLargeError", text, needs=needs)
    service.say(inp.WorkerSaid(name, msg.TaskFailed(lease.ref, number, failure)))


def begun(plan: FakePlan | None = None) -> Service:
    service = Service(plan or FakePlan(12, 4))
    service.add_worker("small", buffer_bytes=MIB)
    for number in range(2):
        service.add_worker(f"large{number}", buffer_bytes=256 * MIB)
    service.join("x")
    service.work(read=False)
    return service


@pytest.mark.parametrize("spec", [{}, {"sharding": "static"}, {"sharding": "off", "visitation": "zero_once_or_more"}])
def test_what_is_too_large_for_a_small_worker_goes_to_a_large_one(spec):
    service = Service(FakePlan(12, 4))
    service.add_worker("small", buffer_bytes=MIB)
    for number in range(2):
        service.add_worker(f"large{number}", buffer_bytes=256 * MIB)
    peer = service.join("x", **spec)
    for worker in service.workers.values():
        service.plan_tasks(worker)
    while not service.workers["small"].leases:
        service.work()
    fail(service, "small")
    small = service.state.workers["small"]
    assert (small.job, small.unfinished, service.workers["small"].leases) == ("", {}, {})
    assert "may keep 1,048,576 bytes, and an output of job a has 104,857,600" in small.reason
    assert any("don't serve it any more" in notice for notice in peer.notices)
    service.run()
    assert peer.done
    assert peer.failure is None
    assert plain(service.replayed()) == plain(service.state) == plain(service.restored())


def test_what_runs_again_for_its_leftovers_leaves_a_small_worker_too():
    """It may serve another job by then, and run nothing of this one: the tail would wait for ever."""
    service = Service(FakePlan(3, 3))
    gone = service.add_worker("gone", buffer_bytes=256 * MIB)
    peer = service.join("x", epochs=1)
    service.plan_tasks(gone)
    for number, lease in list(gone.leases.items()):
        if lease.ref.task < 2:
            service.finish(gone, number)
            service.read(peer, lease.ref.task)
    small = service.add_worker("small", buffer_bytes=MIB)
    service.kill("gone")
    assert [(lease.ref.task, lease.received) for lease in small.leases.values()] == [(0, -1), (1, -1), (2, 0)]
    large = service.add_worker("large", buffer_bytes=256 * MIB)
    small.leases = dict(reversed(small.leases.items()))  # task 2 fails: the others put nothing out
    fail(service, "small")
    assert small.leases == {}
    assert sorted((lease.ref.task, lease.received) for lease in large.leases.values()) == [(0, -1), (1, -1), (2, 0)]
    service.run()
    assert peer.done


def test_shares_that_a_function_still_gives_to_a_small_worker_go_to_a_large_one():
    service = Service(FakePlan(4))
    service.add_worker("small", buffer_bytes=MIB)
    service.add_worker("large", buffer_bytes=256 * MIB)
    peer = service.join("x", sharding="custom", epochs=2)
    asked = service.workers["large"].planning
    assert asked.popleft() == msg.ListSources("a")
    service.say(inp.WorkerSaid("large", msg.SourcesListed("a", {0: positions_table(4).summary()}, digest="tables")))
    assert asked.popleft().epoch == 0
    service.say(inp.WorkerSaid("large", msg.ShardingChosen("a", 0, [0, 1, 0, 1])))
    assert asked[0].workers == ["large", "small"]  # for the next epoch, before it is known what the job needs
    fail(service, "small")
    service.run()
    assert set(service.state.jobs["a"].epochs[1].owners) == {"large", "small"}
    service.tick()
    assert set(service.state.jobs["a"].epochs[1].owners) == {"large"}
    service.begin(peer)
    service.run()
    assert (peer.epoch.epoch, peer.done) == (1, True)


def test_a_small_worker_serves_other_jobs():
    service = begun()
    fail(service, "small")
    assert service.state.workers["small"].job == ""
    service.join("y", "b")
    assert service.state.workers["small"].job == "b"


def test_a_job_fails_if_nobody_may_keep_as_much_and_says_what_to_start():
    service = begun()
    fail(service, "large0", 300 * MIB)
    failure = service.state.jobs["a"].failure
    assert failure is not None
    assert failure.kind == "ElementTooLargeError"
    assert failure.message.endswith(
        "has 314,572,800 bytes. The largest of 3 workers may keep 268,435,456 bytes. One that may keep more, should it "
        "still come, does not bring the job back: start it first, with --buffer-bytes 629145600, and then the training "
        "again"
    )


@pytest.mark.parametrize("restart", [False, True])
def test_what_was_too_large_for_all_runs_again_if_a_large_one_has_come_by_its_turn(restart):
    """In a fixed order the job fails once what comes before has been read: until then there is time."""
    service = Service(FakePlan(4))
    small = service.add_worker("small", buffer_bytes=MIB)
    peer = service.join("x", deterministic=True, epochs=1)
    service.plan_tasks(small)
    first, second = small.leases
    small.leases = {second: small.leases[second], first: small.leases[first]}
    fail(service, "small")
    assert service.state.jobs["a"].failure is None
    if restart:
        service.restart()
        service.hello("small")
        service.rejoin(peer)
    service.add_worker("large", buffer_bytes=256 * MIB)
    service.run()
    assert peer.complete == [0, 1, 2, 3]
    assert peer.failure is None
    assert not service.state.workers["small"].job
    assert plain(service.replayed()) == plain(service.state)


def test_why_a_job_fails_of_too_large_an_output_says_which_workers_there_are_by_then():
    service = Service(FakePlan(4))
    small = service.add_worker("small", buffer_bytes=MIB)
    peer = service.join("x", deterministic=True, epochs=1)
    service.plan_tasks(small)
    first, second = small.leases
    small.leases = {second: small.leases[second], first: small.leases[first]}
    fail(service, "small")
    service.add_worker("larger", buffer_bytes=2 * MIB)
    service.run()
    assert "The largest of 2 workers may keep 2,097,152 bytes" in peer.failure.message


def test_it_waits_a_while_for_the_last_large_one_to_come_back():
    service = begun(FakePlan(None))
    fail(service, "small")
    for name in ("large0", "large1"):
        service.kill(name)
    patience_s = service.settings.patience_s
    service.tick(patience_s - 1)
    service.tick(0.5)
    service.add_worker("large2", buffer_bytes=256 * MIB)
    service.tick(patience_s)
    assert service.state.jobs["a"].failure is None
    assert service.workers["large2"].leases
    service.kill("large2")
    service.tick(0.1)
    service.tick(patience_s)
    [failure] = [event.failure for event in service.events if isinstance(event, JobBroke)]
    assert "the workers that may keep as much have been gone for 60 s. The worker may keep 1,048,576" in failure.message


def test_local_workers_that_are_too_small_leave_the_job_to_the_service():
    service = Service(FakePlan(12))
    service.add_worker("local", buffer_bytes=MIB, only="a", host="here")
    service.add_worker("large", buffer_bytes=256 * MIB)
    peer = service.join("x", host="here")
    for worker in service.workers.values():
        service.plan_tasks(worker)
    fail(service, "local")
    assert service.state.index.serving.locals["a"] == 0
    service.run()
    assert peer.done


@pytest.mark.parametrize("checked", [True, False])
def test_a_local_worker_that_is_too_small_gets_nothing_more_of_the_job_when_it_wants_more(checked):
    service = Service(FakePlan(None), checked=checked)
    service.add_worker("local", buffer_bytes=MIB, only="a", host="here")
    service.add_worker("large", buffer_bytes=256 * MIB)
    service.join("x", host="here")
    for worker in service.workers.values():
        service.plan_tasks(worker)
    fail(service, "local")
    for want in (50, 60):
        service.report("local", want=want)
        service.report("large", want=want)
        assert not service.workers["local"].leases
        assert len(service.workers["large"].leases) == want


def served(service: Service, job: str, seconds: int = 120) -> bool:
    """Whether the job has a worker within the time."""
    for _ in range(seconds):
        if any(worker.job == job for worker in service.state.workers.values()):
            return True
        service.work()
        for peer in service.consumers.values():  # of tasks without end
            peer.reads = {task: read for task, read in peer.reads.items() if task not in peer.complete}
            peer.complete.clear()
        service.tick(1.0)
    return False


def test_a_place_in_a_quota_that_a_small_worker_has_goes_to_a_large_one_in_turn():
    service = Service(FakePlan(None), quotas={"default": 1})
    service.add_worker("little", buffer_bytes=MIB)
    for name in ("a", "b", "c"):
        service.join(f"c-{name}", name)
    service.work()
    service.add_worker("mighty", buffer_bytes=256 * MIB)
    assert service.state.workers["little"].job == "a"
    fail(service, "little")
    assert all(served(service, job) for job in "abcabc")


def test_a_job_that_any_worker_can_serve_leaves_the_large_one_to_a_job_that_needs_it():
    service = Service(FakePlan(None), quotas={"one": 1})
    for worker, job, size in (("mighty", "a", 256 * MIB), ("little", "b", MIB)):
        service.add_worker(worker, buffer_bytes=size)
        service.join(f"c-{job}", job, tenant="one" if job == "a" else "many")
        service.plan_tasks(service.workers[worker])
    assert (service.state.workers["little"].job, service.state.workers["mighty"].job) == ("b", "a")
    fail(service, "little")
    assert served(service, "b")
    assert served(service, "a", 3)
    before = len(service.events)
    assert not served(service, "nobody", 60)
    assert not [each for each in service.events[before:] if isinstance(each, WorkerAssigned)]
