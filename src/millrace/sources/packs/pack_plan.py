"""Plan of a pack: which files are one sample, in which order, in which shard. It follows from the listing alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError
from millrace.planning.split_table import SplitTable
from millrace.sources import storage
from millrace.sources.tarfiles import BLOCK

SHARD_BYTES = 64 << 20
"""Size in bytes of a shard where the user names none: few objects to list, and little to make again after a crash."""

_META = re.compile(r"__[^/]*__($|/)")
"""Paths that WebDataset keeps for itself."""
_FORMAT = 1


class PackedFile(NamedTuple):
    """File that becomes a member of a shard: location, size in bytes and stamp as listed, and its name in the shard."""

    location: str
    size: int
    stamp: int
    name: str


class PackPlan(NamedTuple):
    """Plan of a pack. Of a million files it takes little more memory than their locations.

    Attributes:
        root: length of the folder that all files are in, with its slash.
        locations: of the files, sorted by sample, and in it by field.
        sizes: of the files, in bytes; int64 [files].
        stamps: of the files (:func:`~millrace.planning.split_table.stamp_of`); uint64 [files].
        starts: number of each sample's first file, and behind the last the number of files; int64 [samples + 1].
        order: numbers of the samples in the order in which they are packed; int64 [samples].
        shards: place in ``order`` of each shard's first sample, and behind the last the number of samples; int64.
        digest: all that decides what the shards hold: the size of a shard, the seed, and a hash of the files.
    """

    root: int
    locations: list[str]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]
    starts: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int64]
    digest: str

    def samples(self, shard: int) -> Iterator[tuple[str, list[PackedFile]]]:
        """Yield the samples of a shard, in order: key and files of each."""
        for sample in self.order[self.shards[shard] : self.shards[shard + 1]].tolist():
            files = [self._file(number) for number in range(*self.starts[sample : sample + 2].tolist())]
            key, _ = _split(files[0].location, files[0].name)
            yield key, files

    def _file(self, number: int) -> PackedFile:
        location = self.locations[number]
        return PackedFile(location, int(self.sizes[number]), int(self.stamps[number]), _name(location, self.root))


def shard_name(number: int) -> str:
    """Name of a shard in its folder."""
    return f"shard-{number:06}.tar"


def split_name(path: str) -> tuple[str, str] | None:
    """Split a member's path into (key, field): up to the first dot of its last part, and the rest in lower case.

    The result is None if the member belongs to no sample: it has no dot, begins with one, or is WebDataset's own.
    """
    dot = path.find(".", path.rfind("/") + 1)
    if dot <= 0 or path[dot - 1] == "/" or (path.startswith("__") and _META.match(path)):
        return None
    return path[:dot], path[dot + 1 :].lower()


def make_plan(table: SplitTable, shard_bytes: int = SHARD_BYTES, seed: int | None = None) -> PackPlan:
    """Plan a pack of files.

    Args:
        table: of the files.
        shard_bytes: size in bytes at which a shard ends, with the sample that reaches it.
        seed: of a permutation of all samples; None: they are packed in the order of their paths.

    Raises:
        PipelineError: a file can be no member of a shard, or two are the same member; names them.
    """
    found = [storage.absolute(location) for location in table.names]
    root = _root(min(found, default=""), max(found, default=""))
    names = [_sort_key(location, root) for location in found]
    by_sample = sorted(range(len(found)), key=names.__getitem__)
    locations = [found[number] for number in by_sample]
    sizes, stamps = np.array(list(table.sizes), np.int64)[by_sample], np.array(list(table.stamps), np.uint64)[by_sample]
    starts = np.array([*_starts(locations, root), len(locations)], np.int64)
    samples = len(starts) - 1
    order = np.arange(samples)
    if seed is not None:
        order = np.random.Generator(np.random.Philox(seed)).permutation(samples)
    told = hashlib.blake2b(repr((_FORMAT, shard_bytes, seed)).encode(), digest_size=16)
    for location, size, stamp in zip(locations, sizes.tolist(), stamps.tolist(), strict=True):
        told.update(f"{size} {stamp} ".encode() + _encoded(location[root:]) + b"\0")
    shards = _cut(_extents(sizes, starts)[order], shard_bytes)
    digest = f"{shard_bytes}.{'' if seed is None else seed}.{told.hexdigest()}"
    return PackPlan(root, locations, sizes, stamps, starts, order, shards, digest)


def difference(known: str, digest: str) -> str:
    """Say how the plan of one digest differs from that of another, as a clause about the first."""
    before, now = known.split("."), digest.split(".")
    if len(before) != len(now) or before[:2] == now[:2]:
        return "was made of other files, or of these before they changed"
    seed = f"--seed {before[1]}" if before[1] else "no --seed"
    return f"was made with --shard-bytes {before[0]} and {seed}"


def _starts(locations: list[str], root: int) -> Iterator[int]:
    """Find the number of each sample's first file; check that every file can be a member of its own."""
    last = None
    fields: dict[str, str] = {}
    for number, location in enumerate(locations):
        key, field = _split(location, _name(location, root))
        if key != last:
            yield number
            last, fields = key, {}
        if field in fields:
            raise PipelineError(
                f"{fields[field]} and {location} would both be the field {field!r} of the sample {key!r}, as fields are"
                " told apart by what follows the first dot, in lower case: rename one, or name it once"
            )
        fields[field] = location


def _name(location: str, root: int) -> str:
    name = location[root:]
    return name if "." in name.rpartition("/")[2] else f"{name}.bin"


def _split(location: str, name: str) -> tuple[str, str]:
    split = split_name(name)
    if split is None:
        raise PipelineError(
            f"{location} can't be part of a sample: readers of tar shards leave out files whose names begin with a dot,"
            " and paths that begin like __this__. Rename it, or give patterns that don't match it"
        )
    if split[1] == "__key__":
        raise PipelineError(f"{location} can't be packed: readers call a sample's name __key__, so no field may be")
    if "://" in name or name.startswith("/"):
        raise PipelineError(f"{location} lies in another place than other files: pack those of each on their own")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise PipelineError(f"{location!r} can't be packed, as its name is not UTF-8: rename it") from error
    return split


def _encoded(location: str) -> bytes:
    return location.encode("utf-8", "surrogateescape")


def _sort_key(location: str, root: int) -> bytes:
    """Name of a file, with the least character before its field, so that the files of a sample stay together."""
    name = _name(location, root)
    dot = name.find(".", name.rfind("/") + 1)
    return _encoded(f"{name[:dot]}\0{name[dot:].lower()}")


def _root(first: str, last: str) -> int:
    """Length of the folder that all files are in, with its slash, of which these are the first and the last sorted."""
    alike = 0
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        alike += 1
    return first.rfind("/", 0, alike) + 1


def _extents(sizes: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bytes that each sample takes in a shard, long names apart; int64 [samples]."""
    taken = np.concatenate([[0], np.cumsum(BLOCK + -(-sizes // BLOCK) * BLOCK)])
    return np.diff(taken[starts])


def _cut(extents: npt.NDArray[np.int64], shard_bytes: int) -> npt.NDArray[np.int64]:
    """Cut samples of these sizes into shards that end with the sample which reaches ``shard_bytes``."""
    ends = np.cumsum(extents)
    shards, before = [0], 0
    while shards[-1] < len(extents):
        last = int(np.searchsorted(ends, before + shard_bytes))
        shards.append(min(last + 1, len(extents)))
        before = int(ends[shards[-1] - 1])
    return np.array(shards, np.int64)
