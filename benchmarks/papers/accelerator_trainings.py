"""Trainings on one machine with an accelerator: is their data made as fast as it computes, by whom, and for how much?

    python -m benchmarks.papers.accelerator_trainings [--cifar DIR] [--recordings DIR] [--text DIR] [--json FILE]

The trainings of :mod:`benchmarks.papers.trainings` with networks that suit a GPU: pictures (a residual network of nine
layers), spoken digits (two ranks in step, which share the GPU) and a language model as large as GPT-2's smallest. Their
batches are made on the same machine, either by a DataLoader that has all cores but two for its processes, pinned
memory and four batches of each process in advance, or by an embedded service of millrace that may have as many workers
and chooses how many. Both call the same Python functions of an item, and batches are of the same size. Digits come in
coordinated rounds of one length from millrace, and padded from the DataLoader; paragraphs packed from millrace, and
padded from the DataLoader. Recordings and paragraphs are so few that an epoch would be over in a moment, so an epoch
of either feed passes over them several times.

A training ends with the first score that is good enough, or the first after so many seconds (``--limit``). Its rate,
once the first steps are over, is compared with the ideal: that of the same network with batches of the same feed that
lie on the device. Processor time is what the kernel has counted. Without a GPU, or with ``--device cpu``, the networks
are the small ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.machine import cores
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import dispatcher
from benchmarks.papers.training_data import DeviceSetting
from benchmarks.papers.trainings import Hosts
from benchmarks.processor_time import started_by

QUESTION = "Is the data of a training on an accelerator made as fast as it computes, and how soon has it learnt enough?"
FEEDS = ("DataLoader", "millrace")
LEFT = 2
"""Cores that are left to the training itself."""
BUSY = 0.85
"""Share of all cores in use above which these are what a training waits for."""
OF_IDEAL = 0.95
PATIENCE_S = 60.0
"""Beyond its limit, until a training is given up."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Training(NamedTuple):
    """A training.

    Attributes:
        folder: the option that says where its data are.
        ranks: processes that train.
        target: score at which it has learnt enough.
        less: a lower score is better.
        steps: most of them.
        every: steps from one score to the next.
        items: most to learn from.
        passes: over them in an epoch.
        ideal: steps with batches that are there.
    """

    folder: str
    ranks: int
    target: float
    less: bool
    steps: int
    every: int
    items: int
    passes: int
    ideal: int


TRAININGS = {
    "pictures": Training("cifar", 1, 85.0, False, 100_000, 50, 50_000, 1, 200),
    "digits": Training("recordings", 2, 96.0, False, 100_000, 25, 3000, 20, 150),
    "text": Training("text", 1, 2.2, True, 100_000, 25, 1 << 30, 10, 150),
}
ON_CPU = {"pictures": (60.0, 20), "digits": (90.0, 20), "text": (2.6, 20)}
"""By training: target, and steps with batches that are there, of the small networks."""


class FailedError(RuntimeError):
    """A training has ended with an error, or not at all."""


@contextlib.contextmanager
def service(most: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """An embedded service with up to so many workers, as ``LocalService`` starts it; its address and its processes."""
    before = set(started_by(os.getpid()))
    command = ["dispatcher", "--port", "0", "--threads", "1", "--local-workers", f"1-{most}", "--parent-pipe"]
    with dispatcher(command, "") as address:
        yield address, tuple(set(started_by(os.getpid())) - before)


def run(work: str, feed: str, training: Training, options: argparse.Namespace) -> dict[str, Any]:
    """One training with one feed.

    Raises:
        FailedError: it failed.
    """
    most = max(1, cores() - LEFT)
    loaders = max(1, most // training.ranks)
    with contextlib.ExitStack() as stack:
        address, roots = stack.enter_context(service(most)) if feed == "millrace" else ("", ())
        hosts = stack.enter_context(Hosts(address, None if address else loaders * training.ranks))
        meet = stack.enter_context(tempfile.TemporaryDirectory())
        ranks = []
        for rank in range(training.ranks):
            setting = DeviceSetting(
                work=work,
                feed=feed,
                address=address,
                data=os.path.abspath(getattr(options, training.folder)),
                meet=str(Path(meet, "ranks")),
                rank=rank,
                ranks=training.ranks,
                items=training.items,
                steps=training.steps,
                every=training.every,
                target=training.target,
                device=options.device,
                loaders=loaders,
                service=() if rank else roots,
                passes=training.passes,
                limit_s=options.limit,
                ideal=training.ideal,
            )
            command = [
                sys.executable,
                "-m",
                "benchmarks.papers.accelerator_rank",
                msgspec.json.encode(setting).decode(),
            ]
            environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
            ranks.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment, start_new_session=True
                )
            )
            stack.callback(ended, ranks[-1])
        said = _said(ranks, options.limit + PATIENCE_S, f"{work} with {feed}")
    return together(said, training, hosts)


def ended(process: subprocess.Popen[str]) -> None:
    """End a rank that hasn't ended, with the processes that it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _said(ranks: Sequence[subprocess.Popen[str]], limit_s: float, name: str) -> list[dict[str, Any]]:
    """What ranks have printed."""
    until = time.monotonic() + limit_s
    found = []
    for process in ranks:
        try:
            text, _ = process.communicate(timeout=max(1.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise FailedError(f"the training of {name} has not ended in {limit_s:g} s") from None
        if process.returncode:
            raise FailedError(f"the training of {name} failed")
        found.append(json.loads(text))
    return found


def together(said: Sequence[Mapping[str, Any]], training: Training, hosts: Hosts) -> dict[str, Any]:
    """What the first rank measured, with the processor time of all, and how many processes there were for data."""
    first = said[0]
    begin_s = first["curve"][0][0]
    later, later_s = first["steps"] - training.every, first["seconds"] - begin_s
    rate = later / later_s if later and later_s else first["steps"] / first["seconds"]
    return {
        **{key: value for key, value in first.items() if key not in ("began", "ended")},
        "data_cpu_s": sum(each["data_cpu_s"] for each in said),
        "own_cpu_s": sum(each["own_cpu_s"] for each in said),
        "rate": rate,
        "of the ideal": rate / first["ideal"],
        "workers": hosts.mean(first["began"], first["ended"]),
        "target": training.target,
        "last": first["curve"][-1][1],
    }


def bound_by(each: Mapping[str, Any], count: int) -> str:
    """What a training has waited for: its device, the machine's cores, or else its feed."""
    if each["of the ideal"] >= OF_IDEAL:
        return "device"
    return "cores" if each["busy_cores"] >= BUSY * count else "feed"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, a table, and what was aimed at."""
    results: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for work, training in TRAININGS.items():
        if work not in options.only or not getattr(options, training.folder):
            continue
        chosen = training
        if options.device == "cpu":
            chosen = training._replace(target=ON_CPU[work][0], ideal=ON_CPU[work][1])
        if options.quick:
            chosen = chosen._replace(steps=4, every=2, items=1100, passes=1, ideal=2)
        for feed in FEEDS:
            try:
                found = run(work, feed, chosen, options)
            except FailedError as error:
                failed.append(str(error))
                print(error, flush=True)
                continue
            results.setdefault(work, {})[feed] = {**found, "bound by": bound_by(found, cores())}
            told = {key: value for key, value in results[work][feed].items() if key != "curve"}
            print(f"{work}, {feed}: {told}", flush=True)
    return {
        "device": options.device,
        "limit_s": options.limit,
        "results": results,
        "failed": failed,
        "table": table(results),
        "aims": [] if options.quick and not failed else aims(results, failed),
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """For the page."""
    head = ["training", "batches by", "seconds to the target", "steps", "steps/s", "of the ideal", "device idle"]
    rows = [[*head, "bound by", "cores in use", "CPU-seconds of data", "processes, mean", "last score"]]
    for work, feeds in results.items():
        for feed, each in feeds.items():
            reached = f"not in {each['seconds']:.0f}" if each["reached"] is None else f"{each['reached']:.1f}"
            shown = [reached, str(each["steps"]), f"{each['rate']:.1f}", f"{each['of the ideal']:.3f}"]
            shown += [f"{each['waited'] / each['seconds']:.0%}", each["bound by"], f"{each['busy_cores']:.1f}"]
            rows.append(
                [work, feed, *shown, f"{each['data_cpu_s']:.0f}", f"{each['workers']:.1f}", f"{each['last']:.3g}"]
            )
    return rows


def aims(results: Mapping[str, Mapping[str, Any]], failed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """That with millrace a training learns no later than with the DataLoader, and computes all the time.

    Where the two didn't both reach the target, the time is that to the best score that both have had. A training that
    has all cores busy can't have more data, whoever makes it.
    """
    rows = [{"aim": each, "value": 1, "asked": "0", "met": False} for each in failed]
    for work, feeds in results.items():
        if set(feeds) != set(FEEDS):
            continue
        ours, theirs = feeds["millrace"], feeds["DataLoader"]
        ratio = _ratio(ours, theirs, less=TRAININGS[work].less)
        share, bound = ours["of the ideal"], ours["bound by"]
        rows += [
            {"aim": f"{work}: time, of the DataLoader's", "value": ratio, "asked": "<= 1", "met": ratio <= 1},
            {
                "aim": f"{work}: rate, of the ideal; bound by the {bound}",
                "value": share,
                "asked": f">= {OF_IDEAL}, or all cores busy",
                "met": bound != "feed",
            },
        ]
    return rows


def _ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, less: bool) -> float:
    """Time to the target with ours, of that with theirs; else to the best score that both have had."""
    if ours["reached"] is not None and theirs["reached"] is not None:
        return float(ours["reached"] / theirs["reached"])
    best = [(min if less else max)(score for _, score in each["curve"]) for each in (ours, theirs)]
    level = max(best) if less else min(best)
    mine, other = (
        next(seconds for seconds, score in each["curve"] if (score <= level if less else score >= level))
        for each in (ours, theirs)
    )
    return float(mine / other)


def default_device() -> str:
    """The GPU if torch has one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.accelerator_trainings", description=QUESTION)
    parser.add_argument("--cifar", metavar="DIR", help="CIFAR-10: train/<class>/*.jpg and test/<class>/*.jpg")
    parser.add_argument("--recordings", metavar="DIR", help="WAV files whose names begin with the digit")
    parser.add_argument("--text", metavar="DIR", default=os.path.join(_ROOT, "docs"), help="Markdown (default: docs)")
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS), help="default: all")
    parser.add_argument("--device", default=default_device(), help="of torch (default here: %(default)s)")
    parser.add_argument("--limit", type=float, default=40.0, metavar="SECONDS", help="of a training (default: 40)")
    parser.add_argument("--quick", action="store_true", help="a few steps of each, for tests: nothing is aimed at")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
