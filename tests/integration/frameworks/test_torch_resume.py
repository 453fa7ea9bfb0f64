"""torchdata's StatefulDataLoader over datasets, in process and on a service: stopped at any step and gone on."""

import contextlib
import io
import itertools

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import millrace as mr

COUNT = 300
SIZE = 16
EPOCHS = 3


def pipeline(seed=7):
    dataset = (
        mr.Dataset.range(COUNT).map(lambda x: np.array([x])).filter(lambda x: x[0] % 3 > 0).shuffle(50).batch(SIZE)
    )
    return dataset if seed is None else dataset.with_options(seed=seed)


ALL = [number for number in range(COUNT) if number % 3]


def passed_on(state):
    """As a checkpoint on a disk, which torch reads without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def numbers(batches):
    return [int(value) for batch in batches for value in batch.ravel()]


@contextlib.contextmanager
def in_process(workers, seed=7):
    yield StatefulDataLoader(pipeline(seed).torch(), batch_size=None, num_workers=workers)


@pytest.fixture(scope="module")
def service():
    with mr.LocalService(max_workers=2) as running:
        yield running


@pytest.fixture(params=["in process", "on a service"])
def place(request, service):
    """Where loaders read from; on a service in order, so that runs can be compared."""
    if request.param == "in process":
        return in_process

    @contextlib.contextmanager
    def on_a_service(workers, seed=7):
        with pipeline(seed).distribute(service.address, deterministic=True, tasks=6) as dataset:
            yield StatefulDataLoader(dataset.torch(), batch_size=None, num_workers=workers)

    return on_a_service


def read_on(loader, count):
    """Passes until there are so many numbers."""
    found: list[int] = []
    while len(found) < count:
        found += numbers(loader)
    return found


@pytest.mark.parametrize(("workers", "steps"), [(0, [0, 3, 12, 13, 14]), (2, [5])])
def test_a_stateful_loader_goes_on_from_any_step(place, workers, steps):
    with place(workers) as loader:
        whole = [numbers(loader) for _ in range(EPOCHS)]
    assert [sorted(epoch) for epoch in whole] == [ALL] * EPOCHS
    for step in steps:
        with place(workers) as loader:
            head = numbers(loader) + numbers(itertools.islice(loader, step))
            state = passed_on(loader.state_dict())
        with place(workers) as loader:
            loader.load_state_dict(state)
            middle = numbers(itertools.islice(loader, 2))
            state = passed_on(loader.state_dict())
        with place(workers) as loader:
            loader.load_state_dict(state)
            found = head + middle
            assert found + read_on(loader, EPOCHS * len(ALL) - len(found)) == [*itertools.chain(*whole)], step


@pytest.mark.parametrize("workers", [0, 2])
def test_at_the_end_of_an_epoch_and_with_a_seed_that_was_drawn(place, workers):
    with place(workers, None) as loader:
        numbers(loader)
        state = passed_on(loader.state_dict())
        expected = [numbers(loader), numbers(loader)]
    with place(workers, None) as loader:
        loader.load_state_dict(state)
        assert [numbers(loader), numbers(loader)] == expected


def test_workers_of_a_loader_agree_about_a_seed_that_was_drawn():
    with in_process(2, None) as loader:
        assert sorted(numbers(loader)) == ALL


def test_before_the_first_epoch():
    for workers in (0, 2):
        with in_process(workers) as loader:
            state = passed_on(loader.state_dict())
            whole = [numbers(loader), numbers(loader)]
        with in_process(workers) as loader:
            loader.load_state_dict(state)
            assert [numbers(loader), numbers(loader)] == whole


def test_other_workers_than_before_are_refused():
    with in_process(2) as loader:
        next(iter(loader))
        state = loader.state_dict()["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    dataset = pipeline().torch()
    dataset.load_state_dict(state)
    with pytest.raises(mr.StateError, match="process 0 of 2 in a DataLoader: load it there, with num_workers=2"):
        iter(dataset)


def test_without_a_loader_as_any_stateful_object(service):
    with pipeline().distribute(service.address, deterministic=True, tasks=6) as distributed:
        dataset = distributed.torch()
        batches = iter(dataset)
        head = numbers(itertools.islice(batches, 5))
        assert dataset.get_state() == batches.get_state()
        state = passed_on(dataset.state_dict())
        rest, following = numbers(batches), numbers(dataset)
    again = pipeline().torch()
    batches = iter(again)
    next(batches)
    with pytest.raises(mr.StateError, match="give the same tasks="):
        batches.set_state(state)
    with pipeline().distribute(service.address, deterministic=True, tasks=6) as distributed:
        again = distributed.torch()
        again.set_state(state)
        assert (numbers(again), numbers(again)) == (rest, following)
        assert sorted(head + rest) == ALL
