"""A service on a Ray cluster of several nodes: where its workers run, how they end, and that no element is lost."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.clusters import cluster_stage, test_cluster_conformance  # noqa: F401 (its stories)
from tests.integration.clusters.ray_nodes import WAIT_S, Nodes, two_nodes, until  # noqa: F401 (a fixture)

import millrace as mr
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn
from millrace.clusters.ray import RayCluster
from millrace.wire.tls_authority import TlsAuthority

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]


def workers_of(service: mr.RayService, count: int) -> list[dict[str, Any]]:
    """Waits until exactly so many are registered."""

    def there() -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = service.status()["workers"]
        return workers if len(workers) == count else []

    found: list[dict[str, Any]] = until(there, service.status)
    return found


def hosts(workers: list[dict[str, Any]]) -> Counter[str]:
    return Counter(worker["address"].rpartition(":")[0] for worker in workers)


def slow(number: int) -> int:
    threading.Event().wait(0.005)
    return number


def test_each_element_comes_once_from_workers_on_all_nodes_and_nothing_is_left(nodes):
    with mr.RayService(4, 4, ray_address=nodes.address, insecure=True) as service:
        assert len(service.token) == 64
        workers = workers_of(service, 4)
        assert sorted(hosts(workers).values()) == [2, 2]
        with mr.Dataset.range(1000).map(slow).batch(10).distribute(service.address) as batches:
            got = [number for batch in batches for number in batch.tolist()]
        assert sorted(got) == list(range(1000))
    assert service.closed
    until(lambda: not [each for each in workers if os.path.exists(f"/proc/{each['pid']}")])


SCRIPT = """
import sys
import millrace as mr
import ray

ray.init(sys.argv[1], logging_level="error")
with mr.RayService(min_workers=2, num_cpus=2, insecure=True) as service:
    with mr.Dataset.range(100).distribute(service.address) as numbers:
        assert sorted(numbers) == list(range(100))
    print(service.status()["fleet"]["plan"])
"""


def test_one_line_in_a_driver_serves_where_it_is_connected(nodes):
    done = subprocess.run([sys.executable, "-c", SCRIPT, nodes.address], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "2"


def test_workers_on_all_nodes_speak_tls(nodes, tmp_path):
    """With the folder of certificates that lies on every node under one path."""
    folder = TlsAuthority(str(tmp_path / "authority")).issue("millrace-worker,127.0.0.2,127.0.0.3,127.0.0.4")[0]
    stranger = TlsAuthority(str(tmp_path / "elsewhere")).issue("millrace-worker,127.0.0.2,127.0.0.3,127.0.0.4")[0]
    with mr.RayService(2, 2, ray_address=nodes.address, tls=folder) as service:
        assert len(hosts(workers_of(service, 2))) >= 1
        with mr.Dataset.range(1000).distribute(service.address) as numbers:
            assert Counter(numbers) == Counter(range(1000))
        with pytest.raises(mr.ServiceUnreachableError, match="certificate"):
            fetch_status(service.address, service.token, tls=stranger)
    with pytest.raises(mr.ServiceError, match="without TLS"):
        mr.RayService(1, 1, ray_address=nodes.address, host="10.255.255.1")


def test_a_worker_that_is_killed_is_told_in_words_and_replaced(nodes, capsys):
    with mr.RayService(2, 2, ray_address=nodes.address, insecure=True) as service:
        before = workers_of(service, 2)
        with mr.Dataset.range(1000).map(slow).distribute(service.address) as dataset:
            got = []
            for element in dataset:
                got.append(element)
                if len(got) == 100:
                    os.kill(before[0]["pid"], signal.SIGKILL)
        assert Counter(got) == Counter(range(1000))
        until(lambda: {each["id"] for each in service.status()["workers"]} - {each["id"] for each in before})
        workers_of(service, 2)
    assert f"worker {before[0]['id']} was killed by SIGKILL" in capsys.readouterr().err


def test_an_epoch_survives_the_death_of_a_node_and_workers_without_room_wait_for_the_next(nodes, capsys):
    doomed = nodes.add(4)
    with mr.RayService(8, 8, ray_address=nodes.address, insecure=True) as service:
        assert hosts(workers_of(service, 8))[doomed.node_ip_address] == 4
        with mr.Dataset.range(6000).map(slow).distribute(service.address) as dataset:
            got = []
            for element in dataset:
                got.append(element)
                if len(got) == 500:
                    nodes.kill(doomed)
        assert Counter(got) == Counter(range(6000))
        workers_of(service, 4)
        assert service.status()["workers"]  # the rest waits
        another = nodes.add(4)
        assert hosts(workers_of(service, 8))[another.node_ip_address] == 4
    nodes.kill(another)
    assert capsys.readouterr().err.count(f"was lost with node {doomed.node_ip_address}") == 4


def test_workers_ask_for_the_resources_they_are_given(nodes):
    with mr.RayService(2, 2, resources={"near_the_data": 1}, ray_address=nodes.address, insecure=True) as service:
        node = nodes.add(2, near_the_data=2)
        assert hosts(workers_of(service, 2)) == {node.node_ip_address: 2}
    nodes.kill(node)


@contextlib.contextmanager
def dispatcher(nodes: Nodes, *options: str) -> Iterator[str]:
    """Address of one that was started by the command."""
    process = spawn(
        ["dispatcher", "--cluster", "ray", "--ray-address", nodes.address, "--port", "0", "--insecure", *options],
        worker=False,
        stdout=subprocess.PIPE,
        extra={"MILLRACE_TOKEN": "secret"},
    )
    try:
        assert process.stdout is not None
        with process.stdout as said:
            yield json.loads(said.readline())["address"]
    finally:
        hang_up(process)
        reap(process)


def test_one_command_serves_a_cluster(nodes):
    with dispatcher(nodes, "--workers", "1") as address:
        with mr.Dataset.range(100).distribute(address, token="secret") as numbers:
            assert sorted(numbers) == list(range(100))
        assert len(fetch_status(address, "secret")["workers"]) == 1


COST_S = 0.02
EPOCH = 2000


def picture(number: int) -> Any:
    """64 KB, so that little lies ready in buffers of some hundreds."""
    threading.Event().wait(COST_S)
    return np.full(1 << 13, number)


def test_from_one_worker_to_eight_and_back_while_a_node_dies(nodes):
    """The loop is fast until there are eight, and again eight after a node died; then one worker keeps up with it."""
    doomed, other = nodes.add(4), nodes.add(4)
    small = ("--buffer-bytes", "500000")
    dataset = mr.Dataset.range(EPOCH).map(picture, num_parallel_calls=1).with_options(buffer_bytes=1 << 20)
    stage, seen = "grows", []
    with (
        dispatcher(nodes, "--workers", "1-8", "--heartbeat", "0.5", *small) as address,
        dataset.distribute(address, token="secret", job_name="ours", tasks=EPOCH // 20) as served,
    ):
        while stage != "over":
            got: Counter[int] = Counter()
            for element in served:
                got[int(element[0])] += 1
                if stage == "shrinks":
                    threading.Event().wait(2 * COST_S)
                if got.total() % 20 == 0 and stage != "over":
                    fleet = fetch_status(address, "secret")["fleet"]
                    seen.append((fleet["plan"], fleet["observed"]))
                    match stage, seen[-1]:
                        case "grows", (8, 8):
                            nodes.kill(doomed)
                            stage = "suffers"
                        case "suffers", (8, fewer) if fewer < 8:
                            stage = "mends"
                        case "mends", (8, 8):
                            stage = "shrinks"
                        case "shrinks", (few, now) if few == now <= 2:  # half a one is needed, and one too many is near
                            stage = "over"
            assert got == Counter(range(EPOCH))
    nodes.kill(other)
    plans = [plan for plan, _ in itertools.groupby(plan for plan, _ in seen)]
    assert plans[:2] == [1, 8], "one look is enough to jump to as many as there may be"
    assert plans[2:] == sorted(plans[2:], reverse=True), plans
    assert plans[-1] <= 2


def test_a_cluster_that_is_not_there_is_told_with_what_to_do():
    with pytest.raises(
        mr.ServiceError, match=r"(?s)no Ray cluster at 127\.0\.0\.2:1: nobody answers.*`ray start --head`"
    ):
        mr.RayService(1, 1, ray_address="127.0.0.2:1")


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("127.0.0.2:1", r"no Ray cluster at 127\.0\.0\.2:1 \(RAY_ADDRESS in the environment\): nobody answers"),
        ("ray://127.0.0.2:1", r"a client of ray://127\.0\.0\.2:1 \(RAY_ADDRESS in the environment\)"),
    ],
)
def test_so_is_one_that_the_environment_names(named, words, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(mr.ServiceError, match=rf"(?s){words}.*`ray start --head`"):
        mr.RayService(1, 1)


def test_workers_that_have_no_room_are_given_up_and_those_that_run_are_not(nodes):
    async def ask_for_more_than_there_is_room_for() -> None:
        def cluster(address: Callable[[], str]) -> contextlib.AbstractAsyncContextManager[RayCluster]:
            return contextlib.nullcontext(RayCluster(address, ray_address=nodes.address))

        async def story(stage: cluster_stage.Stage) -> None:
            await stage.cluster.start(6)
            workers = await stage.until_there(4)
            assert await stage.cluster.forgo(1) == 1
            assert await stage.cluster.forgo(5) == 1
            assert await stage.cluster.forgo(5) == 0
            await stage.cluster.stop(list(workers)[:1])
            await stage.until(lambda: stage.ended)
            await stage.cluster.start(1)  # takes the room that there is now, for which nobody else waits
            await stage.until(lambda: len(stage.seen) == 5)
            assert len(stage.workers) == 4
            assert len(stage.ended) == 1

        await cluster_stage.play(story, cluster)

    asyncio.run(ask_for_more_than_there_is_room_for())


def test_a_worker_that_has_no_room_is_given_up_when_stopped(nodes):
    ended: list[tuple[str, str, bool]] = []

    async def ask_and_withdraw() -> list[str]:
        cluster = RayCluster(lambda: "127.0.0.2:1", ray_address=nodes.address, num_cpus=64)
        try:
            cluster.watch(lambda worker, how, orderly: ended.append((worker, how, orderly)))
            await cluster.start(2)
            names = list(cluster._actors)
            await cluster.stop(names[:1])
            await asyncio.wait_for(asyncio.gather(*list(cluster._followers)[:0]), WAIT_S)
            for _ in range(1000):
                if ended:
                    break
                await asyncio.sleep(0.01)
            return names
        finally:
            await cluster.close()

    names = asyncio.run(ask_and_withdraw())
    assert ended == [(names[0], "was given up before Ray had room for it", False)]


@pytest.mark.parametrize("story", cluster_stage.STORIES, ids=lambda story: story.__name__.removeprefix("test_"))
def test_as_every_cluster(story, nodes):
    @contextlib.asynccontextmanager
    async def on_ray(address: Callable[[], str]) -> AsyncIterator[RayCluster]:
        yield RayCluster(address, ray_address=nodes.address)

    asyncio.run(cluster_stage.play(story, on_ray))
