"""Who comes to a job, and when: a rank that all others wait for is started in the end."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.protocol.job_spec import JobSpec
from millrace.simulation import rank_arrivals
from millrace.simulation.rank_arrivals import RankArrivals


class FakeCluster:
    """What :class:`RankArrivals` asks of a schedule; ``later`` has what it asked to be called later."""

    def __init__(self, spec: JobSpec, consumers: dict[int, Any]) -> None:
        self.later: list[Any] = []
        self.started: list[int] = []
        self.network = SimpleNamespace(after=lambda _s, call, *given: self.later.append((call, given)))
        job = SimpleNamespace(spec=spec, equal=False, consumers=consumers, left=set())
        self.dispatcher = SimpleNamespace(state=SimpleNamespace(jobs={spec.name: job}))
        self.fired: Counter[str] = Counter()
        self.expected = 2
        self.lost = SimpleNamespace(spec=spec, consumer=1, stops={}, states=())
        self.ranks = {(spec.name, 1): self.lost}

    def one_less(self, name: str) -> None:
        pass

    def add_consumer(self, spec: JobSpec, index: int, *_: Any) -> None:
        self.started.append(index)

    def looked(self) -> None:
        """Time passes."""
        now, self.later = self.later, []
        for call, given in now:
            call(*given)


@pytest.fixture(autouse=True)
def _all_are_lost(monkeypatch):
    monkeypatch.setattr(rank_arrivals, "LOST", 1.0)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("seen", [True, False])
def test_a_lost_rank_that_was_never_seen_is_started_where_the_others_wait_for_it(equal, seen):
    spec = JobSpec("job", b"", "bundle", num_consumers=2, equal_steps=equal)
    cluster = FakeCluster(spec, {0: None, 1: None} if seen else {0: None})
    stand_in: Any = cluster
    assert not RankArrivals(stand_in, 0).replaced(stand_in.lost)
    assert cluster.expected == 1
    for _ in range(3):
        cluster.looked()
    assert cluster.started == ([1] if equal and not seen else [])
    assert cluster.expected == 1 + len(cluster.started)
