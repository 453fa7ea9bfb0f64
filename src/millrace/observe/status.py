"""What ``millrace status`` prints: from the service's status message and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import msgspec

Row = tuple[str, ...]

JOBS: Row = ("job", "epoch", "mode", "tasks", "workers", "consumers", "step", "waiting", "why")
WORKERS: Row = ("worker", "on", "job", "leases", "busy", "buffered", "why")


def as_json(status: Mapping[str, Any]) -> str:
    """For programs."""
    return msgspec.json.format(msgspec.json.encode(status), indent=2).decode()


def job_rows(status: Mapping[str, Any]) -> list[Row]:
    """One row per job, in the columns of :data:`JOBS`, and one for each of its consumers."""
    rows: list[Row] = []
    for job in status["jobs"]:
        tasks, consumers = job["tasks"], job["consumers"]
        rows.append(
            (
                job["name"],
                str(job["epoch"]) if job["epoch"] >= 0 else "-",
                job["mode"],
                f"{tasks['done']}/{'?' if tasks['total'] is None else tasks['total']}",
                str(job["workers"]["observed"]),
                str(len(consumers)),
                _seconds(job["batch_time_s"]),
                _share(job["wait_share"]),
                job["why"] + (f" ({job['skipped']} elements skipped)" if job["skipped"] else ""),
            )
        )
        rows.extend(
            (
                f"  consumer {each['index']}",
                str(each["epoch"]) if each["epoch"] >= 0 else "-",
                *("", "", ""),
                f"{each['host']}:{each['pid']}",
                *("", ""),
                f"{each['batches']} elements read; {each['why']}",
            )
            for each in consumers
        )
    return rows


def worker_rows(status: Mapping[str, Any]) -> list[Row]:
    """One row per worker, in the columns of :data:`WORKERS`."""
    return [
        (
            worker["id"][:8],
            f"{worker['host']}:{worker['pid']}{' (local)' if worker['local'] else ''}",
            worker["job"] or "-",
            str(worker["leases"]),
            _share(worker["busy_share"]),
            _bytes(sum(lane["buffered_bytes"] for lane in worker["lanes"])),
            worker["why"],
        )
        for worker in status["workers"]
    ]


def show(status: Mapping[str, Any], out: IO[str] | None = None) -> None:
    """Prints jobs and workers, as tables with colour on a terminal, as plain columns elsewhere."""
    out = out or sys.stdout
    tables = [("jobs", JOBS, job_rows(status)), ("workers", WORKERS, worker_rows(status))]
    if out.isatty():
        _show_rich(tables, out)
    else:
        for title, header, rows in tables:
            print(f"{title}:{'' if rows else ' none'}", file=out)
            for line in columns([header, *rows]) if rows else ():
                print(f"  {line}", file=out)
    for job in status["jobs"]:
        if job["cache"]["history"]:
            print(f"job {job['name']}: {job['cache']['why']}", file=out)
        for note in job["notes"]:
            print(f"job {job['name']}: {note}", file=out)
    for part in ("fleet", "journal"):
        if status[part]["why"]:
            print(status[part]["why"], file=out)


def columns(rows: Sequence[Row]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _show_rich(tables: Sequence[tuple[str, Row, Sequence[Row]]], out: IO[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out)
    for title, header, rows in tables:
        table = Table(*header, title=title, title_justify="left", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        console.print(table if rows else f"{title}: none", markup=False)


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _bytes(value: int) -> str:
    return f"{value / 2**20:.1f} MiB"
