"""Cachew's Figure 7: how its rules depend on their threshold, with the noise that looks really have.

    python -m benchmarks.papers.thresholds [--json FILE]

Small hosts (:mod:`benchmarks.small_hosts`) feed two trainings: one that few workers keep busy, whose elements cost
processor time, and one that needs many, of which the last bring little each, and whose elements wait for a store. With
each number of workers the batch time of a hundred elements is measured some dozens of times. Then Cachew's rules, with
thresholds from 1 to 11 %, search a thousand times, from one worker to where they settle first; each of their looks is
drawn from those that were measured with that number of workers.

The paper says of this figure that a training to which each worker brings much is fed rightly by any of these
thresholds, that one to which workers bring less and less is not by large ones, and that with small ones noise decides.
It fails where that is not so here.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.papers.live_scaling import Cost, fleet_how, knee, reading_with
from benchmarks.papers.report import answer, verdict
from millrace.policies.scaling import cachew_scaling
from millrace.policies.scaling.autoscale import LOOK_ELEMENTS, Limits, Look

QUESTION = "How many workers do Cachew's rules take, by their threshold and by chance?"
LOOKS = 30
"""With each number of workers."""
SEARCHES = 1000
THRESHOLDS = (0.01, 0.03, 0.05, 0.07, 0.09, 0.11)


class Training(NamedTuple):
    """A training.

    Attributes:
        cost: of its elements.
        own_s: seconds of an element that it takes itself.
        most: workers that are tried.
    """

    cost: Cost
    own_s: float
    most: int


TRAININGS = {
    "few workers": Training(Cost(0.0040, 0.0), 0.005, 8),
    "many workers": Training(Cost(0.0, 0.022), 0.0015, 16),
}
Looks = Mapping[int, Sequence[float]]
"""Seconds of an element in each look, by number of workers."""


def looks_of(training: Training) -> dict[int, list[float]]:
    """What was measured with each number of workers."""
    found = {}
    for workers in range(1, training.most + 1):
        with reading_with(training.cost, workers, training.own_s) as (reading, _):
            found[workers] = [reading.timed(LOOK_ELEMENTS) for _ in range(LOOKS)]
    return found


def searched(looks: Looks, threshold: float, rng: random.Random) -> int:
    """Number of workers with which a search settles first."""
    rules = cachew_scaling.PUBLISHED._replace(up=threshold, down=threshold, rise=threshold)
    scale, limits = cachew_scaling.CachewScale(), Limits(1, max(looks))
    while scale.phase != "settled":
        look = Look(scale.workers, rng.choice(looks[scale.workers]), 0.0, 1.0)
        scale = cachew_scaling.step(scale, look, limits, rules=rules).value
    return scale.workers


def found_in(looks: Looks) -> dict[str, Any]:
    """The knee, and where searches settle, by threshold in percent."""
    rng = random.Random(0)
    best = knee({workers: 1 / statistics.mean(each) for workers, each in looks.items()})
    decisions = {}
    for threshold in THRESHOLDS:
        ends = [searched(looks, threshold, rng) for _ in range(SEARCHES)]
        decisions[f"{threshold:.0%}"] = {
            "mean": statistics.mean(ends),
            "deviation": statistics.pstdev(ends),
            "off": sum(abs(end - best) > 1 for end in ends) / SEARCHES,
            "ends": dict(sorted(Counter(ends).items())),
        }
    noise = {workers: statistics.stdev(each) / statistics.mean(each) for workers, each in looks.items()}
    return {"knee": best, "noise": noise, "decisions": decisions, "looks": looks}


def measure(_options: argparse.Namespace) -> dict[str, Any]:
    """All figures, a table, and what was aimed at."""
    found = {}
    for name, training in TRAININGS.items():
        found[name] = found_in(looks_of(training))
        for row in table({name: found[name]})[1:]:
            print("  ".join(row), flush=True)
    return {
        "modelled": "the training (a wait), the store's answer (a wait), and hosts: quotas of one machine's cores; "
        "searches are played, over looks that were measured",
        "hosts": fleet_how(),
        "trainings": found,
        "table": table(found),
        "aims": aims(found),
    }


def table(found: Mapping[str, Any]) -> list[list[str]]:
    """For the page."""
    rows = [["a training that needs", "knee", "threshold", "workers, mean", "deviation", "more than one off the knee"]]
    for name, each in found.items():
        for threshold, ends in each["decisions"].items():
            figures = [f"{ends['mean']:.1f}", f"{ends['deviation']:.1f}", f"{ends['off']:.0%}"]
            rows.append([name, str(each["knee"]), threshold, *figures])
    return rows


def aims(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the paper says of its figure, as far as it can be asked of this one."""
    few, many = (found[name]["decisions"] for name in ("few workers", "many workers"))
    worst = max(abs(ends["mean"] - found["few workers"]["knee"]) for ends in few.values())
    short = found["many workers"]["knee"] - many["11%"]["mean"]
    noisy = many["1%"]["deviation"] - many["11%"]["deviation"]
    return [
        {"aim": "few workers: mean off the knee, with any threshold", "value": worst, "asked": "<= 1"}
        | {"met": worst <= 1},
        {"aim": "many workers: short of the knee with 11 %", "value": short, "asked": ">= 2", "met": short >= 2},
        {"aim": "many workers: deviation with 1 %, less that with 11 %", "value": noisy, "asked": "> 0"}
        | {"met": noisy > 0},
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.thresholds", description=QUESTION)
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
