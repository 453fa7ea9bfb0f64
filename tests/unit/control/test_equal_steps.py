"""Consumers that are to get equally many elements: dealt in turn where counts are known, held back where not."""

from collections import Counter

import msgspec
import pytest
from tests.unit.control.control_driver import STRUCTURE, FakePlan, Service
from tests.unit.control.membership.test_resume import SEED

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.control.state.state import State
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import Checkpoint, graph_digest
from millrace.planning.plan import EqualPlan, Piece, Plan
from millrace.planning.progress import TaskSet
from millrace.protocol import messages as msg


def started(consumers=2, *, equal=False, mains=6, fan_in=0, **fields):
    plan = FakePlan(mains, fan_in)
    plan.equal = equal
    service = Service(plan)
    service.add_worker("w0")
    fields = {"num_consumers": consumers, "equal_steps": True, **fields}
    peers = [service.join(f"c{index}", **fields) for index in range(consumers)]
    service.plan_tasks(service.workers["w0"])
    return service, peers


def report(service, peer, arrived, *, all_here=False, epoch=0):
    """The consumer says what it has; returns what is told to whom."""
    message = msg.ConsumerReport(epoch, arrived=arrived, all_here=all_here)
    service.say(inp.ConsumerSaid(peer.client, message))
    return steps_told(service)


def steps_told(service):
    """Who was told of steps by what was said last."""
    messages = [(getattr(each, "client", ""), getattr(each, "message", None)) for each in service.last]
    return {client: message for client, message in messages if isinstance(message, msg.StepsReady)}


def ready(steps, *, last=False, clients=("c0", "c1")):
    return {client: msg.StepsReady(0, steps, last) for client in clients}


def test_what_all_have_may_be_used():
    service, (one, two) = started()
    assert one.epoch.held
    assert report(service, one, 5) == {}
    assert report(service, two, 3) == ready(3)
    assert report(service, two, 3) == {}
    assert report(service, two, 9) == ready(5)
    assert report(service, two, 9, all_here=True) == {}
    assert report(service, one, 11) == ready(9, last=True)


def test_nobody_begins_before_all_are_there():
    service, _ = started(1, num_consumers=2)
    one = service.consumers["c0"]
    assert report(service, one, 5) == {}
    two = service.join("c1", num_consumers=2, equal_steps=True)
    assert report(service, two, 1) == ready(1)


def test_who_left_or_is_past_the_epoch_holds_nobody_up():
    service, (one, two, three) = started(3)
    report(service, one, 5)
    report(service, two, 3)
    assert report(service, three, 4) == ready(3, clients=("c0", "c1", "c2"))
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob()))
    assert steps_told(service) == ready(4, clients=("c0", "c2"))
    service.begin(three)
    assert report(service, one, 6) == ready(6, clients=("c0",))


def test_who_comes_again_begins_behind_the_epoch_whose_steps_the_others_took_without_it():
    service, (one, two) = started()
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob()))
    service.begin(one)
    service.work(read=False)
    assert service.state.jobs["a"].epochs[1].settled
    assert report(service, one, 3, epoch=1) == {"c0": msg.StepsReady(1, 3)}
    late = service.join("late", consumer=1, num_consumers=2, equal_steps=True, begin=False)
    assert "had left, and the others read on without it: this process begins with epoch 3" in late.notices[-1]
    service.begin(late)
    assert late.epoch.epoch == 3, "the one that is prepared was dealt without it"
    assert report(service, one, 5, epoch=1)["c0"] == msg.StepsReady(1, 5)
    assert report(service, one, 6, all_here=True, epoch=1)["c0"] == msg.StepsReady(1, 6, last=True)
    report(service, late, 4, epoch=3)
    service.begin(one, 3)
    assert report(service, one, 3, epoch=3) == {client: msg.StepsReady(3, 3) for client in ("c0", "late")}


def test_who_comes_again_and_dies_before_its_first_epoch_holds_nobody_up_and_the_next_one_begins_there():
    service, (one, two) = started()
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob()))
    service.begin(one)
    service.work(read=False)
    first = service.join("again", consumer=1, num_consumers=2, equal_steps=True, begin=False)
    assert report(service, one, 3, epoch=1) == {"c0": msg.StepsReady(1, 3)}, "it has no part in that epoch"
    service.say(inp.ClientSessionLost(first.client))
    second = service.join("once more", consumer=1, num_consumers=2, equal_steps=True, begin=False)
    service.begin(second)
    assert second.epoch.epoch == 3
    assert report(service, one, 5, epoch=1) == {"c0": msg.StepsReady(1, 5)}


def test_who_comes_again_before_the_data_are_listed_has_its_part_of_the_first_epoch():
    service = Service(FakePlan(6))
    service.join("c0", num_consumers=2, equal_steps=True)
    gone = service.join("c1", num_consumers=2, equal_steps=True, begin=False)
    service.say(inp.ConsumerSaid(gone.client, msg.LeaveJob()))
    again = service.join("again", consumer=1, num_consumers=2, equal_steps=True, begin=False)
    assert again.joined.epoch == -1
    assert not again.notices


def test_what_is_the_last_step_stays_so_when_others_leave():
    service, (one, two) = started()
    report(service, one, 5)
    report(service, two, 3)
    assert report(service, two, 3, all_here=True) == ready(3, last=True)
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob()))
    assert report(service, one, 8, all_here=True) == {}


def test_what_is_the_last_step_stays_so_when_others_leave_and_the_dispatcher_dies():
    """Who has more may not have heard which step is the last when the one that has fewer is gone."""
    service, (one, two) = started()
    report(service, one, 5)
    report(service, two, 3)
    assert report(service, two, 3, all_here=True) == ready(3, last=True)
    service.save()
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob()))
    service.restart()
    service.hello("w0")
    service.rejoin(one)
    told = [each.message for each in service.last if isinstance(getattr(each, "message", None), msg.StepsReady)]
    assert told == [msg.StepsReady(0, 3, last=True)]
    report(service, one, 5)
    assert service.state.jobs["a"].epochs[0].steps == 3


def test_who_stops_there_is_told_what_nobody_reads_though_its_share_is_not_settled():
    service, (one, two, three) = started(3, mains=60, deterministic=True)
    report(service, one, 5)
    report(service, three, 5)
    assert report(service, two, 3, all_here=True)["c0"] == msg.StepsReady(0, 3, last=True)
    assert one.ends is None
    assert one.unread == ""
    service.say(inp.ClientSessionLost(three.client))
    assert steps_told(service)["c0"].last
    assert one.unread.startswith("Epoch 0 of job 'a' lacks ")
    assert "of consumer 2, which was lost" in one.unread
    service.rejoin(three)
    assert one.unread == ""


def test_who_holds_up_a_task_that_others_wait_for_is_told_to_take_in_more_of_it():
    """Rank 0 may have no room for what task 2 gives, and rank 1 needs what that leaves over: it is the tail of four."""
    service, (one, two) = started(mains=12, fan_in=3, deterministic=True)
    worker = service.workers["w0"]
    for _ in range(8):
        for lease, task in list(worker.leases.items()):
            if task.ref.task != 2:
                service.finish(worker, lease)
        for peer in (one, two):
            for task in service.readable(peer):
                service.read(peer, task)
    assert 3 in service.state.jobs["a"].epochs[0].pending[1]
    service.tick()
    assert steps_told(service)["c0"] == msg.StepsReady(0, 0, awaited=2)
    [lease] = [lease for lease, task in worker.leases.items() if task.ref.task == 2]
    service.finish(worker, lease)
    service.tick()
    assert "c0" not in steps_told(service)


@pytest.mark.parametrize("fields", [{}, {"deterministic": True}, {"sharding": "static"}])
def test_who_has_no_room_for_the_task_that_others_wait_for_is_told_to_take_in_what_is_before_it(fields):
    """Rank 0 may use nothing, and has so many tasks unread that 8 and 10, which rank 1's tail needs, aren't leased."""
    service, (one, two) = started(mains=24, fan_in=11, **fields)
    worker, told = service.workers["w0"], []

    def work_on():
        while any(task.ref.epoch == 0 for task in worker.leases.values()):
            service.work(read=False)
            for task in service.readable(two):
                service.read(two, task)

    work_on()
    while 11 not in two.complete:
        service.tick()
        told.append(steps_told(service))
        service.read(one, told[-1]["c0"].awaited)
        work_on()
    assert told == [{"c0": msg.StepsReady(0, 0, awaited=task)} for task in (0, 2)]


@pytest.mark.parametrize(("fields", "named"), [({}, 6), ({"deterministic": True}, 0)])
def test_who_has_not_heard_of_the_task_yet_is_told_to_take_in_what_it_reads_before(fields, named):
    """Rank 1's tail needs tasks 6 and 8; in a fixed order rank 0 hears of these once its own tail, 4, is leased."""
    service, (one, two) = started(mains=8, fan_in=4, **fields)
    service.add_worker("w1")
    for _ in range(8):
        for worker in service.workers.values():
            for lease, task in list(worker.leases.items()):
                if task.consumer == 1:
                    service.finish(worker, lease)
        for task in service.readable(two):
            service.read(two, task)
    assert service.state.jobs["a"].epochs[0].pending == {0: {4, 10}, 1: {9}}
    service.tick()
    assert steps_told(service)["c0"] == msg.StepsReady(0, 0, awaited=named)
    assert named in one.reads


def test_what_others_have_no_more_of_is_no_loss():
    service, (one, two) = started()
    report(service, two, 5)
    report(service, one, 3, all_here=True)
    assert service.state.jobs["a"].epochs[0].unread[1]
    service.say(inp.ConsumerSaid(two.client, msg.ConsumerReport(0, batches=3, arrived=5, ended=True)))
    service.begin(two)
    assert service.state.jobs["a"].unread == []
    assert plain(service.replayed()) == plain(service.state)


def test_who_comes_back_is_told_again_also_by_another_dispatcher():
    service, (one, two) = started()
    report(service, one, 5)
    report(service, two, 3)
    service.say(inp.ClientSessionLost(one.client))
    service.rejoin(one)
    assert msg.StepsReady(0, 3) in [action.message for action in service.last if hasattr(action, "message")] or (
        one.epoch.held
    )
    service.restart()
    service.hello("w0")
    service.rejoin(one)
    report(service, one, 5)
    service.rejoin(two)
    assert report(service, two, 4) == ready(4)


def test_where_counts_are_known_tasks_are_dealt_in_turn_whoever_is_faster():
    service, (one, two) = started(equal=True)
    assert not one.epoch.held
    for _ in range(30):
        service.work(read=False)
        for task in service.readable(one):
            service.read(one, task)
    assert one.ends == [0, 2, 4]
    assert one.done
    service.run()
    assert two.ends == [1, 3, 5]
    assert plain(service.replayed()) == plain(service.state)


@pytest.mark.parametrize("fields", [{"num_consumers": None}, {"visitation": "at_most_once"}])
def test_what_cannot_be_equal_is_refused(fields):
    service = Service()
    peer = service.join("c", **{"num_consumers": 2, "equal_steps": True, **fields})
    assert peer.failure.kind == "PipelineError"
    assert "equal_steps=True needs num_consumers" in peer.failure.message


class Divided(Service):
    """A service where counts are known: 64 units, in tasks of four, for as many ranks as there are to be."""

    units = 64

    def fresh_state(self):
        return State(self.settings, planner=self._planned)

    def _planned(self, graph, tables, *, tasks, seed, ranks, pieces, chunks):
        return EqualPlan(self.units, 4, ranks or 1, pieces) if ranks or pieces else Plan(self.units, 4, exact=True)


def state(rank, ranks, done=(), begun=(), *, ended=False, epoch=0, **fields):
    shares = fields.pop("shares", ranks)
    pieces = fields.pop("pieces", [])
    tasks = (EqualPlan(64, 4, shares, pieces) if shares else Plan(64, 4)).length
    there = TaskSet.of(done)
    return Checkpoint(
        seed=SEED,
        epoch=epoch,
        graph=graph_digest(unpack(STRUCTURE)),
        sources=["range()|100|0|ab"],
        tasks=tasks,
        done=there.low,
        later=there.text(),
        begun=list(begun),
        ended=ended,
        rank=rank,
        ranks=ranks,
        shares=shares,
        pieces=pieces,
    )


def resumed(states, ranks, **fields):
    """A job that goes on from these; its service and what the first rank is told of its epoch."""
    service = Divided()
    service.add_worker("w0")
    fields = {"num_consumers": ranks, "equal_steps": True, **fields}
    peers = [service.join(f"c{i}", consumer=i, states=states, begin=False, **fields) for i in range(ranks)]
    for peer in peers:
        service.begin(peer, peer.resumed)
    service.plan_tasks(service.workers["w0"])
    assert plain(service.replayed()) == plain(service.state)
    assert plain(service.restored()) == plain(service.state)
    return service, peers[0].epoch


def leased(service):
    """What is left, as the workers are told it; by consumer, how many outputs it gets."""
    each: Counter[int] = Counter()
    while service.workers["w0"].leases:
        for number, lease in list(service.workers["w0"].leases.items()):
            del service.workers["w0"].leases[number]
            if lease.ref.epoch:
                continue  # prepared
            parts = lease.parts or service.state.plan(service.state.jobs["a"], 0).task(lease.ref.task).pieces
            each[lease.consumer] += sum(part.last - part.first for part in parts) - lease.received
            service.say(inp.WorkerSaid("w0", msg.TaskFinished(lease.ref, number, 4)))
            service.say(
                inp.ConsumerSaid(
                    f"c{lease.consumer}", msg.ConsumerReport(0, [msg.TaskProgress(lease.ref.task, 4, complete=True)])
                )
            )
    return each


def test_as_many_ranks_at_one_step_go_on_with_the_same_tasks():
    service, epoch = resumed([state(0, 2, [0], [(2, 1)]), state(1, 2, [1], [(5, 1)])], 2)
    assert (epoch.shares, epoch.pieces, epoch.anew, epoch.tasks) == (2, [], False, 16)
    assert leased(service) == {0: 27, 1: 27}


@pytest.mark.parametrize(("ranks", "each"), [(3, 18), (1, 54), (4, 13)])
def test_other_numbers_of_ranks_divide_what_is_left(ranks, each):
    service, epoch = resumed([state(0, 2, [0], [(2, 1)]), state(1, 2, [1], [(5, 1)])], ranks)
    assert (epoch.shares, epoch.anew) == (ranks, True)
    assert epoch.tasks == EqualPlan(64, 4, ranks, epoch.pieces).length
    assert leased(service) == dict.fromkeys(range(ranks), each)
    again = [
        state(rank, ranks, [rank], shares=ranks, pieces=epoch.pieces) for rank in range(ranks)
    ]  # each has read its first task since
    more, second = resumed(again, 2)
    read = sum(len(part) for rank in range(ranks) for part in EqualPlan(64, 4, ranks, epoch.pieces).task(rank).pieces)
    assert leased(more) == dict.fromkeys(range(2), (54 - read) // 2)
    assert second.anew or ranks == 2


def test_ranks_at_unequal_steps_are_dealt_what_is_left_anew():
    service, epoch = resumed([state(0, 2, [0, 2]), state(1, 2, [], [(1, 2)])], 2)
    assert epoch.anew
    assert leased(service) == {0: 27, 1: 27}


def test_readers_of_any_number_become_ranks_that_get_equally_many_and_these_any_number():
    service, epoch = resumed([state(0, 1, [0, 3], [(1, 3)], shares=0)], 2)
    assert (epoch.anew, epoch.shares) == (True, 2)
    assert leased(service) == {0: 26, 1: 26}
    service, epoch = resumed([state(0, 2, [0]), state(1, 2, [1])], 3, equal_steps=False)
    assert (epoch.anew, epoch.shares, epoch.held) == (True, 1, False)
    assert sum(leased(service).values()) == 56


def test_what_one_rank_has_seen_the_end_of_is_over_for_all():
    states = [state(0, 4, [], ended=True), *(state(rank, 4) for rank in (1, 2, 3))]
    service, epoch = resumed(states, 1)
    assert (epoch.epoch, epoch.tasks) == (0, 0)
    assert service.consumers["c0"].ends == []


def test_the_next_epoch_is_whole():
    service, _ = resumed([state(0, 2, [0]), state(1, 2, [1])], 3)
    leased(service)
    peers = [service.consumers[f"c{rank}"] for rank in range(3)]
    for peer in peers:
        service.begin(peer)
    assert {(peer.epoch.epoch, peer.epoch.tasks, peer.epoch.anew) for peer in peers} == {(1, 18, False)}


def test_a_state_of_more_than_there_is_is_refused():
    pieces = [Piece.of(0, 1 << 40)]
    damaged = msgspec.structs.replace(state(0, 1), pieces=pieces)
    service = Divided()
    service.add_worker("w0")
    peer = service.join("c0", states=[damaged], num_consumers=1, equal_steps=True)
    service.plan_tasks(service.workers["w0"])
    assert peer.failure.kind == "StateError"


class Vast(Divided):
    """The same of a million tasks, which are never looked at one by one."""

    units = 4_000_000


@pytest.mark.parametrize(("ranks", "ahead", "anew"), [(2, 0, False), (2, 1, True), (3, 0, True), (1, 1, True)])
def test_a_resume_costs_what_its_states_name_and_not_as_much_as_there_are_tasks(ranks, ahead, anew, calls):
    service = Vast()
    service.add_worker("w0")
    steps = 200_000
    states = []
    for rank in (0, 1):  # each has every other task
        read = TaskSet(0, int("01" * (steps + ahead * (1 - rank)), 2) << rank)
        done = {"tasks": 1_000_000, "done": read.low, "later": read.text()}
        states.append(msgspec.structs.replace(state(rank, 2), **done))

    def resume():
        fields = {"num_consumers": ranks, "equal_steps": True, "states": states, "begin": False}
        peers = [service.join(f"c{index}", consumer=index, **fields) for index in range(ranks)]
        for peer in peers:
            service.begin(peer, peer.resumed)
        service.plan_tasks(service.workers["w0"])

    assert calls(resume) < 20_000
    epoch = service.state.jobs["a"].epochs[0]
    read = 4 * (2 * steps + ahead)
    assert (epoch.anew, sum(map(len, epoch.pieces))) == (anew, service.units - read if anew else 0)
    assert sum(epoch.dealt.values()) - len(epoch.live) == (0 if anew else 2 * steps)


def test_alike_states_of_many_ranks_cost_one_plan():
    class Counting(Divided):
        plans = 0

        def _planned(self, *args, **fields):
            self.plans += 1
            return super()._planned(*args, **fields)

    service = Counting()
    service.add_worker("w0")
    states = [state(rank, 40) for rank in range(40)]
    service.join("c0", consumer=0, num_consumers=1, states=states, equal_steps=True, begin=False)
    service.plan_tasks(service.workers["w0"])
    assert 0 < service.plans < 10
