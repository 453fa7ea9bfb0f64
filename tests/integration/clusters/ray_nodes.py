"""Ray clusters of several nodes on this machine, each with processes and a loopback address of its own."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="make ray installs it")

from ray import cluster_utils  # noqa: E402
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID  # noqa: E402

SOON = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
"""A node that is gone is noticed within about two seconds, not fifteen."""
WAIT_S = 90.0


class Nodes:
    """A head without cores, and nodes that come and go."""

    def __init__(self) -> None:
        self._cluster = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "node_ip_address": "127.0.0.2", "_system_config": SOON},
        )
        self._hosts = iter(range(3, 255))

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int, **resources: float) -> Any:
        """A node with so many cores; its ``node_ip_address`` is its own."""
        return self._cluster.add_node(
            num_cpus=cpus, resources=resources, node_ip_address=f"127.0.0.{next(self._hosts)}"
        )

    def kill(self, node: Any) -> None:
        """Ends a node's processes by SIGKILL."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module", name="nodes")
def two_nodes() -> Iterator[Nodes]:
    """A head without cores, which has no workers, and two nodes with two each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        nodes = Nodes()
        try:
            nodes.add(2)
            nodes.add(2)
            yield nodes
        finally:
            nodes.close()


def until(condition: Callable[[], Any], otherwise: Callable[[], Any] = lambda: "") -> Any:
    """Asks now and then until ``condition`` is true, and returns what it gave."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"it did not come to that: {otherwise()}"
        threading.Event().wait(0.1)


def _configuration(
    self: Any, head_resources: Any, worker_node_types: Any, autoscaler_v2: bool = False, **others: Any
) -> dict[str, Any]:
    """As Ray's own fixture has it, which begins with an example that is not in Ray's wheels."""
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    head = {"resources": head_resources, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "fake_multinode",
        "max_workers": 8,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {**worker_node_types, "ray.head.default": head},
        "upscaling_speed": 1.0,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{kind}_commands": [] for kind in commands},
        **others,
    }


@contextmanager
def autoscaled(cpus: int, most: int) -> Iterator[None]:
    """A head without cores, and up to ``most`` nodes of ``cpus`` cores that Ray's autoscaler adds and removes.

    It is the only Ray cluster of this machine: Ray's fixture ends all others.
    """
    kind = {
        "resources": {"CPU": cpus, "object_store_memory": 10**8},
        "node_config": {},
        "min_workers": 0,
        "max_workers": most,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")  # it calls `ray`
        patch.setattr(cluster_utils.AutoscalingCluster, "_generate_config", _configuration)
        head = {"CPU": 0, "object_store_memory": 10**8}
        cluster = cluster_utils.AutoscalingCluster(
            head, {"worker": kind}, autoscaler_v2=True, idle_timeout_minutes=0.05
        )
        cluster.start()
        try:
            yield
        finally:
            cluster.shutdown()
