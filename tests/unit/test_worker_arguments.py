"""How many workers a service is to have: what makes no sense is refused before anything is started."""

import pytest

import millrace as mr
from millrace.clusters.service import between


@pytest.mark.parametrize("kind", [mr.LocalService, mr.RayService])
@pytest.mark.parametrize(("least", "most"), [(-1, 4), (0, 0), (4, 3), (0, -1)])
def test_numbers_that_make_no_sense_are_refused(kind, least, most):
    with pytest.raises(mr.PipelineError, match=f"at least {least} and at most {most} workers cannot be"):
        kind(least, most)


def test_others_are_not():
    assert (between(0, 1), between(4, 4)) == ("0-1", "4-4")
