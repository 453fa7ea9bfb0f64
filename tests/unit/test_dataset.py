"""What users write: checked where they write it, and plain once it is in the graph."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from typing import Any

import numpy as np
import pytest

from millrace.clusters.local_workers import local_share
from millrace.dataset import Dataset
from millrace.errors import PipelineError, UnknownLengthError
from millrace.graph import nodes as g
from millrace.graph import serialize

TEN = Dataset.range(10)
UNTYPED: Any = Dataset
UNTYPED_TEN: Any = TEN


def identity(element: Any) -> Any:
    return element


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (UNTYPED.range, "range()"),
        (lambda: UNTYPED.range(1, 2, 0), "range(1, 2, 0)"),
        (lambda: UNTYPED.range("a"), "range('a',)"),
        (lambda: UNTYPED.range(2**63), "for data without end write range(n).repeat()"),
        (lambda: UNTYPED.range(-(2**62), 2**62), "for data without end write range(n).repeat()"),
        (lambda: UNTYPED.from_list(iter([1])), "from_list(list(...))"),
        (lambda: UNTYPED.from_list("abc"), "from_list takes something with len() and [i], not str"),
        (lambda: UNTYPED.from_list(np.array(3)), "there is no len(): len() of unsized object"),
        (lambda: UNTYPED.from_list({"image": [1, 2]}), "this dict has no item 0 (KeyError: 0)"),
        (lambda: UNTYPED.from_map_style(list), "from_map_style takes something with len() and [i], not type"),
        (lambda: UNTYPED.from_map_style(iter([1])), "from_map_style takes something with len() and [i]"),
        (lambda: UNTYPED.from_files([]), "from_files needs at least one path or pattern, and the list is empty"),
        (lambda: UNTYPED.from_files(None), "from_files takes a list of paths or patterns, not None"),
        (lambda: UNTYPED.from_files(b"a"), "from_files takes a list of paths or patterns, not b'a'"),
        (lambda: UNTYPED.from_files(["a", 5]), "from_files takes a path, a pattern or a list of such, not 5"),
        (lambda: UNTYPED.from_parquet("x", columns="label"), "from_parquet takes a list of columns, not 'label'"),
        (lambda: UNTYPED.from_parquet("x", columns=[]), "columns are names, at least one, or None for all, not []"),
        (lambda: UNTYPED.from_tfrecords("x", compression="ZIP"), "compression must be one of None, '', 'GZIP', 'ZLIB'"),
        (UNTYPED.zip, "zip needs at least one dataset"),
        (lambda: UNTYPED.zip({}), "zip needs at least one dataset"),
        (lambda: UNTYPED.zip(TEN, [1, 2]), "zip takes datasets, not list"),
        (lambda: UNTYPED_TEN.concatenate([1]), "concatenate takes datasets, not list"),
        (lambda: UNTYPED.sample_from_datasets([]), "sample_from_datasets needs at least one dataset"),
        (lambda: UNTYPED.sample_from_datasets([TEN], [1, 2]), "1 datasets, weights [1, 2]"),
        (lambda: UNTYPED.sample_from_datasets([TEN, TEN], [1, -1]), "one weight >= 0 for each dataset"),
        (lambda: UNTYPED.sample_from_datasets([TEN, TEN], [0, 0]), "one above 0"),
        (lambda: UNTYPED.sample_from_datasets([TEN, TEN], [1, float("inf")]), "one weight >= 0 for each dataset"),
        (lambda: UNTYPED_TEN.rejection_resample(abs, [0.5, 0.6]), "none negative, and 1 together, not [0.5, 0.6]"),
        (lambda: UNTYPED_TEN.rejection_resample(abs, [1.5, -0.5]), "none negative, and 1 together"),
        (lambda: UNTYPED_TEN.rejection_resample(abs, [1]), "of classes, at least two of them"),
        (lambda: UNTYPED_TEN.rejection_resample(abs, 0.5), "rejection_resample takes a list of target_dist, not 0.5"),
        (
            lambda: UNTYPED_TEN.rejection_resample(3, [0.5, 0.5]),
            "rejection_resample() takes a function of (element), not 3",
        ),
        (lambda: UNTYPED_TEN.rejection_resample(abs, [0.5, 0.5], [1]), "initial_dist is a list of the shares"),
        (lambda: UNTYPED_TEN.rejection_resample(abs, [0.5, 0.5], [0.2, 0.2, 0.6]), "has 2 classes and initial_dist 3"),
        (lambda: UNTYPED_TEN.rejection_resample(abs, [0.5, 0.5], [1, 0]), "class 1 is to have a share by target_dist"),
        (lambda: UNTYPED_TEN.reservoir(0), "reservoir: size must be a whole number of at least 1, not 0"),
        (lambda: UNTYPED_TEN.reservoir(9, seed=1.5), "reservoir: seed must be a whole number, not 1.5"),
        (lambda: UNTYPED.sample_from_datasets([TEN], len), "as in {0: [0.9, 0.1], 5: [0.5, 0.5]}, not as a function"),
        (lambda: UNTYPED.sample_from_datasets([TEN], {}), "whole numbers of which one is 0, not {}"),
        (lambda: UNTYPED.sample_from_datasets([TEN], {1: [1]}), "by the epoch from which on they hold"),
        (lambda: UNTYPED.sample_from_datasets([TEN], {0: [1], -1: [1]}), "by the epoch from which on they hold"),
        (lambda: UNTYPED.sample_from_datasets([TEN], {0: [1], "b": [1]}), "by the epoch from which on they hold"),
        (lambda: UNTYPED.sample_from_datasets([TEN], {0: [1], 3: [1, 2]}), "1 datasets, weights [1, 2]"),
        (
            lambda: UNTYPED.sample_from_datasets([TEN], dict(enumerate([[1]] * 20_000))),
            "more than 16,384 numbers",
        ),
        (lambda: UNTYPED.sample_from_datasets([TEN], weights_by="step"), "must be one of 'epoch', 'element', not 's"),
        (lambda: UNTYPED.choose_from_datasets([], [0]), "choose_from_datasets needs at least one dataset"),
        (lambda: UNTYPED.choose_from_datasets([TEN, TEN], [0, 2]), "number of a dataset, from 0 to 1, not 2"),
        (lambda: UNTYPED.choose_from_datasets([TEN, TEN], TEN.take(3)), "number of a dataset, from 0 to 1, not 2"),
        (lambda: UNTYPED.choose_from_datasets([TEN, TEN], [0, True]), "from 0 to 1, not True"),
        (lambda: UNTYPED.choose_from_datasets([TEN], []), "has from 1 to 65,536 of them; write Dataset.from_list(choi"),
        (lambda: UNTYPED.choose_from_datasets([TEN], [0] * 65537), "has from 1 to 65,536 of them"),
        (lambda: UNTYPED.choose_from_datasets([TEN], "0"), "or a list of them, which is gone through again and again"),
        (lambda: UNTYPED.choose_from_datasets([TEN], 0), "takes a dataset of the numbers of datasets, or a list"),
        (lambda: UNTYPED.choose_from_datasets([TEN], TEN.distribute()), "takes datasets that are not distributed"),
        (
            lambda: UNTYPED.sample_from_datasets([TEN, TEN], "ab"),
            "sample_from_datasets takes a list of weights, not 'ab'",
        ),
        (lambda: UNTYPED.sample_from_datasets([TEN, TEN], ["a", 1]), "2 datasets, weights ['a', 1]"),
        (lambda: UNTYPED.sample_from_datasets(TEN, TEN), "takes its datasets in one list"),
        (
            lambda: UNTYPED.sample_from_datasets([TEN], stop_on_empty_dataset=True, cycle=True),
            "with cycle=True no dataset is empty: leave stop_on_empty_dataset out, or cycle",
        ),
        (lambda: UNTYPED.sample_from_datasets([TEN], seed=1.5), "seed must be a whole number, not 1.5"),
        (lambda: UNTYPED_TEN.map(3), "map"),
        (
            lambda: UNTYPED_TEN.map(identity, key=3),
            'map: key names the version of your function, as in key="v3", not 3',
        ),
        (lambda: UNTYPED.from_map_style([1], key=None), "from_map_style: key names the version of your function"),
        (
            lambda: UNTYPED_TEN.map(identity, num_parallel_calls=0),
            "num_parallel_calls must be a whole number of at least 1",
        ),
        (lambda: UNTYPED_TEN.interleave(identity, cycle_length=0), "interleave: cycle_length must be a whole number"),
        (lambda: UNTYPED_TEN.shuffle(0), "shuffle: buffer_size must be a whole number of at least 1, not 0"),
        (lambda: UNTYPED_TEN.shuffle(3, seed=2**64), "shuffle: seed must fit into 64 bits"),
        (lambda: UNTYPED_TEN.shuffle(3, seed="a"), "shuffle: seed must be a whole number, not 'a'"),
        (lambda: UNTYPED_TEN.batch(2.5), "batch: batch_size must be a whole number of at least 1, not 2.5"),
        (lambda: UNTYPED_TEN.batch(True), "batch_size must be a whole number of at least 1, not True"),
        (lambda: UNTYPED_TEN.padded_batch(0), "padded_batch: batch_size"),
        (lambda: UNTYPED_TEN.rebatch(-1), "rebatch: batch_size"),
        (lambda: UNTYPED_TEN.bucket_by_sequence_length(identity, [3, 2], [1, 1, 1]), "ascending bucket_boundaries"),
        (
            lambda: UNTYPED_TEN.bucket_by_sequence_length(identity, 3, [1, 1]),
            "takes a list of bucket_boundaries, not 3",
        ),
        (
            lambda: UNTYPED_TEN.bucket_by_sequence_length(identity, [3], [1]),
            "one more bucket_batch_sizes than boundaries",
        ),
        (
            lambda: UNTYPED_TEN.bucket_by_sequence_length(identity, [3], [1, 0]),
            "every batch size must be a whole number",
        ),
        (
            lambda: UNTYPED_TEN.bucket_by_sequence_length(identity, [3.5], [1, 1]),
            "every bucket boundary must",
        ),
        (lambda: UNTYPED_TEN.group_by_window(identity, lambda k, w: w), "either window_size or window_size_func"),
        (
            lambda: UNTYPED_TEN.group_by_window(identity, lambda k, w: w, 3, identity),
            "either window_size or window_size_func",
        ),
        (lambda: UNTYPED_TEN.pack(0), "pack: length must be a whole number of at least 1, not 0"),
        (lambda: UNTYPED_TEN.pack(8, window=0), "pack: window must be a whole number"),
        (
            lambda: UNTYPED_TEN.pack(8, too_long="cut"),
            "too_long must be one of 'error', 'split', 'truncate', not 'cut'",
        ),
        (lambda: UNTYPED_TEN.pack(8, keys=[]), "pack: keys are names, at least one, or None for all, not []"),
        (lambda: UNTYPED_TEN.repeat(-2), "repeat: count must be a whole number of at least 0, not -2"),
        (lambda: UNTYPED_TEN.take(-2), "take: count must be a whole number of at least -1, not -2"),
        (lambda: UNTYPED_TEN.skip(1.0), "skip: count must be a whole number of at least -1, not 1.0"),
        (lambda: UNTYPED_TEN.shard(0, 0), "shard: num_shards"),
        (lambda: UNTYPED_TEN.shard(3, 3), "shard: index must be a whole number from 0 to 2, not 3"),
        (lambda: UNTYPED_TEN.enumerate("a"), "enumerate: start must be a whole number, not 'a'"),
        (lambda: UNTYPED_TEN.prefetch(-2), "prefetch: buffer_size must be a whole number of at least 0, not -2"),
        (
            lambda: UNTYPED_TEN.with_options(on_error="ignore"),
            'on_error is "raise", "skip" or a function, not \'ignore\'',
        ),
        (lambda: UNTYPED_TEN.with_options(on_error=3), 'on_error is "raise", "skip" or a function, not 3'),
        (lambda: UNTYPED_TEN.with_options(num_threads=0), "with_options: num_threads"),
        (lambda: UNTYPED_TEN.with_options(buffer_bytes=0), "with_options: buffer_bytes"),
        (lambda: UNTYPED_TEN.with_options(seed=0.5), "with_options: seed must be a whole number"),
        (lambda: TEN.padded_batch(2, padded_shapes=(-5,)), "padded_batch: padded_shapes has a size of -5."),
        (
            lambda: TEN.bucket_by_sequence_length(len, [3], [1, 1], padded_shapes={"a": (None,), "b": (3, -2)}),
            "bucket_by_sequence_length: padded_shapes has a size of -2.",
        ),
    ],
)
def test_mistakes_are_answered_where_they_are_made(build, said):
    with pytest.raises(PipelineError) as caught:
        build()
    assert said in str(caught.value)


def test_keys_of_functions_and_data_sets_reach_the_graph():
    pipeline = Dataset.from_map_style([1], key="a").map(identity, key="b").filter(identity, key="c")
    pipeline = pipeline.flat_map(identity, key="d").interleave(identity, key="e").map(identity)
    keys = [opaque.key for node in pipeline.__pipeline__().graph.nodes for _, opaque in node.opaques()]
    assert keys == ["a", "b", "c", "d", "e", ""]


def test_numpy_numbers_become_plain_ones():
    one: Any = np.int64(1)
    yes: Any = np.bool_(True)
    halves: Any = np.array([0.5, 0.5])
    zero: Any = np.int64(0)
    dataset = (
        Dataset.range(one)
        .map(identity, num_parallel_calls=one, deterministic=yes)
        .interleave(identity, one, one, one, yes)
        .shuffle(one, one, yes)
        .enumerate(one)
        .skip(one)
        .take(one)
        .shard(one, zero)
        .repeat(one)
        .bucket_by_sequence_length(identity, [one], [one, one], None, None, yes, yes, yes)
        .rebatch(one, yes)
        .unbatch()
        .padded_batch(one, drop_remainder=yes)
        .group_by_window(identity, lambda key, window: window, one)
        .pack(one, window=one)
        .batch(one, yes)
        .prefetch(one)
        .with_options(buffer_bytes=one, num_threads=one, seed=one)
    )
    dataset = Dataset.sample_from_datasets([dataset, TEN], halves, one, yes)
    _, slots = serialize.pack(dataset.__pipeline__().graph)
    assert all(callable(slot.value) for slot in slots)


def test_a_chain_of_concatenations_is_one_node():
    dataset = TEN
    for start in range(10, 20_000, 10):
        dataset = dataset.concatenate(Dataset.range(start, start + 10))
    assert isinstance(dataset.__pipeline__().graph.root, g.Concatenate)
    assert len(dataset.__pipeline__().graph.root.inputs) == 2000
    assert len(dataset) == 20_000
    with iter(dataset.batch(7000)) as batches:
        assert next(batches).tolist() == list(range(7000))
    assert TEN.__pipeline__().graph.root.inputs == ()


def test_zips_of_every_form():
    others = Dataset.range(10, 13)
    assert list(Dataset.zip(TEN, others)) == [(0, 10), (1, 11), (2, 12)]
    assert list(Dataset.zip((TEN, others))) == list(Dataset.zip([TEN, others])) == list(Dataset.zip(TEN, others))
    assert list(Dataset.zip({"a": TEN, "b": others}))[1] == {"a": 1, "b": 11}
    assert list(Dataset.zip(others)) == [(10,), (11,), (12,)]
    assert list(Dataset.zip(TEN, TEN))[3] == (3, 3)


def test_lengths():
    assert len(TEN) == len(list(TEN)) == 10
    assert len(TEN.batch(3)) == 4
    assert len(Dataset.range(0)) == 0
    assert bool(Dataset.range(0))
    with pytest.raises(UnknownLengthError, match=r"filter\(.*known only after reading it"):
        len(TEN.filter(bool))
    with pytest.raises(UnknownLengthError, match=r"has no end; put take\(n\) behind repeat\(\)"):
        len(TEN.repeat())
    assert len(TEN.repeat().take(25)) == 25
    assert list(TEN.filter(lambda n: n > 7)) == [8, 9]  # list() asks for a length and takes no for an answer


def test_epochs_follow_one_another_and_can_be_named():
    dataset = TEN.shuffle(10, seed=1)
    first, second = list(dataset), list(dataset)
    assert first != second
    assert list(dataset.__pipeline__().read_epoch(0)) == first
    assert list(dataset.__pipeline__().read_epoch(1)) == second
    assert list(dataset.__pipeline__().read_epoch()) == list(dataset.__pipeline__().read_epoch(2))
    parts = [list(dataset.__pipeline__().read_epoch(0, (part, 3))) for part in range(3)]
    assert sorted(n for part in parts for n in part) == list(range(10))
    assert dataset.peek(3) == first[:3]
    assert dataset.peek(100) == first


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_goes_on_where_the_original_was(copied):
    dataset = TEN.map(identity).shuffle(10)
    list(dataset)
    twin = copied(dataset)
    assert list(twin) == list(dataset)
    assert twin.__pipeline__().seed == dataset.__pipeline__().seed


def test_seeds():
    assert TEN.__pipeline__().seed == TEN.__pipeline__().seed
    assert Dataset.range(3).__pipeline__().seed != Dataset.range(3).__pipeline__().seed
    four: Any = np.int64(4)
    assert TEN.with_options(seed=four).__pipeline__().seed == 4
    assert list(TEN.shuffle(9, seed=-1)) == list(TEN.shuffle(9, seed=2**64 - 1))


def test_names():
    assert str(TEN.map(identity).batch(3)) == "Dataset.range(10).map(identity).batch(3)"
    assert "map(functools.partial" not in str(TEN.map(functools.partial(identity)))


def test_windows_are_datasets():
    def reduce(key: int, window: Dataset) -> Dataset:
        assert isinstance(window, Dataset)
        return window.batch(10)

    found = [batch.tolist() for batch in TEN.group_by_window(lambda n: n % 2, reduce, window_size=3)]
    assert sorted(found) == [[0, 2, 4], [1, 3, 5], [6, 8], [7, 9]]
    sized = TEN.group_by_window(lambda n: n % 2, reduce, window_size_func=lambda key: key + 1)
    assert {len(batch) for batch in sized} == {1, 2}


def test_prefetching_nothing_is_nothing():
    assert TEN.prefetch(0) is TEN


def test_a_plan_can_be_looked_at():
    plan = TEN.__pipeline__().plan(tasks=3)
    assert [(plan.task(n).start, plan.task(n).stop) for n in range(plan.length or 0)] == [(0, 4), (4, 8), (8, 10)]
    assert "one task on one worker" in TEN.filter(bool).take(3).__pipeline__().plan().warnings[0]


def test_helpers_divide_the_workers_of_their_host_and_each_has_one_where_there_are_no_others() -> None:
    assert [local_share(4, (part, 3), alone=False) for part in range(3)] == [2, 1, 1]
    assert [local_share(1, (part, 3), alone=False) for part in range(3)] == [1, 0, 0]
    assert [local_share(1, (part, 3), alone=True) for part in range(3)] == [1, 1, 1]
    assert [local_share(0, (part, 3), alone=False) for part in range(3)] == [0, 0, 0]
    assert local_share(4, None, alone=True) == 4


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("must be one of 'auto', 'local', 'remote', 'any', not 'LOCAL'", {"target_workers": "LOCAL"}),
        ("local_workers is None or a number of at least 1, not 0", {"local_workers": 0}),
        ("local_workers is None or a number of at least 1, not True", {"local_workers": True}),
        ("has no local workers", {"target_workers": "remote", "local_workers": 1}),
        ("say how many with workers=", {"service": None, "local_workers": 1}),
        ("say how many with workers=", {"service": None, "target_workers": "remote"}),
    ],
)
def test_where_work_cannot_be_done_is_said(words: str, options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=re.escape(words)):
        UNTYPED_TEN.distribute(**{"service": "grpc://127.0.0.1:1", **options})


def test_shuffle_reshuffles_unless_told_otherwise():
    shuffled = [TEN.shuffle(10), TEN.shuffle(10, reshuffle_each_iteration=None), TEN.shuffle(10, None, False)]
    nodes = [dataset.__pipeline__().graph.root for dataset in shuffled]
    assert [isinstance(node, g.Shuffle) and node.reshuffle_each_iteration for node in nodes] == [True, True, False]


def test_a_padded_size_of_minus_one_is_the_longest_as_in_tf_data():
    batches = list(Dataset.from_list([np.ones(1), np.ones(3)]).padded_batch(2, padded_shapes=(-1,)))
    assert [batch.shape for batch in batches] == [(2, 3)]
