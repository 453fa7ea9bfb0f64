"""Whatever joins, dies and comes back, in whatever order: every task is read once, and nobody waits for ever."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.control import control_driver
from tests.unit.control.control_driver import FakeConsumer, FakePlan, Service

import millrace as mr
from millrace.control import inputs as inp
from millrace.control.journal.epoch_events import EpochOpened
from millrace.control.journal.snapshot import plain
from millrace.control.state.index import StateIndex
from millrace.control.state.serving_index import ServingIndex
from millrace.control.state.state import State
from millrace.graph.notation import graph_of
from millrace.graph.serialize import pack
from millrace.planning.split_table import TableSummary
from millrace.protocol import messages as msg
from millrace.protocol.cache_server_messages import CacheServerHello
from millrace.protocol.reports import LaneReport

KINDS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "deterministic": {"deterministic": True},
    "static": {"sharding": "static"},
    "static in order": {"sharding": "static", "deterministic": True},
    "static, contiguous": {"sharding": "static_contiguous"},
    "custom": {"sharding": "custom"},
    "equal": {"equal_steps": True},
    "off": {"sharding": "off", "visitation": "zero_once_or_more"},
}
PLANS = [(0, 0), (1, 3), (5, 0), (9, 3), (13, 4)]


def disturb(service: Service, rng: random.Random, names: list[str]) -> None:
    """One thing that happens to workers, or time."""
    alive = list(service.workers)
    what = rng.choice(["kill", "add", "break", "back", "tick", "lose", "leave", "return", "crash", "save", "restart"])
    if what == "kill" and len(alive) > 1:
        service.kill(rng.choice(alive))
    elif what == "crash" and len(alive) > 1:
        name = rng.choice(alive)
        del service.workers[name]
        service.say(inp.WorkerSessionLost(name))
    elif what == "add" and len(alive) < 5:
        names.append(f"w{len(names)}")
        service.add_worker(names[-1])
    elif what == "break":
        name = rng.choice(alive)
        service.workers[name].connected = False
        service.say(inp.WorkerSessionLost(name))
    elif what == "back":
        for name in alive:
            if not service.workers[name].connected:
                service.hello(name)
        for peer in service.consumers.values():
            if not peer.connected:
                service.rejoin(peer)
    elif what == "save":
        service.save()
    elif what == "restart":
        assert plain(service.restored()) == plain(service.state)
        service.deaf = True  # what is said from now on is not durable when the dispatcher dies
        for _ in range(rng.randrange(4)):
            service.work(read=rng.random() < 0.7)
        service.restart()
    elif what == "tick":
        service.tick(rng.choice([0.1, 1.0, 3.0]))
    elif what == "lose":
        worker = service.workers[rng.choice(alive)]
        worker.leftovers.clear()
    elif what == "leave" and len(alive) > 2:
        service.say(inp.WorkerSaid(rng.choice(alive), msg.WorkerLeaving(rng.choice([0.0, 2.0, 10.0]))))
    elif what == "return":
        worker = service.workers[rng.choice(alive)]
        if worker.leases and worker.connected:
            lease, task = worker.leases.popitem()
            service.say(inp.WorkerSaid(worker.name, msg.TaskReturned(task.ref, lease)))


def calm(service: Service, names: list[str]) -> None:
    """From here on everything works: all are back, and one worker is fresh."""
    for name, worker in list(service.workers.items()):
        if not worker.connected:
            service.hello(name)
    for peer in service.consumers.values():
        if not peer.connected:
            service.rejoin(peer)
    names.append(f"w{len(names)}")
    service.add_worker(names[-1])


def settle(service: Service, peers: list[FakeConsumer], room: int) -> None:
    """Go on until all have what is theirs; time passes when nothing else moves."""
    for _ in range(3000):
        if all(peer.done for peer in peers):
            return
        if not service.work(room=room):
            for name in list(service.workers):
                if service.workers[name].stopped:
                    service.kill(name)
            blocked = 100.0
            service.now += 6.0
            for name, worker in service.workers.items():
                if name in service.state.workers:
                    lanes = [LaneReport(task.consumer, True, blocked, 0) for task in worker.leases.values()]
                    service.report(name, lanes=lanes)
            for peer in peers:
                if peer.epoch is not None:
                    service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(peer.epoch.epoch)))
            service.say(inp.Tick())
    stuck = [(peer.client, peer.ends, peer.complete, peer.failure) for peer in peers if not peer.done]
    raise AssertionError(f"these wait for ever: {stuck}")


def check_epoch(service: Service, job: str, peers: list[FakeConsumer]) -> None:
    read = sorted(task for peer in peers for task in peer.complete)
    assert read == list(range(service.state.jobs[job].length or 0))


def play(seed: int, plan: tuple[int, int], kinds: list[str], consumers: int, room: int) -> Service:
    """A service to which things happen; what follows is a function of the arguments."""
    rng = random.Random(seed)
    service = Service(FakePlan(*plan))
    names = ["w0", "w1"]
    for name in names:
        service.add_worker(name)
    for number, kind in enumerate(kinds):
        for i in range(consumers):
            service.join(f"c{number}.{i}", f"job{number}", num_consumers=consumers, **KINDS[kind])
    for _ in range(40):
        if rng.random() < 0.4:
            disturb(service, rng, names)
        elif service.state.workers and rng.random() < 0.2:
            service.report(rng.choice(list(service.state.workers)), want=rng.randrange(1, 5))
        else:
            service.work(read=rng.random() < 0.7, room=room)
    return service


class ForgetfulIndex(StateIndex):
    """Remembers nothing that it could work out anew."""

    @property
    def serving(self):
        return ServingIndex(self._state.jobs, self._state.workers)

    def memoize(self, scope, question, answer):
        return answer()

    def until_changed(self, scope, what, act):
        act()

    def having(self, what, names, has):
        return {name for name in names if has(name)}


class ForgetfulState(State):
    """A state whose index remembers nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.index = ForgetfulIndex(self, checked=False)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    plan=st.sampled_from(PLANS),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    consumers=st.integers(1, 2),
    room=st.integers(1, 3),
)
@example(seed=8364, plan=(5, 0), kinds=["custom"] * 3, consumers=2, room=1)
def test_what_is_remembered_between_inputs_changes_no_decision(seed, plan, kinds, consumers, room):
    told = play(seed, plan, kinds, consumers, room).events
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(control_driver, "State", ForgetfulState)
        assert play(seed, plan, kinds, consumers, room).events == told


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    plan=st.sampled_from(PLANS),
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3),
    consumers=st.integers(1, 3),
    room=st.integers(1, 3),
)
@example(seed=207, plan=(13, 4), kinds=["static in order"], consumers=2, room=1)
@example(seed=1092, plan=(13, 4), kinds=["static in order", "off", "off"], consumers=1, room=1)
@example(seed=88576, plan=(13, 4), kinds=["dynamic", "custom", "off"], consumers=1, room=2)
def test_every_task_is_read_once_and_nobody_waits_for_ever(seed, plan, kinds, consumers, room):
    rng = random.Random(seed)
    service = Service(FakePlan(*plan))
    names = ["w0", "w1"]
    for name in names:
        service.add_worker(name)
    jobs = {
        f"job{number}": [
            service.join(f"c{number}.{i}", f"job{number}", num_consumers=consumers, **KINDS[kind])
            for i in range(consumers)
        ]
        for number, kind in enumerate(kinds)
    }
    everybody = [peer for peers in jobs.values() for peer in peers]
    for _ in range(2):
        for _ in range(rng.randrange(30)):
            if rng.random() < 0.4:
                disturb(service, rng, names)
            else:
                service.work(read=rng.random() < 0.7, room=room)
        calm(service, names)
        settle(service, everybody, room)
        for job, peers in jobs.items():
            check_epoch(service, job, peers)
        service.deaf = rng.random() < 0.3
        for peer in everybody:
            service.begin(peer)
        if service.deaf:
            service.restart()
            calm(service, names)
    assert plain(service.replayed()) == plain(service.state)
    for peer in everybody:
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    assert not service.state.jobs
    assert not service.state.clients
    assert all(not worker.open for worker in service.state.workers.values())
    assert all(not worker.unfinished and not worker.kept for worker in service.state.workers.values())
    assert not service.held


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_without_disturbance_every_kind_reads_all_in_three_epochs(kind):
    for plan in PLANS:
        for workers in (1, 2, 5):
            for consumers in (1, 3):
                service = Service(FakePlan(*plan))
                for i in range(workers):
                    service.add_worker(f"w{i}")
                peers = [service.join(f"c{i}", num_consumers=consumers, **KINDS[kind]) for i in range(consumers)]
                for epoch in range(3):
                    service.run(room=2)
                    assert all(peer.done and peer.epoch.epoch == epoch for peer in peers)
                    check_epoch(service, "a", peers)
                    for peer in peers:
                        service.begin(peer)
                if "order" not in kind and kind != "deterministic":  # there a tail may push out what is read after it
                    assert service.lost_leftovers == 0


# -- data that are read in chunks --------------------------------------------------------------------------------------


class InChunks(FakePlan):
    """The same tasks, in ten chunks of as many mains each."""

    def __init__(self, mains: int, fan_in: int) -> None:
        super().__init__(mains, fan_in)
        self.chunks = 10
        assert not mains % self.chunks

    def chunk(self, number: int) -> tuple[int, int]:
        each = (self.mains or 0) // self.chunks
        last = number + 1 == self.chunks
        return self.main(number * each), (self.length or 0) if last else self.main((number + 1) * each)


class SmallCache(Service):
    """Jobs read files that are larger than the source cache."""

    def __init__(self, mains: int, fan_in: int) -> None:
        self.in_chunks = InChunks(mains, fan_in)
        super().__init__(FakePlan(mains, fan_in))
        self.cache_comes()

    def cache_comes(self) -> None:
        self.say(inp.CacheServerSaid("cache", CacheServerHello("cache", "cache:1", most_bytes=250)))

    def fresh_state(self) -> State:
        def planner(graph: Any, tables: Any, *, tasks: Any, seed: Any, ranks: Any, pieces: Any, chunks: int) -> Any:
            return self.in_chunks if chunks else self.plan

        return State(self.settings, planner=planner, checked=self.checked)

    def plan_tasks(self, worker: Any) -> None:
        while worker.planning:
            asked = worker.planning.popleft()
            tables = {0: TableSummary(cheap=True, count=100, bytes=1000)}
            listed = msg.SourcesListed(asked.job, tables, self.prints, [], "tables")
            self.say(inp.WorkerSaid(worker.name, listed))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**9),
    plan=st.sampled_from([(10, 0), (30, 0), (20, 4), (40, 16)]),
    jobs=st.integers(1, 3),
    consumers=st.integers(1, 2),
    room=st.integers(1, 3),
)
def test_in_chunks_every_task_is_read_once_and_nobody_waits_for_ever(seed, plan, jobs, consumers, room):
    rng = random.Random(seed)
    service = SmallCache(*plan)
    names = ["w0", "w1"]
    for name in names:
        service.add_worker(name)
    files = graph_of(mr.Dataset.from_files("s3://bucket/*.jpg").shuffle(10))
    assert files is not None
    read = {
        f"job{number}": [
            service.join(f"c{number}.{i}", f"job{number}", num_consumers=consumers, structure=pack(files)[0])
            for i in range(consumers)
        ]
        for number in range(jobs)
    }
    everybody = [peer for peers in read.values() for peer in peers]
    for _ in range(2):
        for _ in range(rng.randrange(40)):
            what = rng.random()
            if what < 0.3:
                disturb(service, rng, names)
            elif what < 0.35:
                service.say(inp.CacheServerSessionLost("cache"))
            elif what < 0.45:
                service.cache_comes()
            else:
                service.work(read=rng.random() < 0.7, room=room)
            kept = service.state.caches.source_chunks.values()
            assert all(len(known.kept) == len({*known.kept}) <= 2 for known in kept)
        calm(service, names)
        settle(service, everybody, room)
        for job, peers in read.items():
            check_epoch(service, job, peers)
        service.cache_comes()
        for peer in everybody:
            service.begin(peer)
    opened = [event.chunks for event in service.events if isinstance(event, EpochOpened)]
    assert set(opened) <= {0, 10}, "without a cache server, or before it is back, an epoch is read as a whole"
    assert plain(service.replayed()) == plain(service.state)
