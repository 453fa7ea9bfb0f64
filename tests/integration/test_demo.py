import re
import signal
import subprocess
import sys

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
    assert re.fullmatch(r"Bottleneck: the (model|input data); the loop waited \d+ % of its time.*\.", lines[-1])


def test_an_interrupt_ends_it_at_once_without_a_traceback():
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("epoch"):
                demo.send_signal(signal.SIGINT)
                break
        _, errors = demo.communicate(timeout=30)
    assert (demo.returncode, errors) == (130, "")
