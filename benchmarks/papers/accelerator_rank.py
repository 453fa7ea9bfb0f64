"""One rank of a training that :mod:`benchmarks.papers.accelerator_trainings` compares, on an accelerator or on CPU.

    python -m benchmarks.papers.accelerator_rank SETTING

SETTING is a :class:`~benchmarks.papers.training_data.DeviceSetting` as JSON. It prints a line of JSON. An accelerator
computes while its host goes on, so that ``asked``, the time in which the host waited for its next batch, is longer than
the time in which the device had nothing to do. That is ``waited``: from the end of a step's work, as the device itself
says, until the next batch is there. When it has learnt enough it takes further steps with batches that lie on the
device already: ``ideal`` steps a second, where data cost nothing. Its processes for data have ended by then.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import distributed, nn
from torch.autograd import backward

import millrace as mr
from benchmarks.papers import training_rank
from benchmarks.papers.accelerator_works import works
from benchmarks.papers.training_data import DeviceSetting
from benchmarks.papers.training_rank import enough, shared_score
from benchmarks.papers.training_works import Work
from benchmarks.processor_time import Used, started_by

KEPT = 16
"""Batches that steps are taken with where data cost nothing, in turn."""
AHEAD = 4
"""Batches that each process of a DataLoader makes in advance."""


# -- batches -----------------------------------------------------------------------------------------------------------


class _Collate:
    """A batch of tensors, which processes of a DataLoader hand over in shared memory."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {
            key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in self._work.collate(examples).items()
        }


def from_loader(work: Work, items: Sequence[Any], setting: DeviceSetting) -> Generator[Iterable[Any]]:
    """Yield nothing when it is ready, then epochs of torch's DataLoader, set up as for an accelerator."""
    return training_rank.from_loader(
        work,
        items,
        setting,
        collate_fn=_Collate(work),
        num_workers=setting.loaders,
        pin_memory=setting.device != "cpu",
        prefetch_factor=AHEAD,
    )


def from_service(work: Work, items: Sequence[Any], setting: DeviceSetting) -> Generator[Iterable[Any]]:
    """The same of a job of a service."""
    examples = mr.Dataset.from_list(list(items)).shuffle(len(items), seed=setting.seed).map(work.load)
    options = work.options(setting.rank, setting.ranks)
    with work.served(examples).distribute(setting.address, job_name="training", **options) as served:
        batches = served.torch()
        yield ()
        while True:
            yield batches


FEEDS = {"DataLoader": from_loader, "millrace": from_service}


def on_device(batch: Mapping[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    """A batch on its way to the device, from memory that this can read by itself."""
    if device == "cpu":
        return dict(batch)
    pinned = {key: value if value.is_pinned() else value.pin_memory() for key, value in batch.items()}
    return {key: value.to(device, non_blocking=True) for key, value in pinned.items()}


# -- time --------------------------------------------------------------------------------------------------------------


class Idle:
    """Adds up the seconds in which a device had nothing to do, as the next batch wasn't there.

    Args:
        device: of torch.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._done: Any = None
        self._pairs: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    def _now(self) -> Any:
        """The time at which the device has done all that it was told to so far."""
        if self._device == "cpu":
            return time.perf_counter()
        make: Any = torch.cuda.Event
        event = make(enable_timing=True)
        event.record()
        return event

    def done(self) -> None:
        """Mark the end of a step's work."""
        self._done = self._now()

    def ready(self) -> None:
        """Mark that the next batch is there."""
        self._pairs.append((self._done, self._now()))

    def seconds(self) -> float:
        """Wait until the device has done everything; the seconds so far."""
        synchronize(self._device)
        for done, ready in self._pairs:
            self._seconds += ready - done if self._device == "cpu" else done.elapsed_time(ready) / 1000
        self._pairs.clear()
        return self._seconds


def synchronize(device: str) -> None:
    """Wait until the device has done everything."""
    if device != "cpu":
        torch.cuda.synchronize()


# -- training ----------------------------------------------------------------------------------------------------------


class Learner:
    """A model that learns.

    Args:
        work: what from.
        setting: of the training.
    """

    def __init__(self, work: Work, setting: DeviceSetting) -> None:
        self.work, self._setting, self._device = work, setting, setting.device
        network: Any = work.network().to(self._device)
        if self._device != "cpu" and setting.work == "pictures":
            network = network.to(memory_format=torch.channels_last)
        self.model: nn.Module = network
        if setting.ranks > 1:
            self.model = nn.parallel.DistributedDataParallel(self.model)
        fused = True if self._device != "cpu" else None
        self._optimizer = torch.optim.Adam(self.model.parameters(), work.rate, fused=fused)
        self.steps = 0

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self._device == "cpu" or not self.work.half:
            return contextlib.nullcontext()
        return torch.autocast("cuda", torch.bfloat16)

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Learn from a batch."""
        self.steps += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self.work.rate * min(1.0, self.steps / self.work.warm_up)
        self._optimizer.zero_grad()
        with self._precision():
            loss = self.work.loss(self.model, batch)
        backward(loss)
        self._optimizer.step()

    def score(self, tests: Sequence[dict[str, torch.Tensor]]) -> float:
        """The score, alike on all ranks."""
        with self._precision():
            return shared_score(self.work, self.model, tests, self._setting)


def learn(
    learner: Learner,
    epochs: Generator[Iterable[Any]],
    tests: Sequence[dict[str, torch.Tensor]],
    setting: DeviceSetting,
    kept: list[dict[str, torch.Tensor]],
) -> dict[str, Any]:
    """Learns until that is enough, or its steps or seconds are over; keeps the first batches."""
    idle = Idle(setting.device)
    asked = waited = seconds = 0.0
    first: float | None = None
    curve: list[tuple[float, float]] = []
    over = False
    idle.done()
    began = time.perf_counter()
    while not over:
        batches = iter(next(epochs))
        while not over:
            before = time.perf_counter()
            batch = next(batches, None)
            asked += time.perf_counter() - before
            if batch is None:
                break
            idle.ready()
            first = time.perf_counter() - began if first is None else first
            there = on_device(batch, setting.device)
            if len(kept) < KEPT:
                kept.append(there)
            learner.step(there)
            idle.done()
            if learner.steps % setting.every == 0:
                waited = idle.seconds()
                seconds += time.perf_counter() - began
                curve.append((seconds, learner.score(tests)))
                over = enough(learner.work, curve, setting.target) or learner.steps >= setting.steps
                over = agreed(over=over or seconds >= setting.limit_s, ranks=setting.ranks)
                idle.done()
                began = time.perf_counter()
    return {
        "seconds": seconds,
        "waited": waited,
        "asked": asked,
        "first_s": first,
        "steps": learner.steps,
        "curve": curve,
        "reached": curve[-1][0] if enough(learner.work, curve, setting.target) else None,
    }


def agreed(*, over: bool, ranks: int) -> bool:
    """What the first rank says, so that all end at the same step."""
    if ranks == 1:
        return over
    said = torch.tensor([int(over)])
    distributed.broadcast(said, 0)
    return bool(said)


def ideal(learner: Learner, kept: Sequence[dict[str, torch.Tensor]], setting: DeviceSetting) -> float:
    """Steps a second with batches that are there."""
    for batch in kept[:4]:
        learner.step(batch)
    synchronize(setting.device)
    began = time.perf_counter()
    for _, batch in zip(range(setting.ideal), itertools.cycle(kept), strict=False):
        learner.step(batch)
    synchronize(setting.device)
    return setting.ideal / (time.perf_counter() - began)


def train(setting: DeviceSetting) -> dict[str, Any]:
    """Trains, and then tells how fast it would be without data."""
    torch.set_num_threads(1)
    torch.manual_seed(setting.seed)
    torch.set_float32_matmul_precision("high")
    work = works(setting.device)[setting.work]()
    items, held = work.items(setting.data)
    items = items[: setting.items] * setting.passes
    collate = _Collate(work)
    chunks = [held[start : start + 100] for start in range(0, len(held), 100)]
    tests = [on_device(collate([work.plain(each) for each in chunk]), setting.device) for chunk in chunks]
    if setting.ranks > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{setting.meet}", rank=setting.rank, world_size=setting.ranks
        )
    learner = Learner(work, setting)
    kept: list[dict[str, torch.Tensor]] = []
    epochs = FEEDS[setting.feed](work, items, setting)
    with contextlib.closing(epochs):
        next(epochs)  # connects
        learner.score(tests)  # a device's libraries are loaded when they are first used
        used = Used(lambda: setting.service if setting.address else started_by(os.getpid()))
        found = learn(learner, epochs, tests, setting, kept)
        found |= used.since()
    found["ideal"] = ideal(learner, kept, setting)
    if setting.ranks > 1:
        distributed.destroy_process_group()
    return found


if __name__ == "__main__":
    print(json.dumps(train(msgspec.json.decode(sys.argv[1], type=DeviceSetting))), flush=True)
    os._exit(0)  # as threads of torch may abort a process that ends by itself
