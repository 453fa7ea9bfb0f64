"""What fails: drawn for each schedule, and counted when it really happened."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from millrace.simulation.disk import Disk
from millrace.simulation.simulated_worker import Worker
from millrace.simulation.store import Store
from millrace.simulation.virtual_network import Process

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import Town

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


def arrange(town: Town) -> None:
    """Faults happen from now on, until as many have as are drawn here."""
    town.faults_to_come = town.world.rng.randrange(3, 12)
    town.world.after(town.world.rng.uniform(0.0, FIRST_S), _strike, town)
    put_back = random.Random(f"put back {town.seed}")
    if put_back.random() < PUT_BACK:
        town.world.after(put_back.uniform(2.0, 30.0), _put_back, town, put_back.choice((1, 3, 10, 30, 100)))


def born(town: Town, worker: Worker) -> None:
    """A process that the dispatcher or its cluster has started may hang from then on, and never registers."""
    if town.owned and not worker.only and random.Random(f"birth {town.seed} {worker.name}").random() < STILLBORN:
        worker.pause()
        town.fired["worker hung before it registered"] += 1


def _strike(town: Town) -> None:
    """One fault, if it finds something to hit, and the next one later."""
    rng = town.world.rng
    kind = rng.choice(KINDS)
    if FAULTS[kind](town):
        town.world.note("FAULT", kind)
        if kind not in {"disk full", "store full"}:
            fired(town, kind)
    if town.faults_to_come > 0:
        town.world.after(rng.expovariate(1.0 / PAUSE_S), _strike, town)


def fired(town: Town, kind: str) -> None:
    """A fault has really happened."""
    town.fired[kind] += 1
    if kind != "worker added":
        town.faults_to_come -= 1
    town.stirred()


def _worker_killed(town: Town) -> bool:
    return _kill_worker(town, silently=False)


def _worker_vanished(town: Town) -> bool:
    return _kill_worker(town, silently=True)


def _kill_worker(town: Town, *, silently: bool) -> bool:
    workers = town.alive_workers()
    if not workers:
        return False
    worker = town.world.rng.choice(workers)
    worker.die(silently=silently)
    town.worker_over(worker)
    return True


def _worker_paused(town: Town) -> bool:
    return _pause(town, list(town.alive_workers()), 4 * town.settings.heartbeat_s)


def _worker_hung(town: Town) -> bool:
    """It does nothing any more, for good; and its session breaks, sooner or later than anybody misses it, or not."""
    known = {} if town.dispatcher is None else town.dispatcher.state.workers
    workers = [each for each in town.alive_workers() if each.name in known and not (each.paused or each.only)]
    if not town.owned or not workers:
        return False  # nobody ends the processes of others
    worker = town.world.rng.choice(workers)
    worker.pause()
    within = town.world.rng.choice((0.05, 2.0, 10.0, None))
    if worker.session is not None and within is not None:
        worker.session.cut(within)
    return True


def _room_changed(town: Town) -> bool:
    if town.cluster is None:
        return False
    town.cluster.change_room()
    return True


def _worker_retired(town: Town) -> bool:
    workers = [worker for worker in town.alive_workers() if not worker.paused]
    if len(workers) < 2:
        return False
    town.world.rng.choice(workers).stop()
    return True


def _worker_added(town: Town) -> bool:
    if town.dispatcher is None or town.cluster is not None or len(town.alive_workers()) > 6:
        return False
    town.add_worker()
    return True


def _connection_cut(town: Town) -> bool:
    connections = list(town.world.connections)
    if not connections:
        return False
    town.world.rng.choice(connections).cut(town.world.rng.choice((0.05, 1.0, 5.0)))
    return True


def _network_parted(town: Town) -> bool:
    connections = list(town.world.connections)
    if not connections:
        return False
    one, other = (end.name for end in town.world.rng.choice(connections).ends)
    town.world.part(one, other)
    town.world.after(town.world.rng.uniform(0.5, 20.0), town.world.join, one, other)
    return True


def _network_slow(town: Town) -> bool:
    if town.world.latency_s > 0.1:
        return False
    usual, town.world.latency_s = town.world.latency_s, town.world.rng.choice((0.2, 0.5, 1.0))
    town.world.after(town.world.rng.uniform(1.0, 5.0), setattr, town.world, "latency_s", usual)
    return True


def _dispatcher_killed(town: Town) -> bool:
    if town.dispatcher is None:
        return False
    town.kill_dispatcher()
    town.world.after(town.world.rng.uniform(0.05, 8.0), town.start_dispatcher)
    return True


def _put_back(town: Town, groups: int) -> None:
    """Somebody starts the dispatcher on a copy of its folder, which lacks the last events."""
    if town.dispatcher is None or town.disk.last < EVENTS_BEFORE:
        town.world.after(1.0, _put_back, town, groups)
        return
    town.kill_dispatcher()
    town.put_back(groups)
    town.world.note("FAULT", "journal put back")
    town.fired["journal put back"] += 1
    town.world.after(town.world.rng.uniform(0.05, 8.0), town.start_dispatcher)


def _dispatcher_paused(town: Town) -> bool:
    return _pause(town, [] if town.dispatcher is None else [town.dispatcher], 8.0)


def _disk_full(town: Town) -> bool:
    return _fill(town, town.disk, "disk full", 10.0)


def _store_full(town: Town) -> bool:
    promises = town.dispatcher.state.caches.reservations if town.dispatcher is not None else {}
    return any(held.room for held in promises.values()) and _fill(town, town.store, "store full", 40.0)


def _fill(town: Town, disk: Disk | Store, kind: str, most: float) -> bool:
    if disk.full:
        return False
    disk.full = True
    town.world.after(town.world.rng.uniform(0.5, most), _room_again, town, disk, kind, disk.failed)
    return True


def _room_again(town: Town, disk: Disk | Store, kind: str, failed: int) -> None:
    disk.full = False
    if disk.failed > failed:
        fired(town, kind)


def _cache_cleared(town: Town) -> bool:
    return town.dispatcher is not None and town.dispatcher.clear_cache()


def _blocks_lost(town: Town) -> bool:
    return town.store.lose(town.world.rng)


def _blocks_damaged(town: Town) -> bool:
    return town.store.damage(town.world.rng)


def _consumer_killed(town: Town) -> bool:
    consumers = [each for each in town.consumers if each.alive and not each.done]
    if not consumers:
        return False
    consumer = town.world.rng.choice(consumers)
    consumer.die(silently=town.world.rng.random() < 0.5)
    again = town.world.rng.uniform(0.1, 1.4 * town.settings.job_gc_timeout_s)
    if town.late_ranks.replaced(consumer):
        states = consumer.states
        town.world.after(again, town.add_consumer, consumer.spec, consumer.consumer, consumer.stops, None, states)
    return True


def _consumer_paused(town: Town) -> bool:
    consumers = [each for each in town.consumers if each.alive and not each.done]
    return _pause(town, list(consumers), 1.4 * town.settings.job_gc_timeout_s)


def _pause(town: Town, processes: list[Process], most: float) -> bool:
    running = [process for process in processes if not process.paused]
    if not running:
        return False
    process = town.world.rng.choice(running)
    process.pause()
    town.world.after(town.world.rng.uniform(0.2, most), process.resume)
    return True


FAULTS: dict[str, Callable[[Town], bool]] = {
    "worker killed": _worker_killed,
    "worker vanished with its host": _worker_vanished,
    "worker paused": _worker_paused,
    "worker hung, its session broken": _worker_hung,
    "worker retired": _worker_retired,
    "worker added": _worker_added,
    "cluster's room changed": _room_changed,
    "connection cut": _connection_cut,
    "network parted": _network_parted,
    "network slow": _network_slow,
    "dispatcher killed": _dispatcher_killed,
    "dispatcher paused": _dispatcher_paused,
    "disk full": _disk_full,
    "store full": _store_full,
    "blocks lost": _blocks_lost,
    "blocks damaged": _blocks_damaged,
    "cache cleared": _cache_cleared,
    "consumer killed": _consumer_killed,
    "consumer paused": _consumer_paused,
}
KINDS = tuple(FAULTS)
