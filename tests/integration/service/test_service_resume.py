"""Loops that go on from saved states on a service: each element once, whoever stopped, and on however many ranks."""

import itertools
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.integration.service.service_driving import WAIT_S, Service

import millrace as mr
from millrace import ShardingPolicy

COUNT = 600
ALL = Counter(number for number in range(COUNT) if number % 3)
OPTIONS: dict[str, Any] = {"tasks": 12, "job_name": "ours"}


def pipeline():
    return mr.Dataset.range(COUNT).shuffle(100).filter(lambda number: number % 3 > 0).batch(7).with_options(seed=5)


def passed_on(states):
    """As checkpoints on a disk."""
    text = json.dumps(states)
    assert len(text) < 4096 * (len(states) if isinstance(states, list) else 1)
    return json.loads(text)


def numbers(batches):
    return [number for batch in batches for number in batch.tolist()]


def ranks(stack, service, count, **options):
    return [
        stack.enter_context(
            pipeline().distribute(service.address, num_consumers=count, consumer_index=rank, **{**OPTIONS, **options})
        )
        for rank in range(count)
    ]


def all_at_once(action, datasets):
    """``action`` of each in a thread of its own, as ranks are processes of their own."""
    with ThreadPoolExecutor(len(datasets)) as pool:
        return list(pool.map(action, datasets, timeout=WAIT_S))


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("deterministic", [False, True])
def test_one_reader_stopped_again_and_again(service, deterministic):
    rng = random.Random(f"{deterministic}")
    state: Any = None
    epochs: list[Counter[int]] = [Counter(), Counter()]
    while True:
        with pipeline().distribute(service.address, deterministic=deterministic, **OPTIONS) as dataset:
            if state is not None:
                dataset.load_state_dict(state)
            for batch in itertools.islice(dataset, rng.randrange(1, 25)):
                state = passed_on(dataset.state_dict())
                epochs[state["epoch"]].update(batch.tolist())
            state = passed_on(dataset.state_dict())
            if state["epoch"] == 1 and state["ended"]:
                break
    assert epochs == [ALL, ALL]


def tokens(number):
    return [number] * (number % 9)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_packed_rows_go_on_from_any_row(service):
    packed = mr.Dataset.range(COUNT).shuffle(100).map(tokens).pack(128, window=3).with_options(seed=5)
    with packed.distribute(service.address, deterministic=True, **OPTIONS) as dataset:
        states, whole = [dataset.state_dict()], []
        for row in dataset:
            whole.append(repr(row))
            states.append(passed_on(dataset.state_dict()))
    assert len(whole) >= sum(number % 9 for number in range(COUNT)) // 128
    for step in range(0, len(states), 3):
        with packed.distribute(service.address, deterministic=True, **OPTIONS) as dataset:
            dataset.load_state_dict(states[step])
            assert [repr(row) for row in dataset] == whole[step:]


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize(("before", "after", "own"), [(1, 3, False), (3, 2, False), (2, 2, True), (2, 1, False)])
@pytest.mark.parametrize("sharding", [ShardingPolicy.DYNAMIC, ShardingPolicy.STATIC])
def test_ranks_at_unequal_steps_and_other_ranks_after_that(service, sharding, before, after, own):
    found: Counter[int] = Counter()
    states: Any = []
    with ExitStack() as stack:
        datasets = ranks(stack, service, before, sharding=sharding)
        for step, epoch in enumerate(all_at_once(iter, datasets)):
            found.update(numbers(itertools.islice(epoch, 3 + 4 * step)))
            states.append(epoch.state_dict())
        states = passed_on(states)
    for _ in range(2):  # as if all of them had died at once, twice
        with ExitStack() as stack:
            datasets = ranks(stack, service, after, sharding=sharding)

            for rank, dataset in enumerate(datasets):
                dataset.load_state_dict(states[rank] if own else states)
            states = passed_on([dataset.state_dict() for dataset in datasets])  # saved before anything is read
            rest = all_at_once(lambda dataset: [numbers(dataset), numbers(dataset)], datasets)
        assert found + Counter(n for first, _ in rest for n in first) == ALL
        assert Counter(n for _, second in rest for n in second) == ALL


@pytest.mark.parametrize("service", [2], indirect=True)
def test_in_the_place_of_a_rank_that_went_in_a_fixed_order(service, gate, keeper):
    """Tails have begun without what that one was to read, which whoever reads it now gets whole."""

    seen: list[int] = []

    def look(number):
        seen.append(number)
        if len(seen) % 3_000 == 0:  # in each worker, so that not all is dealt before the rank has gone
            gate.pass_through()
        return number

    numbered = mr.Dataset.range(24_000).map(look).shuffle(100)
    many = numbered.filter(lambda number: number % 3 > 0).batch(7).with_options(seed=5)

    def rank(index):
        return many.distribute(
            service.address, job_name="ours", num_consumers=2, consumer_index=index, tasks=480, deterministic=True
        )

    with rank(1) as stays:
        epochs = [iter(stays)]
        with rank(0) as goes:
            next(iter(goes))
        keeper.open()
        found = Counter(numbers(itertools.islice(epochs[0], 300)))
        with rank(0) as comes:
            epochs.insert(0, iter(comes))
            found.update(numbers(itertools.islice(epochs[0], 60)))
            states = passed_on([epoch.state_dict() for epoch in epochs])
    assert any(state["alone"] != [0, ""] for state in states)
    with rank(0) as first, rank(1) as second:
        first.load_state_dict(states[0])
        second.load_state_dict(states[1])
        rest = all_at_once(numbers, [first, second])
    assert found + Counter(itertools.chain(*rest)) == Counter(number for number in range(24_000) if number % 3)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_the_life_before_gets_an_error_and_takes_nothing(service, gate, keeper):
    def look(number):
        if number == COUNT - 10:
            gate.pass_through()  # the life before can't be through with its epoch
        return number

    shuffled = mr.Dataset.range(COUNT).map(look).shuffle(100)
    held = shuffled.filter(lambda number: number % 3 > 0).batch(7).with_options(seed=5)
    with (
        held.distribute(service.address, **OPTIONS) as old,
        held.distribute(service.address, **OPTIONS) as new,
    ):
        epoch = iter(old)
        head = numbers(itertools.islice(epoch, 5))
        new.load_state_dict(epoch.state_dict())
        fresh = iter(new)
        some = numbers(itertools.islice(fresh, 5))
        with pytest.raises(mr.ConsumerConflictError, match=r"(begun anew|is over)"):
            list(epoch)
        keeper.open()
        assert Counter(head + some + numbers(fresh)) == ALL


@pytest.mark.parametrize("service", [2], indirect=True)
def test_from_a_process_without_a_service_and_back(service):
    dataset = pipeline()
    elements = iter(dataset)
    head = numbers(itertools.islice(elements, 9))
    state = passed_on(elements.state_dict())
    elements.close()
    with pipeline().distribute(service.address) as distributed:
        distributed.load_state_dict(state)
        epoch = iter(distributed)
        head += numbers(itertools.islice(epoch, 9))
        state = passed_on(epoch.state_dict())
    again = pipeline()
    again.load_state_dict(state)
    assert Counter(head + numbers(again)) == ALL


def test_after_the_dispatcher_died_with_its_journal_or_for_good(tmp_path):
    with Service(2, work_dir=tmp_path / "work") as service:
        with pipeline().distribute(service.address, **OPTIONS) as dataset:
            epoch = iter(dataset)
            head = numbers(itertools.islice(epoch, 10))
            state = passed_on(epoch.state_dict())
        with pipeline().distribute(service.address, **OPTIONS) as dataset:
            dataset.load_state_dict(state)
            epoch = iter(dataset)
            some = numbers(itertools.islice(epoch, 5))
            service.restart_dispatcher()
            assert Counter(head + some + numbers(epoch)) == ALL
    with Service(1) as another, pipeline().distribute(another.address, **OPTIONS) as dataset:
        dataset.load_state_dict(state)
        assert Counter(head + numbers(dataset)) == ALL


@pytest.mark.parametrize("service", [2], indirect=True)
def test_what_changed_is_said(service, tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name)
    files = mr.Dataset.from_files(str(tmp_path / "*"))
    with files.distribute(service.address) as dataset:
        next(iter(dataset))
        state = dataset.state_dict()
    (tmp_path / "c").write_text("another")
    with files.distribute(service.address) as dataset:
        dataset.load_state_dict(state)
        with pytest.raises(mr.StateError, match=r"from_files\(\): split 2 is another"):
            iter(dataset)
    with pipeline().distribute(service.address) as dataset, pytest.raises(mr.StateError, match="other operators"):
        dataset.load_state_dict(state)
    with files.distribute(service.address, seed=4) as dataset, pytest.raises(mr.StateError, match="has seed 4"):
        dataset.load_state_dict(state)
    with pipeline().distribute(service.address, num_consumers=2, consumer_index=0, job_name="two") as dataset:
        state = passed_on(dataset.state_dict())
        state["done"] = 1
        state["ranks"] = 2
    with pipeline().distribute(service.address) as dataset:
        dataset.load_state_dict(state)
        with pytest.raises(mr.StateError, match="the state of rank 0 of 2"):
            iter(dataset)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize(("own", "behind"), [(True, False), (False, False), (True, True)])
def test_a_rank_loads_through_its_iterator_when_another_has_loaded(service, own, behind):
    """Loaders make an iterator and then load into it; meanwhile the job may have begun anew with another's state."""
    many = mr.Dataset.range(4000).shuffle(4000, seed=5).batch(20)

    def rank(index):
        part = many.distribute(service.address, job_name="pair", num_consumers=2, consumer_index=index)
        return part.map(lambda batch: batch) if behind else part

    def there(status):
        return any(job["name"] == "pair" for job in status["jobs"])

    with rank(0) as first, rank(1) as second:
        epochs = [iter(first), iter(second.numpy())]
        found = Counter(numbers([next(epoch) for epoch in epochs]))
        states = passed_on([epoch.state_dict() for epoch in epochs])
    service.until(lambda status: not there(status))
    with rank(0) as first, rank(1) as second, ThreadPoolExecutor(1) as pool:
        first.load_state_dict(states[0] if own else states)
        leading = pool.submit(iter, first)  # of its own state alone, it waits for the other's
        service.until(there)
        epoch = iter(second.numpy())
        if own:
            with pytest.raises(mr.StateError, match="load this one's"):
                next(epoch)
        epoch.load_state_dict(states[1] if own else states)
        found.update([*numbers(epoch), *numbers(leading.result())])
    assert found == Counter(range(4000))


@pytest.mark.parametrize("service", [1], indirect=True)
@pytest.mark.parametrize("place", ["in process", "on a service", "behind"])
def test_a_state_that_is_loaded_while_an_epoch_is_read_stays_until_the_next_one(service, place):
    """As a callback does that goes back, in a loop that goes on to its end."""
    dataset: Any = mr.Dataset.range(40).shuffle(40).with_options(seed=5)
    if place != "in process":
        dataset = dataset.distribute(service.address, deterministic=True)
    if place == "behind":
        dataset = dataset.map(lambda number: number)
    before = iter(dataset)
    head = list(itertools.islice(before, 5))
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    rest = list(before)
    assert sorted(head + rest) == list(range(40))
    assert dataset.state_dict() == state
    assert list(dataset) == rest
    if place != "in process":
        dataset.close()


@pytest.mark.parametrize("service", [1], indirect=True)
def test_an_iterator_of_a_dataset_that_was_closed_is_at_the_end_that_a_state_says(service):
    with pipeline().distribute(service.address) as dataset:
        values = list(dataset)
        state = dataset.state_dict()
        elements = iter(dataset)
        dataset.close()
        elements.load_state_dict(state)
        assert list(elements) == []
        assert Counter(numbers(dataset)) == Counter(numbers(values))
