"""Report of what epochs have cost: hours, and their prices if the service knows some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.control.state.observed import ResourceUsage
from millrace.control.state.state import Job, State


def spent_rows(state: State, job: Job, epochs: Mapping[int, ResourceUsage]) -> list[dict[str, Any]]:
    """Report hours of workers and of training by epoch, as far as this dispatcher has seen them, and their cost."""
    rows = []
    for epoch, spent in sorted(epochs.items()):
        workers, training, table = spent.worker_s / 3600, spent.consumer_s / 3600, state.settings.prices
        cores, gib = spent.core_s / 3600, spent.gib_s / 3600
        row = {"epoch": epoch, "worker_hours": workers, "training_hours": training, "service": None, "training": None}
        row |= {"core_hours": cores, "gib_hours": gib}
        if table is not None:
            costs = table.of_hours(workers, training, job.spec.accelerators, cores, gib)
            row |= {"service": costs.service, "training": costs.training}
        rows.append(row)
    return rows


def spent_by_dispatcher(state: State, spent: ResourceUsage) -> dict[str, Any]:
    """Report hours of the dispatcher's process and their cost: it is one more worker (tf.data service 4.1)."""
    hours, cores, gib = (each / 3600 for each in (spent.worker_s, spent.core_s, spent.gib_s))
    table = state.settings.prices
    price = None if table is None else table.of_hours(hours, 0.0, 0, cores, gib).service
    return {"hours": hours, "core_hours": cores, "gib_hours": gib, "service": price}
