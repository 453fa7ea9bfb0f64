"""Between hosts: what one socket and several carry over a distance, plain and in millrace's frames.

    python -m benchmarks.link [--delay-ms MS] [--mbit N] [--window BYTES] [--rounds N] [--json FILE]

Two network namespaces of this machine are joined by a link of that delay (one way) and rate, and `millrace bench link`
runs between them; --window sets what the kernels let a socket have on the way (a real link of 10 Gbit/s is beyond what
a process can imitate, so window and rate are scaled down alike). Without --mbit it is loopback: what frames cost over
plain sockets, which take turns with them, so ratios hold on a busy machine too. Distance needs root, iproute2 and
/dev/net/tun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.machine import machine

TUNNEL = Path(__file__).parent.parent / "tests" / "integration" / "wire" / "tunnel.py"
TOKEN = {"MILLRACE_TOKEN": "benchmark"}


def started(stack: ExitStack, *command: str) -> str:
    """Starts a process that ends with ``stack``; the first line it says."""
    environment = {**os.environ, **TOKEN}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    stack.callback(process.communicate)
    stack.callback(process.kill)
    assert process.stdout is not None
    return process.stdout.readline().strip()


def distance(stack: ExitStack, options: argparse.Namespace) -> tuple[list[str], list[str], str]:
    """Commands that run something at either end of a new link, and the far end's address."""
    name = f"millrace-{os.getpid()}"
    ends = [["ip", "netns", "exec", f"{name}-{side}"] for side in "ab"]
    for side in "ab":
        stack.callback(subprocess.run, ["ip", "netns", "del", f"{name}-{side}"], stderr=subprocess.DEVNULL)
    line = started(stack, sys.executable, str(TUNNEL), name, str(options.delay_ms / 1e3), str(options.mbit * 1e6 / 8))
    if line != "ready":
        sys.exit(f"no network namespaces or tunnels here: {line}")
    for end in ends:
        for setting in (f"tcp_rmem=4096 65536 {2 * options.window}", f"tcp_wmem=4096 65536 {2 * options.window}"):
            subprocess.run([*end, "sysctl", "-qw", f"net.ipv4.{setting}"], check=True)
    return ends[0], ends[1], "10.97.0.2"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The report of ``millrace bench link``."""
    tool = [sys.executable, "-m", "millrace", "bench", "link"]
    with ExitStack() as stack:
        near, far, host = distance(stack, options) if options.mbit else ([], [], "127.0.0.1")
        line = started(stack, *far, *tool, "--listen", f"{host}:0")
        address = line.removeprefix("listens at ").split(";")[0]
        command = [*near, *tool, address, "--json", f"--rounds={options.rounds}", f"--seconds={options.seconds}"]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, **TOKEN})
    report: dict[str, Any] = json.loads(found.stdout)
    return report


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay-ms", type=float, default=20.0, help="one way")
    parser.add_argument("--mbit", type=float, help="of the link; without it: loopback")
    parser.add_argument("--window", type=int, default=512 << 10, help="bytes that a socket may have on the way")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--json", metavar="FILE", help="writes figures here, too")
    options = parser.parse_args()
    ran_on = machine()
    report = measure(options)
    print(f"round trip {report['round_trip_s'] * 1e3:.2f} ms; millrace chooses {report['sockets']} sockets")
    base = report["rows"][0]["bytes_per_s"]
    for row in report["rows"]:
        rate, low, high = (each / 1e6 for each in (row["bytes_per_s"], min(row["rounds"]), max(row["rounds"])))
        what = f"{row['way']}, {row['sockets']} of {row['content']}, {row['compression'] or 'plain'}"
        print(f"{what:48}{rate:8.1f} MB/s ({low:.1f} to {high:.1f}) {rate * 1e6 / base:6.2f} of one plain socket")
    if options.json:
        link = {"delay_ms": options.delay_ms, "mbit": options.mbit, "window": options.window} if options.mbit else None
        figures = {"benchmark": "link", "machine": ran_on, "link": link}
        with open(options.json, "w") as file:
            json.dump({**figures, **report}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
