"""Scripts that end while they hold an iterator that was read in part: they do, and say nothing."""

import subprocess
import sys

import pytest

PIPELINES = {
    "windows": "mr.Dataset.range(1000).window(2, 1)",
    "ahead": "mr.Dataset.range(1000).prefetch(3)",
    "threads": "mr.Dataset.range(1000).map(slow, num_parallel_calls=4).batch(2)",
    "a mixture": "mr.Dataset.sample_from_datasets([mr.Dataset.range(90), mr.Dataset.range(90)]).take(100)",
}
ENDS = {"falls off its end": ("", 0), "fails": ("1 / 0", 1), "says so": ("raise SystemExit(3)", 3)}


@pytest.mark.parametrize(
    ("pipeline", "end"),
    [
        pytest.param(pipeline, end, marks=() if (place + number) % 3 == 0 else pytest.mark.nightly)
        for place, pipeline in enumerate(PIPELINES)
        for number, end in enumerate(ENDS)
    ],
)
def test_a_script_ends_whatever_it_holds(pipeline, end):
    last, status = ENDS[end]
    script = f"""
import time
import millrace as mr

def slow(number):
    time.monotonic()
    return number

iterator = iter({PIPELINES[pipeline]})
next(iterator)
{last}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    said = [line for line in done.stderr.splitlines() if "ZeroDivisionError" not in line]
    assert done.returncode == status
    assert not [line for line in said if "ignored" in line or "Fatal" in line]


def test_a_script_ends_though_a_daemon_thread_waits_for_an_element():
    script = """
import threading
import millrace as mr

begun = threading.Event()

def never(number):
    begun.set()
    threading.Event().wait()

iterator = iter(mr.Dataset.range(9).map(never))
threading.Thread(target=next, args=(iterator,), daemon=True).start()
begun.wait()
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_so_does_a_child_that_was_forked_while_threads_computed():
    script = """
import os
import threading
import millrace as mr

begun, go = threading.Event(), threading.Event()

def slow(number):
    if number > 2:  # of which one is needed to fill what is prefetched
        begun.set()
        go.wait()
    return number

iterator = iter(mr.Dataset.range(1000).map(slow, num_parallel_calls=4).prefetch(4))
next(iterator)
begun.wait()
if not os.fork():
    raise SystemExit(0)
assert os.wait()[1] == 0
go.set()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], timeout=60, check=True)
