"""Ranks that get equally many elements of an epoch, stopped and gone on with, as many of them or others."""

import itertools
import json
import operator
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.service.service_driving import WAIT_S

import millrace as mr
from millrace import ShardingPolicy

COUNT = 900
PIPELINES = {
    "batches": lambda rows: mr.Dataset.range(COUNT).shuffle(COUNT, seed=3).batch(4),
    "mixed in windows": lambda rows: mr.Dataset.from_parquet(rows).shuffle(40, seed=3).map(operator.itemgetter("n")),
    "counts unknown": lambda rows: mr.Dataset.range(COUNT).filter(lambda n: n % 3 > 0).shuffle(100, seed=3).batch(4),
}
WAYS = [{}, {"deterministic": True}, {"sharding": ShardingPolicy.STATIC}]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A file of which the rows are read in sequence and counted."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table({"n": range(COUNT)}), path, row_group_size=100)
    return str(path)


@pytest.fixture(params=PIPELINES)
def dataset(request, rows):
    return PIPELINES[request.param](rows)


def numbers(batches):
    return [int(number) for batch in batches for number in np.ravel(batch)]


class Ranks:
    """All ranks of one life of a training, which read at once, and stop at the same step."""

    def __init__(self, stack, service, dataset, count, states=None, own=False, **options):
        self.parts = [
            stack.enter_context(
                dataset.distribute(
                    service.address,
                    job_name="equal",
                    num_consumers=count,
                    consumer_index=rank,
                    equal_steps=True,
                    **{"tasks": 10, **options},
                )
            )
            for rank in range(count)
        ]
        self.pool = stack.enter_context(ThreadPoolExecutor(count))
        for rank, part in enumerate(self.parts):
            if states is not None:
                part.load_state_dict(states[rank] if own else states)
        self.epochs = self.all(iter, self.parts)

    def all(self, action, items):
        return list(self.pool.map(action, items, timeout=WAIT_S))

    def steps(self, count=None):
        """By rank, its next so many batches; None: all that are left of the epoch."""
        return self.all(lambda epoch: list(itertools.islice(epoch, count)), self.epochs)

    def states(self):
        text = json.dumps([epoch.state_dict() for epoch in self.epochs])
        return json.loads(text)


def lives(service, dataset, counts, steps, **options):
    """By life of a training its ranks' batches; all lives but the last stop after so many steps."""
    found, states = [], None
    for life, count in enumerate(counts):
        last = life == len(counts) - 1
        with ExitStack() as stack:
            own = states is not None and len(states) == count
            ranks = Ranks(stack, service, dataset, count, states, own=own, **options)
            found.append(ranks.steps(None if last else steps))
            states = ranks.states()
    return found


def check(found):
    """All ranks got as many, and nothing came twice; how many numbers came."""
    for ranks in found:
        assert len({len(batches) for batches in ranks}) == 1
    seen: Counter[int] = Counter(numbers(itertools.chain(*itertools.chain(*found))))
    assert set(seen.values()) == {1}
    return len(seen)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("options", WAYS)
def test_as_many_ranks_read_what_they_would_have_read(service, dataset, options):
    whole = lives(service, dataset, [2], 0, **options)
    rest = lives(service, dataset, [2, 2, 2], 9, **options)
    assert check(rest) == check(whole)
    for rank in (0, 1):
        together = numbers(itertools.chain(*(life[rank] for life in rest)))
        alone = numbers(whole[0][rank])
        if options.get("deterministic"):
            assert together == alone
        elif "filter" not in repr(dataset):  # else what is left out is what comes last
            assert sorted(together) == sorted(alone)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("options", WAYS)
def test_other_numbers_of_ranks_divide_what_is_left(service, dataset, options):
    """Where counts are known fewer batches are left out than there are ranks, else what comes of a task for each.

    Where tasks belong to workers, those of one may have been read before the other's: what is left gives some of
    another number of ranks up to twice as much as others.
    """
    for counts in ([2, 3, 1], [3, 2, 4]):
        found = lives(service, dataset, counts, 9, **{"tasks": 40, **options})
        came, size = check(found), np.size(found[0][0][0])
        if "filter" in repr(dataset):
            assert came > (COUNT // 3 if "sharding" in options else COUNT * 2 // 3 - counts[-1] * 2 * COUNT // 40)
        else:
            assert came > COUNT - counts[-1] * size


@pytest.mark.parametrize("service", [2], indirect=True)
def test_what_ranks_have_left_is_read_in_process_or_without_equal_steps_and_the_other_way_round(service, dataset):
    filtered = "filter" in repr(dataset)
    everything = Counter(number for number in range(COUNT) if not filtered or number % 3)
    with ExitStack() as stack:
        ranks = Ranks(stack, service, dataset, 3, tasks=None)
        seen: Counter[int] = Counter(numbers(itertools.chain(*ranks.steps(9))))
        states = ranks.states()
    alone = dataset.with_options(seed=states[0]["seed"])
    alone.load_state_dict(states)
    epoch = iter(alone)
    seen.update(numbers(itertools.islice(epoch, 5)))
    state = epoch.state_dict()
    epoch.close()
    with dataset.distribute(service.address, job_name="equal") as shared:
        shared.load_state_dict(state)
        epoch = iter(shared)
        seen.update(numbers(itertools.islice(epoch, 5)))
        state = json.loads(json.dumps(epoch.state_dict()))
    with ExitStack() as stack:
        ranks = Ranks(stack, service, dataset, 2, [state], tasks=None)
        seen.update(numbers(itertools.chain(*ranks.steps())))
    assert set(seen.values()) == {1}
    assert seen <= everything
    assert filtered or len(seen) > COUNT - 8


@pytest.mark.parametrize("service", [2], indirect=True)
def test_an_epoch_that_one_rank_has_seen_the_end_of_is_over_for_any_number(service, dataset):
    with ExitStack() as stack:
        ranks = Ranks(stack, service, dataset, 4)
        ranks.steps()
        ended = ranks.states()
    assert all(state["ended"] for state in ended)
    for states, empty in ((ended, 0), ([*ended[:-1], {**ended[-1], "ended": False}], 1)):
        with ExitStack() as stack:
            ranks = Ranks(stack, service, dataset, 1, states)
            found = [ranks.steps()[0], list(ranks.parts[0])]
        assert [len(batches) > 0 for batches in found] == [not empty, True]
        assert set(Counter(numbers(found[empty])).values()) == {1}
