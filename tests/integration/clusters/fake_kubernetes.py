"""A small Kubernetes: an API server on a real socket, its controllers, and a node whose pods are real processes.

It is made of the project's own manifests: it runs the Deployment's container with its arguments and variables, each pod
at an address of its own, and allows what the Role allows. Everything it does can go wrong on request: see the methods
without an underscore.
"""

import asyncio
import contextlib
import copy
import functools
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web
from tests.manifests import insecure, manifest

from millrace.clusters.child_process import reap

NAMESPACE = "millrace"
DEPLOYMENT = "millrace-worker"
TOKEN = "of the service account"
SECRET = "shared-by-all"
LABELS = "app.kubernetes.io/name=millrace,app.kubernetes.io/component=worker"
_PROBE_S = 0.1
_CLAIM_PORT = 5049


def _own_net() -> tuple[str, socket.socket]:
    """Network of loopback for pods, so that those of several fakes may listen on the same port, and a claim to it."""
    while True:
        number = random.SystemRandom().randrange(1 << 14)
        net = f"127.{64 + (number >> 8)}.{number & 255}"
        with contextlib.suppress(OSError):  # another one has it
            return net, socket.create_server((f"{net}.254", _CLAIM_PORT))


class FakeKubernetes:
    """A cluster with one node. Belongs to the event loop.

    Args:
        dispatcher: says where the pods find it.
        tls: folder that lies where the pods' secret is to; empty: the pods are those without TLS.

    Attributes:
        url: of the API server.
        token: what it demands, if not empty.
        done: each (verb, resource) that was allowed.
        asked: each request's method, path, and status of the answer.
        pods: the pods, as the API shows them, by name.
        start_s: what the node takes to start a pod.
        restart_s: what it takes to start a process anew.
        found_ready: it looks whether pods are ready.
        quota: pods that the namespace may have.
    """

    def __init__(self, dispatcher: Callable[[], str], tls: str = "") -> None:
        self.url = ""
        self.token = TOKEN
        self.done: set[tuple[str, str]] = set()
        self.asked: list[tuple[str, str, int]] = []
        self.pods: dict[str, dict[str, Any]] = {}
        self.start_s, self.restart_s = 0.0, 0.3
        self.found_ready = True
        self.quota = 1 << 30
        self._dispatcher = dispatcher
        self._tls = tls
        self._deployment = manifest("Deployment", DEPLOYMENT) if tls else insecure(manifest("Deployment", DEPLOYMENT))
        self._deployment["metadata"]["resourceVersion"] = "1"
        self._rules = manifest("Role", "millrace-dispatcher")["rules"]
        self._version = 1
        self._history: list[tuple[int, str, dict[str, Any]]] = []
        self._compacted = 0
        self._watches: set[asyncio.Queue[Any]] = set()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._refusals: list[tuple[int, dict[str, str]]] = []
        self._conflicts = 0
        self._held = False
        self._lost: set[str] = set()
        self._names: Iterator[int] = iter(range(1, 250))
        self._random = random.Random(1)
        self._net, self._claim = _own_net()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def start(self, tls: ssl.SSLContext | None = None) -> str:
        """Listens at a free port of this machine; returns the URL."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """Ends everything; what runs is killed."""
        self._closed = True
        for name in list(self._processes):
            self._signal(name, signal.SIGKILL)
        self.cut_watches()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in self._processes.values():
            reap(process)
        self._claim.close()
        await self._runner.cleanup()

    # -- what can go wrong ---------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> int:
        """As the Deployment has them."""
        count: int = self._deployment["spec"]["replicas"]
        return count

    def refuse(self, times: int, status: int, **headers: str) -> None:
        """Answers the next requests so, whatever they ask; 0: hangs up without an answer."""
        self._refusals += [(status, headers)] * times

    def delete_all(self) -> None:
        """As `kubectl delete -k`: the account and its role go first, then the Deployment and with it its pods."""
        self._rules = []
        self._deployment["spec"]["replicas"] = 0
        self._soon(self._reconcile())

    def conflict(self, times: int) -> None:
        """Has somebody else change the Deployment just before it is next scaled, so often."""
        self._conflicts += times

    def expire_watches(self, *, quietly: bool = False) -> None:
        """Forgets all changes so far, so that who has missed any must list; ``quietly``: running watches just end."""
        self._compacted = self._version
        self._history.clear()
        gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
        for watch in self._watches:
            watch.put_nowait(None if quietly else {"type": "ERROR", "object": gone})

    def cut_watches(self) -> None:
        """Ends all watches in the middle of things."""
        for watch in self._watches:
            watch.put_nowait(None)

    def hold_pods(self) -> None:
        """No node has room for a pod, until :meth:`release_pods`."""
        self._held = True

    def release_pods(self) -> None:
        """There is room again."""
        self._held = False
        for name in self.pods:
            self._soon(self._bind(name))

    def evict(self, name: str) -> None:
        """The node is short of memory: its kubelet ends the pod, which stays as a failed one."""
        pod = self.pods[name]
        self._signal(name, signal.SIGKILL)
        pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        self._disrupt(pod, "TerminationByKubelet", "The node was low on resource: memory.")
        self._changed("MODIFIED", pod)
        self._soon(self._reconcile())

    def drain(self, name: str) -> None:
        """Somebody empties the node, by the eviction API."""
        self._disrupt(self.pods[name], "EvictionByEvictionAPI", "Eviction API: evicting")
        self._delete(name, None)

    def out_of_memory(self, name: str) -> None:
        """The kernel kills its process."""
        self.pods[name]["millrace/oom"] = True
        self._signal(name, signal.SIGKILL)

    def lose_node(self, name: str) -> None:
        """Its node, process and all, is not heard of any more."""
        self._lost.add(name)
        self._signal(name, signal.SIGKILL)

    def give_up_node(self, name: str) -> None:
        """A controller has waited for the node of such a pod for long enough, and marks it for deletion."""
        pod = self.pods[name]
        self._disrupt(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
        self._delete(name, None)

    # -- the API server ------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, query = request.path, request.query
        try:
            response = await self._handle(request, path, query)
        except web.HTTPException as error:
            self.asked.append((request.method, path, error.status))
            raise
        self.asked.append((request.method, path, response.status))
        return response

    async def _handle(self, request: web.Request, path: str, query: Any) -> web.StreamResponse:
        if self._refusals:
            status, headers = self._refusals.pop(0)
            if not status:
                assert request.transport is not None
                request.transport.abort()
                raise web.HTTPInternalServerError
            return _status(status, "as the test wants it", headers)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        scale = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{DEPLOYMENT}/scale"
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        verb = {"GET": "get", "PUT": "update", "DELETE": "delete"}[request.method]
        if path == pods:
            verb = "watch" if query.get("watch") else "list"
        resource = "pods" if path.startswith(pods) else "deployments/scale"
        if not any(resource in rule["resources"] and verb in rule["verbs"] for rule in self._rules):
            return _status(403, f"{verb} {resource} is forbidden")
        self.done.add((verb, resource))
        body = await request.json() if request.can_read_body else {}
        if path == pods:
            assert query["labelSelector"] == LABELS
            return await self._watch(request, int(query["resourceVersion"])) if verb == "watch" else self._list()
        if path.startswith(f"{pods}/"):
            return self._one(verb, path.rpartition("/")[2], request, body)
        if path == scale:
            return self._scale(verb, body)
        return _status(404, f"{path} not found")

    def _list(self) -> web.StreamResponse:
        meta = {"resourceVersion": str(self._version)}
        return web.json_response({"kind": "PodList", "metadata": meta, "items": list(self.pods.values())})

    async def _watch(self, request: web.Request, since: int) -> web.StreamResponse:
        if since < self._compacted:
            return _status(410, f"too old resource version: {since} ({self._compacted})")
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        for version, kind, pod in self._history:
            if version > since:
                queue.put_nowait({"type": kind, "object": pod})
        self._watches.add(queue)
        try:
            while (event := await queue.get()) is not None:
                line = json.dumps(event).encode() + b"\n"
                middle = self._random.randrange(len(line))  # HTTP may cut it anywhere
                await response.write(line[:middle])
                await asyncio.sleep(0.002)  # so that they travel apart
                await response.write(line[middle:])
        except ConnectionError:
            pass  # whoever watched has left
        finally:
            self._watches.discard(queue)
        return response

    def _one(self, verb: str, name: str, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        pod = self.pods.get(name)
        if pod is None:
            return _status(404, f'pods "{name}" not found')
        if body.get("preconditions", {}).get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            return _status(409, "the UID in the precondition does not match")
        if verb == "delete":
            assert body["kind"] == "DeleteOptions"
            self._delete(name, body.get("gracePeriodSeconds"))
        return web.json_response(pod)

    def _scale(self, verb: str, body: dict[str, Any]) -> web.StreamResponse:
        meta = self._deployment["metadata"]
        if verb == "update":
            if self._conflicts:
                self._conflicts -= 1
                self._version += 1
                meta["resourceVersion"] = str(self._version)
            if body["metadata"]["resourceVersion"] != meta["resourceVersion"]:
                return _status(409, "the object has been modified; please apply your changes to the latest version")
            self._version += 1
            meta["resourceVersion"] = str(self._version)
            self._deployment["spec"]["replicas"] = body["spec"]["replicas"]
            self._soon(self._reconcile())
        there = sum(map(_is_counted, self.pods.values()))
        shown = {key: meta[key] for key in ("name", "namespace", "resourceVersion")}
        # Like Go's encoder for this field, it leaves a zero out.
        spec = {"replicas": self.replicas} if self.replicas else {}
        return web.json_response(
            {"kind": "Scale", "metadata": shown, "spec": spec, "status": {"replicas": there, "selector": LABELS}}
        )

    def _changed(self, kind: str, pod: dict[str, Any]) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        shown = copy.deepcopy(pod)
        self._history.append((self._version, kind, shown))
        for watch in self._watches:
            watch.put_nowait({"type": kind, "object": shown})

    # -- the ReplicaSet's controller -----------------------------------------------------------------------------------

    async def _reconcile(self) -> None:
        await asyncio.sleep(0)  # it hears of it, and does it, a little later
        counted = [pod for pod in self.pods.values() if _is_counted(pod)]
        for _ in range(min(self.replicas, self.quota) - len(counted)):
            self._create()
        for pod in sorted(counted, key=_rank)[: max(0, len(counted) - self.replicas)]:
            self._delete(pod["metadata"]["name"], None)

    def _create(self) -> None:
        number = next(self._names)
        template = self._deployment["spec"]["template"]
        name = f"{DEPLOYMENT}-7d9f-{number:03}"
        meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{number}", "labels": template["metadata"]["labels"]}
        meta["creationTimestamp"] = f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z"
        status = {"phase": "Pending", "podIP": f"{self._net}.{number}"}
        self.pods[name] = {"metadata": meta, "spec": copy.deepcopy(template["spec"]), "status": status}
        self._changed("ADDED", self.pods[name])
        self._soon(self._bind(name))

    def _delete(self, name: str, grace: int | None) -> None:
        pod = self.pods[name]
        process = self._processes.get(name)
        runs = process is not None and process.returncode is None
        patience = pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
        before = pod["metadata"].get("deletionGracePeriodSeconds")
        if not patience or (name not in self._lost and not runs):
            self._signal(name, signal.SIGKILL)
            self._remove(name)
        elif before is None or patience < before:
            pod["metadata"] |= {"deletionTimestamp": "2026-01-01T01:00:00Z", "deletionGracePeriodSeconds": patience}
            self._changed("MODIFIED", pod)
            if name not in self._lost:
                self._signal(name, signal.SIGTERM if before is None else 0)
                asyncio.get_running_loop().call_later(patience, self._signal, name, signal.SIGKILL)
        self._soon(self._reconcile())

    def _remove(self, name: str) -> None:
        self._changed("DELETED", self.pods.pop(name))
        self._soon(self._reconcile())

    # -- the scheduler and the node's kubelet --------------------------------------------------------------------------

    async def _bind(self, name: str) -> None:
        await asyncio.sleep(self.start_s)
        pod = self.pods.get(name)
        if pod is None or name in self._processes:
            return
        if self._held:
            message = "0/1 nodes are available: 1 Insufficient cpu."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            pod["status"]["conditions"] = [condition]
            self._changed("MODIFIED", pod)
            return
        pod["spec"]["nodeName"] = "node-1"
        pod["status"]["conditions"] = []
        self._run(name, 0, {})

    def _run(self, name: str, restarts: int, last: dict[str, Any]) -> None:
        pod = self.pods[name]
        (container,) = pod["spec"]["containers"]
        values = {variable["name"]: _value(variable, pod) for variable in container["env"]}
        if self._tls:
            values["MILLRACE_TLS"] = self._tls
        arguments = [
            functools.reduce(lambda text, name: text.replace(f"$({name})", values[name]), values, argument)
            for argument in container["args"]
        ]
        dns = {"--dispatcher=grpc://millrace-dispatcher:5050": f"--dispatcher={self._dispatcher()}"}
        process = subprocess.Popen(
            [sys.executable, "-m", "millrace", *(dns.get(each, each) for each in arguments), "--parent-pipe"],
            env={**os.environ, **values},
            stdin=subprocess.PIPE,  # so that it ends with this process, however that ends
            start_new_session=True,
        )
        self._processes[name] = process
        status = {"name": container["name"], "restartCount": restarts, "state": {"running": {}}, "lastState": last}
        pod["status"] |= {"phase": "Running", "containerStatuses": [status]}
        self._ready(pod, False)
        self._soon(self._probe(name, process))
        handle = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(handle, self._exited, name, process, handle)

    async def _probe(self, name: str, process: subprocess.Popen[bytes]) -> None:
        while process.returncode is None and self.found_ready:
            await asyncio.sleep(_PROBE_S)
            pod = self.pods.get(name)
            if pod is None:
                return
            try:
                _, writer = await asyncio.open_connection(pod["status"]["podIP"], 5051)
            except OSError:
                continue
            writer.close()
            if self._processes.get(name) is process and process.returncode is None:
                self._ready(pod, True)
            return

    def _ready(self, pod: dict[str, Any], ready: bool) -> None:
        pod["status"]["containerStatuses"][0]["ready"] = ready
        self._changed("MODIFIED", pod)

    def _exited(self, name: str, process: subprocess.Popen[bytes], handle: int) -> None:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        code = reap(process)
        pod = self.pods.get(name)
        if pod is None or name in self._lost or self._closed:
            return
        reason = "OOMKilled" if pod.pop("millrace/oom", False) else "Error" if code else "Completed"
        ended = {"terminated": {"exitCode": 128 - code if code < 0 else code, "reason": reason}}
        status = pod["status"]["containerStatuses"][0]
        status["state"] = ended
        self._ready(pod, False)
        if "deletionTimestamp" in pod["metadata"]:
            self._remove(name)
        elif pod["status"]["phase"] != "Failed":
            self._soon(self._restart(name, pod, status["restartCount"] + 1, ended))

    async def _restart(self, name: str, pod: dict[str, Any], restarts: int, last: dict[str, Any]) -> None:
        await asyncio.sleep(self.restart_s)
        if self.pods.get(name) is pod:
            self._run(name, restarts, last)

    def _signal(self, name: str, number: int) -> None:
        process = self._processes.get(name)
        if process is not None and process.returncode is None:
            process.send_signal(number)

    def _disrupt(self, pod: dict[str, Any], reason: str, message: str) -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        pod["status"]["conditions"] = [condition]

    def _soon(self, work: Any) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_counted(pod: dict[str, Any]) -> bool:
    """Whether its ReplicaSet's controller counts it among its replicas."""
    over = pod.get("status", {}).get("phase") in {"Failed", "Succeeded"}
    return not over and "deletionTimestamp" not in pod["metadata"]


def _rank(pod: dict[str, Any]) -> tuple[Any, ...]:
    """In this order a ReplicaSet's controller takes pods away (its ActivePodsWithRanks, shortened)."""
    status = pod["status"]
    ready = any(container.get("ready") for container in status.get("containerStatuses", []))
    newest_first = -int(pod["metadata"]["uid"].rpartition("-")[2])
    return ("nodeName" in pod["spec"], status["phase"] == "Running", ready, newest_first)


def _value(variable: dict[str, Any], pod: dict[str, Any]) -> str:
    source = variable.get("valueFrom", {})
    if "fieldRef" in source:
        path = source["fieldRef"]["fieldPath"]
        meta = pod["metadata"]
        labels = {f"metadata.labels['{name}']": value for name, value in meta.get("labels", {}).items()}
        fields = {"metadata.name": meta["name"], "status.podIP": pod["status"]["podIP"], **labels}
        # A label that a pod lacks is empty; of another field that does not exist nothing may be made up.
        found: str = fields.get(path, "") if path.startswith("metadata.labels[") else fields[path]
        return found
    if "resourceFieldRef" in source:
        limits: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
        return limits[source["resourceFieldRef"]["resource"].removeprefix("limits.")]
    if "secretKeyRef" in source:
        return SECRET
    value: str = variable["value"]
    return value


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.StreamResponse:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code, headers=headers)
