"""Training straight from a bucket: how many samples a second, from a cold start and in the second epoch, beside peers.

    python -m benchmarks.bucket [--samples N] [--rounds N] [--only NAME ...] [--envs DIR] [--json FILE]

The same pictures lie in a real store behind an emulated link (200 Mbit/s, 50 ms by default): one by one, in the shards
of ``millrace pack``, and in those of MosaicML Streaming and of LitData; all shards have a megabyte. Each reader decodes
every picture in two workers, and keeps what it has read on the local disk if it can. Contestants take turns, each in a
process and, if it isn't millrace, in an environment of its own, which is made on first use. The link is a model; the
store, the libraries and the disk are not.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.bucket_readers import PREPARED, READERS, SHARD_BYTES
from benchmarks.far_store import FarStore, far_store
from benchmarks.machine import machine
from benchmarks.papers.report import write

QUESTION = "How many samples a second does a training get straight from a bucket?"
SIDE = 64
BATCH = 50
WORKERS = 2
EPOCHS = 2
LIMIT_S = 900.0
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bucket_readers.py")
OURS = "millrace"


def make_pictures(folder: str, count: int) -> int:
    """Writes pictures of several kilobytes; returns their bytes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    os.makedirs(folder)
    total = 0
    for number in range(count):
        path = os.path.join(folder, f"{number:06d}.jpg")
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)).save(path, quality=90)
        total += os.path.getsize(path)
    return total


def environment_of(name: str, folder: str) -> str:
    """The interpreter of an environment that has what a reader needs, made if it isn't there.

    Packages that it doesn't ask for itself, torch above all, are this interpreter's.
    """
    packages = READERS[name][1]
    if not packages:
        return sys.executable
    place = os.path.join(folder, packages[0].partition("=")[0])
    python, done = os.path.join(place, "bin", "python"), os.path.join(place, "installed")
    if not os.path.exists(done):
        print(f"  installs {' '.join(packages)}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        libraries = sysconfig.get_path("purelib", vars={"base": place, "platbase": place})
        with open(os.path.join(libraries, "zz-shared.pth"), "w") as file:
            file.write(sysconfig.get_path("purelib") + "\n")
        # The torch that is there: another one may bring gigabytes of CUDA libraries with it.
        torch = f"torch=={importlib.metadata.version('torch')}"
        subprocess.run([python, "-m", "pip", "install", "--quiet", torch, *packages], check=True)
        with open(done, "w") as file:
            file.write(" ".join(packages))
    return python


def prepare(folder: str, names: Sequence[str], envs: str) -> None:
    """Writes the shards of all who have some."""
    raw, packed = os.path.join(folder, "raw", "*.jpg"), os.path.join(folder, "packed")
    pack = [sys.executable, "-m", "millrace", "pack", raw, packed, "--shard-bytes", str(SHARD_BYTES), "--seed", "0"]
    subprocess.run(pack, check=True)
    for name in names:
        if name in PREPARED:
            command = [environment_of(name, envs), SCRIPT, "prepare", name, folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run(name: str, store: FarStore, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a reader found, from a cold start."""
    with tempfile.TemporaryDirectory(prefix="millrace-bucket-") as scratch:
        told = {"samples": options.samples, "batch": BATCH, "workers": WORKERS, "epochs": EPOCHS}
        command = [
            environment_of(name, options.envs),
            SCRIPT,
            name,
            json.dumps({**told, "scratch": scratch, "folder": folder}),
        ]
        store.link.reset()
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={**os.environ, **store.far, "HOME": scratch},
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
        cold, second = json.loads(done.stdout.splitlines()[-1])
        for epoch in (cold, second):
            if epoch["samples"] != options.samples:
                print(f"  {name}: an epoch had {epoch['samples']} samples of {options.samples}")
        return {
            "cold": cold["samples"] / cold["seconds"],
            "second": second["samples"] / second["seconds"],
            "first batch": cold["first"],
            "samples": cold["samples"],
            "store": store.server,
            "requests": store.link.requests,
            "sent": store.link.sent,
        }


def run_each(names: Sequence[str], store: FarStore, folder: str, options: argparse.Namespace) -> dict[str, Any]:
    """What each reader found; who fails is named and left out."""
    found: dict[str, Any] = {}
    for name in names:
        try:
            mine = found[name] = run(name, store, folder, options)
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(f"  failed: {error}", flush=True)
            continue
        print(
            f"  {name:44} {mine['cold']:8.0f} samples/s cold, {mine['second']:8.0f} in the second epoch,"
            f" first batch {mine['first batch']:.2f} s, {mine['requests']} requests",
            flush=True,
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bucket", description=QUESTION)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-ms", type=float, default=50.0, help="round trip of the link")
    parser.add_argument("--mbit", type=float, default=200.0, help="of the link")
    parser.add_argument("--only", nargs="+", choices=READERS, default=list(READERS), metavar="NAME")
    parser.add_argument("--envs", default=os.path.expanduser("~/.cache/millrace-bench"), metavar="DIR")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on = machine()
    rounds: list[dict[str, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(prefix="millrace-bucket-") as root:
        folder = os.path.join(root, "bucket")
        size = make_pictures(os.path.join(folder, "raw"), options.samples)
        prepare(folder, options.only, options.envs)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            rounds.append({})
            for raw in (True, False):  # rclone is faster with whole objects, and has no parts
                names = [name for name in options.only if ("raw" in name) is raw]
                if not names:
                    continue
                with far_store(folder, options.delay_ms / 1e3, options.mbit * 1e6 / 8, parts=not raw) as store:
                    rounds[-1] |= run_each(names, store, folder, options)
    link = size / (options.mbit * 1e6 / 8)
    print(f"the link alone: {options.samples / link:.0f} samples/s")
    missed = _missed(rounds)
    table = [["", "samples/s, cold", "samples/s, second epoch", "first batch, s", "requests"]]
    for name in options.only:
        mine = [each[name] for each in rounds if name in each]
        if mine:
            values = (
                statistics.median(each[key] for each in mine) for key in ("cold", "second", "first batch", "requests")
            )
            table.append([name, *(f"{value:.4g}" for value in values)])
    report = {
        "modelled": "the link (a proxy)",
        "link": {"samples_per_s": options.samples / link, "delay_ms": options.delay_ms, "mbit": options.mbit},
        "rounds": rounds,
        "table": table,
        "missed": missed,
    }
    write(options.json, "benchmarks.bucket", QUESTION, arguments, on, report)
    if missed:
        print(f"not ahead of: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _missed(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Who is ahead of millrace, raw objects beside raw objects, shards beside shards: medians of ratios."""
    missed = []
    for peer in READERS:
        if peer.startswith(OURS):
            continue
        raw = peer.endswith("raw objects")
        for key in ("cold", "second"):
            ours = [
                [each[name][key] for name in each if name.startswith(OURS) and ("raw" in name) == raw]
                for each in rounds
            ]
            ratios = [
                max(mine) / each[peer][key] for mine, each in zip(ours, rounds, strict=True) if mine and peer in each
            ]
            if ratios and statistics.median(ratios) < 1:
                missed.append(f"{peer}, {key}: {statistics.median(ratios):.2f}")
    return missed


if __name__ == "__main__":
    sys.exit(main())
