"""The same pipeline in other libraries: a function on every item, in batches.

Each is a context in which a function gives a new pass over the data every time it is called; what has to be set up or
started once is set up on the first pass at the latest. Batches are dicts of arrays if the function returns dicts, and
arrays if it returns numbers or arrays (but Ray Data has dicts only). Libraries are set up as their own guides
recommend, with as many threads or processes as there are cores unless told otherwise; each is imported where it is
used.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.machine import cores
from millrace import Dataset

Function = Callable[[Any], Any]
Pass = Callable[[], Iterable[Any]]


def length(batch: Any) -> int:
    """Elements in a batch of any of these libraries."""
    return len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch)


def stack(elements: Sequence[Any]) -> Any:
    """A batch of elements, as plainly as numpy can."""
    if isinstance(elements[0], dict):
        return {key: np.array([element[key] for element in elements]) for key in elements[0]}
    return np.array(elements)


@contextlib.contextmanager
def bare_loop(items: Sequence[Any], function: Function, batch: int) -> Iterator[Pass]:
    """No library, one thread."""

    def read() -> Iterator[Any]:
        for start in range(0, len(items), batch):
            yield stack([function(item) for item in items[start : start + batch]])

    yield read


@contextlib.contextmanager
def in_process(dataset: Dataset) -> Iterator[Pass]:
    """This project, in this process."""
    yield lambda: dataset


@contextlib.contextmanager
def embedded(dataset: Dataset, workers: int = 2) -> Iterator[Pass]:
    """This project, on a service that this process starts: a dispatcher and workers."""
    with dataset.distribute(workers=workers) as served:
        yield lambda: served


class _Mapped:
    """A map-style dataset."""

    def __init__(self, items: Sequence[Any], function: Function) -> None:
        self._items, self._function = items, function

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._function(self._items[index])


@contextlib.contextmanager
def torch_loader(
    items: Sequence[Any], function: Function, batch: int, workers: int = 0, *, stay: bool = True
) -> Iterator[Pass]:
    """A DataLoader whose workers, if any, live on from pass to pass if they ``stay``."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        _Mapped(items, function),  # type: ignore[arg-type]  # torch asks for less than it declares
        batch_size=batch,
        num_workers=workers,
        persistent_workers=stay and workers > 0,
    )
    yield lambda: loader


@contextlib.contextmanager
def grain_threads(items: Sequence[Any], function: Function, batch: int) -> Iterator[Pass]:
    """Grain, with threads that make whole batches ahead; one by one, elements cost it far more."""
    import grain

    options = grain.ReadOptions(num_threads=cores(), prefetch_buffer_size=4)
    dataset = grain.MapDataset.source(items).map(function).batch(batch).to_iter_dataset(options)
    yield lambda: dataset


@contextlib.contextmanager
def grain_processes(items: Sequence[Any], function: Function, batch: int, workers: int = 2) -> Iterator[Pass]:
    """Grain, with processes that each make whole batches of their share.

    One iterator goes over the data again and again, as it starts processes of its own.
    """
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain asks for one of its own, which its users' programs have parsed
    single = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    batches = grain.MapDataset.source(items).map(function).batch(batch)
    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    endless = iter(batches.repeat().to_iter_dataset(single).mp_prefetch(options))
    yield lambda: itertools.islice(endless, len(batches))


@contextlib.contextmanager
def ray_data(items: Sequence[Any], function: Function, batch: int) -> Iterator[Pass]:
    """Ray Data on a Ray of its own."""
    # Else it writes a token into the user's home, and clusters that are started later want it.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    def call(row: dict[str, Any]) -> dict[str, Any]:
        found = function(row["id"])
        return found if isinstance(found, dict) else {"data": found}

    # "local": else it would join a cluster that another program has left behind.
    ray.init("local", num_cpus=cores(), include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        if isinstance(items, range):
            source = ray.data.range(len(items))
        else:
            source = ray.data.from_items([{"id": item} for item in items])
        yield lambda: source.map(call).iter_batches(batch_size=batch, batch_format="numpy")
    finally:
        ray.shutdown()


@contextlib.contextmanager
def spdl_threads(items: Sequence[Any], function: Function, batch: int) -> Iterator[Pass]:
    """SPDL, with threads that run the function."""
    from spdl.pipeline import PipelineBuilder

    def read() -> Iterator[Any]:
        builder = PipelineBuilder().add_source(items).pipe(function, concurrency=cores(), output_order="input")
        pipeline = builder.aggregate(batch).pipe(stack).add_sink(2).build(num_threads=cores() + 1)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    yield read
