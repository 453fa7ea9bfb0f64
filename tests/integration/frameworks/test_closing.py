"""An iterator that is left early lets go of all that it holds, at once."""

import contextlib
import gc
import threading
from pathlib import Path

import numpy as np
import pytest

import millrace as mr


def dataset():
    return mr.Dataset.range(10_000).map(lambda i: np.full(100, i)).batch(10).prefetch(4)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("millrace")]


@pytest.mark.parametrize("framework", ["torch", "jax", "numpy"])
class TestLeftEarly:
    def test_by_close(self, framework):
        before = set(threads())
        epoch = iter(getattr(dataset(), framework)())
        next(epoch)
        epoch.close()
        assert set(threads()) <= before
        with pytest.raises(StopIteration):
            next(epoch)
        epoch.close()

    def test_by_with(self, framework):
        with iter(getattr(dataset(), framework)()) as epoch:
            next(epoch)
        with pytest.raises(StopIteration):
            next(epoch)

    def test_by_break(self, framework):
        before = set(threads())
        for _ in getattr(dataset(), framework)():
            break
        assert set(threads()) <= before

    def test_on_a_service(self, framework):
        with dataset().distribute(workers=1) as distributed:
            source = getattr(distributed, framework)()
            with iter(source) as epoch:
                next(epoch)
            assert next(iter(distributed)) is not None  # the next epoch, not what was left of the first
            for _ in source:
                break
            assert sum(len(batch) for batch in source) == 10_000


def test_tensorflow_left_early():
    before = set(threads())
    for _ in dataset().tensorflow():
        break
    assert set(threads()) <= before


def test_tensorflow_left_early_on_a_service():
    with dataset().distribute(workers=1) as distributed:
        tensors = distributed.tensorflow()
        for _ in tensors:
            break
        assert sum(len(batch) for batch in tensors) == 10_000


def test_tensorflow_lets_go_of_an_embedded_service():
    def children():
        found = set()
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that ends meanwhile
                found |= set((task / "children").read_text().split())
        return found

    before = children()
    batches = dataset().distribute(workers=1).tensorflow()
    for _ in batches.map(lambda batch: batch + 1).take(3):
        pass
    iterator = iter(batches)
    del batches, _
    gc.collect()
    assert next(iterator) is not None
    assert children() - before
    del iterator
    gc.collect()
    assert not children() - before
