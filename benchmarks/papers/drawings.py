"""Plots of experiments about numbers of workers, for :mod:`benchmarks.plot`: curves, and what happened over time."""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
"""What an experiment wrote."""

_OURS, _CACHEW, _PODS, _FAINT = "#1f77b4", "#2ca02c", "#d62728", "#b8bec5"
_MODES = {"profile": "#fff3c4", "compute": "#fff3c4", "put": "#d6e6fb", "get": "#d9f2d9"}
"""Colours of the modes of a cache, as in Cachew's Figures 9 and 11."""


def figure6(report: Report, folder: str) -> list[str]:
    """Batch time over workers, with what is chosen."""
    results = report["results"]
    plt = pyplot()
    drawing, rows = plt.subplots(2, 3, figsize=(10, 5.4), layout="constrained")
    for axes, (name, found) in zip(rows.flat, results.items(), strict=True):
        curve = {int(workers): 1e3 * batch_s for workers, batch_s in found["sweep"].items()}
        axes.plot(list(curve), list(curve.values()), color="#888888", marker=".", label="fixed numbers")
        axes.axvline(found["chosen"]["workers"], color=_OURS, label="chosen")
        axes.set_title(name, fontsize=9)
        axes.set_ylim(bottom=0)
    rows[0][0].legend(fontsize=7)
    _label(rows, "workers", "ms of an element")
    return [_saved(plt, drawing, folder, "papers.figure6-curves.svg", report)]


def thresholds(report: Report, folder: str) -> list[str]:
    """Where Cachew's rules end, by threshold: each search's end, as a circle of the size of its share (Figure 7)."""
    plt = pyplot()
    trainings = report["trainings"]
    drawing, panels = plt.subplots(1, len(trainings), figsize=(9, 3), layout="constrained", squeeze=False)
    for axes, (name, found) in zip(panels.flat, trainings.items(), strict=True):
        for threshold, each in found["decisions"].items():
            percent = float(threshold.rstrip("%"))
            share = {int(end): count / sum(each["ends"].values()) for end, count in each["ends"].items()}
            axes.scatter([percent] * len(share), list(share), s=[300 * part for part in share.values()], color=_CACHEW)
        axes.axhline(found["knee"], color="#888888", linestyle=":", label="knee")
        axes.set_title(f"a training that needs {name}", fontsize=9)
        axes.set_ylim(bottom=0)
    panels[0][0].legend(fontsize=7)
    _label(panels, "threshold, %", "workers")
    return [_saved(plt, drawing, folder, "papers.thresholds-ends.svg", report)]


def live_scaling(report: Report, folder: str) -> list[str]:
    """Rate over workers of each kind of work, and where each policy has ended."""
    plt = pyplot()
    works = report["works"]
    drawing, panels = plt.subplots(1, len(works), figsize=(10, 3), layout="constrained", squeeze=False)
    styles = {"millrace": (_OURS, "o"), "Cachew": (_CACHEW, "s"), "Cachew, its code": (_CACHEW, "x")}
    for axes, (name, found) in zip(panels.flat, works.items(), strict=True):
        curve = {int(workers): each["elements"] for workers, each in found["fixed"].items()}
        axes.plot(list(curve), list(curve.values()), color="#888888", marker=".", label="fixed numbers")
        for number, (policy, each) in enumerate(found["policies"].items()):
            colour, mark = styles.get(policy, (_PODS, "^v"[number % 2]))
            axes.plot(each["workers"], each["elements"], color=colour, marker=mark, linestyle="", label=policy)
        axes.set_title(f"an element {name}", fontsize=9)
        axes.set_ylim(bottom=0)
    panels[0][0].legend(fontsize=7)
    _label(panels, "workers", "elements/s")
    return [_saved(plt, drawing, folder, "papers.live_scaling-rates.svg", report)]


def step_change(report: Report, folder: str) -> list[str]:
    """Workers and batch time while the consumer changes its speed."""
    return [_over_time({"": report["timeline"]}, folder, "papers.step_change-timeline.svg", report)]


def timelines(report: Report, folder: str) -> list[str]:
    """Workers, mode and batch time of each job (Figures 9 and 11)."""
    panels = {
        f"{way}, {name} training": found[name]["timeline"]
        for way, found in report["results"].items()
        for name in ("first", "second")
    }
    return [_over_time(panels, folder, "papers.timelines-timeline.svg", report)]


def small_cache(report: Report, folder: str) -> list[str]:
    """Chunks on the disk of the cache server over time, and the one that each job has begun (Quiver's Figure 7)."""
    plt = pyplot()
    speeds = {name: found["a tenth"]["timeline"] for name, found in report["results"].items()}
    drawing, rows = plt.subplots(len(speeds), 1, figsize=(9, 2.8 * len(speeds)), layout="constrained", squeeze=False)
    for axes, (name, timeline) in zip(rows.flat, speeds.items(), strict=True):
        kept = [(look["at"], chunk) for look in timeline for chunk in look["kept"]]
        axes.scatter(*zip(*kept, strict=True), marker="s", s=14, color=_FAINT, linewidth=0, label="kept")
        for number, job in enumerate(sorted({job for look in timeline for job in look["jobs"]})):
            read = [(look["at"], look["jobs"][job]) for look in timeline if job in look["jobs"]]
            axes.plot(*zip(*read, strict=True), color=f"C{number}", linewidth=1, drawstyle="steps-post")
        axes.set_title(name, fontsize=9)
        axes.set_ylabel("chunk")
    rows[0][0].legend(fontsize=7, loc="upper left")
    rows[-1][0].set_xlabel("seconds (grey: kept in the cache; lines: the chunk that each job has begun last)")
    return [_saved(plt, drawing, folder, "papers.small_cache-chunks.svg", report)]


def chunk_accuracy(report: Report, folder: str) -> list[str]:
    """Test accuracy after each epoch, of all seeds, and how chunks differ from a shuffle of all in the end."""
    plt = pyplot()
    drawing, (learnt, apart) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", width_ratios=(2, 1))
    for (way, runs), colour in zip(report["results"].items(), ("#888888", _OURS, _PODS), strict=True):
        for number, run in enumerate(runs):
            epochs = range(1, len(run["curve"]) + 1)
            learnt.plot(epochs, run["curve"], color=colour, linewidth=1, label=None if number else way)
    learnt.set_xlabel("epochs")
    learnt.set_ylabel("test accuracy, %")
    learnt.legend(fontsize=7)
    shuffled, chunks = [[run["curve"][-1] for run in runs] for runs in report["results"].values()][:2]
    apart.axhline(0, color="#cccccc", linewidth=1)
    apart.plot([one - other for one, other in zip(chunks, shuffled, strict=True)], "o", color=_OURS)
    apart.set_xlabel("seed")
    apart.set_ylabel("chunks, less all shuffled, points")
    return [_saved(plt, drawing, folder, "papers.chunk_accuracy-epochs.svg", report)]


def lost_servers(report: Report, folder: str) -> list[str]:
    """Objects a second of all jobs, and what the store sends, while cache servers are lost and added."""
    plt = pyplot()
    found = report["results"]
    drawing, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    counted: dict[int, int] = {}
    for at, objects in found["batches"]:
        counted[int(at)] = counted.get(int(at), 0) + objects
    seconds = range(max(counted))  # the last one is not over
    axes.step(seconds, [counted.get(second, 0) for second in seconds], color=_OURS, where="post")
    axes.set_ylabel("objects/s, all jobs", color=_OURS)
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    for phase in found["phases"][1:]:
        axes.axvline(phase["at"], color="#888888", linestyle=":")
        axes.annotate(f" {phase['phase']}", (phase["at"], 0), fontsize=8)
    link = axes.twinx()
    at = [each for each, _ in found["sent"]]
    rates = [
        (total - before) / (now - then) / 1e6
        for (then, before), (now, total) in itertools.pairwise(found["sent"])
        if now > then
    ]
    link.plot(at[1 : len(rates) + 1], rates, color=_PODS, linewidth=1)
    link.set_ylabel("MB/s from the store", color=_PODS)
    link.set_ylim(bottom=0)
    return [_saved(plt, drawing, folder, "papers.lost_servers-throughput.svg", report)]


def micro_timeline(report: Report, folder: str) -> list[str]:
    """Reading, transforming and step of twenty batches in a row, with misses and with hits."""
    plt = pyplot()
    results = report["results"]
    drawing, panels = plt.subplots(1, len(results), figsize=(10, 4), layout="constrained", sharey=True)
    stages = (("read", _FAINT, 0.27), ("transform", "#d9822b", 0.0), ("step", _OURS, -0.27))
    for axes, (case, found) in zip(panels, results.items(), strict=True):
        shown = found["batches"][len(found["batches"]) // 3 :][:20]
        begin = shown[0]["step"][0]
        for stage, colour, shift in stages:
            starts = [batch[stage][0] - begin for batch in shown]
            lengths = [batch[stage][1] - batch[stage][0] for batch in shown]
            rows = [number + 1 - shift for number in range(len(shown))]
            axes.barh(rows, lengths, left=starts, height=0.27, color=colour, label=stage)
        axes.set_title(f"{case}: {found['busy']:.0%} of the time in steps", fontsize=9)
        axes.set_xlabel("seconds")
    panels[0].set_ylabel("batch")
    panels[0].yaxis.get_major_locator().set_params(integer=True)
    panels[0].invert_yaxis()
    panels[0].legend(fontsize=7)
    return [_saved(plt, drawing, folder, "papers.micro_timeline-batches.svg", report)]


def strangers(report: Report, folder: str) -> list[str]:
    """How long a stranger's looks took: shares of them over time, with those that they are compared with."""
    plt = pyplot()
    rows = {row["case"]: row for row in report["results"]}
    panels = [*dict.fromkeys(row["beside"] for row in rows.values() if "beside" in row)]
    drawing, columns = plt.subplots(1, len(panels), figsize=(12, 3.2), layout="constrained", sharey=True)
    for axes, beside in zip(columns, panels, strict=True):
        shown = [rows[beside], *(row for row in rows.values() if row.get("beside") == beside)]
        for row, colour in zip(shown, ("black", _OURS, _CACHEW, _PODS), strict=False):
            axes.plot(row["percentiles_us"], range(1, 100), color=colour, linewidth=1, label=row["case"])
        axes.set_xlim(rows[beside]["percentiles_us"][0] * 0.9, rows[beside]["percentiles_us"][94])
        axes.set_xlabel("microseconds")
        axes.legend(fontsize=6, loc="lower right")
    columns[0].set_ylabel("% of looks")
    return [_saved(plt, drawing, folder, "papers.strangers-times.svg", report)]


def scale_out(report: Report, folder: str) -> list[str]:
    """Speed-up and cost over workers, of what the training's own host makes alone (tf.data service's Figure 9)."""
    swept = report["sweep"]
    colocated, costs = swept["colocated_s"], swept["cost"]
    workers = [int(count) for count in swept["curve"]]
    plt = pyplot()
    drawing, (faster, cheaper) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    faster.plot(workers, [colocated / batch_s for batch_s in swept["curve"].values()], color="#888888", marker=".")
    faster.axhline(colocated / swept["ideal_s"], color="#888888", linestyle=":", label="ideal")
    cheaper.plot(workers, [costs["colocated"] / cost for cost in costs["curve"].values()], color="#888888", marker=".")
    for axes, label in ((faster, "times as fast as colocated"), (cheaper, "times less than colocated costs")):
        axes.axhline(1, color="#cccccc", linewidth=1)
        for (name, chosen), colour, line in zip(swept["chosen"].items(), (_OURS, _CACHEW), ("-", ":"), strict=True):
            axes.axvline(chosen["workers"], color=colour, linestyle=line, label=f'workers="{name}"')
        axes.set_xlabel("workers")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    faster.legend(fontsize=7)
    return [_saved(plt, drawing, folder, "papers.scale_out-workers.svg", report)]


def costs(report: Report, folder: str) -> list[str]:
    """Totals of DELI's Table II beside ours, and requests that were counted over those that were predicted."""
    plt = pyplot()
    drawing, (table, asked) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for number, (data, column) in enumerate(report["table two"].items()):
        names = [f"{data}, {name}" for name in column["printed"]]
        table.barh(names, [row["total"] for row in column["printed"].values()], color=_FAINT, height=0.8)
        ours = [row["total"] for row in column["modelled"].values()]
        table.plot(ours, names, "|", color=_OURS, markersize=14, markeredgewidth=2, label=None if number else "ours")
    table.set_xlim(left=1.8)
    table.set_xlabel("$, Table II (grey: the paper's)")
    table.invert_yaxis()
    table.legend(fontsize=7)
    cases = report["requests"]
    asked.axvspan(0.98, 1.02, color="#d9f2d9", linewidth=0, zorder=0)
    asked.plot([row["counted"] / row["predicted"] for row in cases.values()], list(cases), "o", color=_OURS)
    asked.set_xlim(0.95, 1.05)
    asked.set_xlabel("counted, of predicted (green: aimed at)")
    asked.invert_yaxis()
    for axes in (table, asked):
        axes.tick_params(labelsize=7)
    return [_saved(plt, drawing, folder, "papers.costs-table.svg", report)]


def figure10(report: Report, folder: str) -> list[str]:
    """What all jobs need, of what one does, and how fast they are, over their number, in each mode."""
    plt = pyplot()
    drawing, (costs, speeds) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    alone = next(iter(report["results"].values()))
    one = next(iter(alone.values()))
    colours = itertools.chain([_OURS, _CACHEW, _PODS, "#888888"], itertools.repeat(_FAINT))
    for (mode, found), colour in zip(report["results"].items(), colours, strict=False):
        numbers = [int(count) for count in found]
        needed = [
            each["calls"] / each["batches"] * count / (one["calls"] / one["batches"])
            for count, each in zip(numbers, found.values(), strict=True)
        ]
        costs.plot(numbers, needed, color=colour, marker=".", label=mode)
        speeds.plot(numbers, [each["mean_speed"] for each in found.values()], color=colour, marker=".", label=mode)
    for axes, label in ((costs, "calls that all jobs need, of one's"), (speeds, "mean speed, of the steps")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("jobs")
        axes.set_ylabel(label)
    costs.set_yscale("log", base=2)
    speeds.set_ylim(bottom=0)
    costs.legend(fontsize=7)
    return [_saved(plt, drawing, folder, "papers.figure10-jobs.svg", report)]


def shared_reads(report: Report, folder: str) -> list[str]:
    """What jobs read from the store, apart and sharing."""
    bars = {
        f"{jobs} jobs, {way}": each["bytes"] for jobs, ways in report["results"].items() for way, each in ways.items()
    }
    return [_bars(bars, "bytes from the store", folder, "papers.shared_reads-bytes.svg", report)]


def one_host(report: Report, folder: str) -> list[str]:
    """Memory of one job and of many."""
    bars = {
        f"{jobs} jobs, {way}": each["beyond"] / (1 << 20)
        for way, runs in report["results"].items()
        for jobs, each in runs.items()
    }
    return [_bars(bars, "MiB beyond those without data", folder, "papers.one_host-memory.svg", report)]


def windows(report: Report, folder: str) -> list[str]:
    """What jobs of each speed did not get, which is what they were told of."""
    bars = {row["job"]: row["lost"] for row in report["results"]["together"][-1]["jobs"]}
    return [_bars(bars, "batches that a job missed", folder, "papers.windows-missed.svg", report)]


def who_gets_room(report: Report, folder: str) -> list[str]:
    """Throughput of a cluster over its link, for each size of its cache: the mean of all cases."""
    plt = pyplot()
    sizes = sorted({row["cache"] for row in report["results"]})
    drawing, panels = plt.subplots(1, len(sizes), figsize=(10, 3), layout="constrained", sharey=True, squeeze=False)
    lines = (("lru", _PODS, "LRU"), ("millrace", _OURS, "millrace"), ("best", "#888888", "the best placement"))
    for axes, size in zip(panels.flat, sizes, strict=True):
        links = sorted({row["link"] for row in report["results"] if row["cache"] == size})
        for name, colour, label in lines:
            of = [[row[name] for row in report["results"] if (row["cache"], row["link"]) == (size, at)] for at in links]
            means = [sum(each) / len(each) for each in of]
            style = ":" if name == "best" else "-"
            axes.plot([link / 1e6 for link in links], means, style, color=colour, marker=".", label=label)
        axes.set_title(f"cache of {size / 1e9:.0f} GB", fontsize=9)
        axes.set_xlabel("link, MB/s")
        axes.set_ylim(bottom=0)
    panels[0][0].set_ylabel("throughput over no cache, mean")
    panels[0][0].legend(fontsize=7)
    return [_saved(plt, drawing, folder, "papers.who_gets_room-throughput.svg", report)]


def coordinated(report: Report, folder: str) -> list[str]:
    """How many times as fast steps of one length are, beside the bound that the lengths give."""
    plt = pyplot()
    drawing, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    names = [name.replace(", ", "\n") for name in report["results"]]
    for shift, what, colour in ((-0.2, "bound", _FAINT), (0.2, "faster", _OURS)):
        places = [number + shift for number in range(len(names))]
        axes.bar(places, [each[what] for each in report["results"].values()], 0.4, color=colour, label=what)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_ylabel("times as fast as padding alone")
    axes.legend(["the bound of the lengths", "measured"], fontsize=7)
    return [_saved(plt, drawing, folder, "papers.coordinated-faster.svg", report)]


def one_link(report: Report, folder: str) -> list[str]:
    """Objects a second of all jobs, of what one copy over the link gives (Quiver's Figure 3)."""
    ways = ("no cache", "empty cache", "full cache")
    bars = {way: statistics.median(each[way]["of_one_copy"] for each in report["rounds"]) for way in ways}
    label = f"objects/s of {report['jobs']} jobs, of what the link carries of one copy"
    return [_bars(bars, label, folder, "papers.one_link-rates.svg", report)]


def hungriest(report: Report, folder: str) -> list[str]:
    """Objects a second of each training, for each size of the cache."""
    plt = pyplot()
    drawing, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    sizes = list(report["results"])
    trainings = list(report["results"][sizes[0]]["trainings"])
    for number, (training, colour) in enumerate(zip(trainings, (_PODS, _OURS, _CACHEW), strict=True)):
        rates = [report["results"][size]["trainings"][training]["objects_s"] for size in sizes]
        axes.bar([place + 0.27 * (number - 1) for place in range(len(sizes))], rates, 0.27, color=colour)
    axes.set_xticks(range(len(sizes)), [f"cache of {size}" for size in sizes], fontsize=8)
    axes.set_ylabel("objects/s")
    axes.legend(trainings, fontsize=7)
    return [_saved(plt, drawing, folder, "papers.hungriest-rates.svg", report)]


def deli(report: Report, folder: str) -> list[str]:
    """Seconds of an epoch that each way spends loading (DELI's Figure 3)."""
    plt = pyplot()
    drawing, panels = plt.subplots(1, len(report["results"]), figsize=(10, 2.8), layout="constrained", sharey=True)
    for axes, (work, rounds) in zip(panels, report["results"].items(), strict=True):
        ways = {way: statistics.median(each["ways"][way]["loading"] for each in rounds) for way in rounds[0]["ways"]}
        axes.barh(list(ways), list(ways.values()), color=_OURS, height=0.7)
        axes.set_title(work, fontsize=9)
        axes.set_xlabel("seconds spent loading")
    panels[0].invert_yaxis()
    return [_saved(plt, drawing, folder, "papers.deli-loading.svg", report)]


def deli_misses(report: Report, folder: str) -> list[str]:
    """Share of reads that missed, over what is fetched at a time and over the cache's size (DELI's Figures 6 to 9)."""
    plt = pyplot()
    drawing, (fetches, caches) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    found = {name.rsplit(", ")[-1]: each for name, each in report["results"][-1].items() if name != "Figure 5"}
    for (work, cases), colour in zip(found.items(), (_OURS, _PODS), strict=True):
        for epoch, style in enumerate(("-", ":")):
            label = f"{work}, epoch {epoch + 1}"
            for axes, what, unit in ((fetches, "fetch ", "%"), (caches, "cache ", "x")):
                points = {
                    float(name.removeprefix(what).rstrip(unit)): 100 * values[epoch]
                    for name, values in cases.items()
                    if name.startswith(what) and ", " not in name
                }
                axes.plot(list(points), list(points.values()), style, color=colour, marker=".", label=label)
    fetches.set_xlabel("samples of a fetch, % of the data")
    caches.set_xlabel("size of the cache, in fetches")
    fetches.set_ylabel("reads that missed, %")
    fetches.set_ylim(bottom=0)
    caches.legend(fontsize=7)
    return [_saved(plt, drawing, folder, "papers.deli_misses-rates.svg", report)]


def trainings(report: Report, folder: str) -> list[str]:
    """Score of each training over its seconds, by who makes the batches."""
    plt = pyplot()
    results = report["results"]
    drawing, panels = plt.subplots(1, len(results), figsize=(10, 3), layout="constrained", squeeze=False)
    colours = {"millrace": _OURS, "DataLoader": _PODS, "tf.data service": _CACHEW, "Ray Data": "#888888"}
    for axes, (work, feeds) in zip(panels.flat, results.items(), strict=True):
        for feed, each in feeds.items():
            axes.plot(*zip(*each["curve"], strict=True), color=colours[feed], linewidth=1, label=feed)
        axes.set_title(work, fontsize=9)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("loss of a byte, nats" if work == "text" else "right, %")
        axes.legend(fontsize=7)
    return [_saved(plt, drawing, folder, f"{report['benchmark']}-scores.svg", report)]


def _bars(bars: Mapping[str, float], label: str, folder: str, file: str, report: Report) -> str:
    plt = pyplot()
    drawing, axes = plt.subplots(figsize=(8, 0.34 * len(bars) + 0.9), layout="constrained")
    axes.barh(list(bars), list(bars.values()), color=_OURS, height=0.7)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    return _saved(plt, drawing, folder, file, report)


DRAWINGS: Mapping[str, Callable[[Report, str], list[str]]] = {
    "papers.accelerator_trainings": trainings,
    "papers.chunk_accuracy": chunk_accuracy,
    "papers.coordinated": coordinated,
    "papers.costs": costs,
    "papers.deli": deli,
    "papers.deli_misses": deli_misses,
    "papers.figure10": figure10,
    "papers.figure6": figure6,
    "papers.hungriest": hungriest,
    "papers.live_scaling": live_scaling,
    "papers.lost_servers": lost_servers,
    "papers.micro_timeline": micro_timeline,
    "papers.one_host": one_host,
    "papers.one_link": one_link,
    "papers.scale_out": scale_out,
    "papers.shared_reads": shared_reads,
    "papers.small_cache": small_cache,
    "papers.step_change": step_change,
    "papers.strangers": strangers,
    "papers.thresholds": thresholds,
    "papers.timelines": timelines,
    "papers.trainings": trainings,
    "papers.who_gets_room": who_gets_room,
    "papers.windows": windows,
}
"""By benchmark: what draws its plots into a folder, and returns the lines of the page that show them."""


def _over_time(panels: Mapping[str, Sequence[Mapping[str, Any]]], folder: str, file: str, report: Report) -> str:
    """One panel a job, of rows with ``seconds``, ``workers``, ``batch_s``, and perhaps ``mode`` and ``epoch``."""
    plt = pyplot()
    drawing, rows = plt.subplots(
        len(panels), 1, figsize=(9, 2.3 * len(panels) + 0.4), layout="constrained", squeeze=False, sharex=True
    )
    for axes, (name, timeline) in zip(rows.flat, panels.items(), strict=True):
        seconds = [each["seconds"] for each in timeline]
        began = 0.0
        for mode, stretch in itertools.groupby(timeline, lambda row: row.get("mode", "")):
            ended = [row["seconds"] for row in stretch][-1]
            axes.axvspan(began, ended, color=_MODES.get(mode, "white"), linewidth=0)
            began = ended
        axes.step(seconds, [each["workers"] for each in timeline], color=_OURS, where="pre")
        axes.set_ylabel("workers", color=_OURS)
        axes.set_ylim(bottom=0)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_title(name, fontsize=9)
        for before, row in itertools.pairwise(timeline):
            if before.get("epoch") != row.get("epoch"):
                axes.axvline(before["seconds"], color="#888888", linestyle=":", linewidth=1)
        batches = axes.twinx()
        batches.plot(seconds, [1e3 * each["batch_s"] for each in timeline], color="#d9822b", linewidth=1)
        batches.set_ylabel("ms of an element", color="#d9822b")
        batches.set_ylim(bottom=0)
    colours = " (yellow: profile or compute, blue: put, green: get)"
    rows[-1][0].set_xlabel("seconds" + (colours if "mode" in timeline[0] else ""))
    return _saved(plt, drawing, folder, file, report)


def _label(rows: Any, x: str, y: str) -> None:
    for axes in rows[-1]:
        axes.set_xlabel(x)
    for axes in rows[:, 0]:
        axes.set_ylabel(y)


def _saved(plt: Any, drawing: Any, folder: str, file: str, report: Report) -> str:
    drawing.savefig(os.path.join(folder, file), metadata={"Date": None})
    plt.close(drawing)
    return f"![{report['question']}](performance/{file})"


def pyplot() -> Any:
    """``matplotlib.pyplot``, which draws the same file from the same figures."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "millrace"
    import matplotlib.pyplot as plt

    return plt
