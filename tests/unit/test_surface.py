"""What users see of datasets, their views and their iterators: these names, and no others."""

from __future__ import annotations

import enum
from typing import Any

import jax
import pytest
import tensorflow as tf
import torch

import millrace as mr
from millrace.client.behind import BehindReader
from millrace.client.deferred_reader import DeferredReader
from millrace.client.epoch_iterator import EpochIterator
from millrace.engine.run.arrival_metrics import ArrivalMetrics
from millrace.graph.nodes import Arrivals
from millrace.graph.operator_graph import Graph
from millrace.planning.checkpoint import Checkpoint

STATES = ["get_state", "load_state_dict", "set_state", "set_weights", "state_dict"]
VIEWS = ["jax", "numpy", "tensorflow", "torch"]
SOURCES = [
    "from_arrays",
    "from_csv",
    "from_files",
    "from_fixed_length_records",
    "from_generator",
    "from_list",
    "from_map_style",
    "from_parquet",
    "from_text",
    "from_tfrecords",
    "from_webdataset",
    "load",
    "range",
]
BEFORE = {
    *(
        "choose_from_datasets",
        "concatenate",
        "rejection_resample",
        "reservoir",
        "sample",
        "sample_from_datasets",
        "zip",
    ),
}
"""Operators that stand before ``distribute()``."""
BEHIND = [
    *("assert_cardinality", "autocache", "batch", "bucket_by_sequence_length", "cache", "enumerate", "filter"),
    *("flat_map", "group_by_window", "interleave", "map", "pack", "padded_batch", "parse_example", "prefetch"),
    *("ragged_batch", "rebatch", "repeat", "scan", "shard", "shuffle", "skip", "take", "take_while", "unbatch"),
    *("unique", "window", "with_options"),
]
OPERATORS = sorted([*BEHIND, *BEFORE])
READ_HERE = ["element_spec", "peek", "reduce", "save"]
TEN = mr.Dataset.range(10).batch(2)


def public(value: object) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


AWAITED = DeferredReader(
    lambda state: pytest.fail("nobody loads"), awaits=mr.StateError("load the state"), fresh=Checkpoint()
)


def behind(reader: DeferredReader) -> BehindReader:
    graph = Graph(Arrivals())
    return BehindReader(reader, graph, "", (), lambda state: (), print, [], ArrivalMetrics(graph))


def distributed(**chosen: Any) -> mr.DistributedDataset:
    return TEN.distribute("grpc://127.0.0.1:1", **chosen)


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        (
            TEN,
            [*STATES, *VIEWS, *SOURCES, *OPERATORS, *READ_HERE, "distribute", "saved_info", "suggest_buckets"],
        ),
        (
            distributed(),
            [*STATES, *VIEWS, *BEHIND, *READ_HERE, "close", "distribute", "epochs", "status"],
        ),
        (TEN.numpy(), STATES),
        (TEN.jax(), STATES),
        (iter(TEN.numpy()), [*STATES, "close"]),
        (iter(TEN), [*STATES, "close", "measures", "put_back", "rewrites", "skipped", "status"]),
        (EpochIterator(AWAITED), [*STATES, "close", "members", "missed", "put_back", "skipped"]),
        (behind(AWAITED), [*STATES, "close", "members", "missed", "put_back", "skipped"]),
    ],
    ids=lambda shown: type(shown).__name__ if not isinstance(shown, list) else "",
)
def test_these_names_are_public(shown: object, names: list[str]) -> None:
    assert public(shown) == sorted(names)


@pytest.mark.parametrize("made", [TEN.torch, distributed().torch])
def test_a_torch_dataset_shows_what_torch_has_and_states(made: Any) -> None:
    of_torch = public(torch.utils.data.IterableDataset)
    assert sorted({*public(made()), *of_torch}) == sorted({*STATES, *of_torch})


def test_a_tensorflow_dataset_shows_what_tf_data_has_and_states() -> None:
    assert public(TEN.tensorflow()) == sorted({*public(tf.data.Dataset), *STATES})


@pytest.mark.parametrize("gone", ["adopt_seed", "graph", "plan", "prepare_to_fork", "read_epoch", "tables", "varying"])
def test_what_is_behind_a_dataset_is_not_on_it(gone: str) -> None:
    assert not hasattr(TEN, gone)
    assert not hasattr(distributed(), gone)


class Colour(enum.Enum):
    RED = 1


def first(tasks: Any, workers: Any) -> list[int]:
    return [0 for _ in tasks]


@pytest.mark.parametrize(
    ("shown", "expression"),
    [
        (distributed(), ".distribute('grpc://127.0.0.1:1')"),
        (TEN.distribute(), ".distribute()"),
        (
            distributed(job_name="eval", num_consumers=2, consumer_index=1, token="secret"),
            ".distribute('grpc://127.0.0.1:1', job_name='eval', num_consumers=2, consumer_index=1)",
        ),
        (
            TEN.distribute(sharding=mr.ShardingPolicy.STATIC, workers=(1, 4), visitation=mr.Visitation.AT_MOST_ONCE),
            ".distribute(sharding=ShardingPolicy.STATIC, visitation=Visitation.AT_MOST_ONCE, workers=(1, 4))",
        ),
        (TEN.distribute(sharding=first), ".distribute(sharding=first)"),
        (TEN.numpy(), ".numpy()"),
        (TEN.torch(), ".torch()"),
        (TEN.jax(), ".jax()"),
        (TEN.tensorflow(), ".tensorflow()"),
        (TEN.distribute().numpy(), ".distribute().numpy()"),
    ],
)
def test_what_is_made_of_a_dataset_is_shown_as_it_was_written(shown: object, expression: str) -> None:
    assert repr(shown) == str(shown) == f"Dataset.range(10).batch(2){expression}"


def test_arguments_of_views_are_shown() -> None:
    device = jax.devices()[0]
    spec = tf.TensorSpec((None,), tf.int64)
    assert repr(TEN.jax(device)) == f"Dataset.range(10).batch(2).jax(sharding={device!r})"
    assert repr(TEN.tensorflow(spec)).startswith("Dataset.range(10).batch(2).tensorflow(element_spec=TensorSpec(shape")
