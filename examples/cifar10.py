"""Trains a small network on CIFAR-10 from tar shards (see pack_cifar10.py), on a service or in this process.

    pip install 'millrace[demo]'                                     # or '.[demo]' in a clone
    millrace dispatcher                                              # in a shell of its own
    millrace worker --dispatcher grpc://localhost:5050               # in two more
    python examples/cifar10.py shards --service grpc://localhost:5050
    millrace status --service grpc://localhost:5050                  # while it runs

Kill a worker or start another one while it runs: the last line of each epoch counts images, and no two are the same.
Without ``--service`` it runs on a service of its own, with ``--here`` in this process.
"""

from __future__ import annotations

import argparse
import io
import time
from typing import Any

import numpy as np
from PIL import Image
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

import millrace as mr

CELLS = 8
BINS = 9


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample of a shard as an image, uint8 of shape (32, 32, 3), with its class and its name in the shard."""
    image = np.asarray(Image.open(io.BytesIO(sample["jpg"])).convert("RGB"))
    return {"image": image, "label": int(sample["cls"]), "name": sample["__key__"]}


def augment(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Mirrors half of the images, and moves each by up to two pixels."""
    image = element["image"][:, ::-1] if rng.random() < 0.5 else element["image"]
    down, right = rng.integers(0, 5, size=2)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    return {**element, "image": padded[down : down + 32, right : right + 32]}


def describe(element: dict[str, Any]) -> dict[str, Any]:
    """Where edges point (9 directions in 8 x 8 cells) and mean colours, float32 of shape (768,)."""
    image = element["image"].astype(np.float32) / 255
    down, right = np.gradient(image.mean(axis=2))
    direction = ((np.arctan2(down, right) / np.pi % 1) * BINS).astype(int).clip(0, BINS - 1)
    edges = np.eye(BINS, dtype=np.float32)[direction] * np.hypot(down, right)[:, :, None]
    cells = edges.reshape(CELLS, 4, CELLS, 4, BINS).sum(axis=(1, 3))
    cells = np.sqrt(cells / (np.linalg.norm(cells, axis=2, keepdims=True) + 0.1))
    colours = image.reshape(CELLS, 4, CELLS, 4, 3).mean(axis=(1, 3))
    return {"x": np.concatenate([cells.ravel(), colours.ravel()]), "y": element["label"], "name": element["name"]}


def main() -> None:
    """Trains, and says after each epoch how fast, how well, and that each image came once."""
    parser = argparse.ArgumentParser(description="Trains on CIFAR-10 from tar shards.")
    parser.add_argument("shards", help="folder (or URL) with train-*.tar and test-*.tar")
    parser.add_argument("--service", metavar="ADDRESS", help="of a dispatcher; default: a service of its own")
    parser.add_argument("--here", action="store_true", help="no service: everything in this process")
    parser.add_argument("--job", default="cifar10", help="name of the job (default cifar10)")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    train = (
        mr.Dataset.from_webdataset(f"{options.shards}/train-*.tar")
        .map(decode)
        .map(augment)
        .map(describe)
        .shuffle(5_000, seed=1)
        .batch(128)
    )
    test = next(iter(mr.Dataset.from_webdataset(f"{options.shards}/test-*.tar").map(decode).map(describe).batch(2_000)))
    model = MLPClassifier((128,), learning_rate_init=1e-3, random_state=0)
    batches = train if options.here else train.distribute(options.service, job_name=options.job)
    for epoch in range(1, options.epochs + 1):
        # Where workers share the machine, numpy's threads would spin on the cores that the workers need.
        with threadpool_limits(1):
            names, speed = train_epoch(model, epoch, batches)
        accuracy = (model.predict(test["x"]) == test["y"]).mean()
        print(f"epoch {epoch}: {speed}, {len(names)} images, {len(set(names))} different, accuracy {accuracy:.1%}")


def train_epoch(model: MLPClassifier, epoch: int, batches: Any) -> tuple[list[str], str]:
    """One epoch; returns the names of the images it saw, and how fast it was."""
    names: list[str] = []
    began = shown = asked = time.perf_counter()
    waited = 0.0
    speed = ""
    for batch in batches:
        got = time.perf_counter()
        waited += got - asked
        model.partial_fit(batch["x"], batch["y"], classes=np.arange(10))
        names.extend(batch["name"].tolist())
        asked = time.perf_counter()
        speed = f"{len(names) / (asked - began):.0f} images/s, waited {waited / (asked - began):.0%}"
        if asked - shown > 2:
            shown = asked
            print(f"epoch {epoch}: {speed}, {len(names)} images", flush=True)
    return names, speed


if __name__ == "__main__":
    main()
