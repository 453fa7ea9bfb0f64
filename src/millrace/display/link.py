"""Report of ``millrace bench link`` in words."""

from __future__ import annotations

import sys
from typing import IO

from millrace.display.status import columns
from millrace.wire.data.link_benchmark import BATCH_BYTES, LinkFigure, LinkReport

MEGA = 1e6


def show(report: LinkReport, file: IO[str] | None = None) -> None:
    """Print ``report`` to ``file``, standard output by default."""
    print("\n".join(lines(report)), file=file or sys.stdout)


def lines(report: LinkReport) -> list[str]:
    """Format the figures as a table, and what follows from them in plain words."""
    heads = ("", "sockets", "content", "compression", "MB/s", f"batches of {BATCH_BYTES / MEGA:.1f} MB a second")
    return [
        f"the link to {report.peer}; round trip {report.round_trip_s * 1e3:.2f} ms",
        "",
        *columns([heads, *map(_cells, report.rows)]),
        "",
        *conclusions(report),
    ]


def conclusions(report: LinkReport) -> list[str]:
    """Draw conclusions, a sentence each."""
    by_way = {(row.way, row.sockets, row.content, row.compression): row.bytes_per_s for row in report.rows}
    most = max(rate for (way, *_), rate in by_way.items() if way == "plain sockets")
    ours = by_way["millrace", report.sockets, "random bytes", None]
    gives = (
        f"The link gives {most / MEGA:.0f} MB/s. With {_sockets(report.sockets)}, which it chooses here, millrace"
        f" moves {ours / MEGA:.0f} MB/s: {ours / most:.2f} of that."
    )
    said = [gives, _why(report)]
    base = by_way["millrace", report.sockets, "token ids", None]
    better = [(rate, way[3]) for way, rate in by_way.items() if way[3] is not None and rate > base]
    if better:
        rate, name = max(better)
        said.append(
            f"For data that shrinks as token ids do, compression={name!r} pays: {rate / base:.1f} times as fast."
            f" Decoded pictures shrink little, JPEG not at all."
        )
    else:
        said.append("Compression does not pay: the link is faster than the compressors.")
    return said


def _why(report: LinkReport) -> str:
    if report.same_host:
        return "Both ends are on this host, where one socket is as fast as several, and memory is passed if possible."
    if report.window_bytes is None:
        return "How much a socket may have on the way is unknown here, so it is one."
    most = report.window_bytes / report.round_trip_s / MEGA if report.round_trip_s else float("inf")
    return (
        f"A socket has at most {report.window_bytes / MEGA:.1f} MB on the way (half of the least of net.ipv4.tcp_rmem"
        f" and tcp_wmem), so with this round trip it carries at most {most:.0f} MB/s."
    )


def _sockets(count: int) -> str:
    return "1 socket" if count == 1 else f"{count} sockets"


def _cells(row: LinkFigure) -> tuple[str, ...]:
    return (
        row.way,
        str(row.sockets),
        row.content,
        row.compression or "-",
        f"{row.bytes_per_s / MEGA:.0f}",
        f"{row.bytes_per_s / BATCH_BYTES:.1f}",
    )
