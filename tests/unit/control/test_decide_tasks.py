"""Epochs, leases, losses, turns."""

from __future__ import annotations

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.control.journal.task_events import TailDealt, TaskDied, TaskLeased, TaskReleased
from millrace.control.journal.transaction import Transaction
from millrace.control.journal.worker_events import WorkerLost
from millrace.control.scheduling.allocation import assign_workers
from millrace.control.tasks.leases import revoke
from millrace.dispatcher.status_report import status
from millrace.protocol import messages as msg
from millrace.protocol.reports import LaneReport


def started(plan: FakePlan | None = None, workers: int = 1, **spec):
    service = Service(plan)
    names = [f"w{i}" for i in range(workers)]
    for name in names:
        service.add_worker(name)
    peer = service.join("x", **spec)
    for worker in list(service.workers.values()):
        service.plan_tasks(worker)
    return service, peer


def test_a_worker_of_another_millrace_is_as_good():
    """What it says was compared by the number of the protocol."""
    service = Service()
    service.add_worker("w", version="0")
    assert set(service.state.workers) == {"w"}


def test_a_worker_of_another_python_is_refused():
    service = Service()
    service.add_worker("w", version="0", python="3.12", pid=5, host="box")
    assert not service.state.workers
    failure = service.refused["w"]
    assert failure.kind == "VersionMismatchError"
    assert "worker w (process 5 on box) runs Python 3.12 (millrace 0)" in failure.message
    assert "the dispatcher Python 3.11 (millrace 1)" in failure.message


def test_a_worker_holds_as_many_leases_as_it_wants():
    service, _ = started(FakePlan(20))
    assert len(service.workers["w0"].leases) == 2
    service.report("w0", want=4)
    assert len(service.workers["w0"].leases) == 4


@pytest.mark.parametrize("over", [False, True])
def test_what_a_worker_left_out_counts_once_though_it_says_so_when_all_of_it_was_read(over):
    service, peer = started(FakePlan(2))
    worker = service.workers["w0"]
    leases = dict(worker.leases)
    ends = [msg.TaskFinished(lease.ref, number, 1, skipped=3, left_out=2) for number, lease in leases.items()]
    for number, lease in leases.items():
        key = (lease.ref.job, lease.ref.epoch, lease.ref.task)
        worker.finished[key], worker.outputs[key] = number, ["x"]
        service.read(peer, lease.ref.task)
    job = service.state.jobs["a"]
    if over:
        service.begin(peer, 1)
    assert (0 in job.epochs, job.skipped) == (not over, 0)
    for end in [*ends, *ends]:  # said again, as the connection was lost
        service.say(inp.WorkerSaid("w0", end))
    (shown,) = status(service.state, service.observed, service.now)["jobs"]
    assert (shown["skipped"], shown["left_out"]) == (6, 4)


def test_what_a_worker_left_out_counts_for_the_lease_that_is_in_force():
    service, peer = started(FakePlan(1))
    worker = service.workers["w0"]
    number, lease = next(each for each in worker.leases.items() if each[1].ref.epoch == 0)
    key = (lease.ref.job, lease.ref.epoch, lease.ref.task)
    service.say(inp.WorkerSaid("w0", msg.TaskFinished(lease.ref, number + 1000, 1, skipped=5)))
    assert service.state.jobs["a"].skipped == 0
    worker.finished[key], worker.outputs[key] = number, ["x"]
    service.say(inp.WorkerSaid("w0", msg.TaskFinished(lease.ref, number, 1, skipped=3)))
    service.read(peer, 0)
    assert service.state.jobs["a"].skipped == 3


def test_a_consumer_that_stops_reading_starves_no_other():
    service = Service(FakePlan(40))
    service.add_worker("w")
    stuck, reader = service.join("x", num_consumers=2), service.join("y", num_consumers=2)
    service.plan_tasks(service.workers["w"])
    before = -1
    while len(reader.complete) > before:
        before = len(reader.complete)
        for lease in list(service.workers["w"].leases):
            if service.workers["w"].can_run(lease, room=1):
                service.finish(service.workers["w"], lease)
        for task in service.readable(reader):
            service.read(reader, task)
    assert not stuck.complete
    assert len(reader.complete) >= 35


def test_the_next_epoch_is_prepared_and_handed_over_at_once():
    service, peer = started(FakePlan(2), epochs=2)
    for _ in range(2):
        service.work()
    assert peer.done
    assert {key[1] for key in service.workers["w0"].finished} <= {1}
    service.begin(peer)
    assert set(peer.reads) == {0, 1}
    assert service.readable(peer)
    service.run()
    assert peer.done
    assert not service.workers["w0"].leases
    assert list(service.state.jobs["a"].epochs) == [1]


def test_leaving_an_epoch_early_drops_the_rest_of_it():
    service, peer = started(FakePlan(6, 2))
    service.work(read=False)
    service.begin(peer)
    assert peer.epoch.epoch == 1
    assert {lease.ref.epoch for lease in service.workers["w0"].leases.values()} == {1}
    assert not [key for key in service.workers["w0"].finished if key[1] == 0]
    service.run()
    assert peer.done


def test_going_back_is_refused():
    service, peer = started()
    service.begin(peer, 3)
    service.begin(peer, 2)
    assert "is at epoch 3 and cannot go back to 2" in peer.failure.message


def test_a_plan_without_end_never_grows_the_state():
    service, peer = started(FakePlan(None), workers=2)
    for _ in range(3):
        for _ in range(100):
            service.work()
        size = len(str(plain(service.state)))
        assert size < 6000
    assert len(peer.complete) > 300
    assert sorted(peer.complete)[:100] == list(range(100))
    assert peer.ends is None


def test_a_lost_worker_counts_as_lost_after_a_heartbeat_or_at_once_if_its_process_ended():
    service, peer = started(FakePlan(4), workers=2)
    del service.workers["w0"]
    service.say(inp.WorkerSessionLost("w0"))
    service.tick(4)
    assert "w0" in service.state.workers
    service.tick(2)
    assert "w0" not in service.state.workers
    service.run()
    assert peer.done
    service.say(inp.WorkerEnded("w1", "was killed"))
    assert not service.state.workers


def test_a_silent_worker_is_given_up_and_stopped():
    service, _ = started()
    service.now = 12.0
    service.say(inp.Tick())
    assert "w0" in service.state.workers
    service.now = 13.0
    actions = service.say(inp.Tick())
    assert "w0" not in service.state.workers
    assert act.StopWorkers(["w0"], "was silent for 12.5 s") in actions


@pytest.mark.parametrize("broke_at", [0.0, 6.0, 12.0])
def test_a_worker_that_hangs_is_stopped_whether_its_session_breaks_or_not(broke_at):
    """A process that hangs answers no pings either: its session may end before it has been silent for too long."""
    service, _ = started()
    stopped, service.now = [], broke_at
    service.say(inp.WorkerSessionLost("w0"))
    for _ in range(20):
        service.now += 1.0
        stopped += [action for action in service.say(inp.Tick()) if isinstance(action, act.StopWorkers)]
    assert stopped == [act.StopWorkers(["w0"], "did not come back within 5 s")]
    assert "w0" not in service.state.workers


def test_who_comes_back_in_time_keeps_its_leases_but_not_void_ones():
    service, _ = started(FakePlan(9), workers=2)
    worker = service.workers["w0"]
    leases = set(worker.leases)
    worker.connected = False
    service.say(inp.WorkerSessionLost("w0"))
    service.hello("w0")
    assert set(worker.leases) == leases
    assert worker.stale == []
    worker.connected = False
    service.say(inp.WorkerSessionLost("w0"))
    service.tick(3)
    service.tick(3)
    service.hello("w0")
    assert worker.stale == sorted(leases)


def test_what_is_lost_runs_again_behind_what_was_received():
    service, peer = started(FakePlan(3))
    lease = next(iter(service.workers["w0"].leases.values()))
    report = msg.ConsumerReport(0, [msg.TaskProgress(lease.ref.task, 5)])
    service.say(inp.ConsumerSaid("x", report))
    service.kill("w0")
    again = [entry for entry in service.add_worker("w1").leases.values() if entry.ref == lease.ref]
    assert again[0].received == 5
    assert peer.reads[lease.ref.task].worker == "w1"


def test_leftovers_that_are_still_needed_are_made_again_alone():
    service, peer = started(FakePlan(2, 2))
    for lease in list(service.workers["w0"].leases):
        if service.workers["w0"].leases[lease].ref.task < 2:
            service.finish(service.workers["w0"], lease)
    for task in service.readable(peer):
        service.read(peer, task)
    service.kill("w0")
    leases = service.add_worker("w1").leases.values()
    assert sorted((lease.ref.task, lease.received) for lease in leases) == [(0, -1), (1, -1)]
    service.run()
    assert peer.done


@pytest.mark.parametrize("how", ["left", "does not read"])
def test_leftovers_are_made_again_for_the_reader_of_their_tail(how):
    """Whoever read the task may be gone, or stand still; nobody but the tail's reader waits for them."""
    service = Service(FakePlan(3, fan_in=3))
    for name in ("w0", "w1"):
        service.add_worker(name)
    peers = [service.join(client, num_consumers=2) for client in "xy"]
    for _ in range(3):  # all but task 2 is computed and read
        for worker in service.workers.values():
            service.plan_tasks(worker)
            for number, lease in list(worker.leases.items()):
                if lease.ref.epoch == 0 and lease.ref.task < 2:
                    service.finish(worker, number)
        for peer in peers:
            for task in service.readable(peer):
                service.read(peer, task)
    live = service.state.jobs["a"].epochs[0].live
    tail = live[3].slot
    [(_, lost)] = [(task, live[task].worker) for task in (0, 1) if live[task].slot != tail]
    if how == "left":
        service.say(inp.ConsumerSaid(peers[1 - tail].client, msg.LeaveJob()))
    service.kill(lost)
    service.add_worker("w2")
    reruns = [lease for worker in service.workers.values() for lease in worker.leases.values() if lease.received == -1]
    assert reruns
    assert {lease.consumer for lease in reruns} == {tail}
    service.run()
    assert peers[tail].done


def notes(service):
    [job] = status(service.state, service.observed, service.now)["jobs"]
    return job["notes"]


@pytest.mark.parametrize("visitation", ["at_most_once", "zero_once_or_more"])
def test_the_weaker_guarantees_go_on_without_what_is_lost_and_count_it(visitation):
    service, peer = started(FakePlan(4), visitation=visitation, epochs=1)
    service.add_worker("w1")
    service.kill("w0")
    lost = "2 tasks went with their workers, at most 2 elements; they are not run again, by Visitation."
    assert notes(service) == [lost + visitation.upper()]
    service.run()
    assert peer.done
    assert peer.ends == [2, 3]


def test_what_a_weaker_guarantee_lost_of_a_tail_cannot_be_counted():
    service, _ = started(FakePlan(4, 2), visitation="at_most_once", epochs=1)
    service.kill("w0")
    assert notes(service)[0].startswith("2 tasks went with their workers; they are")


def test_without_sharding_it_is_known_how_much_of_the_data_came():
    service, peer = started(FakePlan(8, 2), workers=2, sharding="off", visitation="zero_once_or_more", epochs=1)
    service.kill("w0")
    service.run()
    assert sorted(peer.complete) == list(range(8))
    dealt = {lease.run for lease in service.events if isinstance(lease, TaskLeased)}
    assert notes(service) == [f"without sharding 8 tasks of epoch 0 were dealt: {len(dealt)} of 8 parts of the data"]


def test_a_tail_belongs_to_the_reader_of_the_last_task_before_it():
    service, peer = started(FakePlan(2, 2))
    assert peer.ends == [0, 1, 2]
    assert {lease.ref.task for lease in service.workers["w0"].leases.values()} == {0, 1}


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 0, 1, 2, 2)])
@pytest.mark.parametrize("lost", [False, True])
def test_a_report_may_name_a_tail_before_what_it_was_made_of_or_a_task_twice(order, lost):
    service, peer = started(FakePlan(2, 2), deterministic=True)
    worker = service.workers["w0"]
    while 2 not in service.readable(peer):
        service.work(read=False)
    if lost:
        service.kill("w0")
    report = msg.ConsumerReport(0, [msg.TaskProgress(task, 1, complete=True) for task in order])
    service.say(inp.ConsumerSaid(peer.client, report))
    assert not service.state.jobs["a"].epochs[0].live
    assert lost or not any(epoch == 0 for _, epoch, _ in worker.finished)
    assert sorted(peer.ends) == [0, 1, 2]


def test_in_a_fixed_order_a_task_is_heard_of_once_workers_have_all_before_it():
    service, peer = started(FakePlan(4, fan_in=2), deterministic=True)
    worker = service.workers["w0"]
    service.report("w0", want=8)
    assert [lease.ref.task for lease in worker.leases.values()] == [0, 1, 3, 4]
    assert list(peer.reads) == [0, 1]  # it would go on with 3 if the tail before it were late
    for lease in list(worker.leases)[:2]:
        service.finish(worker, lease)
    assert list(peer.reads) == [0, 1, 2, 3, 4]


def test_in_a_fixed_order_a_task_that_was_read_and_lost_holds_nothing_up():
    service, peer = started(FakePlan(4, fan_in=2), deterministic=True)
    for _ in range(2):
        service.work(read=False)
    for task in (0, 1):
        service.read(peer, task)
    service.work(read=False)
    assert service.readable(peer)[0] == 2
    peer.connected = False
    service.read(peer, 2)  # the dispatcher does not hear of it
    service.kill("w0")
    service.add_worker("w1")
    peer.reads.clear()
    peer.connected = True
    service.report("w1", want=8)
    assert {lease.ref.task for lease in service.workers["w1"].leases.values()} >= {0, 1, 3, 4}
    assert not peer.reads
    said = msg.ConsumerReport(0, [msg.TaskProgress(2, 1, complete=True)])
    service.say(inp.ConsumerSaid("x", said))
    assert list(peer.reads) == [3, 4]


def test_without_sharding_each_worker_walks_in_its_own_order_and_flushes():
    service, peer = started(FakePlan(8, 2), workers=2, sharding="off", visitation="zero_once_or_more", epochs=1)
    runs: dict[str, list[int]] = {"w0": [], "w1": []}
    for _ in range(20):
        for name, worker in service.workers.items():
            for lease in list(worker.leases):
                assert worker.leases[lease].flush
                runs[name].append(worker.leases[lease].run)
                service.finish(worker, lease)
        for task in service.readable(peer):
            service.read(peer, task)
    assert peer.epoch.tasks == 8
    assert sorted(peer.complete) == list(range(8))
    mains = {0, 1, 3, 4, 6, 7, 9, 10}
    for walked in runs.values():
        assert len(set(walked)) == len(walked)
        assert set(walked) <= mains


def test_static_shares_move_on_death_only():
    service, peer = started(FakePlan(9), workers=3, sharding="static")
    owners = service.state.jobs["a"].epochs[0].owners
    assert owners == ["w0", "w1", "w2"]
    service.add_worker("late")
    assert not service.workers["late"].leases
    service.kill("w1")
    assert service.state.jobs["a"].epochs[0].owners[1] in {"w0", "w2", "late"}
    service.run()
    assert peer.done


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_share_of_tails_alone_is_not_dealt_to_its_end_at_once(deterministic):
    """Every fifth task takes what the four before it left over, and every fifth is the last worker's."""
    service, peer = started(FakePlan(160, 4), workers=5, sharding="static", deterministic=deterministic)
    assert sum(isinstance(event, TailDealt) for event in service.events) <= 4 * 5
    service.run()
    assert peer.done
    assert sorted(peer.complete) == list(range(201))


@pytest.mark.parametrize("deterministic", [False, True])
def test_contiguous_shares_are_runs_of_tasks(deterministic):
    service, peer = started(FakePlan(11), workers=3, sharding="static_contiguous", deterministic=deterministic)
    ran = {name: set[int]() for name in service.workers}
    while not peer.done:
        for name, worker in service.workers.items():
            ran[name] |= {task.ref.task for task in worker.leases.values() if task.ref.epoch == 0}
        service.work()
    assert [sorted(tasks) for tasks in ran.values()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("workers", range(1, 8))
def test_more_workers_than_tasks_have_one_each_at_most(workers):
    service, peer = started(FakePlan(3), workers=workers, sharding="static_contiguous")
    service.run()
    assert peer.done
    assert sorted(peer.complete) == [0, 1, 2]


def test_contiguous_shares_of_data_without_end_are_refused():
    _, peer = started(FakePlan(None), workers=1, sharding="static_contiguous")
    assert peer.failure is not None
    assert "STATIC_CONTIGUOUS cuts all tasks into as many parts as there are workers" in peer.failure.message


def test_a_leaving_worker_is_let_go_when_nothing_of_it_is_needed():
    service, peer = started(FakePlan(4), workers=2)
    worker = service.workers["w0"]
    service.say(inp.WorkerSaid("w0", msg.WorkerLeaving()))
    assert not worker.stopped
    service.run()
    assert worker.stopped
    assert peer.done


# -- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [2, 3])
def test_more_jobs_than_workers_take_turns(jobs):
    service = Service(FakePlan(12), turn_s=0.0)
    service.add_worker("w")
    peers = [service.join(f"x{i}", f"job{i}", epochs=1) for i in range(jobs)]
    served = []
    for _ in range(200):
        if not service.work():
            break
        service.tick(0.1)
        served.append(service.state.workers["w"].job)
    assert all(peer.done for peer in peers)
    first_half = served[: len(served) // 2]
    assert set(first_half) == {f"job{i}" for i in range(jobs)}


def test_workers_are_spread_over_jobs():
    service = Service(FakePlan(200))
    for i in range(4):
        service.add_worker(f"w{i}")
    service.join("x", "one")
    assert {worker.job for worker in service.state.workers.values()} == {"one"}
    service.join("y", "two")
    for _ in range(12):
        service.work()
        service.tick(0.1)
    served = [worker.job for worker in service.state.workers.values()]
    assert sorted(served) == ["one", "one", "two", "two"]


def blocked_service():
    """Job "slow" has the only worker and does not read; "quick" waits."""
    service = Service(FakePlan(30))
    service.add_worker("w")
    service.join("x", "slow")
    service.plan_tasks(service.workers["w"])
    waiting = service.join("y", "quick")
    service.tick(1)
    assert service.state.workers["w"].job == "slow"
    return service, waiting


def test_a_worker_blocked_by_its_consumers_is_given_to_who_waits():
    service, waiting = blocked_service()
    service.now += 1
    service.report("w", lanes=[LaneReport(0, True, 4.0, 100)])
    assert service.state.workers["w"].job == "slow"
    service.report("w", lanes=[LaneReport(0, True, 6.0, 100)])
    service.say(inp.Tick())
    assert service.state.workers["w"].job == "quick"
    service.plan_tasks(service.workers["w"])
    service.work()
    assert waiting.reads
    assert any(live.worker == "" for live in service.state.jobs["slow"].epochs[0].live.values())


def service_of_a_larger_share():
    """Job "slow", whose share is much larger, has the only worker, and "quick" has had more of it than its share."""
    service = Service(FakePlan(30))
    service.add_worker("w")
    service.join("y", "quick")
    service.join("x", "slow", priority=24.0)
    while service.state.workers["w"].job != "slow" or not service.state.workers["w"].unfinished:
        service.plan_tasks(service.workers["w"])
        service.work()
        service.tick(1)
    return service


def test_who_had_more_than_its_share_gets_a_blocked_worker_all_the_same():
    service = service_of_a_larger_share()
    service.now += 1
    service.report("w", lanes=[LaneReport(0, True, 6.0, 100)])
    service.say(inp.Tick())
    assert service.state.workers["w"].job == "quick"


@pytest.mark.parametrize("useless", [False, True])
def test_so_is_one_of_a_job_whose_share_is_much_larger(useless):
    """Else the worker gets the same tasks again in that moment, and is taken away in the next one, on and on."""
    service = service_of_a_larger_share()
    tx = Transaction(service.state, service.observed, service.now)
    for job, number, task in list(service.state.workers["w"].unfinished.values()):
        revoke(tx, service.state.jobs[job], number, task, "its consumers do not read")
    assign_workers(tx, {"w"}, {"w"} if useless else set())
    assert service.state.workers["w"].job == ("quick" if useless else "slow")


def test_a_task_that_is_too_long_for_a_turn_is_cut_and_gets_twice_the_time_next():
    service, _ = blocked_service()
    for _ in range(11):
        service.tick(3)
    assert service.state.workers["w"].job == "quick"
    assert service.state.jobs["slow"].cuts == 1


def test_the_same_events_give_the_same_state():
    service, peer = started(FakePlan(9, 3), workers=3)
    service.work()
    service.kill("w1")
    service.run()
    assert peer.done
    assert plain(service.replayed()) == plain(service.state)


def test_an_error_in_an_epoch_that_nobody_reads_waits_until_somebody_does():
    service, peer = started(FakePlan(2))
    worker = service.workers["w0"]
    failure = msg.Failure("ElementError", "map(decode) failed")
    while not any(lease.ref.epoch == 1 for lease in worker.leases.values()):
        service.finish(worker, min(worker.leases))
    for number, lease in list(worker.leases.items()):
        if lease.ref.epoch == 1:
            del worker.leases[number]
            service.say(inp.WorkerSaid("w0", msg.TaskFailed(lease.ref, number, failure)))
    assert not [lease for lease in worker.leases.values() if lease.ref.epoch == 1]
    service.run()
    assert peer.done
    assert peer.failure is None
    service.begin(peer)
    number, lease = next(iter(worker.leases.items()))
    assert lease.ref.epoch == 1
    service.say(inp.WorkerSaid("w0", msg.TaskFailed(lease.ref, number, failure)))
    assert peer.failure == failure


def leave(service, name, within_s=0.0):
    service.say(inp.WorkerSaid(name, msg.WorkerLeaving(within_s)))


def test_a_leaving_worker_that_gets_done_in_time_is_released():
    service, _ = started(FakePlan(4), workers=2)
    held = set(service.workers["w0"].leases)
    leave(service, "w0", 30.0)
    service.tick(20.0)
    service.tick(20.0 - 11.0)
    assert set(service.workers["w0"].leases) == held  # it has a second left
    service.run()
    assert service.workers["w0"].stopped
    service.tick(60.0)
    assert not [event for event in service.events if isinstance(event, WorkerLost | TaskReleased)]


ANEW = pytest.mark.parametrize("anew", [{"pid": 4711}, {"life": "of a container with the same numbers"}], ids=str)


@ANEW
def test_a_worker_that_has_left_and_is_started_anew_under_its_name_is_another_one(anew):
    service, _ = started(FakePlan(4), workers=2)
    leave(service, "w0", 30.0)
    service.run()
    assert service.workers["w0"].stopped
    service.say(inp.WorkerSessionLost("w0"))
    worker = service.add_worker("w0", **anew)
    assert not worker.stopped
    known = service.state.workers["w0"]
    assert (known.pid, known.life) == (anew.get("pid", 0), anew.get("life", ""))
    assert not known.draining
    assert not known.released


@ANEW
def test_a_worker_that_died_and_is_started_anew_under_its_name_has_died(anew):
    service, _ = started(FakePlan(4), workers=2)
    held = {lease.ref.task for lease in service.workers["w0"].leases.values()}
    assert held
    service.say(inp.WorkerSessionLost("w0"))
    service.add_worker("w0", **anew)
    assert {event.task for event in service.events if isinstance(event, TaskDied)} == held


def test_what_a_leaving_worker_does_not_get_done_in_time_goes_to_others():
    service, peer = started(FakePlan(4), workers=2)
    stuck = {lease.ref.task for lease in service.workers["w0"].leases.values()}
    assert stuck
    leave(service, "w0", 30.0)
    service.tick(15.0)
    service.hello("w0")
    leave(service, "w0", 15.0)  # as who comes back does; that gives no more time
    service.tick(14.0)
    assert "w0" in service.state.workers
    service.tick(2.0)
    assert "w0" not in service.state.workers
    [lost] = [event for event in service.events if isinstance(event, WorkerLost)]
    assert lost.reason == "was leaving and did not get done in the time that it had"
    assert lost.reason in service.refused["w0"].message  # should it only be slow, it learns of it
    del service.workers["w0"]
    service.run()
    assert peer.done
    assert sorted(peer.complete) == [0, 1, 2, 3]
    assert not [event for event in service.events if isinstance(event, TaskDied)]  # it is not their fault


def test_a_leaving_worker_that_has_not_said_how_long_is_waited_for():
    service, _ = started(FakePlan(4), workers=2)
    leave(service, "w0")
    for _ in range(10):
        service.tick(10.0)
    assert "w0" in service.state.workers


def at_the_tail(visitation):
    """A tail was leased that collects from two workers: service, its worker, its lease, and the other worker's name."""
    service, peer = started(FakePlan(2, 2), workers=2, visitation=visitation, epochs=1)
    for worker in service.workers.values():
        for lease in list(worker.leases):
            service.finish(worker, lease)
    for task in service.readable(peer):
        service.read(peer, task)
    [(worker, lease)] = [(each, lease) for each in service.workers.values() for lease in each.leases]
    [other] = service.workers.keys() - {worker.name}
    assert [address for _, address in worker.leases[lease].holders] == ["w0:1", "w1:1"]
    return service, worker, lease, other


def runs_of(service, task):
    return sum(isinstance(event, TaskLeased) and event.task == task for event in service.events)


@pytest.mark.parametrize(
    ("visitation", "again"), [("exactly_once", True), ("at_most_once", False), ("zero_once_or_more", False)]
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_tail_whose_inputs_may_be_lost_is_not_run_again(visitation, again, ended):
    """It would give another time what it has given already, as with other inputs its outputs are others."""
    service, worker, lease, other = at_the_tail(visitation)
    tail = worker.leases[lease]
    if ended:  # and what it gave is gone
        service.finish(worker, lease)
        service.say(inp.WorkerSaid(worker.name, msg.TaskReturned(tail.ref, lease)))
    else:
        del worker.leases[lease]
        service.hello(worker.name)  # without it: it never came, or what it gave was read to the end
    service.kill(other)
    service.run()
    assert (runs_of(service, 2) > 1) == again
    assert all(peer.done for peer in service.consumers.values())


@pytest.mark.parametrize(
    ("visitation", "again"), [("exactly_once", True), ("at_most_once", False), ("zero_once_or_more", False)]
)
def test_a_tail_that_was_given_back_ends_with_what_it_collects(visitation, again):
    service, worker, lease, other = at_the_tail(visitation)
    service.say(inp.WorkerSessionLost(other))
    tail = worker.leases.pop(lease)
    service.say(inp.WorkerSaid(worker.name, msg.WorkerLeaving()))
    service.say(inp.WorkerSaid(worker.name, msg.TaskReturned(tail.ref, lease)))
    service.kill(other)
    service.add_worker("w2")
    service.run()
    assert (runs_of(service, 2) > 1) == again
    assert all(peer.done for peer in service.consumers.values())


@pytest.mark.parametrize("visitation", ["exactly_once", "at_most_once", "zero_once_or_more"])
def test_a_worker_comes_back_with_neither_a_tail_nor_what_that_collects(visitation):
    """The tail is not run again, and what it collects ends with it."""
    service, peer = started(FakePlan(2, 2), visitation=visitation, epochs=1)
    [worker] = service.workers.values()
    for lease in list(worker.leases):
        service.finish(worker, lease)
    for task in service.readable(peer):
        service.read(peer, task)
    assert [lease.ref.task for lease in worker.leases.values()] == [2]
    for held in (worker.leases, worker.finished, worker.leftovers):
        held.clear()
    service.hello(worker.name)
    service.run()
    assert peer.done
