"""A loop over a DataLoader with prefetching, as a user would write it: one rank of a training, or alone.

    python prefetching_loop.py FOLDER RANK WORLD

It prints the process that fetches ahead, once there is one, reads two epochs, and prints the samples of each. Alone
(WORLD is 0) it reads without an end; nobody closes anything.
"""

import json
import os
import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

from millrace.frameworks.torch import CachedDataset, PrefetchSampler, SampleCache


class Numbers(Dataset[tuple[int, int]]):
    """Samples (index, the process that made it)."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def read_alone() -> None:
    """Read without an end, and say which process fetches ahead."""
    cached = CachedDataset(Numbers(), SampleCache(max_samples=64))
    sampler = PrefetchSampler(RandomSampler(cached), cached)
    helper = None
    while True:
        for _, makers in DataLoader(cached, batch_size=4, sampler=sampler):
            others = set(makers.tolist()) - {os.getpid(), helper}
            if others:
                (helper,) = others
                print(helper, flush=True)


def train(folder: str, rank: int, world: int) -> None:
    """Train two epochs, and say which samples this rank had."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    cached = CachedDataset(Numbers(), SampleCache(max_samples=64))
    sampler = PrefetchSampler(DistributedSampler(cached, seed=3), cached)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = []
        for numbers, _ in DataLoader(cached, batch_size=8, sampler=sampler):
            model(numbers[:, None].float()).sum().backward()  # all ranks wait for one another here
            seen += numbers.tolist()
        print(json.dumps(seen), flush=True)
    print(json.dumps(cached.stats().reads), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    folder, rank, world = sys.argv[1], *map(int, sys.argv[2:])
    train(folder, rank, world) if world else read_alone()
