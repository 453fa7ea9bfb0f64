"""Samples that are cached stand in for others in DataLoaders: each once an epoch, with real caches and processes."""

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader import sampler as stateful

from millrace.blocks.samples.sample_cache import folder_stats
from millrace.errors import CacheError, PipelineError
from millrace.frameworks.torch import CachedDataset, PrefetchSampler, SampleCache

COUNT = 300


class Cubes(Dataset):
    """Samples (index, its cube as a tensor)."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return index, torch.tensor(index**3)


@contextlib.contextmanager
def substituting(sampler, cached, look_ahead=10, **options):
    found = PrefetchSampler(sampler, cached, look_ahead=look_ahead, **options)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def cached():
    """A dataset with a cache of a tenth of it."""
    with contextlib.closing(SampleCache(max_samples=COUNT // 10)) as cache:
        yield CachedDataset(Cubes(), cache)


@pytest.fixture
def full():
    """A dataset all samples of which are cached."""
    with contextlib.closing(SampleCache(max_samples=COUNT)) as cache:
        dataset = CachedDataset(Cubes(), cache)
        keep(dataset, range(COUNT))
        yield dataset


def keep(cached, indices):
    for index in indices:
        assert cached[index][0] == index


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def batches(loader):
    found = []
    for numbers, cubes in loader:
        assert (numbers**3 == cubes).all()
        found.append(numbers.tolist())
    return found


def read(loader):
    return list(itertools.chain(*batches(loader)))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_each_sample_comes_once_an_epoch(cached, workers, persistent):
    with substituting(RandomSampler(cached), cached) as sampler:
        loader = DataLoader(cached, batch_size=8, sampler=sampler, num_workers=workers, persistent_workers=persistent)
        for _ in range(3):
            assert sorted(read(loader)) == list(range(COUNT))
        del loader
    assert cached.stats().reads == 3 * COUNT
    assert cached.stats().failed == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_as_large_as_those_of_the_sampler(cached, workers):
    inner = BatchSampler(RandomSampler(cached), 16, drop_last=False)
    with substituting(inner, cached) as sampler:
        loader = DataLoader(cached, batch_sampler=sampler, num_workers=workers)
        assert len(loader) == 19
        for _ in range(2):
            found = batches(loader)
            assert [len(batch) for batch in found] == [16] * 18 + [12]
            assert sorted(itertools.chain(*found)) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_cache_leaves_the_order_as_it_is_and_starts_nothing_that_fetches(full, workers):
    with substituting(RandomSampler(full, generator=seeded()), full) as sampler:
        loader = DataLoader(full, batch_size=8, sampler=sampler, num_workers=workers)
        assert read(loader) == list(RandomSampler(full, generator=seeded()))
        assert sampler._prefetchers == {}
        assert sampler._pass is not None
        assert len(sampler._pass._unread) < COUNT  # what was read is forgotten


def test_what_is_cached_comes_first(cached):
    held = range(100, 120)
    keep(cached, held)
    inner = BatchSampler(RandomSampler(cached, generator=seeded()), 20, drop_last=False)
    with substituting(inner, cached, look_ahead=15) as sampler:
        order = list(RandomSampler(cached, generator=seeded()))
        assert next(iter(sampler)) == [index for index in order if index in held]


def test_indices_of_parts_and_of_several_caches():
    with (
        contextlib.closing(SampleCache(max_samples=30)) as one,
        contextlib.closing(SampleCache(max_samples=30)) as two,
    ):
        first, second = CachedDataset(Cubes(), one), CachedDataset(Cubes(), two)
        keep(first, [7, 70])
        keep(second, [70, 8, 150])
        both: ConcatDataset[Any] = ConcatDataset([Subset(first, range(0, 200, 2)), second])
        inner = BatchSampler(SequentialSampler(both), 4, drop_last=False)
        with substituting(inner, one, look_ahead=200) as sampler:
            found = list(sampler)
            assert found[0] == [35, 108, 170, 250]
            assert sorted(itertools.chain(*found)) == list(range(len(both)))
            assert len(read(DataLoader(both, batch_sampler=sampler))) == len(both)


def test_ranks_that_share_a_folder_have_each_their_own_part(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for epoch in range(2):
        seen = []
        for rank in range(2):
            with contextlib.closing(SampleCache(max_samples=30, folder=tmp_path, keep=True)) as own:
                cached = CachedDataset(Cubes(), own)
                inner: DistributedSampler[int] = DistributedSampler(cached, num_replicas=2, rank=rank, seed=5)
                with substituting(inner, own) as sampler:
                    sampler.set_epoch(epoch)
                    found = read(DataLoader(cached, batch_size=8, sampler=sampler))
                    assert sorted(found) == sorted(inner)
                    seen += found
        assert sorted(seen) == list(range(COUNT))


class TestStates:
    @staticmethod
    def kinds(cached):
        return {
            "seeded": {"sampler": RandomSampler(cached, generator=seeded()), "batch_size": 8},
            "of its own": {"sampler": stateful.RandomSampler(cached), "batch_size": 8},
            "distributed": {"sampler": stateful.StatefulDistributedSampler(cached, 1, 0), "batch_size": 8},
            "batches": {"batch_sampler": stateful.BatchSampler(stateful.RandomSampler(cached), 8, drop_last=False)},
        }

    @contextlib.contextmanager
    def loading(self, kind, held, look_ahead=10, **workers):
        with contextlib.closing(SampleCache(max_samples=64)) as cache:
            cached = CachedDataset(Cubes(), cache)
            keep(cached, held)
            options = self.kinds(cached)[kind]
            name = next(iter(options))
            with substituting(options[name], cached, look_ahead) as sampler:
                yield StatefulDataLoader(cached, **{**options, name: sampler, **workers})

    @pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own, with workers
    @pytest.mark.parametrize("workers", [{"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}])
    @pytest.mark.parametrize("kind", ["seeded", "of its own", "distributed", "batches"])
    def test_an_epoch_goes_on_with_another_cache(self, kind, workers):
        with self.loading(kind, range(0, 60, 2), **workers) as loader:
            numbers = iter(loader)
            first = [next(numbers)[0].tolist() for _ in range(11)]
            state = loader.state_dict()
        with self.loading(kind, range(100, 160), **workers) as loader:
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
            numbers = iter(loader)
            second = [next(numbers)[0].tolist() for _ in range(3)]
            state = loader.state_dict()
        with self.loading(kind, range(COUNT), **workers) as loader:
            loader.load_state_dict(pickle.loads(pickle.dumps(state)))
            rest = batches(loader)
            assert sorted(itertools.chain(*first, *second, *rest)) == list(range(COUNT))
            if kind != "distributed":  # the next epoch's order is that of set_epoch
                assert sorted(read(loader)) == list(range(COUNT))

    @pytest.mark.parametrize("kind", ["seeded", "of its own", "batches"])
    @pytest.mark.parametrize(("before", "then"), [(None, 10), (10, None), (2, 20)])
    def test_a_state_may_be_loaded_with_another_choice(self, kind, before, then):
        with self.loading(kind, range(40), before) as loader:
            numbers = iter(loader)
            first = [next(numbers)[0].tolist() for _ in range(5)]
            state = loader.state_dict()
        with self.loading(kind, range(50), then) as loader:
            loader.load_state_dict(state)
            numbers = iter(loader)
            second = [next(numbers)[0].tolist() for _ in range(4)]
            state = loader.state_dict()
        with self.loading(kind, range(30), before) as loader:
            loader.load_state_dict(state)
            assert sorted(itertools.chain(*first, *second, *batches(loader))) == list(range(COUNT))

    def test_every_index_can_be_the_last_one_of_a_run(self):
        with contextlib.closing(SampleCache(max_samples=64)) as cache:
            cached = CachedDataset(Cubes(), cache)
            keep(cached, range(5, 69))
            for stop in (1, 2, 63, 64, 65, 128, 299):
                with substituting(RandomSampler(cached, generator=seeded()), cached, 2) as sampler:
                    first = list(itertools.islice(sampler, stop))
                    state = sampler.state_dict()
                with substituting(RandomSampler(cached, generator=seeded()), cached, 2) as sampler:
                    sampler.load_state_dict(state)
                    assert sampler.state_dict() == state
                    assert sorted([*first, *sampler]) == list(range(COUNT))
                    assert len(list(sampler)) == COUNT

    def test_a_copy_in_another_process_begins_anew(self, cached):
        subset = Subset(cached, range(50, 150))
        with substituting(SequentialSampler(subset), cached) as sampler:
            next(iter(sampler))
            with contextlib.closing(pickle.loads(pickle.dumps(sampler))) as copy:
                assert sorted(copy) == list(range(100))
                copy.sampler.data_source.dataset.cache.close()


def test_a_pass_that_is_left_is_no_part_of_the_next_one(cached):
    with substituting(RandomSampler(cached), cached) as sampler:
        next(iter(DataLoader(cached, sampler=sampler, batch_size=4)))
        assert sorted(read(DataLoader(cached, sampler=sampler))) == list(range(COUNT))


def test_a_sampler_without_an_end(cached):
    class Endless:
        def __iter__(self):
            return itertools.cycle(range(COUNT))

    with substituting(Endless(), cached) as sampler:
        found = list(itertools.islice(sampler, 20 * COUNT))
    assert set(found) == set(range(COUNT))


def test_a_cache_that_was_closed_says_so(cached):
    with substituting(RandomSampler(cached), cached) as sampler:
        cached.cache.close()
        with pytest.raises(CacheError, match="this SampleCache was closed"):
            next(iter(sampler))


def test_less_is_fetched_ahead_as_others_may_fill_the_cache_too(cached):
    keep(cached, [0])
    with substituting(RandomSampler(cached), cached) as sampler:
        assert sampler.sizes().value == (4, 4)
    with substituting(RandomSampler(cached), cached, fetch_size=5) as sampler:
        assert sampler.sizes().value == (5, 5)


def test_a_number_out_of_range_is_refused(cached):
    with pytest.raises(PipelineError, match="look_ahead must be a whole number of at least 1, not 0"):
        PrefetchSampler(RandomSampler(cached), cached, look_ahead=0)


JOB = """
import sys
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from millrace.frameworks.torch import CachedDataset, PrefetchSampler, SampleCache
from tests.integration.frameworks.test_substitution import COUNT, Cubes, batches, seeded

cache = SampleCache(max_samples=COUNT // 4, folder=sys.argv[1], keep=True)
cached = CachedDataset(Cubes(), cache, name="cubes")
inner = BatchSampler(RandomSampler(cached, generator=seeded(int(sys.argv[2]))), 10, drop_last=False)
sampler = PrefetchSampler(inner, cached, look_ahead=10)
print("ready", flush=True)
seen = []
for numbers, cubes in DataLoader(cached, batch_sampler=sampler):
    sys.stdin.readline()
    assert (numbers**3 == cubes).all()
    seen += numbers.tolist()
    print(len(seen), flush=True)
assert sorted(seen) == list(range(COUNT))
sampler.close()
print("all", flush=True)
"""


def test_two_processes_that_share_a_cache_read_what_the_other_one_has_fetched(tmp_path):
    """Batch by batch in turn, each in an order of its own: of two epochs less than one and a half are fetched."""
    with contextlib.ExitStack() as stack:
        jobs = []
        for seed in range(2):
            command = [sys.executable, "-c", JOB, str(tmp_path), str(seed)]
            job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
            stack.enter_context(job)
            stack.callback(job.kill)
            jobs.append(job)
        for expected in ["ready", *map(str, range(10, COUNT + 1, 10)), "all"]:
            for job in jobs:
                assert job.stdin is not None
                assert job.stdout is not None
                job.stdin.write("\n")
                job.stdin.flush()
                assert job.stdout.readline() == f"{expected}\n"
        for job in jobs:
            job.communicate()
            assert job.returncode == 0
    found = folder_stats(str(tmp_path))
    assert found.reads == 2 * COUNT
    assert found.fetched < 1.5 * COUNT
