"""Tables of ``millrace cache``, from the service's status message and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any

from millrace.display.plain_text import plain
from millrace.display.status import Row, print_columns
from millrace.errors import PipelineError
from millrace.policies.figures import data_size, percent

POINTS: Row = ("point", "writer", "after", "kept", "of", "blocks", "items", "saves per GiB", "jobs")


def of(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a status that is about the cache.

    Raises:
        PipelineError: the service has none.
    """
    cache: Mapping[str, Any] | None = status["cache"]
    if cache is None:
        raise PipelineError("this service has no cache: start its dispatcher with --cache-dir and --cache-bytes")
    return cache


def show_points(status: Mapping[str, Any], out: IO[str] | None = None) -> None:
    """Print one line per cache point of which something is kept, the most worth first."""
    points = [point for point in of(status)["points"] if point["blocks"]]
    points.sort(key=lambda point: -point["saves_per_gib"])
    rows = [
        (
            point["point"],
            point["writer"] or "-",
            point["label"] or "?",
            data_size(point["bytes"]),
            "?" if point["whole"] is None else data_size(max(point["whole"], point["bytes"])),
            str(point["blocks"]),
            str(point["items"]),
            percent(point["saves_per_gib"]),
            ", ".join(point["jobs"]) or "-",
        )
        for point in points
    ]
    print_columns([POINTS, *rows], out)


def show_stats(status: Mapping[str, Any], out: IO[str] | None = None) -> None:
    """Print how full the cache is, and what each job does about it."""
    out, status = out or sys.stdout, plain(status)
    cache = of(status)
    blocks = sum(point["blocks"] for point in cache["points"] if "@" not in point["point"])
    promised = max(0, cache["taken"] - cache["bytes"])
    print(
        f"{cache['location']}: {data_size(cache['bytes'])} of {data_size(cache['limit'])} in {blocks} blocks", file=out
    )
    print(f"promised to tasks that run: {data_size(promised)}", file=out)
    for each in cache["tenants"]:
        print(f"tenant {each['tenant']}: {data_size(each['taken'])} of {data_size(each['quota'])}", file=out)
    for job in status["jobs"]:
        print(f"job {job['name']}: {job['mode']}: {job['cache']['why']}", file=out)
        for line in _said(job["cache"]):
            print(f"  {line}", file=out)


def _said(cache: Mapping[str, Any]) -> Iterator[str]:
    if cache["trusts"]:
        yield f"it reads what {' and '.join(cache['trusts'])} kept, too"
    if cache["hits"] + cache["misses"]:
        yield f"in this epoch {cache['hits']} items were read and {cache['misses']} made"
    if cache["lost"]:
        yield f"blocks that could not be read, so that what they held was made: {cache['lost']}"
    if cache["trouble"]:
        yield f"nothing more is kept: {cache['trouble']}"
    for unused in cache["unused"]:
        yield f"the cache after {unused['point']} is not used: {unused['why']}"


def chosen(status: Mapping[str, Any], names: list[str], *, everything: bool) -> list[str]:
    """Find the points that were asked for, each by its name or the beginning of it.

    Raises:
        PipelineError: there is no such point, or more than one, or none was named, or it is in a folder of its own.
    """
    there = [point["point"] for point in of(status)["points"]]
    if everything:
        return [name for name in there if "@" not in name]
    if not names:
        raise PipelineError("name the points to remove, as `millrace cache ls` shows them, or give --all")
    found = []
    for name in names:
        matching = [name] if name in there else [point for point in there if point.startswith(name)]
        if len(matching) != 1:
            raise PipelineError(f"{len(matching) or 'no'} points begin with {name!r}: see `millrace cache ls`")
        folder = matching[0].partition("@")[2]
        if folder:
            raise PipelineError(f"what is kept of {name!r} is in a folder of a pipeline's own: clear {folder} yourself")
        found += matching
    return found
