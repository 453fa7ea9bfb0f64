from __future__ import annotations

import pytest

from millrace import Dataset
from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.graph import serialize
from millrace.graph.notation import graph_of
from millrace.graph.operator_graph import Graph
from millrace.graph.rounds import BATCHING, in_rounds, refusal
from millrace.planning.cache_point import point_fingerprint
from millrace.planning.split_table import TableSummary
from millrace.planning.units import UnitMap


def same(element):
    return element


def buckets(dataset: Dataset, **options: bool) -> Dataset:
    return dataset.bucket_by_sequence_length(len, [3, 5], [4, 2, 1], **options)


def graph(dataset: Dataset) -> Graph:
    found = graph_of(dataset)
    assert found is not None
    return found


WORDS = Dataset.from_list([[0] * (length % 7) for length in range(100)])
WINDOWS = WORDS.group_by_window(len, lambda _, window: window, 4)


@pytest.mark.parametrize(
    "dataset",
    [
        buckets(WORDS),
        WORDS.padded_batch(3),
        Dataset.range(9).batch(4),
        buckets(WORDS.repeat().shuffle(10).filter(len)).map(same).prefetch(2).with_options(buffer_bytes=1 << 20),
        buckets(WORDS).map(same).cache().map(same).autocache().enumerate(),
        buckets(WORDS.map(same)).with_options(on_error="skip"),
        buckets(WORDS).map(same).with_options(on_error=same),
        Dataset.range(9).batch(4).unbatch().batch(2),
        Dataset.zip(WORDS, WORDS).concatenate(Dataset.zip(WORDS, WORDS)).map(same).batch(2),
    ],
)
@pytest.mark.parametrize("incomplete", ["drop", "mix"])
def test_the_collecting_operator_nearest_to_the_root_makes_rounds(dataset, incomplete):
    before = graph(dataset)
    after = in_rounds(before, 3, incomplete)
    told = [(node.together, node.incomplete) for node in after.nodes if isinstance(node, BATCHING)]
    assert told == [(0, "")] * (len(told) - 1) + [(3, incomplete)], "the last alone"
    assert after.keys == before.keys, "what is random stays as it is"
    assert [node.op for node in after.nodes] == [node.op for node in before.nodes]


@pytest.mark.parametrize(
    ("dataset", "culprit"),
    [
        (buckets(WORDS).filter(same), "filter(same)"),
        (buckets(WORDS).shuffle(4), "shuffle()"),
        (buckets(WORDS).unbatch().map(same), "unbatch()"),
        (buckets(WORDS).rebatch(4), "rebatch()"),
        (buckets(WORDS).take(4), "take()"),
        (buckets(WORDS).skip(4).prefetch(), "skip()"),
        (buckets(WORDS).shard(2, 0), "shard()"),
        (buckets(WORDS).flat_map(same), "flat_map(same)"),
        (buckets(WORDS).interleave(same), "interleave(same)"),
        (buckets(WORDS).repeat(2), "repeat()"),
        (Dataset.zip(buckets(WORDS), buckets(WORDS)), "zip()"),
        (buckets(WORDS).concatenate(buckets(WORDS)), "concatenate()"),
        (Dataset.sample_from_datasets([buckets(WORDS), buckets(WORDS)]), "sample_from_datasets()"),
    ],
)
def test_what_does_not_keep_batches_one_to_one_is_refused_by_name(dataset, culprit):
    with pytest.raises(PipelineError) as caught:
        in_rounds(graph(dataset), 2, "drop")
    assert f"behind the batches stands {culprit}" in str(caught.value)


@pytest.mark.parametrize("dataset", [WORDS, WORDS.map(same).prefetch(), WINDOWS])
def test_a_pipeline_without_batches_is_refused(dataset):
    assert "this pipeline makes no batches" in refusal(graph(dataset), "drop")


def test_an_operator_that_could_leave_a_batch_out_is_refused():
    dataset = buckets(WORDS).map(same).with_options(on_error="skip")
    assert "map(same), which stands behind bucket_by_sequence_length" in refusal(graph(dataset), "drop")


def test_buckets_that_are_not_padded_are_not_mixed():
    dataset = buckets(WORDS, no_padding=True)
    assert not refusal(graph(dataset), "drop")
    assert "no_padding=True" in refusal(graph(dataset), "mix")


def test_graphs_without_rounds_are_as_they_were_and_others_differ_in_all_that_names_them():
    found = graph(Dataset.range(9).batch(4).map(same))
    structure, _ = serialize.pack(found)
    assert b"together" not in structure
    assert b"incomplete" not in structure
    variants = [found, *(in_rounds(found, ranks, how) for ranks in (1, 2) for how in ("drop", "mix"))]
    packed = [serialize.pack(each)[0] for each in variants]
    summary = {0: TableSummary(count=9, pieces=1, bytes=0, cheap=True)}
    names: list[list[bytes] | list[str]] = [
        packed,
        list(map(serialize.digest, packed)),
        [str(serialize.outline(each)) for each in variants],
        [point_fingerprint(UnitMap(each, summary), 1, lambda _: b"") for each in variants],
    ]
    for each in names:
        assert len(set(each)) == len(variants)
    batch = serialize.unpack(packed[-1]).nodes[1]
    assert isinstance(batch, g.Batch)
    assert (batch.together, batch.incomplete) == (2, "mix")
