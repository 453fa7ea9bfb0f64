"""However a training script ends, nothing that it started outlives it: no process, no port, no file.

Each script runs in a process of its own, in a session and with a temporary directory of its own. It says when it is in
the middle of an epoch; its descendants are then looked up in the process table, and waited for once it has ended.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.integration.listening_sockets import listening
from tests.pairwise import alternately

WAIT_S = 60
"""Until something that should happen at once counts as never; nothing waits that long unless a test fails."""

SERVICES = {
    "embedded": "dataset = pipeline.distribute(workers=1)",
    "local": "service = mr.LocalService(max_workers=1)\ndataset = pipeline.distribute(service.address)",
}
LOOPS = {
    "all": "for x in dataset: step()",
    "break": "for x in dataset:\n    step()\n    break",
    "exception": "for x in dataset:\n    step()\n    raise LookupError('in the loop')",
    "exit": "for x in dataset:\n    step()\n    sys.exit(3)",
    "open": "it = iter(dataset)\nnext(it)\nstep()",
    "dropped": "it = iter(dataset)\nnext(it)\nstep()\ndel it, dataset",
    # As a notebook does: what a cell raised is kept for post-mortems, and the program goes on.
    "cell": (
        "try:\n    exec('for x in dataset:\\n    step()\\n    1 / 0')\n"
        "except ZeroDivisionError as error:\n    sys.last_value = error"
    ),
}
STATUS = {"exception": 1, "exit": 3}

SCRIPT = """
import json, sys
import millrace as mr

def slow(x):
    import threading
    threading.Event().wait(0.01)
    return x

pipeline = mr.Dataset.range({count}).map(slow)
{service}
seen = 0

def step():
    global seen
    seen += 1
    if seen == 1:
        status = dataset.status()
        addresses = [dataset.__pipeline__().service_address(), *[each["address"] for each in status["workers"]]]
        print(json.dumps(addresses), flush=True)
        sys.stdin.readline()

{loop}
"""


class Script:
    """A program in a session of its own, that has come to the middle of an epoch."""

    def __init__(self, text, tmp_path):
        path = tmp_path / "train.py"
        path.write_text(text)
        self.folder = tmp_path / "temporary"
        self.folder.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(self.folder)},
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.addresses = json.loads(self.process.stdout.readline() or "[]")
        assert self.addresses, self.process.communicate()[1]
        self.descendants = descendants(self.process.pid)
        self.sockets = listening(self.addresses)
        assert len(self.sockets) == len(self.addresses)
        for pid in (self.process.pid, *self.descendants):
            assert named_memory(pid) == set(), "what has a name can be left behind"

    def go_on(self):
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """Waits until it has ended; what it said on stderr. Nothing may be left then."""
        _, said = self.process.communicate(timeout=WAIT_S)
        wait_gone(self.descendants)
        assert listening(self.addresses) & self.sockets == set()
        assert list(self.folder.iterdir()) == []
        return said


def descendants(root):
    """Handles of all processes below ``root``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [root]
    for above in found:
        found.extend(pid for pid, parent in parents.items() if parent == above)
    return {pid: os.pidfd_open(pid) for pid in found[1:]}


def wait_gone(handles):
    for pid, handle in handles.items():
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        ended = waiting.poll(WAIT_S * 1000)
        os.close(handle)
        assert ended, f"process {pid} is still there"


def named_memory(pid):
    """Files of ``/dev/shm`` that a process has open or mapped, also those that it has removed."""
    paths = [path for line in Path(f"/proc/{pid}/maps").read_text().splitlines() for path in line.split(maxsplit=5)[5:]]
    for opened in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            paths.append(os.readlink(opened))
    return {path for path in paths if path.startswith("/dev/shm/")}


def script(tmp_path, service, loop, count=10**6):
    text = SCRIPT.format(service=SERVICES[service], loop=loop, count=count)
    return Script(textwrap.dedent(text), tmp_path)


@pytest.mark.parametrize(("loop", "service"), alternately(LOOPS, [*SERVICES]))
def test_an_end_of_its_own_leaves_nothing(service, loop, tmp_path):
    run = script(tmp_path, service, LOOPS[loop], count=20 if loop == "all" else 10**6)
    assert len(run.descendants) == 2, "a dispatcher and a worker"
    run.go_on()
    said = run.end()
    assert run.process.returncode == STATUS.get(loop, 0)
    if loop == "exception":
        assert said.rstrip().endswith("LookupError: in the loop")
        assert "During handling" not in said
        assert "Exception ignored" not in said
    else:
        assert said == ""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("service", SERVICES)
def test_a_signal_in_the_middle_of_an_epoch_leaves_nothing(service, how, tmp_path):
    run = script(tmp_path, service, LOOPS["all"])
    run.go_on()
    if how == signal.SIGINT:
        os.killpg(run.process.pid, how)  # as a terminal does
    else:
        run.process.send_signal(how)
    said = run.end()
    assert run.process.returncode == -how
    if how == signal.SIGINT:
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert "Exception ignored" not in said
    else:
        assert said == ""
