"""All experiments of the papers, one after the other, and which of their aims were met.

    python -m benchmarks.papers [--only NAME ...] [--within MINUTES] [--folder FOLDER]
                                [--cifar FOLDER] [--recordings FOLDER] [--list]

Each runs in a process of its own, with the arguments of ``docs/performance.md``, and writes its figures into a folder,
where those on that page lie. They say how many seconds it took; ``--list`` shows these, and ``--within`` leaves out
what took longer, or was not timed yet: ``--within 2`` is a size for each night. The exit status is 1 where an aim was
missed or an experiment failed.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import papers
from benchmarks.machine import gpus
from benchmarks.targets import TARGETS

RESULTS = Path(__file__).parents[1] / "results"
CIFAR, RECORDINGS = "cifar", "recordings"
DATA = {
    "accelerator_trainings": {CIFAR: "--cifar", RECORDINGS: "--recordings"},
    "batch_creation": {CIFAR: "--pictures"},
    "chunk_accuracy": {CIFAR: "--cifar"},
    "coordinated": {RECORDINGS: "--data"},
    "coordinated_kills": {RECORDINGS: "--data"},
    "deli": {CIFAR: "--cifar"},
    "trainings": {CIFAR: "--cifar", RECORDINGS: "--recordings"},
}
"""Data that experiments can use, and the option of each that names their folder; without, most make some."""
VARIANTS = {"coordinated_kills": "coordinated"}
"""Experiments that are another one's module with arguments of their own."""
ARGUMENTS = {
    "accelerator_trainings": ["--limit", "40"],
    "batch_creation": ["--count", "4000"],
    "coordinated_kills": ["--kill"],
    "figure10": ["--jobs", "1", "8", "64"],
    "full_cache": ["--rounds", "3", "--mb", "512", "--passes", "3"],
    "hungriest": ["--seconds", "90"],
    "put_epoch": ["--rounds", "9", "--elements", "300"],
}
"""Sizes that are on the page where these aren't an experiment's own."""
PARTS = frozenset(
    {
        "__main__",
        "accelerator_rank",
        "counting_store",
        "deli_rank",
        "far_source",
        "throttled",
        "training_data",
        "training_rank",
        "training_works",
        "where_training",
    }
)
"""Modules that are commands because experiments run them."""
NEED_DATA = frozenset({"chunk_accuracy"})
"""Experiments that have nothing else to run on."""
NEED_GPU = frozenset({"accelerator_trainings", "chunk_accuracy"})
"""Experiments that are left out where there is no GPU: without one they take days, or mean nothing."""


class Outcome(NamedTuple):
    """Outcome of an experiment.

    Attributes:
        name: of its module.
        seconds: that it took.
        status: exit status.
        missed: aims that it missed, in words.
        aims: number of aims that it has.
    """

    name: str
    seconds: float
    status: int
    missed: list[str]
    aims: int

    @property
    def right(self) -> bool:
        """Whether it ran and met all aims; one without aims has shown its figures."""
        return not self.missed and self.status == 0


def experiments() -> list[str]:
    """Names of all modules here that answer a question on the command line, and of their variants."""
    found = []
    for module in pkgutil.iter_modules(papers.__path__):
        text = (Path(papers.__path__[0]) / f"{module.name}.py").read_text()
        if "\nif __name__ == " in text and module.name not in PARTS:
            found.append(module.name)
    return sorted([*found, *VARIANTS])


def judged(name: str, report: Mapping[str, Any]) -> tuple[list[str], int]:
    """Aims that an experiment's figures miss, in words, and how many aims there are.

    Args:
        name: of its module.
        report: that it wrote.
    """
    missed = [str(each["aim"]) for each in report.get("aims") or () if not each["met"]]
    count = len(report.get("aims") or ())
    if count == 0 and "rounds" in report:  # those that the page judges
        for target in TARGETS:
            if target.benchmark == f"papers.{module_of(name)}" and (value := target.value(report)) is not None:
                count += 1
                missed += [] if target.met(value) else [f"{target.question}: {value:.3g}"]
    return missed, count


def module_of(name: str) -> str:
    """Name of the module of an experiment."""
    return VARIANTS.get(name, name)


def lacking(name: str, data: Mapping[str, str]) -> str:
    """What an experiment can't run without and isn't here; empty: nothing."""
    if name in NEED_GPU and not gpus():
        return "a GPU"
    missing = [f"--{each}" for each in DATA.get(name, ()) if not data.get(each)]
    return " and ".join(missing) if name in NEED_DATA else ""


def arguments_of(name: str, data: Mapping[str, str]) -> list[str]:
    """Arguments of an experiment.

    Args:
        name: as of :func:`experiments`.
        data: folder of each kind of data that is there.
    """
    options = DATA.get(name, {}).items()
    given = [word for kind, option in options if data.get(kind) for word in (option, data[kind])]
    return given + ARGUMENTS.get(name, [])


def run(name: str, arguments: Sequence[str], folder: Path) -> Outcome:
    """Run an experiment, and judge its figures."""
    path = folder / f"{name}.json"
    before = path.stat().st_mtime_ns if path.exists() else None
    began = time.perf_counter()
    command = [sys.executable, "-m", f"benchmarks.papers.{module_of(name)}", *arguments, "--json", str(path)]
    status = subprocess.run(command, check=False).returncode
    seconds = time.perf_counter() - began
    if not path.exists() or path.stat().st_mtime_ns == before:
        return Outcome(name, seconds, status or 1, ["it wrote no figures"], 0)
    missed, aims = judged(name, json.loads(path.read_text()))
    return Outcome(name, seconds, 0 if missed else status, missed, aims)


def known_seconds(name: str, folder: Path) -> float | None:
    """Seconds that an experiment took when its figures were written; None: these don't say."""
    path = folder / f"{name}.json"
    seconds = json.loads(path.read_text()).get("took_s") if path.exists() else None
    return None if seconds is None else float(seconds)


def said(outcome: Outcome) -> str:
    """A line about an experiment."""
    if outcome.missed:
        how = "MISSED " + "; ".join(outcome.missed)
    elif outcome.status:
        how = f"FAILED with exit status {outcome.status}"
    else:
        how = f"met {outcome.aims} aims" if outcome.aims else "has no aims"
    return f"{outcome.name:20} {outcome.seconds:7.0f} s  {how}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    names = experiments()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers", description="All experiments of the papers.")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--within", type=float, metavar="MINUTES", help="only those that took no longer when last run")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="for the figures (default: %(default)s)")
    parser.add_argument(
        "--cifar", default="", metavar="FOLDER", help="CIFAR-10: train/<class>/*.jpg and test/<class>/*.jpg"
    )
    parser.add_argument("--recordings", default="", metavar="FOLDER", help="spoken digits, WAV files")
    parser.add_argument("--list", action="store_true", help="says what there is, and how long it took")
    options = parser.parse_args(arguments)
    took = {name: known_seconds(name, RESULTS) for name in options.only}
    if options.within is not None:
        took = {name: s for name, s in took.items() if s is not None and s <= 60 * options.within}
    if options.list:
        for name, seconds in took.items():
            print(f"{name:20} {'not timed yet' if seconds is None else f'{seconds:7.0f} s'}")
        print(f"{len(took)} experiments, {sum(filter(None, took.values())) / 60:.0f} minutes of those that were timed")
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    data = {CIFAR: options.cifar, RECORDINGS: options.recordings}
    for name in took:
        if needed := lacking(name, data):
            print(f"{name} is left out: it needs {needed}", flush=True)
            continue
        print(f"== {name}", flush=True)
        outcomes.append(run(name, arguments_of(name, data), options.folder))
        print(said(outcomes[-1]), flush=True)
    print("\n" + "\n".join(map(said, outcomes)))
    minutes, wrong = sum(each.seconds for each in outcomes) / 60, sum(not each.right for each in outcomes)
    print(f"{len(outcomes)} experiments in {minutes:.0f} minutes, {wrong} not as aimed at")
    return 0 if all(each.right for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
