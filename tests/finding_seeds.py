"""Which schedule finds each planted bug first: ``python -m tests.finding_seeds [BUG ...]`` looks, and remembers it.

A test tries the remembered schedule first and then looks from the beginning, so that what is remembered may be old: the
test only takes longer then. Where the first takes long, a shorter one that finds it too may be remembered instead.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from millrace.simulation.mutants import MUTANTS, planted
from millrace.simulation.simulated_cluster import play

SOON = 240
"""Schedules within which a planted bug is to be found."""
_FILE = Path(__file__).parent / "unit" / "simulation" / "finding_seeds.json"


def read() -> dict[str, int]:
    """What is remembered."""
    found: dict[str, int] = json.loads(_FILE.read_text())
    return found


def main(plants: list[str]) -> int:
    """Looks for the first schedule that finds each of these bugs; all, if none is named."""
    known = {plant: seed for plant, seed in read().items() if plant in MUTANTS} if _FILE.exists() else {}
    missed = 0
    for plant in plants or list(MUTANTS):
        with planted(plant):
            seed = next((seed for seed in range(SOON) if play(seed).violation), None)
        print(f"{plant:30} {'not found' if seed is None else seed}", flush=True)
        if seed is None:
            missed += 1
        else:
            known[plant] = seed
        _FILE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
