"""Padding of batches, as the status of an iterator tells it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.control.caching.profiling import summed
from millrace.control.tasks.job_load import operator_rows
from millrace.engine.run.arrival_metrics import ArrivalMetrics
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.protocol.reports import NodeMeasure

LENGTHS = [1, 4, 2, 4, 3, 3, 4, 4]


def row(length: int) -> dict[str, Any]:
    return {"tokens": np.ones(length, np.int64), "length": np.int64(length)}


def sequences() -> mr.Dataset:
    return mr.Dataset.from_list(LENGTHS).map(row)


@pytest.mark.parametrize(
    ("dataset", "share"),
    [
        (sequences().padded_batch(4), (32 - sum(LENGTHS)) / 32),
        (sequences().padded_batch(4, padded_shapes={"tokens": (8,), "length": ()}), (64 - sum(LENGTHS)) / 64),
        (sequences().bucket_by_sequence_length(lambda each: int(each["length"]), [4], [4, 4]), 3 / 28),
        (sequences().pack(8, keys=["tokens"]), 7 / 32),
    ],
    ids=["padded_batch", "to a shape", "buckets", "pack"],
)
def test_the_status_says_what_share_of_batches_is_padding(dataset, share):
    epoch = iter(dataset)
    assert epoch.status()["operators"][-1]["padding_share"] is None
    list(epoch)
    *others, last = epoch.status()["operators"]
    assert last["padding_share"] == pytest.approx(share)
    assert all(each["padding_share"] is None for each in others)


def test_what_nothing_was_padded_in_has_no_share():
    epoch = iter(mr.Dataset.from_list([np.ones(2)] * 4).batch(2))
    list(epoch)
    assert epoch.status()["operators"][-1]["padding_share"] is None


def test_of_several_workers_it_is_the_share_of_all_numbers():
    def worked(padding: int, padded: int) -> dict[int, NodeMeasure]:
        return {0: NodeMeasure(0, "padded_batch(4)", 1, 8, 0.1, padding=padding, padded=padded)}

    found = summed({"one": worked(1, 10), "two": worked(5, 20)}, {"two": worked(2, 4)})
    assert operator_rows(found, found, 1.0)[0]["padding_share"] == pytest.approx((1 + 3) / (10 + 16))


def test_of_operators_behind_distribute_it_is_told_too():
    metrics = ArrivalMetrics(Graph(g.PaddedBatch(inputs=(g.Arrivals(),), batch_size=4)))
    measure = metrics.begin((), 1)[-1]
    measure.padding, measure.padded = 3, 12
    assert metrics.status({"bottleneck": None})["operators"][-1]["padding_share"] == 0.25
