"""torch's DataLoader over datasets, in process and on a service: every element once, epoch by epoch."""

import itertools
import multiprocessing
import os
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import millrace as mr

COUNT = 1000
ALL = list(range(COUNT))

KINDS = [
    pytest.param(
        workers,
        persistent,
        method,
        id=f"{workers}-{method}-{'kept' if persistent else 'anew'}",
        marks=pytest.mark.nightly if (workers, method) == (1, "spawn") else (),
    )
    for workers, persistent, method in [
        (0, False, None),
        (1, False, "fork"),
        (2, False, "fork"),
        (2, True, "fork"),
        (1, False, "spawn"),  # one, as each imports torch
        (2, True, "spawn"),
    ]
]


def pipeline():
    offset = 0  # a closure: pickle alone could not send it to a spawned process
    return mr.Dataset.range(COUNT).shuffle(100, seed=7).map(lambda x: np.array([x + offset])).batch(32)


def values(batches):
    return [int(value) for batch in batches for value in batch.ravel()]


def load(dataset, workers=2, persistent=False, method="fork", kind=DataLoader):
    return kind(
        dataset, batch_size=None, num_workers=workers, persistent_workers=persistent, multiprocessing_context=method
    )


@pytest.fixture
def service():
    with mr.LocalService(max_workers=1) as running:
        yield running


class TestInProcess:
    def test_numbers_epochs_as_bare_iteration_does(self):
        dataset = pipeline()
        expected = [values(dataset) for _ in range(3)]
        dataset = pipeline()
        found = [values(dataset.torch()), values(dataset), values(dataset.torch())]
        assert found == expected

    @pytest.mark.parametrize(("workers", "persistent", "method"), KINDS)
    def test_loader(self, workers, persistent, method):
        bare = pipeline()
        expected = [values(bare) for _ in range(4)]
        loader = load(pipeline().torch(), workers, persistent, method)
        epochs = [values(loader)]
        values(itertools.islice(loader, 3))  # broken off
        epochs += [values(loader), values(loader)]
        assert [sorted(epoch) for epoch in epochs] == [ALL] * 3
        assert epochs[0] != epochs[1] != epochs[2]
        if workers < 2:
            assert epochs == [expected[0], *expected[2:]]
        assert len(loader) == 32

    def test_stateful_loader_as_a_plain_one(self):
        loader = load(pipeline().torch(), kind=StatefulDataLoader)
        assert sorted(values(loader)) == ALL
        assert sorted(values(loader)) == ALL

    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_pass_with_the_seed_of_an_earlier_one_is_the_next_epoch_all_the_same(self, persistent):
        dataset = pipeline().torch()
        epochs = []
        for _ in range(3):
            torch.manual_seed(7)
            loader = load(dataset, persistent=persistent)
            epochs += [values(loader), values(loader)]
        assert [sorted(epoch) for epoch in epochs] == [ALL] * 6
        assert len(set(map(tuple, epochs))) == 6

    @pytest.mark.parametrize("persistent", [False, True])
    def test_a_loader_goes_back_to_a_state_and_on_from_there(self, persistent):
        loader = load(pipeline().torch(), persistent=persistent, kind=StatefulDataLoader)
        epochs, state = [], None
        for number in range(5):
            batches = []
            for batch in loader:
                batches.append(batch)
                if (number, len(batches)) == (1, 10):
                    state = loader.state_dict()
            epochs.append(values(batches))
        assert state is not None
        loader.load_state_dict(state)
        assert sorted(epochs[1][: 10 * 32] + values(loader)) == ALL
        assert [values(loader) for _ in range(3)] == epochs[2:]

    def test_two_loaders_at_once(self):
        dataset = pipeline().torch()
        pairs = list(zip(load(dataset), load(dataset), strict=True))
        assert sorted(values(a for a, _ in pairs)) == ALL
        assert sorted(values(b for _, b in pairs)) == ALL

    def test_loaders_with_different_workers_go_on_counting(self):
        dataset = pipeline().torch()
        bare = pipeline()
        expected = [values(bare) for _ in range(3)]
        assert values(load(dataset, 1)) == expected[0]
        assert sorted(values(load(dataset, 2))) == ALL
        assert values(load(dataset, 0, method=None)) == expected[2]

    def test_leftovers_reach_the_loader(self):
        dataset = mr.Dataset.range(3000).filter(lambda x: x % 3 == 0).map(lambda x: np.array([x])).batch(32)
        batches = list(load(dataset.torch()))
        assert sorted(values(batches)) == list(range(0, 3000, 3))
        assert sum(len(batch) < 32 for batch in batches) <= 2  # one for each worker

    def test_few_elements_are_shared_all_the_same(self):
        processes = mr.Dataset.range(16).map(lambda x: (x, os.getpid()))
        elements = list(load(processes.torch()))
        assert sorted(x for x, _ in elements) == list(range(16))
        assert len({pid for _, pid in elements}) == 2

    def test_collating_loader(self):
        loader = DataLoader(mr.Dataset.range(100).torch(), batch_size=10, num_workers=2)
        assert sorted(values(loader)) == list(range(100))
        assert len(loader) == 10

    def test_its_loop_sets_weights(self):
        here, there = mr.Dataset.range(1000), mr.Dataset.range(-1000, 0)
        mixture = mr.Dataset.sample_from_datasets([here.repeat(), there.repeat()], [0, 1])
        mixed, seen, begin = mixture.take(1000).map(np.array).prefetch(32).torch(), list[int](), 0
        for x in DataLoader(mixed, batch_size=None):
            seen.append(int(x))
            if len(seen) == 100:
                begin = mixed.set_weights([1, 0])
        assert max(seen[:begin]) < 0 <= min(seen[begin:])
        assert 100 <= begin < len(seen) == 1000
        loader = load(mixed)
        next(batches := iter(loader))
        with pytest.raises(mr.PipelineError, match="a DataLoader with worker processes reads there, so use num_work"):
            mixed.set_weights([1, 0])
        del batches

    def test_unknown_length(self):
        loader = DataLoader(mr.Dataset.range(10).filter(lambda x: x > 3).torch(), batch_size=None)
        with pytest.raises(TypeError, match="known only after reading"):
            len(loader)
        assert list(loader) == [4, 5, 6, 7, 8, 9]

    def test_an_error_says_where(self):
        def fail(x):
            raise ValueError(f"not {x}")

        loader = load(mr.Dataset.range(10).map(fail).torch())
        with pytest.raises(mr.ElementError, match="not "):
            list(loader)


class TestDistributed:
    @pytest.mark.parametrize(("workers", "persistent", "method"), KINDS)
    def test_loader_on_an_embedded_service(self, workers, persistent, method):
        with pipeline().distribute(workers=1) as distributed:
            loader = load(distributed.torch(), workers, persistent, method)
            epochs = [values(loader)]
            values(itertools.islice(loader, 3))  # broken off
            epochs += [values(loader), values(loader)]
            assert [sorted(epoch) for epoch in epochs] == [ALL] * 3
            assert epochs[0] != epochs[1] != epochs[2]
            assert len(loader) == 32
            services = {distributed.__pipeline__().service_address()}
        assert len(services) == 1

    def test_one_service_for_all_and_gone_with_the_dataset(self):
        distributed = pipeline().distribute(workers=1)
        dataset = distributed.torch()
        address = distributed.__pipeline__().service_address()
        loader = load(dataset, persistent=True)
        assert sorted(values(loader)) == ALL
        assert distributed.__pipeline__().service_address() == address
        assert len(distributed.status()["workers"]) == 1
        del distributed, dataset, loader  # no process is left, says the fixture of all integration tests

    def test_bare_then_loaders_then_bare(self):
        with pipeline().distribute(workers=1) as distributed:
            dataset = distributed.torch()
            passes = [
                values(distributed),
                values(dataset),
                values(load(dataset, 2)),
                values(load(dataset, 1)),
                values(load(dataset, 2)),
                values(dataset),
                values(distributed),
            ]
        assert [sorted(each) for each in passes] == [ALL] * len(passes)

    def test_a_pass_with_the_seed_of_an_earlier_one_is_the_next_epoch(self):
        with pipeline().distribute(workers=1) as distributed:
            dataset, epochs = distributed.torch(), []
            for _ in range(3):
                torch.manual_seed(7)
                epochs.append(values(load(dataset)))
        assert [sorted(epoch) for epoch in epochs] == [ALL] * 3
        assert epochs[0] != epochs[1] != epochs[2]

    def test_loaders_at_once_are_told_apart(self):
        with pipeline().distribute(workers=1) as distributed:
            dataset = distributed.torch()
            first = iter(load(dataset))
            next(first)
            with pytest.raises(mr.ConsumerConflictError, match="is being read already by process"):
                list(load(dataset))
            assert len(list(first)) == 31

    def test_ranks_with_loaders_read_each_element_once(self, service):
        def of_rank(rank):
            distributed = pipeline().distribute(service.address, job_name="ranks", num_consumers=2, consumer_index=rank)
            with pytest.raises(TypeError, match="one consumer"):
                len(distributed)
            return load(distributed.torch())

        loaders = [of_rank(0), of_rank(1)]
        for _ in range(2):
            passes = [iter(loader) for loader in loaders]
            found = [values([batch]) for pair in itertools.zip_longest(*passes) for batch in pair if batch is not None]
            assert sorted(itertools.chain(*found)) == ALL

    def test_a_job_that_was_read_before_goes_on(self, service):
        passes = []
        for _ in range(2):  # as if the program was started again
            with pipeline().distribute(service.address, job_name="again") as distributed:
                passes.append(values(load(distributed.torch())))
        assert [sorted(each) for each in passes] == [ALL, ALL]

    def test_an_exception_in_the_loop_leaves_nothing(self):
        with pytest.raises(RuntimeError, match="of the trainer"), pipeline().distribute(workers=1) as distributed:
            for _ in load(distributed.torch()):
                raise RuntimeError("of the trainer")

    def test_an_error_of_the_data_reaches_the_trainer(self):
        def fail(x):
            raise ValueError(f"not {x}")

        with (
            mr.Dataset.range(10).map(fail).distribute(workers=1) as distributed,
            pytest.raises(Exception, match="not "),
        ):
            list(load(distributed.torch()))


def test_a_distributed_dataset_is_pickled_without_its_functions():
    threshold = 3
    with mr.Dataset.range(10).filter(lambda x: x > threshold).distribute(workers=1) as distributed:
        copy = multiprocessing.reduction.ForkingPickler.loads(
            multiprocessing.reduction.ForkingPickler.dumps(distributed)
        )
        distributed_state = distributed.__pipeline__().__getstate__()
        assert distributed_state["_pipeline"] is None
        assert copy.peek(2) == [4, 5]


class TestForkedChildren:
    """Whatever a forked child does or however it ends, the service is its parent's."""

    @pytest.mark.parametrize("ending", ["exit", "return", "kill"])
    def test_leaves_the_service_alone(self, ending):
        with pipeline().distribute(workers=1) as distributed:
            assert sorted(values(distributed)) == ALL
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if not child:
                try:
                    distributed.close()
                    if ending == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                finally:
                    sys.stdout.flush()
                    os._exit(0 if ending == "return" else 3)
            os.waitpid(child, 0)
            assert sorted(values(distributed)) == ALL

    def test_does_not_read_with_its_parents_session(self, service):
        def read():
            try:
                list(distributed)
            except mr.ServiceError as error:
                sender.send(str(error))

        receiver, sender = multiprocessing.Pipe(duplex=False)
        with pipeline().distribute(service.address) as distributed:
            assert sorted(values(distributed)) == ALL
            child = multiprocessing.get_context("fork").Process(target=read)
            child.start()
            assert "forked from it: open another one here" in receiver.recv()
            child.join()
            assert sorted(values(distributed)) == ALL

    def test_starts_though_the_parent_seeks_a_lost_dispatcher(self):
        service = mr.LocalService(max_workers=1)
        with pipeline().distribute(service.address) as distributed:
            assert sorted(values(distributed)) == ALL
            service.close()
            assert sorted(values(load(pipeline().torch()))) == ALL  # meanwhile the session waits within gRPC

    def test_does_not_keep_a_closed_service_alive(self):
        service = mr.LocalService(max_workers=1)
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=receiver.recv)
        child.start()
        service.close()
        assert service._process.returncode == 0  # it ended by itself
        sender.send(None)
        child.join()


def test_torch_is_not_imported_for_nothing():
    assert torch.utils.data.IterableDataset in type(mr.Dataset.range(1).torch()).__mro__


def test_helpers_have_local_workers_each(service):
    """The one that has read its share ends, and its local workers with it; the others go on."""
    dataset = mr.Dataset.range(COUNT).map(lambda x: np.array([x])).batch(10)
    with dataset.distribute(service.address, target_workers="local", local_workers=1, tasks=50) as distributed:
        for _ in range(2):
            assert sorted(values(load(distributed.torch()))) == ALL
        job = distributed.status()["jobs"]
        assert all(each["where"]["remote"] == 0 for each in job)
