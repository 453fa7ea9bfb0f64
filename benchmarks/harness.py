"""Runs the contestants of a benchmark in turns, and says what came out.

A benchmark is a module with a :class:`Benchmark` named ``BENCHMARK``. Each contestant runs in a process of its own,
started anew for every round with the settings that millrace gives its workers (one thread per numeric library, memory
kept by the allocator, large copies past the cache), so that neither what a library does to its process nor what it
leaves running touches another one's figures. Contestants take turns, round after round and every other round backwards,
so that whatever else the machine does strikes all of them alike.

Figures are medians over rounds; a ratio is the median, over rounds, of the ratio to the reference within a round. What
is done once (imports, starting processes, the first pass over the data) is left out by the contestants themselves, with
:func:`rate` or likewise, unless it is what the benchmark asks about.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.papers.report import verdict
from benchmarks.targets import judge
from millrace.clusters.child_process import worker_environment

Options = dict[str, Any]
"""What a contestant is given: the benchmark's sizes by name, and what its ``prepare`` returned."""

INSTALL = "pip install 'millrace[bench]', or `make bench` in a clone"

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LAST_LINES = 15
_WIDTH = 160
_FILES = ("options.json", "figures.json", "words")
_SETTINGS = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to do what the benchmark asks about.

    Attributes:
        name: in tables.
        run: does it once and returns figures by name; runs in a process of its own.
        needs: modules that it imports and that may not be installed.
        note: what a reader has to know to compare it, e.g. that it uses a decoder of its own.
    """

    name: str
    run: Callable[[Options], Mapping[str, float]]
    needs: tuple[str, ...] = ()
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Figure:
    """What is measured.

    Attributes:
        unit: e.g. ``images/s``.
        digits: behind the point, in tables.
        more_is_better: as for a rate; False as for seconds.
    """

    unit: str
    digits: int = 0
    more_is_better: bool = True


@dataclasses.dataclass(frozen=True)
class Size:
    """A whole number that says how much is done: as a rule, with ``--quick``, and what it is."""

    usual: int
    quick: int
    help: str


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A question, and who answers it.

    Attributes:
        question: one sentence.
        figures: by name, the most important one first.
        contestants: in the order of the table.
        reference: name of the contestant that ratios are made to.
        sizes: by name; each is an option of the command line, too.
        prepare: makes what all contestants need, before the first round; what it returns is added to their options.
        rounds: as a rule.
        limit_s: a contestant that takes longer for one round is ended, and has failed.
    """

    question: str
    figures: Mapping[str, Figure]
    contestants: Sequence[Contestant]
    reference: str
    sizes: Mapping[str, Size]
    prepare: Callable[[Options], Options] = lambda _: {}
    rounds: int = 5
    limit_s: float = 300.0


class FailedError(Exception):
    """A contestant did not return figures; the message has its last words."""


# -- for contestants ---------------------------------------------------------------------------------------------------


def rate(
    make: Callable[[], Iterable[Any]],
    count: int,
    passes: int,
    size: Callable[[Any], int] = len,
    check: Callable[[Iterable[Any]], None] | None = None,
) -> float:
    """Elements per second of ``passes`` passes over the data that follow one another, after one that is not measured.

    Nothing happens between two passes, as whoever works ahead would use the pause.

    Args:
        make: one pass: what yields its batches.
        count: elements that each pass must have.
        passes: to measure.
        size: elements in a batch.
        check: reads the first pass and looks more closely; raises an error if what it sees is wrong.

    Raises:
        RuntimeError: another number of elements came out.
    """

    def read(batches: Iterable[Any]) -> None:
        found = sum(map(size, batches))
        if found != count:
            raise RuntimeError(f"{found} elements came out of {count}")

    (check or read)(make())
    began = time.perf_counter()
    for _ in range(passes):
        read(make())
    return passes * count / (time.perf_counter() - began)


# -- the command line --------------------------------------------------------------------------------------------------


def main(module: str, arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark in ``module`` (its full name) as the command line says; returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that contestants end, too
    began = time.perf_counter()
    benchmark: Benchmark = importlib.import_module(module).BENCHMARK
    names = [contestant.name for contestant in benchmark.contestants]
    options = _parser(module, benchmark, names).parse_args(arguments)
    chosen = [each for each in benchmark.contestants if not options.only or each.name in options.only]
    sizes = {name: _size(size, getattr(options, name), options.quick) for name, size in benchmark.sizes.items()}
    rounds = options.rounds or (1 if options.quick else benchmark.rounds)

    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH  # a log gets whole lines
    skipped = {each.name: missing for each in chosen if (missing := _missing(each))}
    for name, missing in skipped.items():
        console.print(f"skipped {name}: {' and '.join(missing)} not installed ({INSTALL})", markup=False)
    present = [each.name for each in chosen if each.name not in skipped]
    on = machine()
    given = {**sizes, **(benchmark.prepare(sizes) if present else {})}
    asked = {
        "benchmark": module.removeprefix("benchmarks."),
        "question": benchmark.question,
        "command": shlex.join([os.path.basename(sys.executable), "-m", module, *(arguments or sys.argv[1:])]),
        "machine": on,
        "sizes": sizes,
        "figures": {name: dataclasses.asdict(figure) for name, figure in benchmark.figures.items()},
        "reference": benchmark.reference,
        "notes": {each.name: each.note for each in benchmark.contestants if each.note},
        "skipped": skipped,
    }

    def write(samples: Samples, failed: Mapping[str, str]) -> None:
        if options.json:
            took = {"took_s": round(time.perf_counter() - began, 1)}
            _write(
                options.json,
                {**asked, **took, "failed": failed, "rounds": samples, "results": summary(benchmark, samples)},
            )

    samples, failed = _play(module, present, rounds, given, benchmark.limit_s, console, write)
    results = summary(benchmark, samples)
    console.print(benchmark.question)
    console.print(_table(benchmark, results))
    for name, words in failed.items():
        console.print(f"failed: {name}: {words}", markup=False, highlight=False)
    usual = {name: size.usual for name, size in benchmark.sizes.items()}
    missed = verdict(judge({**asked, "rounds": samples})) if sizes == usual and not options.quick else 0
    return 1 if failed or missed else 0


def _write(path: str, report: Mapping[str, Any]) -> None:
    """Replaces the file at once: a long run that is ended leaves the rounds it has played."""
    with open(f"{path}.new", "w") as file:
        json.dump(report, file, indent=2)
        file.write("\n")
    os.replace(f"{path}.new", path)


def _parser(module: str, benchmark: Benchmark, names: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=benchmark.question)
    parser.add_argument("--json", metavar="FILE", help="writes every figure of every round here, too")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rounds to play; {benchmark.rounds} as a rule")
    parser.add_argument("--quick", action="store_true", help="little data and one round: shows that it runs")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help="of: " + "; ".join(names))
    for name, size in benchmark.sizes.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{size.help}; {size.usual} as a rule")
    return parser


def _size(size: Size, given: int | None, quick: bool) -> int:
    return given if given is not None else size.quick if quick else size.usual


def _missing(contestant: Contestant) -> list[str]:
    return [name for name in contestant.needs if importlib.util.find_spec(name) is None]


def _table(benchmark: Benchmark, results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    table = Table(box=SIMPLE)
    table.add_column("")
    for figure in benchmark.figures.values():
        table.add_column(f"{figure.unit} (min to max)", justify="right")
        table.add_column(f"of {benchmark.reference}", justify="right")
    table.add_column("note")
    for contestant in benchmark.contestants:
        if contestant.name in results:
            cells = [contestant.name]
            for name, figure in benchmark.figures.items():
                cells += _cells(results[contestant.name].get(name), figure.digits)
            table.add_row(*cells, contestant.note)
    return table


def _cells(result: Mapping[str, float] | None, digits: int) -> list[str]:
    if result is None:
        return ["", ""]
    median, low, high = (f"{result[which]:,.{digits}f}" for which in ("median", "min", "max"))
    return [f"{median} ({low} to {high})", f"{result['ratio']:.3g}" if "ratio" in result else ""]


# -- rounds ------------------------------------------------------------------------------------------------------------

Samples = list[dict[str, dict[str, float]]]
"""Of each round: figures by contestant and name."""


def _play(
    module: str,
    names: list[str],
    rounds: int,
    options: Options,
    limit_s: float,
    console: Console,
    write: Callable[[Samples, Mapping[str, str]], None],
) -> tuple[Samples, dict[str, str]]:
    """Figures of all rounds, and who failed with which words; who failed once doesn't play again.

    ``write(figures, failures)`` is called after every round.
    """
    samples: Samples = []
    failed: dict[str, str] = {}
    for number in range(rounds):
        found: dict[str, dict[str, float]] = {}
        for name in names if number % 2 == 0 else reversed(names):
            if name not in failed:
                with console.status(f"round {number + 1} of {rounds}: {name}"):
                    try:
                        found[name] = sample(module, name, options, limit_s)
                    except FailedError as error:
                        failed[name] = str(error)
        samples.append({name: found[name] for name in names if name in found})
        write(samples, failed)
    return samples, failed


def summary(benchmark: Benchmark, samples: Samples) -> dict[str, dict[str, dict[str, float]]]:
    """Of each contestant and figure: ``median``, ``min``, ``max``, and ``ratio`` if the reference has that figure.

    The ratio is the median over rounds of the ratio within a round.
    """
    results: dict[str, dict[str, dict[str, float]]] = {}
    for contestant in benchmark.contestants:
        for figure in benchmark.figures:
            rounds = [each for each in samples if figure in each.get(contestant.name, {})]
            if not rounds:
                continue
            values = [each[contestant.name][figure] for each in rounds]
            result = {"median": statistics.median(values), "min": min(values), "max": max(values)}
            ratios = [
                value / each[benchmark.reference][figure]
                for value, each in zip(values, rounds, strict=True)
                if each.get(benchmark.reference, {}).get(figure)
            ]
            if ratios:
                result["ratio"] = statistics.median(ratios)
            results.setdefault(contestant.name, {})[figure] = result
    return results


def environment() -> dict[str, str]:
    """What every contestant's process starts with."""
    places = [_ROOT, *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    return worker_environment({**os.environ, **_SETTINGS, "PYTHONPATH": os.pathsep.join(places)})


def sample(module: str, name: str, options: Options, limit_s: float) -> dict[str, float]:
    """Figures of one contestant for one round, run in a process of its own.

    Raises:
        FailedError: there are none, after ``limit_s`` seconds at the latest.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        given, path, words = (os.path.join(folder, each) for each in _FILES)
        with open(given, "w") as file:
            json.dump(options, file)
        command = [sys.executable, "-m", "benchmarks.harness", module, name, given, path]
        with open(words, "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=_ROOT,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(limit_s)
                ended = f"ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                ended = f"did not end within {limit_s:.0f} s"
            finally:
                _end(process)
        if process.returncode != 0 or not os.path.exists(path):
            with open(words, errors="replace") as lines:
                last = "".join(lines.readlines()[-_LAST_LINES:])
            raise FailedError(f"{ended}; its last words:\n{last}")
        with open(path) as file:
            figures: dict[str, float] = json.load(file)
            return figures


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a contestant, and whatever of it is left in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _contestant(module: str, name: str, given: str, path: str) -> None:
    """What a contestant's process does: reads its options from one file and writes figures to the other."""
    benchmark: Benchmark = importlib.import_module(module).BENCHMARK
    run = next(each.run for each in benchmark.contestants if each.name == name)
    with open(given) as file:
        options = json.load(file)
    figures = dict(run(options))
    with open(path, "w") as file:
        json.dump(figures, file)


if __name__ == "__main__":
    _contestant(*sys.argv[1:])
