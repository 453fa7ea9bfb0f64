"""What becomes of the tasks of a consumer that goes: who has them then, from where on, and who waits for them."""

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.protocol import messages as msg


def leave(service, peer):
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    del service.consumers[peer.client]


def two_readers(plan, **spec):
    service = Service(plan)
    worker = service.add_worker("w")
    one, two = (service.join(client, num_consumers=2, **spec) for client in "xy")
    service.plan_tasks(worker)
    return service, worker, one, two


def test_a_task_that_was_begun_goes_on_where_its_reader_left_it():
    service, worker, one, two = two_readers(FakePlan(6))
    [task] = one.reads
    service.say(inp.ConsumerSaid("x", msg.ConsumerReport(0, [msg.TaskProgress(task, 3)])))
    leave(service, one)
    assert two.reads[task].start == 3
    assert [lease.received for lease in worker.leases.values() if lease.ref.task == task] == [3]
    service.restart()
    service.hello("w")
    two.reads.clear()
    service.rejoin(two)
    assert two.reads[task].start == 3
    service.run()
    assert two.done
    assert not service.state.jobs["a"].epochs[0].starts


def test_who_takes_the_place_of_one_that_left_is_not_told_to_read_what_that_one_had():
    service, _, one, two = two_readers(FakePlan(8))
    while not one.complete:
        service.work()
    leave(service, one)
    heir = service.join("z", num_consumers=2)
    assert (heir.joined.consumer, heir.epoch.epoch) == (0, 0)
    service.run()
    assert heir.done
    assert two.done
    assert not set(one.complete) & set(heir.complete)


@pytest.mark.parametrize("sharding", ["dynamic", "static", "static_contiguous"])
@pytest.mark.parametrize("tails", [0, 3])
def test_in_a_fixed_order_who_takes_the_place_of_one_that_left_has_its_share_though_others_were_dealt_all_of_theirs(
    sharding, tails
):
    service, _, one, two = two_readers(
        FakePlan(8, tails) if tails else FakePlan(8), deterministic=True, sharding=sharding
    )
    leave(service, one)
    while not two.done:
        service.work()
    assert service.state.jobs["a"].epochs[0].settled
    heir = service.join("z", num_consumers=2, deterministic=True, sharding=sharding)
    assert (heir.joined.consumer, heir.epoch.epoch) == (0, 0)
    assert not heir.done
    service.run()
    assert heir.done
    assert {2, 4, 6} <= set(heir.complete)  # the one that left had been dealt the first one
    assert service.state.jobs["a"].epochs[0].settled


@pytest.mark.parametrize("sharding", ["dynamic", "static"])
@pytest.mark.parametrize("goes", ["leaves", "reads the next epoch"])
def test_in_a_fixed_order_tails_do_without_what_a_consumer_that_goes_will_never_read(sharding, goes):
    service, _, one, two = two_readers(FakePlan(12, 3), deterministic=True, sharding=sharding)
    for _ in range(3):
        service.work(room=1)
    assert not one.done
    if goes == "leaves":
        leave(service, one)
    else:
        service.begin(one)
    service.run(room=1)
    assert two.done


@pytest.mark.parametrize("sharding", ["dynamic", "static"])
def test_what_its_tail_has_begun_without_gives_its_leftovers_itself(sharding):
    """Those that nobody was there to read, until another consumer came in the place of the one that went."""
    service, worker, one, two = two_readers(FakePlan(24, 3), deterministic=True, sharding=sharding)
    while not one.complete:
        service.work(room=1)
    leave(service, one)
    tails = {task.index for task in service.plan.tasks if task.inputs}
    while len(tails & {*two.complete}) < 3:
        service.work(room=1)
    assert not two.done
    heir = service.join("z", num_consumers=2, deterministic=True, sharding=sharding)
    flushed: dict[int, set[bool]] = {}

    def look():
        for lease in worker.leases.values():
            flushed.setdefault(lease.ref.task, set()).add(lease.flush)

    begun = {number for number, live in service.state.jobs["a"].epochs[0].live.items() if live.lease}
    began = tails & (begun | {*two.complete})
    look()
    service.kill("w")
    worker = service.add_worker("again")  # it is the same when they run again
    while not (heir.done and two.done):
        look()
        assert service.work(room=1)
    late = {task for task in flushed if service.plan.task(task).parent in began and task % 2 == 0} - {*one.reads}
    assert len(late) > 3
    assert all(flushed[task] == {task in late} for task in flushed), flushed
    assert {*heir.complete} >= late


@pytest.mark.parametrize("goes", ["leaves", "reads the next epoch"])
def test_a_tail_that_has_begun_keeps_what_a_consumer_that_goes_has_left_it(goes):
    """Should it run again, it must give what it gave before."""
    service, worker, one, two = two_readers(FakePlan(3, 3), deterministic=True)

    def leftovers_of_tail(worker):
        while True:
            service.work(read=False)
            for lease in worker.leases.values():
                if (lease.ref.epoch, lease.ref.task) == (0, 3):
                    return [task for task, _ in lease.holders]

    assert leftovers_of_tail(worker) == [0, 1, 2]
    assert sorted(two.reads) == [1, 3]
    if goes == "leaves":
        leave(service, one)
    else:
        service.begin(one)
    service.kill("w")
    assert leftovers_of_tail(service.add_worker("again")) == [0, 1, 2]
    service.run()
    assert two.done
    assert not service.state.jobs["a"].epochs[0].live


def test_workers_forget_the_leftovers_of_an_epoch_that_nobody_reads_any_more():
    service = Service(FakePlan(40, 20))  # no tail has its turn yet
    worker = service.add_worker("w")
    peer = service.join("x", epochs=2)
    service.plan_tasks(worker)
    for _ in range(3):
        service.work(room=1)
    assert peer.complete
    assert {task for _, epoch, task in worker.leftovers if epoch == 0}
    service.begin(peer)
    assert 0 not in service.state.jobs["a"].epochs
    assert not {task for _, epoch, task in worker.leftovers if epoch == 0}


def test_who_runs_a_task_again_that_has_been_read_meanwhile_need_not_wait_for_its_reader():
    service = Service(FakePlan(4, 4))
    worker = service.add_worker("w")
    service.join("x")
    service.plan_tasks(worker)
    [(lease, ref)] = [(lease.lease, lease.ref) for lease in worker.leases.values() if lease.ref.task == 0]
    service.say(inp.ConsumerSaid("x", msg.ConsumerReport(0, [msg.TaskProgress(0, 2, complete=True)])))
    assert worker.spared == [ref]
    worker.spared = []
    service.say(inp.WorkerSessionLost("w"))
    service.hello("w")
    assert worker.spared == [ref]
    service.finish(worker, lease)
    assert lease in service.state.workers["w"].kept


def test_a_worker_that_keeps_leftovers_is_told_when_the_outputs_were_received():
    service = Service(FakePlan(4, 4))
    worker = service.add_worker("w")
    service.join("x")
    service.plan_tasks(worker)
    [lease] = [number for number, lease in worker.leases.items() if lease.ref.task == 0]
    service.finish(worker, lease)
    assert not worker.spared
    service.say(inp.ConsumerSaid("x", msg.ConsumerReport(0, [msg.TaskProgress(0, 1, complete=True)])))
    assert worker.spared == [msg.TaskRef("a", 0, 0)]


def test_who_was_given_up_is_told_so_when_it_comes_back():
    service, _, one, two = two_readers(FakePlan(6), seed=3)
    service.say(inp.ClientSessionLost("x"))
    for _ in range(70):
        service.tick(5.0)
        service.say(inp.ConsumerSaid("y", msg.ConsumerReport(0)))
    assert set(service.state.jobs["a"].consumers) == {1}
    service.rejoin(one)
    assert one.failure.kind == "JobFailedError"
    assert "was away from job 'a' for too long: others read what it had not yet read" in one.failure.message
    service.run()
    assert two.done
    assert len(two.complete) == 6


def test_who_is_gone_is_no_longer_observed():
    service = two_readers(FakePlan(6))[0]
    service.add_worker("v")
    service.kill("v")
    service.say(inp.WorkerSaid("v", msg.WorkerReport()))  # was under way
    service.say(inp.ClientSessionLost("x"))
    for _ in range(70):
        service.tick(5.0)
        service.say(inp.ConsumerSaid("y", msg.ConsumerReport(0)))
    assert set(service.observed.workers) == {"w"}
    assert set(service.observed.clients) == {"y"}
