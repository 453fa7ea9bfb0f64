"""Can a tenant tell by a cache server's answers, or by the time that they take, what another tenant has read?

    python -m benchmarks.papers.strangers [--looks N] [--items N] [--json FILE]

A cache server, in a process of its own, keeps what tenant "owner" has inserted. Tenant "stranger" looks for what it has
no right to find, and for what nobody has, in random order:

- names: those of the owner's items, as the owner's workers send them ("overheard"), and as the server keeps them;
- hashes: those of the owner's items of which the second half is wrong, as who knows the whole of one knows the item,
  and is given it by intention;
- claims: names that the owner is about to fetch just then.

Immediately before each look the owner has read, or asked for, what the stranger then looks for; or something else,
where the stranger looks for what nobody has. So what the owner does is the same, and warm is what would be warm. All of
these looks must be answered alike: it is to be fetched. Times are from sending to the answer, and compared by ranks
(:mod:`benchmarks.two_samples`); each p-value is multiplied by the number of comparisons. The table says, too, which
difference would have been seen: so many microseconds, added to all looks of a row.

There are two controls. What the stranger has itself inserted is found. And the same looks for halves of hashes are made
at a server with a planted leak, whose index is in the order of hashes, as it was at first: the page is warm then on
which half of a hash leads to what the owner has just read.

It fails where an answer tells something, where a p-value is below 0.01, or where a control is not told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.report import answer, verdict
from benchmarks.two_samples import Sample, kolmogorov_smirnov, least_shift, mann_whitney
from millrace.protocol import source_cache_messages as msg
from millrace.wire.data.data_keys import source_key
from millrace.worker.source_cache import connect

QUESTION = "Can a tenant tell by the time of a cache server's answers what another tenant has read?"
OWNER, STRANGER = "owner", "stranger"
ITEM_BYTES, OWN_BYTES = 256, 16 << 10
OWN_ITEMS = 2000
"""Items that the stranger has itself inserted, at most."""
LEVEL = 0.01
_WARM_UP = 200
_SERVE, _PLANTED = "--serve", "--planted"


class Case(NamedTuple):
    """What the stranger looks for.

    Attributes:
        name: in tables.
        beside: what it is compared with; empty: it is what others are compared with.
        there: whether it is given.
        told: whether the stranger can tell it apart: a control.
        planted: whether the server has the planted leak.
    """

    name: str
    beside: str = ""
    there: bool = False
    told: bool = False
    planted: bool = False


NO_NAME, NO_HASH, NO_CLAIM = "a name that nobody has", "a hash that nobody has", "a name that nobody fetches"
OVERHEARD, KEPT, HALF = "a name that the owner has", "that name as the server keeps it", "half of a hash that is there"
FETCHED, OWN = "a name that the owner fetches", "a name of its own"
NO_HASH_PLANTED, HALF_PLANTED = f"{NO_HASH} (planted leak)", f"{HALF} (planted leak)"
CASES = (
    Case(NO_NAME),
    Case(OVERHEARD, NO_NAME),
    Case(KEPT, NO_NAME),
    Case(NO_HASH),
    Case(HALF, NO_HASH),
    Case(NO_CLAIM),
    Case(FETCHED, NO_CLAIM),
    Case(OWN, NO_NAME, there=True, told=True),
    Case(NO_HASH_PLANTED, planted=True),
    Case(HALF_PLANTED, NO_HASH_PLANTED, told=True, planted=True),
)


class Tenant:
    """A tenant's connection to a cache server, which asks for one item at a time.

    Args:
        address: of the server.
        secret: of the service.
        name: of the tenant.
    """

    def __init__(self, address: str, secret: bytes, name: str) -> None:
        self._connection = connect(address, name, source_key(secret, name.encode()), None)
        self._number = 0

    def ask(self, key: bytes) -> tuple[bool, int]:
        """Ask for a key, and wait for the answer: whether the item is there, and the nanoseconds that it took."""
        self._number += 1
        question = msg.AskItems([self._number], [key])
        began = time.perf_counter_ns()
        self._connection.send(question)
        header, _ = self._connection.receive(msg.CACHE_ANSWER)
        took = time.perf_counter_ns() - began
        if header.numbers != [self._number]:
            raise RuntimeError(f"another question was answered: {header}")
        return isinstance(header, msg.FoundItems), took

    def release(self, key: bytes) -> None:
        """Say that somebody else may fetch this, and wait until that was heard."""
        self._connection.send(msg.ReleaseItem(key))
        self.settle()

    def settle(self) -> None:
        """Wait until all that was sent has been heard."""
        self._connection.send(msg.AskItems([], []))
        self._connection.receive(msg.CACHE_ANSWER)

    def insert(self, key: bytes, data: bytes) -> None:
        """Have an item kept."""
        self._connection.send(msg.InsertItem(key), [data])

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def data_of(number: int, size: int = ITEM_BYTES) -> bytes:
    """Bytes of an item."""
    return hashlib.shake_128(f"item {number}".encode()).digest(size)


def name_of(number: int) -> bytes:
    """Key of where an item lies, as workers make it."""
    return msg.NAME + hashlib.sha256(f"place {number}".encode()).digest()


def hash_of(number: int) -> bytes:
    """Key of an item's content."""
    return msg.CONTENT + hashlib.sha256(data_of(number)).digest()


def kept_name_of(number: int) -> bytes:
    """Name of an item of the owner as it is in the server's index, as a key."""
    owner = OWNER.encode()
    return msg.NAME + hashlib.sha256(len(owner).to_bytes(4, "big") + owner + name_of(number)[1:]).digest()


def nobodys(kind: bytes) -> bytes:
    """Key of what nobody has."""
    return kind + secrets.token_bytes(32)


class Looks:
    """Looks of a stranger at a server that keeps an owner's items.

    Args:
        owner: has inserted items 0, 1, ... under their names.
        stranger: has inserted the items behind these, fewer and larger ones.
        items: of the owner.
    """

    def __init__(self, owner: Tenant, stranger: Tenant, items: int) -> None:
        self._owner, self._stranger, self._items = owner, stranger, items
        for number in range(items):
            owner.insert(name_of(number), data_of(number))
        for number in range(items, items + OWN_ITEMS):
            stranger.insert(name_of(number), data_of(number, OWN_BYTES))
        owner.settle()
        stranger.settle()

    def look(self, case: str, number: int) -> tuple[bool, int]:
        """Have the owner do what it does before, and look: whether it is there, and the nanoseconds.

        Args:
            case: of :data:`CASES`.
            number: of an item of the owner.
        """
        claimed = case in (NO_CLAIM, FETCHED)
        before = nobodys(msg.NAME) if claimed else name_of(number)
        there, _ = self._owner.ask(before)
        if there == claimed:
            raise RuntimeError("the owner does not find its items, or finds what nobody has")
        key = self._keys(number, before)[case]  # all are made each time, so that making them tells nothing
        found, took = self._stranger.ask(key)
        if not found:
            self._stranger.release(key)
        if claimed:
            self._owner.release(before)
        return found, took

    def _keys(self, number: int, before: bytes) -> dict[str, bytes]:
        half = hash_of(number)[:17] + secrets.token_bytes(16)
        return {
            NO_NAME: nobodys(msg.NAME),
            OVERHEARD: name_of(number),
            KEPT: kept_name_of(number),
            NO_HASH: nobodys(msg.CONTENT),
            HALF: half,
            NO_CLAIM: nobodys(msg.NAME),
            FETCHED: before,
            OWN: name_of(self._items + number % OWN_ITEMS),
            NO_HASH_PLANTED: nobodys(msg.CONTENT),
            HALF_PLANTED: half,
        }


@contextlib.contextmanager
def server(folder: str, secret: bytes, *, planted: bool) -> Iterator[str]:
    """Start a cache server of a folder, perhaps with the planted leak, and yield its address."""
    command = [sys.executable, "-m", "benchmarks.papers.strangers", _SERVE, folder, *([_PLANTED] if planted else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{secret.hex()}\n")
            process.stdin.flush()
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def serve(folder: str, *, planted: bool) -> None:
    """Serve until standard input ends; its first line is the secret."""
    from millrace.cache_server import item_server, item_store

    if planted:
        item_store._place_of = lambda content: content  # noqa: SLF001 - no other leak is known that could be planted
    secret = bytes.fromhex(sys.stdin.readline())
    with contextlib.closing(item_store.ItemStore(folder, 1 << 30, time.monotonic)) as store:
        serving = item_server.ItemServer("127.0.0.1", store, key_of=lambda tenant: source_key(secret, tenant))
        print(serving.address, flush=True)
        sys.stdin.read()
        serving.close()


def look_at(
    cases: Sequence[Case], looks: int, items: int, rng: np.random.Generator
) -> dict[str, list[tuple[bool, int]]]:
    """Look so often for each of some cases at one server, in random order; what :meth:`Looks.look` gives, by case."""
    secret = secrets.token_bytes(32)
    found: dict[str, list[tuple[bool, int]]] = {case.name: [] for case in cases}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-strangers-"))
        address = stack.enter_context(server(folder, secret, planted=cases[0].planted))
        owner, stranger = (
            stack.enter_context(contextlib.closing(Tenant(address, secret, name))) for name in (OWNER, STRANGER)
        )
        looking = Looks(owner, stranger, items)
        for number in range(_WARM_UP):
            looking.look(cases[number % len(cases)].name, number % items)
        turns = rng.permutation(np.repeat(np.arange(len(cases)), looks)).tolist()
        for turn, number in zip(turns, rng.integers(items, size=len(turns)).tolist(), strict=True):
            found[cases[turn].name].append(looking.look(cases[turn].name, number))
    return found


def compare(times: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """Compare the times of each case with those of what nobody has, in nanoseconds."""
    pairs = sum(bool(case.beside) for case in CASES)
    rows = []
    for case in CASES:
        taken = times[case.name]
        row: dict[str, Any] = {
            "case": case.name,
            "looks": len(taken),
            "percentiles_us": [round(float(each) / 1e3, 2) for each in np.percentile(taken, range(1, 100))],
        }
        if case.beside:
            other = times[case.beside]
            tests = {"Mann-Whitney": mann_whitney(taken, other), "Kolmogorov-Smirnov": kolmogorov_smirnov(taken, other)}
            row |= {"beside": case.beside, **{name: min(1.0, 2 * pairs * p) for name, p in tests.items()}}
            if not case.told:
                alike = taken - np.median(taken) + np.median(other)
                row["seen_from_us"] = least_shift(alike, other, LEVEL / 2 / pairs) / 1e3
        rows.append(row)
    return rows


def aims(rows: Sequence[Mapping[str, Any]], unlike: int) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it.

    Args:
        rows: what :func:`compare` found.
        unlike: answers that were not what they should be.
    """
    found = [{"aim": "answers that tell something", "value": unlike, "asked": 0, "met": unlike == 0}]
    told = {case.name: case.told for case in CASES}
    for row in rows:
        if "beside" in row:
            p = min(row["Mann-Whitney"], row["Kolmogorov-Smirnov"])
            apart = told[row["case"]]
            met, asked = (p < LEVEL, f"< {LEVEL:g}") if apart else (p > LEVEL, f"> {LEVEL:g}")
            found.append({"aim": f"{row['case']}: p that times are alike", "value": p, "asked": asked, "met": met})
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Looks and prints."""
    rng = np.random.default_rng(options.seed)
    seen: dict[str, list[tuple[bool, int]]] = {}
    for planted in (False, True):
        seen |= look_at([case for case in CASES if case.planted == planted], options.looks, options.items, rng)
    unlike = sum(there != case.there for case in CASES for there, _ in seen[case.name])
    rows = compare({name: np.array([took for _, took in found]) for name, found in seen.items()})
    table = [["the stranger asks for", "us, median", "10 % to 90 %", "compared with", "p", "seen from, us"]]
    for row in rows:
        at = row["percentiles_us"]
        cells = [f"{at[49]:.1f}", f"{at[9]:.1f} to {at[89]:.1f}"]
        if "beside" in row:
            p = min(row["Mann-Whitney"], row["Kolmogorov-Smirnov"])
            least = row.get("seen_from_us")
            cells += [row["beside"], f"{p:.2g}", "" if least is None else f"{least:.1f}"]
        table.append([row["case"], *cells, *[""] * (5 - len(cells))])
        print("  ".join(table[-1]), flush=True)
    return {
        "looks": options.looks,
        "items": options.items,
        "rounds": [{row["case"]: {"median_us": row["percentiles_us"][49]} for row in rows}],
        "results": rows,
        "table": table,
        "aims": aims(rows, unlike),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.strangers", description=QUESTION)
    parser.add_argument("--looks", type=int, default=20_000, help="of each kind")
    parser.add_argument("--items", type=int, default=30_000, help="that the owner has")
    parser.add_argument("--seed", type=int, default=0, help="of the order of looks")
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == [_SERVE]:
        serve(given[1], planted=_PLANTED in given)
        return 0
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
