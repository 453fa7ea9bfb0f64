"""Cache servers of a schedule: which there are, who reads by way of them, and what fails about them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millrace.protocol.cache_server_messages import KeepChunks
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.source_cache_messages import CONTENT
from millrace.simulation.pipelines import SimulatedPipeline, stored, stored_shards
from millrace.simulation.simulated_cache_server import SimulatedCacheServer
from millrace.simulation.simulated_items import ItemDisk
from millrace.simulation.source_cache_invariants import SourceCacheInvariants
from millrace.simulation.stored_files import DATA_BYTES
from millrace.simulation.virtual_network import Connection
from millrace.sources.store_requests import Entry

if TYPE_CHECKING:
    from millrace.simulation.item_reads import Wanted
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_worker import SimulatedWorker

SHARE = 0.3
"""Share of the schedules that have cache servers."""
STORED = 0.85
"""Share of the jobs in schedules with cache servers that read stored files."""
FREE = 0.75
"""Share of those whose tasks may be read in any order, so that they can be read in chunks."""
ALIKE = 0.5
"""Share of them that are of the tenant that most are of, whichever they were drawn to be of."""
ROOMS = (0.12, 0.3, 0.5, 0.5, 0.9, 1.5, 4.0)
"""Parts of a data set that all servers of a schedule hold together, as likely as they are here."""
MORE_JOBS = (1, 2, 2)
"""Jobs that there are at first beyond those of other schedules, as likely as they are here."""
SHARDS = 0.35
"""Share of the schedules with cache servers whose jobs read shards in the place of files."""
COMPETING = 0.5
"""Share of the schedules with cache servers whose data sets are different ones, so that they compete for room."""
PROBE_BATCHES = (2, 5, 12, 100)
"""Batches of a look at what a job gains, as likely as they are here: jobs are short."""
PROBE_INTERVALS_S = (5.0, 30.0, 600.0)
"""Seconds between two of these past the cache, at least, as likely as they are here."""
ZONES = ("", "a", "b", "b")
"""Zones of a server or a worker in a schedule that has some, as likely as they are here; "": it is in none."""
ZONED = 0.5
"""Share of the schedules with cache servers that have zones."""
FETCH_S = 0.3
"""Seconds that a fetch takes on average."""
CALM = 0.25
"""Share of the schedules with cache servers in which no cache server fails at first."""
CALM_S = 40.0
"""Seconds at the beginning of a simulated schedule in which no cache server fails."""
LATE = 0.25
"""Share of the servers that come late."""
PAUSE_S = 4.0
"""From one fault of cache servers to the next, on average."""
MOST_MISHAPS = 3
"""A schedule has so many fetches that take too long, and workers that die with a claim."""


class Mishap(NamedTuple):
    """Course of a fetch: it takes so long, fails, is damaged on the way to the server, ends its worker, or was late."""

    seconds: float
    fails: bool = False
    damaged: bool = False
    dies: bool = False
    late: bool = False


@dataclass
class ServerPlace:
    """Where a cache server runs, with its disk: one process after the other.

    Attributes:
        number: of the place.
        most_bytes: that its server may hold.
        zone: that it is in.
        disk: outlives the processes.
        lives: processes that there were.
        server: the process that there is, or was last.
    """

    number: int
    most_bytes: int
    zone: str = ""
    disk: ItemDisk = field(default_factory=ItemDisk)
    lives: int = 0
    server: SimulatedCacheServer | None = None


def drawn_probes(seed: int) -> dict[str, float]:
    """Draw how many batches a look at what a job gains takes, and how often one is taken past the cache."""
    rng = random.Random(f"probes {seed}")
    return {"probe_batches": rng.choice(PROBE_BATCHES), "probe_interval_s": rng.choice(PROBE_INTERVALS_S)}


class CacheServerFleet:
    """Cache servers of a schedule, and what is read by way of them.

    Args:
        cluster: where they run.
        seed: of the schedule.

    Attributes:
        drawn: there are some.
        pipelines: that read stored files or shards.
        calm_s: seconds for which nothing fails at first.
        more_jobs: jobs that there are at first, beyond those of other schedules.
        zoned: servers and workers are in zones.
        by_address: processes, the last of each address.
        undisturbed: no process has ended and nothing has failed so far.
    """

    def __init__(self, cluster: SimulatedCluster, seed: int) -> None:
        self._cluster, self._rng = cluster, random.Random(f"source cache {seed}")
        rng = self._rng
        self.drawn = rng.random() < SHARE
        self.invariants = SourceCacheInvariants(cluster)
        self.by_address: dict[str, SimulatedCacheServer] = {}
        self.undisturbed = True
        self.calm_s = CALM_S if self.drawn and rng.random() < CALM else 0.0
        self.more_jobs = rng.choice(MORE_JOBS) if self.drawn else 0
        self._seed, zones = seed, random.Random(f"zones {seed}")
        self.zoned = self.drawn and zones.random() < ZONED
        count, room = rng.randrange(1, 4), rng.choice(ROOMS)
        each = int(DATA_BYTES * room / count)
        self._places = [
            ServerPlace(number, each * rng.choice((1, 1, 1, 2)), zones.choice(ZONES) if self.zoned else "")
            for number in range(count if self.drawn else 0)
        ]
        if self.zoned:  # so that some zones have several
            self._places += [ServerPlace(count + more, each, zones.choice(ZONES)) for more in range(zones.randrange(3))]
        self._of_files, self._of_shards = (stored(), stored_shards()) if self.drawn else ((), ())
        self.pipelines = (*self._of_files, *self._of_shards)
        self._competing = random.Random(f"competing {seed}").random() < COMPETING
        self._some_pipelines = self._drawn_pipelines() if self.drawn else []
        self._shards = random.Random(f"shards {seed}")
        if self.drawn and self._shards.random() < SHARDS:
            self._some_pipelines = self._drawn_shards()
        self._slow = self._deaths = 0
        self._untold = False

    def _drawn_pipelines(self) -> list[SimulatedPipeline]:
        """Draw pipelines that read equal files, so that jobs meet, or different ones, so that data sets compete."""
        first = self._rng.choice(self._of_files)
        assert first.files is not None
        alike, different = list[SimulatedPipeline](), list[SimulatedPipeline]()
        for each in self._of_files:
            assert each.files is not None
            if each.files.made_of == first.files.made_of:
                alike.append(each)
            if each.files is not first.files:
                different.append(each)
        return [first, self._rng.choice(different if self._competing else alike)]

    def _drawn_shards(self) -> list[SimulatedPipeline]:
        """Draw pipelines that read the same shards, or one of these and one of what was drawn before."""
        first = self._shards.choice(self._of_shards)
        alike = [each for each in self._of_shards if each.files is first.files]
        return [first, self._some_pipelines[1] if self._competing else self._shards.choice(alike)]

    def begin(self) -> None:
        """Start the servers, some of them late, and what fails about them."""
        if not self.drawn:
            return
        network = self._cluster.network
        for place in self._places:
            if not self.calm_s and self._rng.random() < LATE:
                network.after(self._rng.uniform(3.0, 25.0), self._come_late, place)
            else:
                self._start(place)
        network.after(self.calm_s + self._rng.expovariate(1.0 / PAUSE_S), self._strike)

    def draw(self, spec: JobSpec, pipeline: SimulatedPipeline) -> tuple[JobSpec, SimulatedPipeline]:
        """Draw whether a job reads stored files in the place of what it would read."""
        rng = self._rng
        if not self.drawn or rng.random() >= STORED:
            return spec, pipeline
        pipeline = rng.choice(self._some_pipelines)
        spec = msgspec.structs.replace(spec, structure=pipeline.structure, tasks=pipeline.tasks)
        if rng.random() < ALIKE:
            spec = msgspec.structs.replace(spec, tenant="default")
        if rng.random() < FREE:
            spec = msgspec.structs.replace(spec, sharding="dynamic", deterministic=False)
        return spec, pipeline

    def zone_of(self, worker: str) -> str:
        """Return the zone of the worker of a name, as drawn for the schedule."""
        return random.Random(f"zones {self._seed} {worker}").choice(ZONES) if self.zoned else ""

    def bytes_of(self, job: str, entry: Entry) -> bytes:
        """Return the bytes of a file as they are in the store."""
        files = self._cluster.pipelines[self._cluster.structures[job]].files
        assert files is not None
        return files.data(entry)

    def disturbed(self) -> None:
        """Note that a process has ended, or something has failed."""
        self.undisturbed = False

    @property
    def servers(self) -> list[SimulatedCacheServer]:
        """Processes that run, or hang."""
        return [place.server for place in self._places if place.server is not None and place.server.alive]

    # -- processes -----------------------------------------------------------------------------------------------------

    def _come_late(self, place: ServerPlace) -> None:
        self._fired("cache server came late")
        self._start(place)

    def _start(self, place: ServerPlace) -> None:
        if place.server is not None and place.server.alive:
            return
        place.lives += 1
        named = place.number % 2 == 0  # others have a name and a port of their own in each life
        known_as = f"cache{place.number}" if named else f"cache{place.number}-{place.lives}"
        address = f"{known_as}:1"
        name = f"cache{place.number}.{place.lives}"
        server = SimulatedCacheServer(name, known_as, address, place.disk, place.most_bytes, self._cluster)
        server.zone = place.zone
        place.server = self.by_address[address] = server

    # -- what fails ----------------------------------------------------------------------------------------------------

    def _fired(self, kind: str) -> None:
        self._cluster.network.note("FAULT", kind)
        self._cluster.fired[kind] += 1
        self._cluster.stirred()
        self.disturbed()

    def _strike(self) -> None:
        """One fault, if it finds something to hit, and the next one later, while others happen too."""
        rng, cluster = self._rng, self._cluster
        kind = rng.choice(list(FAULTS))
        if FAULTS[kind](self):
            self._fired(kind)
        if cluster.faults_to_come > 0:
            cluster.network.after(rng.expovariate(1.0 / PAUSE_S), self._strike)

    def _some(self) -> ServerPlace | None:
        places = [place for place in self._places if place.server is not None and place.server.alive]
        return self._rng.choice(places) if places else None

    def kill(self, *, silently: bool = False, wiped: bool = False) -> bool:
        """End a process; another one comes in its place, mostly."""
        place = self._some()
        if place is None or (wiped and not place.disk.files):
            return False
        assert place.server is not None
        place.server.die(silently=silently)
        if wiped:
            place.disk.wipe()
        if self._rng.random() < 0.85:
            self._cluster.network.after(self._rng.uniform(0.1, 12.0), self._start, place)
        return True

    def hang(self) -> bool:
        """Have a process hang for a while."""
        place = self._some()
        if place is None or place.server is None or place.server.paused:
            return False
        place.server.pause()
        self._cluster.network.after(self._rng.uniform(0.3, 20.0), place.server.resume)
        return True

    def cut_off(self) -> bool:
        """Have nothing get from a server to one that it is connected with, and back."""
        place, network = self._some(), self._cluster.network
        connections = [] if place is None or place.server is None else network.of(place.server)
        if not connections:
            return False
        one, other = (end.name for end in self._rng.choice(connections).ends)
        network.part(one, other)
        network.after(self._rng.uniform(0.5, 20.0), network.join, one, other)
        return True

    def lose_segments(self) -> bool:
        """Have files of a disk go under a process that runs."""
        place = self._some()
        return place is not None and place.disk.lose(self._rng)

    def no_word(self) -> bool:
        """Have the next word about chunks be late, or lost with its connection."""
        self._untold = True
        return False  # it counts when it hits one

    def sends(self, session: Connection, message: object) -> None:
        """Note that the dispatcher says something to a server, which may come late, or not."""
        if not isinstance(message, KeepChunks) or not self._untold:
            return
        self._untold = False
        if self._rng.random() < 0.5:
            session.cut(self._rng.choice((0.05, 2.0)))
            self._fired("word of chunks lost")
        else:
            session.hold_up(session.ends[1], self._rng.uniform(0.5, 6.0))
            self._fired("word of chunks late")

    def mishap(self, worker: SimulatedWorker, key: bytes, *, ordered: bool) -> Mishap:
        """Draw what becomes of a fetch from the store, which a cache server has ordered or not."""
        rng, usual = self._rng, Mishap(self._rng.expovariate(1.0 / FETCH_S))
        if not self.calm_over or self._cluster.faults_to_come <= 0:
            return usual
        drawn = rng.random()
        if drawn < 0.02:
            self._fired("fetch failed")
            return usual._replace(fails=True)
        if drawn < 0.05 and ordered and key.startswith(CONTENT):
            self._fired("item damaged on the way")
            return usual._replace(damaged=True)
        if 0.05 <= drawn < 0.07 and ordered and self._deaths < MOST_MISHAPS and not worker.only:
            self._deaths += 1
            self._fired("worker ended with a claim")
            return usual._replace(dies=True)
        return usual

    def held_up(self, wanted: Wanted, address: str) -> float:
        """Draw for how many seconds more a fetch takes for which others wait; 0: it has come to its end."""
        server = self.by_address[address]
        if self._slow >= MOST_MISHAPS or not self.calm_over or not self.invariants.waited_for(server, wanted):
            return 0.0
        self._slow += 1
        self._fired("fetch took too long")
        return self._rng.uniform(7.0, 15.0)

    @property
    def calm_over(self) -> bool:
        """Whether anything may fail."""
        return self._cluster.network.now >= self.calm_s


FAULTS: dict[str, Callable[[CacheServerFleet], bool]] = {
    "cache server killed": CacheServerFleet.kill,
    "cache server vanished with its host": partial(CacheServerFleet.kill, silently=True),
    "cache server wiped": partial(CacheServerFleet.kill, wiped=True),
    "cache server hung": CacheServerFleet.hang,
    "cache server cut off": CacheServerFleet.cut_off,
    "segments lost": CacheServerFleet.lose_segments,
    "word of chunks": CacheServerFleet.no_word,
}
KINDS = {
    *(FAULTS.keys() - {"word of chunks"}),
    *("cache server came late", "word of chunks lost", "word of chunks late"),
    *("fetch failed", "item damaged on the way", "fetch took too long", "worker ended with a claim"),
    *("claim passed on late", "silent cache server given up"),
}
"""All that can happen to cache servers, and to what workers do with them."""
