"""Coordinated reads: all ranks read every task, of slots that take turns."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.job_events import ShareUnread
from millrace.control.journal.snapshot import plain
from millrace.control.journal.state_validation import validate
from millrace.control.journal.task_events import TaskDone, TaskForgone
from millrace.control.reasons import why_nothing
from millrace.dataset import Dataset
from millrace.dispatcher.status_report import status
from millrace.graph.notation import graph_of
from millrace.graph.rounds import in_rounds
from millrace.graph.serialize import pack
from millrace.planning.checkpoint import Checkpoint, TasksRead
from millrace.protocol import messages as msg

CYCLE = 4


def start(ranks=2, tasks=10, workers=2, joins=None, **fields):
    service = Service(FakePlan(tasks))
    for number in range(workers):
        service.add_worker(f"w{number}")
    for rank in range(ranks) if joins is None else joins:
        join(service, rank, ranks, **fields)
    return service


def join(service, rank, ranks=2, client="", **fields):
    spec = {"coordinated": "drop", "cycle_length": CYCLE, "deterministic": True, "num_consumers": ranks}
    return service.join(client or f"c{rank}", "a", consumer=rank, **{**spec, **fields})


def read(service, peer, tasks=1):
    """Have a rank read the next tasks of its, whole, in the order of their slots."""
    for _ in range(tasks):
        service.work(read=False)
        service.read(peer, min(service.readable(peer)))


def finish(service, *ranks):
    """Have these ranks read all that there is of the epoch."""
    for _ in range(100):
        service.work(read=False)
        for peer in ranks:
            for task in service.readable(peer):
                service.read(peer, task)
    validate(service.state)


def live(service, number=0):
    return service.state.jobs["a"].epochs[number].live


def messages(service, kind):
    """List that gets what workers are told from now on, of one kind."""
    found = []
    for worker in service.workers.values():

        def take(message, taken=worker.take):
            found.extend([message] if isinstance(message, kind) else [])
            taken(message)

        worker.take = take
    return found


def test_a_task_is_leased_once_and_read_by_all_ranks():
    service = start(ranks=3, tasks=8)
    service.work(read=False)
    leases = [lease for worker in service.workers.values() for lease in worker.finished]
    assert len(leases) == len(set(leases))
    assert {task: each.slot for task, each in live(service).items()} == {task: task % CYCLE for task in live(service)}
    assert all(each.readers.keys() == {0, 1, 2} for each in live(service).values())
    finish(service, *service.consumers.values())
    assert [sorted(peer.complete) for peer in service.consumers.values()] == [[*range(8)]] * 3
    assert all(peer.done for peer in service.consumers.values())


def test_one_worker_works_on_all_slots_at_a_time():
    service = start(workers=1)
    service.plan_tasks(service.workers["w0"])
    assert {lease.consumer for lease in service.workers["w0"].leases.values()} == set(range(CYCLE))
    assert {lease.ref.task for lease in service.workers["w0"].leases.values()} >= set(range(CYCLE))


def test_a_task_is_over_once_every_rank_has_it():
    service = start()
    one, other = service.consumers.values()
    service.work(read=False)
    read(service, one)
    assert 0 in live(service)
    read(service, other)
    assert 0 not in live(service)


def test_a_rank_that_is_ahead_gets_so_many_tasks_and_no_more():
    service = start(tasks=100)
    one, _ = service.consumers.values()
    finish(service, one)
    assert CYCLE < len(one.complete) < 30
    assert {task % CYCLE for task in one.complete} == set(range(CYCLE))


def test_the_ends_of_an_epoch_are_told_to_all_with_the_tasks_of_all_slots():
    service = start(tasks=6)
    finish(service, *service.consumers.values())
    assert [sorted(peer.ends) for peer in service.consumers.values()] == [[*range(6)]] * 2
    assert service.state.jobs["a"].epochs[0].settled


def test_a_rank_that_leaves_for_good_leaves_the_audience_and_others_go_on():
    service = start()
    one, other = service.consumers.values()
    read(service, one, 2)
    read(service, other)
    spared = messages(service, msg.OutputsReceived)
    service.say(inp.ConsumerSaid(other.client, msg.LeaveJob()))
    assert all(each.readers[1].complete for each in live(service).values())
    assert {tuple(each.readers) for each in spared} == {(1,)}, "workers do not wait for it"
    assert sum(isinstance(event, TaskForgone) for event in service.events) > 0
    finish(service, one)
    assert one.done
    assert sorted(one.complete) == [*range(10)]
    (share,) = [event.share for event in service.events if isinstance(event, ShareUnread)]
    assert (share.consumer, share.tasks) == (1, 9), "all that it lacks is said once"
    assert one.unread == "Epoch 0 of job 'a' lacks the batches of 9 tasks for consumer 1, which left"
    assert not any(isinstance(event, TaskDone) and event.dropped for event in service.events)


def test_what_the_last_rank_drops_is_dropped():
    service = start()
    one, other = service.consumers.values()
    read(service, one)
    for peer in (one, other):
        service.begin(peer, 1)
    assert 0 not in service.state.jobs["a"].epochs
    assert {event.task for event in service.events if isinstance(event, TaskDone) and event.dropped} > set()
    validate(service.state)


def test_who_breaks_off_reads_the_next_epoch_and_the_others_end_theirs():
    service = start(epochs=2)
    one, other = service.consumers.values()
    read(service, one)
    service.begin(one, 1)
    finish(service, other)
    assert sorted(other.complete) == [*range(10)]
    service.begin(other, 1)
    finish(service, one, other)
    assert [sorted(peer.complete) for peer in (one, other)] == [[*range(10)]] * 2


def test_a_late_rank_gets_all_rounds():
    service = start(joins=[0])
    (one,) = service.consumers.values()
    finish(service, one)
    assert not one.done
    late = join(service, 1)
    finish(service, one, late)
    assert [sorted(peer.complete) for peer in (one, late)] == [[*range(10)]] * 2


def test_ranks_are_told_whom_they_wait_for():
    service = start(joins=[0], ranks=3)
    (one,) = service.consumers.values()
    finish(service, one)
    for _ in range(5):
        service.tick(service.settings.job_gc_timeout_s / 2)
        service.say(inp.ConsumerSaid(one.client, msg.ConsumerReport(0)))
    assert len(one.notices) == 1
    assert "consumers 1, 2 of job 'a' did not come within" in one.notices[0]
    assert "1" not in service.state.jobs["a"].left, "nobody is given up who was never seen"


def test_a_process_in_the_place_of_one_that_had_used_nothing_begins_the_epoch():
    service = start()
    one, other = service.consumers.values()
    read(service, one, 3)
    service.say(inp.ClientSessionLost(other.client))
    service.now += 100.0
    again = join(service, 1, client="again")
    assert again.joined.epoch == -1
    finish(service, one, again)
    assert [sorted(peer.complete) for peer in (one, again)] == [[*range(10)]] * 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ranks_that_all_come_again_begin_one_epoch_though_one_had_used_nothing(order):
    """Who had used nothing would else begin the epoch behind which the other one goes on, and they'd be out of step."""
    service = start(epochs=2)
    one, other = service.consumers.values()
    read(service, one)
    for peer in (one, other):
        service.say(inp.ClientSessionLost(peer.client))
    service.now += 100.0
    again = [join(service, rank, client=f"again {rank}") for rank in order]
    assert [peer.joined.epoch for peer in again] == [0, 0]
    assert all("goes on with epoch 1" in peer.notices[0] for peer in again)
    finish(service, *again)
    assert [sorted(peer.complete) for peer in again] == [[*range(10)]] * 2


def test_a_rank_that_may_come_back_after_a_restart_keeps_nobody_from_beginning_the_epoch():
    service = Service(FakePlan(10))
    service.say(inp.Started("here:1"))
    service.add_worker("w0")
    one, _ = [join(service, rank) for rank in (0, 1)]
    read(service, one)
    service.restart("here:1")
    service.hello("w0")
    again = join(service, 1, client="again")
    assert again.joined.epoch == -1
    service.rejoin(one)
    finish(service, one, again)
    assert [sorted(peer.complete) for peer in (one, again)] == [[*range(10)]] * 2


def test_a_process_in_the_place_of_one_that_had_read_goes_on_behind_the_epoch():
    service = start(epochs=2)
    one, other = service.consumers.values()
    read(service, other, 2)
    service.say(inp.ClientSessionLost(other.client))
    service.now += 100.0
    again = join(service, 1, client="again")
    assert again.joined.epoch == 0
    finish(service, one)
    assert sorted(one.complete) == [*range(10)]
    service.begin(one, 1)
    finish(service, one, again)
    assert [sorted(peer.complete) for peer in (one, again)] == [[*range(10)]] * 2
    assert "the batches of 8 tasks for consumer 1" in again.notices[0]


def test_who_takes_the_place_of_one_that_left_takes_part_in_the_next_epoch_that_all_begin():
    service = start(epochs=4)
    one, other = service.consumers.values()
    read(service, one)
    service.say(inp.ConsumerSaid(other.client, msg.LeaveJob()))
    again = join(service, 1, client="again")
    finish(service, one)
    first = again.joined.epoch + 1
    assert first >= 1
    assert f"begins with epoch {first}" in again.notices[0]
    for number in range(1, first + 1):
        service.begin(one, number)
        finish(service, *((one, again) if number == first else (one,)))
    assert [sorted(peer.complete) for peer in (one, again)] == [[*range(10)]] * 2


def test_a_lost_task_runs_again_for_those_alone_that_lack_it():
    service = start(workers=1)
    one, other = service.consumers.values()
    read(service, one)
    service.add_worker("w1")
    service.kill("w0")
    service.tick()
    leases = [lease for lease in service.workers["w1"].leases.values() if lease.ref.task == 0]
    assert [lease.readers for lease in leases] == [[1]]
    finish(service, one, other)
    assert [sorted(peer.complete) for peer in (one, other)] == [[*range(10)]] * 2


def test_a_worker_that_comes_back_hears_again_who_lacks_nothing():
    service = start(workers=1)
    one, _ = service.consumers.values()
    read(service, one)
    spared = messages(service, msg.OutputsReceived)
    service.say(inp.WorkerSessionLost("w0"))
    service.hello("w0")
    assert [([ref.task for ref in each.refs], each.readers) for each in spared] == [([0], [0])]


def states(*read_by):
    """States of ranks that have read so many (tasks, outputs of the next one)."""
    return [
        Checkpoint(
            seed=11,
            sources=["range()|100|0|ab"],
            tasks=10,
            done=done,
            begun=[(done, outputs)] if outputs else [],
            rank=rank,
            ranks=len(read_by),
            turn=(done + 1) % CYCLE,
            cycle_length=CYCLE,
        )
        for rank, (done, outputs) in enumerate(read_by)
    ]


def test_ranks_resume_each_where_it_was():
    service = start(joins=[])
    for rank in range(2):
        join(service, rank, states=states((3, 1), (5, 0)))
    service.work(read=False)
    one, other = service.consumers.values()
    assert one.reads[3].start == 1
    assert min(other.reads) == 5
    assert (one.epoch.turn, other.epoch.turn) == (0, 2)
    assert (one.epoch.read, other.epoch.read) == (TasksRead(3, "", [(3, 1)]), TasksRead(5))
    finish(service, one, other)
    assert (sorted(one.complete), sorted(other.complete)) == ([*range(3, 10)], [*range(5, 10)])
    assert (one.done, other.done) == (True, True)
    validate(service.state)


def test_each_rank_is_told_what_it_has_read_whoever_loaded_the_states():
    loaded = states((3, 1), (5, 0), (10, 0))
    loaded = [msgspec.structs.replace(each, parts=[(each.done, 0, [each.rank])]) for each in loaded]
    loaded[2] = msgspec.structs.replace(loaded[2], ended=True, parts=[])
    service = start(joins=[])
    ranks = [join(service, rank, 3, states=loaded if rank == 0 else []) for rank in range(3)]
    service.work(read=False)
    assert [peer.epoch.read for peer in ranks] == [TasksRead(3, "", [(3, 1)]), TasksRead(5), TasksRead(10)]
    assert [peer.epoch.turn for peer in ranks] == [0, 2, 3]
    assert [peer.epoch.parts for peer in ranks] == [[(3, 0, [0])], [(5, 0, [1])], []], "its own, and no other's"
    finish(service, *ranks)
    assert [sorted(peer.complete) for peer in ranks] == [[*range(3, 10)], [*range(5, 10)], []]
    assert all(peer.done for peer in ranks)


def test_what_all_ranks_had_of_a_task_is_not_computed_again():
    service = start(joins=[])
    for rank in range(2):
        join(service, rank, states=states((3, 2), (3, 1)))
    service.plan_tasks(service.workers["w0"])
    service.plan_tasks(service.workers["w1"])
    (lease,) = [each for w in service.workers.values() for each in w.leases.values() if each.ref.task == 3]
    assert lease.received == 1


def test_another_number_of_ranks_is_refused():
    service = start(joins=[])
    peer = join(service, 0, ranks=3, states=states((3, 1), (5, 0)))
    assert peer.failure.kind == "StateError"
    assert "is of 2 ranks, and here num_consumers is 3" in peer.failure.message


def test_another_cycle_is_refused():
    service = start(joins=[])
    peer = join(service, 0, states=states((3, 1), (5, 0)), cycle_length=CYCLE + 1)
    assert peer.failure.kind == "StateError"
    assert f"Go on with cycle_length={CYCLE}" in peer.failure.message


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"deterministic": False}, "deterministic=True"),
        ({"num_consumers": None}, "num_consumers"),
        ({"sharding": "static"}, "ShardingPolicy.DYNAMIC"),
        ({"visitation": "at_most_once"}, "Visitation.EXACTLY_ONCE"),
        ({"equal_steps": True}, "no equal_steps"),
        ({"cycle_length": 0}, "cycle_length is at least 1"),
    ],
)
def test_a_job_that_cannot_be_coordinated_is_refused(field, words):
    service = start(joins=[])
    peer = join(service, 0, **field)
    assert words in peer.failure.message


def test_the_parameters_are_the_same_for_all_ranks():
    service = start(joins=[0])
    peer = join(service, 1, cycle_length=2)
    assert peer.failure.kind == "JobConflictError"
    assert "cycle_length" in peer.failure.message


def test_another_number_of_ranks_is_no_other_pipeline_though_its_rounds_are_in_it():
    def made(ranks):
        graph = graph_of(Dataset.range(9).batch(3))
        assert graph is not None
        return pack(in_rounds(graph, ranks, "drop"))[0]

    service = start(joins=[])
    join(service, 0, structure=made(2))
    peer = join(service, 1, ranks=3, structure=made(3))
    assert "differs in num_consumers (3 here, 2 there)" in peer.failure.message
    peer = join(service, 1, structure=made(3))
    assert "differs in the pipeline" in peer.failure.message


def test_what_filled_no_round_is_counted_once_however_often_the_task_runs():
    service = start(workers=1, tasks=1, epochs=2)
    one, other = service.consumers.values()
    for name in ("w0", "w1"):
        if name == "w1":
            service.add_worker("w1")
            service.kill("w0")
        worker = service.workers[name]
        service.plan_tasks(worker)
        ((number, lease),) = [each for each in worker.leases.items() if each[1].ref.epoch == 0]
        worker.finished["a", 0, 0], worker.outputs["a", 0, 0] = number, ["x"]
        worker.leases.clear()
        service.say(inp.WorkerSaid(name, msg.TaskFinished(lease.ref, number, 1, left_out=5)))
    assert service.state.jobs["a"].epochs[0].left_out == {0: 5}
    for peer in (one, other):
        service.read(peer, 0)
        service.begin(peer, 1)
    assert service.state.jobs["a"].left_out == 5


def test_the_status_counts_nothing_of_an_epoch_that_nobody_has_begun():
    service = start(workers=1, tasks=1, epochs=2)
    worker = service.workers["w0"]
    service.plan_tasks(worker)
    for number, lease in list(worker.leases.items()):
        worker.finished["a", lease.ref.epoch, 0], worker.outputs["a", lease.ref.epoch, 0] = number, ["x"]
        service.say(inp.WorkerSaid("w0", msg.TaskFinished(lease.ref, number, 1, skipped=3, left_out=5)))
    worker.leases.clear()
    assert [(each.skipped, each.left_out) for each in service.state.jobs["a"].epochs.values()] == [(3, {0: 5})] * 2
    (job,) = status(service.state, service.observed, service.now)["jobs"]
    assert (job["skipped"], job["left_out"]) == (3, 5)


def test_it_is_restored_from_its_journal_in_the_middle():
    service = start()
    one, other = service.consumers.values()
    read(service, one, 3)
    read(service, other)
    service.say(inp.ConsumerSaid(other.client, msg.LeaveJob()))
    service.save()
    read(service, one)
    assert plain(service.replayed()) == plain(service.state)
    assert plain(service.restored()) == plain(service.state)


def test_status_says_who_is_awaited():
    service = start(joins=[0], ranks=3)
    (one,) = service.consumers.values()
    finish(service, one)
    waits = why_nothing(service.state, service.observed, one.client, service.now)
    assert "consumers 1, 2 have not come yet, and all ranks read every round" in waits
