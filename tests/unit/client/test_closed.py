"""A dataset that was closed starts nothing for an iterator from before."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.dataset import Dataset
from millrace.errors import ServiceError


def test_an_iterator_that_was_made_before_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.range(3).distribute()
    pipeline: Any = dataset.__pipeline__()
    monkeypatch.setattr(pipeline, "service_address", lambda: pytest.fail("a service was started"))
    closings = pipeline._closings
    dataset.close()
    with pytest.raises(ServiceError, match="the dataset was closed after this iterator was made"):
        pipeline._begin_beside(1, None, closings)
