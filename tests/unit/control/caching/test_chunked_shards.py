"""Shards larger than the source cache: jobs read them in chunks of whole splits, as they do files."""

import pytest
from tests.unit.control.caching.test_chunked_epochs import (
    DATA,
    Bucket,
    chunks_leased,
    join,
    list_sources,
    read_all,
    structure,
)

import millrace as mr
from millrace.control import inputs as inp
from millrace.control.journal.epoch_events import EpochOpened
from millrace.control.journal.snapshot import plain
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.chunks import chunk_bounds
from millrace.planning.progress import TaskSet
from millrace.planning.split_table import Split, splits_table
from millrace.planning.units import UnitMap
from millrace.protocol import messages as msg

SPLITS, SIZE = 320, 1000
PIECES = splits_table(
    Split(f"s3://bucket/{shard}.tar", piece * SIZE, piece * SIZE + SIZE, 0, 3 + piece % 4, SIZE, "v")
    for shard in range(SPLITS // 8)
    for piece in range(8)
)
WHOLE = splits_table([Split(f"s3://bucket/{n}.tar", first_record=0, bytes=SIZE, version="v") for n in range(SPLITS)])
TABLES = {"pieces": PIECES, "whole": WHOLE}
RECORDS = mr.Dataset.from_tfrecords("s3://bucket/*.tfrecord")
SAMPLES = mr.Dataset.from_webdataset("s3://bucket/*.tar")


class Shards(Bucket):
    """A service whose jobs read 320 splits of shards; ``room``: bytes of its cache server."""

    def __init__(self, table, room=SPLITS * SIZE // 4, workers=4, **settings):
        self.table = table
        super().__init__(room, workers, **settings)

    def plan_tasks(self, worker):
        while worker.planning:
            asked = worker.planning.popleft()
            tables = {0: self.table.summary()}
            self.say(inp.WorkerSaid(worker.name, msg.SourcesListed(asked.job, tables, self.prints, [], "tables")))


def opened(service):
    return [event for event in service.events if isinstance(event, EpochOpened)]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("dataset", [RECORDS.shuffle(9), SAMPLES.shuffle(9), SAMPLES.shuffle(9).filter(len).batch(4)])
def test_jobs_go_through_the_chunks_together_each_task_once_and_two_are_kept(table, dataset):
    service = Shards(table, workers=8)
    peers = [join(service, name, structure=structure(dataset)) for name in "ab"]
    list_sources(service)
    assert {event.chunks for event in opened(service)} == {10}
    assert set(chunks_leased(service, "a")) == {0}
    orders = read_all(service, *peers)
    assert all(sorted(order) == list(range(10)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 1
    assert service.most_kept == 2
    assert plain(service.replayed()) == plain(service.state)
    service.save()
    assert plain(service.restored()) == plain(service.state)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tasks_lie_within_the_chunks_that_workers_find(table):
    service = Shards(table)
    join(service, "a", structure=structure(SAMPLES.shuffle(9)))
    list_sources(service)
    plan = service.state.plan(service.state.jobs["a"], 0)
    bounds = chunk_bounds(UnitMap(unpack(structure(SAMPLES.shuffle(9))), {0: table}), 10).tolist()
    for chunk in range(10):
        first, last = plan.chunk(chunk)
        assert (plan.task(first).start, plan.task(last - 1).stop) == (bounds[chunk], bounds[chunk + 1])


@pytest.mark.parametrize(
    "fields",
    [
        {"deterministic": True},
        {"num_consumers": 1, "equal_steps": True},
        {"sharding": "static"},
        {"structure": structure(SAMPLES)},
        {"structure": structure(SAMPLES.shuffle(9).shuffle(9))},
        {"structure": structure(SAMPLES.batch(2).shuffle(9))},
        {"structure": structure(mr.Dataset.from_tfrecords("/data/*.tfrecord").shuffle(9))},
        {"structure": structure(mr.Dataset.from_parquet("s3://bucket/*.parquet").shuffle(9))},
    ],
)
def test_where_the_order_is_fixed_or_splits_are_no_ranges_of_bytes_there_are_no_chunks(fields):
    service = Shards(PIECES)
    join(service, "a", **{"structure": structure(SAMPLES.shuffle(9)), **fields})
    list_sources(service)
    assert {event.chunks for event in opened(service)} == {0}


def test_samples_that_are_read_each_for_itself_are_read_in_chunks_as_files_are():
    service = Bucket()
    packed = mr.Dataset.from_webdataset("s3://bucket/*.tar", random_access=True)
    join(service, "a", structure=structure(packed.shuffle(9)))
    list_sources(service)
    assert [event.chunks for event in opened(service)] == [10]


def test_nor_are_there_any_of_a_few_large_shards():
    service = Shards(splits_table([Split(f"s3://bucket/{n}.tar", first_record=0, bytes=20 * SIZE) for n in range(16)]))
    join(service, "a", structure=structure(SAMPLES.shuffle(9)))
    list_sources(service)
    assert [event.chunks for event in opened(service)] == [0]
    assert "more than the 8 that can be made" in opened(service)[0].why


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_state_is_gone_on_with_in_the_same_chunks_whatever_cache_there_is(table):
    dataset = structure(SAMPLES.shuffle(9))
    before = Shards(table)
    join(before, "a", structure=dataset)
    list_sources(before)
    plan = before.state.plan(before.state.jobs["a"], 0)
    done = [*range(*plan.chunk(3)), *range(*plan.chunk(7))[:2]]
    there = TaskSet.of(done)
    state = Checkpoint(seed=1, sources=DATA, tasks=plan.length, done=there.low, later=there.text(), chunks=10)
    for room in (0, SPLITS * SIZE // 4, 2 * SPLITS * SIZE):
        service = Shards(table, room)
        peer = join(service, "a", states=[state], structure=dataset)
        list_sources(service)
        assert (peer.epoch.chunks, peer.epoch.tasks) == (10, plan.length)
        for _ in range(3000):
            if not service.work():
                break
        assert sorted([*peer.complete, *done]) == list(range(peer.epoch.tasks))
