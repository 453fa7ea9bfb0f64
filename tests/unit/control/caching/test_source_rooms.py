"""Data sets that don't fit into the source cache together: jobs are measured, and who gains most gets the room."""

import io
from collections import Counter

import msgspec
import pytest
from tests.unit.control.caching.service_of_plans import ServiceOfPlans

import millrace as mr
from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.caching import source_chunks
from millrace.control.caching.profiling import LOOK_ELEMENTS
from millrace.control.caching.source_rooms import AWAY_S
from millrace.control.journal import cache_events
from millrace.control.journal.cache_events import RoomGiven
from millrace.control.journal.snapshot import plain
from millrace.control.journal.transaction import Transaction
from millrace.control.state.cache_state import DATA_SETS
from millrace.dispatcher.status_report import status
from millrace.display.status import show
from millrace.graph.notation import graph_of
from millrace.graph.serialize import pack
from millrace.planning.split_table import SplitTable
from millrace.policies.caching.cache_probe import PROBE_INTERVAL_S, PROBE_LIMIT_S
from millrace.protocol import messages as msg
from millrace.protocol.cache_server_messages import CacheServerHello, CacheServerReport, CacheServersKnown, KeepChunks
from millrace.protocol.reports import NodeMeasure
from millrace.protocol.source_cache_messages import name_of_data

GB = 10**9
COUNT = 2000
ROOM = 10 * GB


def structure(pattern, *, shuffled=True):
    found = mr.Dataset.from_files(pattern)
    graph = graph_of(found.shuffle(100) if shuffled else found)
    assert graph is not None
    return pack(graph)[0]


class Buckets(ServiceOfPlans):
    """A service whose jobs read a data set each, or share one; ``sizes``: bytes of each."""

    def __init__(self, sizes, workers=4, **settings):
        super().__init__(**settings)
        self.sizes, self.data = sizes, {}
        self.told: dict[bytes, list[bytes]] | None = None
        self.past = list[str]()
        self.counts = Counter[tuple[str, str]]()
        self.say(inp.Started("here:1", "service"))
        self.hello_of_server("cache")
        for number in range(workers):
            self.add_worker(f"w{number}", asks_caches=True)

    def hello_of_server(self, name, room=ROOM, zone=""):
        self.say(inp.CacheServerSaid(name, CacheServerHello(name, f"{name}:1", most_bytes=room, zone=zone)))

    def tick(self, seconds=0.0):
        for name in self.observed.cache_servers:
            self.say(inp.CacheServerSaid(name, CacheServerReport()))
        super().tick(seconds)

    def plan_tasks(self, worker):
        while worker.planning:
            asked = worker.planning.popleft()
            data = self.data[asked.job]
            table = msgspec.structs.replace(SplitTable(cheap=True, count=COUNT).summary(), bytes=self.sizes[data])
            self.say(inp.WorkerSaid(worker.name, msg.SourcesListed(asked.job, {0: table}, [data], [], f"of {data}")))

    def carry_out(self, events, actions):
        for action in actions:
            if isinstance(action, act.SendToCacheServer) and isinstance(action.message, KeepChunks):
                self.told = dict(action.message.sets)
            if isinstance(action, act.SendToWorker) and isinstance(action.message, CacheServersKnown):
                self.past = action.message.past
        others = [
            action
            for action in actions
            if not (isinstance(action, act.SendToWorker) and isinstance(action.message, CacheServersKnown))
        ]
        super().carry_out(events, others)

    def begin_job(self, name, data, **fields):
        self.data[name] = data
        peer = self.join(f"client-{name}", name, structure=structure(f"s3://{data}/*"), seed=1, tasks=160, **fields)
        for _ in range(50):
            for worker in list(self.workers.values()):
                self.plan_tasks(worker)
            if self.state.jobs[name].epochs:
                return peer
            self.work()
            self.tick(1.0)
        raise AssertionError(f"job {name} has no epoch")

    def reads(
        self,
        name,
        batch_s,
        wait_s,
        *,
        cached=0.0,
        batches=2 * LOOK_ELEMENTS,
        ready=0.0,
        stored=1000,
        epoch=0,
        at=None,
        only=None,
    ):
        """A job reads so many batches.

        Args:
            cached: the share of its bytes that comes from the cache, of ``stored`` bytes a batch.
            epoch: that its consumers are in, ``at`` so many batches of it; None: at as many as were ever read.
            only: the consumer that reads; None: all.
        """
        job = self.state.jobs[name]
        for worker in self.state.index.serving.serving(name):
            self.counts[name, "cached"] += round(cached * batches * stored)
            self.counts[name, "stored"] += round((1 - cached) * batches * stored)
            self.counts[name, "elements"] += batches
            self.counts[name, "ms"] += round(1000 * wait_s * batches)
            count = self.counts[name, "elements"]
            waited_s = self.counts[name, "ms"] / 1000
            source = NodeMeasure(0, "from_files", count, 1000 * count, waited_s, 0.0, 0)
            source = msgspec.structs.replace(
                source, stored_bytes=self.counts[name, "stored"], cached_bytes=self.counts[name, "cached"]
            )
            rest = NodeMeasure(1, "shuffle", count, 1000 * count, 0.0)
            self.report(worker.id, nodes=[source, rest])
            break
        self.counts[name, "batches"] += batches
        for index, consumer in job.consumers.items():
            read = 0 if only not in (None, index) else self.counts[name, "batches"] if at is None else at
            report = msg.ConsumerReport(epoch, [], read, batch_s, wait_s, queue_elements=ready)
            self.say(inp.ConsumerSaid(consumer.client, report))

    def measure(self, name, batch_s, wait_s, **how):
        """It is seen how a job reads, a look begins, and is over."""
        for _ in range(3):
            self.reads(name, batch_s, wait_s, **how)

    def rooms(self):
        return {data: self.state.caches.rooms[name_of_data(data).hex()].room for data in self.sizes if self.known(data)}

    def known(self, data):
        return name_of_data(data).hex() in self.state.caches.rooms


def keeps(service, data):
    """What cache servers were told of a data set: "all", "nothing", or the number of labels."""
    labels = service.told[name_of_data(data)]
    return "all" if labels == [name_of_data(data)] else len(labels) or "nothing"


def test_what_fits_is_kept_and_nobody_is_measured():
    service = Buckets({"a": 4 * GB, "b": 4 * GB})
    service.begin_job("one", "a")
    service.begin_job("two", "b")
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "full"}
    assert keeps(service, "a") == keeps(service, "b") == "all"
    for _ in range(5):
        service.measure("one", 1.0, 0.9)
        service.tick(1.0)
    assert service.past == []


def test_who_gains_most_gets_the_room_when_both_are_measured():
    service = Buckets({"a": 8 * GB, "b": 8 * GB})
    service.begin_job("one", "a")
    assert service.rooms() == {"a": "full"}
    service.begin_job("two", "b")
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}, "what is there stays until somebody is measured"
    assert keeps(service, "b") == "nothing"
    service.measure("two", 1.0, 0.9)
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}, "who has none is measured sooner, and that says nothing"
    service.end_earlier("one")
    service.measure("one", 0.2, 0.1)
    service.tick(1.0)
    assert service.rooms() == {"a": "none", "b": "full"}, "two gains tenfold, one twice as much"
    assert keeps(service, "a") == "nothing"
    assert keeps(service, "b") == "all"
    service.measure("one", 1.0, 0.99)
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}, "and now a hundredfold"
    reasons = [event.reason for event in service.events if isinstance(event, RoomGiven)]
    assert all(reasons)
    assert "do the work of" in reasons[-2] or "do the work of" in reasons[-1]
    assert plain(service.replayed()) == plain(service.state)
    service.save()
    assert plain(service.restored()) == plain(service.state)


def test_who_hardly_gains_gets_nothing():
    service = Buckets({"a": 8 * GB, "b": 8 * GB})
    service.begin_job("one", "a")
    service.begin_job("two", "b")
    service.measure("one", 1.0, 0.02)
    service.measure("two", 1.0, 0.3)
    service.tick(1.0)
    assert service.rooms() == {"a": "none", "b": "full"}


def test_times_with_hits_are_measured_where_they_can_be():
    service = Buckets({"a": 8 * GB, "b": 8 * GB})
    service.begin_job("one", "a")
    service.measure("one", 1.0, 0.9)
    observation = service.observed.sources["one"]
    assert observation.estimated
    assert observation.hit_s == pytest.approx(0.1)
    service.measure("one", 0.4, 0.0, cached=1.0)
    assert (observation.miss_s, observation.hit_s, observation.estimated) == (1.0, 0.4, False)
    service.measure("one", 0.7, 0.0, cached=0.5)
    assert (observation.miss_s, observation.hit_s, observation.two_chunks_s) == (1.0, 0.4, None), (
        "a half of hits says neither"
    )


def probed():
    """Two jobs compete, and the one whose data are kept has never been seen without the cache."""
    service = Buckets({"a": 8 * GB, "b": 8 * GB})
    service.begin_job("one", "a")
    service.measure("one", 0.1, 0.0, cached=1.0)
    service.begin_job("two", "b")
    service.tick(1.0)
    return service


def test_a_job_that_was_never_seen_without_the_cache_is_probed():
    service = probed()
    assert service.past == ["one"]
    assert service.rooms() == {"a": "full", "b": "none"}
    service.measure("one", 0.1, 0.0, cached=1.0)
    assert service.past == ["one"], "tasks of before run: what is read says nothing yet"
    assert service.observed.sources["one"].miss_s is None
    service.end_earlier("one")
    service.measure("one", 0.5, 0.4)
    assert service.past == []
    observation = service.observed.sources["one"]
    assert (observation.miss_s, observation.hit_s) == (0.5, 0.1)
    service.tick(1.0)
    assert service.past == []
    service.measure("one", 0.1, 0.0, cached=1.0)
    service.end_earlier("one")
    observation.probed_s -= PROBE_INTERVAL_S
    service.tick(1.0)
    assert service.past == [], "a probe takes two hundredths of a job's time at most"
    observation.probed_s -= 100 * 0.4 / 0.02
    service.tick(1.0)
    assert service.past == ["one"], "and comes again, as the load of the link may have changed"


def test_what_lies_ready_as_a_probe_begins_does_not_count():
    service = probed()
    service.end_earlier("one")
    service.reads("one", 0.1, 0.0, cached=1.0, batches=LOOK_ELEMENTS, ready=150.0)
    service.reads("one", 0.1, 0.0, cached=1.0, batches=LOOK_ELEMENTS, ready=150.0)
    service.reads("one", 0.5, 0.4, batches=LOOK_ELEMENTS, ready=0.0)
    assert service.observed.sources["one"].miss_s is None
    service.reads("one", 0.5, 0.4, batches=2 * LOOK_ELEMENTS)
    assert service.observed.sources["one"].miss_s == 0.5


def test_a_probe_ends_with_its_job_and_with_the_competition():
    service = probed()
    service.say(inp.ConsumerSaid("client-one", msg.LeaveJob()))
    service.tick(1.0)
    assert "one" not in service.state.jobs
    assert service.past == []
    service = probed()
    service.say(inp.ConsumerSaid("client-two", msg.LeaveJob()))
    service.tick(1.0)
    assert service.past == []
    assert service.rooms()["a"] == "full"


def test_a_probe_is_given_up_where_a_job_hardly_reads_and_when_no_cache_server_is_left():
    service = probed()
    service.end_earlier("one")
    for _ in range(int(PROBE_LIMIT_S) + 2):
        assert service.past == ["one"]
        for name in ("one", "two"):
            service.reads(name, 0.1, 0.0, batches=0)
        service.tick(1.0)
        if not service.past:
            break
    assert service.past == []
    assert service.observed.sources["one"].probes == 1
    service.tick(1.0)
    assert service.past == [], "it comes again when others would"
    service = probed()
    service.say(inp.CacheServerSessionLost("cache"))
    service.tick(1.0)
    assert service.past == []
    assert not service.observed.sources["one"].past


@pytest.mark.parametrize("length", [60, 90, 210])
def test_a_probe_goes_on_over_epochs_that_are_shorter_than_it(length):
    service = probed()
    service.end_earlier("one")
    job = service.state.jobs["one"]
    service.reads("one", 0.1, 0.0, cached=1.0, batches=1)
    service.reads("one", 0.1, 0.0, cached=1.0, batches=1)
    for epoch in range(1, 6):
        service.begin(service.consumers["client-one"], epoch)
        for batches in range(0, length + 1, 30):
            service.reads("one", 0.5, 0.4, batches=0 if batches == 0 else 30, epoch=epoch, at=batches)
    assert job.consumers
    assert service.past == []
    assert service.observed.sources["one"].miss_s == 0.5


def test_a_consumer_that_stands_still_holds_no_look_up():
    service = Buckets({"a": 8 * GB, "b": 8 * GB})
    service.begin_job("one", "a", num_consumers=2)
    other = service.join(
        "client-two", "one", consumer=1, structure=structure("s3://a/*"), seed=1, tasks=160, num_consumers=2
    )
    assert other.failure is None
    service.measure("one", 0.1, 0.0, cached=1.0, only=0)
    assert service.observed.sources["one"].hit_s == 0.1


def test_a_job_that_reads_nothing_of_a_store_gains_nothing():
    service = probed()
    service.end_earlier("one")
    service.measure("one", 0.1, 0.05, stored=0)
    assert service.past == []
    observation = service.observed.sources["one"]
    assert observation.miss_s == observation.hit_s == 0.1


def test_who_fetches_two_chunks_for_others_is_not_taken_for_one_without_the_cache():
    service = Buckets({"a": 40 * GB})
    for name in ("one", "two"):
        service.begin_job(name, "a")
    service.measure("one", 0.6, 0.5, cached=0.0)
    observation = service.observed.sources["one"]
    assert (observation.miss_s, observation.two_chunks_s) == (None, 0.6)


def test_a_job_that_cannot_read_in_chunks_takes_them_from_nobody():
    service = Buckets({"a": 40 * GB})
    service.begin_job("one", "a")
    service.begin_job("ordered", "a", deterministic=True)
    service.tick(1.0)
    assert service.rooms() == {"a": "two chunks"}
    assert keeps(service, "a") in {1, 2}


def test_data_with_two_chunks_are_read_in_chunks_also_if_all_of_them_would_fit():
    service = Buckets({"a": 6 * GB, "b": 7 * GB}, workers=6)
    for name, data in (("one", "a"), ("two", "b"), ("three", "b")):
        service.begin_job(name, data)
    rooms = service.state.caches.rooms
    data = name_of_data("b").hex()
    rooms[data] = msgspec.structs.replace(rooms[data], room="two chunks")
    service.observed.rooms_for = (0,)
    for name in ("one", "two", "three"):
        service.observed.sources.pop(name, None)
    chunks = source_chunks.chunks_for(
        Transaction(service.state, service.observed, service.now), service.state.jobs["two"]
    )
    assert rooms[data].room == "two chunks"
    assert chunks.value >= 10


def test_a_restart_with_several_servers_waits_until_they_are_back():
    service = Buckets({"a": 40 * GB})
    for number in range(4):
        service.hello_of_server(f"more{number}")
    service.begin_job("one", "a")
    assert service.rooms() == {"a": "full"}
    service.save()
    service.restart()
    for name in list(service.workers):
        service.hello(name, asks_caches=True)
    for peer in service.consumers.values():
        service.rejoin(peer)
    service.hello_of_server("cache")
    service.tick(1.0)
    assert service.rooms() == {"a": "full"}
    assert keeps(service, "a") == "all"


def test_a_worker_that_comes_in_a_probe_is_told_of_it():
    service = probed()
    service.past = []
    service.add_worker("late", asks_caches=True)
    assert service.past == ["one"]


def test_a_dispatcher_that_comes_back_moves_nothing_and_measures_again():
    service = probed()
    before = service.rooms()
    service.save()
    service.restart()
    for name in list(service.workers):
        service.hello(name, asks_caches=True)
    service.hello_of_server("cache")
    assert keeps(service, "a") == "all"
    assert keeps(service, "b") == "nothing"
    service.tick(1.0)
    assert service.rooms() == before


def test_what_nobody_reads_stays_as_long_as_there_is_room():
    service = Buckets({"a": 4 * GB, "b": 4 * GB, "c": 4 * GB})
    for name, data in (("one", "a"), ("two", "b")):
        service.begin_job(name, data)
        service.say(inp.ConsumerSaid(f"client-{name}", msg.LeaveJob()))
        service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "full"}
    service.begin_job("three", "c")
    assert service.rooms() == {"a": "none", "b": "full", "c": "full"}, "what was read longest ago goes"
    assert keeps(service, "a") == "nothing"


def test_data_larger_than_the_cache_alone_are_read_in_chunks_or_kept_as_far_as_they_fit():
    service = Buckets({"a": 40 * GB, "b": 2 * GB})
    service.begin_job("one", "a")
    assert service.rooms() == {"a": "two chunks"}
    assert service.state.jobs["one"].epochs[0].chunks >= 10
    service.begin_job("two", "b")
    service.measure("one", 1.0, 0.9)
    service.tick(1.0)
    assert service.past == ["one"]
    service.end_earlier("one")
    for name in ("one", "two"):
        service.measure(name, 1.0, 0.9)
    service.tick(1.0)
    assert service.rooms() == {"a": "none", "b": "full"}, "one job gains nothing by two chunks"
    service = Buckets({"a": 40 * GB})
    service.begin_job("ordered", "a", deterministic=True)
    assert service.rooms() == {"a": "free"}
    assert not service.state.jobs["ordered"].epochs[0].chunks
    service.tick(1.0)
    assert service.told in (None, {}), "what fits stays"


def test_more_room_is_given_as_soon_as_it_is_there():
    service = Buckets({"a": 8 * GB, "b": 8 * GB})
    service.begin_job("one", "a")
    service.begin_job("two", "b")
    service.tick(1.0)
    assert "none" in service.rooms().values()
    service.hello_of_server("more")
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "full"}
    service.say(inp.CacheServerSessionLost("more"))
    for _ in range(int(AWAY_S)):
        for name in ("one", "two"):
            service.reads(name, 1.0, 0.9, batches=1)
        service.tick(1.0)
        assert service.rooms() == {"a": "full", "b": "full"}, "it may come back"
    service.tick(1.0)
    assert "none" in service.rooms().values()


def test_two_jobs_on_one_data_set_gain_by_two_chunks_where_one_does_not():
    service = Buckets({"a": 40 * GB, "b": 40 * GB}, workers=6)
    for name, data in (("one", "a"), ("two", "a"), ("three", "b")):
        service.begin_job(name, data)
    for name in ("one", "two", "three"):
        service.measure(name, 1.0, 0.9)
    service.tick(1.0)
    assert service.rooms() == {"a": "two chunks", "b": "none"}


def test_the_status_says_who_has_which_room_and_why():
    service = probed()
    service.end_earlier("one")
    report = status(service.state, service.observed, service.now)
    rooms = {each["data"]: each for each in report["source_cache"]["rooms"]}
    first = rooms[name_of_data("a").hex()]
    assert first["room"] == "full"
    assert first["bytes"] == 8 * GB
    assert first["jobs"] == {
        "one": {"miss_s": None, "hit_s": 0.1, "estimated": False, "two_chunks_s": None, "probing": True}
    }
    out = io.StringIO()
    show(report, out)
    text = out.getvalue()
    assert "source cache, data of one (7.45 GiB): room for all" in text
    assert "source cache, data of two (7.45 GiB): room for nothing" in text


def test_however_many_data_sets_are_read_all_are_known(monkeypatch):
    monkeypatch.setattr(cache_events, "DATA_SETS", 2)
    service = Buckets({"a": 8 * GB, "b": 8 * GB, "c": 8 * GB})
    for name, data in (("one", "a"), ("two", "b"), ("three", "c")):
        service.begin_job(name, data)
        service.tick(1.0)
    assert service.rooms().keys() == {"a", "b", "c"}


def test_of_many_data_sets_the_last_ones_are_known():
    service = Buckets({f"data{number}": GB for number in range(DATA_SETS + 5)})
    for number in range(DATA_SETS + 5):
        service.begin_job(f"job{number}", f"data{number}")
        service.say(inp.ConsumerSaid(f"client-job{number}", msg.LeaveJob()))
        service.tick(1.0)
    assert len(service.state.caches.rooms) == DATA_SETS
    assert sum(room == "full" for room in service.rooms().values()) == 9, "as many as fit"


def in_zones(**rooms):
    """Two jobs whose data sets fit into one server together, in a service that has a server of so much in each zone."""
    service = Buckets({"a": 4 * GB, "b": 4 * GB}, workers=2)
    for zone, room in rooms.items():
        service.add_worker(f"worker-{zone}", asks_caches=True, zone=zone)
        service.hello_of_server(f"cache-{zone}", room, zone)
    return service


def test_the_room_is_that_of_the_zone_that_holds_least():
    service = in_zones(east=20 * GB, west=6 * GB)
    service.begin_job("one", "a")
    reason = service.state.caches.rooms[name_of_data("a").hex()].reason
    assert reason.endswith("fits into the source cache (5.59 GiB in the zone that holds least)")
    service.begin_job("two", "b")
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}, "one that all three servers would hold"
    service.hello_of_server("another", 6 * GB, "west")
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "full"}


def test_a_zone_without_workers_keeps_no_copy_once_it_was_so_for_a_while():
    service = in_zones(east=20 * GB, west=6 * GB)
    service.begin_job("one", "a")
    service.begin_job("two", "b")
    service.say(inp.WorkerEnded("worker-west", "was killed by SIGKILL"))
    del service.workers["worker-west"]
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}
    for _ in range(int(AWAY_S) + 30):
        service.tick(1.0)
    assert "worker-west" not in service.state.workers
    assert service.rooms() == {"a": "full", "b": "full"}
    service.add_worker("another", asks_caches=True, zone="west")
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}


def test_a_zone_whose_servers_are_away_for_a_moment_gives_nobody_the_room_that_it_lacks():
    service = in_zones(east=20 * GB, west=6 * GB)
    service.begin_job("one", "a")
    service.begin_job("two", "b")
    service.say(inp.CacheServerSessionLost("cache-west"))
    for _ in range(int(AWAY_S / 2)):
        service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}
    service.hello_of_server("cache-west", 6 * GB, "west")
    service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "none"}
    service.say(inp.CacheServerSessionLost("cache-west"))
    for _ in range(int(AWAY_S) + 2):
        service.tick(1.0)
    assert service.rooms() == {"a": "full", "b": "full"}, "its workers ask all others, which have more"
