"""What an element costs beside its work: a million integers plus one, and dicts of 200 bytes, in batches of 1024.

Everybody runs the same Python function on every element and gets batches of numpy arrays (or tensors), but for
``own operations``, where TensorFlow's stand in for Python. Slow ones get fewer elements, so that a pass of each takes
about as long.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main, rate
from millrace import Dataset

BATCH = 1024
_MANY = 1024
_FEATURES = np.random.default_rng(0).standard_normal((_MANY, 32), dtype=np.float32)
_TEXTS = [f"element {number:4}, with a text that is about sixty bytes long" for number in range(_MANY)]


def plus_one(number: Any) -> Any:
    """What an integer goes through."""
    return number + 1


def row(number: int) -> dict[str, Any]:
    """A dict of 200 bytes: an id, 32 features, a label and a text."""
    known = number % _MANY
    return {"id": number, "features": _FEATURES[known] + 1, "label": number % 10, "text": _TEXTS[known]}


Open = Callable[[range, peers.Function, int], contextlib.AbstractContextManager[peers.Pass]]


def _run(options: Options, pipeline: Open, share: float = 1.0) -> Mapping[str, float]:
    """Both rates, in millions a second, of a pipeline that gets a share of the elements."""
    figures = {}
    for name, function, part in (("integers", plus_one, 1.0), ("dicts", row, 0.2)):
        count = max(int(options["elements"] * share * part) // BATCH, 4) * BATCH
        with pipeline(range(count), function, BATCH) as read:
            figures[name] = rate(read, count, options["passes"], peers.length) / 1e6
    return figures


# -- millrace and TensorFlow -------------------------------------------------------------------------------------------


def _in_process(items: range, function: peers.Function, batch: int) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.in_process(Dataset.range(len(items)).map(function).batch(batch))


def _embedded(items: range, function: peers.Function, batch: int) -> contextlib.AbstractContextManager[peers.Pass]:
    return peers.embedded(Dataset.range(len(items)).map(function).batch(batch))


@contextlib.contextmanager
def _tf_python(items: range, function: peers.Function, batch: int) -> Iterator[peers.Pass]:
    import tensorflow as tf

    types = {"id": tf.int64, "features": tf.float32, "label": tf.int64, "text": tf.string}

    def call(number: Any) -> Any:
        if function is plus_one:
            return tf.numpy_function(function, [number], tf.int64, stateful=False)
        values = tf.numpy_function(lambda each: list(row(each).values()), [number], list(types.values()), False)
        return dict(zip(types, values, strict=True))

    data = tf.data.Dataset.range(len(items)).map(call, num_parallel_calls=tf.data.AUTOTUNE)
    yield lambda: data.batch(batch).prefetch(tf.data.AUTOTUNE)


@contextlib.contextmanager
def _tf_own(items: range, function: peers.Function, batch: int) -> Iterator[peers.Pass]:
    import tensorflow as tf

    features, texts = tf.constant(_FEATURES), tf.constant(_TEXTS)

    def call(number: Any) -> Any:
        if function is plus_one:
            return number + 1
        known = number % _MANY
        return {"id": number, "features": features[known] + 1, "label": number % 10, "text": texts[known]}

    data = tf.data.Dataset.range(len(items)).map(call, num_parallel_calls=tf.data.AUTOTUNE)
    yield lambda: data.batch(batch).prefetch(tf.data.AUTOTUNE)


# -- who takes part ----------------------------------------------------------------------------------------------------


def _contestant(name: str, pipeline: Open, *needs: str, share: float = 1.0, note: str = "") -> Contestant:
    return Contestant(name, functools.partial(_run, pipeline=pipeline, share=share), needs, note)


BENCHMARK = Benchmark(
    question="What does a small element cost beside its work?",
    figures={"integers": Figure("M integers/s", digits=3), "dicts": Figure("M dicts of 200 bytes/s", digits=3)},
    contestants=(
        _contestant("bare loop", peers.bare_loop, note="one process"),
        _contestant("millrace, in process", _in_process),
        _contestant("millrace, embedded, 2 workers", _embedded),
        _contestant("torch DataLoader, in process", peers.torch_loader, "torch", share=0.25),
        _contestant(
            "torch DataLoader, 2 workers", functools.partial(peers.torch_loader, workers=2), "torch", share=0.25
        ),
        _contestant("tf.data, Python function", _tf_python, "tensorflow", share=0.01),
        _contestant("tf.data, own operations", _tf_own, "tensorflow", share=0.05, note="no Python function"),
        _contestant("Grain, threads", peers.grain_threads, "grain", share=0.25),
        _contestant("Grain, 2 processes", peers.grain_processes, "grain", share=0.25),
        _contestant("Ray Data", peers.ray_data, "ray", share=0.1),
        _contestant("SPDL, threads", peers.spdl_threads, "spdl", share=0.02),
    ),
    reference="bare loop",
    sizes={
        "elements": Size(1_000_000, 8192, "integers in a pass (a fifth as many dicts); slow ones get fewer"),
        "passes": Size(3, 1, "measured passes in a round"),
    },
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.small"))
