"""What it costs to begin and to end: import, first batch, the turn from one epoch to the next, shutdown.

``import`` is that of the library in a fresh interpreter. ``first batch`` is the time from there on, for a pipeline over
a few integers, with all processes that have to be started. ``turn`` is the time from the last batch of an epoch to the
first of the next one, for a consumer that does nothing in between, over few integers and over many. ``shutdown`` is the
time from the word to end until no process is left that was started.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from benchmarks import peers
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from millrace import Dataset

BATCH = 64
_LIMIT_S = 60.0
"""A process that is still there so long after the end will stay."""

Open = Callable[[range, peers.Function, int], contextlib.AbstractContextManager[peers.Pass]]


def plus_one(number: int) -> int:
    """What an integer goes through."""
    return number + 1


def _run(options: Options, pipeline: Open, module: str) -> Mapping[str, float]:
    figures = {"import": _import_s(module)}
    importlib.import_module(module)
    for name, count in (("few", options["few"]), ("many", options["many"])):
        with contextlib.ExitStack() as stack:
            began = time.perf_counter()
            read = stack.enter_context(pipeline(range(count), plus_one, BATCH))
            first, turns = _epochs(read, options["epochs"])
            figures[name] = 1000 * statistics.median(turns)
            if name == "few":
                figures["first"] = first - began
            began = time.perf_counter()
        del read, stack
        gc.collect()
        _wait_for_children()
        if name == "few":
            figures["shutdown"] = time.perf_counter() - began
    return figures


def _import_s(module: str) -> float:
    """Seconds that ``import module`` takes in a fresh interpreter."""
    program = f"import time; began = time.perf_counter(); import {module}; print(time.perf_counter() - began)"
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(answer.stdout.split()[-1])


def _epochs(read: peers.Pass, epochs: int) -> tuple[float, list[float]]:
    """When the first batch came, and the seconds between one epoch's last batch and the next one's first."""
    came, turns, begins = 0.0, [], []
    for _ in range(epochs + 1):
        ended, first = came, True
        for _batch in read():
            came = time.perf_counter()
            if first:
                begins.append(came)
                turns.append(came - ended)
                first = False
    return begins[0], turns[1:]


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _wait_for_children() -> None:
    """Returns when no process is left that this one started, and that is not a helper of Python's own."""
    deadline = time.monotonic() + _LIMIT_S
    for pid in _children():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"resource_tracker" in file.read():
                continue  # lives as long as this process
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                ended = select.select([handle], [], [], max(deadline - time.monotonic(), 0.0))[0]
            finally:
                os.close(handle)
            if not ended:
                raise RuntimeError(f"process {pid} did not end")


# -- who takes part ----------------------------------------------------------------------------------------------------


def _in_process(items: range, function: peers.Function, batch: int) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.in_process(Dataset.range(len(items)).map(function).batch(batch))


def _embedded(
    items: range, function: peers.Function, batch: int, workers: int
) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.embedded(Dataset.range(len(items)).map(function).batch(batch), workers)


@contextlib.contextmanager
def _tf_data(items: range, function: peers.Function, batch: int) -> Iterator[peers.Pass]:
    import tensorflow as tf

    data = tf.data.Dataset.range(len(items)).map(function).batch(batch).prefetch(tf.data.AUTOTUNE)
    yield lambda: data


@contextlib.contextmanager
def _tf_service(items: range, function: peers.Function, batch: int) -> Iterator[peers.Pass]:
    import tensorflow as tf

    from benchmarks import tf_service

    with tf_service.service(2) as address:
        data = tf.data.Dataset.range(len(items)).map(function).batch(batch)
        served = data.apply(
            tf.data.experimental.service.distribute(processing_mode="distributed_epoch", service=address)
        )
        yield lambda: served


def _contestant(name: str, pipeline: Open, module: str, *needs: str, note: str = "") -> Contestant:
    return Contestant(name, functools.partial(_run, pipeline=pipeline, module=module), needs, note)


BENCHMARK = Benchmark(
    question="What does it cost to begin, to turn to the next epoch, and to end?",
    figures={
        "import": Figure("s, import", digits=2, more_is_better=False),
        "first": Figure("s, first batch", digits=2, more_is_better=False),
        "few": Figure("ms, turn (few)", digits=1, more_is_better=False),
        "many": Figure("ms, turn (many)", digits=1, more_is_better=False),
        "shutdown": Figure("s, shutdown", digits=2, more_is_better=False),
    },
    contestants=(
        _contestant("millrace, in process", _in_process, "millrace.dataset"),
        _contestant("millrace, embedded, 1 worker", functools.partial(_embedded, workers=1), "millrace.dataset"),
        _contestant("millrace, embedded, 2 workers", functools.partial(_embedded, workers=2), "millrace.dataset"),
        _contestant("torch DataLoader, in process", peers.torch_loader, "torch.utils.data", "torch"),
        _contestant(
            "torch DataLoader, 2 workers",
            functools.partial(peers.torch_loader, workers=2, stay=False),
            "torch.utils.data",
            "torch",
            note="new workers every epoch",
        ),
        _contestant(
            "torch DataLoader, 2 workers that stay",
            functools.partial(peers.torch_loader, workers=2),
            "torch.utils.data",
            "torch",
        ),
        _contestant("tf.data", _tf_data, "tensorflow", "tensorflow", note="own operations"),
        _contestant("tf.data service, 2 workers", _tf_service, "tensorflow", "tensorflow", note="own operations"),
        _contestant("Grain, threads", peers.grain_threads, "grain", "grain"),
        _contestant("Grain, 2 processes", peers.grain_processes, "grain", "grain"),
        _contestant("Ray Data", peers.ray_data, "ray.data", "ray"),
        _contestant("SPDL, threads", peers.spdl_threads, "spdl.pipeline", "spdl"),
    ),
    reference="millrace, embedded, 2 workers",
    sizes={
        "few": Size(1_024, 256, "integers in a small epoch"),
        "many": Size(50_000, 1_024, "integers in a large epoch"),
        "epochs": Size(5, 2, "turns from one epoch to the next"),
    },
    rounds=3,
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.startup"))
