"""Where clusters are tried: a real dispatcher in this process, which real workers find by themselves.

A cluster that is to pass adds itself to ``CLUSTERS``: a function of what says where the dispatcher listens, giving an
async context manager of the cluster. What it starts has to run on this machine, as processes that can be killed.
"""

import asyncio
import contextlib
import functools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from chaos import child_processes

from millrace.clusters.subprocesses import LocalCluster
from millrace.control import inputs as inp
from millrace.dispatcher.cluster_contract import Cluster
from millrace.dispatcher.server import Dispatcher

PATIENCE_S = 60.0

Factory = Callable[[Callable[[], str]], contextlib.AbstractAsyncContextManager[Cluster]]


@contextlib.asynccontextmanager
async def local(address: Callable[[], str]) -> AsyncIterator[Cluster]:
    yield LocalCluster(address, ["--threads", "1"])


@contextlib.asynccontextmanager
async def kubernetes(address: Callable[[], str]) -> AsyncIterator[Cluster]:
    pytest.importorskip("aiohttp")
    from tests.integration.clusters.fake_kubernetes import DEPLOYMENT, NAMESPACE, TOKEN, FakeKubernetes

    from millrace.clusters.api_server import ApiServer
    from millrace.clusters.kubernetes import KubernetesCluster

    fake = FakeKubernetes(address)
    with tempfile.TemporaryDirectory() as account:
        (Path(account) / "token").write_text(TOKEN)
        try:
            yield KubernetesCluster(DEPLOYMENT, ApiServer(await fake.start(), NAMESPACE, account=account))
            assert fake.pods == {}
        finally:
            await fake.stop()


CLUSTERS: dict[str, Factory] = {"local": local, "kubernetes": kubernetes}


class Stage:
    """A cluster, and what becomes of the workers that it was asked for.

    Attributes:
        cluster: the one that is tried.
        ended: worker id and words, as the cluster told them, in order.
        orderly: ids of those that have ended in good order.
        seen: process id and worker id of all workers that ever registered.
    """

    def __init__(self, cluster: Cluster, dispatcher: Dispatcher) -> None:
        self.cluster = cluster
        self.ended: list[tuple[str, str]] = []
        self.orderly: set[str] = set()
        self.seen: dict[int, str] = {}
        self._dispatcher = dispatcher
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ended(worker: str, how: str, orderly: bool) -> None:
            loop.call_soon_threadsafe(self._end, worker, how, orderly)

        cluster.watch(ended)
        feed = dispatcher._feed

        def fed(*args):
            feed(*args)
            self.seen.update({worker["pid"]: worker["id"] for worker in dispatcher.status()["workers"]})
            self._changed.set()

        dispatcher._feed = fed  # type: ignore[method-assign]  # what it is told is what changes its workers

    def _end(self, worker: str, how: str, orderly: bool) -> None:
        self.ended.append((worker, how))
        if orderly:
            self.orderly.add(worker)
        if worker:
            self._dispatcher._feed(inp.WorkerEnded(worker, how))
        self._changed.set()

    @property
    def workers(self) -> dict[str, int]:
        """Those that are registered and reachable: id and process id."""
        found = self._dispatcher.status()["workers"]
        return {worker["id"]: worker["pid"] for worker in found if child_processes.runs(worker["pid"])}

    @property
    def told(self) -> Counter[str]:
        """How often the end of each worker was told."""
        return Counter(worker for worker, _ in self.ended)

    async def until(self, so: Callable[[], object]) -> None:
        """Waits until ``so()`` holds; looks whenever the dispatcher or the cluster has heard anything."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"in vain: {self.workers=} {self.ended=} {self.seen=}")

    async def until_there(self, count: int) -> dict[str, int]:
        """Waits until exactly so many workers are registered; returns them."""
        await self.until(lambda: len(self.workers) == count)
        return self.workers


async def gone(pids: list[int]) -> None:
    """Waits until all of these processes have ended."""
    for pid in pids:
        assert await asyncio.to_thread(child_processes.ends_within, pid, PATIENCE_S), f"process {pid} is still there"


async def play(story: Callable[[Stage], Awaitable[None]], factory: Factory) -> None:
    # Pods have what the manifest's secret has; children of this process find their user's token.
    dispatcher = Dispatcher(token="shared-by-all" if factory is kubernetes else None, heartbeat_s=1.0)
    await dispatcher.start()
    try:
        async with factory(lambda: f"grpc://{dispatcher.address}") as cluster:
            stage = Stage(cluster, dispatcher)
            try:
                await story(stage)
            finally:
                await cluster.close()
            told = list(stage.ended)
            await gone(list(stage.seen))
            assert stage.ended == told, "a closed cluster still told of ends"
            assert all(how for _, how in told)
    finally:
        await dispatcher.stop()


STORIES: list[Callable[[Stage], Awaitable[None]]] = []
"""All that :func:`on_every_cluster` has seen, for a cluster with needs of its own."""


def on_every_cluster(story: Callable[[Stage], Awaitable[None]]) -> Callable[[str], None]:
    """Makes a test for each cluster of a story on a stage. After each the cluster is closed, and nothing is left."""

    STORIES.append(story)

    @pytest.mark.parametrize("kind", list(CLUSTERS))
    @functools.wraps(story)
    def test(kind: str) -> None:
        asyncio.run(play(story, CLUSTERS[kind]))

    del test.__dict__["__wrapped__"]  # pytest would ask it for its arguments
    return test
