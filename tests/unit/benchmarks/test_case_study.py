"""What the case study makes of bytes and calls that were counted."""

import pytest
from benchmarks.papers.case_study import APART, CACHE, ONE_LAYER, report


def counted(size: int, calls: int, shortest: int = 100, jobs: int = 35):
    return {"jobs": jobs, "bytes": size, "calls": calls, "seconds": 10.0, "elements": 3500, "shortest": shortest}


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (counted(3_800, 101), [True, True, True, True]),
        (counted(5_000, 101), [False, True, True, True]),
        (counted(3_800, 210), [True, False, False, True]),
        (counted(3_800, 101, shortest=99), [True, True, True, False]),
    ],
)
def test_less_saved_than_in_the_paper_is_a_miss(one, met):
    found = report({APART: counted(5_000, 500, jobs=5), CACHE: counted(3_800, 100), ONE_LAYER: one}, 100)
    assert [each["met"] for each in found["aims"]] == met
    assert found["table"][1] == [APART, "35,000", "3,500", "35.00", "70"]
    assert found["table"][-2] == [f"saved by {CACHE}", "89.1%", "97.1%", "", "86%"]
