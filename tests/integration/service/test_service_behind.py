"""Operators behind distribute(), on a service: exactly once, whoever stops where, and nothing is left behind."""

import itertools
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from tests.integration.service.service_driving import PAUSE_S, WAIT_S

import millrace as mr

COUNT = 600
ALL = Counter(number for number in range(COUNT) if number % 3)

pytestmark = pytest.mark.parametrize("service", [2], indirect=True)


def is_wanted(number):
    return number % 3 > 0


def served(service, **options):
    return mr.Dataset.range(COUNT).batch(5).distribute(service.address, tasks=12, seed=5, **options)


def numbers(batches):
    return [int(number) for batch in batches for number in np.atleast_1d(batch)]


def passed_on(states):
    text = json.dumps(states)
    assert len(text) < 4096 * (len(states) if isinstance(states, list) else 1)
    return json.loads(text)


CHAINS = {
    "one by one": lambda batches: batches.unbatch().filter(is_wanted).prefetch(3),
    "collected": lambda batches: batches.unbatch().filter(is_wanted).batch(7),
    "made of others": lambda batches: batches.flat_map(lambda batch: batch[batch % 3 > 0]).batch(4).prefetch(2),
    "cut anew": lambda batches: batches.map(lambda batch: batch[batch % 3 > 0]).rebatch(4),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_one_reader_stopped_again_and_again(service, chain):
    rng = random.Random(chain)
    state: Any = None
    epochs: list[Counter[int]] = [Counter(), Counter()]
    while True:
        with CHAINS[chain](served(service, job_name=chain)) as dataset:
            if state is not None:
                dataset.load_state_dict(state)
            for element in itertools.islice(dataset, rng.randrange(10, 300 if chain == "one by one" else 60)):
                state = dataset.state_dict()
                epochs[state["epoch"]].update(numbers([element]))
            state = passed_on(dataset.state_dict())
            if state["epoch"] == 1 and state["ended"]:
                break
    assert epochs == [ALL, ALL]


@pytest.mark.parametrize(("after", "own"), [(2, True), (3, False), (1, False)])
def test_ranks_that_stopped_inside_a_batch_and_other_ranks_after_that(service, after, own):
    def ranks(stack, count):
        parts = [served(service, job_name="ranks", num_consumers=count, consumer_index=rank) for rank in range(count)]
        return [stack.enter_context(part.unbatch().filter(is_wanted)) for part in parts]

    found: Counter[int] = Counter()
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:
        epochs = list(pool.map(iter, ranks(stack, 2)))
        for step, epoch in enumerate(epochs):
            found.update(itertools.islice(epoch, 33 + 20 * step))
        states = passed_on([epoch.state_dict() for epoch in epochs])
        assert any(state["parts"] for state in states)
    with ExitStack() as stack, ThreadPoolExecutor(3) as pool:

        def read(rank):
            dataset = datasets[rank]
            dataset.load_state_dict(states[rank] if own else states)
            return list(dataset)

        datasets = ranks(stack, after)
        for rest in pool.map(read, range(after), timeout=WAIT_S):
            found.update(rest)
    assert found == ALL


def test_in_a_fixed_order_the_rest_is_what_it_would_have_been(service):
    def rng_too(number, rng):
        return number + int(rng.integers(1000)) / 1000

    def dataset():
        batches = served(service, deterministic=True)
        return batches.unbatch().map(rng_too).enumerate().skip(7).shard(2, 1).batch(3).take(60)

    with dataset() as first:
        whole = [tuple(map(np.ndarray.tolist, pair)) for pair in first]
    assert len(whole) == 60
    with dataset() as first, iter(first) as epoch:
        head = list(itertools.islice(epoch, 23))
        state = passed_on(epoch.state_dict())
    with dataset() as second:
        second.load_state_dict(state)
        rest = list(second)
        assert len(list(second)) == 60  # the next epoch begins anew
    assert [tuple(map(np.ndarray.tolist, pair)) for pair in head + rest] == whole


def test_a_state_is_loaded_into_an_iterator_whatever_has_become_of_that(service):
    def dataset(count=COUNT):
        return mr.Dataset.range(count).batch(5).distribute(service.address, tasks=12).unbatch().filter(is_wanted)

    with dataset(COUNT // 2) as other, iter(other) as epoch:
        next(epoch)
        foreign = epoch.state_dict()
    with dataset() as part:
        epoch = iter(part)
        fresh = epoch.state_dict()
        epoch.close()
        assert list(epoch) == []
        epoch.load_state_dict(fresh)  # of one that nobody had asked
        head = numbers(itertools.islice(epoch, 50))
        state = epoch.state_dict()
        assert numbers(itertools.islice(epoch, 20))
        with pytest.raises(mr.StateError, match="with other operators"):
            epoch.load_state_dict(foreign)
        with pytest.raises(mr.StateError, match="load another one"):
            next(epoch)
        for _ in range(2):  # of one that has failed, and of one that has ended
            epoch.load_state_dict(state)
            assert Counter(head) + Counter(numbers(epoch)) == ALL


def test_an_iterator_that_is_closed_or_was_refused_a_state_in_mid_chunk_gives_no_more(service):
    def dataset(count=COUNT):
        return mr.Dataset.range(count).batch(5).distribute(service.address, tasks=12, deterministic=True).unbatch()

    with dataset(COUNT // 2) as other, iter(other) as epoch:
        next(epoch)
        foreign = epoch.state_dict()
    with dataset() as part:
        epoch = iter(part)
        assert next(epoch) == 0  # of five at least
        state = epoch.state_dict()
        with pytest.raises(mr.StateError):
            epoch.load_state_dict(foreign)
        with pytest.raises(mr.StateError, match="load another one"):
            next(epoch)
        epoch.load_state_dict(state)
        assert next(epoch) == 1
        epoch.close()
        assert list(epoch) == []
        epoch.load_state_dict(epoch.state_dict())
        assert list(epoch) == list(range(2, COUNT))


def test_what_orders_anew_has_states_between_epochs_only(service):
    with served(service).unbatch().shuffle(50) as dataset:
        dataset.load_state_dict(dataset.state_dict())
        epoch = iter(dataset)
        order = [next(epoch)]
        with pytest.raises(mr.StateError, match=r"where shuffle\(\) stands behind distribute\(\).*at an epoch's end"):
            epoch.state_dict()
        order += epoch
        assert sorted(order) == list(range(COUNT))
        assert order != sorted(order)
        state = passed_on(dataset.state_dict())
    with served(service).unbatch().shuffle(50) as dataset:
        dataset.load_state_dict(state)
        epoch = iter(dataset)
        assert epoch.state_dict()["epoch"] == 1
        assert sorted(epoch) == list(range(COUNT))


def test_a_function_that_fails_is_named_after_what_came_before(service):
    def fail(number):
        if number == 33:
            raise ValueError("no")
        return number

    with served(service, deterministic=True).unbatch().map(fail) as dataset:
        elements, found = iter(dataset), list[int]()
        for _ in range(2):
            with pytest.raises(
                mr.ElementError, match=r"map\(fail\) failed on part 3 of element 6 of task 0 of distribute\(\): .* no"
            ):
                found += iter(elements.__next__, None)
        assert dataset.status()["jobs"]
    with served(service, deterministic=True).unbatch().map(fail).with_options(on_error="skip") as dataset:
        elements = iter(dataset)
        assert sorted(elements) == [number for number in range(COUNT) if number != 33]
        assert elements.skipped == 1


def test_threads_epochs_lengths_and_views(service):
    found: list[int] = []
    with served(service).unbatch() as dataset:
        elements = iter(dataset)
        with ThreadPoolExecutor(4) as pool:
            for each in [pool.submit(found.extend, elements) for _ in range(4)]:
                each.result(WAIT_S)
        assert sorted(found) == list(range(COUNT))
        assert sorted(dataset.epochs(2)) == sorted(2 * list(range(COUNT)))
        with pytest.raises(mr.UnknownLengthError):
            len(dataset)
        assert dataset.peek(3) == [0, 1, 2]
    with served(service).map(lambda batch: batch * 2).take(50) as dataset:
        assert len(dataset) == 50
        pairs = zip(dataset.numpy(), dataset.torch(), strict=True)  # two passes, beside each other
        kinds = {(type(one), type(other).__name__) for one, other in pairs}
        assert kinds == {(np.ndarray, "Tensor")}
        assert dataset.tensorflow().element_spec.shape.as_list() in ([5], [None])


def test_closed_or_dropped_nothing_is_left(service, gate, keeper):
    def wait(number):
        gate.pass_through()
        return number

    def of_ours():
        return [each for each in threading.enumerate() if each.name.startswith(("millrace-prefetch", "millrace-map"))]

    pause = threading.Event()
    slow = mr.Dataset.range(5).map(wait)
    with slow.distribute(service.address).prefetch(2) as dataset, ThreadPoolExecutor(1) as pool:
        elements = iter(dataset)
        waiting = pool.submit(list, elements)
        keeper.wait()
        elements.close()
        assert waiting.result(WAIT_S) == []
        assert not elements.state_dict()["ended"]
        keeper.open()
    with served(service).map(lambda batch: (pause.wait(0.001), batch)[1], num_parallel_calls=2).prefetch(2) as dataset:
        elements = iter(dataset)
        next(elements)
        del elements  # and the next epoch may begin
        assert len(list(dataset)) == COUNT // 5
        elements = iter(dataset)
        next(elements)
        elements = iter(dataset)
        assert len(list(elements)) == COUNT // 5
    until = time.monotonic() + WAIT_S
    while of_ours() and time.monotonic() < until:
        threading.Event().wait(PAUSE_S)
    assert of_ours() == []
