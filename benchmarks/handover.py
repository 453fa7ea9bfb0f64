"""How fast ready batches get from a worker to its consumer: 64 pictures of 224 x 224 x 3 bytes, 9.6 MB.

Nothing is computed. A worker has all pictures in its memory and makes each batch by copying 64 of them together
(``assembled``), or has a whole batch and passes it on again and again (``ready``). The consumer reads one byte of every
page of what it gets, checks their sum, and drops the batch. So ``assembled`` takes one copy at least, which is what
``memcpy`` does and nothing else, in one process, into a batch that stays in place (or into eight in turn, as a service
has several on their way); ``raw socket`` is that with a TCP
connection over loopback to another process, ``sendall`` on one side and ``recv_into`` a batch that stays in place on
the other. Start-up and the first pass are not counted; passes follow one another without a pause.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import multiprocessing
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import peers, tf_service
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main, rate
from millrace import Dataset

BATCH = 64
SHAPE = (224, 224, 3)
PAGE = 4096
BYTES = BATCH * 224 * 224 * 3

# All alike, so that the sum does not depend on their order; each in memory of its own.
PICTURES = np.tile(np.random.default_rng(0).integers(0, 256, SHAPE, np.uint8), (BATCH, 1, 1, 1))


def picture(number: int) -> Any:
    """One picture that is there already."""
    return PICTURES[number % BATCH]


def ready(_: int) -> Any:
    """A batch that is there already."""
    return PICTURES


def _look(batch: Any) -> int:
    """One byte of every page; 1, as it is one batch.

    Raises:
        RuntimeError: these are not the pictures.
    """
    array = np.asarray(batch).reshape(-1)
    if array.nbytes != BYTES or int(array[::PAGE].sum()) != _sum():
        raise RuntimeError(f"what came is not the batch: {array.nbytes} bytes, sum {int(array[::PAGE].sum())}")
    return 1


@functools.cache
def _sum() -> int:
    return int(PICTURES.reshape(-1)[::PAGE].sum())


Open = Callable[[int], contextlib.AbstractContextManager[peers.Pass]]
"""Passes over so many batches."""


def _run(options: Options, share: float, ways: Mapping[str, Open]) -> Mapping[str, float]:
    """GB/s of each way to make a batch, by name."""
    count = max(int(options["batches"] * share), 4)
    figures = {}
    for name, open_pipeline in ways.items():
        with open_pipeline(count) as read:
            figures[name] = rate(read, count, options["passes"], _look) * BYTES / 1e9
    return figures


# -- what can be had at best -------------------------------------------------------------------------------------------


def _assemble(batch: Any) -> None:
    for number in range(BATCH):
        batch[number] = picture(number)


def _pass_on(batch: Any) -> None:
    batch[:] = PICTURES


@contextlib.contextmanager
def _memcpy(count: int, fill: Callable[[Any], None], batches: int = 1) -> Iterator[peers.Pass]:
    places = [np.empty_like(PICTURES) for _ in range(batches)]

    def read() -> Iterable[Any]:
        for number in range(count):
            fill(places[number % batches])
            yield places[number % batches]

    yield read


@contextlib.contextmanager
def _raw_socket(count: int, assembled: bool) -> Iterator[peers.Pass]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = multiprocessing.get_context("spawn").Process(target=_send, args=(server.getsockname(), assembled))
        sender.start()
        connection, _ = server.accept()
        with connection:
            batch = np.empty_like(PICTURES)
            view = batch.data.cast("B")

            def read() -> Iterable[Any]:
                for _ in range(count):
                    if connection.recv_into(view, BYTES, socket.MSG_WAITALL) != BYTES:
                        raise RuntimeError("the sender ended")
                    yield batch

            yield read
        sender.join()


def _send(address: tuple[str, int], assembled: bool) -> None:
    """Sends batches until nobody takes them any more."""
    batch = PICTURES.copy()
    with socket.create_connection(address) as connection, contextlib.suppress(ConnectionError):
        while True:
            if assembled:
                _assemble(batch)
            connection.sendall(batch.data)


# -- millrace and the others -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _millrace(count: int, assembled: bool, workers: int = 1, tcp: bool = False) -> Iterator[peers.Pass]:
    dataset = Dataset.range(BATCH * count).map(picture).batch(BATCH) if assembled else Dataset.range(count).map(ready)
    # This process does as if its workers were on another host.
    near = "millrace.wire.data.data_connection.connect_locally"
    apart = mock.patch(near, return_value=None) if tcp else contextlib.nullcontext()
    with apart, peers.embedded(dataset, workers) as read:
        yield read


@contextlib.contextmanager
def _tf_service(count: int, assembled: bool, workers: int = 1) -> Iterator[peers.Pass]:
    import tensorflow as tf

    service = tf.data.experimental.service
    everything = tf.constant(PICTURES)
    mine = count // workers
    if assembled:
        pictures = tf.data.Dataset.range(BATCH * mine)
        data = pictures.map(lambda number: everything[number % BATCH], num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    else:
        data = tf.data.Dataset.range(mine).map(lambda _: everything)
    with tf_service.service(workers) as address:
        mode = service.ShardingPolicy.OFF  # each worker has a part of its own; dealt out, single pictures are left over
        served = data.apply(service.distribute(processing_mode=mode, service=f"grpc://{address}", compression=None))
        # Its numpy() copies; a view of the tensor's memory does not.
        yield lambda: map(memoryview, served.prefetch(tf.data.AUTOTUNE))


class _Ready:
    """A map-style dataset of whole batches."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return ready(index)


@contextlib.contextmanager
def _torch_ready(count: int, workers: int) -> Iterator[peers.Pass]:
    from torch.utils.data import DataLoader, default_convert

    loader: DataLoader[Any] = DataLoader(
        _Ready(count),  # type: ignore[arg-type]  # torch asks for less than it declares
        batch_size=None,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=default_convert,
    )
    yield lambda: loader


def _torch(count: int, workers: int) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.torch_loader(range(BATCH * count), picture, BATCH, workers)


@contextlib.contextmanager
def _grain_ready(count: int, workers: int) -> Iterator[peers.Pass]:
    import grain

    options = grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2)
    single = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
    endless = iter(grain.MapDataset.range(count).map(ready).repeat().to_iter_dataset(single).mp_prefetch(options))
    yield lambda: itertools.islice(endless, count)


def _grain(count: int, workers: int) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.grain_processes(range(BATCH * count), picture, BATCH, workers)


@contextlib.contextmanager
def _ray(count: int) -> Iterator[peers.Pass]:
    with peers.ray_data(range(BATCH * count), picture, BATCH) as read:
        yield lambda: (batch["data"] for batch in read())


def _contestant(name: str, *needs: str, share: float = 1.0, note: str = "", **ways: Open) -> Contestant:
    return Contestant(name, functools.partial(_run, share=share, ways=ways), needs, note)


def _both(name: str, way: Any, *needs: str, share: float = 1.0, note: str = "", **arguments: Any) -> Contestant:
    """A contestant that takes ``assembled``."""
    return _contestant(
        name,
        *needs,
        share=share,
        note=note,
        assembled=functools.partial(way, assembled=True, **arguments),
        ready=functools.partial(way, assembled=False, **arguments),
    )


BENCHMARK = Benchmark(
    question="How fast do ready batches of 9.6 MB get from a worker to its consumer?",
    figures={"assembled": Figure("GB/s, assembled", digits=2), "ready": Figure("GB/s, ready", digits=2)},
    contestants=(
        _contestant(
            "memcpy",
            note="one process, one copy",
            assembled=functools.partial(_memcpy, fill=_assemble),
            ready=functools.partial(_memcpy, fill=_pass_on),
        ),
        _contestant(
            "memcpy, 8 batches in turn",
            note="more than a cache holds",
            assembled=functools.partial(_memcpy, fill=_assemble, batches=8),
            ready=functools.partial(_memcpy, fill=_pass_on, batches=8),
        ),
        _both("raw socket", _raw_socket, note="TCP, another process"),
        _both("millrace, same host, 1 worker", _millrace),
        _both("millrace, same host, 2 workers", _millrace, workers=2),
        _both("millrace, TCP, 1 worker", _millrace, tcp=True),
        _both("tf.data service, 1 worker", _tf_service, "tensorflow", share=0.5),
        _both("tf.data service, 2 workers", _tf_service, "tensorflow", share=0.5, workers=2),
        *(
            _contestant(
                f"torch DataLoader, {workers} worker{'s' * (workers > 1)}",
                "torch",
                share=0.5,
                assembled=functools.partial(_torch, workers=workers),
                ready=functools.partial(_torch_ready, workers=workers),
            )
            for workers in (1, 2)
        ),
        _contestant(
            "Grain, 1 process",
            "grain",
            share=0.25,
            assembled=functools.partial(_grain, workers=1),
            ready=functools.partial(_grain_ready, workers=1),
        ),
        _contestant("Ray Data", "ray", share=0.125, assembled=_ray, note="as many tasks as cores"),
    ),
    reference="memcpy",
    sizes={
        "batches": Size(240, 8, "batches in a pass; slow ones get fewer"),
        "passes": Size(3, 1, "measured passes in a round"),
    },
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.handover"))
