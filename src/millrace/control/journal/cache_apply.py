"""What events about caches change in the state; a part of :mod:`millrace.control.journal.replay`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.control.journal import cache_events as ev
from millrace.control.journal.events import TaskLeased
from millrace.control.state.cache_state import CachedPoint, ModeOf, Promise, Use
from millrace.control.state.state import State


def promise(state: State, event: TaskLeased) -> None:
    """A lease may read from a point, and perhaps add to it."""
    if event.place:
        state.caches.promises[event.lease] = Promise(event.place, event.room, also=event.also)


def lease_ended(state: State, lease: int) -> None:
    """The lease is over; if nobody has said what it added to the service's store, that is to be found out."""
    held = state.caches.promises.get(lease)
    if held is None:
        return
    if not held.room or "@" in held.place:
        del state.caches.promises[lease]
    else:
        held.over = True


def _mode_chosen(state: State, event: ev.ModeChosen) -> None:
    job = state.jobs[event.job]
    history = [*job.caching.history, (event.epoch, event.kind)]
    job.caching = ModeOf(
        event.kind, event.node, event.slower, event.reason, event.epoch, event.undone, event.saves, history[-100:]
    )


def _point(state: State, place: str, writer: str) -> CachedPoint:
    point = state.caches.points.setdefault(place, CachedPoint(path=place.partition("@")[2]))
    point.writer = writer or point.writer
    return point


def _point_used(state: State, event: ev.PointUsed) -> None:
    point = _point(state, event.place, event.writer)
    point.label = event.label
    point.whole = event.whole or point.whole
    point.uses[event.job] = Use(event.saves, event.at)


def _blocks_published(state: State, event: ev.BlocksPublished) -> None:
    point = _point(state, event.place, event.writer)
    for block in event.blocks:
        point.blocks[block.name] = block
    held = state.caches.promises.get(event.lease)
    if held is not None:
        point.largest = max(point.largest, event.wanted, sum(block.bytes for block in event.blocks))
        held.room = 0
        if held.over:
            del state.caches.promises[event.lease]


def _blocks_given_up(state: State, event: ev.BlocksGivenUp) -> None:
    leases = [
        lease
        for lease, held in state.caches.promises.items()
        if not held.over and (held.place == event.place or event.place in held.also)
    ]
    point = state.caches.points[event.place]
    for name in event.names:
        point.going[name] = leases


def _blocks_deleted(state: State, event: ev.BlocksDeleted) -> None:
    point = state.caches.points[event.place]
    for name in event.names:
        point.blocks.pop(name, None)
        point.going.pop(name, None)
    if not point.blocks and not any(job in state.jobs for job in point.uses):
        del state.caches.points[event.place]


def _promises_kept(state: State, event: ev.PromisesKept) -> None:
    for lease in event.leases:
        held = state.caches.promises.get(lease)
        if held is not None and held.over:
            del state.caches.promises[lease]


def _store_calibrated(state: State, event: ev.StoreCalibrated) -> None:
    state.caches.costs[event.path] = event.cost


CACHE_APPLY: dict[type[msgspec.Struct], Callable[[State, Any], None]] = {
    ev.ModeChosen: _mode_chosen,
    ev.PointUsed: _point_used,
    ev.BlocksPublished: _blocks_published,
    ev.BlocksGivenUp: _blocks_given_up,
    ev.BlocksDeleted: _blocks_deleted,
    ev.PromisesKept: _promises_kept,
    ev.StoreCalibrated: _store_calibrated,
}
