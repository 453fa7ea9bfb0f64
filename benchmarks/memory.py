"""Resident memory while the consumer stands still: does every process keep to its bound, whatever an element weighs?

    python -m benchmarks.memory [--seconds S | --hours H] [--together] [--only WORD...] [--quick] [--json FILE]

A trainer reads a few elements of a pipeline (threads, a shuffle window, prefetches, batches) and then reads no more.
From then on the memory of each process is sampled: the trainer's, the worker's, the dispatcher's. The same pipeline
over next to no data says what they weigh without any; what is beyond that is compared with what may be held:

    trainer, in process   the pipeline's buffer_bytes, and one element in flight for each operator
    trainer, service      its buffer_bytes, and one element that the user holds
    worker                its buffer for outputs, the pipeline's buffer_bytes, one element for each operator, and the
                          trainer's buffer_bytes, as what the trainer was sent lies in memory that both share
    dispatcher            nothing

``held`` is the highest proportional set size (PSS) while standing still, with shared memory counted as the worker's;
``grew`` is its change from the second third of the samples to the last, ``peak`` the highest resident size that the
kernel noted at any time. A minute shows a buffer without a bound; ``--hours 1 --together``, which has all consumers
stand still at the same time and takes 10 GB, is for a slow leak. The exit status is 1 if a process held more than it
may.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.machine import machine
from millrace import Dataset

MIB = 1 << 20
WORKER_BYTES = 256 * MIB
"""What a worker keeps of outputs, its default."""

SIZES = {"1 B": 1, "1 KB": 1000, "1 MB": 10**6, "256 MB": 256 * 10**6}
ALLOWANCE = 0.25
"""Of a bound: pages that are only partly in use."""
SPARE = 8 * MIB
"""Modules that are loaded late, code that was compiled, stacks of threads."""
OPERATORS = 7
"""Of the pipeline; each may have an element in flight."""


@dataclass(frozen=True)
class Case:
    """One pipeline, and where it runs."""

    name: str
    size: int
    embedded: bool
    buffer_bytes: int
    batch: int

    def allowed(self, role: str) -> int:
        """Bytes beyond those of an empty pipeline that a process may hold."""
        element = self.size * self.batch
        flight = OPERATORS * element
        if role == "trainer":
            return self.buffer_bytes + (element if self.embedded else flight)
        return WORKER_BYTES + 2 * self.buffer_bytes + flight if role == "worker" else 0


def cases(buffer_bytes: int) -> Iterator[Case]:
    """All elements, in process and on an embedded service."""
    for embedded in (False, True):
        for label, size in SIZES.items():
            bound = max(buffer_bytes, 300 * MIB if size > buffer_bytes // 2 else 0)
            batch = max(1, min(64, bound // (8 * size)))
            yield Case(f"{label}, {'service' if embedded else 'in process'}", size, embedded, bound, batch)


# -- the trainer -------------------------------------------------------------------------------------------------------


def pipeline(case: Case, elements: int) -> Any:
    """Elements of the size, made one by one, through threads, a window, batches and prefetches."""
    size, each = case.size, max(1, min(1000, 10**6 // case.size))

    def make(_: Any) -> Any:
        return [bytes(size) for _ in range(each)]

    def touch(element: bytes) -> bytes:
        return bytes(bytearray(element))  # another object, so that what goes in and what comes out are both held

    return (
        Dataset.range(max(1, elements // each))
        .flat_map(make)
        .map(touch, num_parallel_calls=4)
        .shuffle(10**8, seed=1)
        .prefetch()
        .batch(case.batch)
        .prefetch()
        .with_options(buffer_bytes=case.buffer_bytes, seed=1)
    )


def trainer(case: Case, elements: int) -> None:
    """Reads one element, says so, and reads no more until standard input ends."""
    warnings.simplefilter("ignore")  # of a window that is smaller than asked for, which is what this is about
    dataset = pipeline(case, elements)
    if case.embedded:
        dataset = dataset.distribute(workers=1)
    reading = iter(dataset)
    held = next(reading)
    print("stands still", flush=True)
    sys.stdin.read()
    del held
    reading.close()
    if case.embedded:
        dataset.close()


# -- the observer ------------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """One process: bytes."""

    held: int = 0
    grew: int = 0
    peak: int = 0
    samples: list[int] = field(default_factory=list)


def tree(root: int) -> dict[int, str]:
    """Role of each process that descends from ``root``, by pid."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    parent = int(file.read().rsplit(b")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(entry))
    roles, waiting = {root: "trainer"}, list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        role = next((word for word in ("dispatcher", "worker") if word.encode() in words), "other")
        roles[pid] = role
    return roles


def field_of(path: str, name: str) -> int:
    """Bytes that a file of /proc gives in kB; 0 once the process has ended."""
    try:
        with open(path) as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(name)), 0)
    except OSError:
        return 0


def observe(case: Case, elements: int, seconds: float, every: float) -> dict[str, Seen]:
    """Starts a trainer and watches it; what each role holds, summed over its processes."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--trainer", json.dumps([asdict(case), elements])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    seen: dict[str, Seen] = {}
    try:
        if not process.stdout.readline():
            raise RuntimeError(f"{case.name}: the trainer ended with status {process.wait()}")
        ended = time.monotonic() + seconds
        pause = threading.Event()
        while True:
            now: dict[str, int] = {}
            for pid, role in tree(process.pid).items():
                all_of_it, shared = (field_of(f"/proc/{pid}/smaps_rollup", name) for name in ("Pss:", "Pss_Shmem:"))
                owner = "worker" if case.embedded else role
                now[role] = now.get(role, 0) + all_of_it - shared
                now[owner] = now.get(owner, 0) + shared
                each = seen.setdefault(role, Seen())
                each.peak = max(each.peak, field_of(f"/proc/{pid}/status", "VmHWM:"))
            for role, size in now.items():
                seen.setdefault(role, Seen()).samples.append(size)
            if time.monotonic() >= ended:
                break
            pause.wait(every)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
    for each in seen.values():
        third = max(1, len(each.samples) // 3)
        early, late = each.samples[third : 2 * third] or each.samples, each.samples[-third:]
        each.held = max(each.samples)
        each.grew = int(statistics.median(late) - statistics.median(early))
    return seen


def compare(case: Case, seconds: float) -> list[dict[str, Any]]:
    """A row of figures for each role: bytes."""
    # Of large elements even two would weigh something.
    few = case if case.size < MIB else Case(case.name, 1, case.embedded, case.buffer_bytes, 1)
    empty = observe(few, 2 * few.batch, 2.0, 0.5)
    rows = []
    for role, seen in observe(case, 10**12, seconds, max(0.5, seconds / 600)).items():
        base, bound = empty[role].held if role in empty else 0, case.allowed(role)
        rows.append(
            {
                "case": case.name,
                "role": role,
                "base": base,
                "bound": bound,
                "held": seen.held - base,
                "grew": seen.grew,
                "peak": seen.peak - base,
                "kept": seen.held - base <= bound * (1 + ALLOWANCE) + SPARE,
            }
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and prints; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each consumer stands still")
    parser.add_argument("--hours", type=float, help="the same in hours")
    parser.add_argument("--together", action="store_true", help="all consumers at the same time")
    parser.add_argument("--buffer-mib", type=int, default=256, metavar="N", help="with_options(buffer_bytes=)")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose names contain one of these")
    parser.add_argument("--quick", action="store_true", help="seconds, with a small buffer: shows that it runs")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.trainer:
        case, elements = json.loads(options.trainer)
        trainer(Case(**case), elements)
        return 0
    seconds = 3600 * options.hours if options.hours else 5.0 if options.quick else options.seconds
    on, rows = machine(), []
    print(f"{'MiB':32}{'empty':>8}{'bound':>8}{'held':>8}{'grew':>8}{'peak':>8}")
    chosen = [
        case
        for case in cases((32 if options.quick else options.buffer_mib) * MIB)
        if not options.only or any(word in case.name for word in options.only)
    ]
    with ThreadPoolExecutor(max(1, len(chosen)) if options.together else 1) as pool:
        for found in pool.map(compare, chosen, itertools.repeat(seconds)):
            for row in found:
                rows.append(row)
                figures = (f"{row[name] / MIB:8.0f}" for name in ("base", "bound", "held", "grew", "peak"))
                print(
                    f"{row['case']:20} {row['role']:11}", *figures, "" if row["kept"] else "  over", sep="", flush=True
                )
    if options.json:
        report = {
            "benchmark": "memory",
            "question": (__doc__ or "").splitlines()[0],
            "command": shlex.join(["python", "-m", "benchmarks.memory", *(arguments or sys.argv[1:])]),
            "machine": on,
            "seconds": seconds,
            "results": rows,
        }
        with open(options.json, "w") as file:
            json.dump(report, file, indent=2)
            file.write("\n")
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
