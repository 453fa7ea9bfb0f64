import numpy as np
import pytest

from millrace.errors import PipelineError
from millrace.worker.job_pipeline import checked_owners


def test_any_sequence_of_integers_will_do():
    assert checked_owners(np.array([0, 1, 1]), 3, 2) == [0, 1, 1]
    assert checked_owners((0,), 1, 1) == [0]


@pytest.mark.parametrize("chosen", [None, [0], [0, 1, 2], [0, -1, 0], ["0", "1", "0"], 7])
def test_anything_else_is_named(chosen):
    with pytest.raises(PipelineError, match="here 3 numbers from 0 to 1; it returned") as caught:
        checked_owners(chosen, 3, 2)
    assert repr(chosen) in str(caught.value)
