"""What an experiment writes with ``--json``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.machine import machine


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
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on = machine()
    found = measure()
    if options.json:
        report = {
            "benchmark": module.removeprefix("benchmarks."),
            "question": question,
            "command": shlex.join(["python", "-m", module, *(sys.argv[1:] if arguments is None else arguments)]),
            "machine": on,
            **found,
        }
        with open(options.json, "w") as file:
            json.dump(report, file, indent=2)
            file.write("\n")
    return found
