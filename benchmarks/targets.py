"""Targets: what is aimed at in figures of benchmarks, and whether that was met."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

Report = Mapping[str, Any]
"""What one benchmark wrote."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Something that was aimed at.

    Attributes:
        question: for the table.
        benchmark: that answers it.
        figure: of which contestant; over which other contestant's, within a round ("": as it is).
        least: it is at least so much, or None; ``most``: at most.
    """

    question: str
    benchmark: str
    figure: str
    of: str
    over: str = ""
    least: float | None = None
    most: float | None = None

    def value(self, report: Report) -> float | None:
        """The median over rounds; None if a contestant is missing."""
        values = []
        for each in report["rounds"]:
            mine, other = each.get(self.of, {}).get(self.figure), each.get(self.over, {}).get(self.figure)
            if mine is not None and (other or not self.over):
                values.append(mine / other if self.over else mine)
        return statistics.median(values) if values else None

    def met(self, value: float) -> bool:
        """Whether ``value`` is what was aimed at."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def aim(self) -> str:
        """What is aimed at, in figures."""
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"


def judge(report: Report) -> list[dict[str, Any]]:
    """Judge what was aimed at in a benchmark and could be measured, for :func:`~benchmarks.papers.report.verdict`."""
    mine = [(each, each.value(report)) for each in TARGETS if each.benchmark == report["benchmark"]]
    return [
        {"aim": each.question, "value": value, "asked": each.aim, "met": each.met(value)}
        for each, value in mine
        if value is not None
    ]


_IN_PROCESS, _EMBEDDED = "millrace, in process", "millrace, embedded, 2 workers"
_JOURNAL, _RESTART = "service with a journal", "recovery of 200 jobs"
_DOCUMENTS = "documents, log-normal"
_PACKED = f"{_DOCUMENTS}, packed"
_SAME_HOST, _TCP = "millrace, same host, 1 worker", "millrace, TCP, 1 worker"
_SAME_DECODER = ("torch DataLoader, 2 workers", "Grain, threads", "Grain, 2 processes", "Ray Data", "SPDL, threads")
TARGETS = (
    Target("decoding in process, of the bare loop", "decode", "images", _IN_PROCESS, "bare loop", least=0.95),
    *(
        Target(f"decoding in process, of {peer}", "decode", "images", _IN_PROCESS, peer, least=1.0)
        for peer in _SAME_DECODER
    ),
    Target("decoding on an embedded service, of the bare loop", "decode", "images", _EMBEDDED, "bare loop", least=0.88),
    *(
        Target(f"{what}, of {over}", "handover", "assembled", of, over, least=least)
        for what, of, over, least in (
            ("handing over on one host", _SAME_HOST, "tf.data service, 1 worker", 8.0),
            ("handing over on one host", _SAME_HOST, "memcpy", 0.8),
            ("handing over by TCP", _TCP, "tf.data service, 1 worker", 2.0),
            ("handing over by TCP", _TCP, "raw socket", 0.8),
        )
    ),
    *(
        Target(
            f"of a link of 200 Mbit/s at 50 ms, {what}", "far_link", "link", f"{what}, millrace, in process", least=0.9
        )
        for what in ("objects", "a shard")
    ),
    Target(
        "of that link, objects on a service, once they are listed",
        "far_link",
        "reading",
        "objects, millrace, service, 1 worker",
        least=0.9,
    ),
    Target("600 files at 300 ms, of 64 threads", "far", "files", _IN_PROCESS, "64 threads", least=0.9),
    Target("small elements in process, M/s", "small", "integers", _IN_PROCESS, least=5.0),
    Target("small elements through the service, M/s", "small", "integers", _EMBEDDED, least=2.0),
    Target("padding of packed rows", "packing", "padding", _PACKED, most=0.01),
    *(
        Target(
            f"tokens packed a second, of Grain's, {fit}",
            "packing",
            "tokens",
            _PACKED,
            f"{_DOCUMENTS}, packed by Grain, {fit}",
            least=1.0,
        )
        for fit in ("first fit", "best fit")
    ),
    Target(
        "CPU time of a service, of the same in process",
        "overhead",
        "cpu",
        "embedded, 2 workers",
        "in process",
        most=1.08,
    ),
    Target("import, s", "startup", "import", _EMBEDDED, most=0.4),
    Target("first batch of an embedded service, s", "startup", "first", _EMBEDDED, most=1.5),
    Target("from one epoch to the next, ms", "startup", "few", _EMBEDDED, most=20.0),
    Target("a dispatcher with 1,000 workers and 200 jobs, % of a core", "dispatcher", "cpu", "heartbeats", most=30.0),
    Target("the same, p99 of its answers, ms", "dispatcher", "p99", "heartbeats", most=50.0),
    Target("a service with a journal, of one in memory", "journal", "work", _JOURNAL, "service in memory", least=0.98),
    Target("events made durable a second", "journal", "events", "events of 200 peers", least=5000.0),
    Target("a dispatcher with 200 jobs and 1 M tasks is back, s", "journal", "recovery", _RESTART, most=3.0),
    *(
        Target(
            f"an epoch from the cache {where}, {size}, of a loop over mapped bytes",
            "papers.full_cache",
            size,
            of,
            "mmap loop",
            least=0.85,
        )
        for where, of in (("in process", "millrace, in process"), ("on a service", "millrace, embedded, 2 workers"))
        for size in ("150 KB, in order", "2 MB, in order")
    ),
    *(
        Target(
            f"an epoch that writes a cache, {case}, of the larger of computing and writing",
            "papers.put_epoch",
            case,
            "put",
            "the larger",
            most=1.1,
        )
        for case in ("computing", "writing")
    ),
    Target("the mode chosen in Figure 8, of the fastest", "papers.figure8", "of the fastest", "service", most=1.03),
    Target("fairness among 64 jobs alike, Jain's index", "papers.many_jobs", "jain", "alike", least=0.95),
    Target("the same, half of them of twice the priority", "papers.many_jobs", "jain", "two", least=0.95),
    *(
        Target(f"64 jobs that share: {what}, off those of one job by", "papers.figure10", figure, way, most=0.05)
        for way in ("A, window", "A, lockstep")
        for what, figure in (
            (f"{way[3:]}, calls of functions", "calls"),
            (f"{way[3:]}, operators' CPU", "operators_s"),
            (f"{way[3:]}, bytes from the store", "bytes"),
        )
    ),
    *(
        Target(f"their speed, {way[3:]}, of their steps", "papers.figure10", "speed", way, least=0.95)
        for way in ("A, window", "A, lockstep")
    ),
    Target("the fastest job that shares a window, of alone", "papers.windows", "of alone", "fastest", least=0.97),
    Target(
        "elements made for jobs one after the other, off the formula by",
        "papers.windows",
        "off",
        "one after the other",
        most=0.05,
    ),
    *(
        Target(f"memory of 16 jobs on one host, {way}, of one's", "papers.one_host", "memory", way, most=1.3)
        for way in ("window", "lockstep")
    ),
    *(
        Target(
            f"{jobs} jobs that share, {way}: bytes that the store need not send",
            "papers.shared_reads",
            "bytes",
            f"{jobs} jobs, {way}",
            least=least,
        )
        for jobs, least in ((2, 0.49), (8, 0.87))
        for way in ("window", "lockstep")
    ),
    *(
        Target(f"samples/s from a bucket, {when}, of {peer}", "bucket", figure, ours, peer, least=1.0)
        for ours, peers in (
            ("millrace, raw objects, service", ("s3fs and DataLoader, raw objects",)),
            (
                "millrace, packed, in process",
                ("WebDataset, packed", "MosaicML Streaming, its shards", "LitData, its shards"),
            ),
        )
        for peer in peers
        for when, figure in (("from a cold start", "cold"), ("in the second epoch", "second"))
    ),
    Target("items that a second job makes again", "papers.figure11", "again", "service", most=0),
    Target("what a cache of a quarter saves, of the ideal", "papers.quarter", "saved", "service", least=0.95),
    *(
        Target(f"error of what a read is said to cost, {store}", "papers.read_cost", "learned", store, most=0.15)
        for store in ("folder", "folder, from disk", "object store")
    ),
    Target("workers chosen in Figure 6, off the knee by", "papers.figure6", "off", "service", most=1),
    Target("the batch time with them, of the best", "papers.figure6", "of the best", "service", most=1.05),
    Target("rate of a training on a service, of the ideal", "papers.scale_out", "of the ideal", "service", least=0.95),
    Target(
        'cost of an element with workers="cheapest", of the least with any number',
        "papers.scale_out",
        "of the least cost",
        "service",
        most=1.05,
    ),
    Target("columns of DELI's Table II in the paper's order", "papers.costs", "ordered", "model", least=2),
    Target("its baselines, off by $", "papers.costs", "baselines", "model", most=0.01),
    Target("the example of tf.data service, off by $", "papers.costs", "example", "model", most=0.05),
    Target("requests predicted, off the counted ones by", "papers.costs", "requests", "model", most=0.02),
    Target("decisions after a training's speed has changed", "papers.step_change", "decisions", "service", most=2),
    Target("changes of the number of workers after these", "papers.step_change", "changes", "service", most=0),
    *(
        Target(
            f"a cache's mode changes: {what} from one worker on, of going on with those there are",
            "papers.mode_change",
            what,
            "the worst of these",
            least=1.0,
        )
        for what in ("time", "cost")
    ),
    Target("where the link is slow: elements/s, of the best", "papers.where", "of the best", "inflates", least=0.95),
    Target("where it is not: elements/s, of the best", "papers.where", "of the best", "computes", least=0.95),
    *(
        Target(
            f"rate from a source 50 ms away, asked for by {kind}, of a near one's",
            "papers.latency",
            "rate",
            kind,
            least=0.95,
        )
        for kind in ("its own function", "from_files")
    ),
    *(
        Target(
            f"CPU time with workers on another host, {kind}, of in process",
            "papers.cpu_overhead",
            kind,
            "service, another host",
            "in process",
            most=1.5,
        )
        for kind in ("150 KB", "9.6 MB")
    ),
    Target("from a worker's death to the next batch, s", "recovery", "total", "killed, on another host", most=4.0),
    Target("the same where nothing says that it is dead, s", "recovery", "total", "silent", most=4.0),
)
