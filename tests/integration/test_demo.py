import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from millrace.demo import verdict

DEMO = [sys.executable, "-m", "millrace", "demo"]


def test_a_model_learns_and_the_last_line_names_the_bottleneck():
    done = subprocess.run(DEMO, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout  # nothing but lines where there is no terminal
    lines = done.stdout.splitlines()
    assert lines[0] == "1437 images to learn from and 360 to test on, as JPEG files of 96 x 96"
    assert re.fullmatch(r"a service with [12] workers?: first batch after \d+\.\d s", lines[1])
    epochs = [
        re.match(r"epoch +(\d+)/12  accuracy +([\d.]+)%  +\d+ images/s  waited +\d+%", line) for line in lines[2:-1]
    ]
    assert [match and int(match[1]) for match in epochs] == list(range(1, 13))
    accuracies = [float(match[2]) for match in epochs if match]
    assert accuracies[0] + 5 < accuracies[-1] > 92
    assert re.fullmatch(
        r"Bottleneck: the (model|input data); the loop waited \d+% of its time for 2 workers.*\.", lines[-1]
    )
    assert re.search(r"was (map\(\w+\)|from_files\(.*\)|batch\(.*\)|shuffle\(.*\))", lines[-1])


def test_an_interrupt_ends_it_at_once_without_a_traceback():
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("epoch"):
                demo.send_signal(signal.SIGINT)
                break
        _, errors = demo.communicate(timeout=30)
    assert (demo.returncode, errors) == (130, "")


def status(workers: int, cores: int, **seconds: float) -> dict[str, Any]:
    operators = [{"operator": f"map({name})", "active_s": spent} for name, spent in seconds.items()]
    return {"jobs": [{"operators": operators}], "workers": [{"cores": cores}] * workers}


@pytest.mark.parametrize(
    ("waited", "seen", "sentence"),
    [
        (
            0.04,
            status(2, 8, decode=3.0, augment=1.0),
            (
                "Bottleneck: the model; the loop waited 4% of its time for 2 workers, and 75% of the computing was "
                "map(decode), so more or faster ones would gain little."
            ),
        ),
        (
            0.5,
            status(1, 8, decode=1.0, augment=3.0),
            (
                "Bottleneck: the input data; the loop waited 50% of its time for 1 worker, and 75% of the computing "
                "was map(augment), so cheaper functions or more workers would make it faster."
            ),
        ),
        (
            0.5,
            status(2, 2),
            (
                "Bottleneck: the input data; the loop waited 50% of its time for 2 workers, so cheaper functions or "
                "more workers (on other machines, as this one has no core to spare) would make it faster."
            ),
        ),
    ],
)
def test_the_verdict_says_what_was_measured(waited: float, seen: dict[str, Any], sentence: str):
    assert verdict(waited, seen) == sentence
