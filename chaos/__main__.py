"""``python -m chaos``: faults in real processes, and a look at every element; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from chaos.child_processes import NotFiredError
from chaos.crew import GUARD_S, Crew
from chaos.faults import ALONE, DISKS, KINDS
from chaos.pipeline import CACHES, Expected, expect, is_kept, write_data
from chaos.reader import PLANTS, Options
from chaos.schedule import Fault, draw
from chaos.verdict import Verdict, judge

STALL_S = 2 * GUARD_S
"""Nobody has read anything for so long: it hangs."""
AT_ONCE = 8
"""Faults that are under way, at most."""
_GROUPS = 2
"""At a time, if jobs are members of groups."""
_DISK = "32m"
_THREADS = 32
_WIDTH = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it; returns the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is put away
    console = Console()
    if not console.is_terminal:
        console.width = _WIDTH  # a log gets whole lines
    folder = tempfile.mkdtemp(prefix="millrace-chaos-", dir=options.folder)
    work_dir, cache_disk = os.path.join(folder, "work"), os.path.join(folder, "cache")
    os.mkdir(work_dir)
    os.mkdir(cache_disk)
    console.print(
        f"seed {options.seed}: make chaos CHAOS='--seed {options.seed}' begins the same; logs in {folder}",
        highlight=False,
    )
    with _small_disk(work_dir) as small, _small_disk(cache_disk):
        if not small:
            console.print("no fault fills a disk: mounting a small one is not permitted here", style="yellow")
        left_out = (set() if small else DISKS) | (ALONE if options.members else set())
        weights = {kind: KINDS[kind][0] for kind in options.only or KINDS if kind not in left_out}
        schedule = draw(options.seed, options.faults, weights)
        crew = Crew(folder, work_dir, os.path.join(cache_disk, "blocks"), options.cache_mib << 20)
        run = Run(options, folder, crew, schedule, console)
        began = time.monotonic()
        asyncio.run(run.run())
        if options.keep or not run.fine:
            shutil.copytree(work_dir, os.path.join(folder, "kept"))  # the disk goes
    _show(run, time.monotonic() - began, console)
    if run.fine and not options.keep:
        shutil.rmtree(folder)
    return 0 if run.fine else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31), metavar="N", help="of the schedule")
    parser.add_argument("--faults", type=int, default=300, metavar="N", help="in all, by budget (default 300)")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), metavar="KIND", help="of: " + "; ".join(KINDS))
    parser.add_argument("--epochs", type=int, default=32, metavar="N", help="in all, over all jobs (default 32)")
    parser.add_argument("--consumers", type=int, nargs="+", default=[1, 3], metavar="N", help="of each job (1 3)")
    parser.add_argument(
        "--members",
        type=int,
        default=0,
        metavar="N",
        help="each job is read in lockstep by so many of one consumer each",
    )
    parser.add_argument(
        "--caches",
        nargs="+",
        default=["cache", "frozen", "auto", "cache"],
        choices=CACHES,
        metavar="C",
        help="of the jobs of both turns, where elements are kept: " + "; ".join(CACHES),
    )
    parser.add_argument("--cache-mib", type=int, default=12, metavar="N", help="that caches may take (default 12)")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="at a time (default 4)")
    parser.add_argument("--rows", type=int, default=4096, metavar="N", help="in the data (default 4096)")
    parser.add_argument("--pause", type=float, default=0.005, metavar="S", help="that an element takes (default 0.005)")
    parser.add_argument("--folder", metavar="DIR", help="where data, logs and journal go, in a folder of their own")
    parser.add_argument("--keep", action="store_true", help="keep that folder; it is kept anyway if something is wrong")
    parser.add_argument("--plant", default="", choices=list(PLANTS), help=argparse.SUPPRESS)  # for tests
    return parser


@contextlib.contextmanager
def _small_disk(path: str) -> Iterator[bool]:
    """Makes a folder a disk that is soon full, if that is permitted, and says so."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", path], check=False, capture_output=True
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", path], check=True)


class Job(NamedTuple):
    """A training.

    Attributes:
        consumers: how many read it.
        in_order: each reads in the plan's order.
        cache: see :data:`chaos.pipeline.CACHES`.
        member: which it is of which group, in words; "": it is read by itself.
    """

    consumers: int
    in_order: bool
    cache: str
    member: str = ""

    @property
    def name(self) -> str:
        """In words."""
        plural, order = "s" * (self.consumers > 1), " in order" * self.in_order
        return self.member + f"{self.consumers} consumer{plural}{order}, {self.cache}"


class Run:
    """One run, and what came of it.

    Attributes:
        fired: faults that were proven.
        missed: faults that were not, and why.
        failure: what ended the run before its time, empty if nothing did.
    """

    def __init__(
        self, options: argparse.Namespace, folder: str, crew: Crew, schedule: list[Fault], console: Console
    ) -> None:
        self.schedule = schedule
        self.fired: Counter[str] = Counter()
        self.missed: list[tuple[Fault, str]] = []
        self.verdicts: dict[str, Verdict] = {}
        self.failure = ""
        self._options, self._folder, self._console = options, folder, console
        self._crew = crew
        readers = [(place, consumers, "") for place, consumers in enumerate(options.consumers)]
        if options.members:
            members = range(options.members)
            readers = [(place, 1, f"group {place}, member {n}: ") for place in range(_GROUPS) for n in members]
        # Side by side jobs that are read in order and jobs that are not, and then the other way around.
        # In the first turn what is kept is different from job to job, in the second it is the same.
        self._phases = [
            [
                Job(
                    consumers, (place + turn) % 2 == 0, options.caches[(2 * turn + place) % len(options.caches)], member
                )
                for place, consumers, member in readers
            ]
            for turn in range(min(2, options.epochs // len(readers)))
        ]
        self.epochs = options.epochs // sum(map(len, self._phases))

    @property
    def fine(self) -> bool:
        """Whether all faults fired and every element is right."""
        looked_at = len(self.verdicts) == sum(map(len, self._phases))
        return not self.failure and not self.missed and looked_at and all(v.right for v in self.verdicts.values())

    async def run(self) -> None:
        """All of it."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        data = os.path.join(self._folder, "data")
        os.mkdir(data)
        pattern = write_data(data, self._options.rows)
        kinds = {job.cache for phase in self._phases for job in phase}
        expected = {cache: expect(pattern, self._options.rows, self.epochs, cache) for cache in kinds}
        try:
            await self._crew.start(self._options.workers)
            async with asyncio.TaskGroup() as group:
                guard = group.create_task(self._guard())
                faults = group.create_task(self._strike())
                for phase in self._phases:
                    await self._play(phase, pattern, expected)
                await faults
                guard.cancel()
        except* (NotFiredError, RuntimeError) as errors:
            self.failure = _words(errors)
        finally:
            await self._crew.close()

    async def _play(self, phase: list[Job], pattern: str, expected: dict[str, list[Expected]]) -> None:
        trainings = await self._crew.consume(
            [
                [
                    Options(
                        address=self._crew.address,
                        pattern=pattern,
                        pause_s=self._options.pause,
                        job=job.name,
                        consumers=job.consumers,
                        index=index,
                        deterministic=job.in_order,
                        epochs=self.epochs,
                        cache=job.cache,
                        sharing="lockstep" if job.member else "",
                        plant=self._options.plant,
                    )
                    for index in range(job.consumers)
                ]
                for job in phase
            ]
        )
        for job, training in zip(phase, trainings, strict=True):
            read = [reader.read for reader in training]
            self.verdicts[job.name] = judge(expected[job.cache], read, in_order=job.in_order)

    async def _strike(self) -> None:
        """Begins each fault when it is time, and waits for all."""
        elements = sum(map(is_kept, range(self._options.rows))) * self.epochs * sum(map(len, self._phases))
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for fault in self.schedule:
                await self._crew.reaches(fault.at * elements)
                self._crew.behind = room.locked()
                await room.acquire()
                self._crew.behind = False
                group.create_task(self._fault(fault)).add_done_callback(lambda _: room.release())
            self._crew.behind = True  # until the last ones are done, so that there is something left to disturb
        self._crew.behind = False

    async def _fault(self, fault: Fault) -> None:
        _, run = KINDS[fault.kind]
        began = time.monotonic()
        try:
            async with asyncio.timeout(2 * GUARD_S):
                seen = await run(self._crew, random.Random(fault.seed))
        except (NotFiredError, TimeoutError) as error:
            seen = str(error) or "it took too long"
            self.missed.append((fault, seen))
        else:
            self.fired[fault.kind] += 1
        self._note(f"{began:.3f} {time.monotonic():.3f} {fault.number} {fault.kind}: {seen}\n")

    def _note(self, line: str) -> None:
        with open(os.path.join(self._folder, "faults.log"), "a") as log:
            log.write(line)

    async def _guard(self) -> None:
        """Raises an error when nothing comes any more."""
        before = -1
        while self._crew.heard != before:
            before = self._crew.heard
            await asyncio.sleep(STALL_S)
        raise RuntimeError(f"nothing came for {STALL_S:.0f} s; the status: {await self._crew.status()}")


def _show(run: Run, seconds: float, console: Console) -> None:
    faults = Table("fault", box=SIMPLE)
    for heading in ("planned", "fired"):
        faults.add_column(heading, justify="right")
    planned = Counter(fault.kind for fault in run.schedule)
    for kind in KINDS:
        if planned[kind]:
            faults.add_row(kind, str(planned[kind]), str(run.fired[kind]))
    faults.add_row("together", str(planned.total()), str(run.fired.total()), style="bold")
    console.print(faults)

    found = Table("job", box=SIMPLE)
    names = [field.name for field in dataclasses.fields(Verdict)]
    for heading in names:
        found.add_column(heading, justify="right")
    together = sum(run.verdicts.values(), Verdict())
    for name, verdict in [*run.verdicts.items(), ("together", together)]:
        style = "red" if not verdict.right else "bold" if verdict is together else None
        found.add_row(name, *(f"{getattr(verdict, heading):,}" for heading in names), style=style)
    console.print(found)

    for fault, why in run.missed:
        reason = why.partition(";")[0]  # the rest is in the log
        console.print(f"did not fire: {fault.kind} (number {fault.number}): {reason}", markup=False, style="red")
    if run.failure:
        console.print(f"failed: {run.failure}", markup=False, style="red")
    console.print(f"{seconds:.0f} s; {'all is right' if run.fine else 'SOMETHING IS WRONG'}", highlight=False)


def _words(error: BaseException) -> str:
    """What went wrong, of a group each."""
    return "; ".join(map(_words, error.exceptions)) if isinstance(error, BaseExceptionGroup) else str(error)


if __name__ == "__main__":
    sys.exit(main())
