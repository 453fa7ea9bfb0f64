"""A source that is far away: does a training read as fast as from a near one, and what does that take?

    python -m benchmarks.papers.latency [--json FILE]

A web server on this machine answers every request at once, or 50 ms later (tf.data service 4.2 reads from another
region). An element takes a request, 40 ms of work in a worker, and 20 ms of the consumer. It is asked for by the
pipeline's own function, one request after the other, or by ``Dataset.from_files``, which has several under way. Each
job begins with one worker and is left alone until the service has settled; then its elements are timed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from benchmarks.papers.far_source import fetch, server, work
from benchmarks.papers.report import main
from benchmarks.papers.scaled import settled
from millrace import Dataset

QUESTION = "Is a source that is far away read as fast as a near one, by more workers?"
DELAY_S = 0.050
WORK_S = 0.040
OWN_S = 0.020
FILES = 600
EPOCHS = 20
"""So many times the files; no job reads that many."""
TASKS = 600
KINDS = ("its own function", "from_files")
NEAR, FAR = "near", f"{1000 * DELAY_S:.0f} ms away"


def dataset(kind: str, port: int) -> Dataset:
    """The same elements, asked for in this way."""
    if kind == "from_files":
        source = Dataset.from_files([f"http://127.0.0.1:{port}/{number}" for number in range(FILES)]).repeat(EPOCHS)
        return source.map(functools.partial(work, WORK_S), num_parallel_calls=1)
    read = Dataset.range(FILES * EPOCHS).map(functools.partial(fetch, port, FILES), num_parallel_calls=1)
    return read.map(functools.partial(work, WORK_S), num_parallel_calls=1)


def measured(kind: str, delay_s: float) -> dict[str, Any]:
    """A job that is left alone until the service has settled; and how fast it is then."""
    with server(delay_s) as port:
        return settled(dataset(kind, port), TASKS, OWN_S)


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    results: dict[str, Any] = {}
    rows = [["asked for by", "the source is", "workers", "ms of an element", "rate, of the near source's"]]
    for kind in KINDS:
        found = {place: measured(kind, delay_s) for place, delay_s in ((NEAR, 0.0), (FAR, DELAY_S))}
        for place, each in found.items():
            rate = found[NEAR]["batch_s"] / each["batch_s"]
            rows.append([kind, place, str(each["workers"]), f"{1000 * each['batch_s']:.1f}", f"{rate:.3f}"])
            print("  ".join(rows[-1]), flush=True)
        results[kind] = found
    figures = {
        kind: {"rate": each[NEAR]["batch_s"] / each[FAR]["batch_s"], "workers": each[FAR]["workers"]}
        for kind, each in results.items()
    }
    return {"rounds": [figures], "table": rows, "results": results}


if __name__ == "__main__":
    main("benchmarks.papers.latency", QUESTION, measure)
