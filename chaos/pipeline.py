"""The data, the pipeline over it, and what must come out: what plain code says of each element, and of its number."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import millrace as mr

BATCH = 16
CONTENT_BYTES = 4096
BUFFER_BYTES = 2 << 20
"""Of a consumer: some thirty batches, so that what is read was computed not long before."""
_NOISE = 8
_FILES = 8
_KEPT = 5
"""Of so many elements in a row one is filtered out."""
_WINDOW = 200
_SEED = 7

Bytes = npt.NDArray[np.uint8]


def content_of(number: int) -> bytes:
    """The bytes of element ``number``."""
    return hashlib.shake_128(number.to_bytes(8, "little")).digest(CONTENT_BYTES)


def is_kept(number: int) -> bool:
    """Whether the pipeline's filter lets element ``number`` through."""
    return number % _KEPT != 0


def write_data(folder: str, rows: int) -> str:
    """Parquet files with elements 0 to ``rows`` - 1; returns the pattern that names them."""
    for file in range(_FILES):
        numbers = list(range(file * rows // _FILES, (file + 1) * rows // _FILES))
        table = pa.table({"number": numbers, "content": [content_of(number) for number in numbers]})
        pq.write_table(table, os.path.join(folder, f"{file}.parquet"), row_group_size=64)
    return os.path.join(folder, "*.parquet")


CACHES = ("auto", "cache", "compute", "frozen")
"""Where elements are kept: between reading and augmenting, for that mode of ``autocache``; behind augmenting."""


def pipeline(pattern: str, pause_s: float, cache: str) -> mr.Dataset:
    """Map, shuffle, random map, filter, batches with a remainder.

    Args:
        pattern: of the data.
        pause_s: seconds that an element takes, and no processor.
        cache: one of :data:`CACHES`.
    """

    def read(row: dict[str, Any]) -> dict[str, Any]:
        if pause_s:
            threading.Event().wait(pause_s)
        return {"number": row["number"], "content": np.frombuffer(row["content"], np.uint8)}

    def augment(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {**element, "noise": rng.integers(1 << 40, size=_NOISE)}

    elements = mr.Dataset.from_parquet(pattern).map(read)
    if cache == "frozen":
        elements = elements.map(augment).cache().shuffle(_WINDOW, seed=_SEED)
    else:
        elements = elements.autocache(cache).shuffle(_WINDOW, seed=_SEED).map(augment)
    kept = elements.filter(lambda element: is_kept(element["number"]))
    return kept.batch(BATCH).with_options(buffer_bytes=BUFFER_BYTES)


def prints(batch: dict[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Number and print (a hash of all that it holds) of each element of a batch."""
    for number, content, noise in zip(batch["number"].tolist(), batch["content"], batch["noise"], strict=True):
        yield number, print_of(content.tobytes(), noise.tobytes())


def print_of(content: bytes, noise: bytes) -> bytes:
    """The print of an element of these bytes and random values."""
    return hashlib.blake2b(content + noise, digest_size=8).digest()


Expected = list[tuple[list[int], list[bytes]]]
"""Of each batch of an epoch, in plan order: numbers and prints of its elements."""


def expect(pattern: str, rows: int, epochs: int, cache: str) -> list[Expected]:
    """What each epoch is: contents by plain code; order, batches and random values by a run in this process.

    That run keeps nothing where that makes no difference.

    Raises:
        RuntimeError: that run did not give the elements that plain code says.
    """
    found: list[Expected] = []
    dataset = pipeline(pattern, 0.0, cache if cache == "frozen" else "compute")
    for epoch in range(epochs):
        expected: Expected = []
        for batch in dataset.__pipeline__().read_epoch(epoch):
            numbers = batch["number"].tolist()
            noises = [noise.tobytes() for noise in batch["noise"]]
            expected.append(
                (numbers, [print_of(content_of(n), noise) for n, noise in zip(numbers, noises, strict=True)])
            )
        if sorted(n for numbers, _ in expected for n in numbers) != [n for n in range(rows) if is_kept(n)]:
            raise RuntimeError(f"epoch {epoch} in this process is not the data, without any fault")
        found.append(expected)
    return found
