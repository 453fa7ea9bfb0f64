"""The same seed gives the same batches in process and on a service of any size; in the same order too if asked for."""

import numpy as np
import pytest
from tests.integration.service.service_data import COUNT, Numbers, number_of
from tests.integration.service.service_driving import as_set, consume, prints, together
from tests.pairwise import alternately, pairwise

import millrace as mr

EPOCHS = 2
WORKERS = [1, 2, 3]


def augment(element, rng):
    return {"number": element["number"], "noise": rng.integers(1 << 40), "angle": rng.normal(size=2)}


def keep(element):
    return element["number"] % 3 != 1


def numbered(raw):
    return {"number": number_of(raw)}


def ragged(element, rng):
    return {"number": np.arange(element["number"] % 13), "noise": rng.integers(1 << 40, size=element["number"] % 13)}


def sources(data):
    return {
        "files": mr.Dataset.from_files(data.files).map(lambda file: numbered(file["bytes"])),
        "tfrecords": mr.Dataset.from_tfrecords(data.paths("tfrecord")).map(numbered),
        "parquet": mr.Dataset.from_parquet(data.paths("parquet")).map(lambda row: {"number": row["number"]}),
        "webdataset": mr.Dataset.from_webdataset(data.paths("tar")).map(lambda sample: numbered(sample["txt"])),
        "map_style": mr.Dataset.from_map_style(Numbers()),
        "range": mr.Dataset.range(COUNT).map(lambda number: {"number": number}),
        "list": mr.Dataset.from_list([{"number": number} for number in range(COUNT)]),
    }


PIPELINES = {
    "shuffle, random map, filter, batch": lambda ds: ds.shuffle(100, seed=3).map(augment).filter(keep).batch(16),
    "filter, shuffle, random map, batch": lambda ds: ds.filter(keep).shuffle(50, seed=4).map(augment).batch(16),
    "random map, batch": lambda ds: ds.map(augment).batch(16).with_options(seed=5),
    "shuffle after batch": lambda ds: ds.map(augment).batch(4).shuffle(10, seed=6),
    "padded_batch": lambda ds: ds.shuffle(64, seed=7).map(ragged).padded_batch(9),
    "filter, padded_batch": lambda ds: ds.filter(keep).map(ragged).padded_batch(9).with_options(seed=8),
    "bucket": lambda ds: (
        ds.shuffle(64, seed=9)
        .map(ragged)
        .bucket_by_sequence_length(lambda element: len(element["number"]), [4, 8], [8, 8, 8])
    ),
    "drop_remainder": lambda ds: ds.shuffle(64, seed=10).filter(keep).batch(16, drop_remainder=True),
    "group_by_window": lambda ds: (
        ds.map(augment)
        .group_by_window(lambda element: element["number"] % 3, lambda key, window: window.batch(5), window_size=5)
        .with_options(seed=11)
    ),
    "pack": lambda ds: ds.shuffle(64, seed=15).map(ragged).pack(32, window=4),
    "rebatch": lambda ds: ds.map(augment).filter(keep).batch(7).rebatch(10).with_options(seed=12),
    "unbatch": lambda ds: ds.shuffle(64, seed=13).batch(7).unbatch().map(augment).batch(16),
}
SHORT = {"shuffle, random map, filter, batch": 16, "filter, padded_batch": 9, "rebatch": 10}


def check(dataset, service, *, consumers=1, epochs=EPOCHS, **options):
    """On the service as in process, over epochs; returns the batches of each."""
    here = [list(dataset.__pipeline__().read_epoch(number)) for number in range(epochs)]
    for deterministic in (False, True):
        job = {"num_consumers": consumers, "job_name": f"job {deterministic}"} if consumers > 1 else {}
        readers = [
            dataset.distribute(service.address, deterministic=deterministic, **job, **options) for _ in range(consumers)
        ]
        there = together(consume(readers, epochs))
        for mine, theirs in zip(here, there, strict=True):
            assert as_set(theirs) == as_set(mine)
            if deterministic and consumers == 1:
                assert prints(theirs) == prints(mine)
    return here


SOME = ["shuffle, random map, filter, batch", "padded_batch", "bucket"]
"""Pipelines that every source goes through; for the others two kinds of source will do."""


def check_pipeline(service, data, source, pipeline):
    dataset = PIPELINES[pipeline](sources(data)[source])
    batches = check(dataset, service)
    assert as_set(batches[0]) != as_set(batches[1])  # epochs differ, or nothing was compared
    if pipeline in SHORT:
        sizes = [len(batch["number"]) for batch in batches[0]]
        assert sum(size < SHORT[pipeline] for size in sizes) <= 1


@pytest.mark.parametrize(
    ("pipeline", "source", "service"),
    pairwise(SOME, ["files", "tfrecords", "parquet", "webdataset", "map_style", "range", "list"], [1, 3]),
    indirect=["service"],
)
def test_every_source_gives_the_batches_of_a_run_in_process(service, data, source, pipeline):
    check_pipeline(service, data, source, pipeline)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize(
    ("pipeline", "source"), alternately([name for name in PIPELINES if name not in SOME], ["files", "tfrecords"])
)
def test_every_pipeline_gives_the_batches_of_a_run_in_process(service, data, source, pipeline):
    check_pipeline(service, data, source, pipeline)


def pairs(data):
    return mr.Dataset.zip(mr.Dataset.range(300), mr.Dataset.from_files(data.files)).shuffle(50, seed=1)


def joined(data):
    numbers = mr.Dataset.range(100).map(lambda number: {"number": number})
    return numbers.concatenate(sources(data)["parquet"]).shuffle(80, seed=2).map(augment).filter(keep).batch(8)


def mixed(data):
    both = [mr.Dataset.range(0, 200).repeat(), mr.Dataset.range(1000, 1200).repeat()]
    return mr.Dataset.sample_from_datasets(both, weights=[0.7, 0.3], seed=3).take(250).batch(16)


COMBINED = {
    "zip": pairs,
    "concatenate": joined,
    "repeat": lambda data: sources(data)["tfrecords"].shuffle(40, seed=4).map(augment).repeat(3).batch(32),
    "repeat, filter, batch": lambda data: sources(data)["webdataset"].filter(keep).repeat(2).batch(32),
    "take": lambda data: sources(data)["files"].shuffle(1000, seed=5).map(augment).take(100).batch(8),
    "skip, shard": lambda data: sources(data)["map_style"].skip(7).shard(3, 1).map(lambda e: e["square"]).batch(8),
    "enumerate": lambda data: sources(data)["files"].shuffle(1000, seed=6).enumerate(5).batch(8),
    "mixture": mixed,
    "mixture that begins again": lambda data: mr.Dataset.sample_from_datasets(
        [sources(data)["files"].map(augment), sources(data)["parquet"].take(30).shuffle(30).map(augment)],
        cycle=True,
        seed=3,
    ).batch(16),
    "mixture with weights that change": lambda data: (
        mr.Dataset.sample_from_datasets(
            [mr.Dataset.range(100).map(lambda n: {"number": n}).repeat(), sources(data)["files"].repeat()],
            {0: [0.9, 0.1], 1: [0.1, 0.9]},
            seed=3,
        )
        .take(200)
        .batch(16)
    ),
    "resampled": lambda data: (
        sources(data)["files"]
        .rejection_resample(lambda element: int(keep(element)), [0.5, 0.5], [1 / 3, 2 / 3])
        .map(lambda pair, rng: augment(pair[1], rng))
        .shuffle(20)
    ),
    "reservoir": lambda data: sources(data)["parquet"].reservoir(70, seed=3).map(augment).batch(16),
    "choices": lambda data: mr.Dataset.choose_from_datasets(
        [sources(data)["tfrecords"].shuffle(30).map(augment), mr.Dataset.range(70).map(lambda n: {"number": n})],
        [0, 0, 1],
        stop_on_empty_dataset=False,
    ).shuffle(50),
    "flat_map": lambda data: mr.Dataset.range(50).flat_map(mr.Dataset.range).shuffle(20, seed=7).batch(9),
    "interleave": lambda data: (
        mr.Dataset.from_list(data.paths("tfrecord"))
        .interleave(mr.Dataset.from_tfrecords, cycle_length=3, block_length=2)
        .map(number_of)
        .batch(9)
    ),
}


@pytest.mark.parametrize(("combined", "service"), alternately(COMBINED, [1, 3]), indirect=["service"])
def test_what_is_combined_gives_the_batches_of_a_run_in_process(service, data, combined):
    check(COMBINED[combined](data), service)


@pytest.mark.parametrize("service", [3], indirect=True)
@pytest.mark.parametrize("pipeline", ["shuffle, random map, filter, batch", "bucket", "rebatch"])
def test_three_consumers_together_get_the_batches_of_a_run_in_process(service, data, pipeline):
    check(PIPELINES[pipeline](sources(data)["tfrecords"]), service, consumers=3)


@pytest.mark.parametrize("service", WORKERS, indirect=True)
def test_the_number_of_tasks_changes_no_element(service, data):
    dataset = sources(data)["tfrecords"].map(augment).with_options(seed=14)
    for tasks in (1, 5, 50):
        with dataset.distribute(service.address, tasks=tasks) as elements:
            assert as_set(elements) == as_set(dataset.__pipeline__().read_epoch(0))


@pytest.mark.parametrize("service", WORKERS, indirect=True)
def test_a_hundred_are_a_hundred(service, data):
    for dataset in (
        mr.Dataset.from_tfrecords(data.paths("tfrecord")).take(100),
        mr.Dataset.from_files(data.files).shuffle(1000).take(100),
        mr.Dataset.range(10**9).map(lambda number: number + 1).take(100),
    ):
        with dataset.distribute(service.address) as elements:
            assert [len(list(elements)) for _ in range(EPOCHS)] == [100] * EPOCHS


@pytest.mark.parametrize("service", [3], indirect=True)
def test_a_hundred_after_a_filter_are_the_same_hundred_in_one_task(service):
    dataset = mr.Dataset.range(1000).filter(lambda number: number % 2 == 0).take(100)
    with dataset.distribute(service.address) as elements:
        with pytest.warns(mr.MillraceWarning, match="runs as one task on one worker"):
            got = list(elements)
        assert got == list(range(0, 200, 2))
