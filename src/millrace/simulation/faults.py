"""Faults: drawn for each schedule, and counted when they have really happened."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from millrace.simulation.disk import Disk
from millrace.simulation.simulated_worker import SimulatedWorker
from millrace.simulation.store import Store
from millrace.simulation.virtual_network import Process

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer

FIRST_S = 1.5
"""When the first fault happens, in seconds."""
PAUSE_S = 1.5
"""From one fault to the next, on average."""
STILLBORN = 0.04
"""Share of the workers that hang from when they were started."""
EVENTS_BEFORE = 20
"""That are durable before a copy of the journal is put back."""
PUT_BACK = 0.15
"""Share of the schedules in which the dispatcher is started on an older copy of its journal, once."""


def arrange(cluster: SimulatedCluster) -> None:
    """Faults happen from now on, until as many have as are drawn here."""
    cluster.faults_to_come = cluster.network.rng.randrange(3, 12)
    first = cluster.network.rng.uniform(0.0, FIRST_S)
    cluster.network.after(cluster.sources.calm_s + first, _strike, cluster)
    put_back = random.Random(f"put back {cluster.seed}")
    if put_back.random() < PUT_BACK and not (cluster.members.drawn or cluster.windows.drawn):
        cluster.network.after(put_back.uniform(2.0, 30.0), _put_back, cluster, put_back.choice((1, 3, 10, 30, 100)))


def born(cluster: SimulatedCluster, worker: SimulatedWorker) -> None:
    """Have some processes that the dispatcher or its cluster starts hang before they register."""
    if cluster.owned and not worker.only and random.Random(f"birth {cluster.seed} {worker.name}").random() < STILLBORN:
        worker.pause()
        cluster.fired["worker hung before it registered"] += 1


def _strike(cluster: SimulatedCluster) -> None:
    """One fault, if it finds something to hit, and the next one later."""
    rng = cluster.network.rng
    kind = rng.choice(KINDS)
    if FAULTS[kind](cluster):
        cluster.network.note("FAULT", kind)
        cluster.sources.disturbed()
        if kind not in {"disk full", "store full"}:
            fired(cluster, kind)
    if cluster.faults_to_come > 0:
        cluster.network.after(rng.expovariate(1.0 / PAUSE_S), _strike, cluster)


def fired(cluster: SimulatedCluster, kind: str) -> None:
    """Note that a fault has really happened."""
    cluster.fired[kind] += 1
    if kind != "worker added":
        cluster.faults_to_come -= 1
    cluster.stirred()


def _kill_worker(cluster: SimulatedCluster, *, silently: bool) -> bool:
    workers = cluster.alive_workers()
    if not workers:
        return False
    worker = cluster.network.rng.choice(workers)
    worker.die(silently=silently)
    cluster.worker_over(worker)
    return True


def _worker_hung(cluster: SimulatedCluster) -> bool:
    """Have a worker hang for good; its session breaks before anybody misses it, later, or never."""
    known = {} if cluster.dispatcher is None else cluster.dispatcher.state.workers
    workers = [each for each in cluster.alive_workers() if each.name in known and not (each.paused or each.only)]
    if not cluster.owned or not workers:
        return False  # nobody ends the processes of others
    worker = cluster.network.rng.choice(workers)
    worker.pause()
    within = cluster.network.rng.choice((0.05, 2.0, 10.0, None))
    if worker.session is not None and within is not None:
        worker.session.cut(within)
    return True


def _room_changed(cluster: SimulatedCluster) -> bool:
    if cluster.pool is None:
        return False
    cluster.pool.change_room()
    return True


def _worker_retired(cluster: SimulatedCluster) -> bool:
    workers = [worker for worker in cluster.alive_workers() if not worker.paused]
    if len(workers) < 2:
        return False
    cluster.network.rng.choice(workers).stop()
    return True


def _worker_added(cluster: SimulatedCluster) -> bool:
    if cluster.dispatcher is None or cluster.pool is not None or len(cluster.alive_workers()) > 6:
        return False
    cluster.add_worker()
    return True


def _connection_cut(cluster: SimulatedCluster) -> bool:
    connections = list(cluster.network.connections)
    if not connections:
        return False
    cluster.network.rng.choice(connections).cut(cluster.network.rng.choice((0.05, 1.0, 5.0)))
    return True


def _network_parted(cluster: SimulatedCluster) -> bool:
    connections = list(cluster.network.connections)
    if not connections:
        return False
    one, other = (end.name for end in cluster.network.rng.choice(connections).ends)
    cluster.network.part(one, other)
    cluster.network.after(cluster.network.rng.uniform(0.5, 20.0), cluster.network.join, one, other)
    return True


def _network_slow(cluster: SimulatedCluster) -> bool:
    if cluster.network.latency_s > 0.1:
        return False
    usual, cluster.network.latency_s = cluster.network.latency_s, cluster.network.rng.choice((0.2, 0.5, 1.0))
    cluster.network.after(cluster.network.rng.uniform(1.0, 5.0), setattr, cluster.network, "latency_s", usual)
    return True


def _dispatcher_killed(cluster: SimulatedCluster) -> bool:
    if cluster.dispatcher is None:
        return False
    cluster.kill_dispatcher()
    cluster.network.after(cluster.network.rng.uniform(0.05, 8.0), cluster.start_dispatcher)
    return True


def _put_back(cluster: SimulatedCluster, groups: int) -> None:
    """Somebody starts the dispatcher on a copy of its folder, which lacks the last events."""
    if cluster.dispatcher is None or cluster.disk.last < EVENTS_BEFORE:
        cluster.network.after(1.0, _put_back, cluster, groups)
        return
    cluster.kill_dispatcher()
    cluster.older_journal.take_copy(groups)
    cluster.network.note("FAULT", "journal put back")
    cluster.fired["journal put back"] += 1
    cluster.network.after(cluster.network.rng.uniform(0.05, 8.0), cluster.start_dispatcher)


def _store_full(cluster: SimulatedCluster) -> bool:
    promises = cluster.dispatcher.state.caches.reservations if cluster.dispatcher is not None else {}
    return any(held.room for held in promises.values()) and _fill(cluster, cluster.store, "store full", 40.0)


def _fill(cluster: SimulatedCluster, disk: Disk | Store, kind: str, most: float) -> bool:
    if disk.full:
        return False
    disk.full = True
    cluster.network.after(cluster.network.rng.uniform(0.5, most), _room_again, cluster, disk, kind, disk.failed)
    return True


def _room_again(cluster: SimulatedCluster, disk: Disk | Store, kind: str, failed: int) -> None:
    disk.full = False
    if disk.failed > failed:
        fired(cluster, kind)


def _readers(cluster: SimulatedCluster) -> list[SimulatedConsumer]:
    return [each for each in cluster.consumers if each.alive and not each.done]


def _consumer_killed(cluster: SimulatedCluster) -> bool:
    consumers = _readers(cluster)
    if not consumers:
        return False
    consumer = cluster.network.rng.choice(consumers)
    consumer.die(silently=cluster.network.rng.random() < 0.5)
    again = cluster.network.rng.uniform(0.1, 1.4 * cluster.settings.job_gc_timeout_s)
    if cluster.late_ranks.replaced(consumer):
        states = consumer.states
        cluster.network.after(
            again, cluster.add_consumer, consumer.spec, consumer.consumer, consumer.stops, None, states
        )
    return True


def _pause(cluster: SimulatedCluster, processes: Sequence[Process], most: float) -> bool:
    running = [process for process in processes if not process.paused]
    if not running:
        return False
    process = cluster.network.rng.choice(running)
    process.pause()
    cluster.network.after(cluster.network.rng.uniform(0.2, most), process.resume)
    return True


FAULTS: dict[str, Callable[[SimulatedCluster], bool]] = {
    "worker killed": partial(_kill_worker, silently=False),
    "worker vanished with its host": partial(_kill_worker, silently=True),
    "worker paused": lambda cluster: _pause(cluster, cluster.alive_workers(), 4 * cluster.settings.heartbeat_s),
    "worker hung, its session broken": _worker_hung,
    "worker retired": _worker_retired,
    "worker added": _worker_added,
    "cluster's room changed": _room_changed,
    "connection cut": _connection_cut,
    "network parted": _network_parted,
    "network slow": _network_slow,
    "dispatcher killed": _dispatcher_killed,
    "dispatcher paused": lambda cluster: _pause(cluster, [cluster.dispatcher] if cluster.dispatcher else [], 8.0),
    "disk full": lambda cluster: _fill(cluster, cluster.disk, "disk full", 10.0),
    "store full": _store_full,
    "blocks lost": lambda cluster: cluster.store.lose(cluster.network.rng),
    "blocks damaged": lambda cluster: cluster.store.damage(cluster.network.rng),
    "cache cleared": lambda cluster: cluster.dispatcher is not None and cluster.dispatcher.clear_cache(),
    "consumer killed": _consumer_killed,
    "consumer paused": lambda cluster: _pause(cluster, _readers(cluster), 1.4 * cluster.settings.job_gc_timeout_s),
}
KINDS = tuple(FAULTS)
