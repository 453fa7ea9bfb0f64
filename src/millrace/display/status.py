"""Tables of ``millrace status``, from the service's status message and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec

from millrace.display.plain_text import plain
from millrace.policies.decision import listed
from millrace.policies.figures import counted, data_size, duration, number, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

Row = tuple[str, ...]
Table = tuple[str, Row, Sequence[Row]]
"""Title, heads of the columns, rows."""

JOBS: Row = ("job", "epoch", "read", "left", "mode", "tasks", "workers", "consumers", "step", "waiting", "why")
OPERATORS: Row = ("operator", "share", "elements", "elements/s", "threads", "padding")
WORKERS: Row = ("worker", "on", "job", "leases", "busy", "buffered", "why")
MEMBERS: Row = ("member", "on", "for", "epoch", "elements", "skipped", "behind", "pays")
FINISHED: Row = ("job", "ended", "took", "epochs", "elements", "waiting", "why", "bottleneck")


def as_json(status: Mapping[str, Any]) -> str:
    """Format a status as JSON, for programs."""
    return msgspec.json.format(msgspec.json.encode(status), indent=2).decode()


def job_rows(status: Mapping[str, Any]) -> list[Row]:
    """Make a row per job, in the columns of :data:`JOBS`, and one for each of its consumers."""
    rows: list[Row] = []
    for job in status["jobs"]:
        tasks, consumers, progress = job["tasks"], job["consumers"], job["progress"]
        rows.append(
            (
                job["name"],
                str(job["epoch"]) if job["epoch"] >= 0 else "-",
                _share(progress["share"]),
                "-" if progress["left_s"] is None else duration(progress["left_s"]),
                job["mode"],
                f"{tasks['done']:,}/{'?' if tasks['total'] is None else format(tasks['total'], ',')}",
                str(job["workers"]["observed"]),
                str(len(consumers)),
                "-" if job["batch_time_s"] is None else duration(job["batch_time_s"]),
                _share(job["wait_share"]),
                job["why"] + (f" ({job['skipped']:,} elements skipped)" if job["skipped"] else ""),
            )
        )
        rows.extend(
            (
                "  " + (each.get("member") or f"consumer {each['index']}"),
                str(each["epoch"]) if each["epoch"] >= 0 else "-",
                *("", "", "", "", ""),
                f"{each['host']}:{each['pid']}",
                *("", ""),
                f"{each['batches']:,} elements read; {each['why']}",
            )
            for each in consumers
        )
    return rows


def operator_rows(job: Mapping[str, Any]) -> list[Row]:
    """Make a row per operator of a job, in the columns of :data:`OPERATORS`, from the source to the last."""
    epochs = [epoch for epoch in job["epochs"] if epoch["epoch"] == job["epoch"]]
    given = [each["elements"] for epoch in epochs for each in epoch["operators"]]
    return [
        (
            each["operator"],
            _share(each["share"]),
            f"{given[place]:,}" if place < len(given) else "0",
            "-" if each["elements_s"] is None else number(each["elements_s"]),
            str(each["threads"] or "-"),
            _share(each.get("padding_share")),
        )
        for place, each in enumerate(job["operators"])
    ]


def member_rows(group: Mapping[str, Any]) -> list[Row]:
    """Make a row per member of a group, in the columns of :data:`MEMBERS`."""
    return [
        (
            each["member"],
            f"{each['host']}:{each['pid']}{'' if each['connected'] else ' (away)'}",
            duration(round(each["since_s"])),
            str(each["epoch"]) if each["epoch"] >= 0 else "-",
            f"{each['elements']:,}",
            f"{each['skipped']:,}",
            f"{each['behind']:,}",
            percent(each["share"]),
        )
        for each in group["members"]
    ]


def group_sentences(group: Mapping[str, Any]) -> Iterator[str]:
    """Say what a group saves, what its window holds, and who was detached from it."""
    name, window = f"group {group['fingerprint']}", group["window"]
    if group["made"]:
        yield (
            f"{name}: {counted(group['made'], 'output')} produced and {group['given']:,} given to members, "
            f"{number(group['readers'])} times each, which saves {duration(group['saved_core_s'])} of processor time"
        )
    held = f"{data_size(window['bytes'])} in workers"
    yield f"{name}: {held}; {counted(window['hits'], 'output')} sent that another member had been sent before"
    for each in group["detached"]:
        yield f"{name}: {each['member']} was detached {duration(round(each['ago_s']))} ago: it {each['why']}"


def worker_rows(status: Mapping[str, Any]) -> list[Row]:
    """Make a row per worker, in the columns of :data:`WORKERS`."""
    return [
        (
            worker["id"][:8],
            f"{worker['host']}:{worker['pid']}{_zone(worker)}{' (local)' if worker['local'] else ''}",
            worker["job"] or "-",
            str(worker["leases"]),
            _share(worker["busy_share"]),
            data_size(sum(lane["buffered_bytes"] for lane in worker["lanes"])),
            worker["why"],
        )
        for worker in status["workers"]
    ]


def finished_rows(status: Mapping[str, Any]) -> list[Row]:
    """Make a row per job that is over, in the columns of :data:`FINISHED`, the last one first."""
    return [
        (
            job["name"],
            f"{duration(round(job['ended_s']))} ago",
            duration(job["seconds"]),
            str(job["epochs"]),
            f"{job['elements']:,}",
            _share(job["wait_share"]),
            job["failure"] or job["why"],
            job["bottleneck"],
        )
        for job in status["finished"]
    ]


def show(status: Mapping[str, Any], out: IO[str] | None = None) -> None:
    """Print jobs and workers, as tables with colour on a terminal, as plain columns elsewhere."""
    out, status = out or sys.stdout, plain(status)
    if out.isatty():
        from rich.console import Console

        Console(file=out).print(_rendered(status))
    else:
        for line in _lines(status):
            print(line, file=out)


def watch(answers: Iterable[Mapping[str, Any]], out: IO[str] | None = None, *, as_lines: bool = False) -> None:
    """Show each answer of a service in the place of the one before; one below the other where there is no terminal.

    Args:
        answers: of :func:`millrace.client.status_query.watch_status`.
        out: where to; None: standard output.
        as_lines: for programs: each as one line of JSON.
    """
    out = out or sys.stdout
    if as_lines or not out.isatty():
        for status in answers:
            text = msgspec.json.encode(status).decode() if as_lines else "\n".join([*_lines(plain(status)), ""])
            print(text, file=out, flush=True)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(file=out), auto_refresh=False, screen=True) as live:
        for status in answers:
            live.update(_rendered(plain(status)), refresh=True)


def print_columns(rows: Sequence[Row], out: IO[str] | None) -> None:
    """Print rows with aligned columns; ``out`` None: to standard output."""
    print("\n".join(columns(rows)), file=out or sys.stdout)


def columns(rows: Sequence[Row]) -> list[str]:
    """Format rows as lines with aligned columns."""
    cells = [[plain(cell, lines=False) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _tables(status: Mapping[str, Any]) -> Iterator[Table]:
    yield "jobs", JOBS, job_rows(status)
    for job in status["jobs"]:
        if job["operators"]:
            yield f"operators of {job['name']}", OPERATORS, operator_rows(job)
        if job.get("group"):
            yield f"members of {job['name']}", MEMBERS, member_rows(job["group"])
    yield "workers", WORKERS, worker_rows(status)
    if status["finished"]:
        yield "finished", FINISHED, finished_rows(status)


ROOM = {"full": "all", "two chunks": "two chunks", "none": "nothing", "free": "what fits"}
"""Rooms of data sets in the source cache, in words."""


def _sentences(status: Mapping[str, Any]) -> Iterator[str]:
    for job in status["jobs"]:
        if job["cache"]["history"]:
            yield f"job {job['name']}: {job['cache']['why']}"
        if job.get("group"):
            yield from group_sentences(job["group"])
        for note in job["notes"]:
            yield f"job {job['name']}: {note}"
    for server in status.get("source_cache", {}).get("servers", ()):
        yield _cache_server(server)
    for data in status.get("source_cache", {}).get("rooms", ()):
        if data["jobs"]:
            read = f"{listed(sorted(data['jobs']))} ({data_size(data['bytes'])})"
            yield f"source cache, data of {read}: room for {ROOM[data['room']]} ({data['why']})"
    for data in status.get("source_cache", {}).get("data", ()):
        kept = " and ".join(map(str, data["kept"])) or "none"
        reading = ", ".join(f"{job} in chunk {chunk}" for job, chunk in sorted(data["jobs"].items()))
        cut = f" ({data['why_chunks']})" if data["why_chunks"] else ""
        yield f"data in {data['chunks']} chunks{cut}, of which {kept} are kept ({data['why']}): {reading}"
    for part in ("fleet", "journal"):
        if status[part]["why"]:
            yield status[part]["why"]


def _zone(process: Mapping[str, Any]) -> str:
    """Say in which zone a worker or a cache server is; services of earlier versions don't know."""
    return f" in zone {process['zone']}" if process.get("zone") else ""


def _cache_server(server: Mapping[str, Any]) -> str:
    counts = server["counts"]
    asked = counts["hits"] + counts["joined"] + counts["misses"]
    saved = (counts["hits"] + counts["joined"]) / asked if asked else 0.0
    return (
        f"cache server {server['address']}{_zone(server)}: {counts['items']:,} items, {data_size(counts['bytes'])} of "
        f"{data_size(server['most_bytes'])}; of {asked:,} that were asked for {percent(saved)} were not read again"
    )


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    for title, header, rows in _tables(status):
        yield f"{title}:{'' if rows else ' none'}"
        for line in columns([header, *rows]) if rows else ():
            yield f"  {line}"
    yield from _sentences(status)


def _rendered(status: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[RenderableType] = []
    for title, header, rows in _tables(status):
        table = RichTable(title=Text(title), title_justify="left", box=None, pad_edge=False)
        for head in header:
            table.add_column(head, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        parts.append(table if rows else Text(f"{title}: none"))
    return Group(*parts, *map(Text, _sentences(status)))


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)
