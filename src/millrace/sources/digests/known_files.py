"""Files of a listing, to be found by their locations among those of a digest, without an object for each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from millrace.planning.columns import Strings
from millrace.sources import storage

Keys = npt.NDArray[np.int64]
"""Hashes of locations, int64; they hold for this process alone."""


def keys_of(locations: Iterable[bytes], count: int) -> Keys:
    """Hash locations. Two of a million are alike once in forty million times; sizes and versions are compared too."""
    return np.fromiter(map(hash, locations), np.int64, count)


def listed_keys(names: Strings) -> Keys:
    """Hash the locations of a listing, as digests have them."""
    return keys_of((as_written(name) for name in names), len(names))


def as_written(location: str) -> bytes:
    """Location as digests have it: of a local file its absolute path."""
    return storage.absolute(location).encode("utf-8", "surrogateescape")


class KnownFiles:
    """Files, of which any can be found by the key of its location.

    Attributes:
        entries: number of each file's first entry in the listing; int32 [files].

    Args:
        keys: of the entries of a listing, in which a file may come several times.
    """

    def __init__(self, keys: Keys) -> None:
        order = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys = keys[order]
        first = np.ones(len(keys), bool)
        first[1:] = self._keys[1:] != self._keys[:-1]
        self._keys, self.entries = self._keys[first], order[first]

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, keys: Keys) -> npt.NDArray[np.int64]:
        """Find the number of the file with each of these keys; -1 for none."""
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, at, -1)
