"""Workers as pods of a Kubernetes Deployment, one process in each, scaled through the API server.

Two want to have a say in how many there are: the ReplicaSet, which replaces pods that go, and the dispatcher, which
replaces workers that end. The rules that keep them from working against each other:

- A pod is one process. When that has ended the pod is deleted, though Kubernetes would start another in its place.
- ``wanted`` is what the dispatcher believes: workers asked for, less those whose end was told; ``spare`` are those of a
  dispatcher before it. The Deployment gets as many replicas, less the pods that are being ended on purpose. It is
  written only where it differs, so that a worker that died and is replaced costs one deletion, and the ReplicaSet does
  the rest.
- Pods that are to go are deleted by name, then the replicas are lowered. In between the ReplicaSet begins to replace
  them, and then takes those replacements back, because it takes first what has not started, is not ready, or is newest.
  The other way round it would take pods of its own choice, and `controller.kubernetes.io/pod-deletion-cost` does not
  prevent that: it is looked at only among pods that are equally ready, and a worker is at work before its node has
  found it ready. If this process dies in between, there is one worker more than needed, and no work is lost.
- A pod that others delete is replaced by the ReplicaSet, or was one too many for it: either way there are as many as
  wanted, and nobody is told. Only of those that are evicted, or lost with their nodes, is the dispatcher told, so that
  it decides about their replacement as it does for all others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from millrace.clusters import pods
from millrace.clusters.api_server import ApiServer, Change, RefusedError
from millrace.dispatcher.cluster_contract import Cluster, Ended
from millrace.errors import MillraceError
from millrace.wire.backoff import delays

STOP_S = 10.0
"""Seconds that a pod may take to end after it was told to; after that nobody waits for its node to say so."""
CLOSE_S = 45.0
"""Seconds that closing may take while the API server does not help."""
CREATED_S = 5.0
"""Seconds after which pods that were asked for should be there, with a process in them or not."""
_NOT_FOUND, _CONFLICT = 404, 409
_DELETED = {401, 403, _NOT_FOUND}
"""Answers to a dispatcher that ends because its whole service is deleted, its account and the Deployment as well."""
_AT_ONCE = 1
"""Seconds from SIGTERM to SIGKILL for a process that was given up; 0 would mean: do not wait for its node."""
_TOGETHER = 16
"""Most deletions under way at a time."""

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Pod:
    """Pod, as far as it is known.

    Attributes:
        name: also the id of the worker in it.
        uid: of the pod; no other ever has it.
        restarts: number of times that its process had been started anew when it was first seen.
        has_run: there was a process in it.
        condemned: it is to go.
        reported: its end was reported, or counted where nobody is to be told.
        deleted: the API server was asked to delete it.
        leaving: it has ended, or is being ended by whomever.
        complaint: why there is no process in it, as was logged.
        over: set when its end was reported or it is no more.
    """

    name: str
    uid: str
    restarts: int
    has_run: bool = False
    condemned: bool = False
    reported: bool = False
    deleted: bool = False
    leaving: bool = False
    complaint: str = ""
    over: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class KubernetesCluster(Cluster):
    """Cluster (:class:`~millrace.dispatcher.cluster_contract.Cluster`) that scales a Deployment, on the event loop.

    The Deployment belongs to the service: nobody else may scale it. Its pods' workers are named by their pods, and
    find the dispatcher by their own arguments. Pods that are there from the beginning, because a dispatcher has died,
    are the first to be given to whoever asks for workers. Until somebody does they run on, and as nobody asked for as
    many as there are, it is told of no end: they register, and the dispatcher has those leave that are too many.

    Args:
        deployment: its name.
        api: API server, with the namespace of the Deployment; :meth:`close` closes it.
    """

    def __init__(self, deployment: str, api: ApiServer) -> None:
        self._name = deployment
        self._api = api
        self._scale_path = f"apps/v1/deployments/{deployment}/scale"
        self._ended: Ended = lambda worker, how, orderly: None
        self._pods: dict[str, _Pod] = {}
        self._wanted = 0
        self._spare = 0
        self._selector = ""
        self._taking_over = asyncio.Lock()
        self._reconciling = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._trouble = ""
        self._creation_watch: asyncio.Task[None] | None = None

    def trouble(self) -> str:
        """Say why there are fewer pods than were asked for, or no process in one; empty if nothing is wrong."""
        waiting = (pod.complaint for pod in self._pods.values() if pod.complaint and not pod.condemned)
        return self._trouble or next(waiting, "")

    def watch(self, ended: Ended) -> None:
        """Have ``ended`` called for each worker process that ends."""
        self._ended = ended

    async def start(self, workers: int) -> None:
        """Ask for so many more replicas, or take over as many of those that are there."""
        self._wanted += workers
        claimed = 0
        try:
            async with self._taking_over:
                if self._watching is None:
                    await self._take_over()
            claimed = min(self._spare, workers)
            self._spare -= claimed
            await self._reconcile()
        except BaseException:
            self._wanted -= workers
            self._spare += claimed
            raise

    async def forgo(self, workers: int) -> int:
        """Give up so many replicas in which no process has run; pods that wait for a node go by name."""
        begun = sum(1 for pod in self._pods.values() if pod.has_run and not pod.reported)
        given_up = min(workers, self._wanted, self._wanted + self._spare - begun)
        if given_up <= 0:
            return 0
        for pod in [pod for pod in self._pods.values() if not (pod.has_run or pod.reported)][-given_up:]:
            pod.condemned = pod.reported = True  # nobody asks for it any more
        self._wanted -= given_up
        await self._try_reconcile()
        return given_up

    def running(self) -> list[str]:
        """Return the pods in which a process runs, but for those that are on their way out."""
        return [pod.name for pod in self._pods.values() if pod.has_run and not (pod.reported or pod.leaving)]

    async def stop(self, workers: Sequence[str]) -> None:
        """End these pods, with a second for their processes, and wait until they have ended."""
        named = set(workers)
        chosen = [pod for pod in self._pods.values() if pod.name in named and not pod.reported]
        for pod in chosen:
            pod.condemned = True
        await self._reconcile()
        await self._wait_for_end(chosen)

    async def close(self) -> None:
        """End all pods and wait for that. If the API server does not help, the log says what is left."""
        self._closed = self._api.closing = True
        try:
            if self._watching is not None:
                async with asyncio.timeout(CLOSE_S):
                    self._wanted = self._spare = 0
                    await self._reconcile()
                    while left := await self._left():
                        for pod in left:
                            pod.condemned = True
                        await self._reconcile()
                        await self._wait_for_end(left)
        except (MillraceError, TimeoutError) as error:
            if isinstance(error, RefusedError) and error.status in _DELETED:
                _logger.warning(
                    "Deployment %s is no longer this dispatcher's to scale, as when all of the service is deleted; else"
                    " `kubectl scale deployment %s --replicas=0` ends what is left: %s",
                    self._name,
                    self._name,
                    error,
                )
                return
            _logger.error(  # noqa: TRY400 - it says it all
                "pods of Deployment %s may be left; end them by `kubectl scale deployment %s --replicas=0`: %s",
                self._name,
                self._name,
                str(error) or "they did not end in time",
            )
        finally:
            tasks = [task for task in (self._watching, self._creation_watch, *self._tasks) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._watching = None
            await self._api.close()

    # -- how many --------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        """Count the replicas that are there already."""
        scale = await self._scale()
        self._selector = scale["status"]["selector"]
        listed = await self._list()
        self._spare = scale["spec"].get("replicas", 0)
        self._listed(listed["items"])
        self._watching = asyncio.create_task(self._follow())
        self._watching.add_done_callback(_say_why)

    async def _left(self) -> list[_Pod]:
        """Find the pods that have not ended, also if the watch has not told of them yet."""
        self._listed((await self._list())["items"])
        return [pod for pod in self._pods.values() if not pod.over.is_set()]

    async def _list(self) -> Any:
        return await self._api.request("GET", "/v1/pods", labelSelector=self._selector)

    async def _reconcile(self) -> None:
        """Delete condemned pods, and give the Deployment the replicas that are wanted."""
        pauses, raised = delays(0.05, 2.0), False
        async with self._reconciling:
            while True:
                if condemned := [pod for pod in self._pods.values() if pod.condemned and not pod.deleted]:
                    await self._each(condemned, self._delete)
                scale = await self._scale()
                # Only now: whoever was told of an end has had the time to ask for another one.
                if any(pod.condemned and not pod.deleted for pod in self._pods.values()):
                    continue  # lowered before these are gone, others would go
                going = sum(1 for pod in self._pods.values() if pod.condemned and not pod.reported)
                target = max(0, self._wanted + self._spare - going)
                there = scale["spec"].get("replicas", 0)
                if there == target or await self._rescale(scale, target):
                    raised = there < target
                    break
                await asyncio.sleep(next(pauses))  # a Deployment changes whenever one of its pods does
        if raised and self._creation_watch is None and not self._closed:
            self._creation_watch = asyncio.create_task(self._watch_creation())

    async def _watch_creation(self) -> None:
        """Report trouble while the Deployment has created too few pods, as where a quota is used up."""
        try:
            while True:
                await asyncio.sleep(CREATED_S)
                try:
                    scale = await self._scale()
                except RefusedError as error:
                    _logger.info("whether all pods were created is not known: %s", error)
                    self._trouble = ""
                    return
                except MillraceError as error:
                    _logger.info("whether all pods were created is not known yet: %s", error)
                    continue
                wanted, created = scale["spec"].get("replicas", 0), scale["status"].get("replicas", 0)
                trouble = ""
                if created < wanted:
                    trouble = (
                        f"{created} of {wanted} pods of Deployment {self._name} were created; `kubectl describe "
                        f"deployment {self._name}` and `kubectl describe quota` say why"
                    )
                if trouble and trouble != self._trouble:
                    _logger.warning("%s", trouble)
                self._trouble = trouble
                if not trouble:
                    return
        finally:
            self._creation_watch = None

    async def _scale(self) -> Any:
        try:
            return await self._api.request("GET", self._scale_path)
        except RefusedError as error:
            advice = "apply deploy/kubernetes" if error.status == _NOT_FOUND else "see docs/kubernetes.md on its role"
            refused = f"Deployment {self._name} cannot be scaled; {advice}: {error}"
            raise RefusedError(refused, error.status) from error

    async def _rescale(self, scale: dict[str, Any], replicas: int) -> bool:
        """Change the replicas; False: somebody has changed the Deployment since ``scale`` was read."""
        body = {**scale, "spec": {**scale["spec"], "replicas": replicas}}
        try:
            await self._api.request("PUT", self._scale_path, body)
        except RefusedError as error:
            if error.status == _CONFLICT:
                return False
            raise
        _logger.info("Deployment %s is to have %d replicas", self._name, replicas)
        return True

    async def _delete(self, pod: _Pod) -> None:
        # Whatever runs in one whose end was told is another process, and may leave in good order.
        await self._delete_in(pod, None if pod.reported else _AT_ONCE)
        pod.deleted = True

    async def _delete_in(self, pod: _Pod, grace_s: int | None) -> None:
        """Have a pod deleted within so many seconds; None: within those that the Deployment gives it."""
        body: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.uid}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._api.request("DELETE", f"/v1/pods/{pod.name}", body)
        except RefusedError as error:
            if error.status not in {_NOT_FOUND, _CONFLICT}:  # it is not there any more, which the watch will say
                raise

    async def _each(self, chosen: Iterable[_Pod], do: Callable[[_Pod], Awaitable[None]]) -> None:
        room = asyncio.Semaphore(_TOGETHER)

        async def one(pod: _Pod) -> None:
            async with room:
                await do(pod)

        for failure in await asyncio.gather(*map(one, chosen), return_exceptions=True):
            if failure is not None:
                raise failure

    async def _wait_for_end(self, chosen: Sequence[_Pod]) -> None:
        """Wait until these have ended; a node that does not say so in time is not waited for."""
        waiting = [asyncio.ensure_future(pod.over.wait()) for pod in chosen]
        if not waiting:
            return
        try:
            await asyncio.wait(waiting, timeout=STOP_S)
            late = [pod for pod in chosen if not pod.over.is_set()]
            for pod in late:
                _logger.warning("pod %s does not end; it is deleted without waiting for its node", pod.name)
                await self._delete_in(pod, 0)
            await asyncio.gather(*waiting)
        finally:
            for each in waiting:
                each.cancel()

    # -- what becomes of them --------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        async for change in self._api.watch("/v1/pods", labelSelector=self._selector):
            self._note(change)

    def _note(self, change: Change) -> None:
        match change:
            case ("LISTED", items):
                self._listed(items)
                self._reconcile_soon()  # the API server is there (again), and may not have heard all
            case ("DELETED", pod):
                self._update(pod)
                self._remove(pod["metadata"]["uid"])
            case (_, pod):
                self._update(pod)

    def _listed(self, items: list[Any]) -> None:
        for uid in self._pods.keys() - {pod["metadata"]["uid"] for pod in items}:
            self._remove(uid)
        for pod in sorted(items, key=lambda each: each["metadata"]["uid"] not in self._pods):  # what goes, what came
            self._update(pod)

    def _update(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        known = self._pods.get(meta["uid"])
        if known is None:
            known = self._pods[meta["uid"]] = _Pod(meta["name"], meta["uid"], pods.restarts(pod))
        known.has_run = known.has_run or pods.has_run(pod)
        how = pods.exit_reason(pod, known.restarts)
        if how or "deletionTimestamp" in meta:
            self._mark_leaving(known, replaced="deletionTimestamp" in meta and not pods.is_disrupted(pod))
        if how and known.has_run:
            self._report_end(known, how, orderly=pods.ended_in_order(pod, known.restarts))
        complaint = pods.waiting_reason(pod)
        if complaint and complaint != known.complaint:
            _logger.warning("pod %s does not run: %s", known.name, complaint)
        known.complaint = complaint

    def _remove(self, uid: str) -> None:
        pod = self._pods.pop(uid)
        self._mark_leaving(pod, replaced=True)
        if pod.has_run:
            self._report_end(pod, "was ended with its pod, which was deleted", orderly=False)
        pod.over.set()

    def _mark_leaving(self, pod: _Pod, *, replaced: bool) -> None:
        """Note that a pod begins to go; perhaps nobody has asked for it, or its ReplicaSet replaces it."""
        if pod.leaving:
            return
        pod.leaving = True
        if pod.condemned:
            return
        if replaced:
            pod.reported = True
        elif self._spare:
            pod.reported = True
            self._spare -= 1

    def _report_end(self, pod: _Pod, how: str, *, orderly: bool) -> None:
        """Report that a pod's process has ended: the pod goes, and who asked for it may ask for another one."""
        if pod.over.is_set():
            return
        pod.over.set()
        pod.condemned = True
        if self._closed:
            return
        if not pod.reported:
            pod.reported = True
            self._wanted -= 1
            self._ended(pod.name, how, orderly)
        self._reconcile_soon()

    def _reconcile_soon(self) -> None:
        if not self._closed:
            task = asyncio.ensure_future(self._try_reconcile())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _try_reconcile(self) -> None:
        try:
            await self._reconcile()
        except MillraceError as error:
            # Done when the watch is back, or with what is asked next.
            _logger.warning("Deployment %s is not what it should be: %s", self._name, error)


def _say_why(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _logger.critical("nothing is heard of pods any more; start the dispatcher again", exc_info=task.exception())
