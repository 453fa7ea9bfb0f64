"""Report of ``millrace cost estimate``: places to read from, side by side, and beside what was counted after a run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgspec

from millrace.blocks.samples.counters import SampleCounts
from millrace.display.status import Row, columns
from millrace.errors import PipelineError
from millrace.policies.cost_estimate import (
    PREFETCH,
    SERVICE,
    Conditions,
    CostOption,
    Training,
    cheapest,
    estimate,
    fastest,
)
from millrace.policies.figures import counted, data_size, duration, number
from millrace.policies.prices import PriceTable
from millrace.sources import listing, storage
from millrace.sources.source import ignore_progress

_PROVIDERS = {"s3": "aws", "az": "azure", "gs": "gcp"}
_CHARGES = ("storage", "requests", "transfer", "disks", "compute", "waiting", "workers")
_GIVEN = {
    "latency": "latency_s",
    "link": "link_bytes_s",
    "disk": "disk_bytes_s",
    "loaders": "loaders",
    "requests": "requests_at_once",
    "reads": "reads_in_flight",
    "cache": "cache_bytes",
    "piece": "pack_bytes",
    "months": "months",
}
"""Options of the command line, and the conditions that they set."""


class Report(msgspec.Struct, frozen=True):
    """An estimate with all that it rests on.

    Attributes:
        training: what is read, and how often.
        conditions: what is assumed.
        prices: the table.
        options: places to read from.
    """

    training: Training
    conditions: Conditions
    prices: PriceTable
    options: list[CostOption]


# -- making it ---------------------------------------------------------------------------------------------------------


def measure(patterns: Sequence[str], objects: int | None, nbytes: int | None) -> tuple[int, int, str]:
    """Count objects and their bytes by listing ``patterns``, unless both are given; name the provider by the scheme.

    Raises:
        PipelineError: neither is given, or both are.
        SourceError: a pattern can't be listed.
    """
    if not patterns:
        if objects is None or nbytes is None:
            raise PipelineError("say what is read: a path, URL or pattern, or both --objects and --bytes")
        return objects, nbytes, "aws"
    if objects is not None or nbytes is not None:
        raise PipelineError("--objects and --bytes are for data that is not listed; leave them out, or the pattern")
    files = size = 0
    for some in listing.expand_many(patterns, ignore_progress):
        files += len(some.sizes)
        size += sum(some.sizes)
    return files, size, _PROVIDERS.get(storage.scheme_of(patterns[0]), "aws")


def conditions(options: argparse.Namespace) -> Conditions:
    """Make the conditions of what the command line says; what it doesn't say has its default."""
    said = {field: getattr(options, name) for name, field in _GIVEN.items() if getattr(options, name) is not None}
    return Conditions(**said, outside=options.outside)


def make(training: Training, table: PriceTable, given: Conditions, workers: int | None = None) -> Report:
    """Estimate all places to read from."""
    return Report(training, given, table, estimate(training, table, given, workers))


def as_dict(report: Report) -> dict[str, Any]:
    """Make values for JSON."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    for option, plain in zip(report.options, found["options"], strict=True):
        plain["consumed"]["requests"] = option.consumed.requests
        plain["charges"]["total"] = option.charges.total
    return {**found, "cheapest": cheapest(report.options).name, "fastest": fastest(report.options).name}


# -- showing it --------------------------------------------------------------------------------------------------------


def show(report: Report, out: IO[str] | None = None) -> None:
    """Print a table of the places to read from, and below it what it rests on."""
    print("\n".join(lines(report)), file=out or sys.stdout)


def lines(report: Report) -> list[str]:
    """Format the table, and whole sentences about it."""
    training, currency = report.training, report.prices.currency
    shown = [name for name in _CHARGES if name != "transfer" or report.conditions.outside]
    cheap, fast = cheapest(report.options), fastest(report.options)
    digits = _digits(cheap.charges.total)
    heads = ("fees" if name == "requests" else name for name in shown)
    rows: list[Row] = [("", "requests", "time", *heads, "together")]
    for option in report.options:
        amounts = [*(getattr(option.charges, name) for name in shown), option.charges.total]
        money = (f"{each:,.{digits}f}" for each in amounts)
        taken = duration(option.seconds)
        rows.append((option.name, f"{option.consumed.requests:,.0f}", taken, *money))
    return [
        _question(training),
        f"Costs are in {currency}." if currency else "Costs are in the currency of the table of prices.",
        "",
        *columns(_aligned(rows)),
        "",
        f"Cheapest: {cheap.name}. Fastest: {fast.name}.",
        "",
        *(f"{option.name}: {option.note}." for option in report.options),
        "",
        *_assumed(report.conditions),
        *_priced(report.prices),
    ]


def _question(training: Training) -> str:
    size, objects = data_size(training.nbytes), _count(training.objects, "object")
    epochs, hosts = _count(training.epochs, "epoch"), _count(training.hosts, "host")
    return f"{objects} of {size} in all; {epochs} of {duration(training.compute_s)} of computing, on {hosts}."


def _count(number_of: int, noun: str) -> str:
    return f"{number_of:,} {noun}{'' if number_of == 1 else 's'}"


def _digits(total: float) -> int:
    """Digits behind the point with which a sum has three that say something, and cents at least."""
    return max(2, 2 - math.floor(math.log10(total))) if total > 0 else 2


def _aligned(rows: Sequence[Row]) -> list[Row]:
    """Move figures to the right of their columns; names stay at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [(row[0], *map(str.rjust, row[1:], widths[1:])) for row in rows]


def _assumed(given: Conditions) -> list[str]:
    where = "outside the bucket's region" if given.outside else "in the bucket's region"
    months = f"{number(given.months)} month{'' if given.months == 1 else 's'}"
    link, disk = data_size(given.link_bytes_s), data_size(given.disk_bytes_s)
    speeds = f"a host gets {link} a second from the bucket and {disk} a second from its disk"
    return [
        f"Assumed: a request waits {duration(given.latency_s)}; {speeds}.",
        f"The data is stored for {months}, and the hosts are {where}.",
    ]


def _priced(table: PriceTable) -> list[str]:
    dates = sorted(each.date for each in table.sources.values())
    days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""
    since = f", of {days}; --json says where each is from" if dates else ""
    said = [f"Prices: {table.name or 'as given'}{since}."]
    missing = [name for name, part in (("[bucket]", table.bucket), ("[disk]", table.disk)) if not part.gib_month]
    if missing:
        said.append(f"The table of prices says nothing of {' and '.join(missing)}: it is counted as free.")
    return said


# -- beside what was counted -------------------------------------------------------------------------------------------


def read(path: str) -> Report:
    """Read what ``millrace cost estimate --json`` wrote.

    Raises:
        PipelineError: it cannot be read, or is something else.
    """
    try:
        with open(path, "rb") as file:
            return msgspec.convert(json.load(file), Report)
    except OSError as error:
        raise PipelineError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise PipelineError(f"{path} is not what `millrace cost estimate --json` writes: {error}") from None


def beside_service(
    report: Report, status: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Set hours, costs and requests of each job beside the estimate of a service, for as many epochs as it has begun.

    Args:
        report: the estimate.
        status: of the service; its workers have counted their requests.
        rows: of :func:`millrace.display.cost.costs`.
    """
    option = next(each for each in report.options if each.name.startswith(SERVICE))
    used = option.consumed
    hosts, both = used.compute_s + used.waiting_s, used.worker_s + used.dispatcher_s
    workers = option.charges.workers * used.worker_s / both if both else 0.0
    found = []
    for job in status["jobs"]:
        epochs = [row for row in rows if row["job"] == job["name"]]
        share = len(epochs) / report.training.epochs
        parts = [
            ("worker hours", used.worker_s / 3600, [row["worker_hours"] for row in epochs]),
            ("training hours", hosts / 3600, [row["training_hours"] for row in epochs]),
            ("cost of the workers", workers, [row["service"] for row in epochs]),
            (
                "cost of the training",
                option.charges.compute + option.charges.waiting,
                [row["training"] for row in epochs],
            ),
            ("requests that read", used.reads, [each["requests"] or None for each in job["operators"]]),
            ("bytes read", used.bytes_read, [each["stored_bytes"] or None for each in job["operators"]]),
        ]
        for what, expected, counts in parts:
            known = [each for each in counts if each is not None]
            if known:
                said = f"{what}, {counted(len(epochs), 'epoch')}"
                found.append(_compared(job["name"], said, share * expected, sum(known)))
    return found


def beside_samples(report: Report, counts: SampleCounts) -> list[dict[str, Any]]:
    """Set what caches of samples have counted beside the estimate of a bucket with prefetching."""
    option = next(each for each in report.options if each.name == PREFETCH)
    reads = report.training.epochs * report.training.objects
    return [
        _compared("samples", "samples read", reads, counts.reads),
        _compared("samples", "requests that read", option.consumed.reads, counts.fetched),
        _compared("samples", "seconds waited", option.consumed.waiting_s, counts.waited_s),
    ]


def _compared(who: str, what: str, expected: float, found: float) -> dict[str, Any]:
    ratio = found / expected if expected else None
    return {"job": who, "what": what, "estimated": expected, "counted": found, "of_estimated": ratio}


def show_beside(rows: Sequence[Mapping[str, Any]], out: IO[str] | None = None) -> None:
    """Print what was counted beside what was estimated."""
    table: list[Row] = [("job", "what", "estimated", "counted", "of estimated")]
    for row in rows:
        ratio = "-" if row["of_estimated"] is None else f"{row['of_estimated']:.3f}"
        table.append((row["job"], row["what"], number(row["estimated"], 4), number(row["counted"], 4), ratio))
    print("\n".join(columns(table)), file=out or sys.stdout)
