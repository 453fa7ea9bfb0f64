"""A digest of a million items: what does it weigh, is it bound by the link, and what does a second one read?

    python -m benchmarks.digest [--files N] [--objects N] [--megabytes N] [--link MBIT] [--folder DIR] [--quick]
                                [--json FILE]

Three data sets. Larger objects lie in a real store (rclone's S3 server) behind a link of 200 Mbit/s: how much of it
does ``millrace digest`` use, beside the time in which it starts and lists? Many small ones lie in such a store: a
hundredth of them is replaced, and the digest made again. A million files lie on the disk, as a store that runs on the
same cores would take an hour for as many: what does the process hold? A proxy before the stores counts requests and
bytes, and is the link. Memory is the highest resident size that the kernel noted.

The exit status is 1 where an aim is missed: 300 MB in any process; each object read once, but for second
requests for slow ones; the second time those that were replaced and no other; nine tenths of the link used.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.far_store import BUCKET, FarStore, far_store
from benchmarks.listing import make_tree
from benchmarks.papers.report import answer

QUESTION = "What does a digest of a million items weigh, is it bound by the link, and what does a second one read?"
FILES, OBJECTS, QUICK = 1_000_000, 100_000, 2000
OBJECT_BYTES = 1024
EACH = 100
"""Objects of a folder; the store reads all of them to list it."""
MEGABYTES = 400
LARGE_BYTES = 256 << 10
LINK_MBIT = 200.0
ROUND_TRIP_S = 0.005
CHANGED = 0.01
MOST_BYTES = 300 * 10**6
LEAST_OF_LINK = 0.9
SECOND = 0.05
"""Requests that are made a second time, as the first is slow, at most."""
ANSWER_BYTES = 2048
"""Bytes of an answer beside the object, at most."""
_CHILD = """
import sys
from benchmarks.memory import field_of
from millrace.cli import main
status = main(sys.argv[1:])
print(field_of("/proc/self/status", "VmHWM:"))
sys.exit(status)
"""


def make_objects(folder: str, count: int, size: int) -> None:
    """So many files that differ, in folders of :data:`EACH`."""
    body = np.random.default_rng(0).bytes(size - 8)
    for first in range(0, count, EACH):
        os.makedirs(f"{folder}/{first // EACH:04}")
        for number in range(first, min(first + EACH, count)):
            write_object(folder, number, number, body)


def write_object(folder: str, number: int, content: int, body: bytes) -> None:
    """The file of a number, with a content that follows from another."""
    with open(f"{folder}/{number // EACH:04}/{number:07}.bin", "wb") as file:
        file.write(content.to_bytes(8, "little") + body)


def command(pattern: str, output: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Makes a digest: what the command says, and how long it took and what it held."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, "digest", pattern, "-o", output, "--json"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - began
    said, end = json.JSONDecoder().raw_decode(done.stdout)
    peak = int(done.stdout[end:])
    return {**said, "seconds": seconds, "peak_bytes": peak, "digest_bytes": os.path.getsize(output)}


def digest(store: FarStore, folders: int, output: str) -> dict[str, Any]:
    """Makes a digest of what is in the store, and counts."""
    store.link.reset()
    found = command(f"s3://{BUCKET}/{{0000..{folders - 1:04}}}/*", output, store.far)
    requests = store.link.requests - folders  # each folder is listed by one
    return {**found, "requests": requests, "sent_bytes": store.link.sent}


def on_disk(folder: str, count: int) -> dict[str, Any]:
    """A digest of a million files that are empty, as the disk is not what is measured, and of the same ones again."""
    tree, output = os.path.join(folder, "disk"), os.path.join(folder, "disk.digest")
    os.mkdir(tree)
    make_tree(tree, count)
    for place, _, names in os.walk(tree):
        for name in names:
            os.utime(os.path.join(place, name), (0, 0))  # what was just written is not taken to be known
    return {name: command(tree, output, {}) for name in ("first", "unchanged")}


def many(folder: str, count: int) -> dict[str, Any]:
    """A digest of many small objects, and another one when a hundredth was replaced."""
    tree, output, folders = os.path.join(folder, "many"), os.path.join(folder, "many.digest"), -(-count // EACH)
    make_objects(tree, count, OBJECT_BYTES)
    with far_store(tree, 0.0) as store:
        first = digest(store, folders, output)
        listing = digest(store, folders, output)
        body = np.random.default_rng(1).bytes(OBJECT_BYTES - 8)
        changed = np.random.default_rng(2).choice(count, max(1, int(count * CHANGED)), replace=False).tolist()
        for number in changed:
            write_object(tree, number, number, body)
        second = digest(store, folders, output)
    return {"store": store.server, "objects": count, "first": first, "unchanged": listing, "changed": second}


def large(folder: str, megabytes: int, mbit: float) -> dict[str, Any]:
    """A digest of larger objects behind a link, and the share of the link that it used."""
    count = max(1, megabytes * 10**6 // LARGE_BYTES)
    tree, output = os.path.join(folder, "large"), os.path.join(folder, "large.digest")
    make_objects(tree, count, LARGE_BYTES)
    with far_store(tree, ROUND_TRIP_S, mbit * 125_000) as store:
        found, again = (digest(store, -(-count // EACH), output) for _ in range(2))
    read_s, sent = found["seconds"] - again["seconds"], found["sent_bytes"] - again["sent_bytes"]
    return {"objects": count, "mbit": mbit, **found, "read_s": read_s, "of_link": sent / (mbit * 125_000 * read_s)}


def missed(found: Mapping[str, Any], *, timed: bool) -> list[str]:
    """The aims that were missed, in words; that of the link only if its time is to mean something."""
    small, wrong = found["many"], list[str]()
    for name, each in [*found["disk"].items(), *((name, small[name]) for name in ("first", "unchanged", "changed"))]:
        if each["peak_bytes"] >= MOST_BYTES:
            wrong.append(f"{name}: {each['files']:,} files took {each['peak_bytes'] / 1e6:.0f} MB")
    disk = [found["disk"][name]["read_files"] for name in ("first", "unchanged")]
    if disk != [found["disk"]["first"]["files"], 0]:
        wrong.append(f"of the disk {disk[0]} files were read, and then {disk[1]}")
    count, changed = small["objects"], max(1, int(small["objects"] * CHANGED))
    expected = {"first": count, "unchanged": 0, "changed": changed}
    for name, number in expected.items():
        each = small[name]
        right = number <= each["requests"] <= number + number * SECOND
        if each["read_files"] != number or not right or each["items"] != count:
            wrong.append(f"{name}: {each['read_files']} files were read by {each['requests']} requests, of {number}")
        beside = small["unchanged"]["sent_bytes"]
        if name != "unchanged" and each["sent_bytes"] - beside > number * (OBJECT_BYTES + ANSWER_BYTES):
            wrong.append(f"{name}: the store sent {each['sent_bytes'] / 1e6:.1f} MB")
    if timed and found["large"]["of_link"] < LEAST_OF_LINK:
        wrong.append(f"{found['large']['of_link']:.2f} of the link was used")
    return wrong


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures; bytes and seconds."""
    files, count, megabytes = (options.files, options.objects, options.megabytes)
    if options.quick:
        files, count, megabytes = QUICK, QUICK, 10
    with tempfile.TemporaryDirectory(prefix="millrace-digest-", dir=options.folder) as folder:
        found: dict[str, Any] = {
            "large": large(folder, megabytes, options.link),
            "disk": on_disk(folder, files),
            "many": many(folder, count),
        }
    found["missed"] = missed(found, timed=not options.quick)
    rows = {f"{name}, {which}": each for name in ("disk", "many") for which, each in found[name].items()}
    for name, each in {"large": found["large"], **rows}.items():
        if isinstance(each, dict):
            read, held = f"{each['files']:,} files, {each['read_files']:,} read", each["peak_bytes"] / 1e6
            if "requests" in each:
                read += f" by {each['requests']:,} requests, {each['sent_bytes'] / 1e6:,.1f} MB sent"
            print(f"{name:16} {read}, {each['seconds']:.1f} s, {held:.0f} MB held")
    print(f"{found['large']['of_link']:.2f} of the link was used")
    print(*(f"MISSED: {each}" for each in found["missed"]), sep="\n", end="\n" if found["missed"] else "")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and prints; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digest", description=QUESTION)
    parser.add_argument("--files", type=int, default=FILES, metavar="N", help="on the disk (default: %(default)s)")
    parser.add_argument("--objects", type=int, default=OBJECTS, metavar="N", help="small ones (default: %(default)s)")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, metavar="N", help="of larger ones, behind the link")
    parser.add_argument("--link", type=float, default=LINK_MBIT, metavar="MBIT", help="a second (default: %(default)s)")
    parser.add_argument("--folder", metavar="DIR", help="where the objects are made, and removed")
    parser.add_argument("--quick", action="store_true", help="few objects, and no aim for times")
    return 1 if answer(parser, measure, arguments)["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
