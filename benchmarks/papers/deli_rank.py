"""One rank of :mod:`benchmarks.papers.deli`: a plain torch loop over objects, and what it waited for.

Reads its settings as JSON from the command line, says ``ready``, begins when it is told to, and prints what it found.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from benchmarks.far_store import BUCKET
from millrace.blocks.samples.sample_cache import SampleCache
from millrace.frameworks.torch import CachedDataset, PrefetchSampler

UNLIMITED = 1 << 40


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a rank does.

    Attributes:
        folder: of the objects' files; with ``local`` they are read from there, else from the store.
        pictures: whether objects are pictures to decode, or 784 bytes to take as they are.
        count: objects of all ranks.
        compute_s: seconds that a step takes for each sample, in which no core is used.
        cache: samples that its cache holds; -1: as many as there are; 0: it has none.
        fetch_size: samples to fetch at a time; -1: by the rule; 0: nothing is fetched ahead.
        threshold: samples left at which the next are fetched; -1: by the rule.
    """

    folder: str
    pictures: bool
    count: int
    rank: int
    ranks: int
    epochs: int
    batch: int
    seed: int
    compute_s: float
    local: bool = False
    cache: int = 0
    fetch_size: int = 0
    threshold: int = -1


class Objects(Dataset[torch.Tensor]):
    """Objects of a bucket or files of a folder, as somebody would write it who knows nothing of millrace."""

    def __init__(self, setting: Setting) -> None:
        self.folder, self.local = setting.folder, setting.local
        self.pictures, self.count = setting.pictures, setting.count
        self.store: Any = None

    def __len__(self) -> int:
        return self.count

    def read(self, index: int) -> bytes:
        """The bytes of an object."""
        name = f"{index:06d}"
        if self.local:
            with open(os.path.join(self.folder, name), "rb") as file:
                return file.read()
        if self.store is None:
            from obstore.store import S3Store

            self.store = S3Store(BUCKET, client_options={"allow_http": True})
        return bytes(self.store.get(name).bytes())

    def __getitem__(self, index: int) -> torch.Tensor:
        data = self.read(index)
        if not self.pictures:
            return torch.frombuffer(bytearray(data), dtype=torch.uint8)
        import io

        import numpy as np
        from PIL import Image

        return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert("RGB")))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "store": None}


def main() -> None:
    """Runs the epochs of one rank."""
    setting = Setting(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    objects: Any = Objects(setting)
    cached = None
    if setting.cache:
        bound = UNLIMITED if setting.cache < 0 else setting.cache
        objects = cached = CachedDataset(objects, SampleCache(max_samples=bound))
    shuffled: Any = DistributedSampler(objects, setting.ranks, setting.rank, seed=setting.seed)
    sampler = shuffled
    if setting.fetch_size:
        assert cached is not None
        sizes = [None if size < 0 else size for size in (setting.fetch_size, setting.threshold)]
        sampler = PrefetchSampler(shuffled, cached, sizes[0], sizes[1])
    loader = DataLoader(objects, batch_size=setting.batch, sampler=sampler)
    nothing = threading.Event()
    print("ready", flush=True)
    sys.stdin.readline()
    epochs = []
    for epoch in range(setting.epochs):
        sampler.set_epoch(epoch)
        before = cached.stats() if cached is not None else None
        began = time.perf_counter()
        waited = first = count = 0.0
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            came = time.perf_counter() - asked
            waited += came
            if batch is None:
                break
            first = first or came
            count += len(batch)
            nothing.wait(setting.compute_s * len(batch))
        after = cached.stats() if cached is not None else None
        found = {"waited": waited, "first": first, "seconds": time.perf_counter() - began, "samples": count}
        if before is not None and after is not None:
            misses, hits = after.misses - before.misses, after.hits - before.hits
            found |= {"miss_rate": misses / (misses + hits), "joined": (after.joined - before.joined) / (misses + hits)}
        epochs.append(found)
    if sampler is not shuffled:
        sampler.close()
    print(json.dumps(epochs), flush=True)


if __name__ == "__main__":
    main()
