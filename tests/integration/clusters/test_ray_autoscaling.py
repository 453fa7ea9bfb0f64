"""A service whose workers have Ray's own autoscaler add nodes, and remove them when they are gone."""

import threading
from collections import Counter

import pytest
from tests.integration.clusters.ray_nodes import autoscaled, ray

import millrace as mr

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]


def slow(number: int) -> int:
    threading.Event().wait(0.005)
    return number


def test_nodes_come_for_workers_that_have_no_room_and_go_with_them(monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with autoscaled(cpus=2, most=2):
        ray.init("auto")
        try:
            assert ray.cluster_resources().get("CPU", 0) == 0
            with mr.RayService(4, 4, insecure=True) as service:
                with mr.Dataset.range(2000).map(slow).distribute(service.address) as numbers:
                    assert Counter(numbers) == Counter(range(2000))
                while len(service.status()["workers"]) < 4:
                    threading.Event().wait(0.1)
                assert ray.cluster_resources()["CPU"] == 4
            while ray.cluster_resources().get("CPU", 0) > 0:
                threading.Event().wait(0.1)
        finally:
            ray.shutdown()
