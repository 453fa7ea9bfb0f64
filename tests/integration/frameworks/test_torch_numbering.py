"""Epochs of torch views: their numbers in loaders' workers, in ranks that were started with a view, after states."""

import itertools
import multiprocessing

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import millrace as mr

COUNT = 200
ALL = list(range(COUNT))


def pipeline(seed=7):
    dataset = mr.Dataset.range(COUNT).shuffle(COUNT).map(lambda x: np.array([x])).batch(8)
    return dataset if seed is None else dataset.with_options(seed=seed)


def values(batches):
    return [int(value) for batch in batches for value in batch.ravel()]


def load(view, workers=2, **options):
    return DataLoader(view, batch_size=None, num_workers=workers, **options)


@pytest.fixture(scope="module")
def service():
    with mr.LocalService(max_workers=1) as running:
        yield running


@pytest.fixture(params=["in process", "on a service"])
def made(request, service):
    """Makes a pipeline, in process or on a service."""
    datasets = []

    def make(seed=7):
        dataset = pipeline(seed)
        if request.param == "on a service":
            dataset = dataset.distribute(service.address)
            datasets.append(dataset)
        return dataset

    yield make
    for dataset in datasets:
        dataset.close()


def test_a_view_that_is_made_anew_goes_on_with_the_epochs_of_the_last(made):
    dataset = made()
    epochs = [values(load(dataset.torch())) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [ALL] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def read_as_a_rank(view, workers, results):
    context = None if workers == 0 else "fork"
    results.put([values(load(view, workers, multiprocessing_context=context)) for _ in range(2)])


@pytest.mark.parametrize(("method", "workers"), [("fork", 0), ("fork", 2), ("spawn", 0)])
def test_ranks_that_are_started_with_a_view_each_read_every_epoch(method, workers):
    view, context = pipeline().torch(), multiprocessing.get_context(method)
    results = context.SimpleQueue()
    ranks = [context.Process(target=read_as_a_rank, args=(view, workers, results)) for _ in range(2)]
    for rank in ranks:
        rank.start()
    found = [results.get() for _ in ranks]
    for rank in ranks:
        rank.join()
        rank.close()
    bare = pipeline()
    expected = [values(bare), values(bare)]
    if workers == 0:
        assert found == [expected, expected]
    assert [[sorted(epoch) for epoch in epochs] for epochs in found] == [[ALL, ALL]] * 2
    assert all(first != second for first, second in found)
    assert values(view) == expected[0], "nor has the process that started them read any"


def test_a_state_that_was_loaded_before_a_loader_forks_counts_once(service):
    with pipeline().distribute(service.address) as first:
        head = values(itertools.islice(iter(first), 5))
        state = first.state_dict()
    with pipeline().distribute(service.address) as again:
        again.load_state_dict(state)
        loader = load(again.torch())
        epochs = [values(loader) for _ in range(3)]
        assert sorted(head + epochs[0]) == ALL
        assert [sorted(epoch) for epoch in epochs[1:]] == [ALL, ALL]
        assert epochs[1] != epochs[2]
        again.load_state_dict(state)
        assert sorted(head + values(loader)) == ALL, "loaded anew, it counts again"
        assert sorted(values(loader)) == ALL


def test_a_state_of_the_beginning_counts_once(made):
    state = made().state_dict()
    dataset = made()
    dataset.load_state_dict(state)
    loader = load(dataset.torch())
    epochs = [values(loader) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [ALL] * 3
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_what_workers_have_read_the_main_process_does_not_know():
    view = pipeline().torch()
    before = view.state_dict()
    values(load(view))
    for ask in (view.state_dict, view.get_state):
        with pytest.raises(mr.StateError, match="use torchdata's StatefulDataLoader, whose state_dict"):
            ask()
    view.load_state_dict(before)
    assert view.state_dict() == before
    values(load(view))
    with pytest.raises(mr.StateError, match="alone know how far they are"):
        view.state_dict()
    values(view)
    assert view.state_dict() != before
    loader = StatefulDataLoader(pipeline().torch(), batch_size=None, num_workers=2)
    values(loader)
    assert loader.state_dict()


def test_epochs_after_a_state_that_an_iterator_has_loaded_are_those_that_follow_it(made):
    dataset = made()
    view = dataset.torch()
    begun = iter(view)
    head, state = values(itertools.islice(begun, 3)), view.state_dict()
    del begun
    for _ in range(3):
        values(view)
    expected = made()
    whole = [values(expected), values(expected)]
    elements = iter(view)
    elements.load_state_dict(state)
    assert sorted(head + values(elements)) == ALL
    del elements
    following = values(view)
    assert sorted(following) == ALL
    if isinstance(dataset, mr.Dataset):
        assert following == whole[1]
    else:
        assert view.state_dict()["epoch"] == 1


def test_states_of_two_runs_with_seeds_that_were_drawn(made):
    states, heads = [], []
    for _ in range(2):
        dataset = made(seed=None)
        heads.append(values(itertools.islice(iter(dataset), 4)))
        states.append(dataset.state_dict())
    view = made(seed=None).torch()
    for head, state in zip(heads, states, strict=True):
        view.load_state_dict(state)
        assert sorted(head + values(view)) == ALL


@pytest.mark.parametrize(("share", "path", "told"), [((0, 2), "", 1), ((1, 2), "", 0), ((0, 2), "kept", 0)])
def test_a_cache_in_memory_is_little_use_in_a_loader_with_workers(share, path, told, tmp_path, recwarn):
    place = (str(tmp_path / path),) if path else ()
    dataset = mr.Dataset.range(20).map(lambda x: x + 1).cache(*place)
    for _ in range(2):  # the second is another epoch
        with dataset.__pipeline__().read_epoch(share=share) as elements:
            list(elements)
    assert len(recwarn) == told
    assert all("Give cache() a path, or use num_workers=0" in str(each.message) for each in recwarn)
