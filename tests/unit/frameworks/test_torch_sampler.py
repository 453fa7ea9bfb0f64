"""Samplers of torch behind ``sample``: the same draws in every process, other ones in each epoch."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millrace import Dataset, PipelineError

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from millrace.frameworks.torch import TorchSampler  # noqa: E402

SIZE = 40
NUMBERS: Any = range(SIZE)


class Rolled(Sampler[int]):
    """Sampler of a user's own, which goes by torch's generator."""

    def __iter__(self):
        start = int(torch.randint(SIZE, ()))
        return iter([(start + number) % SIZE for number in range(SIZE)])

    def __len__(self):
        return SIZE


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(SIZE)),
        RandomSampler(range(SIZE), replacement=True, num_samples=100),
        WeightedRandomSampler([1.0 + number for number in range(SIZE)], 30),
        SubsetRandomSampler(range(0, SIZE, 2)),
        DistributedSampler(NUMBERS, num_replicas=2, rank=1),
        Rolled(),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_it_draws_alike_in_each_process_and_otherwise_in_each_epoch(sampler):
    ours = TorchSampler(sampler)
    before = torch.random.get_rng_state()
    epochs = [ours.positions(SIZE, 5, epoch).tolist() for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(9)
    elsewhere = pickle.loads(pickle.dumps(ours))
    assert [elsewhere.positions(SIZE, 5, epoch).tolist() for epoch in (0, 1)] == epochs
    assert len(epochs[0]) == ours.num_samples == len(sampler)


def test_in_a_pipeline():
    dataset = Dataset.range(SIZE).sample(TorchSampler(SubsetRandomSampler(range(7))))
    assert sorted(dataset) == list(range(7))
    assert list(Dataset.range(3).sample(TorchSampler(SequentialSampler(range(3))))) == [0, 1, 2]


def test_what_it_cant_take_is_refused():
    nothing: Any = 3
    with pytest.raises(PipelineError, match="BatchSampler gives batches"):
        TorchSampler(BatchSampler(SequentialSampler(range(4)), 2, drop_last=False))
    with pytest.raises(PipelineError, match="takes a sampler of torch that has a length"):
        TorchSampler(nothing)


def test_threads_that_draw_at_the_same_time_draw_alike():
    ours = TorchSampler(Rolled())
    alone = [ours.positions(SIZE, 5, epoch).tolist() for epoch in range(30)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda epoch: ours.positions(SIZE, 5, epoch).tolist(), [*range(30)] * 4))
    assert found == alone * 4
