"""What a pod's status says, in words."""

import pytest

from millrace.clusters.pods import ended_in_order, exit_reason, has_run, restarts, waiting_reason

LOST = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "NoExecute"}
AWAY = {"terminated": {"exitCode": 1, "reason": "Error"}}


def pod(phase="Running", state=None, *, count=0, last=None, deleted=False, conditions=(), **status):
    container = {"name": "worker", "restartCount": count, "state": state or {}, "lastState": last or {}}
    helper = {"name": "helper", "restartCount": 9, "state": AWAY, "lastState": AWAY}
    return {
        "metadata": {"name": "a", **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {})},
        "spec": {"containers": [{"name": "worker"}, {"name": "helper"}], "nodeName": "n1"},
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            "containerStatuses": [helper, container] if state is not None else [],
            **status,
        },
    }


def ended(code, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason}}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pod("Pending"), ""),
        (pod(state={"running": {}}), ""),
        (pod(state={"running": {}}, deleted=True), ""),
        (pod(state=ended(0, "Completed")), "ended with exit status 0"),
        (pod(state=ended(1)), "ended with exit status 1"),
        (pod(state=ended(139)), "was killed by SIGSEGV"),
        (pod(state=ended(137, "OOMKilled")), "ran out of memory (OOMKilled: was killed by SIGKILL)"),
        (pod(state={"running": {}}, count=3, last=ended(2)), "ended with exit status 2"),
        (pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, count=3, last=ended(2)), "ended with exit status 2"),
        (pod(state={"running": {}}, count=2, last=ended(2)), ""),
        (pod(state={"running": {}}, count=3), ""),
        (pod("Failed", reason="Evicted", message="no disk"), "was ended with its pod (Evicted): no disk"),
        (
            pod(state={"running": {}}, deleted=True, conditions=[LOST]),
            "was lost with its node n1 (DeletionByTaintManager: NoExecute)",
        ),
        (pod(state={"running": {}}, conditions=[LOST]), ""),
        (pod(state={"running": {}}, deleted=True, conditions=[{**LOST, "reason": "EvictionByEvictionAPI"}]), ""),
        (
            pod(state=ended(0), deleted=True, conditions=[{**LOST, "reason": "EvictionByEvictionAPI"}]),
            "ended with exit status 0, as its pod was ended (EvictionByEvictionAPI: NoExecute)",
        ),
    ],
)
def test_how_a_process_ended_that_had_been_started_anew_twice(given, words):
    assert exit_reason(given, 2) == words


@pytest.mark.parametrize(
    ("given", "so"),
    [
        (pod("Pending"), False),
        (pod(state={"running": {}}), False),
        (pod(state=ended(0, "Completed")), True),
        (pod(state=ended(1)), False),
        (pod(state={"running": {}}, count=3, last=ended(0)), True),
        (pod(state={"running": {}}, count=2, last=ended(0)), False),
        (pod("Failed", state=ended(0), reason="Evicted", message="no disk"), False),
        (pod(state=ended(0), deleted=True, conditions=[{**LOST, "reason": "EvictionByEvictionAPI"}]), True),
    ],
)
def test_which_process_went_in_good_order(given, so):
    assert ended_in_order(given, 2) is so


def test_what_has_run():
    assert not has_run(pod("Pending"))
    assert not has_run(pod("Pending", {"waiting": {"reason": "ContainerCreating"}}))
    assert has_run(pod(state={"running": {}}))
    assert has_run(pod(state={"waiting": {}}, count=1))
    assert restarts(pod(state={"running": {}}, count=4)) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pod("Pending", {"waiting": {"reason": "ContainerCreating"}}), ""),
        (pod(state={"running": {}}), ""),
        (pod("Pending", {"waiting": {"reason": "ErrImagePull", "message": "no such"}}), "ErrImagePull: no such"),
        (
            pod(
                "Pending",
                conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}],
            ),
            "Unschedulable: 0/3",
        ),
        (pod("Pending", conditions=[{"type": "PodScheduled", "status": "True"}]), ""),
    ],
)
def test_what_keeps_a_process_from_starting(given, words):
    assert waiting_reason(given) == words


@pytest.mark.parametrize(
    ("names", "annotations", "own"),
    [
        (["linkerd-proxy", "worker"], {}, "worker"),
        (["loader", "helper"], {}, "loader"),
        (["istio-proxy", "loader"], {"kubectl.kubernetes.io/default-container": "loader"}, "loader"),
        (["loader", "helper"], {"kubectl.kubernetes.io/default-container": "gone"}, "loader"),
    ],
)
def test_which_container_a_worker_is_in(names, annotations, own):
    statuses = [{"name": name, "restartCount": 1 if name == own else 5} for name in names]
    given = pod()
    given["metadata"]["annotations"] = annotations
    given["spec"]["containers"] = [{"name": name} for name in names]
    given["status"]["containerStatuses"] = statuses
    assert restarts(given) == 1
