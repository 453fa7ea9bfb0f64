"""A training that becomes twice as fast, and then half as fast: how soon has it the workers that it needs?

    python -m benchmarks.papers.step_change [--json FILE]

A job is left alone until the service has settled on a number of workers; then its consumer takes elements in another
time. Counted are the looks until the service has settled again, from where it notices on, and the changes of the number
in a thousand elements after that, of which there should be none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.papers.report import main
from benchmarks.papers.scaled import Model, Reading, job_of, service

QUESTION = "How soon has a training that changes its speed the workers that it needs?"
MODEL = Model("ResNet50", 0.030, 0.055, 0.055)
STEPS = (1.0, 0.5, 1.0, 2.0)
"""The consumer's time for an element, of the model's."""
AFTER = 1000
"""Elements that are looked at once it has settled."""
LIMIT_S = 240.0


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    results: list[dict[str, Any]] = []
    with service("1-24") as address, MODEL.dataset().distribute(address, job_name="steps", tasks=20_000) as served:
        reading = Reading(address, "steps", iter(served), MODEL.own_s)
        for number, step in enumerate(STEPS):
            reading.own_s = step * MODEL.own_s
            begun = len(reading.timeline)
            if number:
                _notices(reading, address)
            noticed = len(reading.timeline)
            workers = reading.settle(LIMIT_S)
            settled = len(reading.timeline)
            for _ in range(AFTER // 25):
                reading.read(25)
            plans = [each["plan"] for each in reading.timeline]
            found = {
                "own_s": reading.own_s,
                "needed": (MODEL.read_s + MODEL.work_s) / reading.own_s,
                "workers": workers,
                "tried": _changes(plans[begun:settled]),
                "noticed after": 25 * (noticed - begun),
                "settled after": 25 * (settled - begun),
                "changes after": len(_changes(plans[settled - 1 :])) - 1,
            }
            results.append(found)
            print(
                f"{1000 * reading.own_s:.0f} ms: needs {found['needed']:.1f}, has {workers} by {found['tried']} after "
                f"{found['settled after']} elements (noticed after {found['noticed after']}); "
                f"{found['changes after']} changes after that",
                flush=True,
            )
        timeline = reading.timeline
    again = max(each["changes after"] for each in results)
    tried = max(len(each["tried"]) - 1 for each in results[1:])
    table = [
        ["the consumer's ms", "needed", "workers", "numbers tried", "elements to it", "changes after"],
        *(
            [
                f"{1000 * each['own_s']:.0f}",
                f"{each['needed']:.1f}",
                str(each["workers"]),
                ", ".join(map(str, each["tried"])),
                f"{each['settled after']:,}",
                str(each["changes after"]),
            ]
            for each in results
        ),
    ]
    figures = {"changes": again, "decisions": tried}
    return {"rounds": [{"service": figures}], "table": table, "results": results, "timeline": timeline}


def _notices(reading: Reading, address: str) -> None:
    """Reads until the service looks for another number, or long enough to see that it has no need to."""
    before = job_of(address, "steps")["workers"]["plan"]
    for _ in range(2 * AFTER // 25):
        reading.read(25)
        workers = job_of(address, "steps")["workers"]
        if workers["phase"] == "search" or workers["plan"] != before:
            return


def _changes(numbers: list[int]) -> list[int]:
    return [number for place, number in enumerate(numbers) if place == 0 or number != numbers[place - 1]]


if __name__ == "__main__":
    main("benchmarks.papers.step_change", QUESTION, measure)
