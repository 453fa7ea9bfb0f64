"""DELI's section VI: how many requests a training makes, with small objects and with packs.

    python -m benchmarks.papers.requests [--objects N] [--json FILE]

Counted on the way to a real store, over two epochs of one run: plain objects by ``from_files``, the same by a torch
loop with a cache and prefetching, packs of ``millrace pack`` read in pieces, and packs of which each sample is read for
itself. It fails where a run lists the store more than once (in pages of 1,000), where plain objects cost more than a
request each (but for second ones in the slow tail), or where packs that are read in pieces don't need a tenth of that.
Pieces of little data are small, so that tasks have some to mix: 64 KiB, and 4 MiB of half a gigabyte or more.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.far_store import BUCKET, FarStore, far_store
from benchmarks.machine import machine
from benchmarks.papers.report import verdict, write
from millrace import Dataset

QUESTION = "How many requests does a training make?"
EPOCHS = 2
PAGE = 1000
OBJECT_BYTES = 4000
SHARD_BYTES = 4 << 20
SECONDS = 1.05
"""Second requests may be made for a twentieth of them, where the first are slow."""
FEWER = 10


def make_files(folder: str, count: int) -> None:
    """Writes objects."""
    rng = np.random.default_rng(0)
    os.makedirs(folder)
    for number in range(count):
        with open(os.path.join(folder, f"{number:06d}.bin"), "wb") as file:
            file.write(rng.bytes(OBJECT_BYTES))


def read_all(dataset: Dataset, count: int) -> None:
    """Reads some epochs in this process."""
    pipeline = dataset.shuffle(1000, seed=1).batch(50)
    for _ in range(EPOCHS):
        if sum(len(batch["__key__"] if "__key__" in batch else batch["path"]) for batch in pipeline) != count:
            raise RuntimeError("an epoch has not all samples")


def torch_loop(count: int) -> None:
    """Reads some epochs through a cache that holds a tenth, with prefetching."""
    from obstore.store import S3Store
    from torch.utils.data import DataLoader, RandomSampler

    from millrace.blocks.samples.sample_cache import SampleCache
    from millrace.frameworks.torch import CachedDataset, PrefetchSampler

    class Objects:
        def __init__(self) -> None:
            self.store: Any = None

        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> int:
            if self.store is None:
                self.store = S3Store(BUCKET, client_options={"allow_http": True})
            return len(self.store.get(f"raw/{index:06d}.bin").bytes())

    dataset = CachedDataset(Objects(), SampleCache(max_samples=count // 10))
    sampler = PrefetchSampler(RandomSampler(dataset), dataset)
    loader: Any = DataLoader(dataset, batch_size=50, sampler=sampler)
    for _ in range(EPOCHS):
        if sum(len(batch) for batch in loader) != count:
            raise RuntimeError("an epoch has not all samples")
    sampler.close()
    dataset.cache.close()


WAYS: dict[str, Callable[[int], None]] = {
    "objects, from_files": lambda count: read_all(Dataset.from_files(f"s3://{BUCKET}/raw/*.bin"), count),
    "objects, torch with cache and prefetching": torch_loop,
    "packs, in pieces": lambda count: read_all(Dataset.from_webdataset(f"s3://{BUCKET}/packed/*.tar"), count),
    "packs, each sample for itself": lambda count: read_all(
        Dataset.from_webdataset(f"s3://{BUCKET}/packed/*.tar", random_access=True), count
    ),
}


def run(store: FarStore, count: int) -> dict[str, dict[str, float]]:
    """Requests of each way."""
    found: dict[str, dict[str, float]] = {}
    with mock.patch.dict(os.environ, store.far):
        for name, read in WAYS.items():
            store.link.reset()
            read(count)
            made = store.link.requests
            found[name] = {"requests": made, "of a sample": made / (EPOCHS * count), "bytes": store.link.sent}
            print(f"  {name:44} {made:7d} requests, {made / (EPOCHS * count):.4f} for each sample read", flush=True)
    return found


def aims(found: dict[str, dict[str, float]], count: int) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    pages, read = -(-count // PAGE), EPOCHS * count
    objects, singly = (found[name]["requests"] for name in ("objects, from_files", "packs, each sample for itself"))
    fewer = objects / found["packs, in pieces"]["requests"]
    listed, indexed = objects / (pages + read), singly / (2 + read)
    rows = (
        ("objects: requests, of the pages of one listing and one for each object", listed, listed <= SECONDS, SECONDS),
        ("packs, each sample for itself: requests, of one for each and two", indexed, indexed <= SECONDS, SECONDS),
        ("packs in pieces: requests for objects, of those for packs", fewer, fewer >= FEWER, FEWER),
    )
    return [{"aim": aim, "value": value, "asked": asked, "met": met} for aim, value, met, asked in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.requests", description=QUESTION)
    parser.add_argument("--objects", type=int, default=2500)
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on = machine()
    with tempfile.TemporaryDirectory(prefix="millrace-requests-") as root:
        raw, packed = os.path.join(root, "raw"), os.path.join(root, "packed")
        make_files(raw, options.objects)
        command = [sys.executable, "-m", "millrace", "pack", f"{raw}/*.bin", packed, "--shard-bytes", str(SHARD_BYTES)]
        subprocess.run(command, check=True)
        with far_store(root, 0.0, parts=True) as store:
            found = run(store, options.objects)
    met = aims(found, options.objects)
    table = [["", "requests", "for each sample read"]]
    table += [[name, f"{each['requests']:.0f}", f"{each['of a sample']:.4f}"] for name, each in found.items()]
    report = {"modelled": "nothing", "rounds": [found], "table": table, "aims": met}
    write(options.json, "benchmarks.papers.requests", QUESTION, arguments, on, report)
    return verdict(met)


if __name__ == "__main__":
    sys.exit(main())
