"""Whose blocks a job reads: its own tenant's, those of the tenants that this one trusts, and nobody else's."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.control_driver import STRUCTURE, FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.caching.cache_capacity import benefits
from millrace.control.journal.cache_events import BlocksGivenUp
from millrace.control.journal.snapshot import plain
from millrace.control.journal.task_events import TaskLeased
from millrace.control.state.cache_state import place_of
from millrace.planning.cache_point import CachePoint
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import CacheUsed, KeptBlock

FINGERPRINT = "ab" * 16
ITEMS = 8


def place(tenant: str) -> str:
    return place_of(FINGERPRINT, "", tenant)


def begun(trust=None, mode="cache", path="", limit=1 << 20):
    """A service with two workers, all of whose jobs keep what one point gives."""
    service = Service(FakePlan(ITEMS), cache="/cache", cache_bytes=limit, trust=trust or {})
    service.points = [CachePoint(0, "map(f)", mode, FINGERPRINT, path=path, items=ITEMS)]
    service.say(inp.Started("here:1"))
    service.answer_for_store()
    for name in ("w0", "w1"):
        service.add_worker(name)
    return service


def joined(service, tenant, **spec):
    """The consumer of a job of a tenant's, with what is leased to its workers."""
    peer = service.join(f"of {tenant}", f"job of {tenant}", structure=STRUCTURE, tenant=tenant, **spec)
    for worker in service.workers.values():
        service.plan_tasks(worker)
    return peer


def finished(service, tenant):
    """A job of a tenant's is run for an epoch, and gone."""
    peer = joined(service, tenant)
    service.run()
    assert peer.done
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))


def uses(service, tenant):
    return [
        task.cache
        for worker in service.workers.values()
        for task in worker.leases.values()
        if task.ref.job == f"job of {tenant}"
    ]


def test_without_trust_each_tenant_has_blocks_of_its_own():
    service = begun()
    finished(service, "red")
    assert len(service.store[place("red")]) == ITEMS
    joined(service, "blue")
    assert service.state.jobs["job of blue"].caching.kind == "put"
    assert {use.writer for use in uses(service, "blue")} == {"blue"}
    assert not any(use.also for use in uses(service, "blue"))
    service.run()
    assert len(service.store[place("blue")]) == ITEMS
    points = service.state.caches.points
    assert {name: point.writer for name, point in points.items()} == {place("red"): "red", place("blue"): "blue"}
    assert service.state.caches.taken >= 2 * ITEMS * service.block_bytes


def test_a_tenant_is_told_what_it_may_not_read():
    service = begun({"green": ["red"]})
    finished(service, "red")
    peer = joined(service, "blue")
    (said,) = [text for text in peer.notices if "may not read" in text]
    assert said == (
        "tenant 'blue' may not read what 'red' keeps of map(f), as it was not told to trust it (--trust blue=... of "
        "the dispatcher): these elements are made again"
    )
    assert not any("may not read" in text for name in ("green", "red") for text in joined(service, name).notices)


def test_a_tenant_is_refused_what_it_may_not_read_if_it_wants_to_be():
    service = begun()
    first = joined(service, "blue", untrusted_cache="refuse")
    assert first.failure is None  # nobody keeps anything yet
    service.run()
    finished(service, "red")
    peer = joined(service, "green", untrusted_cache="refuse")
    assert peer.failure.kind == "AccessDeniedError"
    assert "tenant 'green' may not read what 'blue' and 'red' keep of map(f)" in peer.failure.message
    assert plain(service.replayed()) == plain(service.state)


def test_who_trusts_a_tenant_reads_its_blocks_from_the_first_task_on():
    service = begun({"blue": ["red"]})
    finished(service, "red")
    joined(service, "blue")
    assert service.state.jobs["job of blue"].caching.kind == "get"
    assert all(use.also == {place("red"): "red"} for use in uses(service, "blue"))
    assert service.workers["w0"].known[place("red")] == set(service.store[place("red")])
    service.run()
    assert not service.store[place("blue")]


def test_trust_has_a_direction():
    service = begun({"blue": ["red"]})
    finished(service, "blue")
    joined(service, "red")
    assert not any(use.also for use in uses(service, "red"))
    assert service.state.jobs["job of red"].caching.kind == "put"


def test_what_a_reader_adds_is_its_own():
    service = begun({"blue": ["red"]})
    joined(service, "red")
    service.work(read=False)
    half = set(service.store[place("red")])
    assert 0 < len(half) < ITEMS
    for peer in list(service.consumers.values()):
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    finished(service, "blue")
    assert set(service.store[place("red")]) == half
    assert set(service.store[place("blue")]) == {f"block{task}" for task in range(ITEMS)} - half


def test_a_block_that_a_reader_of_another_tenant_may_still_read_is_not_deleted():
    service = begun({"blue": ["red"]})
    finished(service, "red")
    joined(service, "blue")
    readers = {lease for worker in service.workers.values() for lease in worker.leases}
    service.say(inp.RemovalAsked([place("red")]))
    assert not any(isinstance(asked, act.DeleteBlocks) for asked in service.asked_of_store)
    while readers & {lease for worker in service.workers.values() for lease in worker.leases}:
        service.answer_for_store()
        assert len(service.store[place("red")]) == ITEMS
        service.work()
    service.tick(1.0)
    service.answer_for_store()
    assert not service.store[place("red")]


def test_what_a_reader_cannot_read_is_given_up_for_its_writer():
    service = begun({"blue": ["red"]})
    finished(service, "red")
    del service.store[place("red")]["block3"]
    joined(service, "blue")
    service.run()
    (lost,) = [event for event in service.events if isinstance(event, BlocksGivenUp)]
    assert (lost.place, lost.names) == (place("red"), ["block3"])
    assert {held.place for held in service.state.caches.reservations.values() if held.room} <= {place("blue")}


def test_what_is_said_of_anothers_place_leaves_the_promise_of_ones_own():
    service = begun({"blue": ["red"]})
    joined(service, "blue")
    lease, held = next((lease, held) for lease, held in service.state.caches.reservations.items() if held.room)
    room = held.room
    service.say(inp.WorkerSaid("w0", CacheUsed("job of blue", lease, place("red"), lost=["block1"])))
    assert service.state.caches.reservations[lease].room == room
    service.say(inp.WorkerSaid("w0", CacheUsed("job of blue", lease, place("blue"))))
    assert service.state.caches.reservations[lease].room == 0


def test_who_reads_makes_it_worth_to_be_kept():
    service = begun({"blue": ["red"]})
    finished(service, "red")
    service.tick(7200.0)
    before = benefits(service.state, service.now)[place("red")]
    joined(service, "blue")
    assert benefits(service.state, service.now)[place("red")] > 2 * before


def test_a_folder_of_a_pipelines_own_is_read_by_all_who_name_it():
    service = begun(path="/there")
    finished(service, "red")
    assert list(service.store) == [f"{FINGERPRINT}@/there"]
    joined(service, "blue")
    assert {(use.place, use.writer, *use.also) for use in uses(service, "blue")} == {(f"{FINGERPRINT}@/there", "")}


def test_blocks_that_are_found_belong_to_whoever_has_put_a_name_to_them():
    service = Service(FakePlan(ITEMS), cache="/cache", cache_bytes=1 << 20, trust={"blue": ["red"]})
    service.points = [CachePoint(0, "map(f)", "cache", FINGERPRINT, items=ITEMS)]
    service.say(inp.Started("here:1"))
    block = KeptBlock("block0", 100, 1)
    tenants = ("red", "green", "")
    found = {place(tenant): [block] for tenant in tenants}
    service.store = {name: {block.name: block} for name in found}
    service.say(inp.StoreListed(found, [], {place(tenant): tenant for tenant in tenants}))
    assert {name: point.writer for name, point in service.state.caches.points.items()} == dict(
        zip(found, tenants, strict=True)
    )
    service.add_worker("w0")
    joined(service, "blue")
    assert service.workers["w0"].known == {place("blue"): set(), place("red"): {"block0"}}
    service.run()
    assert set(service.store[place("blue")]) == {f"block{task}" for task in range(1, ITEMS)}


def test_a_dispatcher_that_comes_back_with_another_list_keeps_to_it():
    service = begun({"blue": ["red"]})
    finished(service, "red")
    peer = joined(service, "blue")
    assert all(use.also for use in uses(service, "blue"))
    assert plain(service.replayed()) == plain(service.state) == plain(service.restored())
    service.settings = begun().settings
    lived = len(service.events)
    service.restart()
    for name in service.workers:
        service.hello(name)
    service.rejoin(peer)
    service.run()
    service.begin(peer)
    service.run()
    leased = [event for event in service.events[lived:] if isinstance(event, TaskLeased)]
    assert leased
    assert all((event.place, event.also) == (place("blue"), []) for event in leased)


TENANTS = ["red", "green", "blue"]
trusts = st.dictionaries(st.sampled_from(TENANTS), st.lists(st.sampled_from(TENANTS), unique=True, max_size=3))


@settings(max_examples=30, deadline=None)
@given(trusts, st.lists(st.tuples(st.sampled_from(TENANTS), st.booleans()), min_size=1, max_size=5))
def test_no_job_reads_what_nobody_allowed_it_to(trust, jobs):
    service = begun(trust, limit=3000)
    for tenant, whole in jobs:
        peer = joined(service, tenant)
        for _ in range(3):
            for use in uses(service, tenant):
                allowed = {place(tenant), *map(place, trust.get(tenant, ()))}
                assert use.place == place(tenant)
                assert {use.place, *use.also} == allowed
                assert all(place(writer) == where for where, writer in use.also.items())
            service.work()
        if whole:
            service.run()
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
        service.tick(2.0)
        service.answer_for_store()
        assert service.state.caches.taken <= 3000
    assert plain(service.replayed()) == plain(service.state)
