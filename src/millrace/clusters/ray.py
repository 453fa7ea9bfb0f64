"""Ray cluster: workers as actors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from millrace.clusters.child_process import STOP_S, describe_exit, hang_up, reap, spawn
from millrace.clusters.ray_cache_servers import RayCacheServers
from millrace.clusters.subprocesses import STDERR
from millrace.dispatcher.cluster_contract import Cluster, Ended
from millrace.errors import ServiceError
from millrace.wire.address import WILDCARDS, answers, format_address, parse_address

ANSWER_S = 10.0
"""Seconds that a Ray cluster may take to accept a connection."""
GRACE_S = 2 * STOP_S
"""Seconds that an actor may take to end its worker; one whose node is gone does not answer at all."""


class RayCluster(Cluster):
    """Cluster (:class:`~millrace.dispatcher.cluster_contract.Cluster`) of workers on the nodes of a Ray cluster.

    Each is a process, as on a single machine, and an actor holds it: user code that crashes ends neither the actor nor
    what it has to tell, and the kernel ends the process with its actor, however that ends. Ray spreads actors over the
    nodes and never restarts them. One that has no room waits for it, which is what Ray's autoscaler adds nodes for.
    All of them belong to this process: Ray ends them with it.

    Args:
        dispatcher: returns where the dispatcher listens; asked whenever a worker is started.
        options: further ones of ``millrace worker``, for each; without ``--threads`` it has ``num_cpus``, and at least
            one.
        token: of the service.
        tls: folder of certificates, on every node; empty: none.
        ray_address: of the Ray cluster; ``auto``: the one that ``RAY_ADDRESS`` in the environment names, or else that
            this machine is a node of.
        num_cpus: cores that Ray sets aside for each worker; fractions are allowed.
        memory: bytes that Ray sets aside for each; None: it does not count them.
        resources: others that it sets aside, by name.
        source_cache: folder on the nodes, and further options of ``millrace cache-server``: each node that has workers
            runs one; see :class:`~millrace.clusters.ray_cache_servers.RayCacheServers`. None: none does.

    Attributes:
        host: address of this node, at which the others reach it.

    Raises:
        ServiceError: there is no such Ray cluster, or it cannot be joined.
    """

    def __init__(
        self,
        dispatcher: Callable[[], str],
        options: Sequence[str] = (),
        token: str | None = None,
        tls: str = "",
        *,
        ray_address: str = "auto",
        num_cpus: float = 1.0,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        source_cache: tuple[str, Sequence[str]] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._options = ["--threads", str(max(1, int(num_cpus))), *options]
        self._token, self._tls = token, tls
        _join(ray_address)
        self._holder = ray.remote(_WorkerActor).options(
            num_cpus=num_cpus,
            memory=memory,
            resources=dict(resources or {}),
            scheduling_strategy="SPREAD",
            max_restarts=0,  # who ends is replaced, or not, by the dispatcher
            max_task_retries=-1,  # a node that cannot be reached for a moment has not ended anything
            max_concurrency=2,  # it waits for its worker, and is told to end it
        )
        self._actors: dict[str, Any] = {}
        self._nodes: dict[str, str] = {}
        self._source_cache = source_cache
        self._cache_servers: RayCacheServers | None = None
        self._followers: set[asyncio.Task[None]] = set()
        self._ended: Ended = lambda worker, how, orderly: None
        self.host: str = ray.util.get_node_ip_address()

    def watch(self, ended: Ended) -> None:
        """Have ``ended`` called for each worker that ends."""
        self._ended = ended

    async def start(self, workers: int) -> None:
        """Ask Ray for so many more actors; do not wait for it to have room for them."""
        host, port = parse_address(self._dispatcher())
        address = format_address(self.host if host in WILDCARDS else host, port)
        if self._source_cache is not None and self._cache_servers is None:
            folder, options = self._source_cache
            told = ["--dispatcher", address, *options]
            self._cache_servers = RayCacheServers(told, folder, self._token, self._tls)
        asked: dict[str, Any] = {}
        try:
            for name in [uuid.uuid4().hex for _ in range(workers)]:
                asked[name] = self._holder.remote(name, address, self._options, self._token, self._tls)
        except (ValueError, TypeError, RuntimeError, RayError) as error:
            # Ray ends actors that nobody holds.
            raise ServiceError(f"Ray starts no further worker: {error}") from error
        self._actors.update(asked)
        for name, actor in asked.items():
            follower = asyncio.create_task(self._follow(name, actor))
            self._followers.add(follower)
            follower.add_done_callback(self._followers.discard)

    async def forgo(self, workers: int) -> int:
        """Give up so many of those that Ray has no room for, the last ones first."""
        waiting = [name for name in reversed(self._actors) if name not in self._nodes][:workers]
        for name in waiting:
            ray.kill(self._actors.pop(name))
        return len(waiting)

    def running(self) -> list[str]:
        """Return the ids of the workers whose actors have said where they are."""
        return list(self._nodes)

    async def stop(self, workers: Sequence[str]) -> None:
        """End these, those that don't react within seconds by force; give up those that Ray has no room for."""
        await asyncio.gather(*(self._end(name, self._actors[name]) for name in workers if name in self._actors))

    async def close(self) -> None:
        """End all of them, and leave the Ray cluster."""
        self._ended = lambda worker, how, orderly: None
        await self.stop(list(self._actors))
        await asyncio.gather(*self._followers)
        if self._cache_servers is not None:  # behind the workers, which would complain that they have gone
            await self._cache_servers.close()
        ray.shutdown()

    async def _end(self, name: str, actor: Any) -> None:
        if name in self._nodes:
            with contextlib.suppress(RayError, TimeoutError):  # it has ended, or is ended now
                await asyncio.wait_for(actor.end.remote(), GRACE_S)
        ray.kill(actor)

    async def _follow(self, name: str, actor: Any) -> None:
        """Follow a worker from when it was asked for to its end."""
        try:
            self._nodes[name], node = await actor.node.remote()
            if self._cache_servers is not None:
                self._cache_servers.worker_came(name, node, self._nodes[name])
            status = await actor.wait.remote()
            how, orderly = describe_exit(status), status == 0
        except RayError as error:
            how, orderly = actor_end_reason(error, self._nodes.get(name, "")), False
        self._nodes.pop(name, None)
        if self._cache_servers is not None:
            self._cache_servers.worker_went(name)
        # Ray ends an actor that nobody holds once it has answered all calls.
        if self._actors.pop(name, None) is not None:  # else it was given up
            self._ended(name, how, orderly)


def _join(address: str) -> None:
    """Connect this process to a Ray cluster."""
    where, told = address, ""
    if address == "auto" and (named := os.environ.get("RAY_ADDRESS")):
        where, told = named, " (RAY_ADDRESS in the environment)"
    advice = (
        "this machine has to be one of its nodes: `ray start --head` begins a cluster, `ray start --address HOST:PORT`"
        " joins one"
    )
    if "://" in where:
        raise ServiceError(f"workers could not reach a dispatcher that is a client of {where}{told}; {advice}")
    # Ray itself takes minutes to find that out.
    if ":" in where and not answers(where, ANSWER_S):
        raise ServiceError(f"there is no Ray cluster at {where}{told}: nobody answers; {advice}")
    try:
        ray.init(where, namespace="millrace", logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        raise ServiceError(f"the Ray cluster {where!r}{told} cannot be joined: {error}; {advice}") from error


def actor_end_reason(error: RayError, node: str) -> str:
    """Say how an actor ended: in Ray's words, without the names of things that they begin with.

    Args:
        error: of a call of the actor.
        node: address of its node; empty: it was on none yet.
    """
    said = str(error)
    if not node and "ray.kill" in said:
        return "was given up before Ray had room for it"
    if "node has died" in said:
        return f"was lost with node {node}"
    first, *others = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("\t")]
    return f"ended with its actor on {node or 'Ray'}: {' '.join(others) or first}"


class _WorkerActor:
    """Actor that holds one worker process, which ends with it."""

    def __init__(self, name: str, dispatcher: str, options: Sequence[str], token: str | None, tls: str) -> None:
        self._host: str = ray.util.get_node_ip_address()
        # Ray sets as many OpenMP threads as an actor has cores; a worker has that many threads of its own.
        extra = {"OMP_NUM_THREADS": "1"}
        self._process = spawn(
            ["worker", "--dispatcher", dispatcher, "--name", name, "--host", self._host, *options],
            worker=True,
            token=token,
            tls=tls,
            stdout=STDERR,
            extra=extra,
        )

    def node(self) -> tuple[str, str]:
        """Address and id of its node."""
        return self._host, ray.get_runtime_context().get_node_id()

    def wait(self) -> int:
        return self._process.wait()

    def end(self) -> None:
        hang_up(self._process)
        reap(self._process)
