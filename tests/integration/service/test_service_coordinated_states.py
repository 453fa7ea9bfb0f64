"""Ranks of coordinated reads that go on from their states: at unequal steps, from an epoch's end, behind operators."""

import functools
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from tests.integration.service.service_driving import WAIT_S

import millrace as mr

RANKS = 2


def grown(number):
    return np.full(1 + number * number % 13, number)


DATASET = (
    mr.Dataset.range(700)
    .shuffle(700, seed=3)
    .map(grown)
    .bucket_by_sequence_length(len, [4, 9], [8, 4, 2])
    .with_options(seed=5)
)


def sums(batch):
    return int(batch.max(axis=1).sum())


def all_ranks(service, act, *, states=None, behind=lambda dataset: dataset, **options):
    """What ``act(rank, dataset)`` gives for each rank, each in a thread of its own."""
    chosen: dict[str, Any] = {"job_name": "states", "coordinated": True, "incomplete": "mix", "tasks": 9, **options}

    def read(rank, dataset):
        if states is not None:
            dataset.load_state_dict(states[rank])
        return act(rank, dataset)

    with ExitStack() as stack, ThreadPoolExecutor(RANKS) as pool:
        parts = [
            stack.enter_context(
                behind(DATASET.distribute(service.address, num_consumers=RANKS, consumer_index=rank, **chosen))
            )
            for rank in range(RANKS)
        ]
        return list(pool.map(read, range(RANKS), parts, timeout=WAIT_S))


def upto(*steps):
    """So many batches of a pass (None: all), and the state behind them, as a checkpoint on a disk has it."""

    def act(rank, dataset):
        epoch = iter(dataset)
        found = [np.asarray(batch).tolist() for batch in itertools.islice(epoch, steps[rank])]
        return found, json.loads(json.dumps(epoch.state_dict()))

    return act


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("cycle_length", [2, 16])
def test_each_rank_goes_on_from_its_own_state_at_unequal_steps_and_from_the_end_of_one(service, cycle_length):
    ranks = functools.partial(all_ranks, cycle_length=cycle_length)
    whole = ranks(service, upto(None, None), job_name="whole")
    parts = ranks(service, upto(20, 26))
    assert [len(batches) for batches, _ in parts] == [20, 26]
    further = ranks(service, upto(9, None), states=[state for _, state in parts])
    assert further[1][1]["ended"]
    assert not further[0][1]["ended"]
    states = [state for _, state in further]
    rest = ranks(service, upto(None, None), states=[states, states])
    read = [a[0] + b[0] + c[0] for a, b, c in zip(parts, further, rest, strict=True)]
    assert read == [batches for batches, _ in whole]
    assert rest[1][0] == []
    following = ranks(service, upto(3, 3), states=[state for _, state in rest])
    assert {state["epoch"] for _, state in following} == {1}
    assert all(len(batches) == 3 for batches, _ in following)


@pytest.mark.parametrize("service", [1], indirect=True)
@pytest.mark.parametrize(
    "chosen",
    [{}, {"coordinated": False, "incomplete": "drop", "equal_steps": True, "deterministic": True}],
    ids=["coordinated", "equal steps"],
)
def test_states_from_before_the_first_step_are_loaded_by_each_rank_or_as_the_list_of_all(service, chosen):
    def act(rank, dataset):
        before = dataset.state_dict()
        epoch = iter(dataset)
        return before, [np.asarray(batch).tolist() for batch in itertools.islice(epoch, 5)]

    first = all_ranks(service, act, **chosen)
    states = [before for before, _ in first]
    own = all_ranks(service, act, states=states, **chosen)
    listed = all_ranks(service, act, states=[states, states], **chosen)
    assert [batches for _, batches in own] == [batches for _, batches in first]
    assert [batches for _, batches in listed] == [batches for _, batches in first]


@pytest.mark.parametrize("service", [2], indirect=True)
def test_operators_behind_it_run_on_what_comes_to_each_rank(service):
    def behind(dataset):
        return dataset.map(sums).batch(3)

    whole = all_ranks(service, upto(None, None), behind=behind, job_name="behind whole")
    assert [len(batches) for batches, _ in whole] == [len(whole[0][0])] * RANKS
    assert sum(number for batches, _ in whole for batch in batches for number in batch) == sum(range(700))
    parts = all_ranks(service, upto(4, 7), behind=behind, job_name="behind")
    states = [state for _, state in parts]
    rest = all_ranks(service, upto(None, None), behind=behind, job_name="behind", states=[states, states])
    assert [a[0] + b[0] for a, b in zip(parts, rest, strict=True)] == [batches for batches, _ in whole]
