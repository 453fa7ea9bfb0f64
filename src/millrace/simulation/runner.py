"""Many schedules in a row, and what came of them."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from millrace.simulation.mutants import planted
from millrace.simulation.schedule_outcome import ScheduleOutcome
from millrace.simulation.simulated_cluster import play


class CampaignReport(msgspec.Struct):
    """Result of some schedules.

    Attributes:
        schedules: how many were played, in ``seconds`` of this machine's time and ``virtual_s`` of theirs.
        events: that were journalled; ``fewest_events`` in one schedule.
        faults: that fired, by kind; ``fewest_faults`` in one schedule.
        items: stored items that were read, in schedules with cache servers, by how they came.
        kinds: how often each kind of event was decided.
        elements: that users got.
        violations: by seed, what was wrong.
    """

    schedules: int = 0
    seconds: float = 0.0
    virtual_s: float = 0.0
    events: int = 0
    fewest_events: int = 0
    faults: dict[str, int] = {}
    fewest_faults: int = 0
    items: dict[str, int] = {}
    kinds: dict[str, int] = {}
    elements: int = 0
    violations: dict[int, str] = {}


@contextmanager
def _rare_collection() -> Iterator[None]:
    """Lives of a few thousand objects end with their schedule: to look for cycles more often is a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def run(seeds: Iterable[int], plant: str = "", *, stop: bool = False) -> tuple[CampaignReport, ScheduleOutcome | None]:
    """Plays a schedule for each seed.

    Args:
        seeds: which ones.
        plant: a bug to be planted, see :data:`millrace.simulation.mutants.MUTANTS`.
        stop: at the first violation.

    Returns:
        The report, and the first schedule that went wrong.
    """
    began = time.monotonic()
    report, first = CampaignReport(), None
    faults: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    items: Counter[str] = Counter()
    fewest: list[tuple[int, int]] = []
    with planted(plant), _rare_collection():
        for seed in seeds:
            outcome = play(seed)
            report.schedules += 1
            report.virtual_s += outcome.seconds
            report.events += outcome.events
            report.elements += outcome.elements
            faults += outcome.faults
            kinds += outcome.kinds
            items += outcome.items
            if outcome.violation:
                first = first or outcome
                report.violations[seed] = outcome.violation
                if stop:
                    break
            else:
                fewest.append((outcome.events, outcome.faults.total()))
    report.seconds = time.monotonic() - began
    report.faults, report.kinds = dict(sorted(faults.items())), dict(sorted(kinds.items()))
    report.items = dict(sorted(items.items()))
    if fewest:
        report.fewest_events = min(events for events, _ in fewest)
        report.fewest_faults = min(count for _, count in fewest)
    return report, first


def as_json(report: CampaignReport) -> str:
    """For programs."""
    return msgspec.json.format(msgspec.json.encode(report)).decode()


def watched(seeds: range) -> Iterable[int]:
    """Show a bar for these seeds, on a terminal."""
    console = Console(stderr=True)
    return track(seeds, "schedules", console=console, transient=True, disable=not console.is_terminal)


def show(report: CampaignReport, first: ScheduleOutcome | None) -> None:
    """For people."""
    console = Console()
    table = Table("fault", "fired", title=f"{report.schedules:,} schedules", title_justify="left")
    table.columns[1].justify = "right"
    for kind, count in report.faults.items():
        table.add_row(kind, f"{count:,}")
    console.print(table)
    console.print(
        f"{report.events:,} events were journalled (at least {report.fewest_events} in a schedule, with at least "
        f"{report.fewest_faults} faults), {report.elements:,} elements read, in {report.virtual_s / 86400:.1f} days "
        f"of virtual time and {report.seconds:.0f} s of this machine's.",
        highlight=False,
    )
    if report.items:
        found, fetched = report.items.get("found", 0), report.items.get("fetched", 0)
        console.print(
            f"Of stored items, {found:,} were found in cache servers and {fetched:,} fetched from the store; "
            f"{report.items.get('tasks in chunks', 0):,} runs were of epochs in chunks.",
            highlight=False,
        )
    if first is None:
        console.print("Nothing was violated.")
        return
    for seed, text in report.violations.items():
        console.print(f"seed {seed}: {text}", style="red", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nThe last of what happened with seed {first.seed}:", highlight=False)
    for line in first.trace:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.print(f"\nAll of it: millrace simulate faults --seed {first.seed} --trace", highlight=False)
