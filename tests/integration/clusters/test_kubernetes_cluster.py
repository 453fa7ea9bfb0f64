"""Workers as pods: what happens when the API server, nodes and pods do not do what they should."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import logging
import os
import re
import signal
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

pytest.importorskip("aiohttp")

from tests.integration.clusters.cluster_stage import Stage, gone
from tests.integration.clusters.fake_kubernetes import DEPLOYMENT, NAMESPACE, SECRET, FakeKubernetes

from millrace.clusters import kubernetes
from millrace.clusters.api_server import ApiServer
from millrace.clusters.kubernetes import KubernetesCluster
from millrace.dispatcher.server import Dispatcher
from millrace.errors import ServiceError
from millrace.wire.backoff import delays


def api_of(fake, account, **options):
    Path(account, "token").write_text(fake.token)
    Path(account, "namespace").write_text(NAMESPACE)
    return ApiServer(fake.url, account=str(account), pauses=lambda: delays(0.01, 0.1), **options)


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(kubernetes, "CREATED_S", 0.2)  # instead of 5 s


def on_a_fake(story):
    """Makes a test of a story on a stage, of a Kubernetes, and of a folder for its service account."""

    async def play(folder):
        dispatcher = Dispatcher(token=SECRET, heartbeat_s=1.0)
        await dispatcher.start()
        fake = FakeKubernetes(lambda: f"grpc://{dispatcher.address}")
        await fake.start()
        try:
            stage = Stage(KubernetesCluster(DEPLOYMENT, api_of(fake, folder)), dispatcher)
            try:
                await story(stage, fake, folder)
            finally:
                await stage.cluster.close()
            await gone(list(stage.seen))
            assert fake.pods == {}
        finally:
            await fake.stop()
            await dispatcher.stop()

    def test(tmp_path):
        asyncio.run(play(tmp_path))

    test.__name__ = story.__name__
    return test


@contextlib.contextmanager
def logged():
    """What the cluster says in the log meanwhile."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]  # a handler of its own would say no more
    logger = logging.getLogger("millrace.clusters.kubernetes")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


async def until(condition):
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to that")


def scalings(fake):
    return sum(1 for method, path, status in fake.asked if method == "PUT" and status == 200)


@on_a_fake
async def test_a_worker_is_named_by_its_pod_and_no_request_is_without_need(stage, fake, folder):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    assert workers.keys() == fake.pods.keys()
    await stage.cluster.stop([next(iter(workers))])
    assert fake.replicas == 1
    assert scalings(fake) == 2
    granted = {(verb, resource) for rule in fake._rules for resource in rule["resources"] for verb in rule["verbs"]}
    assert fake.done == granted, "the Role in deploy/kubernetes grants what is needed, and no more"


@on_a_fake
async def test_throttling_failures_and_hang_ups_are_waited_out(stage, fake, folder):
    fake.refuse(2, 429, **{"Retry-After": "0"})
    fake.refuse(2, 503)
    fake.refuse(1, 0)
    await stage.cluster.start(1)
    await stage.until_there(1)
    fake.refuse(1, 0)
    fake.refuse(3, 429)
    await stage.cluster.start(1)
    await stage.until_there(2)


@on_a_fake
async def test_a_conflict_is_read_again_and_written_again(stage, fake, folder):
    fake.conflict(3)
    await asyncio.gather(stage.cluster.start(1), stage.cluster.start(1))
    await stage.until_there(2)
    assert [status for method, _, status in fake.asked if method == "PUT"].count(409) == 3


@on_a_fake
async def test_a_token_that_is_replaced_is_read_again(stage, fake, folder):
    await stage.cluster.start(1)
    fake.token = "the next one"
    asyncio.get_running_loop().call_later(0.1, (folder / "token").write_text, fake.token)
    await stage.cluster.start(1)
    await stage.until_there(2)
    assert 401 in [status for _, _, status in fake.asked]


@pytest.mark.parametrize("how", ["said in the stream", "said as it begins", "cut"])
def test_what_a_broken_watch_has_missed_is_found_out(how, tmp_path):
    async def story(stage, fake, folder):
        await stage.cluster.start(2)
        workers = await stage.until_there(2)
        victim, other = workers
        if how == "cut":
            fake.cut_watches()
        else:
            fake.expire_watches(quietly=how == "said as it begins")
        fake.evict(victim)
        fake.expire_watches(quietly=how != "said in the stream")
        await stage.until(lambda: stage.ended)
        assert stage.told == {victim: 1}
        await stage.cluster.start(1)
        assert (await stage.until_there(2))[other] == workers[other]

    on_a_fake(story)(tmp_path)


@on_a_fake
async def test_a_pod_that_vanished_unseen_has_been_replaced(stage, fake, folder):
    await stage.cluster.start(1)
    (worker,) = await stage.until_there(1)
    fake.expire_watches()
    fake._delete(worker, 0)
    fake.expire_watches()
    await stage.until(lambda: worker not in stage.workers and len(stage.workers) == 1)
    assert stage.ended == []
    await stage.cluster.start(1)
    await stage.until_there(2)


@on_a_fake
async def test_replacements_that_are_taken_back_are_not_taken_for_those_asked_for_meanwhile(stage, fake, folder):
    """Three die, their replacements run already when nobody wants them; then one worker is asked for."""
    await stage.cluster.start(3)
    workers = await stage.until_there(3)
    settle, stage.cluster._reconcile_soon = stage.cluster._reconcile_soon, lambda: None
    for worker in workers:
        fake._delete(worker, 0)
        stage.cluster._pods[f"uid-{int(worker[-3:])}"].condemned = True
    await stage.until(lambda: len(stage.ended) == 3)
    await stage.until_there(3)
    stage.cluster._reconcile_soon = settle
    await stage.cluster.start(0)  # lowers to none
    await stage.cluster.start(1)
    await stage.until(lambda: fake.replicas == 1)
    await stage.until(lambda: len(fake.pods) == 1 and len(stage.workers) == 1)
    assert stage.told == dict.fromkeys(workers, 1)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("evict", r"Evicted\): The node was low on resource: memory"),
        ("drain", r"exit status 0, as its pod was ended \(EvictionByEvictionAPI"),
        ("out_of_memory", r"ran out of memory \(OOMKilled: was killed by SIGKILL\)"),
        ("lose_node", r"was lost with its node node-1 \(DeletionByTaintManager"),
    ],
)
def test_how_a_worker_ended_is_told_in_words(fault, words, tmp_path):
    async def story(stage, fake, folder):
        await stage.cluster.start(2)
        workers = await stage.until_there(2)
        victim, other = workers
        getattr(fake, fault)(victim)
        if fault == "lose_node":
            fake.give_up_node(victim)
        await stage.until(lambda: stage.ended)
        ((name, how),) = stage.ended
        assert name == victim
        assert re.search(words, how), how
        assert stage.orderly == ({victim} if fault == "drain" else set())
        await stage.cluster.start(1)
        after = await stage.until_there(2)
        assert after[other] == workers[other]
        assert victim not in after
        if fault == "lose_node":
            fake._remove(victim)  # as Kubernetes does once the node is taken out of it

    on_a_fake(story)(tmp_path)


@on_a_fake
async def test_a_worker_that_was_given_up_before_its_node_was_is_not_waited_for(stage, fake, folder):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    victim, other = workers
    fake.lose_node(victim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("millrace.clusters.kubernetes.STOP_S", 0.2)
        await stage.cluster.stop([victim])
    assert stage.told == {victim: 1}
    assert await stage.until_there(1) == {other: workers[other]}
    assert fake.pods.keys() == {other}


@on_a_fake
async def test_those_named_are_stopped_though_no_worker_was_found_ready_yet(stage, fake, folder):
    fake.found_ready = False
    await stage.cluster.start(3)
    workers = await stage.until_there(3)
    first, second, third = workers
    await asyncio.gather(stage.cluster.stop([first]), stage.cluster.stop([second, first]))
    assert stage.told == {first: 1, second: 1}
    await stage.until(lambda: len(fake.pods) == 1)
    assert await stage.until_there(1) == {third: workers[third]}


@on_a_fake
async def test_pods_that_come_late_are_not_taken_for_those_that_were_named(stage, fake, folder):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    victim, other = workers
    fake.hold_pods()
    await stage.cluster.start(2)
    await stage.cluster.stop([victim])  # a ReplicaSet takes those that have not started first, whatever they cost
    assert stage.told == {victim: 1}
    fake.release_pods()
    after = await stage.until_there(3)
    assert after[other] == workers[other]
    assert victim not in after


@on_a_fake
async def test_pods_that_wait_for_a_node_are_given_up_and_those_that_run_are_not(stage, fake, folder):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    fake.hold_pods()
    await stage.cluster.start(4)
    await stage.until(lambda: len(fake.pods) == 6)
    assert await stage.cluster.forgo(3) == 3
    assert fake.replicas == 3
    assert await stage.cluster.forgo(5) == 1
    assert fake.replicas == 2
    assert await stage.cluster.forgo(5) == 0
    await stage.until(lambda: fake.pods.keys() == workers.keys())
    fake.release_pods()
    await stage.cluster.start(1)
    assert workers.items() <= (await stage.until_there(3)).items()
    assert stage.ended == []


@on_a_fake
async def test_replicas_for_which_there_is_not_even_a_pod_are_given_up(stage, fake, folder):
    fake._create = lambda: None  # a quota of the namespace refuses them
    await stage.cluster.start(3)
    assert await stage.cluster.forgo(2) == 2
    assert fake.replicas == 1


@on_a_fake
async def test_why_a_pod_does_not_start_is_logged_once(stage, fake, folder):
    with logged() as said:
        fake.hold_pods()
        await stage.cluster.start(1)
        await stage.until(lambda: fake.pods and "conditions" in next(iter(fake.pods.values()))["status"])
        (pod,) = fake.pods.values()
        fake._changed("MODIFIED", pod)
        fake.release_pods()
        await stage.until_there(1)
    assert said == [
        f"pod {pod['metadata']['name']} does not run: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
    ]


@on_a_fake
async def test_a_worker_that_dies_and_is_replaced_at_once_leaves_the_replicas_as_they_are(stage, fake, folder):
    await stage.cluster.start(2)
    workers = await stage.until_there(2)
    tell, tasks = stage._end, []

    def tell_and_ask(*end):
        tell(*end)
        tasks.append(asyncio.ensure_future(stage.cluster.start(1)))

    stage.cluster.watch(tell_and_ask)
    before = scalings(fake)
    fake.out_of_memory(next(iter(workers)))
    await stage.until(lambda: len(stage.seen) == 3)
    await asyncio.gather(*tasks)
    assert len(await stage.until_there(2)) == 2
    assert scalings(fake) == before


async def leave_two_workers(stage, fake, folder):
    """Has a dispatcher's cluster start two, and die without telling anybody."""
    cluster = KubernetesCluster(DEPLOYMENT, api_of(fake, folder))
    await cluster.start(2)
    workers = await stage.until_there(2)
    watching = cluster._watching
    assert watching is not None
    watching.cancel()
    await asyncio.wait([watching])
    await cluster._api.close()
    return workers


@on_a_fake
async def test_a_dispatcher_that_comes_back_takes_over_what_is_there(stage, fake, folder):
    workers = await leave_two_workers(stage, fake, folder)
    await asyncio.gather(stage.cluster.start(0), stage.cluster.start(1))
    await stage.cluster.start(2)
    after = await stage.until_there(3)
    assert workers.items() <= after.items()
    assert fake.replicas == len(stage.seen) == 3
    await stage.cluster.stop(list(workers))
    assert stage.told == dict.fromkeys(workers, 1)


@on_a_fake
async def test_what_is_there_and_nobody_has_asked_for_runs_until_it_leaves(stage, fake, folder):
    workers = await leave_two_workers(stage, fake, folder)
    await stage.cluster.start(1)
    assert (fake.replicas, stage.workers) == (2, workers)
    first, second = workers
    os.kill(workers[first], signal.SIGTERM)
    assert await stage.until_there(1) == {second: workers[second]}
    assert stage.ended == []
    os.kill(workers[second], signal.SIGTERM)
    await stage.until(lambda: stage.ended)
    assert stage.told == {second: 1}
    await stage.cluster.start(1)
    await stage.until_there(1)


@on_a_fake
async def test_a_deployment_that_is_not_there_is_said_with_what_to_do(stage, fake, folder):
    cluster = KubernetesCluster("another", api_of(fake, folder))
    with pytest.raises(ServiceError, match=r"Deployment another cannot be scaled; apply deploy/kubernetes: .* 404"):
        await cluster.start(1)
    await cluster.close()


@on_a_fake
async def test_what_the_role_does_not_allow_is_said(stage, fake, folder):
    stage.cluster._api._retry_s = 0.1
    fake._rules = []
    with pytest.raises(
        ServiceError, match=r"docs/kubernetes.md on its role: .* 403: get deployments/scale is forbidden"
    ):
        await stage.cluster.start(1)


@on_a_fake
async def test_a_server_that_never_helps_is_given_up_and_what_was_asked_for_is_forgotten(stage, fake, folder):
    await stage.cluster.start(1)
    stage.cluster._api._retry_s = 0.1
    fake.refuse(1000, 503)
    with pytest.raises(ServiceError, match=r"did not help for 0.1 s: .*GET .*scale with 503: as the test wants"):
        await stage.cluster.start(1)
    fake._refusals.clear()
    stage.cluster._api._retry_s = 60.0
    await stage.cluster.start(1)
    await stage.until_there(2)
    assert fake.replicas == 2


@on_a_fake
async def test_closing_does_not_wait_for_ever_for_a_server_that_does_not_help(stage, fake, folder):
    cluster = KubernetesCluster(DEPLOYMENT, api_of(fake, folder))
    await cluster.start(1)
    await stage.until_there(1)
    fake.refuse(1000, 503)
    with pytest.MonkeyPatch.context() as patch, logged() as said:
        patch.setattr("millrace.clusters.kubernetes.CLOSE_S", 0.2)
        await cluster.close()
    fake._refusals.clear()
    (words,) = said
    assert "end them by `kubectl scale deployment millrace-worker --replicas=0`: they did not end in time" in words
    await stage.cluster.start(1)  # which takes over what was left


@on_a_fake
async def test_a_server_that_names_a_pause_is_not_asked_before(stage, fake, folder):
    stage.cluster._api._retry_s = 10.0
    fake.refuse(1, 429, **{"Retry-After": "30"})
    with pytest.raises(ServiceError, match="did not help for 10 s"):
        await stage.cluster.start(1)
    assert [status for _, _, status in fake.asked] == [429]


def certified(folder, name):
    """A server's context with a certificate of its own, which is written to ``folder/name``."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    day = dt.timedelta(days=1)
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(who, who, key.public_key(), 1, now - day, now + day).add_extension(address, False)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / name).write_bytes(certificate)
    (folder / f"{name}.key").write_bytes(certificate + private)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / f"{name}.key")
    return context


def test_only_who_the_clusters_own_authority_vouches_for_is_believed(tmp_path):
    async def play():
        fake = FakeKubernetes(lambda: "")
        await fake.start(certified(tmp_path, "right"))
        certified(tmp_path, "wrong")
        path = f"apps/v1/deployments/{DEPLOYMENT}/scale"
        api = api_of(fake, tmp_path, retry_s=0.1)
        try:
            with pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"):
                await api.request("GET", path)
            (tmp_path / "wrong").rename(tmp_path / "ca.crt")
            with pytest.raises(ServiceError, match="CERTIFICATE_VERIFY_FAILED"):
                await api.request("GET", path)
            assert fake.asked == []  # and has not seen the token
            (tmp_path / "right").rename(tmp_path / "ca.crt")
            os.utime(tmp_path / "ca.crt", (0, 0))  # another file, however soon
            assert (await api.request("GET", path))["kind"] == "Scale"
        finally:
            await api.close()
            await fake.stop()

    asyncio.run(play())


def test_a_process_that_is_in_no_cluster_is_told_so(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ServiceError, match="--namespace"):
        ApiServer(account=str(tmp_path))
    with pytest.raises(ServiceError, match="not in a Kubernetes pod"):
        ApiServer(namespace="here", account=str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    assert ApiServer(namespace="here", account=str(tmp_path))._url == "https://10.0.0.1:6443"


@on_a_fake
async def test_a_server_that_does_not_know_its_roles_yet_is_asked_again(stage, fake, folder):
    """As in the first seconds of one that was started just now."""
    fake.refuse(3, 403)
    await stage.cluster.start(1)
    await stage.until_there(1)
    assert [status for _, _, status in fake.asked[:4]] == [403, 403, 403, 200]


@on_a_fake
async def test_a_quota_is_said_and_what_it_keeps_from_coming_is_given_up(stage, fake, folder):
    fake.quota = 1
    with logged() as said:
        await stage.cluster.start(3)
        await stage.until_there(1)
        await until(stage.cluster.trouble)
    assert stage.cluster.trouble().startswith(f"1 of 3 pods of Deployment {DEPLOYMENT} were created; `kubectl describe")
    assert stage.cluster.trouble() in said
    assert await stage.cluster.forgo(2) == 2
    assert fake.replicas == 1
    await until(lambda: not stage.cluster.trouble())


@on_a_fake
async def test_a_quota_is_forgotten_once_it_is_over_though_the_server_was_away_for_too_long(stage, fake, folder):
    fake.quota = 1
    await stage.cluster.start(3)
    await stage.until_there(1)
    await until(stage.cluster.trouble)
    api = stage.cluster._api
    retry_s, api._retry_s = api._retry_s, 0.0
    fake.refuse(1, 503)
    await until(lambda: 503 in [status for *_, status in fake.asked])
    api._retry_s = retry_s
    assert await stage.cluster.forgo(2) == 2
    await until(lambda: not stage.cluster.trouble())


@on_a_fake
async def test_a_service_that_is_deleted_as_a_whole_ends_at_once_and_without_an_error(stage, fake, folder):
    await stage.cluster.start(1)
    await stage.until_there(1)
    with logged() as said:
        fake.delete_all()
        before = len(fake.asked)
        await stage.cluster.close()
    assert [status for _, _, status in fake.asked[before:]].count(403) <= 2  # it is not asked again and again
    assert not [text for text in said if "may be left" in text]
    assert any("as when all of the service is deleted" in text for text in said)
