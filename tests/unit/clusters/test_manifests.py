"""What ``deploy/kubernetes`` says is valid, and agrees with the code."""

import shlex

import pytest
import yaml

pytest.importorskip("aiohttp")

from tests.manifests import CACHE, FOLDER, INSECURE, insecure, manifest, manifests

from millrace.cli import parser
from millrace.clusters.child_process import worker_environment
from millrace.clusters.kubernetes import CLOSE_S, STOP_S

WORKERS = manifest("Deployment", "millrace-worker")["spec"]
DISPATCHER = manifest("StatefulSet", "millrace-dispatcher")["spec"]
CACHE_SERVERS = manifest("DaemonSet", "millrace-cache-server", CACHE)["spec"]


def copies():
    return [manifest("StatefulSet", "millrace-dispatcher"), manifest("Deployment", "millrace-worker")]


def pod(spec):
    return spec["template"]["spec"]


def container(spec):
    (only,) = pod(spec)["containers"]
    return only


def options(spec):
    values = {"$(POD_IP)": "10.0.0.9", "$(POD_NAME)": "millrace-worker-x", "$(CORES)": "1"}
    arguments = [argument.partition("=") for argument in container(spec)["args"]]
    return parser().parse_args([f"{name}{sign}{values.get(value, value)}" for name, sign, value in arguments])


@pytest.mark.parametrize("version", ["1.30", "1.33", "1.37"])
def test_every_object_is_what_kubernetes_publishes(version):
    validator = pytest.importorskip("kubernetes_validate")
    every = [*manifests(), *manifests(CACHE), *map(insecure, copies())]
    kinds = [each["kind"] for each in every if validator.validate(each, version, strict=True) == version]
    assert len(kinds) == len(manifests()) + len(manifests(CACHE)) + 2
    wrong = manifest("Deployment", "millrace-worker")
    pod(wrong["spec"])["containers"][0]["redinessProbe"] = {}
    with pytest.raises(validator.ValidationError, match="redinessProbe"):
        validator.validate(wrong, version, strict=True)


def test_kustomize_takes_every_file():
    for folder in (FOLDER, CACHE):
        own = folder / "kustomization.yaml"
        listed = own.read_text()
        assert [name for name in folder.glob("*.yaml") if f"- {name.name}" not in listed] == [own]
    both = [yaml.safe_load((folder / "kustomization.yaml").read_text()) for folder in (FOLDER, CACHE)]
    assert "../kubernetes" in both[1]["resources"]
    assert both[0]["images"] == both[1]["images"], "one image for all"


def test_the_arguments_are_those_of_the_command_line():
    dispatcher, worker = options(DISPATCHER), options(WORKERS)
    assert dispatcher.cluster == "kubernetes"
    assert dispatcher.deployment == "millrace-worker"
    service = manifest("Service", "millrace-dispatcher")
    (port,) = service["spec"]["ports"]
    assert worker.dispatcher == f"grpc://{service['metadata']['name']}:{port['port']}"
    assert [each["containerPort"] for each in container(DISPATCHER)["ports"]] == [dispatcher.port]
    assert [each["containerPort"] for each in container(WORKERS)["ports"]] == [worker.port]
    assert worker.name == "millrace-worker-x"
    cache_server = options(CACHE_SERVERS)
    assert cache_server.dispatcher == worker.dispatcher
    assert [each["containerPort"] for each in container(CACHE_SERVERS)["ports"]] == [cache_server.port]


def test_workers_and_cache_servers_are_in_the_zones_of_their_nodes(monkeypatch):
    label = {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}
    for spec in (WORKERS, CACHE_SERVERS):
        (given,) = [each for each in container(spec)["env"] if each.get("valueFrom") == label]
        monkeypatch.setenv(given["name"], "eu-central-1a")
        assert options(spec).zone == "eu-central-1a"


def test_what_a_cache_server_keeps_fits_on_its_volume():
    (volume,) = [each for each in pod(CACHE_SERVERS)["volumes"] if each["name"] == "items"]
    (mount,) = [each for each in container(CACHE_SERVERS)["volumeMounts"] if each["name"] == "items"]
    given = options(CACHE_SERVERS)
    number, unit = volume["emptyDir"]["sizeLimit"][:-2], volume["emptyDir"]["sizeLimit"][-2:]
    assert unit == "Gi"
    assert given.bytes < 0.95 * (int(number) << 30)
    assert given.dir.startswith(mount["mountPath"] + "/"), "a folder of its own, as it has to be private"


def test_cache_servers_are_asked_by_workers_and_talk_to_the_dispatcher():
    own = manifest("NetworkPolicy", "millrace-cache-server", CACHE)
    labels, worker = CACHE_SERVERS["selector"]["matchLabels"], WORKERS["selector"]["matchLabels"]
    assert own["spec"]["podSelector"]["matchLabels"] == labels == CACHE_SERVERS["template"]["metadata"]["labels"]
    (port,) = [each["name"] for each in container(CACHE_SERVERS)["ports"]]
    assert passes(own, worker, None, port)
    assert not passes(own, CONSUMER, None, port)
    assert not passes(own, DISPATCHER["selector"]["matchLabels"], None, port)
    beside = manifest("NetworkPolicy", "millrace-dispatcher-for-cache-servers", CACHE)
    assert beside["spec"]["podSelector"]["matchLabels"] == DISPATCHER["selector"]["matchLabels"]
    assert passes(beside, labels, None, "grpc")
    assert not passes(beside, {"app": "training"}, None, "grpc")
    (volume,) = [each for each in pod(CACHE_SERVERS)["volumes"] if each["name"] == "tls"]
    assert volume["secret"]["secretName"] == "millrace-worker-tls", "the name that is good at any address"


@pytest.mark.parametrize("spec", [WORKERS, DISPATCHER])
def test_pods_speak_tls_with_certificates_that_only_they_are_given(spec):
    given, (mount, *_) = container(spec), container(spec)["volumeMounts"]
    assert not options(spec).insecure
    assert {"name": "MILLRACE_TLS", "value": mount["mountPath"]} in given["env"]
    assert mount["readOnly"]
    (volume,) = [each for each in pod(spec)["volumes"] if each["name"] == mount["name"]]
    name = spec["selector"]["matchLabels"]["app.kubernetes.io/component"]
    assert volume["secret"]["secretName"] == f"millrace-{name}-tls"
    assert volume["secret"]["defaultMode"] == 0o440  # by the group, as the pod's user is another one than the file's
    assert pod(spec)["securityContext"]["fsGroup"] == pod(spec)["securityContext"]["runAsGroup"]


def test_what_is_insecure_says_so_and_differs_in_nothing_else():
    (folder,) = yaml.safe_load(INSECURE.read_text())["resources"]
    assert (INSECURE.parent / folder).resolve() == FOLDER
    for each in map(insecure, copies()):
        secure = manifest(each["kind"], each["metadata"]["name"])
        assert options(each["spec"]).insecure
        for spec in (each["spec"], secure["spec"]):
            only = container(spec)
            only["args"] = [argument for argument in only["args"] if argument != "--insecure"]
        assert each != secure
        for spec in (each["spec"], secure["spec"]):
            only = container(spec)
            only["env"] = [variable for variable in only["env"] if variable["name"] != "MILLRACE_TLS"]
            only["volumeMounts"] = [mount for mount in only["volumeMounts"] if mount["name"] != "tls"]
            pod(spec)["volumes"] = [volume for volume in pod(spec)["volumes"] if volume["name"] != "tls"]
        assert each == secure


def test_there_is_time_to_leave_in_good_order():
    assert pod(WORKERS)["terminationGracePeriodSeconds"] > options(WORKERS).drain_timeout + STOP_S
    assert pod(DISPATCHER)["terminationGracePeriodSeconds"] > CLOSE_S + STOP_S


def test_a_worker_has_the_environment_that_local_ones_are_given():
    given = {each["name"]: each["value"] for each in container(WORKERS)["env"] if "value" in each}
    del given["MILLRACE_TLS"]
    wanted = worker_environment({})
    wanted.pop("PYTHONPATH", None)
    assert given == wanted


def test_services_and_selectors_find_their_pods():
    for kind, name in (("StatefulSet", "millrace-dispatcher"), ("Deployment", "millrace-worker")):
        spec = manifest(kind, name)["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert manifest("Service", "millrace-dispatcher")["spec"]["selector"] == DISPATCHER["selector"]["matchLabels"]


def passes(policy, sender, namespace, port):
    """Whether a NetworkPolicy lets a pod with these labels, in a namespace with these (None: its own), connect."""

    def matches(peer):
        assert peer.keys() <= {"podSelector", "namespaceSelector"}
        there = peer.get("namespaceSelector")
        near = namespace is None if there is None else there["matchLabels"].items() <= (namespace or {}).items()
        return near and peer["podSelector"]["matchLabels"].items() <= sender.items()

    rules = policy["spec"]["ingress"]
    return any(
        port in [each["port"] for each in rule["ports"]] and any(matches(peer) for peer in rule["from"])
        for rule in rules
    )


CONSUMER = {"millrace-consumer": "true"}


@pytest.mark.parametrize("spec", [WORKERS, DISPATCHER])
def test_ports_are_open_to_those_who_need_them_and_closed_to_others(spec):
    labels = spec["selector"]["matchLabels"]
    policy = manifest("NetworkPolicy", f"millrace-{labels['app.kubernetes.io/component']}")
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    (port,) = [each["name"] for each in container(spec)["ports"]]
    assert passes(policy, WORKERS["selector"]["matchLabels"], None, port)
    assert passes(policy, {**CONSUMER, "app": "training"}, None, port)
    assert passes(policy, CONSUMER, {"name": "vision", **CONSUMER}, port)
    assert not passes(policy, {"app": "training"}, None, port)
    assert not passes(policy, DISPATCHER["selector"]["matchLabels"], None, port)  # it connects to nobody
    assert not passes(policy, WORKERS["selector"]["matchLabels"], {"name": "another"}, port)
    assert not passes(policy, CONSUMER, {"name": "another"}, port)  # whoever labels pods there may be anybody
    assert not passes(policy, {"app": "training"}, CONSUMER, port)
    assert not passes(policy, CONSUMER, None, "ssh")


@pytest.mark.parametrize("spec", [WORKERS, DISPATCHER, CACHE_SERVERS])
def test_no_pod_may_do_more_than_it_needs(spec):
    assert pod(spec)["securityContext"]["runAsNonRoot"] is True
    assert container(spec)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("spec", [WORKERS, DISPATCHER, CACHE_SERVERS])
def test_pods_keep_to_the_restricted_standard(spec):
    """Field by field, as the Pod Security Standards have it; the namespace demands it."""
    given, only = pod(spec), container(spec)
    assert not given.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers", "ephemeralContainers"}
    for field in ("seLinuxOptions", "sysctls", "windowsOptions"):
        assert field not in given["securityContext"]
    assert given["securityContext"]["seccompProfile"]["type"] in {"RuntimeDefault", "Localhost"}
    assert given["securityContext"]["runAsUser"] > 0
    assert not only["securityContext"].keys() & {"privileged", "procMount", "seccompProfile", "runAsUser"}
    assert not any("hostPort" in port for port in only["ports"])
    assert not any("host" in only[probe].get("tcpSocket", {}) for probe in ("readinessProbe",))
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    assert all(volume.keys() - {"name"} <= allowed for volume in given["volumes"])
    assert manifest("Namespace", "millrace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_whoever_runs_user_code_has_no_access_to_the_api_server():
    assert pod(WORKERS)["automountServiceAccountToken"] is False
    (subject,) = manifest("RoleBinding", "millrace-dispatcher")["subjects"]
    assert subject["name"] == pod(DISPATCHER)["serviceAccountName"] != pod(WORKERS)["serviceAccountName"]


def test_the_image_has_what_the_dispatcher_needs():
    text = (FOLDER.parent / "Dockerfile").read_text()
    assert "'.[kubernetes]'" in text
    assert shlex.split(text.splitlines()[-1]) == ["ENTRYPOINT", "[millrace]"]


def test_what_users_need_is_not_held_to_the_versions_of_development():
    installs = [line for line in (FOLDER.parent / "Dockerfile").read_text().splitlines() if "pip install" in line]
    assert [("constraints.txt" in line, "PACKAGES" in line) for line in installs] == [(True, False), (False, True)]
