"""What does a cache mean for a training, before what augments its images, and behind it?

    python examples/pack_cifar10.py cifar10/train shards/train         # cifar10/train/<class>/<name>.jpg
    python examples/pack_cifar10.py cifar10/test shards/test
    python -m benchmarks.accuracy_caching --data shards --json benchmarks/results/accuracy_caching.json

The network and the pipeline of :mod:`benchmarks.accuracy`, over fewer images and more epochs, so that it matters
whether an image comes in another place and mirrored each time. Three ways: nothing is kept; ``autocache("cache")``
between decoding and augmenting; ``cache()`` behind augmenting, as Cachew (section 6.1) warns not to. A training for
each way and seed: test accuracy with 95 % confidence intervals (Student's t), the difference to the first way, paired
by seed, different pictures that came, and elements that were in the cache in the end. ``--quick`` makes pictures of its
own and shows that everything runs. The exit status is 1 if a cache before augmenting froze the pictures, or one behind
it did not.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.accuracy import WORKERS, Guarantee, Lesson, Size, compare, make_pictures, written
from benchmarks.machine import machine

WAYS = (
    Guarantee("no cache"),
    Guarantee("autocache before augmenting", cache="before"),
    Guarantee("cache behind augmenting", cache="behind"),
)
FULL = Size(epochs=30, batch=128, tasks=16, kill_every=0, seeds=5, shards=1)
QUICK = Size(epochs=2, batch=32, tasks=8, kill_every=0, seeds=2)


def frozen(results: Mapping[str, Mapping[str, Any]], images: int) -> list[str]:
    """The ways, of :func:`summary`, in which each image came as one picture only, whatever the epoch.

    Args:
        results: by way.
        images: of an epoch.
    """
    return [name for name, found in results.items() if found["pictures"] <= images]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and prints; returns the exit status."""
    question = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy_caching", description=question)
    parser.add_argument("--data", metavar="DIR", help="train-*.tar and test-*.tar, of examples/pack_cifar10.py")
    parser.add_argument("--quick", action="store_true", help="little to learn, from pictures made for it")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="trainings at a time, a thread for each")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    if options.quick == bool(options.data):
        parser.error("say either --data DIR (CIFAR-10, packed by examples/pack_cifar10.py) or --quick")
    size = QUICK if options.quick else FULL
    report: dict[str, Any] = {
        "benchmark": "accuracy_caching",
        "question": question,
        "command": shlex.join(["python", "-m", "benchmarks.accuracy_caching", *(arguments or sys.argv[1:])]),
        "machine": machine(),
        "size": dataclasses.asdict(size),
        "workers": WORKERS,
    }

    write = functools.partial(written, report, options.json)
    with tempfile.TemporaryDirectory(prefix="millrace-pictures-") as made:
        if options.quick:
            make_pictures(made)
        lesson = Lesson(options.data or made, size)
        report["elements"] = len(lesson.samples)
        compare(lesson, WAYS, options.together, write)
    for name, found in report["results"].items():
        (mean, reach), (gap, gap_reach) = found["accuracy"], found["against"]
        print(
            f"{name:28} {mean:6.2f} +- {reach:.2f} %, against {WAYS[0].name} {gap:+.2f} +- {gap_reach:.2f} "
            f"(p = {found['chance']:.2f}), {found['pictures']:,.0f} pictures, {found['kept']:,.0f} elements kept"
        )
    return 0 if frozen(report["results"], report["elements"]) == [WAYS[2].name] else 1


if __name__ == "__main__":
    sys.exit(main())
