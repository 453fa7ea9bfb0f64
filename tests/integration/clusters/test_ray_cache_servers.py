"""Cache servers on the nodes of a Ray cluster: where they run, that they come back, and that nothing is left."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.clusters.ray_nodes import ray, two_nodes, until  # noqa: F401 (a fixture)
from tests.integration.service.service_store import FILES, web_store

import millrace as mr
from millrace.client.status_query import fetch_status
from millrace.clusters.ray_cache_servers import RayCacheServers

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]

BYTES = 100 << 20


def servers_of(service: mr.RayService) -> dict[str, dict[str, Any]]:
    """Cache servers that there are, by the address of their node."""
    found = service.status()["source_cache"]["servers"]
    return {each["address"].rpartition(":")[0]: each for each in found}


def workers_on(service: mr.RayService) -> set[str]:
    return {each["address"].rpartition(":")[0] for each in service.status()["workers"]}


def is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def test_each_node_with_workers_has_one_and_nothing_but_the_folder_is_left(nodes, tmp_path: Path):
    folder = tmp_path / "cache"
    with (
        web_store() as store,
        mr.RayService(
            4, 4, ray_address=nodes.address, insecure=True, source_cache=str(folder), source_cache_bytes=BYTES
        ) as service,
    ):
        until(lambda: len(service.status()["workers"]) == 4 and len(servers_of(service)) == 2, service.status)
        servers = servers_of(service)
        assert servers.keys() == workers_on(service)
        assert {each["most_bytes"] for each in servers.values()} == {BYTES}
        assert sorted(os.listdir(folder)) == sorted(servers)
        for job in ("first", "second"):
            files = mr.Dataset.from_files(store.urls).shuffle(FILES).map(lambda file: file["bytes"][0])
            with files.distribute(service.address, job_name=job) as reading:
                assert sorted(reading.epochs(1)) == list(range(FILES))
        assert store.read.keys() == store.files.keys()
        # A request that takes long is made a second time, one of twenty at most.
        assert store.read.total() <= 1.1 * FILES
        until(lambda: sum(each["counts"]["items"] for each in servers_of(service).values()) == FILES)
        assert all(each["counts"]["items"] for each in servers_of(service).values())

        # A process that dies comes back, and so does an actor: where it was, with what it had.
        for victim in (lambda pid: pid, parent_of):
            host, before = next(iter(servers_of(service).items()))
            os.kill(victim(before["pid"]), signal.SIGKILL)
            until(lambda: servers_of(service).get(host, before)["pid"] != before["pid"], service.status)  # noqa: B023
            until(lambda: len(servers_of(service)) == 2)
            after = servers_of(service)[host]
            assert after["address"] == before["address"]
            assert after["counts"]["items"] or until(lambda: servers_of(service)[host]["counts"]["items"])  # noqa: B023
        pids = [each["pid"] for each in servers_of(service).values()]
        holders = [parent_of(pid) for pid in pids]
    until(lambda: not any(map(is_there, [*pids, *holders])))
    assert sorted(os.listdir(tmp_path)) == ["cache"]


def test_a_node_that_comes_in_the_place_of_a_dead_one_has_one_as_soon_as_it_has_workers(nodes, tmp_path: Path):
    doomed = nodes.add(2)
    options: dict[str, Any] = {"source_cache": str(tmp_path / "cache"), "source_cache_bytes": BYTES}
    with mr.RayService(6, 6, ray_address=nodes.address, insecure=True, **options) as service:
        until(lambda: doomed.node_ip_address in servers_of(service) and len(servers_of(service)) == 3, service.status)
        nodes.kill(doomed)
        until(lambda: doomed.node_ip_address not in servers_of(service), service.status)
        another = nodes.add(2)
        until(lambda: another.node_ip_address in servers_of(service), service.status)
        assert len(servers_of(service)) == 3
        pids = [each["pid"] for each in servers_of(service).values()]
    until(lambda: not any(map(is_there, pids)))
    nodes.kill(another)


def test_it_ends_with_a_dispatcher_that_is_killed(nodes, tmp_path: Path):
    options: dict[str, Any] = {"source_cache": str(tmp_path / "cache"), "source_cache_bytes": BYTES}
    with mr.RayService(1, 1, ray_address=nodes.address, insecure=True, **options) as service:
        until(lambda: servers_of(service), service.status)
        (server,) = servers_of(service).values()
        service._process.kill()
        until(lambda: not is_there(server["pid"]))


def test_one_goes_a_while_after_the_last_worker_of_its_node_unless_one_comes_back(nodes, tmp_path: Path, monkeypatch):
    """Ray takes no node away on which an actor is."""
    with mr.RayService(1, 1, ray_address=nodes.address, insecure=True) as service:
        ray.init(nodes.address, namespace="millrace", logging_level="error")
        try:
            node = next(each for each in ray.nodes() if each["Alive"] and each["Resources"].get("CPU"))

            def servers_there() -> dict[int, str]:
                found = fetch_status(service.address, service.token)["source_cache"]["servers"]
                return {each["pid"]: each["address"] for each in found}

            def another_than(pid: int) -> int | None:
                return next((each for each in servers_there() if each != pid), None)

            def gives_no_answer() -> None:
                unanswered.append("nodes")
                raise ConnectionError("the head is away")

            unanswered: list[str] = []

            async def come_and_go() -> None:
                told = ["--dispatcher", service.address, "--bytes", str(BYTES), "--insecure"]
                servers = RayCacheServers(told, str(tmp_path / "cache"), service.token, "", kept_s=1.0)
                try:
                    servers.worker_came("a", node["NodeID"], node["NodeManagerAddress"])
                    servers.worker_came("b", node["NodeID"], node["NodeManagerAddress"])
                    ((pid, address),) = (await asyncio.to_thread(until, servers_there)).items()
                    # While Ray does not say whether the node is there, it is.
                    with monkeypatch.context() as patch:
                        patch.setattr(ray, "nodes", gives_no_answer)
                        killed = pid
                        os.kill(parent_of(killed), signal.SIGKILL)
                        pid = await asyncio.to_thread(until, lambda: another_than(killed))
                    assert unanswered
                    # A worker that comes while it ends has another one after it, at the same port and folder.
                    servers._leave(node["NodeID"])
                    servers.worker_came("a", node["NodeID"], node["NodeManagerAddress"])
                    servers.worker_came("b", node["NodeID"], node["NodeManagerAddress"])
                    ended = pid
                    pid = await asyncio.to_thread(until, lambda: another_than(ended))
                    assert not is_there(ended)
                    await asyncio.to_thread(until, lambda: servers_there() == {pid: address})
                    servers.worker_went("a")
                    servers.worker_went("b")
                    servers.worker_came("c", node["NodeID"], node["NodeManagerAddress"])
                    servers.worker_went("nobody")
                    assert servers._nodes[node["NodeID"]].leaving is None
                    servers.worker_went("c")
                    await asyncio.to_thread(until, lambda: not is_there(pid))
                    assert not servers._nodes
                    await asyncio.to_thread(until, lambda: not servers_there())
                finally:
                    await servers.close()

            asyncio.run(come_and_go())
        finally:
            ray.shutdown()
