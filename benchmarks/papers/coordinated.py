"""tf.data service's Figure 11: trainings on sequences, whose ranks wait in each step for the longest batch of it.

    python -m benchmarks.papers.coordinated [--ranks N ...] [--data DIR] [--sequences N] [--kill] [--json FILE]

Lengths are log-normal, or those of real recordings, as :mod:`benchmarks.packing` has them. Ranks are processes that
read one job; a step takes a rank time in proportion to the padded length of its batch (a wait), and all wait for the
slowest, as an all-reduce would. The same training reads padded batches, each rank its own, and coordinated rounds of
the buckets that ``suggest_buckets`` proposes. The bound follows from the lengths alone: what steps of random batches
take, of steps of batches that are sorted by length over the whole data. It fails where a training gains less than 0.9
of its bound, where ranks take different numbers of steps, and where a sequence comes twice, or more are left out than
may fill no round. With ``--kill`` a worker is killed in each epoch, and the rest is asked, but no speed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.machine import machine
from benchmarks.packing import Lengths, recordings
from benchmarks.papers.report import verdict, write
from benchmarks.papers.throttled import pause
from millrace import Dataset, LocalService
from millrace.client.status_query import fetch_status

QUESTION = "How much faster is a training on sequences whose ranks read batches of one length in each step?"
RANKS = (2, 4, 8)
BATCH = 8
BUCKETS = 20
LONGEST = 512
STEP_S = 0.040
"""Seconds of a step with batches of the mean length."""
LOG_MEAN, LOG_SIGMA = 4.0, 0.7
EPOCHS = 2
REACHED = 0.9
WAYS = ("padded", "coordinated")


def log_normal(count: int) -> Lengths:
    """Lengths as those of sentences are distributed."""
    drawn = np.exp(np.random.default_rng(0).normal(LOG_MEAN, LOG_SIGMA, count)).astype(np.int64) + 1
    return np.minimum(drawn, LONGEST)


def bound_of(lengths: Lengths, ranks: int) -> float:
    """Times by which steps get shorter if batches of a step are neighbours in length."""
    rounds = len(lengths) // (ranks * BATCH)
    taken = rounds * ranks * BATCH
    rng = np.random.default_rng(0)
    longest = statistics.mean(
        float(rng.permutation(lengths)[:taken].reshape(rounds, -1).max(axis=1).sum()) for _ in range(20)
    )
    ordered = np.sort(rng.permutation(lengths)[:taken]).reshape(rounds, -1).max(axis=1).sum()
    return float(longest / ordered)


def sequence(item: Any) -> Any:
    """A sequence of that length, of which each element is the sequence's number."""
    number, length = item
    return np.full(length, number, np.int64)


def sequences_of(lengths: Lengths) -> Dataset:
    """The training's sequences, shuffled."""
    items = [(number, int(length)) for number, length in enumerate(lengths)]
    return Dataset.from_list(items).shuffle(len(items), seed=1).map(sequence)


def pipeline(lengths: Lengths, way: str, boundaries: list[int]) -> Dataset:
    """The training's batches."""
    sequences = sequences_of(lengths)
    if way == "padded":
        return sequences.padded_batch(BATCH, padding_values=-1)
    sizes = [BATCH] * (len(boundaries) + 1)
    return sequences.bucket_by_sequence_length(len, boundaries, sizes, padding_values=-1)


def train(rank: int, told: dict[str, Any], barrier: Any, results: Any) -> None:
    """Runs a rank."""
    lengths = np.array(told["lengths"], np.int64)
    ranks, way = told["ranks"], told["way"]
    together = way == "coordinated"
    dataset = pipeline(lengths, way, told["boundaries"])
    per_token_s = STEP_S / float(lengths.mean())
    found = []
    try:
        with dataset.distribute(
            told["address"],
            job_name=f"{way}-{ranks}",
            num_consumers=ranks,
            consumer_index=rank,
            seed=1,
            coordinated=together,
            equal_steps=not together,
        ) as served:
            for _ in range(EPOCHS):
                steps = tokens = padded = 0
                numbers: list[int] = []
                batches = iter(served)
                barrier.wait(120)
                began = time.perf_counter()
                for batch in batches:
                    pause(per_token_s * batch.shape[1])
                    barrier.wait(120)
                    steps, padded = steps + 1, padded + batch.size
                    tokens += int((batch >= 0).sum())
                    numbers += batch[:, 0].tolist()
                seconds = time.perf_counter() - began
                found.append({"steps": steps, "tokens": tokens, "padded": padded, "seconds": seconds, "came": numbers})
    finally:
        results.put((rank, found))


def kill_in_each_epoch(address: str, processes: Sequence[Any]) -> int:
    """Kills a worker whenever another epoch is being read; returns how many."""
    killed: set[int] = set()
    while any(process.is_alive() for process in processes):
        status = fetch_status(address)
        epochs = {int(job["epoch"]) for job in status["jobs"] if job["epoch"] is not None}
        if epochs - killed and status["workers"]:
            killed |= epochs
            os.kill(int(status["workers"][0]["pid"]), signal.SIGKILL)
        processes[0].join(0.5)
    return len(killed)


def run(lengths: Lengths, ranks: int, way: str, *, kill: bool) -> dict[str, Any]:
    """A training of some epochs."""
    context = multiprocessing.get_context("spawn")
    with LocalService(min_workers=2, max_workers=2) as service:
        barrier, results = context.Barrier(ranks), context.Queue()
        boundaries = sequences_of(lengths).suggest_buckets(len, buckets=BUCKETS).boundaries
        told = {
            "lengths": lengths.tolist(),
            "boundaries": boundaries,
            "ranks": ranks,
            "way": way,
            "address": service.address,
        }
        processes = [
            context.Process(target=train, args=(rank, told, barrier, results), daemon=True) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        kills = kill_in_each_epoch(service.address, processes) if kill else 0
        found = dict(results.get(timeout=600) for _ in processes)
        for process in processes:
            process.join()
    if any(len(epochs) != EPOCHS for epochs in found.values()):
        raise RuntimeError("a rank failed")
    last = [epochs[-1] for epochs in found.values()]
    came = [sorted(number for epochs in found.values() for number in epochs[epoch]["came"]) for epoch in range(EPOCHS)]
    return {
        "seconds": max(each["seconds"] for each in last),
        "steps": sorted({each["steps"] for epochs in found.values() for each in epochs}),
        "tokens": sum(each["tokens"] for each in last),
        "padding": 1 - sum(each["tokens"] for each in last) / sum(each["padded"] for each in last),
        "twice": sum(len(each) - len(set(each)) for each in came),
        "left_out": [len(lengths) - len(each) for each in came],
        "kills": kills,
    }


def measure(cases: dict[str, Lengths], options: argparse.Namespace) -> dict[str, Any]:
    """Runs and prints."""
    rows = [["sequences", "ranks", "times as fast", "bound", "of it", "padding before", "after", "left out"]]
    if options.kill:
        rows = [["sequences", "ranks", "workers killed", "steps of a rank", "sequences that came twice", "left out"]]
    aims, results, figures = [], {}, {}
    for name, lengths in cases.items():
        for ranks in options.ranks:
            each = {way: run(lengths, ranks, way, kill=options.kill and way == "coordinated") for way in WAYS}
            before, after = (each[way] for way in WAYS)
            speeds = [found["tokens"] / found["seconds"] for found in (before, after)]
            faster, bound = speeds[1] / speeds[0], bound_of(lengths, ranks)
            case = f"{name}, {ranks} ranks"
            left, most = after["left_out"][-1] / len(lengths), BUCKETS * (ranks * BATCH - 1)
            row = [f"{faster:.2f}", f"{bound:.2f}", f"{faster / bound:.3f}"]
            row += [f"{before['padding']:.0%}", f"{after['padding']:.0%}"]
            if options.kill:
                row = [str(after["kills"]), " and ".join(map(str, after["steps"])), str(after["twice"])]
            rows.append([name, str(ranks), *row, f"{left:.1%}"])
            print("  ".join(rows[-1]), flush=True)
            results[case] = {**each, "bound": bound, "faster": faster}
            figures[case] = {"faster": faster, "of the bound": faster / bound}
            found = [
                ("of the bound", faster / bound, faster / bound >= REACHED, f">= {REACHED}"),
                ("different numbers of steps that ranks take", len(after["steps"]), len(after["steps"]) == 1, "1"),
                ("sequences that came twice", after["twice"], after["twice"] == 0, "0"),
                ("sequences left out", max(after["left_out"]), max(after["left_out"]) <= most, f"<= {most}"),
            ]
            if options.kill:
                found[0] = ("workers killed", after["kills"], after["kills"] >= EPOCHS, f">= {EPOCHS}")
            aims += [
                {"aim": f"{case}: {aim}", "value": value, "asked": asked, "met": met}
                for aim, value, met, asked in found
            ]
    modelled = "a rank's computing (a wait in proportion to padded length), and the all-reduce (a barrier)"
    return {"modelled": modelled, "rounds": [figures], "table": rows, "aims": aims, "results": results}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.coordinated", description=QUESTION)
    parser.add_argument("--ranks", nargs="+", type=int, default=list(RANKS), metavar="N")
    parser.add_argument(
        "--data", metavar="DIR", help="recordings, WAV files or archives of them; else only drawn lengths"
    )
    parser.add_argument("--sequences", type=int, default=6000, help="of drawn lengths (default 6000)")
    parser.add_argument("--kill", action="store_true", help="kills a worker in each epoch of the coordinated trainings")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    cases = {"log-normal": log_normal(options.sequences)}
    if options.data:
        cases["recordings"] = recordings(options.data).lengths
    on = machine()
    found = measure(cases, options)
    if options.kill:
        found["benchmark"] = "papers.coordinated_kills"
    write(options.json, "benchmarks.papers.coordinated", QUESTION, arguments, on, found)
    return verdict(found["aims"])


if __name__ == "__main__":
    sys.exit(main())
