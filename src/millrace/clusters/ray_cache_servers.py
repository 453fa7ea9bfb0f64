"""Cache servers on the nodes of a Ray cluster: one on each node that has workers of the service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace.clusters.child_process import STOP_S
from millrace.clusters.respawned_processes import RespawnedProcesses
from millrace.policies.scaling.respawn import respawn_at
from millrace.wire.address import answers, format_address

KEPT_S = 600.0
"""Seconds for which a node that has no worker any more keeps its cache server. They are bounded, as Ray's autoscaler
takes no node away that has an actor; and workers come back, for whom what is kept there is of use."""
PORT = 5052
"""Port at which a cache server listens, so that one that comes back, and the next service, has the same keys on a node.
Where somebody else listens there it takes any, each time another one."""
ANSWER_S = 1.0
GRACE_S = 2 * STOP_S
_REMEMBERED = 20
_logger = logging.getLogger(__name__)


@dataclass
class NodeCache:
    """Cache server of a node.

    Attributes:
        host: address of the node.
        workers: of the service that run there.
        port: at which its cache server is to listen; 0: at any; None: that is not decided.
        actor: that holds it; None: there is none now.
        follower: task that starts it, and starts it anew when it was lost.
        leaving: timer after which it ends, as there are no workers.
        before: task that ends the cache server that this node had before, which has the same folder.
        deaths: when it was lost, in seconds of the monotonic clock.
    """

    host: str
    workers: set[str] = field(default_factory=set)
    port: int | None = None
    actor: Any = None
    follower: asyncio.Task[None] | None = None
    leaving: asyncio.TimerHandle | None = None
    before: asyncio.Task[None] | None = None
    deaths: list[float] = field(default_factory=list)


class RayCacheServers:
    """Cache servers of a service on Ray: of each node with workers one, for as long as it has some, and a while longer.

    An actor holds each, sets no core aside, and starts it again when it ends; when the actor is lost, another one comes
    as long as the node is there. Ray ends them all with this process.

    Args:
        options: of ``millrace cache-server`` for each, without ``--dir``, ``--host`` and ``--port``.
        folder: on each node, in which each server has one of its own by its address, as nodes may share a file system.
        token: of the service.
        tls: folder of certificates, on every node; empty: none.
        kept_s: seconds for which one stays where no worker is left.
    """

    def __init__(
        self, options: Sequence[str], folder: str, token: str | None, tls: str, kept_s: float = KEPT_S
    ) -> None:
        self._options, self._folder = list(options), folder
        self._token, self._tls, self._kept_s = token, tls, kept_s
        self._nodes: dict[str, NodeCache] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._holder = ray.remote(_CacheServerActor)

    def worker_came(self, worker: str, node: str, host: str) -> None:
        """Have a cache server on the node of a worker, unless there is one.

        Args:
            worker: its id.
            node: id of its node, by Ray.
            host: address of the node.
        """
        found = self._nodes.setdefault(node, NodeCache(host, before=self._ending.get(node)))
        found.workers.add(worker)
        if found.leaving is not None:
            found.leaving.cancel()
            found.leaving = None
        if found.follower is None:
            found.follower = asyncio.create_task(self._keep(node, found))

    def worker_went(self, worker: str) -> None:
        """Have the cache server of a worker's node end after a while, if that was the last worker there."""
        for node, found in self._nodes.items():
            if worker in found.workers:
                found.workers.remove(worker)
                if not found.workers:
                    found.leaving = asyncio.get_running_loop().call_later(self._kept_s, self._leave, node)

    def _leave(self, node: str) -> None:
        ending = self._ending[node] = asyncio.create_task(self._end(self._nodes.pop(node)))

        def ended(_: asyncio.Task[None]) -> None:
            if self._ending.get(node) is ending:
                del self._ending[node]

        ending.add_done_callback(ended)

    async def close(self) -> None:
        """End all of them, and wait for that; what they have kept stays."""
        nodes, self._nodes = list(self._nodes.values()), {}
        await asyncio.gather(*map(self._end, nodes), *self._ending.values())

    async def _end(self, found: NodeCache) -> None:
        if found.leaving is not None:
            found.leaving.cancel()
        if found.actor is not None:
            with contextlib.suppress(RayError, TimeoutError):  # it is lost, or is ended now
                await asyncio.wait_for(found.actor.end.remote(), GRACE_S)
        if found.follower is not None:
            found.follower.cancel()
            await asyncio.wait([found.follower])
        if found.actor is not None:
            ray.kill(found.actor)
        if found.before is not None:
            await asyncio.wait([found.before])

    async def _keep(self, node: str, found: NodeCache) -> None:
        """Keep a cache server on a node until the node is lost, or this is cancelled."""
        if found.before is not None:
            await asyncio.wait([found.before])
        while True:
            try:
                # One that the node can't take is lost as well, and says why.
                found.actor = self._holder.options(
                    num_cpus=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                    max_restarts=0,
                    max_task_retries=-1,  # a node that cannot be reached for a moment has lost nothing
                    max_concurrency=2,  # it waits for its end, and is told of it
                ).remote(self._options, self._folder, self._token, self._tls, found.port)
                found.port = await found.actor.port.remote()
                await found.actor.wait.remote()
            except Exception as error:  # noqa: BLE001 - Ray's own, and what its client raises while no head answers
                found.actor, said = None, str(error)
            else:
                return  # it was told to end
            if await asyncio.to_thread(_is_lost, node):
                _logger.warning("the cache server on node %s was lost with it", found.host)
                self._forget(node)
                return
            now = time.monotonic()
            found.deaths = [*found.deaths, now][-_REMEMBERED:]
            wait_s = max(0.0, respawn_at(found.deaths, now).value - now)
            _logger.warning(
                "the cache server on node %s was lost with its actor, and is started again %s: %s",
                found.host,
                f"in {wait_s:g} s" if wait_s else "at once",
                said,
            )
            await asyncio.sleep(wait_s)

    def _forget(self, node: str) -> None:
        found = self._nodes.pop(node, None)
        if found is not None and found.leaving is not None:
            found.leaving.cancel()


def _is_lost(node: str) -> bool:
    """Say whether Ray has a node no more; what can't be asked about is tried again."""
    try:
        return not any(each["Alive"] for each in ray.nodes() if each["NodeID"] == node)
    except Exception as error:  # noqa: BLE001 - Ray's own, and what its client raises while no head answers
        _logger.warning("Ray does not say which nodes there are: %s", error)
        return False


class _CacheServerActor:
    """Actor that holds the cache server of its node, which ends with it."""

    def __init__(self, options: Sequence[str], folder: str, token: str | None, tls: str, port: int | None) -> None:
        host = ray.util.get_node_ip_address()
        # The process of an actor that was lost may still be about to end: its port is taken as soon as it is free.
        self._port = (0 if answers(format_address(host, PORT), ANSWER_S) else PORT) if port is None else port
        self._over = threading.Event()
        where = ["--dir", os.path.join(folder, host), "--host", host, "--port", str(self._port)]
        self._processes = RespawnedProcesses(
            f"the cache server on {host}", ["cache-server", *options, *where], 1, token, tls
        )

    def port(self) -> int:
        return self._port

    def wait(self) -> None:
        self._over.wait()

    def end(self) -> None:
        self._processes.close()
        self._over.set()
