"""Sequences of very different lengths: how much is padding, and what does it cost to have less?

    python -m benchmarks.packing [--data DIR] [--sequences N] [--rounds N] [--quick] [--json FILE]

The same sequences, shuffled, are put together in four ways: padded to one length, padded to the longest of each batch,
in buckets of similar lengths, and packed; and packed by Grain, where that is installed, with as many open rows and no
threads, with which it is fastest here. Lengths are log-normal, as those of documents are; with ``--data`` also those
of recordings, in frames of 10 ms, from the WAV files in a folder or in archives (``.tar``, ``.tar.gz``) there.

Ways take turns, round after round, in one process, without what a service adds: each reads whole epochs, and makes its
tokens from nothing, so that what is measured is the putting together. ``padding`` is the share of tokens that a model
would compute for nothing. ``shapes`` counts the shapes of batches, for each of which a compiled model is compiled.
"""

from __future__ import annotations

import argparse
import functools
import glob
import importlib.util
import io
import os
import statistics
import sys
import tarfile
import time
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.harness import INSTALL
from benchmarks.machine import machine
from benchmarks.papers.report import verdict, write
from millrace import Dataset
from millrace.graph.nodes import PACKING_WINDOW

Tokens = npt.NDArray[Any]
Lengths = npt.NDArray[np.int64]

QUESTION = "How much of the batches of sequences is padding, and what does putting them together cost?"
SEQUENCES, QUICK = 40_000, 400
ROUNDS = 5
MEDIAN, SIGMA, LONGEST = 256, 1.0, 2048
"""Of log-normal lengths in tokens; longer ones are cut."""
FRAME_S = 0.01
FRAMES = 256
"""Of a row of recordings; longer ones are cut."""
ROWS = 16
"""Sequences of a padded batch, rows of a packed one; buckets have as many tokens at most."""
MOST_PADDING = 0.01
DOCUMENTS = "documents, log-normal"
PACKED = f"{DOCUMENTS}, packed"
_TOKENS = np.arange(1 << 16, dtype=np.int32)


class Sequences:
    """Sequences to be put together, and what makes a dataset of them.

    Args:
        name: for tables.
        lengths: of each, in tokens.
        longest: length of a row.
        shape: of a token.
    """

    def __init__(self, name: str, lengths: Lengths, longest: int, shape: tuple[int, ...] = ()) -> None:
        self.name, self.longest = name, longest
        self.lengths = np.minimum(lengths, longest)
        self.tokens = int(self.lengths.sum())
        self._content = _TOKENS if not shape else np.zeros((longest, *shape), np.int16)

    def dataset(self) -> Dataset:
        """All of them in a full shuffle, each a view of what is in memory."""
        count = len(self.lengths)
        return Dataset.range(count).shuffle(count).map(self._sequence).with_options(seed=1)

    def _sequence(self, number: int) -> Tokens:
        return self._content[: self.lengths[number]]

    def element(self, number: int) -> dict[str, Tokens]:
        """The sequence of this number, as a dict."""
        return {"tokens": self._sequence(number)}


Way = Callable[[Sequences], Iterable[Any]]
"""Makes batches of sequences, epoch by epoch."""


def documents(count: int) -> Sequences:
    """As many sequences of log-normal lengths; the same ones every time."""
    lengths = np.random.default_rng(1).lognormal(np.log(MEDIAN), SIGMA, count)
    return Sequences(DOCUMENTS, lengths.astype(np.int64) + 1, LONGEST)


def recordings(folder: str) -> Sequences:
    """The recordings in a folder, as frames."""
    lengths, size = [], 0
    for file in _wav_files(folder):
        with wave.open(io.BytesIO(file)) as recording:
            size = int(recording.getframerate() * FRAME_S)
            lengths.append(max(1, recording.getnframes() // size))
    if not lengths:
        sys.exit(f"there is no WAV file in {folder}, nor an archive that has some")
    return Sequences("recordings", np.array(lengths, np.int64), FRAMES, (size,))


def _wav_files(folder: str) -> Iterator[bytes]:
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "**"), recursive=True)):
        if path.endswith(".wav"):
            with open(path, "rb") as file:
                yield file.read()
        elif path.endswith((".tar", ".tar.gz")):
            with tarfile.open(path) as archive:
                for member in archive:
                    found = archive.extractfile(member) if member.name.endswith(".wav") else None
                    if found is not None:
                        yield found.read()


# -- the ways ----------------------------------------------------------------------------------------------------------


def padded_to_one_length(sequences: Sequences) -> Dataset:
    """Each padded to the longest there can be."""
    padded = sequences.dataset().map(_as_dict)
    shape = (sequences.longest, *np.shape(next(iter(sequences.dataset())))[1:])
    return padded.padded_batch(ROWS, padded_shapes={"tokens": shape})


def padded_to_the_longest(sequences: Sequences) -> Dataset:
    """Each padded to the longest of its batch."""
    return sequences.dataset().map(_as_dict).padded_batch(ROWS)


def in_buckets(sequences: Sequences) -> Dataset:
    """Six buckets, each up to twice the length of the one before, with equally many tokens in a batch."""
    bounds = [sequences.longest >> shift for shift in range(5, 0, -1)]
    sizes = [ROWS * sequences.longest // bound for bound in [*bounds, sequences.longest]]
    boundaries = [bound + 1 for bound in bounds]
    return sequences.dataset().map(_as_dict).bucket_by_sequence_length(_length, boundaries, sizes)


def packed(sequences: Sequences) -> Dataset:
    """Packed into rows of the longest there can be."""
    return sequences.dataset().pack(sequences.longest).batch(ROWS)


def packed_by_grain(name: str, sequences: Sequences) -> Iterable[Any]:
    """Packed by an operator of Grain's that has this name."""
    import grain
    import grain.experimental

    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    source = grain.MapDataset.source(range(len(sequences.lengths))).shuffle(seed=1).map(sequences.element)
    operator = getattr(grain.experimental, name)
    length = {"tokens": sequences.longest}
    rows = operator(source.to_iter_dataset(options), length_struct=length, num_packing_bins=PACKING_WINDOW)
    batches: Iterable[Any] = rows.batch(ROWS)
    return batches


def _as_dict(tokens: Tokens) -> dict[str, Tokens]:
    return {"tokens": tokens}


def _length(element: dict[str, Tokens]) -> int:
    return len(element["tokens"])


WAYS: Mapping[str, Way] = {
    "padded to one length": padded_to_one_length,
    "padded to the longest of a batch": padded_to_the_longest,
    "six buckets": in_buckets,
    "packed": packed,
}
GRAIN: Mapping[str, Way] = {
    "packed by Grain, first fit": functools.partial(packed_by_grain, "FirstFitPackIterDataset"),
    "packed by Grain, best fit": functools.partial(packed_by_grain, "BestFitPackIterDataset"),
}


def read(dataset: Iterable[Any]) -> dict[str, float]:
    """Reads an epoch: ``computed`` tokens, padding included, ``shapes``, ``seconds``, and ``cpu`` seconds."""
    shapes: dict[tuple[int, int], int] = {}
    cpu, began = time.process_time(), time.perf_counter()
    for batch in dataset:
        shape = batch["tokens"].shape[:2]
        shapes[shape] = shapes.get(shape, 0) + 1
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    computed = sum(rows * tokens * times for (rows, tokens), times in shapes.items())
    return {"computed": computed, "shapes": len(shapes), "seconds": seconds, "cpu": cpu}


def measure(cases: Sequence[Sequences], ways: Mapping[str, Way], rounds: int) -> list[dict[str, dict[str, float]]]:
    """Figures of each round, by case and way; every other round begins with the last one."""
    made = {f"{case.name}, {name}": (case, way(case)) for case in cases for name, way in ways.items()}
    for _, dataset in made.values():
        read(dataset)  # not measured
    found = []
    for number in range(rounds):
        names = [*made] if number % 2 == 0 else [*made][::-1]
        played = {name: figures(made[name][0], read(made[name][1])) for name in names}
        found.append({name: played[name] for name in made})
    return found


def figures(sequences: Sequences, found: Mapping[str, float]) -> dict[str, float]:
    """Figures of one epoch: ``padding``, ``shapes``, ``tokens`` a second, ``cpu`` in microseconds of a sequence."""
    return {
        "padding": 1 - sequences.tokens / found["computed"],
        "shapes": found["shapes"],
        "tokens": sequences.tokens / found["seconds"],
        "cpu": 1e6 * found["cpu"] / len(sequences.lengths),
    }


def table_of(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> list[list[str]]:
    """Medians over rounds, with the spread of the rate."""
    table = [["", "padding", "shapes", "million tokens/s", "CPU µs of a sequence"]]
    for name in rounds[0]:
        mine = [each[name] for each in rounds]
        median = {key: statistics.median(each[key] for each in mine) for key in mine[0]}
        rates = [each["tokens"] / 1e6 for each in mine]
        rate = f"{median['tokens'] / 1e6:,.1f} ({min(rates):,.1f} to {max(rates):,.1f})"
        table.append(
            [name, f"{100 * median['padding']:.1f} %", f"{median['shapes']:.0f}", rate, f"{median['cpu']:.1f}"]
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packing", description=QUESTION)
    parser.add_argument("--data", metavar="DIR", help="recordings, WAV files or archives of them")
    parser.add_argument("--sequences", type=int, default=None, metavar="N", help=f"of log-normal lengths ({SEQUENCES})")
    parser.add_argument("--rounds", type=int, default=None, metavar="N", help=f"rounds to play ({ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="few sequences and one round: shows that it runs")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on = machine()
    cases = [documents(options.sequences or (QUICK if options.quick else SEQUENCES))]
    if options.data:
        cases.append(recordings(options.data))
    missing = importlib.util.find_spec("grain") is None
    if missing:
        print(f"left out: {' and '.join(GRAIN)}, as grain is not installed ({INSTALL})")
    ways = WAYS if missing else {**WAYS, **GRAIN}
    rounds = measure(cases, ways, options.rounds or (1 if options.quick else ROUNDS))
    table = table_of(rounds)
    for row in table:
        print(f"{row[0]:56}{row[1]:>9}{row[2]:>8}{row[3]:>24}{row[4]:>22}")
    padding = rounds[0][PACKED]["padding"]
    aim = {"aim": "padding of packed rows", "value": padding, "asked": f"<= {MOST_PADDING}"}
    aims = [] if options.quick else [{**aim, "met": padding <= MOST_PADDING}]  # of few rows the last are many
    report = {"sequences": {case.name: len(case.lengths) for case in cases}, "rounds": rounds, "table": table}
    write(options.json, "benchmarks.packing", QUESTION, arguments, on, {**report, "aims": aims})
    return verdict(aims)


if __name__ == "__main__":
    sys.exit(main())
