"""Trainings that share a link and a cache, as flows: how fast each one is with what is kept, or with LRU.

A training takes as long for an item as its accelerators do, or as the item takes over the link, whichever is longer:
it reads ahead. Where it does so only in part, a share of the shorter time is added. The link is shared by max-min
fairness: nobody has less than another one unless it asks for less.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import msgspec


class Training(msgspec.Struct, frozen=True):
    """Training.

    Attributes:
        name: unique.
        data_set: that it reads, once an epoch, in a random order.
        item_bytes: bytes of an item.
        item_s: seconds of an item on all its accelerators.
        accelerators: number of them.
    """

    name: str
    data_set: str
    item_bytes: float
    item_s: float
    accelerators: int = 4

    @property
    def asks(self) -> float:
        """Bytes per second that it reads if it never waits."""
        return self.item_bytes / self.item_s


def fair_level(flows: Sequence[tuple[float, float]], link: float) -> float:
    """Bytes per second of a flow of weight 1 that would take more; infinite if all have what they ask for.

    Args:
        flows: bytes per second that each asks for, and its weight: the number of equal flows that it is.
        link: bytes per second of all.
    """
    left, weight = link, sum(each[1] for each in flows)
    for asks, part in sorted(flows, key=lambda each: each[0] / each[1]):
        if asks / part * weight > left:
            return left / weight
        left -= asks
        weight -= part
    return math.inf


class _Flow(msgspec.Struct, frozen=True):
    """Trainings that fetch for one another, or a single one.

    Attributes:
        group: of them; the fastest one fetches, and the others get what it has fetched.
        crosses: bytes of an item of each one that cross the link.
        ahead: share of reading that is hidden by computing, or the other way round.
        link: bytes per second of the whole link, more than which nobody has.
    """

    group: tuple[Training, ...]
    crosses: tuple[float, ...]
    ahead: float
    link: float

    def item_s(self, number: int, level: float) -> float:
        """Seconds of an item of one of them, if a flow of weight 1 has ``level`` bytes per second."""
        computing, crosses = self.group[number].item_s, self.crosses[number]
        reading = crosses / min(len(self.group) * level, self.link)
        return max(computing, reading) + (1 - self.ahead) * min(computing, reading)

    def takes(self, level: float) -> float:
        """Bytes per second of the link."""
        return max(each / self.item_s(number, level) for number, each in enumerate(self.crosses))


def _level(flows: Sequence[_Flow], link: float) -> float:
    """Bytes per second of a flow of weight 1, by bisection where reading is hidden in part only."""
    if all(flow.ahead == 1 for flow in flows):
        asked = [(flow.takes(math.inf), len(flow.group)) for flow in flows]
        return fair_level([each for each in asked if each[0] > 0], link)
    if sum(flow.takes(math.inf) for flow in flows) <= link:
        return math.inf
    low, high = 0.0, link
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(flow.takes(middle) for flow in flows) < link else (low, middle)
    return high


def speeds(
    trainings: Sequence[Training],
    link: float,
    *,
    ahead: float = 1.0,
    hits: Mapping[str, float] | None = None,
    chunks: Collection[str] = (),
    past: Collection[str] = (),
) -> dict[str, float]:
    """Items per second of each training.

    Args:
        trainings: all that share the link.
        link: its bytes per second.
        ahead: share of the shorter one of reading and computing that is hidden by the longer one.
        hits: by training, the share of its reads that the cache serves; a missing one has no hits.
        chunks: data sets whose trainings fetch for one another: what is no hit crosses the link once for all of them.
        past: trainings that read all from the store, alone.
    """
    missing = {each.name: 1.0 if each.name in past else 1 - (hits or {}).get(each.name, 0.0) for each in trainings}
    groups: dict[str, list[Training]] = {}
    for each in trainings:
        shares = each.data_set in chunks and each.name not in past
        groups.setdefault(f"shared {each.data_set}" if shares else f"alone {each.name}", []).append(each)
    flows = [
        _Flow(tuple(group), tuple(missing[each.name] * each.item_bytes for each in group), ahead, link)
        for group in groups.values()
    ]
    level = _level(flows, link)
    return {each.name: 1 / flow.item_s(number, level) for flow in flows for number, each in enumerate(flow.group)}


def throughput(found: Mapping[str, float], without: Mapping[str, float], trainings: Sequence[Training]) -> float:
    """Mean speed of accelerators over that without a cache (the measure of Quiver's Figure 6)."""
    total = sum(each.accelerators * found[each.name] / without[each.name] for each in trainings)
    return total / sum(each.accelerators for each in trainings)


# -- LRU ---------------------------------------------------------------------------------------------------------------


def lru_hits(
    trainings: Sequence[Training],
    sizes: Mapping[str, int],
    capacity: int,
    pace: Mapping[str, float],
    *,
    epochs: float = 2.0,
    seed: int = 1,
) -> dict[str, float]:
    """Share of each training's reads that an LRU cache serves which all share, by simulation.

    Args:
        trainings: they read at the pace given, each in a new random order every epoch.
        sizes: pieces of each data set. A piece stands for many items.
        capacity: pieces that the cache holds.
        pace: pieces per second of each training.
        epochs: of the slowest training that are counted; as many go before, and are not.
        seed: of the orders.
    """
    chance = random.Random(seed)
    kept: OrderedDict[tuple[str, int], None] = OrderedDict()
    orders = {each.name: list(range(sizes[each.data_set])) for each in trainings}
    reads, hits, counted = ({each.name: 0 for each in trainings} for _ in range(3))
    begin = epochs * max(sizes[each.data_set] / pace[each.name] for each in trainings)
    turns = [(chance.random() / pace[each.name], each.name, each.data_set) for each in trainings]
    heapq.heapify(turns)
    while turns[0][0] < 2 * begin:
        now, name, data_set = turns[0]
        order = orders[name]
        place = reads[name] % len(order)
        if not place:
            chance.shuffle(order)
        key = (data_set, order[place])
        if now >= begin:
            counted[name] += 1
            hits[name] += key in kept
        kept[key] = None
        kept.move_to_end(key)
        if len(kept) > capacity:
            kept.popitem(last=False)
        reads[name] += 1
        heapq.heapreplace(turns, (now + 1 / pace[name], name, data_set))
    return {name: hits[name] / counted[name] for name in counted}


ROUNDS = 6
"""Times that paces are computed from hits and hits from paces; the mean of the second half counts."""


def lru_speeds(
    trainings: Sequence[Training],
    link: float,
    sizes: Mapping[str, int],
    capacity: int,
    piece: float,
    *,
    ahead: float = 1.0,
) -> tuple[dict[str, float], dict[str, float]]:
    """Items per second of each training with an LRU cache, and the share of its reads that are hits.

    Hits make a training faster, and how fast it is decides how long what it read stays. So both are computed in turn.

    Args:
        trainings: all that share the link and the cache.
        link: its bytes per second.
        sizes: pieces of each data set.
        capacity: pieces that the cache holds.
        piece: bytes of a piece.
        ahead: as for :func:`speeds`.
    """
    hits = {each.name: 0.0 for each in trainings}
    later: list[dict[str, float]] = []
    for number in range(ROUNDS):
        found = speeds(trainings, link, ahead=ahead, hits=hits)
        pace = {each.name: found[each.name] * each.item_bytes / piece for each in trainings}
        new = lru_hits(trainings, sizes, capacity, pace, seed=number + 1)
        hits = {name: (hits[name] + new[name]) / 2 for name in hits}
        if 2 * number >= ROUNDS:
            later.append(new)
    hits = {name: sum(each[name] for each in later) / len(later) for name in hits}
    return speeds(trainings, link, ahead=ahead, hits=hits), hits
