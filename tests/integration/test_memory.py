"""Memory of a real process while its consumer stands still; ``benchmarks/memory.py`` has more cases and more time."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.alone  # a library's pages count less the more processes have loaded it
def test_a_pipeline_that_is_not_read_stays_at_its_bound():
    arguments = ["--buffer-mib", "16", "--seconds", "3", "--only", "1 KB, in process"]
    command = [sys.executable, "-m", "benchmarks.memory", *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 KB, in process" in done.stdout
