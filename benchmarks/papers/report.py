"""What an experiment writes with ``--json``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.machine import machine

_BEGAN = time.perf_counter()
"""Of this process, nearly: an experiment is one."""


def main(
    module: str, question: str, measure: Callable[[], Mapping[str, Any]], arguments: Sequence[str] | None = None
) -> Mapping[str, Any]:
    """Runs an experiment that has no options but ``--json FILE``, and returns what it found.

    Args:
        module: its full name.
        question: one sentence.
        measure: runs it, and returns figures that JSON can hold.
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=question)
    return answer(parser, lambda _: measure(), arguments)


def answer(
    parser: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
) -> Mapping[str, Any]:
    """Runs an experiment that has options of its own beside ``--json FILE``, and returns what it found.

    Args:
        parser: of its options; its ``prog`` is ``python -m MODULE``, and its ``description`` the question.
        measure: gets the options, runs it, and returns figures that JSON can hold.
        arguments: of the command line.
    """
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on = machine()
    found = measure(options)
    module, question = parser.prog.removeprefix("python -m "), parser.description or ""
    write(options.json, module, question, arguments, on, found)
    return found


def write(
    path: str | None,
    module: str,
    question: str,
    arguments: Sequence[str] | None,
    on: Mapping[str, Any],
    found: Mapping[str, Any],
) -> None:
    """Writes what an experiment found.

    Args:
        path: of the file; None: nowhere.
        module: its full name.
        question: one sentence.
        arguments: of the command line; None: this process's.
        on: what :func:`benchmarks.machine.machine` said before it began.
        found: figures that JSON can hold.
    """
    if not path:
        return
    report = {
        "benchmark": module.removeprefix("benchmarks."),
        "question": question,
        "command": shlex.join(["python", "-m", module, *(sys.argv[1:] if arguments is None else arguments)]),
        "machine": on,
        "took_s": round(time.perf_counter() - _BEGAN, 1),
        **found,
    }
    with open(path, "w") as file:
        json.dump(report, file, indent=2)
        file.write("\n")


def verdict(aims: Sequence[Mapping[str, Any]]) -> int:
    """Prints what was aimed at (``aim``, ``value``, ``asked``, ``met`` of each); returns the exit status."""
    for row in aims:
        print(f"{row['aim']}: {row['value']:.3f} (asked {row['asked']}): {'met' if row['met'] else 'MISSED'}")
    return 0 if all(row["met"] for row in aims) else 1
