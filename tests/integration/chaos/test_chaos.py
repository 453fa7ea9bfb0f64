"""A small cut of a chaos run: some faults in real processes, and each element once."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[3]


def chaos(*arguments):
    command = [sys.executable, "-m", "chaos", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_element_once_whatever_dies():
    done = chaos("--seed", "3", "--faults", "8", "--epochs", "2", "--rows", "1600")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is right" in done.stdout


@pytest.mark.nightly
def test_each_element_as_it_is_whatever_becomes_of_the_cache():
    kinds = ("worker killed as it keeps", "block damaged", "block removed", "cache removed")
    # Of files of 600 rows a block is begun long before its task is over, so that a worker can be seen to write it; this
    # seed kills one while blocks are written for the first time.
    small = ("--workers", "2", "--consumers", "1", "--epochs", "8", "--caches", "cache", "--rows", "4800")
    done = chaos("--seed", "27", "--faults", "4", "--only", *kinds, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is right" in done.stdout


def test_each_element_once_for_each_member_of_groups_in_lockstep():
    kinds = ("worker killed", "dispatcher killed", "consumer killed")
    small = ("--members", "2", "--epochs", "4", "--rows", "960", "--caches", "compute")
    done = chaos("--seed", "1", "--faults", "3", "--only", *kinds, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is right" in done.stdout
    assert "group 1, member 1: 1 consumer" in done.stdout


def test_a_consumer_that_forgets_what_it_has_is_found(tmp_path):
    few = ("--faults", "1", "--only", "bulk connection cut", "--epochs", "1", "--consumers", "1", "--rows", "960")
    done = chaos("--plant", "forgets", "--workers", "1", "--folder", str(tmp_path), *few)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SOMETHING IS WRONG" in done.stdout
    assert "did not fire" not in done.stdout
    assert "failed" not in done.stdout
