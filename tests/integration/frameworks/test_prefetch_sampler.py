"""Map-style datasets with a cache and prefetching: the sampler's order, every sample right, nothing left behind."""

import contextlib
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

import pytest
import torch
from tests.integration.service.service_driving import wait_until_gone
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader import sampler as stateful

from millrace.errors import MillraceWarning, PipelineError, StateError, UnsureError
from millrace.frameworks.torch import CachedDataset, PrefetchSampler, SampleCache, prefetcher

COUNT = 200


class Squares(Dataset):
    """Samples (index, its square as a tensor); those of ``broken`` fail."""

    def __init__(self, count=COUNT, broken=(), **attributes):
        self.count, self.broken = count, broken
        self.__dict__.update(attributes)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index in self.broken:
            raise ValueError(f"sample {index} is broken")
        return index, torch.tensor(index * index)


class Awaiting(Squares):
    """Samples of which a loop gets the second half once a thread has fetched one; so they can't be pickled."""

    def __init__(self):
        super().__init__()
        self.ahead = threading.Event()

    def __getitem__(self, index):
        if threading.current_thread() is not threading.main_thread():
            self.ahead.set()
        elif index >= COUNT // 2:
            assert self.ahead.wait(20), "no thread fetched a sample"
        return super().__getitem__(index)


class AtHome(Squares):
    """Samples that only the process that made the dataset can read."""

    def __init__(self, count):
        super().__init__(count)
        self.home = os.getpid()

    def __getitem__(self, index):
        if os.getpid() != self.home:
            raise PermissionError("no credentials here")
        return super().__getitem__(index)


class Recorded(Squares):
    """Samples of which this process fetches each, as it can't be pickled; ``fetched`` are those."""

    def __init__(self):
        super().__init__(lock=threading.Lock())
        self.fetched = set()

    def __getitem__(self, index):
        self.fetched.add(index)
        return super().__getitem__(index)


class Pids(Dataset):
    """Samples that say which process made them."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return os.getpid()


class Endless:
    """A sampler without an end."""

    def __iter__(self):
        return itertools.cycle(range(COUNT))


@contextlib.contextmanager
def prefetching(sampler, cached, **options):
    found = PrefetchSampler(sampler, cached, **options)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def cache():
    with contextlib.closing(SampleCache(max_samples=64)) as cache:
        yield cache


def read(loader):
    found = []
    for numbers, squares in loader:
        assert (numbers * numbers == squares).all()
        found += numbers.tolist()
    return found


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_order_and_samples_are_those_of_the_sampler(cache, workers, persistent):
    plain = Squares()
    cached = CachedDataset(plain, cache)
    expected = DataLoader(plain, batch_size=8, sampler=RandomSampler(plain, generator=seeded()))
    with prefetching(RandomSampler(cached, generator=seeded()), cached) as sampler:
        loader = DataLoader(cached, batch_size=8, sampler=sampler, num_workers=workers, persistent_workers=persistent)
        for _ in range(2):
            assert read(loader) == read(expected)
        del loader
    assert cached.stats().reads == 2 * COUNT
    assert cache.totals()[0] <= 64


@pytest.mark.parametrize(
    "part",
    [
        lambda cached: Subset(cached, range(50, 150, 2)),
        lambda cached: Subset(Subset(cached, range(100, 200)), [5, 3, 99, 5]),
        lambda cached: random_split(cached, [0.3, 0.7], seeded())[0],
        lambda cached: ConcatDataset([Subset(cached, [7, 8]), cached, Subset(cached, [1])]),
    ],
    ids=["subset", "subset of a subset", "random_split", "concatenated"],
)
def test_positions_are_those_of_the_dataset_below(cache, part):
    cached = CachedDataset(Squares(), cache)
    dataset = part(cached)
    with prefetching(SequentialSampler(dataset), cache) as sampler:
        assert read(DataLoader(dataset, batch_size=8, sampler=sampler)) == [number for number, _ in dataset]
    stats = cached.stats()
    wanted = {number for number, _ in dataset}
    assert stats.failed == 0
    assert stats.stored >= len(wanted)
    assert set(held(cached)) <= wanted


def held(cached):
    return [index for index in range(len(cached)) if cached.cache._table.get(cached.name, index) is not None]


def test_ranks_have_a_cache_each(cache):
    seen = []
    for rank in range(3):
        with contextlib.closing(SampleCache(max_samples=64)) as own:
            cached = CachedDataset(Squares(), own)
            inner: DistributedSampler[int] = DistributedSampler(
                cached, num_replicas=3, rank=rank, seed=5, drop_last=True
            )
            with prefetching(inner, own) as sampler:
                for epoch in range(2):
                    sampler.set_epoch(epoch)
                    found = read(DataLoader(cached, batch_size=8, sampler=sampler))
                    assert found == list(inner)
                seen += list(inner)
    assert len(seen) == len(set(seen)) == COUNT // 3 * 3


LOOP = Path(__file__).parent / "prefetching_loop.py"


def started(folder, *arguments):
    """The loop, which has its temporary files in the folder."""
    command = [sys.executable, "-W", "error", str(LOOP), str(folder), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)})


def test_each_rank_of_a_data_parallel_training_has_the_samples_of_its_sampler(tmp_path):
    ranks = [started(tmp_path, rank, 2) for rank in range(2)]
    said = [rank.communicate()[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    epochs = [[json.loads(line) for line in lines] for lines in said]
    assert [reads for *_, reads in epochs] == [400, 400]
    for number in range(2):
        plain: list[DistributedSampler[int]] = [
            DistributedSampler(Squares(400), num_replicas=2, rank=rank, seed=3) for rank in range(2)
        ]
        for sampler in plain:
            sampler.set_epoch(number)
        assert [epoch[number] for epoch in epochs] == [list(sampler) for sampler in plain]


def test_the_number_of_an_epoch_goes_through_a_sampler_of_batches(cache):
    cached = CachedDataset(Squares(40), cache)
    inner: DistributedSampler[int] = DistributedSampler(cached, num_replicas=2, rank=0)
    sampler = PrefetchSampler(BatchSampler(inner, 8, drop_last=False), cached)
    sampler.set_epoch(5)
    assert inner.epoch == 5


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_what_fetches_ahead_ends_with_the_loop_however_that_ends(end, tmp_path):
    with started(tmp_path, 0, 0) as loop:
        helper = int(loop.stdout.readline())
        loop.send_signal(end)
        loop.stdout.read()  # until the last that holds it has ended
    wait_until_gone(helper)


def test_ranks_that_share_a_folder_count_their_own_reads_and_share_the_room(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with (
        contextlib.closing(SampleCache(max_samples=64, folder=tmp_path)) as one,
        contextlib.closing(SampleCache(max_samples=64, folder=tmp_path)) as two,
    ):
        mine, other = CachedDataset(Squares(), one), CachedDataset(Squares(), two)
        assert read(DataLoader(mine, batch_size=10, sampler=range(20), num_workers=2)) == list(range(20))
        assert read(DataLoader(other, batch_size=10, sampler=range(10, 40))) == list(range(10, 40))
        assert (mine.reads(), other.reads()) == (20, 30)
        assert (mine.stats().reads, mine.stats().hits) == (50, 10)
        with prefetching(SequentialSampler(mine), mine) as sampler:
            assert sampler.sizes().value.fetch_size == 16


def test_a_sampler_of_batches(cache):
    cached = CachedDataset(Squares(), cache)
    batches = BatchSampler(RandomSampler(cached, generator=seeded()), 16, drop_last=False)
    with prefetching(batches, cached) as sampler:
        loader = DataLoader(cached, batch_sampler=sampler)
        assert len(loader) == 13
        assert sorted(read(loader)) == list(range(COUNT))


def test_no_more_is_fetched_ahead_than_a_cache_smaller_than_a_batch_can_hold(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(prefetcher.Prefetcher, "ask", lambda self, numbers, unread: asked.extend(numbers))
    with contextlib.closing(SampleCache(max_samples=4)) as small:
        cached = CachedDataset(Squares(), small)
        with prefetching(SequentialSampler(cached), cached) as sampler:
            indices = iter(sampler)
            assert list(itertools.islice(indices, 20)) == list(range(20))  # as a batch is drawn before it is read
            assert asked == [0, 1, 2, 3]
            for index in range(20):
                assert cached[index][0] == index
            next(indices)
            assert asked[4:] == [20, 21]


def test_what_is_asked_for_stays_until_it_is_read_in_every_epoch_of_a_cache_that_holds_half(monkeypatch):
    """Also what was there already when it was asked for: others would else take its place before it is read."""
    asked = deque[int]()
    monkeypatch.setattr(prefetcher.Prefetcher, "ask", lambda self, numbers, unread: asked.extend(numbers))
    with contextlib.closing(SampleCache(max_samples=COUNT // 2)) as half:
        cached = CachedDataset(Squares(), half)
        with prefetching(RandomSampler(cached, generator=seeded()), cached, fetch_size=COUNT // 4) as sampler:
            for _ in range(3):
                for index in sampler:
                    while asked:
                        cached.fetch_ahead(asked.popleft())
                    assert cached[index][0] == index
        assert cached.stats().misses == 0


def test_a_sampler_travels_to_another_process_as_other_samplers_do(cache):
    cached = CachedDataset(Squares(), cache)
    subset = Subset(cached, range(50, 150))
    with (
        prefetching(SequentialSampler(subset), cached) as sampler,
        contextlib.closing(pickle.loads(pickle.dumps(sampler))) as copy,
    ):
        next(iter(sampler))
        assert list(copy) == list(range(100))
        copy.sampler.data_source.dataset.cache.close()


class TestWhichSamples:
    def test_a_sampler_that_names_no_dataset_is_of_the_one_given(self, cache):
        cached = CachedDataset(Squares(), cache)
        with prefetching(WeightedRandomSampler([1] * COUNT, 50, generator=seeded()), cached) as sampler:
            assert len(read(DataLoader(cached, sampler=sampler))) == 50

    def test_a_cache_of_several_datasets_does_not_say_which(self, cache):
        datasets = [CachedDataset(Squares(), cache) for _ in range(2)]
        with pytest.raises(PipelineError, match="2 CachedDatasets of this process use that cache"):
            PrefetchSampler(WeightedRandomSampler([1] * COUNT, 50), cache)
        del datasets

    def test_a_dataset_in_between_that_is_not_known_is_refused(self, cache):
        class Doubled(Dataset):
            def __init__(self, dataset):
                self.inner = dataset

            def __len__(self):
                return 2 * len(self.inner)

            def __getitem__(self, index):
                return self.inner[index // 2]

        cached = CachedDataset(Squares(), cache)
        doubled = Doubled(cached)
        with pytest.raises(PipelineError, match=r"those of a Doubled.*positions=lambda index"):
            PrefetchSampler(SequentialSampler(doubled), cached)
        with prefetching(SequentialSampler(doubled), cached, positions=lambda index: index // 2) as sampler:
            assert read(DataLoader(doubled, sampler=sampler)) == [index // 2 for index in range(2 * COUNT)]
        assert cached.stats().failed == 0

    @pytest.mark.parametrize("options", [{"fetch_size": 0}, {"prefetch_threshold": -1}, {"threads": 1.5}])
    def test_numbers_out_of_range_are_refused(self, cache, options):
        cached = CachedDataset(Squares(), cache)
        with pytest.raises(PipelineError, match=next(iter(options))):
            PrefetchSampler(SequentialSampler(cached), cached, **options)


class TestFailures:
    def test_a_broken_sample_fails_where_it_is_read(self, cache):
        cached = CachedDataset(Squares(broken=[100]), cache)
        with prefetching(SequentialSampler(cached), cached) as sampler:
            found = []
            with pytest.raises(ValueError, match="sample 100 is broken"):
                for numbers, _ in DataLoader(cached, sampler=sampler):
                    found += numbers.tolist()
            assert found == list(range(100))

    def test_a_helper_process_takes_over_and_is_done_without_once_it_is_killed(self, cache, caplog):
        cached = CachedDataset(Pids(), cache)
        with prefetching(Endless(), cached, fetch_size=8) as sampler:
            numbers = iter(sampler)

            def makers():
                """Processes that fetched the next samples, all of them ahead of the loop."""
                coming = list(itertools.islice(numbers, 8))
                while not set(coming) <= set(held(cached)):
                    threading.Event().wait(0.01)
                return {cached[index] for index in coming}

            while (found := makers()) <= {os.getpid()}:
                pass
            (helper,) = found - {os.getpid()}
            os.kill(helper, signal.SIGKILL)
            while makers() != {os.getpid()}:
                pass
            assert "was killed by SIGKILL; threads of this one go on" in caplog.records[0].message
            numbers.close()

    def test_a_process_that_can_fetch_nothing_says_so(self, cache, capfd):
        cached, said = CachedDataset(AtHome(1_000_000), cache), ""
        with prefetching(SequentialSampler(cached), cached, fetch_size=64, prefetch_threshold=32) as sampler:
            for _ in DataLoader(cached, sampler=sampler):
                said += capfd.readouterr().err
                if "could fetch no sample ahead" in said:
                    break
        assert "PermissionError: no credentials here" in said
        assert f"process {os.getpid()} " not in said

    def test_a_system_without_room_for_a_process_has_threads_fetch(self, cache, caplog, monkeypatch):
        def full(*_, **__):
            raise OSError("no room for another process")

        caplog.set_level("INFO")
        monkeypatch.setattr(prefetcher, "spawn", full)
        cached = CachedDataset(Squares(), cache)
        with prefetching(SequentialSampler(cached), cached) as sampler:
            assert read(DataLoader(cached, sampler=sampler)) == list(range(COUNT))
        assert any("no room for another process" in each.message for each in caplog.records)

    def test_a_system_without_room_for_threads_leaves_fetching_to_the_loop(self, cache, caplog, monkeypatch):
        def crowded(_):
            raise RuntimeError("can't start new thread")

        fetching = prefetcher.FetchThreads(CachedDataset(Squares(), cache), 4)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", crowded)
            fetching.ask([1, 2, 3], 3)
        assert fetching.forget() == [1, 2, 3]
        assert "can't start new thread" in caplog.records[0].message

    def test_a_dataset_that_cannot_be_pickled_is_fetched_by_threads(self, cache, caplog):
        caplog.set_level("INFO")
        cached = CachedDataset(Awaiting(), cache)
        with prefetching(SequentialSampler(cached), cached) as sampler:
            assert read(DataLoader(cached, sampler=sampler)) == list(range(COUNT))
        assert cached.stats().ahead > 0
        assert any("by threads of this process only" in each.message for each in caplog.records)


def test_a_pass_that_is_left_is_not_fetched_on(cache):
    dataset = Squares(lock=threading.Lock())  # so that all fetching is in this process
    cached = CachedDataset(dataset, cache)
    with prefetching(SequentialSampler(cached), cached, fetch_size=8, prefetch_threshold=0) as sampler:
        next(iter(DataLoader(cached, sampler=sampler, batch_size=4)))
        assert read(DataLoader(cached, sampler=sampler)) == list(range(COUNT))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own, with workers
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_on_behind_what_was_handed_out(cache, workers):
    cached = CachedDataset(Squares(), cache)
    with prefetching(RandomSampler(cached, generator=seeded()), cached, fetch_size=8) as sampler:
        loader = StatefulDataLoader(cached, batch_size=8, sampler=sampler, num_workers=workers)
        numbers = iter(loader)
        first = [next(numbers)[0].tolist() for _ in range(5)]
        state = loader.state_dict()
        rest = [each.tolist() for each, _ in numbers]
    with contextlib.closing(SampleCache(max_samples=64)) as other:
        dataset = Recorded()
        cached = CachedDataset(dataset, other)
        with prefetching(RandomSampler(cached, generator=seeded()), cached, fetch_size=8) as sampler:
            loader = StatefulDataLoader(cached, batch_size=8, sampler=sampler, num_workers=workers)
            loader.load_state_dict(state)
            assert [each.tolist() for each, _ in loader] == rest
            assert sorted(itertools.chain(*first, *rest)) == list(range(COUNT))
    assert dataset.fetched <= set(itertools.chain(*rest))


@pytest.mark.parametrize(
    "kind",
    [
        lambda cached: {"sampler": stateful.RandomSampler(cached), "batch_size": 8},
        lambda cached: {"sampler": stateful.RandomSampler(cached, replacement=True), "batch_size": 8},
        lambda cached: {"sampler": stateful.StatefulDistributedSampler(cached, 1, 0), "batch_size": 8},
        lambda cached: {"batch_sampler": stateful.BatchSampler(stateful.RandomSampler(cached), 8, drop_last=False)},
    ],
    ids=["random", "with replacement", "distributed", "batches"],
)
def test_a_sampler_with_a_state_of_its_own_goes_on_with_that(cache, kind):
    """Without a seed that both would have, in the second epoch."""
    cached = CachedDataset(Squares(lock=threading.Lock()), cache)  # without a helper, which takes its time

    @contextlib.contextmanager
    def loading():
        options = kind(cached)
        name = next(iter(options))
        with prefetching(options[name], cached, fetch_size=8) as sampler:
            yield StatefulDataLoader(cached, **{**options, name: sampler})

    with loading() as loader:
        read(loader)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = loader.state_dict()
        rest = [numbers.tolist() for numbers, _ in batches]
    with loading() as loader:
        loader.load_state_dict(state)
        batches = iter(loader)
        again = loader.state_dict()
        assert [numbers.tolist() for numbers, _ in batches] == rest
        following = read(loader)
        assert len(following) == COUNT
    with loading() as loader:
        loader.load_state_dict(again)
        assert [numbers.tolist() for numbers, _ in loader] == rest


class TestCachedDataset:
    def test_behaves_as_the_dataset(self, cache):
        dataset = Squares(classes=["a", "b"])
        cached = CachedDataset(dataset, cache)
        assert len(cached) == COUNT
        assert cached.classes == ["a", "b"]
        assert cached[-1][0] == COUNT - 1
        with pytest.raises(IndexError, match="sample 200 of 200"):
            cached[COUNT]
        with pytest.raises(AttributeError):
            _ = cached.nothing_of_this_name

    def test_reads_from_a_folder_that_the_next_run_finds(self, tmp_path):
        for expected in (0, COUNT):
            with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=True)) as cache:
                cached = CachedDataset(Squares(), cache)
                assert read(DataLoader(cached, batch_size=20)) == list(range(COUNT))
                hits = cached.stats().hits
                assert hits == expected

    def test_another_dataset_in_a_shared_folder_begins_anew(self, tmp_path):
        with contextlib.closing(SampleCache(1 << 20, folder=tmp_path, keep=True)) as cache:
            assert CachedDataset(Squares(), cache).name == CachedDataset(Squares(), cache).name
            assert CachedDataset(Squares(), cache).name != CachedDataset(Squares(broken=[1]), cache).name

    def test_one_that_cannot_be_told_from_others_needs_a_name(self, tmp_path):
        dataset = Squares(lock=threading.Lock())
        with contextlib.closing(SampleCache(1 << 20, folder=tmp_path)) as cache:
            with pytest.raises(UnsureError, match="give it a name"):
                CachedDataset(dataset, cache)
            assert CachedDataset(dataset, cache, name="train")[3][0] == 3

    def test_one_without_length_is_refused(self, cache):
        with pytest.raises(PipelineError, match="no map-style dataset"):
            CachedDataset(iter([]), cache)
        with pytest.raises(PipelineError, match="is no SampleCache"):
            CachedDataset(Squares(), "2 GB")  # type: ignore[arg-type]  # on purpose

    def test_a_sampler_and_a_cache_that_have_changed_places_are_named(self, cache):
        cached = CachedDataset(Squares(), cache)
        with pytest.raises(
            PipelineError, match=r"takes a sampler and then .*, not CachedDataset and SequentialSampler"
        ):
            PrefetchSampler(cached, SequentialSampler(cached))  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(
    "state",
    [
        None,
        "s",
        {"x": 1},
        {"handed_out": -1, "sampler": None},
        {"handed_out": 3},
        {"handed_out": True, "sampler": None},
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(cache, state):
    cached = CachedDataset(Squares(), cache)
    with (
        prefetching(SequentialSampler(cached), cached) as sampler,
        pytest.raises(StateError, match="no state of a Prefetch"),
    ):
        sampler.load_state_dict(state)


def test_who_goes_on_with_an_order_that_nobody_can_draw_again_is_warned(cache):
    cached = CachedDataset(Squares(), cache)
    state = {"handed_out": 2, "sampler": None}
    plain, told = RandomSampler(cached), "Sampler draws its order from torch's global generator"
    for inner in (plain, BatchSampler(plain, 8, drop_last=False)):
        with prefetching(inner, cached) as sampler, pytest.warns(MillraceWarning, match=told):
            sampler.load_state_dict(state)
    drawn = RandomSampler(cached, generator=seeded()), SequentialSampler(cached), stateful.RandomSampler(cached)
    for inner in (*drawn, *(BatchSampler(each, 8, drop_last=False) for each in drawn)):
        with prefetching(inner, cached) as sampler:
            sampler.load_state_dict(state)
