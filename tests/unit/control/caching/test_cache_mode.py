"""Which mode a job is in, and when: profile, put, get; joined, undone, forced; and what is as in the first epoch."""

import pytest
from tests.unit.control.control_driver import STRUCTURE, FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.cache_events import ModeChosen, PointUsed
from millrace.control.journal.replay import apply
from millrace.control.journal.snapshot import plain
from millrace.control.state.cache_state import place_of
from millrace.planning.cache_point import CachePoint
from millrace.policies.caching.io_cost import TransferCost
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import CacheUsed, StoreCost, StoreMeasured
from millrace.protocol.reports import NodeMeasure

FINGERPRINT = "ab" * 16
PLACE = place_of(FINGERPRINT, "", "default")
ITEMS = 8
FAST = TransferCost((1, 1 << 20), (1e-6, 1e-4))
COST = StoreCost(FAST, FAST, FAST, 1e-12, 4)


def point(mode="auto", fingerprint=FINGERPRINT, node=0, **fields):
    return CachePoint(node, "map(f)", mode, fingerprint, items=ITEMS, **fields)


class Driven(Service):
    """A service with one worker, whose jobs have one task for each item, and say what is asked of them."""

    def __init__(self, *points: CachePoint, **settings):
        super().__init__(FakePlan(ITEMS), **{"cache": "/cache", "cache_bytes": 1 << 20, **settings})
        self.points = list(points)
        self.elements, self.spent_s = 0, 0.0
        self.say(inp.Started("here:1"))
        self.answer_for_store()
        self.add_worker("w0")

    def joined(self, job="a", *points, **fields):
        if points:
            self.points = list(points)
        peer = self.join(f"c-{job}", job, structure=STRUCTURE, **fields)
        for worker in self.workers.values():
            self.plan_tasks(worker)
        return peer

    def mode(self, job="a"):
        return self.state.jobs[job].caching.kind

    def why(self, job="a"):
        return self.state.jobs[job].caching.reason

    def modes(self, job="a"):
        return [event.kind for event in self.events if isinstance(event, ModeChosen) and event.job == job]

    def measured(self):
        for name, worker in self.workers.items():
            if worker.measuring:
                worker.measuring = False
                self.say(inp.WorkerSaid(name, StoreMeasured("", COST)))

    def reads(self, peer, batches, batch_s=0.01, waits=0.9, element_s=0.01, worker="w0", ends=True):
        """The consumer has had so many elements of its epoch, each of which took a worker so long.

        With ``ends`` what was leased before the present mode is done.
        """
        self.elements += 100
        self.spent_s += 100 * element_s
        job = peer.joined.job
        if ends:
            self.end_earlier(job)
        measure = NodeMeasure(0, "range", self.elements, 1000 * self.elements, self.spent_s)
        self.say(inp.WorkerSaid(worker, msg.WorkerReport(job=job, nodes=[measure])))
        report = msg.ConsumerReport(peer.epoch.epoch, [], batches, batch_s, waits * batch_s)
        self.say(inp.ConsumerSaid(peer.client, report))

    def epoch(self, peer, **looks):
        """To the end of the epoch, with four looks at it on the way; the next one is begun."""
        for _ in range(100):
            if peer.done:
                break
            self.work()
        for part in range(1, 5):
            self.reads(peer, 100 * part, **looks)
        assert peer.done
        self.begin(peer)


# -- profile, put, get -------------------------------------------------------------------------------------------------


def test_profile_put_get():
    service = Driven(point())
    peer = service.joined()
    assert service.mode() == "profile"
    assert all(task.measure and task.cache is None for task in service.workers["w0"].leases.values())
    service.measured()
    for part in range(1, 4):
        assert service.mode() == "profile"
        service.reads(peer, 100 * part)
    assert service.mode() == "put"
    assert "cache at map(f): " in service.why()
    service.epoch(peer)
    service.epoch(peer)
    service.epoch(peer)
    assert service.modes() == ["profile", "put", "get"]
    assert service.state.jobs["a"].caching.history == [(0, "profile"), (0, "put"), (2, "get")]
    assert len(service.store[PLACE]) == ITEMS
    assert plain(service.replayed()) == plain(service.state)


def test_what_waits_at_a_worker_as_a_mode_is_chosen_is_leased_again_in_that_mode():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    before = {lease: task.ref for lease, task in service.workers["w0"].leases.items()}
    assert len(before) > 1
    for part in range(1, 4):
        service.reads(peer, 100 * part, ends=False)
    assert service.mode() == "put"
    service.tick()
    first, *others = (task for _, task in sorted(service.workers["w0"].leases.items()))
    assert first.ref == before[min(before)], "it has begun"
    assert first.cache is None
    assert {task.ref for task in others} >= {*before.values()} - {first.ref}
    assert all(task.cache is not None for task in others)
    service.epoch(peer)
    assert plain(service.replayed()) == plain(service.state)


def test_what_somebody_has_a_part_of_stays_where_it_is_as_a_mode_is_chosen():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    second = sorted(service.workers["w0"].leases)[1]
    progress = msg.TaskProgress(service.workers["w0"].leases[second].ref.task, 1)
    service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(0, [progress])))
    for part in range(1, 4):
        service.reads(peer, 100 * part, ends=False)
    assert service.mode() == "put"
    assert second in service.workers["w0"].leases


def test_what_was_prepared_of_the_next_epoch_is_leased_again_as_its_mode_is_chosen_when_it_begins():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    while not peer.done:
        service.work()
    service.reads(peer, 8, ends=False)
    assert {task.ref.epoch for task in service.workers["w0"].leases.values()} == {1}
    service.begin(peer)
    service.tick()
    assert service.mode() == "put"
    first, *others = (task for _, task in sorted(service.workers["w0"].leases.items()))
    assert first.cache is None, "it has begun"
    assert others
    assert all(task.cache is not None for task in others)


def test_a_job_that_reads_what_is_kept_is_not_taken_for_one_that_drifts():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    service.block_bytes = 1 << 30  # so that the cache never is whole
    for batch_s in (0.01, 0.006, 0.003):
        for part in range(1, 13):
            service.reads(peer, 100 * part + 300, batch_s=batch_s)
        for _ in range(50):
            service.work()
        service.begin(peer)
    assert service.modes() == ["profile", "put"]


def test_a_job_whose_time_changes_within_an_epoch_is_measured_anew():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    for part in range(4, 25):
        service.reads(peer, 100 * part, batch_s=0.004 if part < 15 else 0.009)
        if service.mode() == "profile":
            break
    assert service.modes() == ["profile", "put", "profile"]
    assert service.why() == "9 ms/element now beside 4 ms when this mode began: what was measured has changed"


def test_a_job_that_its_consumer_limits_computes():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    for part in range(1, 4):
        service.reads(peer, 100 * part, waits=0.0)
    assert service.modes() == ["profile", "compute"]
    assert "its consumer waits 0 % of the time" in service.why()


def test_a_cache_that_makes_a_job_slower_is_given_up_and_not_chosen_again():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    service.block_bytes = 1 << 30  # nothing is kept
    for part in range(4, 12):
        service.reads(peer, 100 * part, batch_s=0.05)
    assert service.modes() == ["profile", "put", "compute"]
    assert service.state.jobs["a"].caching.undone == {0: "put"}
    service.epoch(peer, batch_s=0.05)
    service.epoch(peer, batch_s=0.05)
    assert service.modes() == ["profile", "put", "compute"]


def test_a_profile_ends_with_its_epoch():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    service.run()
    service.reads(peer, 8)
    assert service.mode() == "profile"
    service.begin(peer)
    assert service.modes() == ["profile", "put"]


def test_a_store_is_measured_by_another_worker_if_the_one_that_was_asked_is_gone():
    service = Driven(point())
    peer = service.joined()
    assert service.workers["w0"].measuring
    service.kill("w0")
    service.add_worker("w0")
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    assert service.mode() == "profile"
    service.measured()
    service.reads(peer, 400)
    assert service.mode() == "put"


def test_a_store_is_measured_after_a_restart_if_nobody_had_done_so():
    service = Driven(point())
    peer = service.joined()
    service.workers["w0"].measuring = False
    service.restart()
    service.answer_for_store()
    service.hello("w0")
    service.rejoin(peer)
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    service.measured()
    service.reads(peer, 400)
    assert service.mode() == "put"


def test_a_store_that_cannot_be_measured_is_not_used():
    service = Driven(point())
    service.joined()
    service.say(inp.WorkerSaid("w0", StoreMeasured("", None, "it is read-only")))
    assert service.mode() == "compute"
    assert service.why() == "the cache cannot be used: it is read-only"


# -- what is measured in one regime is not used in another -------------------------------------------------------------


def profiled_anew():
    """A job whose batch time has changed, and that is measured for the second time; and its last report."""
    service = Driven(point())
    peer = service.joined()
    service.measured()
    service.block_bytes = 1 << 30  # nothing is kept
    for part in range(1, 24):
        service.reads(peer, 100 * part, batch_s=0.004 if part < 15 else 0.009)
        if service.modes() == ["profile", "put", "profile"]:
            return service, peer, part
    raise AssertionError("it is not measured anew")


def test_tasks_of_the_mode_before_are_no_part_of_a_profile():
    service, peer, part = profiled_anew()
    for more in range(1, 6):  # served from the cache, as far as anybody can tell
        service.reads(peer, 100 * (part + more), element_s=1e-5, ends=False)
    assert service.mode() == "profile"
    for more in range(6, 10):
        service.reads(peer, 100 * (part + more))
    assert service.mode() == "put"
    assert "10 ms" in service.why()


def test_a_profile_does_not_count_what_was_done_before_the_dispatcher_came_back():
    service, peer, part = profiled_anew()
    service.restart()
    service.answer_for_store()
    service.hello("w0")
    service.rejoin(peer)
    service.reads(peer, 100 * (part + 1), element_s=1e-5)
    assert service.mode() == "profile"
    for more in range(2, 6):
        service.reads(peer, 100 * (part + more))
    assert service.mode() == "put"


def test_the_batch_time_of_a_profile_has_nothing_of_the_mode_before():
    service, peer, part = profiled_anew()
    service.reads(peer, 100 * part + 10, batch_s=0.5)
    service.elements, service.spent_s = service.elements + 1000, service.spent_s + 10.0
    service.reads(peer, 100 * part + 20, batch_s=0.5)  # of the last 100 elements 80 are of the mode before
    assert service.mode() == "profile"
    service.reads(peer, 100 * part + 120)
    assert service.mode() == "put"
    assert "0.5 s" not in service.why()


def test_looks_at_another_worker_are_not_compared_though_there_are_as_many():
    service = Driven(point())
    peer = service.joined()
    service.measured()
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    service.block_bytes = 1 << 30
    for part in range(4, 10):
        service.reads(peer, 100 * part, batch_s=0.004)
    service.add_worker("w1")
    service.kill("w0")
    for part in range(10, 20):
        service.reads(peer, 100 * part, batch_s=0.05, worker="w1")
    assert service.modes() == ["profile", "put"]


# -- forced, or not there ----------------------------------------------------------------------------------------------


def test_cache_is_put_and_got_without_a_profile():
    service = Driven(point("cache"))
    peer = service.joined()
    service.epoch(peer)
    service.epoch(peer)
    assert service.modes() == ["put", "get"]
    assert service.why() == "cache at map(f): the pipeline asks for it"


def test_a_point_whose_mode_is_compute_is_never_used():
    service = Driven(point("compute", fingerprint="", why="its mode is 'compute'"))
    peer = service.joined()
    service.epoch(peer)
    assert service.modes() == []
    assert not peer.notices


@pytest.mark.parametrize(
    ("mode", "notices"),
    [
        ("auto", []),
        (
            "cache",
            ["cache after map(f) keeps nothing, as the service was started without cache_dir: its input is computed"],
        ),
    ],
)
def test_a_service_without_a_cache_computes_and_says_so_where_one_was_asked_for(mode, notices):
    service = Driven(point(mode), cache="", cache_bytes=0)
    peer = service.joined()
    service.epoch(peer)
    assert service.modes() == []
    assert not service.store
    assert peer.notices == notices


def test_a_folder_of_the_user_s_own_needs_no_cache_of_the_service():
    service = Driven(point("cache", path="/mine"), cache="", cache_bytes=0)
    peer = service.joined()
    service.epoch(peer)
    assert service.modes() == ["put", "get"]
    assert len(service.store[f"{FINGERPRINT}@/mine"]) == ITEMS
    assert not peer.notices


def test_a_point_that_cannot_be_used_is_named():
    service = Driven(point(fingerprint="", why="its function f reads the global 'model'"))
    peer = service.joined()
    assert peer.notices == ["autocache after map(f) is not used: its function f reads the global 'model'"]
    assert service.modes() == []


def test_of_two_points_the_later_one_is_used_if_both_are_asked_for():
    service = Driven(point("cache", "cd" * 16), point("cache", node=1))
    service.joined()
    assert {task.cache.place for task in service.workers["w0"].leases.values() if task.cache} == {PLACE}
    assert service.why() == "cache at map(f): the pipeline asks for it, and it is the last of 2 such points"


# -- several jobs ------------------------------------------------------------------------------------------------------


def test_a_job_that_comes_after_another_reads_from_its_first_task():
    service = Driven(point("cache"))
    peer = service.joined()
    service.epoch(peer)
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    other = service.joined("b", point())
    assert service.mode("b") == "get"
    assert service.why("b") == "cache at map(f): 100 % of it is kept already"
    assert service.workers["w0"].known[PLACE] == set(service.store[PLACE])
    service.epoch(other)
    service.epoch(other)
    assert service.modes("b") == ["get"]


def test_of_two_points_that_others_have_kept_the_faster_is_read():
    early = "cd" * 16
    service = Driven()
    for job, kept in (("a", point("cache", early)), ("b", point("cache"))):
        peer = service.joined(job, kept)
        service.epoch(peer)
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    for fingerprint, saves in ((early, 0.8), (FINGERPRINT, 0.3)):
        place = place_of(fingerprint, "", "default")
        apply(service.state, PointUsed("measured", place, service.now, saves, "map(f)", writer="default"))
    service.joined("c", point(fingerprint=early), point(node=1))
    assert service.mode("c") == "get"
    assert service.state.jobs["c"].caching.node == 0
    assert service.why("c").endswith("and it saves the most of 2 such points: 80 %")


def test_a_job_that_reads_all_from_a_cache_is_not_measured_anew_when_reading_gets_slower():
    service = Driven(point("cache"))
    peer = service.joined()
    service.epoch(peer)
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    other = service.joined("b", point())
    for part in range(1, 25):
        service.reads(other, 100 * part, batch_s=0.004 if part < 12 else 0.020)
    assert service.modes("b") == ["get"]


def test_a_job_that_missed_what_another_one_kept_meanwhile_is_not_measured():
    service = Driven(point("cache"))
    service.joined()
    service.work(read=False)
    other = service.joined("b", point())
    service.plan_tasks(service.add_worker("w1"))
    service.run()
    assert len(service.store[PLACE]) == ITEMS
    service.observed.caching["b"].misses = 50
    service.begin(other)
    assert service.modes("b") == ["get"]


def test_a_job_that_comes_while_another_writes_reads_what_is_there_and_helps():
    service = Driven(point("cache"))
    service.joined()
    service.work(read=False)
    assert 0 < len(service.store[PLACE]) < ITEMS
    other = service.joined("b", point())
    service.plan_tasks(service.add_worker("w1"))
    assert service.mode("b") == "get"
    uses = [task.cache for worker in service.workers.values() for task in worker.leases.values() if task.ref.job == "b"]
    assert uses
    assert all(use is not None and use.place == PLACE and use.room for use in uses)
    service.run()
    assert other.done
    assert len(service.store[PLACE]) == ITEMS


def test_a_job_that_found_little_is_measured_when_its_first_epoch_is_over():
    service = Driven(point("cache"))
    peer = service.joined()
    for _ in range(2):
        service.work(read=False)
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    other = service.joined("b", point())
    service.epoch(other)
    assert service.modes("b") == ["get", "profile"]


# -- what is as in the first epoch -------------------------------------------------------------------------------------


def reused(service, peer, epochs=3):
    found = []
    for _ in range(epochs):
        found.append(peer.epoch.reused)
        service.epoch(peer)
    return found


def test_with_autocache_epochs_that_begin_while_it_is_used_are_as_the_first_one_if_something_is_random():
    service = Driven(point(fixed=["map(augment)"], random=True))
    peer = service.joined()
    service.measured()
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    assert service.mode() == "put"
    assert reused(service, peer) == [-1, 0, 0]
    assert [notice for notice in peer.notices if "below the cache after map(f) every epoch is like the first" in notice]
    assert len(peer.notices) == 1


@pytest.mark.parametrize("fields", [{}, {"mode": "cache", "fixed": ["map(augment)"], "random": True}])
def test_without_anything_random_or_with_cache_nothing_has_to_be_told(fields):
    service = Driven(point(**fields))
    peer = service.joined()
    service.measured()
    for part in range(1, 4):
        service.reads(peer, 100 * part)
    assert reused(service, peer) == [-1, -1, -1]


def test_an_epoch_that_began_with_random_values_of_its_own_neither_reads_nor_adds():
    service = Driven(point(fixed=["map(augment)"], random=True))
    peer = service.joined()
    service.run(room=1)
    service.begin(peer)
    service.measured()
    assert peer.epoch.reused == -1
    before = service.state.next_lease
    service.reads(peer, 8)
    assert service.mode() == "put"
    service.work()
    service.work()
    assert peer.epoch.epoch == 1
    assert before < service.state.next_lease
    assert not service.store.get(PLACE)
    assert all(task.cache is None for worker in service.workers.values() for task in worker.leases.values())
    service.run()
    service.epoch(peer)
    assert peer.epoch.reused == 0
    service.run()
    assert len(service.store[PLACE]) == ITEMS


# -- what reports teach ------------------------------------------------------------------------------------------------


def test_what_reads_really_take_is_learnt():
    service = Driven(point())
    service.joined()
    service.measured()
    cost = service.state.caches.costs[""]
    before = cost.read.seconds(1 << 20)
    for _ in range(50):
        took = 10 * 50 * before / cost.threads  # as many reads at once as there are threads
        used = CacheUsed("a", 1, PLACE, hits=1, reads=10, read_bytes=10 << 20, read_s=took)
        service.say(inp.WorkerSaid("w0", used))
    assert service.observed.cost is not None
    assert service.observed.cost.read.seconds(1 << 20) == pytest.approx(50 * before, rel=0.1)
    assert service.state.caches.costs[""].read.seconds(1 << 20) == before
