"""Jobs that go on from saved states: what is left comes once, to as many consumers as there are then."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.control.control_driver import STRUCTURE, FakeConsumer, FakePlan, Service, in_order
from tests.unit.control.test_random_schedules import KINDS, PLANS, calm, disturb, settle

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.control.journal.task_events import TaskLeased
from millrace.control.journal.transaction import merged
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import Checkpoint, graph_digest, said
from millrace.planning.progress import TaskSet
from millrace.protocol import messages as msg

SEED = 11
WAYS = sorted(set(KINDS) - {"off"})


def state_of(
    service: Service,
    peer: FakeConsumer,
    ranks: int,
    before: Sequence[Checkpoint] = (),
    part: Mapping[int, int] | None = None,
    **fields: Any,
) -> Checkpoint:
    """What the client would say: all that it has read since, to the end or in ``part``, and what it loaded."""
    epoch = peer.epoch.epoch if peer.epoch is not None else 0
    loaded = said(before, epoch)
    done, alone = TaskSet.of(peer.complete) | loaded.tasks_done(), TaskSet.of(peer.alone) | loaded.tasks_alone()
    begun = {**dict(loaded.begun), **(part or {})}
    known = Checkpoint(
        seed=SEED,
        epoch=epoch,
        graph=graph_digest(unpack(STRUCTURE)),
        sources=service.prints,
        tasks=service.plan.length,
        done=done.low,
        later=done.text(),
        begun=sorted((task, outputs) for task, outputs in begun.items() if task not in done),
        alone=(alone.low, alone.text()),
        rank=peer.joined.consumer,
        ranks=ranks,
    )
    return msgspec.structs.replace(known, **fields)


def states_of(service: Service, peers: list[FakeConsumer], before: Sequence[Checkpoint] = ()) -> list[Checkpoint]:
    return [state_of(service, peer, len(peers), before) for peer in peers]


def loads(
    service: Service, states: list[Checkpoint], consumers: int, *, own: bool = False, job: str = "a", **kind: Any
) -> list[FakeConsumer]:
    """As many consumers join with these states, each with its own or with all, and begin to read."""
    life = len(service.events)  # any number that was not there before
    peers = [
        service.join(
            f"{life}.{i}",
            job,
            consumer=i,
            num_consumers=consumers,
            states=states[i : i + 1] if own else states,
            begin=False,
            **kind,
        )
        for i in range(consumers)
    ]
    for peer in peers:
        assert peer.failure is None
        begin(service, peer)
    return peers


def begin(service: Service, peer: FakeConsumer) -> None:
    service.begin(peer, peer.resumed if peer.joined.waits else peer.joined.epoch + 1)


def elements(outputs: Iterable[str]) -> list[str]:
    return sorted(element for output in outputs for element in output.split("+"))


def elements_of(mains: int) -> list[str]:
    return sorted(f"{main}{letter}" for main in range(mains) for letter in "abc")


class Ranks:
    """The consumers of one life of a job, some of which leave and some of whose places are taken by others.

    Args:
        service: that they read from.
        peers: by rank.
        loaded: by rank, the states that it went on from.
    """

    def __init__(
        self, service: Service, peers: list[FakeConsumer], loaded: list[list[Checkpoint]], **kind: Any
    ) -> None:
        self.service, self.peers, self.loaded, self.kind = service, peers, loaded, kind
        self.left: dict[int, Checkpoint] = {}
        """By rank, the last state of who left and was not followed by another."""

    def state(self, rank: int, rng: random.Random) -> Checkpoint:
        """One that its client could give now, in the middle of a task perhaps."""
        peer = self.peers[rank]
        ready = [task for task in self.service.readable(peer) if in_order(peer, task, self.service)][:1]
        part = dict(self.service.read_part(peer, task, rng.randrange(3)) for task in ready)
        return state_of(self.service, peer, len(self.peers), self.loaded[rank], part)

    def come_or_go(self, rng: random.Random) -> None:
        rank = rng.randrange(len(self.peers))
        peer = self.peers[rank]
        others = [each for each in self.loaded if each is not self.loaded[rank]]
        if rank in self.left and (self.kind.get("equal_steps") or self.loaded[rank] not in others):
            return  # it would begin behind this epoch; or nobody else would know what was read before
        if rank in self.left:
            del self.left[rank]
            self.loaded[rank] = []
            self.peers[rank] = self.service.join(
                f"{peer.client}+", consumer=rank, num_consumers=len(self.peers), **self.kind
            )
        elif len(self.left) < len(self.peers) - 1 and peer.connected:
            self.left[rank] = state_of(self.service, peer, len(self.peers), self.loaded[rank])
            self.service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
            del self.service.consumers[peer.client]

    def states(self, rng: random.Random) -> list[Checkpoint]:
        return [self.left[rank] if rank in self.left else self.state(rank, rng) for rank in range(len(self.peers))]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    plan=st.sampled_from(PLANS),
    kind=st.sampled_from(WAYS),
    counts=st.lists(st.integers(1, 3), min_size=2, max_size=4),
    anew=st.booleans(),
)
# Many tasks run again for what they leave over, and wait until their tail is dealt.
@example(seed=39334, plan=(9, 3), kind="static in order", counts=[1, 1], anew=True)
# A tail of tails was read without what was dropped below, and nobody says the state of the lower tail's reader.
@example(seed=13737, plan=(13, 4), kind="deterministic", counts=[3, 1], anew=False)
# A rank left whose tail was dealt before what the process in its place reads first.
@example(seed=12189, plan=(13, 4), kind="static in order", counts=[3, 1], anew=False)
def test_stopped_again_and_again_each_element_is_read_once(seed, plan, kind, counts, anew):
    """With as many or other numbers of consumers, at the same service or another, while workers die and ranks leave.

    What a rank read counts as far as its state is among those that are loaded.
    """
    rng = random.Random(seed)
    service = Service(FakePlan(*plan))
    names = ["w0", "w1"]
    for name in names:
        service.add_worker(name)
    peers = [service.join(f"c{i}", num_consumers=counts[0], consumer=i, **KINDS[kind]) for i in range(counts[0])]
    ranks = Ranks(service, peers, [[] for _ in peers], **KINDS[kind])
    had: list[str] = []
    """What all ranks' states say."""
    for count in counts[1:]:
        for _ in range(rng.randrange(1, 5)):
            for _ in range(rng.randrange(12)):
                service.work(read=rng.random() < 0.7, room=2)
            if rng.random() < 0.4:
                disturb(service, rng, names)
            if rng.random() < 0.5 and all(peer.epoch for peer in ranks.peers):
                ranks.come_or_go(rng)
        calm(service, names)
        if any(peer.epoch is None for peer in ranks.peers):
            continue  # nothing has begun to be said
        states = ranks.states(rng)
        had += [output for peer in ranks.peers for output in peer.got]
        there = [peer for peer in ranks.peers if peer.client in service.consumers]
        for peer in there:
            peer.connected = rng.random() < 0.5  # some are still there
            if not peer.connected:
                service.say(inp.ClientSessionLost(peer.client))
        if anew:
            service = Service(FakePlan(*plan))
            names = ["v0"]
            service.add_worker("v0")
        own = count == len(states) and rng.random() < 0.5
        peers = loads(service, states, count, own=own, **KINDS[kind])
        ranks = Ranks(service, peers, [states[i : i + 1] if own else [*states] for i in range(count)], **KINDS[kind])
        if not anew:
            assert all(peer.failure.kind == "ConsumerConflictError" for peer in there if peer.connected)
            for peer in there:
                del service.consumers[peer.client]
    calm(service, names)
    settle(service, ranks.peers, 2)
    assert elements(had + [output for peer in ranks.peers for output in peer.got]) == elements_of(plan[0])
    assert plain(service.replayed()) == plain(service.state)
    assert plain(service.restored()) == plain(service.state)
    for peer in ranks.peers:
        service.begin(peer)
    settle(service, ranks.peers, 2)
    assert elements(output for peer in ranks.peers for output in peer.got) == elements_of(plan[0])


def running(plan: FakePlan | None = None, consumers: int = 1, **kind: Any) -> tuple[Service, list[FakeConsumer]]:
    service = Service(plan or FakePlan(8))
    service.add_worker("w0")
    peers = [service.join(f"c{i}", num_consumers=consumers, consumer=i, **kind) for i in range(consumers)]
    service.work()
    return service, peers


def test_what_was_begun_goes_on_where_it_was():
    service, [peer] = running()
    state = state_of(service, peer, 1, done=2, later="", begun=[(3, 7)])
    [peer] = loads(service, [state], 1)
    service.plan_tasks(service.workers["w0"])
    leases = {lease.ref.task: lease.received for worker in service.workers.values() for lease in worker.leases.values()}
    assert leases == {2: 0, 3: 7}
    assert {task: read.start for task, read in peer.reads.items()} == leases


def test_only_leftovers_of_what_was_read_run_again_and_after_what_is_read():
    service, [peer] = running(FakePlan(9, 3))
    state = state_of(service, peer, 1, done=8, later="")  # two groups of three with their tails
    [peer] = loads(service, [state], 1)
    first = len(service.events)
    service.run()
    assert sorted(peer.complete) == [8, 9, 10, 11, 12]
    order = [event.task for event in service.events[first:] if isinstance(event, TaskLeased) and not event.epoch]
    assert sorted(order) == [*range(13)]
    assert order[:3] == [8, 9, 10]
    assert order[-1] == 12


def test_leftovers_that_became_outputs_that_were_read_are_not_kept():
    service, [peer] = running(FakePlan(9, 3))
    done = TaskSet.of(task for task in range(13) if task != 1)
    state = state_of(service, peer, 1, done=done.low, later=done.text())
    [peer] = loads(service, [state], 1)
    service.plan_tasks(service.workers["w0"])
    [lease] = [number for number, task in service.workers["w0"].leases.items() if not task.ref.epoch]
    service.finish(service.workers["w0"], lease)
    assert service.workers["w0"].leftovers
    service.work()
    assert peer.complete == [1]
    assert not service.state.jobs["a"].epochs[0].live
    assert not any(epoch == 0 for _, epoch, _ in service.workers["w0"].leftovers)


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("sharding", ["dynamic", "static"])
def test_what_its_tail_has_begun_without_still_gives_its_leftovers_itself(sharding, after):
    """What was dropped as its reader left, and what that one's follower had read, had begun and had not begun."""
    kind = {"deterministic": True, "sharding": sharding}
    service = Service(FakePlan(24, 3))
    service.add_worker("w0")
    gone, stays = (service.join(name, consumer=rank, num_consumers=2, **kind) for rank, name in enumerate("xy"))
    service.plan_tasks(service.workers["w0"])
    service.say(inp.ConsumerSaid(gone.client, msg.LeaveJob()))
    del service.consumers[gone.client]
    tails = {task.index for task in service.plan.tasks if task.inputs}
    while len(tails & {*stays.complete}) < 3:
        service.work(room=1)
    came = service.join("z", consumer=0, num_consumers=2, **kind)
    while len(came.complete) < 2:
        service.work(room=1)
    while not service.readable(came):
        service.work(read=False, room=1)
    task = min(service.readable(came))
    part = dict([service.read_part(came, task, 1)])
    states = [state_of(service, came, 2, (), part), state_of(service, stays, 2)]
    alone = states[0].tasks_alone() | states[1].tasks_alone()
    assert {*came.complete, task} <= {*alone}
    assert {*alone} > {*came.complete, task}
    outputs = [*came.got, *stays.got]
    peers = loads(service, states, after, **kind)
    service.run(room=1)
    assert elements(outputs + [output for peer in peers for output in peer.got]) == elements_of(24)


@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize("sharding", ["dynamic", "static"])
def test_a_tail_that_had_begun_takes_what_it_took_though_nobody_reads_that_any_more(sharding, dealt):
    kind = {"deterministic": True, "sharding": sharding}
    service, peers = running(FakePlan(9, 3), consumers=2, **kind)
    done = TaskSet.of({0, *range(2, 8)})
    states = [state_of(service, peer, 2, done=done.low, later=done.text()) for peer in peers]
    service = Service(service.plan)
    worker = service.add_worker("v0")
    stays, goes = loads(service, states, 2, **kind)
    if dealt:
        service.plan_tasks(worker)
        assert 1 in goes.reads
    service.say(inp.ConsumerSaid(goes.client, msg.LeaveJob()))
    del service.consumers[goes.client]
    service.run()
    assert stays.got == ["6a+6b", "8a+8b", "2c+5c"]


def test_who_reads_a_tail_of_tails_says_what_left_nothing_to_the_tails_below():
    """As nobody else may: here who read the lower one leaves, and who comes in its place has read nothing."""
    service = Service(FakePlan(4, 2))  # task 6 takes what tails 2 and 5 leave, and 5 what 3 and 4 do
    service.add_worker("w0")
    kind: dict[str, Any] = {"deterministic": True, "num_consumers": 4}
    peers = [service.join(f"c{rank}", consumer=rank, **kind) for rank in range(4)]
    service.plan_tasks(service.workers["w0"])
    for rank in (3, 1):
        service.say(inp.ConsumerSaid(f"c{rank}", msg.LeaveJob()))
        del service.consumers[f"c{rank}"]
        service.run()
    assert (peers[1].complete, peers[2].complete) == ([1, 5], [2, 6])
    peers[1] = service.join("z", consumer=1, **kind)
    states = states_of(service, peers)
    outputs = [output for peer in peers for output in peer.got]
    [peer] = loads(service, states, 1, deterministic=True)
    service.run()
    assert elements(outputs + peer.got) == elements_of(4)


def test_reads_that_are_told_at_once_lose_none_of_what_is_said_with_them():
    one, other = (msg.ReadTasks(2, [msg.TaskRead(n, 5 + n, "w", "w:1")], [n, 9 + n]) for n in (3, 4))
    [told] = merged([act.SendToClient("x", one), act.SendToClient("x", other)])
    assert told == act.SendToClient("x", msg.ReadTasks(2, [*one.reads, *other.reads], [3, 12, 4, 13]))


def test_what_has_become_outputs_that_were_read_is_not_given_again_in_a_fixed_order():
    """Though the walk of who read them has come past the tails."""
    service, peers = running(FakePlan(9, 3), consumers=2, deterministic=True)
    done = TaskSet.of({*range(13)} - {0, 2, 6, 9})
    states = [state_of(service, peer, 2, done=done.low, later=done.text()) for peer in peers]
    peers = loads(service, states, 2, deterministic=True)
    service.run(room=1)
    assert sorted(task for peer in peers for task in peer.complete) == [0, 2, 6, 9]
    assert sorted(output for peer in peers for output in peer.got) == ["0a+0b", "2a+2b", "5a+5b", "7a+7b"]


def test_ranks_wait_for_one_another_and_are_told_where_they_go_on():
    service, peers = running(consumers=2)
    first, second = states_of(service, peers)
    first = msgspec.structs.replace(first, ended=True)
    for peer in peers:
        service.say(inp.ClientSessionLost(peer.client))
    one = service.join("n0", states=[first], num_consumers=2, begin=False)
    assert one.joined.waits
    service.work()
    assert not any(worker.leases for worker in service.workers.values())
    late = service.join("late", num_consumers=2, begin=False)
    assert "waits for the states of its consumer 1, to go on from there" in late.failure.message
    two = service.join("n1", states=[second], num_consumers=2, begin=False)
    assert (two.joined.waits, two.joined.consumer, two.joined.epoch) == (False, 1, -1)
    assert one.resumed == 0
    for peer in (one, two):
        service.begin(peer, 0)
    service.run()
    done = first.tasks_done() | second.tasks_done()
    assert sorted([*one.complete, *two.complete]) == [task for task in range(8) if task not in done]


def test_each_rank_is_told_what_any_had_handed_out_in_part():
    service, peers = running(consumers=2)
    first, second = states_of(service, peers)
    first = msgspec.structs.replace(first, parts=[(3, 1, [2]), (5, 0, [1, 4])])
    second = msgspec.structs.replace(second, parts=[(3, 1, [1]), (5, 0, [2])])  # of 3, what it was told before
    told = []
    for number, state in enumerate([first, second]):
        told.append(service.join(f"n{number}", states=[state], num_consumers=2, begin=False))
    for epoch in range(2):
        for peer in told:
            service.begin(peer, epoch)
        service.run()
        expected = [] if epoch else [(3, 1, [2]), (5, 0, [2])]
        assert [peer.epoch.parts for peer in told] == [expected] * 2


def test_a_rank_that_starts_again_while_others_are_awaited():
    service, peers = running(consumers=2)
    first, second = states_of(service, peers)
    one = service.join("n0", states=[first], num_consumers=2, begin=False)
    again = service.join("m0", states=[first], num_consumers=2, begin=False)
    assert one.failure.kind == "ConsumerConflictError"
    assert (again.failure, again.joined.waits) == (None, True)
    service.join("n1", states=[second], num_consumers=2, begin=False)
    assert again.resumed == 0


def test_states_too_far_apart_fail_for_all():
    service, peers = running(consumers=2)
    first, second = states_of(service, peers)
    one = service.join("n0", states=[msgspec.structs.replace(first, epoch=2)], num_consumers=2, begin=False)
    two = service.join("n1", states=[second], num_consumers=2, begin=False)
    for peer in (one, two):
        assert peer.failure.kind == "StateError"
        assert "rank 0 is in epoch 2 and another rank in epoch 0" in peer.failure.message


def test_a_life_before_is_void():
    """Its leases, its reads and its session, and it cannot come back under the name of the job."""
    service, [old] = running()
    state = state_of(service, old, 1)
    [worker] = service.workers.values()
    service.work(read=False)
    held = dict(worker.finished)
    [new] = loads(service, [state], 1)
    assert old.failure.kind == "ConsumerConflictError"
    assert "begun anew" in old.failure.message
    assert not set(held) & set(worker.finished)
    assert new.joined.generation != old.joined.generation
    service.say(inp.ConsumerSaid(old.client, msg.ConsumerReport(0, [msg.TaskProgress(5, 1, complete=True)])))
    old.failure = None
    service.rejoin(old)
    assert "is over" in old.failure.message
    service.run()
    assert sorted(new.complete) == [task for task in range(8) if task not in state.tasks_done()]


def test_one_list_is_one_load_however_many_bring_it():
    service, peers = running(consumers=2)
    states = states_of(service, peers)
    three = loads(service, states, 3)
    assert len({peer.joined.generation for peer in three}) == 1
    again = loads(service, states, 3)
    assert {peer.failure.kind for peer in three} == {"ConsumerConflictError"}
    assert len({peer.joined.generation for peer in again}) == 1


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["own", "list"])
def test_who_asks_again_as_no_answer_came_begins_nothing_anew(whole, restarted):
    service, peers = running(consumers=2)
    states = states_of(service, peers)
    joins = [
        lambda rank=rank: service.join(
            f"n{rank}", "a", consumer=rank, num_consumers=2, states=states if whole else [states[rank]], begin=False
        )
        for rank in range(2)
    ]
    first, second = (join() for join in joins)
    generation = service.state.jobs["a"].generation
    if restarted:
        service.restart()
        service.hello("w0")
    for peer, join in ((second, joins[1]), (first, joins[0])):
        peer.joined, peer.connected = None, True
        join()
    assert (first.failure, second.failure) == (None, None)
    assert {peer.joined.generation for peer in (first, second)} == {generation}
    for peer in (first, second):
        service.begin(peer)
    service.run()
    assert all(peer.done for peer in (first, second))


def test_after_the_job_was_collected_and_the_dispatcher_restarted():
    service, [peer] = running(FakePlan(9, 3))
    service.work()
    state = state_of(service, peer, 1)
    service.say(inp.ClientSessionLost(peer.client))
    service.tick(400.0)
    assert not service.state.jobs
    [peer] = loads(service, [state], 1)
    service.work(read=False)
    service.restart()
    service.hello("w0")
    service.rejoin(peer)
    service.run()
    assert sorted(peer.complete) == [task for task in range(13) if task not in state.tasks_done()]


def test_an_epoch_that_has_ended_is_followed_by_the_next():
    service, [peer] = running()
    service.run()
    state = state_of(service, peer, 1, ended=True)
    [peer] = loads(service, [state], 1)
    service.run()
    assert peer.epoch.epoch == 1
    assert len(peer.complete) == 8
    read = state_of(service, peer, 1)  # all of it, and the end was not seen
    [peer] = loads(service, [read], 1)
    service.run()
    assert (peer.epoch.epoch, peer.ends, peer.complete) == (1, [], [])


def refused(service: Service, states: list[Checkpoint], **fields: Any) -> str:
    peer = service.join(f"r{len(service.consumers)}", states=states, begin=False, **fields)
    assert any(isinstance(action, act.CloseClient) for action in service.last)
    assert peer.failure.kind == "StateError"
    message: str = peer.failure.message
    return message


def test_what_cannot_be_loaded_is_refused_and_disturbs_nobody():
    service, [peer] = running()
    state = state_of(service, peer, 1)
    change = msgspec.structs.replace
    assert "OFF" in refused(service, [state], num_consumers=1, **KINDS["off"])
    assert "of seed 11, the job is to have 5" in refused(service, [state], seed=5)
    assert "other operators" in refused(service, [change(state, graph="no")])
    assert "DataLoader" in refused(service, [change(state, helpers=True)])
    two = [change(state, ranks=2), change(state, rank=1, ranks=2)]
    assert "rank 1 of 2" in refused(service, two[1:])
    assert "rank 1 of 2" in refused(service, two[1:], num_consumers=3)
    assert "consumer 0 loads the state of rank 1" in refused(service, two[1:], num_consumers=2, consumer=0)
    assert "not of one run" in refused(service, [two[0], change(two[1], seed=4)])
    assert "cycle_length is 4 with rank 0 and 5" in refused(service, [two[0], change(two[1], cycle_length=5)])
    early = change(two[0], sources=[], tasks=None, done=0, later="", begun=[])
    assert "before its rank had begun to read, and that of rank 1 after it had" in refused(service, [early, two[1]])
    fresh = change(early, ranks=1)
    assert "before its rank had begun to read" in refused(service, [fresh, change(state, done=1)])
    assert "give each rank's once" in refused(service, [fresh, change(fresh, epoch=1)])
    assert "seed is 11 with rank 0 and 4" in refused(service, [fresh, change(fresh, seed=4)])
    service.run()
    assert len(peer.complete) == 8


def test_other_data_are_found_out_as_they_are_listed():
    service, [peer] = running()
    state = state_of(service, peer, 1)
    service.prints = ["range()|90|0|cd"]
    [peer] = [service.join("n", states=[state], begin=False)]
    service.work()
    assert peer.failure.kind == "StateError"
    assert "range() had 100 elements and has 90" in peer.failure.message


def test_other_tasks_are_found_out_as_well():
    service, [peer] = running()
    state = state_of(service, peer, 1, tasks=9)
    peer = service.join("n", states=[state], tasks=8, begin=False)
    service.work()
    assert "an epoch of 9 tasks, here it has 8" in peer.failure.message


@pytest.mark.parametrize("way", sorted({*WAYS} - {"custom", "static, contiguous"}))  # these need to know all tasks
def test_without_end(way):
    service, [peer] = running(FakePlan(None), **KINDS[way])
    for _ in range(6):
        service.work()
    state = state_of(service, peer, 1)
    count = len(peer.complete)
    assert count > 2
    [peer] = loads(service, [state], 1, **KINDS[way])
    for _ in range(6):
        service.work()
    assert not set(peer.complete) & set(range(count))
    assert peer.complete
