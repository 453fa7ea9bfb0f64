"""Jobs that share a window: the furthest member drives, and the others have what is left."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import dump
from millrace.control.journal.state_validation import validate
from millrace.control.journal.task_events import TaskLeased
from millrace.control.journal.transaction import Transaction
from millrace.control.reasons import why_worker
from millrace.control.scheduling.scheduler import schedule
from millrace.control.tasks.leases import revoke, revoke_waiting
from millrace.control.tasks.window_tasks import lies_in_window
from millrace.protocol import messages as msg
from millrace.protocol.group_messages import Audience

COUNT = 40


@pytest.fixture
def service():
    service = Service(FakePlan(COUNT))
    service.add_worker("w")
    return service


def join(service, client, name, **fields):
    return service.join(client, name, **{"sharing": "window", "visitation": "at_most_once", **fields})


def group(service):
    (job,) = service.state.jobs.values()
    return job


def read_all(service, *peers):
    """These members read what they can, and no others do."""
    moved = True
    while moved:
        moved = service.work(read=False)
        for peer in peers:
            for task in service.readable(peer):
                if task not in peer.gone:
                    service.read(peer, task)
                    moved = True
        validate(service.state)


def leased(service, epoch=0):
    return sum(isinstance(event, TaskLeased) and event.epoch == epoch for event in service.events)


def test_the_furthest_member_drives_and_a_slow_one_holds_nobody_up(service):
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    read_all(service, fast)
    assert fast.done
    assert sorted(fast.complete) == list(range(COUNT))
    assert leased(service) == COUNT
    assert not slow.done
    assert sorted(slow.reads) == list(range(COUNT)), "what is left of each it hears from the worker"


def test_who_comes_late_is_told_what_runs_and_what_others_have_read(service):
    first = join(service, "c0", "first")
    for _ in range(3):
        service.work()
    late = join(service, "c1", "late")
    assert late.joined.epoch == -1
    assert first.complete
    assert set(first.complete) <= set(late.reads)
    assert leased(service) == len(late.reads), "nothing runs again"


def test_who_comes_when_nothing_is_left_of_the_epoch_begins_with_the_next(service):
    first = join(service, "c0", "first")
    read_all(service, first)
    service.kill("w")
    late = join(service, "c1", "late")
    assert late.joined.epoch == 0
    service.add_worker("other")
    read_all(service, first, late)
    assert late.epoch.epoch == 1
    assert sorted(late.complete) == list(range(COUNT))


def test_what_lay_in_the_window_of_a_worker_that_dies_is_skipped_and_does_not_run_again(service):
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    read_all(service, fast)
    service.read(slow, 3)
    service.kill("w")
    assert slow.gone == {task: 1 for task in range(COUNT) if task != 3}
    assert slow.done
    assert leased(service) == COUNT
    validate(service.state)


def test_a_task_that_ran_at_a_worker_which_dies_is_lost_to_all(service):
    one, other = join(service, "c0", "one"), join(service, "c1", "other")
    service.plan_tasks(service.workers["w"])
    running = [lease.ref.task for lease in service.workers["w"].leases.values()]
    service.kill("w")
    assert one.gone == other.gone == dict.fromkeys(running, -1)
    assert group(service).lost == len(running)


def test_once_the_furthest_goes_on_the_others_have_what_there_is(service):
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    for _ in range(2):
        service.work(read=False)
    service.read(fast, 0)
    begun = {task for task, live in group(service).epochs[0].live.items() if live.finished}
    service.begin(fast)
    assert set(slow.ends) == begun
    read_all(service, slow)
    assert slow.done
    assert leased(service) < COUNT


def read_by_fast_alone(service):
    """A fast member has all of a task, and its worker's word that the run has ended is still under way."""
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    worker = service.workers["w"]
    service.plan_tasks(worker)
    lease, running = next(iter(worker.leases.items()))
    task = running.ref.task
    service.say(inp.ConsumerSaid("c0", msg.ConsumerReport(0, [msg.TaskProgress(task, 1, complete=True)])))
    return fast, slow, worker, lease, task


def test_a_run_that_a_member_has_all_of_is_not_broken_off_as_that_goes_on_before_its_worker_says_that_it_ended(service):
    fast, slow, worker, lease, task = read_by_fast_alone(service)
    service.begin(fast)
    assert lease in worker.leases
    assert task in slow.ends
    assert task not in slow.gone
    service.finish(worker, lease)
    read_all(service, slow)
    assert task in slow.complete
    assert slow.done
    assert dump(service.replayed()) == dump(service.state)


@pytest.mark.parametrize("knows", [True, False])
def test_how_much_a_task_had_is_known_from_who_has_all_of_it_if_its_worker_goes_before_it_says_so(service, knows):
    fast, slow, worker, lease, task = read_by_fast_alone(service)
    service.begin(fast)
    if knows:
        service.kill("w")
    else:  # it comes back without
        del worker.leases[lease]
        service.hello("w")
        read_all(service, slow)
    assert slow.gone[task] == 1
    assert slow.done
    assert dump(service.replayed()) == dump(service.state)


def test_what_is_taken_back_from_a_worker_while_a_member_says_that_it_has_all_of_it_is_gone_for_the_others(service):
    _, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    service.plan_tasks(service.workers["w"])
    _, second = sorted(service.workers["w"].leases.items())[:2]
    task = second[1].ref.task
    tx = Transaction(service.state, service.observed, service.now)
    revoke_waiting(tx, group(service), "the mode is another one")
    assert task in group(service).epochs[0].pending[0]
    service.carry_out(tx.events, tx.actions)
    service.say(inp.ConsumerSaid("c0", msg.ConsumerReport(0, [msg.TaskProgress(task, 1, complete=True)])))
    assert slow.gone[task] == 1
    read_all(service, slow)
    assert slow.done
    assert dump(service.replayed()) == dump(service.state)


def test_how_much_a_task_had_is_known_also_once_who_has_all_of_it_has_left(service):
    first, late = join(service, "c0", "first"), join(service, "c1", "late")
    service.plan_tasks(service.workers["w"])
    task = min(service.workers["w"].leases.values(), key=lambda lease: lease.ref.task).ref.task
    everything = msg.ConsumerReport(0, [msg.TaskProgress(task, 1, complete=True)])
    service.say(inp.ConsumerSaid(first.client, everything))
    service.say(inp.ConsumerSaid(first.client, msg.LeaveJob()))
    service.kill("w")
    assert late.gone[task] == 1
    validate(service.state)


def test_what_a_run_leaves_over_that_ends_after_its_tail_was_given_up_is_dropped():
    service = Service(FakePlan(4, 2))
    service.add_worker("w")
    fast, _, worker, lease, _ = read_by_fast_alone(service)
    service.begin(fast)
    service.finish(worker, lease, leftovers=True)
    assert not [key for key in worker.leftovers if key[1] == 0]


def test_epochs_that_were_over_before_a_slow_member_came_to_them_have_nothing(service):
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    for _ in range(3):
        read_all(service, fast)
        service.begin(fast)
    service.kill("w")
    service.begin(slow)
    assert slow.epoch.epoch == 1
    assert slow.done
    assert "Epoch 1 was over for this job before it came to it" in slow.unread
    assert sorted(group(service).epochs) == [3]


def test_windows_stay_for_a_while_once_the_last_member_has_left(service):
    first = join(service, "c0", "first", visitation="zero_once_or_more")
    read_all(service, first)
    service.say(inp.ConsumerSaid("c0", msg.LeaveJob()))
    assert not service.observed.groups[first.joined.job].members
    service.tick(service.settings.job_gc_timeout_s / 2)
    second = join(service, "c1", "second", visitation="zero_once_or_more")
    assert second.joined.job == first.joined.job
    assert sorted(second.reads) == list(range(COUNT))
    service.say(inp.ConsumerSaid("c1", msg.LeaveJob()))
    service.tick(service.settings.job_gc_timeout_s + 1)
    assert not service.state.jobs
    assert not service.workers["w"].finished


def test_what_lay_in_windows_is_dropped_once_somebody_comes_who_begins_behind_it(service):
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    for _ in range(3):
        read_all(service, fast)
        service.begin(fast)
    for peer in (fast, slow):
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    assert sorted(group(service).epochs) == [0, 1, 2, 3], "somebody may come for the last of them"
    assert {epoch for _, epoch, _ in service.workers["w"].finished} >= {0, 1}
    join(service, "c2", "next", begin=False)
    assert sorted(group(service).epochs) == [2, 3], "a member that has not begun is at the epoch before its first one"
    assert not {epoch for _, epoch, _ in service.workers["w"].finished} & {0, 1}


def test_who_comes_for_the_last_outputs_alone_begins_with_the_next_epoch_unless_that_makes_up_for_the_rest(service):
    first = join(service, "c0", "first")
    read_all(service, first)
    late = join(service, "c1", "late")
    assert late.epoch.epoch == 1
    read_all(service, late)
    assert sorted(late.complete) == list(range(COUNT))
    assert first.done


@pytest.mark.parametrize("left", [True, False])
def test_who_comes_before_a_worker_says_that_the_last_run_has_ended_begins_with_the_next_epoch(service, left):
    first = join(service, "c0", "first")
    worker = service.workers["w"]
    while sorted(first.complete) != list(range(COUNT - 1)):
        service.plan_tasks(worker)
        last = {lease for lease, running in worker.leases.items() if running.ref.task == COUNT - 1}
        for lease in worker.leases.keys() - last:
            service.finish(worker, lease)
        for task in service.readable(first):
            service.read(first, task)
    (lease,) = (lease for lease, running in worker.leases.items() if running.ref.task == COUNT - 1)
    service.say(inp.ConsumerSaid("c0", msg.ConsumerReport(0, [msg.TaskProgress(COUNT - 1, 1, complete=True)])))
    if left:
        service.say(inp.ConsumerSaid("c0", msg.LeaveJob()))
    assert lease in worker.leases
    late = join(service, "c1", "late")
    assert late.epoch.epoch == 1
    if lease in worker.leases:  # else nobody is there who reads that epoch
        service.finish(worker, lease)
    read_all(service, late)
    assert sorted(late.complete) == list(range(COUNT))
    assert leased(service) == COUNT, "nothing runs again"
    assert dump(service.replayed()) == dump(service.state)


def leaves_runs(service):
    """The only member leaves while a worker runs tasks for it; the worker, and the leases that it has then."""
    first = join(service, "c0", "first")
    worker = service.workers["w"]
    service.plan_tasks(worker)
    leases = set(worker.leases)
    assert leases
    service.say(inp.ConsumerSaid("c0", msg.LeaveJob()))
    assert first.joined.job in service.state.jobs
    return worker, leases


@pytest.mark.parametrize("visitation", ["at_most_once", "zero_once_or_more"])
def test_what_runs_as_the_last_member_leaves_stays_with_its_worker_for_who_comes(service, visitation):
    first = join(service, "c0", "first", visitation=visitation)
    worker = service.workers["w"]
    service.plan_tasks(worker)
    leases = set(worker.leases)
    said = service.say(inp.ConsumerSaid("c0", msg.LeaveJob()))
    assert [each.message.members for each in said if isinstance(getattr(each, "message", None), Audience)] == [{}]
    service.tick(service.settings.job_gc_timeout_s / 2)
    assert set(worker.leases) == leases, "its worker keeps what it has computed, and stops there"
    second = join(service, "c1", "second", visitation=visitation)
    assert second.joined.job == first.joined.job
    read_all(service, second)
    assert sorted(second.complete) == list(range(COUNT))
    assert leased(service) == COUNT, "nothing runs again"


def test_what_waits_for_who_comes_goes_back_when_another_job_wants_the_worker(service):
    worker, leases = leaves_runs(service)
    other = service.join("c1", "other")
    assert not leases & set(worker.leases)
    service.plan_tasks(worker)
    assert {lease.ref.job for lease in worker.leases.values()} == {"other"}
    service.run()
    assert other.done
    late = join(service, "c2", "late")
    read_all(service, late)
    assert sorted(late.complete) == list(range(COUNT))
    assert dump(service.replayed()) == dump(service.state)


def test_what_waits_for_who_comes_stays_where_it_is_if_the_other_job_can_have_a_worker_that_is_free(service):
    worker, leases = leaves_runs(service)
    service.add_worker("free")
    service.join("c1", "other", workers=(1, 1))
    assert set(worker.leases) == leases


@pytest.mark.parametrize("before", [True, False])
def test_what_waits_for_who_comes_keeps_no_worker_from_leaving(service, before):
    if before:
        join(service, "c0", "first")
        service.plan_tasks(service.workers["w"])
        service.say(inp.WorkerSaid("w", msg.WorkerLeaving(30.0)))
        assert service.workers["w"].leases, "it is read"
        service.say(inp.ConsumerSaid("c0", msg.LeaveJob()))
    else:
        leaves_runs(service)
        service.say(inp.WorkerSaid("w", msg.WorkerLeaving(30.0)))
    service.work()
    assert service.workers["w"].stopped
    service.add_worker("other")
    late = join(service, "c1", "late")
    read_all(service, late)
    assert sorted(late.complete) == list(range(COUNT))


def test_the_oldest_tasks_are_forgotten_and_who_lacks_them_is_told():
    service = Service(FakePlan(COUNT), window_tasks=5)
    service.add_worker("w")
    made_up = {"visitation": "zero_once_or_more"}
    fast, slow = join(service, "c0", "fast", **made_up), join(service, "c1", "slow", **made_up)
    read_all(service, fast)
    assert fast.done
    assert len([key for key in service.workers["w"].finished if key[1] == 0]) == 5
    assert set(slow.gone) == set(range(COUNT - 5))
    late = join(service, "c2", "late", **made_up)
    assert set(late.gone) == set(range(COUNT - 5))
    assert set(late.reads) == set(range(COUNT - 5, COUNT))


def test_what_lies_in_a_window_keeps_no_worker_from_leaving(service):
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    read_all(service, fast)
    service.say(inp.WorkerSaid("w", msg.WorkerLeaving(30.0)))
    for lease in list(service.workers["w"].leases):
        service.finish(service.workers["w"], lease)
    service.begin(fast)
    read_all(service, fast)
    assert service.workers["w"].stopped
    assert not slow.done


def test_the_status_tells_apart_what_is_still_to_be_read_and_what_lies_in_a_window(service):
    fast = join(service, "c0", "fast")
    read_all(service, fast)
    prepared = len(group(service).epochs[1].live)
    said = f"has computed what it had of {fast.joined.job}: "
    assert why(service) == f"{said}{prepared} tasks still to be read"
    kept = service.state.workers["w"].kept.values()
    assert all(lies_in_window(service.state, *key) == (key[1] == 0) for key in kept)


def why(service):
    return why_worker(service.state, service.state.workers["w"], [], service.now)


def test_leftovers_are_dropped_once_the_tail_has_them_and_outputs_stay():
    service = Service(FakePlan(8, 4))
    service.add_worker("w")
    fast = join(service, "c0", "fast")
    read_all(service, fast)
    assert fast.done
    worker = service.workers["w"]
    assert not [key for key in worker.leftovers if key[1] == 0]
    assert len([key for key in worker.finished if key[1] == 0]) == service.plan.length


@pytest.mark.parametrize("inputs", ["before it", "with it"])
def test_a_tail_that_had_ended_and_runs_again_takes_what_its_tasks_leave_over_once_more(inputs):
    """As another task is read before it, for which the worker has no room."""
    service = Service(FakePlan(8, 4))
    service.add_worker("w")
    fast, worker = join(service, "c0", "fast"), service.workers["w"]
    while not any(service.plan.task(task).inputs for _, _, task in service.state.workers["w"].kept.values()):
        service.work(read=False)
    job = group(service)
    tail = next(task for task, live in job.epochs[0].live.items() if service.plan.task(task).inputs and live.finished)
    tx = Transaction(service.state, service.observed, service.now)
    for task in [*(service.plan.task(tail).inputs if inputs == "before it" else ()), tail]:
        revoke(tx, job, 0, task, "another one is read before it")
    schedule(tx)
    service.carry_out(tx.events, tx.actions)
    read_all(service, fast)
    assert fast.done
    assert sorted(fast.complete) == list(range(service.plan.length or 0))
    assert not [key for key in worker.leftovers if key[1] == 0]


def test_the_state_survives_the_dispatcher(service):
    fast, slow = join(service, "c0", "fast"), join(service, "c1", "slow")
    for _ in range(3):
        service.work(read=False)
    service.read(fast, 0)
    service.save()
    assert dump(service.restored()) == dump(service.state)
    service.restart()
    for name in service.workers:
        service.hello(name)
    for peer in (fast, slow):
        peer.spec = msgspec.structs.replace(peer.spec, name=peer.joined.job)
        service.rejoin(peer)
    read_all(service, fast)
    assert fast.done
    assert dump(service.replayed()) == dump(service.state)


def test_what_others_left_unread_holds_nobody_up(service):
    fast = join(service, "c0", "fast")
    join(service, "c1", "slow")
    read_all(service, fast)
    service.begin(fast)
    for _ in range(3):
        service.work(read=False)
    service.begin(fast)
    service.say(inp.ConsumerSaid("c0", msg.LeaveJob()))  # nobody who is there has anything of epoch 1
    third = join(service, "c2", "third")
    read_all(service, third)
    assert third.epoch.epoch == 2
    assert third.done
    assert sorted(third.complete) == list(range(COUNT))


def test_in_a_fixed_order_what_waited_for_a_task_that_will_not_come_is_read_once_the_furthest_goes_on():
    service = Service(FakePlan(8))
    one, other = (service.add_worker(name) for name in "wv")
    fixed = {"deterministic": True, "sharding": "static"}
    fast, slow = join(service, "c0", "fast", **fixed), join(service, "c1", "slow", **fixed)
    for each in (one, other):
        service.plan_tasks(each)
    first = next(each for each in (one, other) if any(lease.ref.task == 0 for lease in each.leases.values()))
    while first.leases:
        service.finish(first, min(first.leases))
    assert group(service).epochs[0].shares[1] == [0, 1, 2, 3, 4, 6]
    assert sorted(slow.reads) == [0, 1, 2, 3, 4], "the other worker has still to get task 5"
    service.begin(fast, 1)
    assert slow.gone == {1: -1, 3: -1}
    assert slow.ends == [0, 2, 4, 6]
    read_all(service, slow)
    assert slow.done
    assert slow.complete == [0, 2, 4, 6]


def test_in_a_fixed_order_so_is_what_waited_for_a_tail_that_was_dealt_and_will_not_run():
    service = Service(FakePlan(4, fan_in=2))
    worker = service.add_worker("w")
    fast, slow = join(service, "c0", "fast", deterministic=True), join(service, "c1", "slow", deterministic=True)
    service.plan_tasks(worker)
    while others := [number for number, lease in worker.leases.items() if lease.ref.task != 1]:
        service.finish(worker, others[0])
    assert group(service).epochs[0].settled
    assert sorted(slow.reads) == [0, 1], "tail 2 waits for task 1, and what comes behind it for the tail"
    service.begin(fast, 1)
    assert sorted(slow.reads) == [0, 1, 3, 4, 5]
    assert slow.ends == [0, 3, 4, 5]
    read_all(service, slow)
    assert slow.done
