"""One rank of a training that :mod:`benchmarks.papers.trainings` compares: what it learns, and how its batches come.

    python -m benchmarks.papers.training_rank SETTING

SETTING is a :class:`~benchmarks.papers.training_data.Setting` as JSON. It prints a line of JSON: seconds of training,
of these seconds waited for batches, and the score after every so many steps. Scoring is no part of these seconds, nor
is what it takes to import a library and to connect. All
feeds call the same Python functions of an item, but for tf.data service, whose functions have to be TensorFlow's.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import distributed, nn
from torch.autograd import backward
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import millrace as mr
from benchmarks.papers.training_data import SIDE, Setting
from benchmarks.papers.training_works import WORKS, Pictures, Work
from benchmarks.ray_cluster import HEAD


class _MapStyle(Dataset[Any]):
    """Items as a map-style dataset; a sample's random choices are drawn anew each time."""

    def __init__(self, work: Work, items: Sequence[Any]) -> None:
        self._work, self._items = work, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Any:
        return self._work.load(self._items[index], np.random.default_rng(random.getrandbits(64)))


def from_loader(work: Work, items: Sequence[Any], setting: Setting, **options: Any) -> Generator[Iterable[Any]]:
    """Yield nothing when it is ready, then epochs of torch's DataLoader with a process of its own, on this host."""
    options = {"collate_fn": work.collate, "num_workers": 1, **options}
    dataset = _MapStyle(work, items)
    sampler: Any = DistributedSampler(dataset, setting.ranks, setting.rank, seed=setting.seed, drop_last=True)
    loader: Any = DataLoader(
        dataset,
        work.batch,
        sampler=sampler,
        persistent_workers=True,
        drop_last=True,
        **options,
    )
    yield ()
    for epoch in range(1 << 30):
        sampler.set_epoch(epoch)
        yield loader


def from_millrace(work: Work, items: Sequence[Any], setting: Setting) -> Generator[Iterable[Any]]:
    """The same of a job of a service."""
    examples = mr.Dataset.from_list(list(items)).shuffle(len(items), seed=setting.seed).map(work.load)
    with work.served(examples).distribute(
        setting.address, job_name="training", **work.options(setting.rank, setting.ranks)
    ) as served:
        yield ()
        while True:
            yield served


def from_tf_service(work: Work, items: Sequence[Any], setting: Setting) -> Generator[Iterable[Any]]:
    """The same of pictures that a tf.data service makes, with TensorFlow's own operations."""
    import tensorflow as tf

    assert isinstance(work, Pictures)

    def load(path: Any, label: Any) -> Any:
        picture = tf.image.decode_jpeg(tf.io.read_file(path), 3)
        side = tf.cast(SIDE * tf.sqrt(tf.random.uniform((), 0.5, 1.0)), tf.int32)
        picture = tf.image.resize(tf.image.random_crop(picture, (side, side, 3)), (SIDE, SIDE), "bicubic")
        picture = tf.image.random_brightness(picture, 25)
        picture = tf.image.random_contrast(picture, 0.8, 1.2)
        picture = tf.image.random_saturation(picture, 0.8, 1.2)
        picture = tf.image.random_flip_left_right(picture)
        return {"image": tf.cast(tf.clip_by_value(picture, 0, 255), tf.uint8), "label": label}

    paths, labels = zip(*items, strict=True)
    dataset = tf.data.Dataset.from_tensor_slices((list(paths), list(labels))).shuffle(len(items))
    dataset = dataset.map(load, tf.data.AUTOTUNE).batch(work.batch, drop_remainder=True)
    mode = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    served = dataset.apply(tf.data.experimental.service.distribute(mode, setting.address)).prefetch(2)
    yield ()
    while True:
        yield served.as_numpy_iterator()


def from_ray(work: Work, items: Sequence[Any], setting: Setting) -> Generator[Iterable[Any]]:
    """The same of Ray Data; paths are shuffled anew for each epoch."""
    import ray
    import ray.data

    ray.init(setting.address, _node_ip_address=HEAD, logging_level="error", log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    load, batch = work.load, work.batch
    rows = ray.data.from_items([{"path": path, "label": label} for path, label in items])

    def made(row: dict[str, Any]) -> dict[str, Any]:
        return load((row["path"], row["label"]), np.random.default_rng())

    yield ()
    while True:
        yield rows.random_shuffle().map(made).iter_batches(batch_size=batch, drop_last=True, prefetch_batches=2)


FEEDS = {
    "DataLoader": from_loader,
    "millrace": from_millrace,
    "tf.data service": from_tf_service,
    "Ray Data": from_ray,
}


def train(setting: Setting) -> dict[str, Any]:
    """Trains until it has learnt enough, or for so many steps."""
    torch.set_num_threads(1)
    torch.manual_seed(setting.seed)
    work = WORKS[setting.work]()
    items, held = work.items(setting.data)
    items = items[: setting.items]
    chunks = [held[start : start + 100] for start in range(0, len(held), 100)]
    tests = [tensors(work.collate([work.plain(each) for each in chunk])) for chunk in chunks]
    model = work.network()
    if setting.ranks > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{setting.meet}", rank=setting.rank, world_size=setting.ranks
        )
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), work.rate)
    epochs = FEEDS[setting.feed](work, items, setting)
    next(epochs)  # imports what it needs, and connects
    seconds = waited = 0.0
    curve: list[tuple[float, float]] = []
    steps = 0
    while steps < setting.steps and not enough(work, curve, setting.target):
        began = time.perf_counter()
        batches = iter(next(epochs))
        while steps < setting.steps and not enough(work, curve, setting.target):
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            optimizer.zero_grad()
            backward(work.loss(model, tensors(batch)))
            optimizer.step()
            steps += 1
            if steps % setting.every == 0:
                seconds += time.perf_counter() - began
                curve.append((seconds, shared_score(work, model, tests, setting)))
                began = time.perf_counter()
        seconds += time.perf_counter() - began
    epochs.close()
    if setting.ranks > 1:
        distributed.destroy_process_group()
    return {
        "seconds": seconds,
        "waited": waited,
        "steps": steps,
        "curve": curve,
        "reached": curve[-1][0] if enough(work, curve, setting.target) else None,
    }


def shared_score(work: Work, model: nn.Module, tests: Sequence[dict[str, Any]], setting: Setting) -> float:
    """The score of the model, of the first rank's, so that all ranks end at the same step."""
    with torch.no_grad():
        plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
        plain.eval()
        found = torch.tensor([work.score(plain, tests)])
        plain.train()
    if setting.ranks > 1:
        distributed.broadcast(found, 0)
    return float(found)


def enough(work: Work, curve: Sequence[tuple[float, float]], target: float) -> bool:
    """Whether the last score is as good as the target."""
    return bool(curve) and (curve[-1][1] <= target if work.less else curve[-1][1] >= target)


def tensors(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch of arrays as one of tensors."""
    return {key: torch.from_numpy(np.array(value)) for key, value in batch.items()}


if __name__ == "__main__":
    print(json.dumps(train(msgspec.json.decode(sys.argv[1], type=Setting))), flush=True)
