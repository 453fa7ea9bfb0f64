"""Files on another machine: read ahead over the ends of tasks, each once, and what comes out is what it ever was."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pairwise import pairwise
from tests.unit.sources.conftest import tfrecords

import millrace as mr
from millrace.blocks.block_index import PointIndex
from millrace.blocks.stores.memory_store import MemoryStore
from millrace.engine.cache.cached_items import ActivePoint
from millrace.engine.run import local_epoch, outlook, program, reading
from millrace.engine.run.outlook import ComingTask
from millrace.errors import ElementTooLargeError, PipelineError, SourceError
from millrace.graph import nodes
from millrace.planning import byte_ranges
from millrace.policies import read_hedging
from millrace.sources import read_scheduler, reads, storage, store_requests
from millrace.sources.store_requests import Entry

COUNT = 90
VERSIONS = itertools.count()


@pytest.fixture(scope="module")
def place() -> str:
    for number in range(COUNT):
        storage.write(f"memory://far/{number:03d}", b"%d" % number)
    return "memory://far/*"


@pytest.fixture(autouse=True)
def _several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*arguments: Any, **options: Any) -> program.Program:
        return program.Program(*arguments, **{**options, "tasks": 6})

    monkeypatch.setattr(local_epoch, "Program", made)


@pytest.fixture(autouse=True)
def _no_second_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine any read may take long, and then would be counted twice."""
    monkeypatch.setattr(read_hedging, "hedge_after_s", lambda durations, requests, hedged: None)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Has ``memory://`` read as if it were far away."""
    return lambda: monkeypatch.setattr(storage, "is_far", lambda location: "://" in location)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the files that are read, near and far."""
    counted: Counter[str] = Counter()
    near, away, counting_one = reads._at_hand, store_requests._once, threading.Lock()

    def count(entry: Entry) -> None:
        with counting_one:
            counted[entry.location] += 1

    def counting(entry: Entry) -> bytes:
        count(entry)
        return near(entry)

    def counting_far(entry: Entry, abandoned: Callable[[], bool]) -> bytes:
        count(entry)
        return away(entry, abandoned)

    monkeypatch.setattr(reads, "_at_hand", counting)
    monkeypatch.setattr(store_requests, "_once", counting_far)
    return counted


def number(element: dict[str, Any]) -> int:
    return int(element["bytes"])


PIPELINES: dict[str, Callable[[mr.Dataset], mr.Dataset]] = {
    "alone": lambda ds: ds.map(number),
    "shuffled": lambda ds: ds.shuffle(COUNT, seed=3).map(number),
    "batches": lambda ds: ds.shuffle(COUNT, seed=3).map(number).batch(7),
    "taken": lambda ds: ds.skip(5).take(40).map(number).shard(2, 1),
    "repeated": lambda ds: ds.map(number).repeat(3),
    "filtered": lambda ds: ds.map(number).filter(lambda n: n % 3 == 0).batch(4),
    "zipped": lambda ds: mr.Dataset.zip(ds.map(number), ds.shuffle(COUNT, seed=1).map(number)),
    "joined": lambda ds: ds.map(number).concatenate(ds.shuffle(COUNT, seed=2).map(number)),
    "kept": lambda ds: ds.map(number, key=str(next(VERSIONS))).cache().repeat(2),
    "in sequence": lambda ds: ds.filter(lambda e: True).map(number).enumerate(),
}


def values(dataset: mr.Dataset) -> list[Any]:
    return [element.tolist() if hasattr(element, "tolist") else element for element in dataset]


@pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("chosen", [None, 3])
def test_what_comes_out_and_what_is_read_are_as_without_reading_ahead(
    place: str,
    read: Counter[str],
    far: Callable[[], None],
    pipeline: Callable[[mr.Dataset], mr.Dataset],
    chosen: int | None,
) -> None:
    def made() -> mr.Dataset:
        return pipeline(mr.Dataset.from_files(place)).with_options(reads_in_flight=chosen, seed=5)

    expected = values(made())
    before = Counter(read)
    read.clear()
    far()
    assert values(made()) == expected
    assert read == before, "each file as often as before"


def odd(number: int) -> bool:
    return number % 2 > 0


def twice(number: int) -> list[int]:
    return [number, -number]


# -- sequential formats ------------------------------------------------------------------------------------------------


def tar(members: list[bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for number, data in enumerate(members):
            info = tarfile.TarInfo(f"{number:04d}.txt")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


@pytest.fixture(scope="module")
def folders() -> dict[str, mr.Dataset]:
    """Shards of each format, of different sizes, with numbers of which none comes twice."""
    numbers = iter(range(10**6))
    for shard in range(9):
        records = [
            b"%d" % next(numbers) + bytes(random.Random(shard).choices(b" ", k=60)) for _ in range(20 + 5 * shard)
        ]
        data = tfrecords(records)
        storage.write(f"memory://records/{shard}.tfrecord", data)
        storage.write(f"memory://indexed/{shard}.tfrecord", data)
        ends = itertools.accumulate(len(record) + 16 for record in records)
        lines = [f"{end - len(record) - 16} {len(record) + 16}" for end, record in zip(ends, records, strict=True)]
        storage.write(f"memory://indexed/{shard}.tfrecord.idx", "\n".join(lines).encode())
        storage.write(f"memory://tar/{shard}.tar", tar(records))
        table, file = (
            pa.table({"n": [int(record) for record in records], "x": [b"x" * 30] * len(records)}),
            io.BytesIO(),
        )
        pq.write_table(table, file, row_group_size=16)
        storage.write(f"memory://parquet/{shard}.parquet", file.getvalue())
    return {
        "whole records": mr.Dataset.from_tfrecords("memory://records/*.tfrecord").map(int),
        "indexed records": mr.Dataset.from_tfrecords("memory://indexed/*.tfrecord").map(int),
        "tar": mr.Dataset.from_webdataset("memory://tar/*.tar").map(lambda sample: int(sample["txt"])),
        "parquet": mr.Dataset.from_parquet("memory://parquet/*").map(lambda row: row["n"]),
        "a column": mr.Dataset.from_parquet("memory://parquet/*", columns=["n"]).map(lambda row: row["n"]),
    }


IN_SEQUENCE: dict[str, Callable[[mr.Dataset], mr.Dataset]] = {
    "alone": lambda ds: ds,
    "shuffled": lambda ds: ds.shuffle(30, seed=3),
    "some": lambda ds: ds.skip(45).take(200).shard(2, 1).batch(7),
    "repeated": lambda ds: ds.shuffle(10, seed=1).repeat(2),
    "zipped": lambda ds: mr.Dataset.zip(ds, ds.shuffle(20, seed=1)),
    "kept": lambda ds: ds.map(lambda n: -n, key=str(next(VERSIONS))).cache().repeat(2),
    "in sequence": lambda ds: ds.filter(lambda n: n % 3 > 0).enumerate(),
}

_foretold = reading.foretold


def nothing(*_: Any) -> Iterator[Entry | None]:
    return iter(())


def mangled(*arguments: Any) -> Iterator[Entry | None]:
    """Some entries left out, some twice, some of another range, some of a file that isn't there, some much later."""
    draw = random.Random(7)
    late: list[Entry] = []
    for entry in _foretold(*arguments):
        kind = draw.randrange(6) if entry is not None else 0
        if entry is None or kind == 1:
            yield entry
            continue
        if kind == 2:
            yield entry.part(entry.start + 3, entry.stop + 5)
        elif kind == 3:
            yield entry._replace(location=entry.location + "-gone")
        elif kind == 4:
            late.append(entry)
        if kind < 4:
            yield entry
    yield from late


@pytest.mark.parametrize(
    ("shards", "pipeline", "foretold"),
    pairwise(
        ["whole records", "indexed records", "tar", "parquet", "a column"],
        list(IN_SEQUENCE),
        [_foretold, nothing, mangled],
    ),
)
def test_reading_ahead_changes_nothing_that_comes_out(
    folders: dict[str, mr.Dataset],
    monkeypatch: pytest.MonkeyPatch,
    far: Callable[[], None],
    shards: str,
    pipeline: str,
    foretold: Any,
) -> None:
    monkeypatch.setattr(byte_ranges, "FIRST_BLOCK_BYTES", 300)
    made = IN_SEQUENCE[pipeline]
    expected = values(made(folders[shards]).with_options(seed=5))
    far()
    monkeypatch.setattr(outlook, "foretold", foretold)
    monkeypatch.setattr(reading, "foretold", foretold)
    assert values(made(folders[shards]).with_options(seed=5)) == expected


@pytest.mark.parametrize("pipeline", ["shuffled", "zipped"])
@pytest.mark.parametrize("shards", ["whole records", "indexed records", "tar", "parquet", "a column"])
def test_shards_are_read_ahead_over_the_ends_of_tasks_and_none_more_often_than_without(
    folders: dict[str, mr.Dataset], monkeypatch: pytest.MonkeyPatch, far: Callable[[], None], shards: str, pipeline: str
) -> None:
    monkeypatch.setattr(byte_ranges, "FIRST_BLOCK_BYTES", 300)
    far()
    asked: Counter[Entry] = Counter()
    away = store_requests._once

    def counting(entry: Entry, abandoned: Callable[[], bool]) -> bytes:
        asked[entry] += 1
        return away(entry, abandoned)

    dataset = IN_SEQUENCE[pipeline](folders[shards])
    dataset.__pipeline__().tables()
    monkeypatch.setattr(store_requests, "_once", counting)
    with iter(dataset) as elements:
        next(elements)
        assert elements.measures()[0].reads_in_flight > 0
        assert list(elements)
    ahead = Counter(asked)
    asked.clear()
    monkeypatch.setattr(outlook, "foretold", nothing)
    monkeypatch.setattr(reading, "foretold", nothing)
    values(dataset)
    assert ahead.keys() <= asked.keys()
    assert ahead.total() <= asked.total()


POINTS: dict[str, tuple[int, Callable[[mr.Dataset], mr.Dataset]]] = {
    "each one": (150, lambda ds: ds.map(abs, key=str(next(VERSIONS))).cache().shuffle(30)),
    "some": (100, lambda ds: ds.filter(odd, key=str(next(VERSIONS))).cache().shuffle(30)),
    "many of each": (
        300,
        lambda ds: ds.flat_map(twice, key=str(next(VERSIONS))).cache().shuffle(30, reshuffle_each_iteration=False),
    ),
    "an order": (150, lambda ds: ds.shuffle(30).map(abs, key=str(next(VERSIONS))).cache()),
    "whole tasks": (20, lambda ds: ds.filter(odd, key=str(next(VERSIONS))).batch(4).cache()),
}
"""Outputs that are several tasks', of a pipeline with a cache."""


@pytest.mark.filterwarnings("ignore:below the cache")
@pytest.mark.parametrize(("some", "point"), POINTS.values(), ids=POINTS)
@pytest.mark.parametrize("shards", ["whole records", "indexed records"])
def test_of_what_is_below_a_cache_that_is_foretold_which_it_lacks(
    folders: dict[str, mr.Dataset],
    monkeypatch: pytest.MonkeyPatch,
    far: Callable[[], None],
    shards: str,
    some: int,
    point: Callable[[mr.Dataset], mr.Dataset],
) -> None:
    monkeypatch.setattr(byte_ranges, "FIRST_BLOCK_BYTES", 300)
    asked, told = set[Entry](), set[Entry]()
    claim, expect = read_scheduler.ReadScheduler.claim, reads.Reads.expect

    def claiming(self: Any, account: Any, entry: Entry, queue: Any) -> Any:
        asked.add(entry)
        return claim(self, account, entry, queue)

    def expecting(self: reads.Reads, owner: object, tasks: Any) -> None:
        listed = [(key, list(entries)) for key, entries in tasks]
        told.update(entry for _, entries in listed for entry in entries if entry is not None)
        expect(self, owner, [(key, iter(entries)) for key, entries in listed])

    def seen() -> tuple[set[Entry], set[Entry]]:
        assert list(dataset)
        both = set(asked), set(told)
        asked.clear()
        told.clear()
        return both

    dataset = folders[shards].shuffle(30, seed=1)
    dataset.__pipeline__().tables()
    far()
    monkeypatch.setattr(read_scheduler.ReadScheduler, "claim", claiming)
    monkeypatch.setattr(reads.Reads, "expect", expecting)
    every, _ = seen()
    dataset = point(folders[shards]).with_options(seed=1)
    dataset.__pipeline__().tables()
    asked.clear()
    with iter(dataset) as first:
        for _ in range(some):
            next(first)
    assert asked < told == every, "what is to come is known before it is asked for"
    asked.clear()
    told.clear()
    lacked, foretold = seen()
    assert lacked == foretold < every
    assert seen() == (set(), set()), "by now all is kept"


def test_of_an_epoch_that_has_not_begun_nothing_below_a_cache_in_use_is_foretold(
    folders: dict[str, mr.Dataset], monkeypatch: pytest.MonkeyPatch, far: Callable[[], None]
) -> None:
    far()
    dataset = folders["tar"].map(abs).cache().batch(4)
    graph = dataset.__pipeline__().graph
    number = next(number for number, node in enumerate(graph.nodes) if isinstance(node, nodes.Cache))
    point = ActivePoint(number, b"x" * 16, False, PointIndex(MemoryStore(1 << 20), "x"))
    told: list[object] = []
    monkeypatch.setattr(
        reads.Reads,
        "expect",
        lambda _self, _owner, tasks: told.append([key for key, entries in tasks if list(entries)]),
    )
    made = program.Program(graph, dataset.__pipeline__().tables(), seed=1, tasks=4)
    task = made.plan.task(0)
    with contextlib.closing(made):
        made.expect(None, [ComingTask(task, 0, point=point), ComingTask(task, 1, point=point)])
        made.expect(None, [ComingTask(task, 1, point=point)])
        made.expect(None, [ComingTask(task, 0), ComingTask(task, 1)])
    assert told == [[(0, 0)], [(1, 0)], [(0, 0), (1, 0)]]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_what_comes_before_a_file_that_cannot_be_read_is_read_once(
    place: str, far: Callable[[], None], monkeypatch: pytest.MonkeyPatch, read: Counter[str]
) -> None:
    counting = store_requests._once

    def failing(entry: Entry, abandoned: Callable[[], bool]) -> bytes:
        found = counting(entry, abandoned)
        if "033" in entry.location:
            raise SourceError("nobody answers")
        return found

    monkeypatch.setattr(store_requests, "_once", failing)
    far()
    found: list[int] = []
    with pytest.raises(SourceError, match="nobody answers"):
        found.extend(mr.Dataset.from_files(place).map(number))
    assert found == list(range(33))
    assert {place for place, count in read.items() if count > 1} == set()


def test_reads_go_on_over_the_ends_of_tasks(
    place: str, far: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    far()
    dataset = mr.Dataset.from_files(place).map(number)
    announced: list[list[int]] = []
    real = program.Program.expect

    def expect(self: program.Program, owner: object, tasks: Any) -> None:
        tasks = list(tasks)
        announced.append([each.task.index for each in tasks])
        real(self, owner, tasks)

    monkeypatch.setattr(program.Program, "expect", expect)
    assert values(dataset) == list(range(COUNT))
    assert announced == [list(range(index, 6)) for index in range(6)]


def test_the_measures_say_how_many_are_under_way(place: str, far: Callable[[], None]) -> None:
    dataset = mr.Dataset.from_files(place).map(number).with_options(reads_in_flight=7)
    with iter(dataset) as near:
        next(near)
        assert near.measures()[0].reads_in_flight == 0
    far()
    with iter(dataset) as away:
        next(away)
        source, mapped, *_ = away.measures()
        assert (source.threads, source.reads_in_flight) == (7, 7)
        assert source.requests >= 1
        assert source.stored_bytes >= 1
        assert mapped.reads_in_flight == 0


def test_a_file_larger_than_all_buffers_is_refused_before_it_is_read(
    place: str, read: Counter[str], far: Callable[[], None]
) -> None:
    far()
    storage.write("memory://large/a", b"x" * 1000)
    with pytest.raises(ElementTooLargeError, match="memory://large/a has 1000 bytes"):
        values(mr.Dataset.from_files("memory://large/a").with_options(buffer_bytes=100))
    assert not read


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", True, 1025, 10**9])
def test_how_many_may_be_chosen_within_reason(wrong: Any) -> None:
    with pytest.raises(PipelineError, match=r"with_options: reads_in_flight must be"):
        mr.Dataset.range(3).with_options(reads_in_flight=wrong)
