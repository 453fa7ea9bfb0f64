"""Processes of an experiment that begin together in front of one store, and what each of them answers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks.far_store import FarStore


def run_side_by_side(store: FarStore, commands: Sequence[Sequence[str]]) -> list[Any]:
    """Runs commands at once, and returns the line of JSON that each has written.

    Each says "ready" when it could begin, and begins when it is sent a line: when all are ready. What the store has
    counted before is forgotten then.

    Raises:
        RuntimeError: one did not begin, or failed.
    """
    with contextlib.ExitStack() as stack:
        running = []
        for command in commands:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **store.far}
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            running.append(process)
        for number, process in enumerate(running):
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError(f"process {number} of {len(running)} did not begin")
        store.link.reset()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        answers = []
        for number, process in enumerate(running):
            assert process.stdout is not None
            line = process.stdout.readline()
            if process.wait() or not line:
                raise RuntimeError(f"process {number} of {len(running)} failed")
            answers.append(json.loads(line))
        return answers
