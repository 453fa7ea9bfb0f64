"""Trainings that people run, on small hosts: how soon they have learnt enough, how long they wait, and what it costs.

    python -m benchmarks.papers.trainings [--cifar DIR] [--recordings DIR] [--text DIR] [--json FILE]

Pictures (a small CNN on CIFAR-10), spoken digits (a recurrent network, two ranks in step) and a small language model
on paragraphs. Each is trained by torch on CPU until its score on held-out data is good enough, with a DataLoader whose
process shares the training's own host; with millrace, whose service has up to four further hosts and chooses how many;
and pictures also with a tf.data service, and with a Ray cluster, that have all four. A host is a quota of a core
(:mod:`benchmarks.small_hosts`), so hosts really compute. Digits come in coordinated rounds of one length from
millrace, and padded from the DataLoader; paragraphs packed from millrace, and padded from the DataLoader. What a
training costs is the cores of its hosts for as long as it has them. Scoring is not counted. A training whose data
isn't given is left out, and so is Ray Data where Ray isn't installed or there are no control groups.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from benchmarks import ray_cluster, tf_service
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import dispatcher
from benchmarks.papers.training_data import Setting
from benchmarks.small_hosts import Fleet, Turns, fleet_of, host
from millrace.client.status_query import fetch_status

QUESTION = "How soon has a training learnt enough, how long does it wait for data, and what does it cost?"
CORES = 0.2
"""Of a host of workers."""
MOST = 4
LOOK_S = 0.5
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


Cluster = Callable[[int, Callable[[subprocess.Popen[str]], object]], contextlib.AbstractContextManager[str]]
"""Starts so many processes and tells of each; yields an address."""


class Training(NamedTuple):
    """A training.

    Attributes:
        folder: the option that says where its data are.
        ranks: how many hosts train.
        cores: of each of these.
        target: score at which it has learnt enough.
        steps: most of them.
        every: steps from one score to the next.
        items: most to learn from.
        feeds: who makes its batches, in turn.
    """

    folder: str
    ranks: int
    cores: float
    target: float
    steps: int
    every: int
    items: int
    feeds: tuple[str, ...]


TRAININGS = {
    "pictures": Training(
        "cifar", 1, 1.0, 70.0, 4000, 100, 50_000, ("DataLoader", "tf.data service", "Ray Data", "millrace")
    ),
    "digits": Training("recordings", 2, 0.5, 96.0, 2000, 25, 3000, ("DataLoader", "millrace")),
    "text": Training("text", 1, 1.0, 2.3, 2000, 50, 1 << 30, ("DataLoader", "millrace")),
}


def millrace(_fleet: Fleet, name: str) -> contextlib.AbstractContextManager[str]:
    """A service whose workers are hosts of the fleet of this name; yields its address."""
    command = [name, str(CORES), "dispatcher", "--port", "0", "--threads", "1", "--heartbeat", "2"]
    command += ["--local-workers", f"1-{MOST}", "--first-workers", "1", "--parent-pipe"]
    return dispatcher(command, "benchmarks.small_hosts")


@contextlib.contextmanager
def all_hosts(cluster: Cluster, scheme: str, fleet: Fleet, _name: str) -> Iterator[str]:
    """A peer's cluster whose processes are all hosts of the fleet; yields its address."""
    with contextlib.ExitStack() as over:
        joined: list[subprocess.Popen[str]] = []

        def join(process: subprocess.Popen[str]) -> None:
            joined.append(process)
            host(over, fleet, f"host-{len(joined)}", CORES, process)

        with cluster(MOST, join) as address:
            yield scheme + address


@contextlib.contextmanager
def nobody(_fleet: Fleet, _name: str) -> Iterator[str]:
    """No service."""
    yield ""


SERVICES: Mapping[str, Callable[[Fleet, str], contextlib.AbstractContextManager[str]]] = {
    "millrace": millrace,
    "tf.data service": functools.partial(all_hosts, tf_service.service, "grpc://"),
    "Ray Data": functools.partial(all_hosts, ray_cluster.cluster, ""),
    "DataLoader": nobody,
}
HOSTS = {"tf.data service": MOST, "Ray Data": MOST, "DataLoader": 0}
"""Hosts for workers that a feed has from beginning to end; that of millrace chooses."""


class Hosts:
    """Counts the seconds for which a service has had workers, by asking it now and then.

    Args:
        address: of the service; empty: there is none.
        number: of its workers, if it can't be asked.
    """

    def __init__(self, address: str, number: int | None) -> None:
        self._address, self._number = address, number
        self._over = threading.Event()
        self.looks: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            number = len(fetch_status(self._address)["workers"]) if self._number is None else self._number
            self.looks.append((time.time(), number))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def mean(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Workers there were, on average, or between two times."""
        looks = [number for when, number in self.looks if since <= when <= until]
        return sum(looks) / len(looks) if looks else 0.0


def run(work: str, feed: str, training: Training, folder: str) -> dict[str, Any]:
    """One training with one feed."""
    name = f"millrace-fleet-{uuid.uuid4().hex[:8]}"
    fleet = fleet_of(name)
    with contextlib.ExitStack() as stack:
        stack.callback(fleet.close)
        address = stack.enter_context(SERVICES[feed](fleet, name))
        meet = stack.enter_context(tempfile.TemporaryDirectory())
        ranks = []
        hosts = stack.enter_context(Hosts(address, HOSTS.get(feed)))
        for rank in range(training.ranks):
            setting = Setting(
                work,
                feed,
                address,
                folder,
                str(Path(meet, "ranks")),
                rank,
                training.ranks,
                training.items,
                training.steps,
                training.every,
                training.target,
            )
            command = [sys.executable, "-m", "benchmarks.papers.training_rank", msgspec.json.encode(setting).decode()]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT))
            host(stack, fleet, f"rank-{rank}", training.cores, ranks[-1])
        said = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise RuntimeError(f"the training of {work} with {feed} failed")
    first = json.loads(said[0])
    workers = hosts.mean()
    cores = training.ranks * training.cores + CORES * workers
    return {**first, "workers": workers, "cost": cores * first["seconds"], "last": first["curve"][-1][1]}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, a table, and what was aimed at."""
    results: dict[str, dict[str, Any]] = {}
    for work, training in TRAININGS.items():
        folder = getattr(options, training.folder)
        if not folder or work not in options.only:
            continue
        chosen = training._replace(steps=4, every=2, items=300) if options.quick else training
        for feed in training.feeds:
            if feed == "Ray Data" and (why := without_ray()):
                print(f"Ray Data is left out, as {why}")
                continue
            found = results.setdefault(work, {})[feed] = run(work, feed, chosen, os.path.abspath(folder))
            print(f"{work}, {feed}: { {key: found[key] for key in found if key != 'curve'} }", flush=True)
    return {
        "modelled": "hosts: quotas of one machine's cores",
        "results": results,
        "table": table(results),
        "aims": [] if options.quick else aims(results),
    }


def without_ray() -> str:
    """Why Ray can't take part; empty: it can."""
    if importlib.util.find_spec("ray") is None:
        return "Ray isn't installed"
    fleet = fleet_of(f"millrace-fleet-{uuid.uuid4().hex[:8]}")
    fleet.close()
    if isinstance(fleet, Turns):
        return "there are no control groups, and processes that a node starts would have whole cores"
    return ""


def table(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """For the page."""
    head = ["training", "batches by", "seconds to the target", "steps", "ms of a step", "waited", "workers, mean"]
    rows = [[*head, "core-seconds paid for", "last score"]]
    for work, feeds in results.items():
        for feed, each in feeds.items():
            reached = "not reached" if each["reached"] is None else f"{each['reached']:.0f}"
            step_ms = 1000 * each["seconds"] / each["steps"]
            waited = f"{each['waited'] / each['seconds']:.0%}"
            shown = [str(each["steps"]), f"{step_ms:.0f}", waited, f"{each['workers']:.1f}"]
            rows.append([work, feed, reached, *shown, f"{each['cost']:.0f}", f"{each['last']:.3g}"])
    return rows


def aims(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """That a training with millrace learns no later than with any other feed, and waits for a tenth at most."""
    rows = []
    for work, feeds in results.items():
        ours = feeds["millrace"]
        others = [each["reached"] for feed, each in feeds.items() if feed != "millrace" and each["reached"]]
        reached = ours["reached"] or float("inf")
        ratio = reached / min(others) if others else 0.0
        waits = ours["waited"] / ours["seconds"]
        rows += [
            {"aim": f"{work}: time, of the best other's", "value": ratio, "asked": "<= 1", "met": ratio <= 1},
            {"aim": f"{work}: share of it waited", "value": waits, "asked": "<= 0.1", "met": waits <= 0.1},
        ]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.trainings", description=QUESTION)
    parser.add_argument("--cifar", metavar="DIR", help="CIFAR-10: train/<class>/*.jpg and test/<class>/*.jpg")
    parser.add_argument("--recordings", metavar="DIR", help="WAV files whose names begin with the digit")
    parser.add_argument("--text", metavar="DIR", default=os.path.join(_ROOT, "docs"), help="Markdown (default: docs)")
    parser.add_argument("--only", nargs="+", choices=TRAININGS, default=list(TRAININGS), help="default: all")
    parser.add_argument("--quick", action="store_true", help="a few steps of each, for tests: nothing is aimed at")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
