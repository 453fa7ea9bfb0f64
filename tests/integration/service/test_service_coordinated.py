"""Ranks that get batches of one bucket in each step, whatever becomes of workers, and however little room there is."""

import itertools
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from tests.integration.service.service_driving import WAIT_S

import millrace as mr

COUNT, RANKS = 1000, 3
BOUNDARIES, SIZES = [4, 9], [8, 4, 2]


def grown(number):
    return np.full(1 + number * number % 13, number)


def wanted(number):
    return number % 10 != 3


NUMBERS = Counter(filter(wanted, range(COUNT)))
DATASET = (
    mr.Dataset.range(COUNT)
    .filter(wanted)
    .shuffle(COUNT, seed=3)
    .map(grown)
    .bucket_by_sequence_length(len, BOUNDARIES, SIZES, padding_values=-1)
)


def lengths(batch):
    return [int(np.count_nonzero(row != -1)) for row in batch]


def numbers(batches):
    return Counter(int(row[0]) for batch in batches for row in batch)


class Ranks:
    """All ranks of one life of a training, which read at once."""

    def __init__(self, stack, service, dataset=DATASET, **options):
        self.parts = [
            stack.enter_context(
                dataset.distribute(
                    service.address,
                    num_consumers=RANKS,
                    consumer_index=rank,
                    coordinated=True,
                    **{"job_name": "coordinated", "tasks": 20, **options},
                )
            )
            for rank in range(RANKS)
        ]
        self.pool = stack.enter_context(ThreadPoolExecutor(RANKS))
        self.epochs = self.all(iter, self.parts)

    def all(self, action, items):
        return list(self.pool.map(action, items, timeout=WAIT_S))

    def steps(self, count=None):
        """The next so many steps, each the batches of all ranks; None: all that are left of the epoch."""
        found = self.all(lambda epoch: list(itertools.islice(epoch, count)), self.epochs)
        assert len({len(batches) for batches in found}) == 1, "all have equally many"
        return list(zip(*found, strict=True))


def check(steps, incomplete):
    """Steps are of one bucket, and all of them the data, but for what fills none."""
    mixed = 0
    for step in steps:
        (size,) = {len(batch) for batch in step}
        found = {sum(length >= each for each in BOUNDARIES) for batch in step for length in lengths(batch)}
        full = len(found) == 1 and size == SIZES[min(found)]
        assert full or incomplete == "mix"
        mixed += not full
    seen = numbers(batch for step in steps for batch in step)
    left_out = (NUMBERS - seen).total()
    assert not seen - NUMBERS
    assert left_out < (RANKS if incomplete == "mix" else RANKS * sum(SIZES))
    assert mixed < RANKS * len(SIZES)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("incomplete", ["drop", "mix"])
def test_each_step_is_of_one_bucket_and_all_are_the_data(service, incomplete):
    with ExitStack() as stack:
        ranks = Ranks(stack, service, incomplete=incomplete)
        first = ranks.steps()
        check(first, incomplete)
        ranks.epochs = ranks.all(iter, ranks.parts)
        second = ranks.steps()
        check(second, incomplete)
        assert repr(first) != repr(second), "the data are shuffled anew"


@pytest.mark.parametrize("service", [1], indirect=True)
def test_one_worker_reads_as_many_tasks_at_a_time_as_may_be(service):
    with ExitStack() as stack:
        check(Ranks(stack, service, tasks=80, cycle_length=64).steps(), "drop")


@pytest.mark.parametrize("service", [1], indirect=True)
@pytest.mark.parametrize(("cycle_length", "firsts"), [(1, [0, 12, 24, 36]), (3, [0, 60, 120, 12])])
def test_so_many_tasks_are_read_in_turn_as_the_user_says(service, cycle_length, firsts):
    with ExitStack() as stack:
        dataset = mr.Dataset.range(360).batch(4)
        steps = Ranks(stack, service, dataset, tasks=6, cycle_length=cycle_length).steps(4)
        assert [int(step[0][0]) for step in steps] == firsts


def test_with_hardly_any_room_and_a_worker_that_dies_no_step_is_lost_and_nobody_waits_for_ever(service_with):
    with service_with() as service, ExitStack() as stack:
        service.add(3, "--buffer-bytes", "8000")  # of rounds of up to 1500 bytes, for four slots
        ranks = Ranks(stack, service, incomplete="mix", tasks=40)
        steps = ranks.steps(5)
        service.kill("w1")
        steps += ranks.steps()
        check(steps, "mix")


def test_workers_that_come_and_leave_change_no_step(service_with):
    with service_with() as service, ExitStack() as stack:
        service.add(1)
        whole = Ranks(stack, service, job_name="whole").steps()
        ranks = Ranks(stack, service)
        steps = ranks.steps(3)
        service.add(2)
        steps += ranks.steps(3)
        service.leave("w1")
        steps += ranks.steps()
        assert repr(steps) == repr(whole)


def test_a_dispatcher_that_is_started_anew_changes_no_step(service_with, tmp_path):
    with service_with(work_dir=tmp_path, heartbeat_s=5.0) as service, ExitStack() as stack:  # nobody is to be lost
        service.add(2)
        whole = Ranks(stack, service, job_name="whole").steps()
        ranks = Ranks(stack, service)
        steps = ranks.steps(9)
        service.restart_dispatcher()
        steps += ranks.steps()
    assert repr(steps) == repr(whole)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_an_epoch_too_small_for_a_round_is_empty_and_each_rank_is_told_why(service):
    few = mr.Dataset.range(5).map(grown).padded_batch(4, padding_values=-1)
    with ExitStack() as stack:
        ranks = Ranks(stack, service, few, job_name="few")

        def warned(epoch):
            with pytest.warns(mr.MillraceWarning, match=r"epoch 0 is empty: its elements, 5 in all, are too few"):
                return list(epoch)

        assert [warned(epoch) for epoch in ranks.epochs] == [[]] * RANKS


def come_again(ranks, service, **options):
    """The last rank closes and comes again, and reads one epoch; the others read three."""
    ranks.parts[-1].close()
    ranks.parts[-1] = DATASET.distribute(
        service.address, num_consumers=RANKS, consumer_index=RANKS - 1, coordinated=True, **options
    )
    with ranks.parts[-1]:
        found = ranks.pool.submit(list, iter(ranks.parts[-1]))  # which has joined when the others read on
        epochs = [ranks.all(list, ranks.epochs[:-1])]
        epochs += [ranks.all(list, ranks.parts[:-1]) for _ in range(2)]
        return epochs, found.result(WAIT_S)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_rank_that_closes_and_comes_again_takes_part_in_an_epoch_that_all_begin_and_is_told_which(service):
    with ExitStack() as stack:
        options = {"job_name": "again", "tasks": 20}
        ranks = Ranks(stack, service, **options)
        begun = ranks.steps(5)
        with pytest.warns(mr.MillraceWarning) as told:
            epochs, found = come_again(ranks, service, **options)
        (first,) = {int(number) for each in told for number in re.findall(r"begins with epoch (\d)", str(each.message))}
        assert first >= 1
        check(list(zip(*epochs[first], found, strict=True)), "drop")
        assert repr(found[:5]) != repr([step[-1] for step in begun])
