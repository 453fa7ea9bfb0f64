"""Worker pool: as many workers as planned; starts new ones for those that end, more slowly if they die at once.

Those that are more than planned are told to leave by the dispatcher, and end by themselves. Neither that nor the end of
those that the dispatcher has given up is a death: their places are filled at once if more are planned again by then.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import platform
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from millrace.control.state.state import Worker
from millrace.dispatcher.cluster_contract import Cluster
from millrace.errors import MillraceError
from millrace.host_limits import process_space
from millrace.policies.scaling.respawn import respawn_at

_REMEMBERED = 100
_LEAVING = 10_000
"""Most workers that are known to leave: of those that are not the cluster's nobody tells the end."""
_RETRY_S = 10.0
"""Seconds after which a cluster that could not start workers is asked again."""
_logger = logging.getLogger(__name__)


class WorkerPool:
    """Workers that a cluster runs for this service. Belongs to the event loop.

    Args:
        cluster: starts and stops them.
        plan: number of workers that there should be.
        on_end: called with a worker's id and how it ended.
        notice: called with a sentence for all consumers.
    """

    def __init__(
        self,
        cluster: Cluster | None,
        plan: int,
        *,
        on_end: Callable[[str, str], None],
        notice: Callable[[str], None],
    ) -> None:
        self.plan = plan
        self.requested = 0
        self.why = ""
        self._cluster = cluster
        self._on_end = on_end
        self._notice = notice
        self._leaving: deque[str] = deque(maxlen=_LEAVING)
        self._stopped: deque[str] = deque(maxlen=_LEAVING)
        self._deaths: list[float] = []
        self._starting: asyncio.TimerHandle | None = None
        self._asking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def trouble(self) -> str:
        """Reason why not all workers are there, if it is known; empty otherwise."""
        return self.why or (self._cluster.trouble() if self._cluster is not None else "")

    def running(self) -> list[str]:
        """Return the ids of the workers whose processes run, whether they have registered or not."""
        return [] if self._cluster is None or self._closed else self._cluster.running()

    async def start(self) -> None:
        """Ask for all of them."""
        if self._cluster is None:
            return
        loop = asyncio.get_running_loop()
        self._cluster.watch(functools.partial(_threadsafe, loop, self._ended))
        self.requested = self.plan
        await self._cluster.start(self.plan)

    def resize(self, plan: int) -> None:
        """Change the plan. Those that are too many leave, or are given up if they have not begun."""
        self.plan = plan
        if self._starting is None:
            self._refill()
        if self._cluster is not None and self.requested > plan and not self._closed:
            self._run(self._forgo, self._cluster)

    async def close(self) -> None:
        """End all of them."""
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._cluster is not None:
            await self._cluster.close()

    def stop(self, workers: list[str], reason: str) -> None:
        """End the processes of these, if they are the cluster's, for what ``reason`` says of each."""
        if self._closed:
            return  # all of them are being ended, so it is no news that they are not there
        for worker in workers:
            _logger.warning("worker %s is given up: it %s", worker, reason)
        self._stopped.extend(workers)
        if self._cluster is not None:
            self._run(self._cluster.stop, workers)

    def leaves(self, worker: str) -> None:
        """Note that a worker was told to leave, or says that it does."""
        self._leaving.append(worker)

    def _ended(self, worker: str, how: str, orderly: bool) -> None:
        if self._closed:
            return
        self.requested = max(0, self.requested - 1)
        if worker:
            self._on_end(worker, how)
        if worker in self._stopped or (orderly and worker in self._leaving):
            _logger.info("worker %s has left: it %s", worker, how)
            if self._starting is None:
                self._refill()
            return
        _logger.warning("worker %s %s", worker or "(not registered)", how)
        loop = asyncio.get_running_loop()
        self._deaths = [*self._deaths, loop.time()][-max(_REMEMBERED, 2 * self.plan) :]
        if self.requested >= self.plan:
            return  # it was one too many
        decision = respawn_at(self._deaths, loop.time(), self.plan)
        if decision.value > loop.time():
            self.why = f"{decision.reason}; the last one {how}"
            self._notice(f"workers of this service keep ending: {self.why}")
        if self._starting is None:
            self._starting = loop.call_at(decision.value, self._refill)

    def _refill(self) -> None:
        self._starting = None
        missing = self.plan - self.requested
        if self._cluster is not None and missing > 0 and not self._closed:
            self.requested = self.plan
            self._run(self._start, self._cluster, missing)

    async def _forgo(self, cluster: Cluster) -> None:
        async with self._asking:
            if self.requested > self.plan:
                given_up = await cluster.forgo(self.requested - self.plan)
                self.requested -= given_up  # not in one statement: others may have ended meanwhile
        if self._starting is None:
            self._refill()  # more may be planned again

    async def _start(self, cluster: Cluster, workers: int) -> None:
        try:
            async with self._asking:  # what comes of it is counted before anything else is asked for
                await cluster.start(workers)
        except Exception:  # also what nobody expects of a cluster: these are not there, and are asked for again
            self.requested = max(0, self.requested - workers)
            if self._starting is None and not self._closed:
                self._starting = asyncio.get_running_loop().call_later(_RETRY_S, self._refill)
            raise
        else:
            self.why = ""

    def _run(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        task = asyncio.ensure_future(self._guarded(work, *args))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        try:
            await work(*args)
        except MillraceError as error:
            self.why = str(error)
            _logger.error("the cluster failed: %s", error)  # noqa: TRY400 - the message says it all
        except Exception as error:
            self.why = f"the cluster failed ({type(error).__name__}: {error}); the dispatcher's log has more"
            _logger.exception("the cluster failed")


def _threadsafe(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *args)


def process_exists(pid: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def dead_workers(workers: Iterable[Worker]) -> list[str]:
    """List workers of this host that are away and whose processes have ended: nobody need wait for them.

    A container may have its host's name, and numbers of processes of its own.
    """
    host, space = platform.node(), process_space()
    away = [worker for worker in workers if worker.lost_at is not None and worker.host == host and worker.pid]
    near = [worker for worker in away if worker.life.rpartition("/")[0] in {"", space}]
    return [worker.id for worker in near if not process_exists(worker.pid)]
