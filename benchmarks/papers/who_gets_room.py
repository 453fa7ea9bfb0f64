"""Quiver's Figure 6 as a model: who gets room in a cache that is too small for three data sets, and what it brings.

    python -m benchmarks.papers.who_gets_room [--json FILE]

Twelve trainings, four on each of ImageNet, OpenImages and LibriSpeech (154, 531 and 90 GB), share a link and a cache of
13, 26 or 90 % of the data. Our placement sees times and bytes of batches, and no more: at first all read past the
cache, and from then on each is probed alone under the placement that is in force, until nothing changes any more.
Beside it are no cache, LRU (simulated), Quiver's rule as its section 5.3 has it, and the best of all placements, which
is found by trying each one in the fluid model. The measure is the mean speed of accelerators over that without a cache.

The paper says neither how much the trainings read nor what the link carries. Both are inputs here, and varied: four
links, five triples of rates, and each assignment of these to the data sets; and trainings that read ahead, or whose
computing hides half of their reading. With all data in the cache the cluster then does 1 to 15 times as much as
without; 2.3 times in the paper.

LRU is to be beaten where trainings read ahead. Where they do so in part only, or the link is tighter than that, and
nine tenths of the data fit, no placement of three rooms is as good as keeping nine tenths of everything: how far LRU is
ahead there is counted, and so is what parts of data sets that stay would add.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.machine import machine
from benchmarks.papers.fluid_cache import Training, lru_speeds, speeds, throughput
from benchmarks.papers.report import verdict, write
from millrace.policies.caching.cache_budget import ROOMS, DataSetUse, JobTimes, Room, chunk_size, place
from millrace.policies.caching.cache_probe import believed_miss

QUESTION = "Who gets room in a cache that is too small for all, and how near is that to the best?"
GB, MB = 10**9, 10**6
SIZES = {"ImageNet": 154 * GB, "OpenImages": 531 * GB, "LibriSpeech": 90 * GB}
"""Bytes of the data sets (Quiver 7)."""
CACHES = (0.13, 0.26, 0.9)
"""Cache over all data: Quiver's 100, 200 and 700 GB of about 780."""
JOBS = 4
"""Trainings on each data set, with four accelerators each (Quiver 7.5)."""
LINKS = (250, 500, 1000, 1500)
"""MB per second of the link. An input: the paper has none."""
TIGHT = 100
"""MB per second of a link beyond what was aimed at: with all data in the cache 38 times as much is done as without."""
RATES = ((250, 125, 60), (250, 200, 150), (400, 100, 50), (120, 110, 100), (800, 120, 40))
"""MB per second that a training of each of the three models reads if it never waits. An input, too."""
ITEM = {"ImageNet": 120_000, "OpenImages": 300_000, "LibriSpeech": 320_000}
"""Bytes of an item. An input; only the times of batches depend on it, and no ratio does."""
BATCH = 512
"""Items of a batch (Quiver, Figure 4)."""
PIECE = 2 * GB
"""Bytes that LRU keeps or evicts at once in the simulation."""
DRAWN = 300
"""Further cases, drawn, beyond what was aimed at: rates, link and size of the cache."""
LIMIT = 12
"""Decisions after which a placement that still changes counts as one that does not settle."""
HALF = 0.5
"""Share of the shorter one of reading and computing that is hidden, where not all of it is."""
NOISE = 0.03
"""Largest error of a measured time with which a placement must not go back and forth."""
OF_BEST = 0.9
Rooms = Mapping[str, Room]


class Case(msgspec.Struct, frozen=True):
    """Trainings, their link and their cache.

    Attributes:
        rates: by data set, bytes per second of a training that never waits.
        link: bytes per second.
        cache: bytes.
        sizes: of the data sets, in bytes.
        ahead: share of the shorter one of reading and computing that the longer one hides.
    """

    rates: Mapping[str, float]
    link: float
    cache: int
    sizes: Mapping[str, int]
    ahead: float = 1.0

    def trainings(self) -> list[Training]:
        """All of them."""
        return [
            Training(f"{data_set} {number}", data_set, ITEM[data_set], ITEM[data_set] / rate)
            for data_set, rate in self.rates.items()
            for number in range(JOBS)
        ]

    def cost(self, rooms: Rooms) -> int:
        """Bytes that a placement takes."""
        return sum(_cost(self.sizes[data_set], room) for data_set, room in rooms.items())


def _cost(size: int, room: Room) -> int:
    return {"none": 0, "two chunks": 2 * chunk_size(size), "full": size}[room]


def with_rooms(case: Case, rooms: Rooms, past: Sequence[str] = ()) -> dict[str, float]:
    """Items per second of each training with a placement; those in ``past`` read past the cache."""
    trainings = case.trainings()
    hits = {each.name: 1.0 for each in trainings if rooms[each.data_set] == "full"}
    chunks = [data_set for data_set, room in rooms.items() if room == "two chunks"]
    return speeds(trainings, case.link, ahead=case.ahead, hits=hits, chunks=chunks, past=past)


def nothing(case: Case) -> dict[str, Room]:
    """The placement that keeps nothing."""
    return dict.fromkeys(case.rates, "none")


def gains(case: Case, rooms: Rooms) -> float:
    """Throughput of the cluster over that without a cache."""
    return throughput(with_rooms(case, rooms), with_rooms(case, nothing(case)), case.trainings())


def best(case: Case) -> tuple[float, dict[str, Room]]:
    """Throughput and rooms of the best placement, found by trying all."""
    tried = (dict(zip(case.rates, rooms, strict=True)) for rooms in itertools.product(ROOMS, repeat=len(case.rates)))
    fitting = [rooms for rooms in tried if case.cost(rooms) <= case.cache]
    found = [(gains(case, rooms), rooms) for rooms in fitting]
    return max(found, key=lambda each: each[0])


def best_of_parts(case: Case, steps: int = 10) -> float:
    """Throughput of the best of parts, too: any share of each data set stays, and chunks serve the rest if they fit.

    A part that stays serves its share of the reads. Shares are tried in steps, so that the true best may be a little
    more.
    """
    trainings, without = case.trainings(), with_rooms(case, nothing(case))
    most = 0.0
    for shares in itertools.product(range(steps + 1), repeat=len(case.rates)):
        part = {data_set: share / steps for data_set, share in zip(case.rates, shares, strict=True)}
        left = case.cache - sum(part[data_set] * case.sizes[data_set] for data_set in part)
        if left < 0:
            continue
        rest = [data_set for data_set in part if part[data_set] < 1]
        for count in range(len(rest) + 1):
            for chunks in itertools.combinations(rest, count):
                if sum(_cost(case.sizes[data_set], "two chunks") for data_set in chunks) > left:
                    continue
                hits = {each.name: part[each.data_set] for each in trainings}
                found = speeds(trainings, case.link, ahead=case.ahead, hits=hits, chunks=chunks)
                most = max(most, throughput(found, without, trainings))
    return most


class Settled(msgspec.Struct, frozen=True):
    """Placement that our policy came to.

    Attributes:
        rooms: the last ones.
        reasons: why, by data set.
        decisions: each that was made, as rooms by data set.
        stable: whether the last one changed nothing, and nothing that was measured was off.
    """

    rooms: Mapping[str, Room]
    reasons: Mapping[str, str]
    decisions: Sequence[Rooms]
    stable: bool


def settle(case: Case, noise: float = 0.0, seed: int = 1) -> Settled:
    """Measure and decide in turn until nothing changes, beginning with an empty cache.

    A data set without room is measured as it is; of one with room each training is probed alone, as they are in
    production (:mod:`millrace.policies.caching.cache_probe`). Hits take as long as the accelerators do. Every time that
    is measured is off by up to ``noise``; with noise it does not end before :data:`LIMIT` decisions.
    """
    chance = random.Random(seed)
    rooms: Rooms = nothing(case)
    trainings = case.trainings()
    miss_s: dict[str, float] = {}
    two_chunks_s: dict[str, float] = {}
    decisions: list[Rooms] = []
    reasons: dict[str, str] = {}

    def batch_s(items_s: float) -> float:
        return BATCH / items_s * (1 + chance.uniform(-noise, noise))

    for _ in range(LIMIT):
        now = with_rooms(case, rooms)
        for each in trainings:
            if rooms[each.data_set] == "none":
                miss_s[each.name] = believed_miss(batch_s(now[each.name]), JOBS, JOBS)
                continue
            probed = batch_s(with_rooms(case, rooms, past=[each.name])[each.name])
            miss_s[each.name] = believed_miss(probed, 1, JOBS, miss_s[each.name])
            if rooms[each.data_set] == "two chunks":
                two_chunks_s[each.name] = batch_s(now[each.name])
        uses = []
        for data_set, size in case.sizes.items():
            jobs = tuple(
                JobTimes(
                    each.accelerators,
                    miss_s[each.name],
                    batch_s(1 / each.item_s),
                    two_chunks_s.get(each.name),
                    BATCH * each.item_bytes,
                )
                for each in trainings
                if each.data_set == data_set
            )
            uses.append(DataSetUse(data_set, size, jobs))
        decided = place(uses, case.cache, rooms)
        new = {data_set: decided[data_set].value for data_set in case.rates}
        decisions.append(new)
        reasons = {data_set: decided[data_set].reason for data_set in case.rates}
        if new == rooms and not noise:
            return Settled(rooms, reasons, decisions, stable=True)
        rooms = new
    return Settled(rooms, reasons, decisions, stable=False)


def returns(case: Case, noise: float) -> int:
    """Number of decisions by noisy times that go back to a placement which an earlier one had left."""
    decisions = settle(case, noise).decisions
    return sum(
        decision != before and decision in decisions[:number]
        for number, (before, decision) in enumerate(itertools.pairwise(decisions))
    )


def lru(case: Case) -> float:
    """Throughput of the cluster with LRU."""
    sizes = {data_set: size // PIECE for data_set, size in case.sizes.items()}
    found, _ = lru_speeds(case.trainings(), case.link, sizes, case.cache // PIECE, PIECE, ahead=case.ahead)
    return throughput(found, with_rooms(case, nothing(case)), case.trainings())


def cases(
    links: Sequence[int] = LINKS,
    rates: Sequence[tuple[int, ...]] = RATES,
    orders: int | None = None,
    ahead: float = 1.0,
) -> list[Case]:
    """The grid; with ``orders`` that many assignments of rates to data sets."""
    return [
        Case(
            {data_set: rate * MB for data_set, rate in zip(SIZES, order, strict=True)},
            link * MB,
            round(share * sum(SIZES.values())),
            SIZES,
            ahead,
        )
        for link in links
        for triple in rates
        for order in list(itertools.permutations(triple))[:orders]
        for share in CACHES
    ]


def quiver(case: Case) -> dict[str, Room]:
    """Rooms by Quiver's rule: the most accelerators (``n * b``) per byte first, of jobs whose times differ.

    What has two chunks and comes up once more, as a whole, is given the rest of it.
    """
    now, rooms = with_rooms(case, nothing(case)), nothing(case)
    ratios: list[tuple[float, str, Room]] = []
    for each in case.trainings()[::JOBS]:
        benefit = 1 / now[each.name] / each.item_s
        gained: dict[Room, float] = {"two chunks": min(benefit, JOBS), "full": benefit}
        for room, gain in gained.items():
            if benefit >= 1.05:
                ratios.append((gain / _cost(case.sizes[each.data_set], room), each.data_set, room))
    for _, data_set, room in sorted(ratios, reverse=True):
        larger: dict[str, Room] = {**rooms, data_set: room}
        if ROOMS.index(room) > ROOMS.index(rooms[data_set]) and case.cost(larger) <= case.cache:
            rooms = larger
    return rooms


# -- what is found -----------------------------------------------------------------------------------------------------


def compared(case: Case, *, simulated: bool = True) -> dict[str, Any]:
    """Throughput of the cluster by policy, and what ours decided."""
    ours = settle(case)
    most, rooms = best(case)
    return {
        "link": case.link,
        "cache": case.cache,
        "rates": dict(case.rates),
        "all_cached": gains(case, dict.fromkeys(case.rates, "full")),
        "lru": lru(case) if simulated else None,
        "quiver": gains(case, quiver(case)),
        "millrace": gains(case, ours.rooms),
        "best": most,
        "rooms": dict(ours.rooms),
        "best_rooms": rooms,
        "reasons": dict(ours.reasons),
        "decisions": len(ours.decisions),
        "stable": ours.stable,
    }


def drawn(count: int, seed: int = 1) -> list[Case]:
    """Cases that nobody chose: rates from 40 to 800 MB/s, links from 100 to 2,000, caches from 5 to 100 %."""
    chance = random.Random(seed)
    return [
        Case(
            {data_set: 40 * 20 ** chance.random() * MB for data_set in SIZES},
            100 * 20 ** chance.random() * MB,
            round(chance.uniform(0.05, 1) * sum(SIZES.values())),
            SIZES,
        )
        for _ in range(count)
    ]


def envied() -> tuple[int, int]:
    """Placements in which a data set has less room than one whose jobs are less hungry, and how many were looked at.

    All data sets have one size here, so that nothing but hunger tells them apart.
    """
    found = tried = 0
    for link, rates in itertools.product((TIGHT, *LINKS), RATES):
        for order in itertools.permutations(rates):
            for cache in range(20, 480, 20):
                wants = {data_set: rate * MB for data_set, rate in zip(SIZES, order, strict=True)}
                case = Case(wants, link * MB, cache * GB, dict.fromkeys(SIZES, 150 * GB))
                rooms = settle(case).rooms
                levels = [ROOMS.index(rooms[data_set]) for data_set in sorted(wants, key=wants.__getitem__)]
                found += levels != sorted(levels)
                tried += 1
    return found, tried


def alone() -> list[dict[str, Any]]:
    """What a single training gets whose data set is larger than the cache, beside eight that share two others."""
    found, single = [], "OpenImages"
    for link, share in itertools.product(LINKS, CACHES[:2]):
        cache = round(share * sum(SIZES.values()))
        case = Case(dict.fromkeys(SIZES, 250 * MB), link * MB, cache, SIZES)
        trainings = [each for each in case.trainings() if each.data_set != single or each.name == f"{single} 0"]
        now = speeds(trainings, case.link)
        times = {each: JobTimes(each.accelerators, BATCH / now[each.name], BATCH * each.item_s) for each in trainings}
        uses = [
            DataSetUse(data_set, size, tuple(times[each] for each in trainings if each.data_set == data_set))
            for data_set, size in SIZES.items()
        ]
        decision = place(uses, cache)[single]
        found.append({"link": case.link, "cache": cache, "room": decision.value, "reason": decision.reason})
    return found


def worst(rows: Sequence[Mapping[str, Any]], over: str) -> float:
    """Least throughput of ours over another's, where that was simulated."""
    return min(round(float(row["millrace"] / row[over]), 6) for row in rows if row[over] is not None)


def aims(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    rows, half = found["results"], found["half"]
    given = sum(row["room"] != "none" for row in found["alone"])
    restless = sum(not row["stable"] for row in (*rows, *half))
    return [
        _aim("throughput over the best placement's, at worst", worst(rows, "best"), f">= {OF_BEST}", OF_BEST),
        _aim("the same where half of reading is hidden", worst(half, "best"), f">= {OF_BEST}", OF_BEST),
        _aim("throughput over LRU's, at worst", worst(rows, "lru"), ">= 1", 1),
        _aim("placements with less room for the hungrier of equal data sets", found["envied"][0], "0"),
        _aim("rooms for a single training whose data set is larger than the cache", given, "0"),
        _aim("placements that do not settle", restless, "0"),
        _aim(f"decisions back to an earlier placement, with times off by {NOISE:.0%}", found["returns"], "0"),
    ]


def _aim(aim: str, value: float, asked: str, least: float | None = None) -> dict[str, Any]:
    met = value == 0 if least is None else value >= least
    return {"aim": aim, "value": value, "asked": asked, "met": met}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs and prints."""
    rows = [compared(case) for case in cases()[:: options.every]]
    half = [
        compared(case, simulated=number % len(CACHES) == number % (6 * len(CACHES)))
        for number, case in enumerate(cases(ahead=HALF))
        if not number % options.every
    ]
    serial = [compared(case, simulated=False) for case in cases(ahead=0.0)[:: options.every]]
    tight = [compared(case) for case in cases((TIGHT,))[:: options.every]]
    others = [compared(case, simulated=False) for case in drawn(options.drawn)]
    table = [["link, MB/s", "cache", "all in the cache", "LRU", "Quiver's rule", "millrace", "best", "worst of best"]]
    for link, share in itertools.product((TIGHT, *LINKS), CACHES):
        cache = round(share * sum(SIZES.values()))
        mine = [row for row in (*tight, *rows) if (row["link"], row["cache"]) == (link * MB, cache)]
        if mine:
            means = [statistics.fmean(row[name] for row in mine) for name in _COLUMNS]
            ratio = worst(mine, "best")
            label = f"{link} (not aimed at)" if link == TIGHT else str(link)
            table.append([label, f"{share:.0%}", *(f"{mean:.2f}" for mean in means), f"{ratio:.3f}"])
    parts = [
        {"link": case.link, "cache": case.cache, "best": best(case)[0], "parts": best_of_parts(case)}
        for case in cases(rates=RATES[:1], orders=1)
    ]
    inputs = {
        "links_mb_s": LINKS,
        "rates_mb_s": RATES,
        "item_bytes": ITEM,
        "batch_items": BATCH,
        "accelerators_of_a_training": 4,
        "lru_piece_bytes": PIECE,
        "hidden_shares": (1.0, HALF),
        "tight_link_mb_s": TIGHT,
        "jobs_of_a_data_set": JOBS,
    }
    found: dict[str, Any] = {
        "modelled": "trainings, link and cache, as flows; LRU is simulated over pieces of 2 GB",
        "inputs": inputs,
        "table": table,
        "envied": envied(),
        "alone": alone(),
        "returns": sum(returns(case, NOISE) for case in cases()[:: options.every]),
        "worst": {
            "of the best": worst(rows, "best"),
            "of LRU": worst(rows, "lru"),
            "of Quiver's rule": worst(rows, "quiver"),
            "half hidden, of the best": worst(half, "best"),
            "half hidden, of LRU": worst(half, "lru"),
            "nothing hidden, of the best": worst(serial, "best"),
            "tight link, of the best": worst(tight, "best"),
            "tight link, of LRU": worst(tight, "lru"),
            "tight link, the best of LRU": min(row["best"] / row["lru"] for row in tight),
            "drawn, of the best": worst(others, "best"),
            "the best, of the best with parts": min(row["best"] / row["parts"] for row in parts),
        },
        "parts": parts,
        "results": rows,
        "half": half,
        "serial": serial,
        "tight": tight,
        "drawn": others,
    }
    for line in table:
        print("  ".join(f"{cell:>22}" for cell in line))
    for name, value in found["worst"].items():
        print(f"worst {name}: {value:.3f}")
    shown = {name: _shortest(found[name]) for name in ("half", "serial", "tight", "drawn")}
    told = [row if row["millrace"] < 0.999 * row["best"] else {**row, "reasons": None} for row in rows]
    return {**found, **shown, "results": told, "aims": aims(found)}


def _shortest(rows: Sequence[Mapping[str, Any]], count: int = 10) -> list[Mapping[str, Any]]:
    """Rows in which ours falls shortest of the best placement."""
    return sorted(rows, key=lambda row: float(row["millrace"] / row["best"]))[:count]


_COLUMNS = ("all_cached", "lru", "quiver", "millrace", "best")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.who_gets_room", description=QUESTION)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="takes each Nth case only (default 1)")
    parser.add_argument("--drawn", type=int, default=DRAWN, metavar="N", help=f"cases to draw (default {DRAWN})")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on = machine()
    found = measure(options)
    write(options.json, "benchmarks.papers.who_gets_room", QUESTION, arguments, on, found)
    return verdict(found["aims"])


if __name__ == "__main__":
    sys.exit(main())
