"""tf.data service's Figures 8 and 9: what does it bring to compute the data elsewhere, and what does it cost?

    python -m benchmarks.papers.scale_out [--full [--needed WORKERS]] [--json FILE]

Four modelled trainings whose own host computes the data too slowly by the factors of the paper (4.2), but for M2, where
two cores don't carry the workers for 110 and 28 stands for it. For each: the rate with ``take(1).cache().repeat()``
behind the pipeline, so that the data costs nothing (ideal); in the training process alone (colocated); and on a service
that is left alone, with ``workers="auto"`` and with ``workers="cheapest"`` (Figure 8). Then the first of them with
numbers of workers that are fixed, from fewer than make up for the host to more than are of use (Figure 9).

Costs are those of equation 1 with the paper's prices: 4.5 $ an hour for a host with its TPU, and 0.08 $ for each worker
and the dispatcher. With them the paper's own rates of ResNet50 give its 80.2 $, 31.2 $ and 9.4 $.

``--full`` is M2 alone at the factor that it has in the paper, which takes some 16 cores: the work of an element is 111
steps of the training, and the service may have 144 workers. Its tasks are small, so that workers that are too many soon
have nothing to do, elements of a service take between half and one and a half of the mean, which those of the
training's own host all take, as they are few, and a search that isn't over in time is measured as it is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import LOOK, Model, Reading, service
from benchmarks.papers.throttled import pause
from millrace.policies.prices import Cost, Machine, cost

QUESTION = "What does it bring to compute the data elsewhere, and what does it cost?"
HOST, WORKER = Machine(hour=4.5), Machine(hour=0.08)
PRICES = "[worker]\nhour = 0.08\n[host]\nhour = 4.5\n"
OWN_S = 0.020


class Training(NamedTuple):
    """A training that needs more than its host has.

    Attributes:
        name: of the paper's model.
        needed: workers that would just be enough.
        calls: elements that its own host computes at a time, each as fast as a worker.
        paper: speed-up, and by how much the cost falls, in the paper.
        spread: share by which elements differ at most.
    """

    name: str
    needed: float
    calls: int
    paper: tuple[float, float]
    spread: float = 0.0

    @property
    def model(self) -> Model:
        """Half of the time of an element goes into reading."""
        return Model(self.name, OWN_S, OWN_S * self.needed / 2, OWN_S * self.needed / 2, self.spread)


TRAININGS = (
    Training("M1", 23.5, 2, (11.7, 10.8)),
    Training("M2", 28, 1, (110.3, 89.3)),
    Training("M3", 8.7, 3, (2.9, 2.8)),
    Training("ResNet50", 15.4, 6, (2.57, 1.97)),
)
SWEEP = (1, 2, 4, 8, 16, 24, 28, 32)
"""Of M1, in sixteenths of the paper's: 16 and 32, ..., 448, and 512."""
MOST = 36
SECONDS = 8.0
"""Of a measurement."""
AHEAD = 64
"""Elements that lie ready where the data costs nothing, so that a busy machine doesn't make it cost something."""
LASTS = 3
"""What the service settles on while workers come may not last: it counts after so many measurements with it."""
LIMIT_S = 240.0
FULL, FULL_MOST = 111.0, 1.3
"""Workers that M2 needs in the paper, and the most there may be, of these."""
FULL_ELEMENTS, FULL_TASKS = 100_000, 25_000
FEW = 4
"""Elements that are read between two looks at the clock."""
FULL_SPREAD, FULL_HEARTBEAT_S = 0.5, 2.0
"""Elements of seconds each that all took the same would come from all workers at once, and between two reports none."""
FULL_S, FULL_COLOCATED, FULL_LIMIT_S = 6.0, 8, 90.0
"""Of M2 at its own factor: seconds of a measurement, elements that its own host computes, and seconds of a search."""
EVEN = 1.03
"""Times that differ by less are alike."""
STEPS, COLOCATED, SERVED, WORKERS = 112_320, 1.75, 4.5, 16
"""Of the paper's ResNet50: batches, batches a second, and workers beside a dispatcher."""


def in_process(training: Training, *, ideal: bool, least: int = 20) -> float:
    """Seconds of an element without a service, from so many at least."""
    dataset = training.model.dataset(calls=training.calls)
    if ideal:
        first = dataset.take(1).cache()
        list(first)  # what a task makes is kept for others when it ends, and one of an endless pipeline is long
        dataset = first.repeat().prefetch(AHEAD)
    elements = iter(dataset)
    expected = OWN_S * (1 if ideal else max(1.0, training.needed / training.calls))
    _read(elements, 2 * training.calls + 2)
    return _read(elements, max(least, round(SECONDS / expected)))


def _read(elements: Iterable[Any], count: int) -> float:
    """Reads so many at the consumer's pace; seconds of one."""
    began = time.perf_counter()
    for _, _element in zip(range(count), elements, strict=False):
        pause(OWN_S)
    return (time.perf_counter() - began) / count


def left_alone(address: str, training: Training, workers: str) -> dict[str, Any]:
    """On a service, until it has settled on a number of workers."""
    name = f"{training.name} {workers}"
    with training.model.dataset().distribute(address, job_name=name, workers=workers, tasks=20_000) as served:
        reading = Reading(address, name, iter(served), OWN_S)
        found, lasted, batch_s = reading.settle(LIMIT_S), 0, 0.0
        while lasted < LASTS:
            batch_s = reading.read(round(SECONDS / OWN_S))
            again = reading.settle(LIMIT_S)
            found, lasted = again, lasted + 1 if again == found else 0
    return {"workers": found, "batch_s": batch_s, "why": reading.timeline[-1]["why"], "timeline": reading.timeline}


def in_time(address: str, training: Training, workers: str) -> dict[str, Any]:
    """The same in a bounded time, and whether it had settled at the end; the median of the last measurements."""
    name = f"{training.name} {workers}"
    dataset = training.model.dataset(elements=FULL_ELEMENTS)
    with dataset.distribute(address, job_name=name, workers=workers, tasks=FULL_TASKS) as served:
        reading = Reading(address, name, iter(served), OWN_S)
        until = time.perf_counter() + FULL_LIMIT_S
        measured: list[float] = []  # in a row, with one number that it had settled on
        found = 0
        while time.perf_counter() < until and len(measured) < LASTS:
            batch_s = _for_seconds(reading, FULL_S if found else LOOK * OWN_S)
            reading.read(FEW)
            now = reading.timeline[-1]["workers"] if reading.timeline[-1]["settled"] else 0
            measured = [*measured, batch_s] if found and now == found else []
            found = now
        if not measured:
            print(f"{name} has not settled in {FULL_LIMIT_S:g} s, and is measured as it is", flush=True)
            measured = [_for_seconds(reading, FULL_S)]
            reading.read(FEW)
    last = reading.timeline[-1]
    return {
        "workers": last["workers"],
        "settled": last["settled"],
        "batch_s": statistics.median(measured),
        "measured": measured,
        "why": last["why"],
        "timeline": reading.timeline,
    }


def _for_seconds(reading: Reading, seconds: float) -> float:
    """Reads for about so long, without a look at the service; seconds of an element."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        reading.timed(FEW)
        count += FEW
    return (time.perf_counter() - began) / count


def with_workers(address: str, training: Training, workers: int) -> float:
    """Seconds of an element with so many."""
    name = f"{training.name} {workers}"
    with training.model.dataset().distribute(address, job_name=name, workers=workers, tasks=20_000) as served:
        reading = Reading(address, name, iter(served), OWN_S)
        while not reading.timeline or reading.timeline[-1]["workers"] != workers:
            reading.read(5)
        reading.read(2 * workers)
        return reading.read(max(16, round(SECONDS / OWN_S / max(1.0, training.needed / workers))))


def costs(batch_s: float, workers: int) -> Cost:
    """Of a thousand elements; a service has a dispatcher, too."""
    return cost(1000 * batch_s, workers + 1 if workers else 0, WORKER, 1, HOST)


def the_papers() -> dict[str, float]:
    """Its own example (4.2), from its steps, rates and prices."""
    served = cost(STEPS / SERVED, WORKERS + 1, WORKER, 1, HOST)
    colocated = cost(STEPS / COLOCATED, 0, WORKER, 1, HOST)
    return {"colocated": colocated.total, "training": served.training, "service": served.service}


def measure(options: argparse.Namespace) -> Mapping[str, Any]:
    """Runs and prints."""
    if options.full:
        return measure_full(options.needed)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as prices:
        prices.write(PRICES)
        prices.flush()
        results = {training.name: _compared(training, prices.name) for training in TRAININGS}
        swept = _swept(TRAININGS[0], results[TRAININGS[0].name], prices.name)
    example = the_papers()
    print("the paper's ResNet50:", ", ".join(f"{name} {amount:.1f} $" for name, amount in example.items()))
    figures = {
        "of the ideal": min(each["ideal_s"] / each["auto"]["batch_s"] for each in results.values()),
        "of the least cost": _of_least(swept),
    }
    return {
        "rounds": [{"service": figures}],
        "table": _table(results, swept),
        "results": results,
        "sweep": swept,
        "example": example,
    }


def measure_full(needed: float) -> Mapping[str, Any]:
    """M2 at the paper's factor, or at another: Figure 8 of it alone, and what was aimed at."""
    training = TRAININGS[1]._replace(needed=needed, spread=FULL_SPREAD)
    found: dict[str, Any] = {
        "needed": needed,
        "ideal_s": in_process(training, ideal=True),
        "colocated_s": in_process(training._replace(spread=0.0), ideal=False, least=FULL_COLOCATED),
    }
    print(f"ideal {found['ideal_s'] * 1e3:.1f} ms, colocated {found['colocated_s'] * 1e3:.0f} ms", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as prices:
        prices.write(PRICES)
        prices.flush()
        for workers in ("auto", "cheapest"):
            most = f"1-{round(FULL_MOST * needed)}"
            with service(most, "--prices", prices.name, "--heartbeat", str(FULL_HEARTBEAT_S)) as address:
                found[workers] = in_time(address, training, workers)
            print(_said(training, workers, found), flush=True)
    return {
        "benchmark": "papers.scale_out_full",
        "modelled": "reading, working and training: they are waits, and each worker is a process",
        "results": {training.name: found},
        "table": [HEAD, *_rows(training, found)],
        "aims": full_aims(training.name, found),
    }


def full_aims(name: str, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """That the service left alone is nearly as fast as where data costs nothing."""
    value = found["ideal_s"] / found["auto"]["batch_s"]
    return [{"aim": f"{name}: rate, of the ideal", "value": value, "asked": ">= 0.95", "met": value >= 0.95}]


def _said(training: Training, workers: str, found: Mapping[str, Any]) -> str:
    """A line about one way."""
    return (
        f"{training.name:8} {workers:8} {found[workers]['workers']:2} workers, "
        f"{found['colocated_s'] / found[workers]['batch_s']:.2f} times as fast as colocated, of an ideal of "
        f"{found['colocated_s'] / found['ideal_s']:.2f}"
    )


def _compared(training: Training, prices: str) -> dict[str, Any]:
    """Figure 8: one training, in all ways."""
    found: dict[str, Any] = {
        "ideal_s": in_process(training, ideal=True),
        "colocated_s": in_process(training, ideal=False),
    }
    for workers in ("auto", "cheapest"):
        with service(f"1-{MOST}", "--prices", prices) as address:
            found[workers] = left_alone(address, training, workers)
        print(_said(training, workers, found), flush=True)
    return found


def _swept(training: Training, known: Mapping[str, Any], prices: str) -> dict[str, Any]:
    """Figure 9: one training with numbers of workers that are fixed."""
    curve = {}
    with service(f"1-{MOST}", "--prices", prices) as address:
        for workers in SWEEP:
            curve[workers] = with_workers(address, training, workers)
            print(
                f"{training.name} with {workers:2} workers: {known['colocated_s'] / curve[workers]:.2f} times as fast, "
                f"costs {costs(known['colocated_s'], 0).total / costs(curve[workers], workers).total:.2f} times less",
                flush=True,
            )
    return found_in(training.name, curve, known)


def found_in(name: str, curve: Mapping[int, float], known: Mapping[str, Any]) -> dict[str, Any]:
    """What Figure 9 shows: which number makes up for the host, from which on more bring nothing, what each costs."""
    colocated_s, best = known["colocated_s"], min(curve.values())
    return {
        "training": name,
        "curve": curve,
        "colocated_s": colocated_s,
        "ideal_s": known["ideal_s"],
        "cost": {
            "colocated": costs(colocated_s, 0).total,
            "curve": {count: costs(batch_s, count).total for count, batch_s in curve.items()},
        },
        "break-even": min((count for count, batch_s in curve.items() if batch_s <= EVEN * colocated_s), default=None),
        "knee": min(count for count, batch_s in curve.items() if batch_s <= EVEN * best),
        "chosen": {each: known[each] for each in ("auto", "cheapest")},
    }


def _of_least(swept: Mapping[str, Any]) -> float:
    """What an element costs where the service finds the cheapest number, of the least that it cost in the sweep."""
    chosen, least = swept["chosen"]["cheapest"], float(min(swept["cost"]["curve"].values()))
    return costs(chosen["batch_s"], chosen["workers"]).total / least


HEAD = ["training", "workers", "times as fast as colocated", "of the ideal", "times less cost", "in the paper"]


def _rows(training: Training, each: Mapping[str, Any]) -> list[list[str]]:
    """Of a table of Figure 8."""
    rows = []
    for name in ("auto", "cheapest"):
        count, batch_s = each[name]["workers"], each[name]["batch_s"]
        rows.append(
            [
                f"{training.name}, {name}",
                str(count),
                f"{each['colocated_s'] / batch_s:.2f}",
                f"{each['ideal_s'] / batch_s:.3f}",
                f"{costs(each['colocated_s'], 0).total / costs(batch_s, count).total:.2f}",
                f"{training.paper[0]:g}, {training.paper[1]:g}",
            ]
        )
    return rows


def _table(results: Mapping[str, Any], swept: Mapping[str, Any]) -> list[list[str]]:
    """For the page of figures."""
    rows = [HEAD]
    for training in TRAININGS:
        rows += _rows(training, results[training.name])
    notes = {swept["break-even"]: ", which make up for the host", swept["knee"]: ", from where on more bring nothing"}
    for count, batch_s in swept["curve"].items():
        rows.append(
            [
                f"{swept['training']}, fixed{notes.get(count, '')}",
                str(count),
                f"{swept['colocated_s'] / batch_s:.2f}",
                f"{swept['ideal_s'] / batch_s:.3f}",
                f"{swept['cost']['colocated'] / swept['cost']['curve'][count]:.2f}",
                "",
            ]
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.scale_out", description=QUESTION)
    parser.add_argument("--full", action="store_true", help="M2 alone at the paper's factor: needs some 16 cores")
    parser.add_argument(
        "--needed", type=float, default=FULL, metavar="WORKERS", help="that it needs (default: %(default)g)"
    )
    return verdict(answer(parser, measure, arguments).get("aims", ()))


if __name__ == "__main__":
    sys.exit(main())
