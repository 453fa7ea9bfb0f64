"""``python -m tests.fuzz.run``: every decoder with a million mutated messages.

The exit status is 1 if one raised what it may not, or made its process grow.

An input follows from the decoder's corpus and a number, so ``--only elements --first 1827 --inputs 1`` is that one
again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from tests.fuzz.mutator import mutated
from tests.fuzz.targets import TARGETS

MEMORY_BYTES = 256 << 20
"""Bytes by which a process may grow, whatever it decodes."""
_FINDINGS = 5


class Outcome(NamedTuple):
    """What came of a decoder's inputs: how many were accepted, and what was found, as (number, error)."""

    accepted: int
    findings: list[tuple[int, str]]
    grown: int


def fuzz(name: str, inputs: int, first: int = 0) -> Outcome:
    """Give a decoder so many inputs."""
    target = TARGETS[name]
    corpus = target.corpus()
    for message in corpus:
        try:
            target.decode(message)
        except target.allowed:
            continue
    before = _peak()
    accepted, findings = 0, []
    for number in range(first, first + inputs):
        data = mutated(corpus, number)
        try:
            target.decode(data)
        except target.allowed:
            continue
        except Exception as error:  # whatever a decoder may not raise
            findings.append((number, f"{type(error).__name__}: {error}"[:200]))
            if len(findings) == _FINDINGS:
                break
        else:
            accepted += 1
    return Outcome(accepted, findings, _peak() - before)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _of_process(arguments: tuple[str, int, int]) -> tuple[Outcome, float]:
    began = time.process_time()
    return fuzz(*arguments), time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N", help="for each decoder")
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="of the first input")
    parser.add_argument("--only", choices=sorted(TARGETS), action="append", metavar="DECODER", help=", ".join(TARGETS))
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    options = parser.parse_args(arguments)
    wrong = 0
    names = options.only or list(TARGETS)
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        given = [(name, options.inputs, options.first) for name in names]
        for name, (outcome, seconds) in zip(names, pool.imap(_of_process, given, 1), strict=True):
            print(
                f"{name:17} {options.inputs:>9,} inputs, {outcome.accepted:>8,} of them accepted, {seconds:6.1f} s, "
                f"{outcome.grown >> 20:4} MiB more at most",
                flush=True,
            )
            for number, error in outcome.findings:
                print(f"  input {number}: {error}")
            wrong += bool(outcome.findings) or outcome.grown > MEMORY_BYTES
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
