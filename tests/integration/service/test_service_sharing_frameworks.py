"""A torch, a JAX and a TensorFlow job in three processes read one window of one service: computed once for all."""

import importlib.util
import pickle
import subprocess
import sys
from contextlib import ExitStack

import pytest
from tests.integration.service.service_driving import WAIT_S
from tests.integration.service.test_service_sharing import members

READS = """
import os
import pickle
import sys
import numpy as np
import millrace as mr

framework = sys.argv[3]
__import__(framework)
os.environ["READS"] = "yes"
gate, calls = pickle.loads(bytes.fromhex(sys.argv[2]))

def note(number):
    if "READS" not in os.environ:  # what is looked at beforehand, for shapes, is computed in this process
        gate.pass_through()
        calls.note(number)
    return number

ds = mr.Dataset.range(200).map(note).batch(10)
sharing = {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.AT_MOST_ONCE}
with ds.distribute(sys.argv[1], job_name=framework, tasks=4, **sharing) as shared:
    epochs = [list(getattr(shared, framework)()) for _ in range(2)]
print(type(epochs[0][0]).__module__.split(".")[0].removesuffix("lib"))
for batches in epochs:
    print(sorted(number for batch in batches for number in np.asarray(batch).tolist()))
"""
IMPORTS_S = 4 * WAIT_S
"""TensorFlow's alone may take most of it where others compute."""


@pytest.mark.timeout(4 * IMPORTS_S)
@pytest.mark.parametrize("service", [2], indirect=True)
def test_jobs_of_several_frameworks_read_one_window_at_once(service, calls, gate, keeper):
    frameworks = [name for name in ("torch", "jax", "tensorflow") if importlib.util.find_spec(name)]
    if len(frameworks) < 2:
        pytest.skip("fewer than two frameworks are installed")

    with ExitStack() as stack:
        command = [sys.executable, "-c", READS, service.address, pickle.dumps((gate, calls)).hex()]
        pipe = subprocess.PIPE
        scripts = [
            stack.enter_context(subprocess.Popen([*command, framework], stdout=pipe, text=True))
            for framework in frameworks
        ]
        stack.callback(keeper.open)
        service.until(lambda status: members(status, "window-") == len(frameworks), IMPORTS_S)
        keeper.open()
        said = [script.communicate(timeout=IMPORTS_S)[0].splitlines() for script in scripts]
    assert [name for name, *_ in said] == frameworks
    assert [numbers for _, *numbers in said] == [[str(list(range(200)))] * 2] * len(frameworks)
    found = calls.take()
    assert set(found) == set(range(200))
    assert set(found.values()) <= {2, 3}, "two epochs, and the next one may be prepared: once for all jobs"
