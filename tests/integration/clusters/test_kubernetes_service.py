"""The command line's dispatcher with pods: what a user deploys, on a fake of Kubernetes."""

import asyncio
import json
import subprocess
import sys
import threading
from collections import Counter

import pytest

pytest.importorskip("aiohttp")

from chaos.child_processes import ended, kill
from tests.integration.clusters.cluster_stage import PATIENCE_S
from tests.integration.clusters.fake_kubernetes import NAMESPACE, SECRET, FakeKubernetes

import millrace as mr
from millrace.clusters.child_process import hang_up, reap, spawn
from millrace.wire.tls_authority import TlsAuthority


def start(fake, *arguments, tls=""):
    given = ("--cluster", "kubernetes", "--api-server", fake.url, "--namespace", NAMESPACE, "--heartbeat", "1")
    environment = {"MILLRACE_TOKEN": SECRET}
    return spawn(
        ["dispatcher", *given, *arguments],
        worker=False,
        stdout=subprocess.PIPE,
        extra=environment,
        tls=tls,
    )


def end(process):
    hang_up(process)
    status = reap(process, PATIENCE_S)
    process.stdout.close()
    return status


def slow(x):
    threading.Event().wait(0.002)
    return x


def test_pods_are_evicted_and_the_dispatcher_dies_and_every_element_comes_once(tmp_path):
    elements = 1500

    async def play():
        address = ""
        fake = FakeKubernetes(lambda: address)
        fake.token = ""  # as `kubectl proxy`, which has its own
        await fake.start()
        fake.hold_pods()  # until it is known where the dispatcher listens
        arguments = ["--workers", "2", "--work-dir", str(tmp_path)]
        dispatcher = start(fake, "--port", "0", *arguments)
        try:
            address = json.loads(await asyncio.to_thread(dispatcher.stdout.readline))["address"]
            fake.release_pods()
            loop, at = asyncio.get_running_loop(), {300: asyncio.Event(), 800: asyncio.Event()}
            got = []

            def read():
                dataset = mr.Dataset.range(elements).map(slow)
                with dataset.distribute(address, token=SECRET, job_name="all") as distributed:
                    for element in distributed:
                        got.append(element)
                        if len(got) in at:
                            loop.call_soon_threadsafe(at[len(got)].set)

            reading = asyncio.ensure_future(asyncio.to_thread(read))
            async with asyncio.timeout(PATIENCE_S):
                await at[300].wait()
                before = set(fake.pods)
                fake.evict(min(before))
                await at[800].wait()
                await kill(dispatcher)
                end(dispatcher)
                port = address.rpartition(":")[2]
                dispatcher = start(fake, "--port", port, *arguments)
                await asyncio.to_thread(dispatcher.stdout.readline)
                await reading
            assert Counter(got) == Counter(range(elements))
            assert fake.replicas == 2
            assert len(fake.pods.keys() - before) == 1  # for the one that was evicted
            hang_up(dispatcher)
            assert await ended(dispatcher) == 0
            assert fake.pods == {}
            assert fake.replicas == 0
        finally:
            end(dispatcher)
            await fake.stop()

    asyncio.run(play())


def test_pods_have_the_certificate_of_workers_and_speak_tls(tmp_path):
    authority = TlsAuthority(str(tmp_path / "authority"))
    dispatchers, workers = (authority.issue(name)[0] for name in ("millrace-dispatcher", "millrace-worker"))

    async def play():
        address = ""
        fake = FakeKubernetes(lambda: address, workers)
        fake.token = ""
        await fake.start()
        fake.hold_pods()
        dispatcher = start(fake, "--port", "0", "--workers", "1", tls=dispatchers)

        def read():
            with mr.Dataset.range(100).distribute(address, token=SECRET, tls=workers) as distributed:
                return Counter(distributed)

        try:
            address = json.loads(await asyncio.to_thread(dispatcher.stdout.readline))["address"]
            fake.release_pods()
            async with asyncio.timeout(PATIENCE_S):
                assert await asyncio.to_thread(read) == Counter(range(100))
        finally:
            await asyncio.to_thread(end, dispatcher)
            await fake.stop()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "in which namespace"),
        (["--namespace", "here"], "this process is not in a Kubernetes pod"),
    ],
)
def test_a_dispatcher_outside_of_kubernetes_is_one_line(arguments, words, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    done = subprocess.run(
        [sys.executable, "-m", "millrace", "dispatcher", "--port=0", "--cluster=kubernetes", "--workers=1", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"millrace dispatcher: {words}")
    assert done.stderr.count("\n") == 1
