"""Where work runs (tf.data service 4.2, Cachew 7): a training host and a service with a slow link between them.

    python -m benchmarks.papers.where [--json FILE]

Two network namespaces of this machine are two hosts, joined by a link of 16 Mbit/s and 2 ms. On one there is a service
of up to 16 workers, on the other a training that may have one or two processes of its host. One pipeline makes large
elements quickly, so that the link is slower than one process at home; the other one takes long over small elements.
Making is waiting, so that two cores carry all of them. Each is read for a while with local workers alone, with remote
ones alone, and with what ``target_workers="auto"`` makes of it. Needs root, iproute2 and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from benchmarks.link import TOKEN, distance, started
from benchmarks.papers.report import main
from benchmarks.papers.where_training import JOBS

QUESTION = "Does a job find out by itself where its work is done best?"
LINK = argparse.Namespace(delay_ms=2.0, mbit=16.0, window=512 << 10)
LOCAL = {"inflates": 1, "computes": 2}
TARGETS = ("local", "remote", "auto")
SECONDS = 45.0
WORKERS = "0-16"


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    results = []
    for name in JOBS:
        for target in TARGETS:
            found = {"job": name, "target": target, **_train(name, target)}
            results.append(found)
            print(
                f"{name}, {target}: {found['rate']:.1f} elements/s on {found['local']} local and {found['remote']} "
                f"remote workers: {found['why']}",
                flush=True,
            )
    rates = {(each["job"], each["target"]): each["rate"] for each in results}
    rounds = [
        {
            name: {"of the best": rates[name, "auto"] / max(rates[name, target] for target in TARGETS[:2])}
            for name in JOBS
        }
    ]
    table = [
        ["pipeline", "target_workers", "elements/s", "local", "remote", "why"],
        *(
            [each["job"], each["target"], f"{each['rate']:.1f}", str(each["local"]), str(each["remote"]), each["why"]]
            for each in results
        ),
    ]
    return {"link": vars(LINK), "rounds": rounds, "table": table, "results": results}


def _train(name: str, target: str) -> dict[str, Any]:
    """One training on a fresh service."""
    with ExitStack() as stack:
        near, far, host = distance(stack, LINK)
        options = ["--host", host, "--port", "0", "--local-workers", WORKERS, "--first-workers", "1"]
        options += ["--heartbeat", "0.5", "--threads", "1", "--parent-pipe", "--insecure"]
        line = started(stack, *far, sys.executable, "-m", "millrace", "dispatcher", *options)
        local = LOCAL[name] if target != "remote" else 0
        training = [sys.executable, "-m", "benchmarks.papers.where_training", json.loads(line)["address"]]
        command = [*near, *training, name, target, str(local), str(SECONDS)]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **TOKEN})
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


if __name__ == "__main__":
    main("benchmarks.papers.where", QUESTION, measure)
