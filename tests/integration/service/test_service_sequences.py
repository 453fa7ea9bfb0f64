"""Windows, sequences, asserted lengths and batches of one's own on a service: what the process itself would give."""

import numpy as np
import pytest
from tests.integration.service.service_driving import consume, prints, together

import millrace as mr

pytestmark = pytest.mark.filterwarnings("ignore:the pipeline runs as one task")


def noise(number, rng):
    return number, int(rng.integers(1 << 40))


def kept(number):
    return number % 3 > 0


def low(pair):
    return pair[0] != 170


def add(state, pair):
    return state + pair[0], (state, pair)


def together_with(pairs, rng):
    return [number for number, kept in pairs], sum(kept for _, kept in pairs), int(rng.integers(1 << 40))


def row(number):
    return np.arange(number % 5), number


def key(pair):
    return pair[0] % 50


def count(state, window):
    return state + 1, (state, window)


def before_four(pair):
    return pair[0] < 4


def total(pair):
    return sum(pair[1])


def appended(state, number):
    return [*state, number]


PIPELINES = {
    "windows": mr.Dataset.range(200).map(noise).window(5, shift=3),
    "shuffled windows": mr.Dataset.range(200).map(noise).window(5, shift=7).shuffle(10),
    "windows of what is filtered": mr.Dataset.range(200).filter(kept).window(5, shift=2, drop_remainder=True),
    "a scan, up to an end": mr.Dataset.range(200).map(noise).shuffle(200).take_while(low).scan(1, add).batch(7),
    "collated and filled up": mr.Dataset.range(200).batch(7, fill_remainder="mask", collate=together_with),
    "filtered and filled up": mr.Dataset.range(200).filter(kept).take(120).batch(7, fill_remainder="mask"),
    "ragged": mr.Dataset.range(200).map(row).ragged_batch(7).shuffle(10),
    "a reservoir of what is filtered": mr.Dataset.range(200).map(noise).filter(low).reservoir(20, levels=[60]).batch(7),
    "a reservoir with levels of what is known": mr.Dataset.range(200).reservoir(20, levels=[60]).map(noise).batch(7),
    "draws from what is filtered": mr.Dataset.range(200).filter(kept).reservoir(20, with_replacement=True).map(noise),
    "unique": mr.Dataset.range(200).map(noise).map(key).unique().assert_cardinality(50).batch(3),
}


def key_of(number):
    return -number


def generated(rng):
    yield from rng.integers(1 << 40, size=100).tolist()


@pytest.mark.filterwarnings("ignore:from_generator.* is run by one worker")
@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_service_reads_what_the_process_would(service, data, tmp_path):
    sources = {
        "text": mr.Dataset.from_text(data.paths("txt")),
        "csv": mr.Dataset.from_csv(data.paths("csv"), columns=["name"]),
        "records": mr.Dataset.from_fixed_length_records(data.paths("fixed"), 5).shuffle(20),
        "what was saved": mr.Dataset.load(data.root / "saved").shuffle(20),
        "a generator": mr.Dataset.from_generator(generated).map(noise).batch(9),
    }
    for name, source in sources.items():
        dataset = source.with_options(seed=3)
        here = [list(dataset.__pipeline__().read_epoch(number)) for number in range(2)]
        there = together(consume([dataset.distribute(service.address, deterministic=True)], 2))
        assert list(map(prints, there)) == list(map(prints, here)), name
    with mr.Dataset.range(30).map(key_of).distribute(service.address, deterministic=True) as computed:
        computed.batch(4).save(tmp_path)
    assert [number for batch in mr.Dataset.load(tmp_path) for number in batch] == list(range(0, -30, -1))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_service_gives_what_the_process_would(service):
    for name, pipeline in PIPELINES.items():
        dataset = pipeline.with_options(seed=3)
        here = [list(dataset.__pipeline__().read_epoch(number)) for number in range(2)]
        there = together(consume([dataset.distribute(service.address, deterministic=True, tasks=9)], 2))
        assert list(map(prints, there)) == list(map(prints, here)), name
    wrong = mr.Dataset.range(20).filter(kept).assert_cardinality(14)
    with (
        wrong.distribute(service.address) as reader,
        pytest.raises(mr.PipelineError, match=r"expects 14 elements, and its input had 13"),
    ):
        list(reader)
    behind = mr.Dataset.range(20).filter(kept).distribute(service.address, deterministic=True)
    with behind:
        sums = behind.window(3).unique().scan(0, count).take_while(before_four).map(total)
        assert sums.reduce([], appended) == [7, 20, 34, 47]
