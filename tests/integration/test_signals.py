"""A command hears each signal, whichever of its threads the kernel gives it to; what it forks has its own."""

import signal
import subprocess
import sys

import pytest

ANOTHER_THREAD = """
import os, signal, sys, threading
from millrace.cli.shutdown import end_with

over = threading.Event()
heard = []
end_with(lambda reason: (heard.append(reason), over.set()), parent_pipe=False)

def main_thread_waits():
    with open(f"/proc/self/task/{{os.getpid()}}/stat") as stat:
        asleep = stat.read().rpartition(")")[2].split()[0] == "S"
    return asleep and sys._current_frames()[threading.main_thread().ident].f_code.co_name == "wait"

def take():
    seen = 0
    while seen < 5:
        seen = seen + 1 if main_thread_waits() else 0
        threading.Event().wait(0.01)  # lets the main thread have the interpreter, if that is what it waits for
    signal.pthread_kill(threading.get_ident(), signal.{number})

threading.Thread(target=take).start()
over.wait()
print(heard)
"""

A_FORK = """
import os, signal, threading
from millrace.cli.shutdown import end_with

heard = []
end_with(heard.append, parent_pipe=False)
ready, up = os.pipe()
child = os.fork()
if not child:
    os.write(up, b"!")
    threading.Event().wait()
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), heard)
"""


def said_by(program):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_that_another_thread_takes_is_heard(number):
    assert said_by(ANOTHER_THREAD.format(number=number)) == f"['{number}']\n"


def test_a_forked_process_ends_by_a_signal_of_its_own():
    assert said_by(A_FORK) == f"{-signal.SIGTERM} []\n"
