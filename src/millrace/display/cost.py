"""Table of ``millrace cost``, from the service's status message and a table of prices."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import IO, Any

import msgspec

from millrace.display.status import Row, print_columns
from millrace.errors import PipelineError
from millrace.policies.figures import number
from millrace.policies.prices import PROVIDERS, PriceTable

HEAD: Row = ("job", "epoch", "worker hours", "core hours", "training hours", "service", "training", "together")


def read_prices(path: str) -> PriceTable:
    """Read the table in a TOML file, or that of one of :data:`millrace.policies.prices.PROVIDERS`.

    Raises:
        PipelineError: it cannot be read, or is not such a table.
    """
    place = resources.files("millrace.display") / "prices" / f"{path}.toml" if path in PROVIDERS else Path(path)
    try:
        return msgspec.convert(tomllib.loads(place.read_bytes().decode()), PriceTable)
    except OSError as error:
        raise PipelineError(f"prices cannot be read from {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} is no table of prices: {error}") from None


def costs(status: Mapping[str, Any], table: PriceTable | None = None) -> list[dict[str, Any]]:
    """Make a row for each epoch of each job: hours, and their cost by these prices or else those of the service.

    Of jobs that share one computation each has rows of its own, with what falls to it.

    Args:
        status: of the service.
        table: of prices; None: those that the service was started with; if there are none either, costs are None.
    """
    rows = []
    for job in status["jobs"]:
        for spent in job["spent"] if not job.get("group") else job["group"]["spent"]:
            row = {"job": job["name"], **spent}
            if "member" in spent:
                row |= {"job": row.pop("member") or "(others that shared)", "group": job["name"]}
            if table is not None:
                used = (spent.get("core_hours", 0.0), spent.get("gib_hours", 0.0))
                hours = table.of_hours(spent["worker_hours"], spent["training_hours"], job["accelerators"], *used)
                row["service"], row["training"] = hours.service, hours.training
            rows.append(row)
    return rows


def dispatcher(status: Mapping[str, Any], table: PriceTable | None = None) -> dict[str, Any] | None:
    """Hours of the dispatcher itself, which all jobs share, and their cost; None: the service does not say."""
    spent = status.get("dispatcher")
    if spent is None or table is None:
        return spent
    cost = table.of_hours(spent["hours"], 0.0, 0, spent["core_hours"], spent["gib_hours"])
    return {**spent, "service": cost.service}


def show(
    rows: list[dict[str, Any]],
    currency: str = "",
    out: IO[str] | None = None,
    shared: Mapping[str, Any] | None = None,
) -> None:
    """Print one line per epoch of each job, and one for the dispatcher, which they share."""

    def money(*parts: float | None) -> str:
        known = [part for part in parts if part is not None]
        return f"{number(sum(known), 4)}{' ' if currency else ''}{currency}" if known else "-"

    lines = [
        (
            row["job"],
            str(row["epoch"]),
            f"{row['worker_hours']:.3f}",
            f"{row['core_hours']:.3f}",
            f"{row['training_hours']:.3f}",
            money(row["service"]),
            money(row["training"]),
            money(row["service"], row["training"]),
        )
        for row in rows
    ]
    if shared is not None:
        hours, cores, cost = shared["hours"], shared["core_hours"], money(shared["service"])
        lines.append(("(dispatcher)", "-", f"{hours:.3f}", f"{cores:.3f}", "-", cost, "-", cost))
    print_columns([HEAD, *lines], out)
