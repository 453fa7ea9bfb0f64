"""Autoscaling policies with random jobs in virtual time: is their number of workers right in the end, and how soon?

    python -m benchmarks.papers.simulated_scaling [--json FILE]

All of it is modelled, no process runs. A job is drawn as follows: its consumer takes an element in 1 ms to 1 s, and its
workers together have 1 to 500 times as much work for it, both alike on a logarithmic scale. In a quarter of the jobs
each more workers help as much as the one before; in the others a store gives no more, workers share memory, or there
are few tasks. A third of the jobs change after half of their looks, by up to twice. Looks are noisy.

Cachew adds a worker as long as each brings 3 %, and even a perfect 34th brings less. So the jobs are told apart by
whether they need more than 33 workers in the end: how many do follows from how they were drawn, and says nothing about
jobs that people run. Right is the least number that feeds the consumer, or one that is off by 3 %, or by one; for
``cheapest`` a number with which an element costs at most 3 % more than with the cheapest.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, get_args

from benchmarks.papers.report import main, verdict
from millrace.policies.scaling.scaling_policies import Kind
from millrace.simulation import scaling

QUESTION = "How often do autoscaling policies end with the right number of workers, and how soon?"
JOBS = 1_000
FEW = 33
"""Most workers that Cachew's rule of 3 % can end with."""
NAMES: Mapping[str, str] = {
    "millrace": "millrace",
    "cachew": "Cachew's",
    "cachew-released": "Cachew's, as its code has them",
    "hpa": "Kubernetes'",
    "cheapest": '`workers="cheapest"`',
}
PARTS = ("all jobs", f"up to {FEW} workers", f"more than {FEW}")


def measure(jobs: int = JOBS) -> Mapping[str, Any]:
    """Plays and prints."""
    head = ["jobs", "policy", "number of jobs", "right number at the end", "decisions to it, median"]
    table = [[*head, "cost, of an oracle's", "an element at the end, of the cheapest"]]
    results: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
    for kind in get_args(Kind):
        played = {seed: scaling.play(seed, kind) for seed in range(jobs)}
        few = {seed: each for seed, each in played.items() if each.needed <= FEW}
        many = {seed: each for seed, each in played.items() if each.needed > FEW}
        for part, outcomes in zip(PARTS, (played, few, many), strict=True):
            found = scaling.report_on(outcomes)
            results[part][kind] = {
                "jobs": found.jobs,
                "right": found.right,
                "decisions": found.decisions,
                "cost": found.cost,
                "element": found.element,
            }
    for part, policies in results.items():
        for kind, each in policies.items():
            decisions = "never" if each["decisions"] is None else f"{each['decisions']:g}"
            shown = [f"{100 * each['right']:.1f} %", decisions, f"{each['cost']:.3g}", f"{each['element']:.3g}"]
            table.append([part, NAMES[kind], f"{each['jobs']:,}", *shown])
            print("  ".join(table[-1]), flush=True)
    return {"results": results, "table": table, "jobs": jobs, "aims": aims(results)}


def aims(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    rows = []
    for part, policies in results.items():
        for kind in ("millrace", "cheapest"):
            share = policies[kind]["right"]
            rows.append({"aim": f"{part}, {kind}: right", "value": share, "asked": ">= 0.98", "met": share >= 0.98})
    return rows


if __name__ == "__main__":
    sys.exit(verdict(main("benchmarks.papers.simulated_scaling", QUESTION, measure)["aims"]))
