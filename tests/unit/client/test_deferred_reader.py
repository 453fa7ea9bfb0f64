"""An iterator that waits for the state of its rank can be asked what any other can."""

from __future__ import annotations

import pytest

from millrace.client.deferred_reader import AwaitedReader
from millrace.errors import StateError
from millrace.planning.checkpoint import Checkpoint


def test_one_that_waits_for_its_state_has_all_that_iterators_have() -> None:
    fresh = Checkpoint(seed=3, epoch=2, graph="")
    reader = AwaitedReader(StateError("load the state"), lambda: fresh, lambda state: pytest.fail("nobody loads"))
    assert (reader.number, reader.skipped, reader.is_open) == (2, 0, True)
    reader.close()
    with pytest.raises(StateError, match="load the state"):
        next(reader)
