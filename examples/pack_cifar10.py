"""Packs a folder of images, ``<folder>/<class>/<name>.jpg``, into tar shards as WebDataset reads them.

    python examples/pack_cifar10.py cifar10/train shards/train
    python examples/pack_cifar10.py cifar10/test shards/test

A sample is two members of a shard, ``000017.jpg`` and ``000017.cls``: the file as it is, and the number of its class,
in the order of the classes' names. Samples are shuffled once, so that every shard holds all classes.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import tarfile
from collections.abc import Iterable
from pathlib import Path


def main() -> None:
    """Packs one folder."""
    parser = argparse.ArgumentParser(description="Packs <folder>/<class>/<name>.jpg into tar shards.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("prefix", help="shards are called PREFIX-000.tar, PREFIX-001.tar, ...")
    parser.add_argument("--per-shard", type=int, default=5000, metavar="N", help="images a shard (default 5000)")
    options = parser.parse_args()
    classes = sorted(path.name for path in options.folder.iterdir() if path.is_dir())
    samples = [(path, label) for label, name in enumerate(classes) for path in (options.folder / name).glob("*.jpg")]
    if not samples:
        parser.error(f"no {options.folder}/<class>/<name>.jpg")
    samples.sort()
    random.Random(0).shuffle(samples)
    os.makedirs(os.path.dirname(options.prefix) or ".", exist_ok=True)
    shards = 0
    for first in range(0, len(samples), options.per_shard):
        write_shard(f"{options.prefix}-{shards:03}.tar", first, samples[first : first + options.per_shard])
        shards += 1
    print(f"{len(samples)} images of {len(classes)} classes in {shards} shards, {options.prefix}-*.tar")


def write_shard(path: str, first: int, samples: Iterable[tuple[Path, int]]) -> None:
    """Writes samples (file, class), numbered from ``first``."""
    with tarfile.open(path, "w") as shard:
        for number, (image, label) in enumerate(samples, start=first):
            for name, content in ((f"{number:06}.jpg", image.read_bytes()), (f"{number:06}.cls", str(label).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
