"""A training sets the weights of its mixture while it reads an epoch."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from tests.unit.control.control_driver import MIXED_STRUCTURE, FakeConsumer, FakePlan, Service
from tests.unit.control.membership.test_resume import state_of
from tests.unit.control.test_random_schedules import KINDS, calm, check_epoch, disturb, settle

from millrace.control import inputs as inp
from millrace.control.journal.epoch_events import EpochReweighted
from millrace.control.journal.snapshot import plain
from millrace.control.journal.task_events import TaskEnded
from millrace.dispatcher.status_report import status
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import graph_digest
from millrace.planning.epoch_shape import WeightChange
from millrace.protocol import messages as msg

GRAPH = graph_digest(unpack(MIXED_STRUCTURE))
NODE = 4


def mixed(service: Service, client: str = "c", **fields: Any) -> FakeConsumer:
    return service.join(client, structure=MIXED_STRUCTURE, **fields)


def changes(service: Service) -> list[EpochReweighted]:
    return [event for event in service.events if isinstance(event, EpochReweighted)]


def test_it_holds_from_the_first_task_on_that_was_never_leased_and_reruns_have_it_too():
    service = Service(FakePlan(8))
    worker = service.add_worker("w")
    peer = mixed(service)
    service.report("w", want=2)
    service.plan_tasks(worker)
    before = sorted(lease.ref.task for lease in worker.leases.values())
    assert before == [0, 1]
    service.set_weights(peer, 9, 1, number=1)
    (event,) = changes(service)
    assert (event.task, event.element, event.weights) == (2, 2, (9.0, 1.0))
    assert [(each.number, each.element, each.refused, each.late) for each in peer.answers] == [(1, 2, "", False)]
    assert peer.reweighted == (WeightChange(NODE, 2, (9.0, 1.0)),)
    assert not any(lease.reweighted for lease in worker.leases.values())
    service.kill("w")
    other = service.add_worker("v")
    again = {lease.ref.task: lease.reweighted for lease in other.leases.values()}
    assert set(again.values()) == {peer.reweighted}
    assert set(before) <= set(again)


def test_what_is_set_before_anything_else_is_leased_replaces_what_was_set_before():
    service = Service(FakePlan(8))
    worker = service.add_worker("w")
    peer = mixed(service)
    service.report("w", want=2)
    service.plan_tasks(worker)
    for number in range(3):
        service.set_weights(peer, 2 + number, 1, number=number)
    assert [answer.late for answer in peer.answers] == [False] * 3
    assert [event.replaced for event in changes(service)] == [0, 1, 2]
    assert peer.reweighted == (WeightChange(NODE, 2, (4.0, 1.0), 2),)
    assert service.state.jobs["a"].reweighted == (WeightChange(NODE, 0, (4.0, 1.0)),)
    assert plain(service.replayed()) == plain(service.state)
    service.run()
    assert sorted(peer.complete) == list(range(8))


def test_all_who_read_hear_of_it_before_they_hear_of_a_task_behind_it():
    """The driver looks at each word that says what can be read."""
    service = Service(FakePlan(40))
    for name in ("w", "v"):
        service.add_worker(name)
    peers = [mixed(service, f"c{number}", num_consumers=2) for number in range(2)]
    for number in range(5):
        service.work(room=2)
        service.set_weights(peers[number % 2], 1 + number, 1, number=number)
    service.run()
    assert len(changes(service)) == 5
    assert [len(peer.reweighted) for peer in peers] == [5, 5]
    assert sorted(task for peer in peers for task in peer.complete) == list(range(40))
    late = mixed(service, "late", resume=False, consumer=1)
    assert late.failure is not None or late.reweighted == peers[0].reweighted


def test_a_dispatcher_that_dies_before_it_has_answered_answers_as_it_would_have():
    service = Service(FakePlan(20))
    worker = service.add_worker("w")
    peer = mixed(service)
    service.plan_tasks(worker)
    peer.connected = True
    heard, peer.answers = peer.answers, []
    service.set_weights(peer, 3, 1, number=1)
    first = peer.answers.pop()
    service.restart()
    service.hello("w")
    service.work()
    service.rejoin(peer)
    assert peer.reweighted  # before it is answered, as what it reads now may be behind the boundary
    service.set_weights(peer, 3, 1, number=1)
    assert heard == []
    assert [msgspec.structs.replace(each, reweighted=()) for each in peer.answers] == [
        msgspec.structs.replace(first, reweighted=())
    ]
    assert len(changes(service)) == 1
    service.set_weights(peer, 3, 1, number=2)
    assert len(changes(service)) == 2
    service.run()
    assert sorted(peer.complete) == list(range(20))
    assert plain(service.replayed()) == plain(service.state)


def test_a_prepared_epoch_is_prepared_anew_with_the_weights_from_its_first_task_on():
    service = Service(FakePlan(4))
    worker = service.add_worker("w")
    peer = mixed(service)
    service.plan_tasks(worker)
    for _ in range(3):
        service.work(read=False)
    ahead = [lease for lease in (*worker.leases.values(), *worker.finished) if "1" in str(lease)]
    assert ahead
    assert service.state.jobs["a"].epochs[1].ahead
    service.set_weights(peer, 0, 1, number=1)
    assert [event.epoch for event in changes(service)] == [0]
    assert peer.answers[-1].element == 4  # behind the last task
    assert not any(key[1] == 1 for key in worker.finished)
    assert all(lease.reweighted == (WeightChange(NODE, 0, (0.0, 1.0)),) for lease in worker.leases.values())
    service.run()
    service.begin(peer)
    assert peer.reweighted == (WeightChange(NODE, 0, (0.0, 1.0)),)
    service.run()
    assert sorted(peer.complete) == [0, 1, 2, 3]
    service.begin(peer)
    assert peer.reweighted == (WeightChange(NODE, 0, (0.0, 1.0)),)


def test_what_a_forgotten_epoch_left_out_counts_when_it_has_run_again():
    service = Service(FakePlan(1))
    worker = service.add_worker("w")
    peer = mixed(service)
    service.plan_tasks(worker)

    def end_all() -> None:
        for number, lease in list(worker.leases.items()):
            worker.finished["a", lease.ref.epoch, 0], worker.outputs["a", lease.ref.epoch, 0] = number, ["x"]
            ended = msg.TaskFinished(lease.ref, number, 1, skipped=3, left_out=5, passed=[7])
            service.say(inp.WorkerSaid("w", ended))
        worker.leases.clear()

    def shown() -> tuple[int, ...]:
        (job,) = status(service.state, service.observed, service.now)["jobs"]
        return job["skipped"], job["left_out"]

    end_all()
    assert (service.state.jobs["a"].skipped, shown()) == (6, (3, 5))
    service.set_weights(peer, 3, 1, number=1)
    end_all()
    assert len([event for event in service.events if isinstance(event, TaskEnded)]) == 3
    assert (service.state.jobs["a"].skipped, shown()) == (6, (3, 5))
    service.run()
    service.begin(peer)
    service.run()
    (job,) = [each for each in service.state.jobs.values() if each.name == "a"]
    assert job.left_out == 5
    assert (
        sum(observed.passed[0] for observed in service.observed.progress["a"].epochs.values() if observed.passed) == 14
    )
    assert plain(service.replayed()) == plain(service.state)


def test_who_is_behind_sets_weights_in_the_epochs_of_those_who_are_further_too():
    service = Service(FakePlan(40))
    worker = service.add_worker("w")
    behind, ahead = (mixed(service, f"c{number}", num_consumers=2) for number in range(2))
    service.report("w", want=2)
    service.plan_tasks(worker)
    service.begin(ahead, 1)
    service.set_weights(behind, 1, 5, number=1)
    assert [event.epoch for event in changes(service)] == [0, 1]
    assert ahead.reweighted == service.state.jobs["a"].epochs[1].reweighted
    assert behind.reweighted == service.state.jobs["a"].epochs[0].reweighted
    service.set_weights(ahead, 1, 6, number=1)
    assert [event.epoch for event in changes(service)] == [0, 1, 1]


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"sharding": "off", "visitation": "zero_once_or_more"}, "with ShardingPolicy.OFF each worker has its own"),
        ({"deterministic": True}, ""),
        ({"structure": None}, "this pipeline has none"),
    ],
)
def test_what_is_refused_is_said_and_nothing_changes(fields, refused):
    service = Service(FakePlan(8))
    worker = service.add_worker("w")
    peer = service.join("c") if "structure" in fields else mixed(service, **fields)
    service.plan_tasks(worker)
    service.set_weights(peer, 9, 1, number=1)
    assert refused in peer.answers[-1].refused
    assert len(changes(service)) == (not refused)
    for wrong in ((), (1.0,), (0.0, 0.0), (-1.0, 1.0), (float("nan"), 1.0)):
        service.set_weights(peer, *wrong, number=2)
        assert peer.answers[-1].refused
    service.set_weights(peer, 9, 1, number=3, epoch=7)
    assert "epoch 7 is over" in peer.answers[-1].refused
    assert len(changes(service)) == (not refused)


def test_jobs_that_share_their_computation_have_no_weights_of_their_own():
    service = Service(FakePlan(8))
    worker = service.add_worker("w")
    peer = mixed(service, sharing="lockstep")
    service.plan_tasks(worker)
    if peer.epoch is None:
        service.run()
    service.set_weights(peer, 9, 1, number=1, epoch=0)
    assert "leave sharing= out" in peer.answers[-1].refused
    assert not changes(service)


def test_states_bring_it_back_and_the_longest_list_counts():
    service = Service(FakePlan(20))
    worker = service.add_worker("w")
    peers = [mixed(service, f"c{number}", num_consumers=2) for number in range(2)]
    service.report("w", want=2)
    service.plan_tasks(worker)
    early = state_of(service, peers[1], 2, graph=GRAPH, reweighted=peers[1].reweighted)
    service.set_weights(peers[0], 9, 1, number=1)
    for _ in range(3):
        service.work(room=2)
    late = state_of(service, peers[0], 2, graph=GRAPH, reweighted=peers[0].reweighted)
    assert [len(state.reweighted) for state in (late, early)] == [1, 0]
    other = Service(FakePlan(20))
    reader = mixed(other, states=[late, early])
    assert reader.failure is None
    other.plan_tasks(other.add_worker("w"))
    assert reader.reweighted == late.reweighted
    assert all(lease.reweighted == late.reweighted for lease in other.workers["w"].leases.values())
    other.set_weights(reader, 1, 1, number=1)
    assert [each.weights for each in reader.reweighted] == [(9.0, 1.0), (1.0, 1.0)]
    damaged = msgspec.structs.replace(late, reweighted=(WeightChange(NODE, 2, (1.0, 1.0, 1.0)),))
    third = Service(FakePlan(20))
    third.plan_tasks(third.add_worker("w"))
    refused = mixed(third, states=[damaged, early])
    third.run()
    assert refused.failure.kind == "StateError"


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"off"}))
@pytest.mark.parametrize("seed", range(3))
def test_whatever_goes_wrong_every_task_is_read_once_and_who_reads_it_knows_its_weights(kind, seed):
    fields = KINDS[kind]
    rng = random.Random(seed)
    service = Service(FakePlan(24, 4 if seed == 1 else 0))
    names = ["w0", "w1"]
    for name in names:
        service.add_worker(name)
    peers = [service.join(f"c{number}", num_consumers=2, structure=MIXED_STRUCTURE, **fields) for number in range(2)]
    asked = 0
    for _ in range(60):
        if rng.random() < 0.3:
            disturb(service, rng, names)
        if rng.random() < 0.3:
            peer = rng.choice(peers)
            if peer.connected and peer.epoch is not None and peer.failure is None:
                asked += 1
                service.set_weights(peer, rng.random(), 1, number=asked)
        service.work(room=3)
    calm(service, names)
    settle(service, peers, 3)
    assert asked
    if kind != "equal":
        check_epoch(service, "a", peers)
    assert plain(service.replayed()) == plain(service.state)
