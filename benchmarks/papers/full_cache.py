"""An epoch wholly from the cache, beside a bare loop over a mapped file of the same bytes that copies each element.

Elements are arrays of 4 KB, 150 KB and 2 MB, as many as make up the same number of bytes, in the order in which they
were kept, or in another random order each epoch (a full shuffle, above the cache). They lie in a folder, and the
system has them in memory, as the loop has its file. Whoever reads an element reads a byte of each of its pages, as what
isn't copied would otherwise not even be looked at. A first epoch, which is not measured, makes and keeps them; the next
one is looked at closely. The service has its cache in a folder of its own.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main, rate
from millrace import Dataset, LocalService

SIZES = {"4 KB": 4 << 10, "150 KB": 150 << 10, "2 MB": 2 << 20}
"""Bytes of an element, by name."""
_NOISE = np.random.default_rng(0).integers(0, 256, 64 << 10, np.uint8)
_PAGE = 4096
_CACHE_BYTES = 16 << 30
"""Of the service: room for all."""


def element(nbytes: int, number: int) -> Any:
    """An array of so many bytes, that begins with its number."""
    made = np.resize(_NOISE[number % 64 :], nbytes)
    made[:4].view("<u4")[0] = number
    return made


def _number(made: Any) -> int:
    return int(made[:4].view("<u4")[0])


def _look(made: Any) -> int:
    """Reads a byte of each page; 1, the number of elements."""
    made[::_PAGE].tobytes()
    return 1


def _check(elements: Iterable[Any], nbytes: int, count: int) -> None:
    """Reads a pass.

    Raises:
        RuntimeError: it hasn't each element once, with its bytes.
    """
    numbers = []
    for made in elements:
        numbers.append(_number(made))
        if not np.array_equal(made, element(nbytes, numbers[-1])):
            raise RuntimeError(f"element {numbers[-1]} of {nbytes} bytes isn't what it was")
    if sorted(numbers) != list(range(count)):
        raise RuntimeError(f"{len(set(numbers))} elements came, {len(numbers)} in all, where there are {count}")


Open = Callable[[int, int, bool], contextlib.AbstractContextManager[peers.Pass]]
"""Passes over so many elements of so many bytes, shuffled or not."""


def _run(options: Options, way: Open) -> Mapping[str, float]:
    """GB/s for each size and order."""
    figures = {}
    for name, nbytes in SIZES.items():
        count = max(4, (options["mb"] << 20) // nbytes)
        for order in ("in order", "shuffled"):
            with way(nbytes, count, order == "shuffled") as read:
                check = functools.partial(_check, nbytes=nbytes, count=count)
                found = rate(read, count, options["passes"], _look, check)
                figures[f"{name}, {order}"] = found * nbytes / 1e9
    return figures


@contextlib.contextmanager
def _mapped(nbytes: int, count: int, shuffled: bool) -> Iterator[peers.Pass]:
    with tempfile.TemporaryFile(prefix="millrace-bench-") as file:
        for number in range(count):
            file.write(element(nbytes, number))
        file.flush()
        view = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        chance = np.random.default_rng(1)

        def read() -> Iterator[Any]:
            numbers = chance.permutation(count).tolist() if shuffled else range(count)
            for number in numbers:
                yield view[number * nbytes : (number + 1) * nbytes].copy()

        yield read


def _dataset(nbytes: int, count: int, shuffled: bool, path: str | None = None) -> Dataset:
    kept = Dataset.range(count).map(functools.partial(element, nbytes)).cache(path)
    return kept.shuffle(count) if shuffled else kept


@contextlib.contextmanager
def _in_process(nbytes: int, count: int, shuffled: bool) -> Iterator[peers.Pass]:
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        dataset = _dataset(nbytes, count, shuffled, folder)
        _fill(dataset)
        yield lambda: dataset


@contextlib.contextmanager
def _embedded(nbytes: int, count: int, shuffled: bool, workers: int) -> Iterator[peers.Pass]:
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
        LocalService(workers, workers, cache_dir=folder, cache_bytes=_CACHE_BYTES) as service,
        _dataset(nbytes, count, shuffled).distribute(service.address, workers=workers) as served,
    ):
        _fill(served)
        yield lambda: served


def _fill(epoch: Iterable[Any]) -> None:
    for _ in epoch:
        pass


BENCHMARK = Benchmark(
    question="How fast is an epoch that is wholly in the cache?",
    figures={
        f"{name}, {order}": Figure(f"GB/s, {name}, {order}", digits=2)
        for name in SIZES
        for order in ("in order", "shuffled")
    },
    contestants=(
        Contestant("mmap loop", functools.partial(_run, way=_mapped), note="one process, one copy"),
        Contestant("millrace, in process", functools.partial(_run, way=_in_process)),
        Contestant(
            "millrace, embedded, 1 worker", functools.partial(_run, way=functools.partial(_embedded, workers=1))
        ),
        Contestant(
            "millrace, embedded, 2 workers", functools.partial(_run, way=functools.partial(_embedded, workers=2))
        ),
    ),
    reference="mmap loop",
    sizes={
        "mb": Size(256, 8, "MiB of a pass"),
        "passes": Size(4, 1, "measured passes in a round"),
    },
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.papers.full_cache"))
