"""Many files: how long until the first batch, and what do the processes of the service weigh?

    python -m benchmarks.listing [--files N] [--folder DIR] [--quick] [--json FILE]

A tree of empty files, named as ImageNet's, is made and listed by a worker of a service with a journal; a training reads
them in a full shuffle. Meanwhile the status is asked how many files were listed so far. After some batches the
dispatcher is killed and started anew in its place, and the training goes on; then another one goes on from a state of
the first, and has to read what that one read after it.

``listing`` is the time until the status says that all files were looked at, ``first batch`` from there on;
``restart`` is the time from the kill to the next batch. Memory is the highest resident size that the kernel noted. The
exit status is 1 where an aim is missed: the first batch within ten seconds of the listing's end, dispatcher and worker
below 300 MB, a count that was seen to grow, the same batches after a restart and from a state.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.machine import machine
from benchmarks.memory import field_of
from millrace import Dataset
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import spawn

FILES = 1_300_000
EACH = 1300
"""Files of a folder."""
BATCH = 256
FIRST_BATCH_S = 10.0
MOST_BYTES = 300 * 10**6
JOB = "files"
_PAUSE_S = 0.1
_PART = 500
"""Batches that are read at most before a state, after it, and after the restart."""


def make_tree(folder: str, files: int) -> None:
    """So many empty files, in folders of :data:`EACH`."""
    for first in range(0, files, EACH):
        name = f"n{first // EACH:08}"
        os.mkdir(f"{folder}/{name}")
        for number in range(first, min(first + EACH, files)):
            os.mknod(f"{folder}/{name}/{name}_{number % EACH * 7}.JPEG")


def pipeline(folder: str, files: int) -> Dataset:
    """Names of all files, in a full shuffle."""
    return Dataset.from_files(f"{folder}/*/*.JPEG").map(_name).shuffle(files, seed=1).batch(BATCH)


def _name(file: Any) -> Any:
    return file["path"].rpartition("/")[2]


class Service:
    """A dispatcher with a journal, and a worker."""

    def __init__(self, work_dir: str) -> None:
        self._work_dir = work_dir
        self.address = ""
        self.dispatcher = self._start("0")
        self.worker = spawn(["worker", "--dispatcher", self.address], worker=True)

    def _start(self, port: str) -> subprocess.Popen[bytes]:
        arguments = ["dispatcher", "--port", port, "--work-dir", self._work_dir, "--local-workers", "0"]
        process = spawn([*arguments, "--heartbeat", "1"], worker=False, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as said:
            self.address = json.loads(said.readline())["address"]
        return process

    def restart(self) -> None:
        """The dispatcher is killed, and another begins where its journal ends."""
        self.dispatcher.kill()
        self.dispatcher.wait()
        self.dispatcher = self._start(self.address.rpartition(":")[2])

    def peaks(self) -> tuple[int, int]:
        """Highest resident bytes of dispatcher and worker."""
        dispatcher, worker = (field_of(f"/proc/{each.pid}/status", "VmHWM:") for each in (self.dispatcher, self.worker))
        return dispatcher, worker

    def close(self) -> None:
        """Ends both."""
        for process in (self.worker, self.dispatcher):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGTERM)
        for process in (self.worker, self.dispatcher):
            process.wait()


class Watch:
    """Asks for the status again and again until all files were looked at, or the plan is there."""

    def __init__(self, address: str, files: int) -> None:
        self.counts: list[int] = []
        self.ended = 0.0
        self._files = files
        self._address = address
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self.ended and not self._pause.wait(_PAUSE_S):
            for job in fetch_status(self._address)["jobs"]:
                if job["listed"] and job["listed"] not in self.counts[-1:]:
                    self.counts.append(job["listed"])
                if job["tasks"]["total"] is not None or job["listed"] == self._files:
                    self.ended = time.monotonic()

    def close(self) -> None:
        """Waits until it has seen the listing's end."""
        self._thread.join()


def batches(reading: Iterator[Any], count: int) -> list[list[str]]:
    """The next ones."""
    return [list(batch) for batch in itertools.islice(reading, count)]


def measure(folder: str, files: int) -> dict[str, Any]:
    """All figures; bytes and seconds."""
    tree, work_dir = os.path.join(folder, "tree"), os.path.join(folder, "work")
    os.mkdir(tree)
    began = time.monotonic()
    make_tree(tree, files)
    made_s = time.monotonic() - began
    service = Service(work_dir)
    try:
        began = time.monotonic()
        watch = Watch(service.address, files)
        options: dict[str, Any] = {"job_name": JOB, "deterministic": True, "num_consumers": 1, "consumer_index": 0}
        with pipeline(tree, files).distribute(service.address, **options) as data:
            reading = iter(data)
            first = batches(reading, 1)
            came = time.monotonic()
            watch.close()
            listed = service.peaks()
            blobs = [entry.stat().st_size for entry in os.scandir(os.path.join(work_dir, "blobs"))]
            part = min(_PART, files // BATCH // 4)
            first += batches(reading, part - 1)
            state = reading.state_dict()
            expected = batches(reading, part)
            before = service.peaks()
            killed = time.monotonic()
            service.restart()
            started = time.monotonic()
            more = batches(reading, 1)
            restarted = time.monotonic()
            more += batches(reading, part)
            after = service.peaks()
        names = [name for batch in [*first, *expected, *more] for name in batch]
        with pipeline(tree, files).distribute(service.address, **{**options, "job_name": "resumed"}) as data:
            data.load_state_dict(state)
            resumed = batches(iter(data), part)
        last = service.peaks()
    finally:
        service.close()
    return {
        "files": files,
        "made_s": made_s,
        "listing_s": watch.ended - began,
        "counts": watch.counts,
        "first_batch_s": max(came - watch.ended, 0.0),
        "restart_s": restarted - killed,
        "start_s": started - killed,
        "blob_bytes": max(blobs),
        "journal_bytes": os.path.getsize(os.path.join(work_dir, "journal.db")),
        "peaks": {
            name: {"dispatcher": dispatcher, "worker": worker}
            for name, (dispatcher, worker) in {
                "listed": listed,
                "read": before,
                "restarted": after,
                "resumed": last,
            }.items()
        },
        "each_once": len(set(names)) == len(names),
        "expected": len(expected),
        "resumed_alike": resumed == expected,
    }


def missed(found: dict[str, Any], *, timed: bool) -> list[str]:
    """The aims that were missed, in words; of the times only if they are to mean something."""
    heavy = {(role, peak) for peaks in found["peaks"].values() for role, peak in peaks.items() if peak >= MOST_BYTES}
    wrong = [f"the {role} took {peak / 1e6:.0f} MB" for role, peak in sorted(heavy)]
    if timed and found["first_batch_s"] > FIRST_BATCH_S:
        wrong.append(f"the first batch came {found['first_batch_s']:.1f} s after the listing")
    if found["counts"] != sorted(set(found["counts"])) or len(found["counts"]) < min(3, found["files"] // 200_000):
        wrong.append(f"the count of files was seen as {found['counts']}")
    if not found["each_once"]:
        wrong.append("a file came twice after the restart")
    if not found["resumed_alike"] or not found["expected"]:
        wrong.append("from the state other batches came than those read after it")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs and prints; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.listing", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=FILES, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--folder", metavar="DIR", help="where the tree is made, and removed")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the files, and no aim for times")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on, folder = machine(), tempfile.mkdtemp(prefix="millrace-listing-", dir=options.folder)
    try:
        found = measure(folder, options.files // 100 if options.quick else options.files)
    finally:
        shutil.rmtree(folder)
    wrong = missed(found, timed=not options.quick)
    print(f"{found['files']:,} files, made in {found['made_s']:.1f} s")
    for name in ("listing_s", "first_batch_s", "restart_s", "start_s"):
        print(f"{name.removesuffix('_s').replace('_', ' '):14}{found[name]:8.1f} s")
    print(f"{'counts seen':14}{len(found['counts']):8}, the last {max(found['counts'], default=0):,}")
    for name in ("blob_bytes", "journal_bytes"):
        print(f"{name.removesuffix('_bytes'):14}{found[name] / 1e6:8.1f} MB")
    for name, peaks in found["peaks"].items():
        print(f"{name:14}", *(f"{role} {peak / 1e6:.0f} MB" for role, peak in peaks.items()), sep="  ")
    print(*(f"MISSED: {each}" for each in wrong), sep="\n", end="\n" if wrong else "")
    if options.json:
        report = {
            "benchmark": "listing",
            "question": (__doc__ or "").splitlines()[0],
            "command": shlex.join(["python", "-m", "benchmarks.listing", *(arguments or sys.argv[1:])]),
            "machine": on,
            "results": found,
            "missed": wrong,
        }
        with open(options.json, "w") as file:
            json.dump(report, file, indent=2)
            file.write("\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
