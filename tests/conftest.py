"""Settings for all tests."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports the frameworks: no accelerator is looked for, and TensorFlow's start-up chatter stays away.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

# Half a million objects of the frameworks are made while tests are collected, and live as long as the process: the
# collector has no garbage to look for among them, neither now nor, as they are frozen below, in each test.
gc.disable()

# No test fails because the machine is slow. A commit is tested with the same examples each time, so that it is either
# good or not; at night there are more of them, drawn anew.
_NIGHTLY = bool(os.environ.get("MILLRACE_ALL_CASES"))
settings.register_profile(
    "millrace",
    deadline=None,
    derandomize=not _NIGHTLY,
    max_examples=400 if _NIGHTLY else 50,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("millrace")

_PASSED_TESTS = os.environ.get("MILLRACE_PASSED_TESTS")
"""File that gets the names of the tests that pass, for tests/evidence.py."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()  # what is garbage now would be kept for ever
    gc.freeze()
    gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _PASSED_TESTS and report.when == "call" and report.passed and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(_PASSED_TESTS, "a", encoding="utf-8") as passed:
            print(report.nodeid, file=passed)
