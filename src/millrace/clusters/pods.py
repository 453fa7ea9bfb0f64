"""Status of a pod, read for the one process in it."""

from __future__ import annotations

from typing import Any

from millrace.clusters.child_process import describe_exit

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SIGNALLED = 128
"""Exit status above which, as in a shell, a process was killed by the signal whose number is what is above."""
_BY_NODE = {"DeletionByTaintManager", "DeletionByPodGC"}
"""Reasons of those who end pods whose node does not answer: nobody there will say what became of the process."""


def restarts(pod: dict[str, Any]) -> int:
    """Count how often the pod's process was started anew in its place."""
    return int(_container(pod).get("restartCount", 0))


def has_run(pod: dict[str, Any]) -> bool:
    """Whether there is, or was, a process in the pod."""
    state = _container(pod).get("state", {})
    return "running" in state or "terminated" in state or restarts(pod) > 0


def exit_reason(pod: dict[str, Any], restarts_before: int) -> str:
    """Say how the process ended that ran after so many restarts; "" while it may run."""
    status, ended = pod.get("status", {}), _terminated(pod, restarts_before)
    cause = _disruption(status)
    if _has_failed(status):
        return f"was ended with its pod ({status['reason']}): {status.get('message') or 'no message'}"
    if ended is not None:
        return _exit(ended) + (f", as its pod was ended ({cause})" if cause else "")
    if "deletionTimestamp" in pod["metadata"] and cause.partition(":")[0] in _BY_NODE:
        return f"was lost with its node {pod.get('spec', {}).get('nodeName', '')} ({cause})"
    return ""


def ended_in_order(pod: dict[str, Any], restarts_before: int) -> bool:
    """Whether the process that ran after so many restarts has ended with exit status 0, and its pod was not evicted."""
    ended = _terminated(pod, restarts_before)
    return ended is not None and ended.get("exitCode") == 0 and not _has_failed(pod["status"])


def is_disrupted(pod: dict[str, Any]) -> bool:
    """Whether the pod or its node is evicted: not deleted by a user, nor because it is one too many."""
    return bool(_disruption(pod.get("status", {})))


def waiting_reason(pod: dict[str, Any]) -> str:
    """Say why there is no process in the pod yet; "" if nothing is wrong."""
    waiting = _container(pod).get("state", {}).get("waiting", {})
    if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
        return f"{waiting['reason']}: {waiting.get('message') or 'no message'}"
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', 'not scheduled')}: {condition.get('message', 'no message')}"
    return ""


def _container(pod: dict[str, Any]) -> dict[str, Any]:
    """Status of the container that the worker is in.

    It is the pod's default one, as its annotation says, else the one called ``worker``, else the first: a service mesh
    may put its proxy before all others.
    """
    names = [container["name"] for container in pod["spec"]["containers"]]
    wanted = (pod["metadata"].get("annotations", {}).get(_DEFAULT_CONTAINER), "worker")
    own = next((name for name in wanted if name in names), names[0])
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return next((status for status in statuses if status["name"] == own), {})


def _terminated(pod: dict[str, Any], restarts_before: int) -> dict[str, Any] | None:
    """Find the end of the process that ran after so many restarts."""
    container = _container(pod)
    last = container.get("lastState", {}) if restarts(pod) > restarts_before else {}
    found: dict[str, Any] | None = container.get("state", {}).get("terminated") or last.get("terminated")
    return found


def _has_failed(status: dict[str, Any]) -> bool:
    """Whether the pod's node has ended it, and says why."""
    return status.get("phase") == "Failed" and bool(status.get("reason"))


def _exit(ended: dict[str, Any]) -> str:
    code = int(ended.get("exitCode", 0))
    words = describe_exit(_SIGNALLED - code if code > _SIGNALLED else code)
    return f"ran out of memory (OOMKilled: {words})" if ended.get("reason") == "OOMKilled" else words


def _disruption(status: dict[str, Any]) -> str:
    for condition in status.get("conditions", []):
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""
