"""Data larger than the source cache: jobs read them in chunks, and cache servers are told which to keep."""

import msgspec
import pytest
from tests.unit.control.caching.service_of_plans import ServiceOfPlans

import millrace as mr
from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.caching import source_chunks
from millrace.control.journal.epoch_events import EpochOpened
from millrace.control.journal.snapshot import plain
from millrace.dispatcher.status_report import status
from millrace.graph.notation import graph_of
from millrace.graph.serialize import pack
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.progress import TaskSet
from millrace.planning.split_table import SplitTable
from millrace.protocol import messages as msg
from millrace.protocol.cache_server_messages import CacheServerHello, CacheServerWelcome, KeepChunks
from millrace.protocol.source_cache_messages import chunk_label, name_of_data

COUNT = 2000
SIZE = 1000
DATA = ["from_files()|2000|2000000|ab"]


def structure(dataset=None):
    found = mr.Dataset.from_files("s3://bucket/*.jpg").shuffle(100) if dataset is None else dataset
    graph = graph_of(found)
    assert graph is not None
    return pack(graph)[0]


class Bucket(ServiceOfPlans):
    """A service whose jobs read 2,000 files, with real plans; ``room``: bytes of its cache server."""

    def __init__(self, room=COUNT * SIZE // 4, workers=4, **settings):
        super().__init__(**settings)
        self.room, self.kept, self.most_kept = room, [], 0
        self.prints = DATA
        self.say(inp.Started("here:1", "service"))
        if room:
            self.hello_of_server("cache")
        for number in range(workers):
            self.add_worker(f"w{number}")

    def hello_of_server(self, name):
        self.say(inp.CacheServerSaid(name, CacheServerHello(name, f"{name}:1", most_bytes=self.room)))

    def plan_tasks(self, worker):
        while worker.planning:
            asked = worker.planning.popleft()
            tables = {0: SplitTable(cheap=True, count=COUNT).summary()}
            tables = {number: msgspec.structs.replace(each, bytes=COUNT * SIZE) for number, each in tables.items()}
            self.say(inp.WorkerSaid(worker.name, msg.SourcesListed(asked.job, tables, self.prints, [], "tables")))

    def carry_out(self, events, actions):
        super().carry_out(events, actions)
        for action in actions:
            if isinstance(action, act.SendToCacheServer) and isinstance(action.message, KeepChunks):
                data = name_of_data(DATA[0])
                labels = dict(action.message.sets).pop(data, [data])
                if labels == [data]:
                    continue  # it isn't read in chunks
                self.kept = [int.from_bytes(label[-4:], "big") for label in labels]
                assert labels == [chunk_label(data, 10, chunk) for chunk in self.kept]
                self.most_kept = max(self.most_kept, len(self.kept))


def join(service, name, **fields):
    return service.join(f"client-{name}", name, **{"structure": structure(), "seed": 1, "tasks": 160, **fields})


def list_sources(service):
    for worker in list(service.workers.values()):
        service.plan_tasks(worker)


def chunks_leased(service, job):
    """Chunk of each lease that workers have or had of a job, in that order."""
    plan = service.state.plan(service.state.jobs[job], 0)
    bounds = [plan.chunk(number)[0] for number in range(plan.chunks)]
    seen = {}
    for worker in service.workers.values():
        for lease, task in worker.leases.items():
            if task.ref.job == job:
                seen[lease] = sum(first <= task.ref.task for first in bounds) - 1
    return [seen[lease] for lease in sorted(seen)]


def read_all(service, *peers):
    orders: dict[str, list[int]] = {}
    for _ in range(5000):
        moved = service.work()
        for name, job in service.state.jobs.items():
            if 0 in job.epochs and source_chunks.begun(job.epochs[0]):
                orders[name] = source_chunks.begun(job.epochs[0])
        service.tick(1.0)
        if not moved and all(peer.done for peer in peers):
            break
    for peer in peers:
        assert peer.done
        assert sorted(peer.complete) == list(range(peer.epoch.tasks))
    return orders


def test_one_epoch_is_read_chunk_by_chunk_each_task_once():
    service = Bucket()
    peer = join(service, "a")
    list_sources(service)
    opened = [event for event in service.events if isinstance(event, EpochOpened)]
    assert [(event.chunks, event.tasks) for event in opened] == [(10, peer.epoch.tasks)]
    assert peer.epoch.chunks == 10
    leased = chunks_leased(service, "a")
    assert set(leased) == {0}
    orders = read_all(service, peer)
    assert orders["a"] == list(range(10))
    assert service.most_kept == 2
    assert service.kept == [0, 1], "a job alone has nothing saved by other chunks, and finds these again"
    assert plain(service.replayed()) == plain(service.state)
    service.save()
    assert plain(service.restored()) == plain(service.state)


def test_jobs_go_through_the_chunks_together_and_two_are_kept():
    service = Bucket(workers=8)
    peers = [join(service, name) for name in "abcd"]
    list_sources(service)
    orders = read_all(service, *peers)
    assert all(sorted(order) == list(range(10)) for order in orders.values())
    assert service.most_kept == 2
    assert len({tuple(order) for order in orders.values()}) == 1
    changes = [event for event in service.events if type(event).__name__ == "ChunksKept"]
    assert len(changes) >= 9
    assert all(event.reason for event in changes)
    assert plain(service.replayed()) == plain(service.state)


def test_who_comes_late_begins_where_the_others_are():
    service = Bucket(workers=8)
    first = [join(service, name) for name in "ab"]
    list_sources(service)
    for _ in range(500):
        if service.kept and min(service.kept) >= 3:
            break
        service.work()
        service.tick(1.0)
    late, kept = join(service, "late"), list[int]()
    list_sources(service)
    while not any(map(source_chunks.begun, service.state.jobs["late"].epochs.values())):
        kept = list(service.kept)
        assert service.work()
    orders = read_all(service, *first, late)
    assert orders["late"][0] in kept
    assert min(kept) >= 3
    assert sorted(orders["late"]) == list(range(10))


@pytest.mark.parametrize(
    "fields",
    [
        {"deterministic": True},
        {"num_consumers": 1, "equal_steps": True},
        {"sharding": "static"},
        {"sharding": "off", "visitation": "zero_once_or_more"},
        {"sharing": "lockstep"},
        {"structure": structure(mr.Dataset.from_files("s3://bucket/*.jpg"))},
        {"structure": structure(mr.Dataset.from_files("s3://bucket/*.jpg").shuffle(10).take(5))},
        {"structure": structure(mr.Dataset.range(COUNT).shuffle(10))},
        {"structure": structure(mr.Dataset.from_files("/data/*.jpg").shuffle(10))},
        {"structure": structure(mr.Dataset.from_files(["s3://bucket/a", "file:///b"]).shuffle(10))},
    ],
)
def test_where_the_order_is_fixed_or_others_rely_on_it_there_are_no_chunks(fields):
    service = Bucket()
    join(service, "a", **fields)
    list_sources(service)
    assert {event.chunks for event in service.events if isinstance(event, EpochOpened)} == {0}


@pytest.mark.parametrize("room", [0, 2 * COUNT * SIZE])
def test_nor_are_there_any_without_a_cache_or_where_it_holds_all(room):
    service = Bucket(room)
    peer = join(service, "a")
    list_sources(service)
    assert peer.epoch.chunks == 0


def test_a_cache_server_that_comes_is_told():
    service = Bucket(workers=8)
    join(service, "a")
    list_sources(service)
    service.hello_of_server("another")
    told = [action.message for action in service.last if isinstance(action, act.SendToCacheServer)]
    assert isinstance(told[0], CacheServerWelcome)
    assert isinstance(told[1], KeepChunks)


def test_a_dispatcher_that_comes_back_goes_on_with_them():
    service = Bucket(workers=4)
    peer = join(service, "a")
    list_sources(service)
    for _ in range(6):
        service.work()
    begun = source_chunks.begun(service.state.jobs["a"].epochs[0])
    kept = list(service.kept)
    service.restart()
    for name in list(service.workers):
        service.hello(name)
    service.rejoin(peer)
    assert source_chunks.begun(service.state.jobs["a"].epochs[0]) == begun
    service.hello_of_server("cache")
    assert service.kept == kept
    read_all(service, peer)


def saved(service, done, **fields):
    job = service.state.jobs["a"]
    tasks = service.state.plan(job, 0).length
    there = TaskSet.of(done)
    shape = {"chunks": 10, **fields}
    return Checkpoint(seed=1, sources=DATA, tasks=tasks, done=there.low, later=there.text(), **shape)


def test_a_state_is_gone_on_with_in_the_same_chunks_whatever_cache_there_is():
    before = Bucket()
    join(before, "a")
    list_sources(before)
    plan = before.state.plan(before.state.jobs["a"], 0)
    done = [*range(*plan.chunk(3)), *range(*plan.chunk(7))[:5]]
    state = saved(before, done)
    for room in (0, COUNT * SIZE // 4, 2 * COUNT * SIZE):
        service = Bucket(room)
        peer = join(service, "a", states=[state])
        list_sources(service)
        assert peer.epoch.chunks == 10
        assert peer.epoch.tasks == plan.length
        for _ in range(3000):
            if not service.work():
                break
        assert peer.done
        assert sorted([*peer.complete, *done]) == list(range(peer.epoch.tasks))
        assert plain(service.replayed()) == plain(service.state)


def test_the_status_tells_what_is_kept_and_who_reads_which_chunk():
    service = Bucket(workers=8)
    for name in "ab":
        join(service, name)
    list_sources(service)
    (told,) = status(service.state, service.observed, service.now)["source_cache"]["data"]
    assert told["chunks"] == 10
    assert told["kept"] == service.kept
    assert told["jobs"] == {"a": 0, "b": 0}
    assert told["why"]
    assert "two of 10 chunks at a time are kept" in told["why_chunks"]


def filtered():
    """A pipeline whose tasks leave elements over to tails, also across chunks."""
    dataset = mr.Dataset.from_files("s3://bucket/*.jpg").shuffle(100)
    return structure(dataset.filter(len).batch(8))


@pytest.mark.parametrize("chunk", [3, 5])
def test_tails_are_those_of_the_epochs_own_plan(chunk):
    """Where a state is loaded, and where a worker dies that kept leftovers."""
    before = Bucket()
    join(before, "a", structure=filtered())
    list_sources(before)
    job = before.state.jobs["a"]
    plan = before.state.plan(job, 0)
    assert plan.length != before.state.plan(job).length
    done = [task for task in range(*plan.chunk(chunk)) if not plan.task(task).inputs]
    service = Bucket()
    peer = join(service, "a", structure=filtered(), states=[saved(before, done)])
    list_sources(service)
    for turn in range(3000):
        moved = service.work()
        service.tick(1.0)
        if turn in {3, 6, 9}:
            service.kill(next(iter(service.workers)))
            service.add_worker(f"new{turn}")
        if not moved and peer.done:
            break
    assert peer.done
    assert {*peer.complete, *done} == {*range(peer.epoch.tasks)}


def test_ranks_that_get_equally_many_are_dealt_their_tasks_in_turn_whatever_was_read_before():
    before = Bucket()
    join(before, "a", structure=filtered())
    list_sources(before)
    service = Bucket()
    fields = {"structure": filtered(), "num_consumers": 2, "equal_steps": True}
    state = saved(before, [])
    ranks = [
        service.join(f"c{rank}", "a", consumer=rank, states=[state], seed=1, tasks=160, **fields) for rank in range(2)
    ]
    list_sources(service)
    job = service.state.jobs["a"]
    assert job.epochs[0].chunks == 10
    assert not source_chunks.in_chunks(job, service.state.plan(job, 0))
    for _ in range(3000):
        if not service.work():
            break
    assert all(peer.done for peer in ranks)
    assert all(task % 2 == rank for rank, peer in enumerate(ranks) for task in peer.complete)


def test_who_comes_after_a_cache_server_reads_in_the_chunks_that_others_read_in():
    service = Bucket(workers=8)
    join(service, "a")
    list_sources(service)
    service.room = COUNT * SIZE // 12
    service.hello_of_server("another")
    join(service, "b")
    while not service.state.jobs["b"].epochs:
        list_sources(service)
        assert service.work(read=False)
    opened = {event.job: event.chunks for event in service.events if isinstance(event, EpochOpened)}
    assert opened == {"a": 10, "b": 14}, "two of ten do not fit any more, as servers own equally many keys"
    before = len(service.events)
    for _ in range(5):
        service.tick(1.0)
    changes = [event for event in service.events[before:] if type(event).__name__ == "ChunksKept"]
    assert {event.chunks for event in changes} <= {10}, "what others read in other chunks stays"
    assert len(changes) <= 1


def test_nothing_is_said_of_what_nobody_reads():
    service = Bucket()
    peer = join(service, "a")
    list_sources(service)
    read_all(service, peer)
    before = len(service.events)
    for _ in range(5):
        service.tick(1.0)
    assert not [event for event in service.events[before:] if type(event).__name__ == "ChunksKept"]
