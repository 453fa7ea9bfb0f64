"""How much of a cache a tenant has: what of its own goes, what of others stays, and a quota that was lowered."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.journal.cache_events import BlocksGivenUp
from millrace.control.journal.snapshot import plain
from millrace.control.state.cache_state import is_of, place_of
from millrace.planning.cache_point import CachePoint
from millrace.policies.caching.io_cost import TransferCost
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import KeptBlock, StoreCost, StoreMeasured

PRINTS = ("ab" * 16, "cd" * 16, "ef" * 16)
ITEMS = 8
LINE = TransferCost((1,), (1e-6,))
COST = StoreCost(LINE, LINE, LINE, 1e-12, 4)


def begun(quotas, limit=8000, **fields):
    service = Service(FakePlan(ITEMS), cache="/cache", cache_bytes=limit, byte_quotas=quotas, **fields)
    service.say(inp.Started("here:1"))
    service.answer_for_store()
    for name in ("w0", "w1"):
        service.add_worker(name)
    service.say(inp.WorkerSaid("w0", StoreMeasured("", COST)))
    return service


def joined(service, tenant, fingerprint=PRINTS[0], name="", path=""):
    service.points = [CachePoint(0, "map(f)", "cache", fingerprint, path=path, items=ITEMS)]
    peer = service.join(f"{tenant}{service.now}{name}", name or f"job of {tenant}", tenant=tenant)
    for worker in service.workers.values():
        service.plan_tasks(worker)
    return peer


def read(service, peer, epochs=3):
    for _ in range(epochs):
        for _ in range(200):
            if peer.done:
                break
            service.work()
            service.tick(2.0)
            service.answer_for_store()
            check(service)
        assert peer.done
        service.begin(peer)


def check(service):
    """No tenant has more than its quota, kept or promised, nor all together more than there is."""
    for tenant, quota in service.settings.byte_quotas.items():
        assert stored(service, tenant) <= quota
        assert service.state.caches.taken_by(tenant) <= quota
    assert service.state.caches.taken <= service.settings.cache_bytes


def stored(service, tenant):
    return sum(b.bytes for place, there in service.store.items() if is_of(place, tenant) for b in there.values())


def finished(service, tenant, fingerprint=PRINTS[0], epochs=3):
    peer = joined(service, tenant, fingerprint)
    read(service, peer, epochs)
    service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
    return peer


def test_a_tenant_keeps_what_its_quota_holds_and_is_told_so_once():
    service = begun({"red": 500})
    peer = joined(service, "red")
    read(service, peer, 4)
    assert 200 < stored(service, "red") <= 500
    (said,) = [text for text in peer.notices if "--quota-bytes" in text]
    assert said.startswith("tenant 'red' has ")
    assert "and may have 500 B (--quota-bytes red=500 of the dispatcher)" in said
    assert "millrace cache rm" in said
    other = finished(service, "blue")
    assert stored(service, "blue") == ITEMS * 100
    assert not any("--quota-bytes" in text for text in other.notices)


def test_at_its_quota_a_tenant_gives_up_its_own_and_nobody_elses():
    service = begun({"red": 500})
    finished(service, "blue")
    finished(service, "red", PRINTS[0])
    kept = stored(service, "red")
    assert kept > 200
    service.tick(4 * 3600.0)  # what nobody reads is worth less by now: of blue, too
    read(service, joined(service, "red", PRINTS[1]), 6)
    assert len(service.store[place_of(PRINTS[1], "", "red")]) * 100 > 200
    assert stored(service, "blue") == ITEMS * 100
    given_up = [event for event in service.events if isinstance(event, BlocksGivenUp)]
    assert given_up
    assert all(is_of(event.place, "red") for event in given_up)
    assert plain(service.replayed()) == plain(service.state)


def test_equals_are_not_exchanged_at_a_quota():
    service = begun({"red": 400})
    peer = joined(service, "red")
    read(service, peer, 2)
    kept = set(service.store[place_of(PRINTS[0], "", "red")])
    read(service, peer, 4)
    assert set(service.store[place_of(PRINTS[0], "", "red")]) == kept != set()


def test_a_lowered_quota_has_what_is_too_much_of_the_tenant_deleted_and_no_more():
    service = begun({})
    finished(service, "red")
    finished(service, "blue")
    service.settings = msgspec.structs.replace(service.settings, byte_quotas={"red": 350})
    service.restart()
    service.answer_for_store()
    assert stored(service, "red") == 300
    assert stored(service, "blue") == ITEMS * 100


def test_a_quota_lowered_while_its_tenant_reads_lets_those_finish_who_read():
    service = begun({})
    peer = joined(service, "red")
    for _ in range(3):
        service.work(read=False)
    service.settings = msgspec.structs.replace(service.settings, byte_quotas={"red": 250})
    service.restart()
    for name in service.workers:
        service.hello(name)
    service.rejoin(peer)
    for _ in range(2):
        service.run()
        service.tick(2.0)
        service.answer_for_store()
        assert peer.done
        service.begin(peer)
    assert 0 < stored(service, "red") <= 250
    assert service.state.caches.taken_by("red") <= 250


def test_a_folder_of_its_own_counts_for_nobody():
    service = begun({"red": 100})
    peer = joined(service, "red", path="/mine")
    for _ in range(40):
        service.work()
    assert peer.done
    assert service.state.caches.taken_by("red") == 0
    assert not any("--quota-bytes" in text for text in peer.notices)


def test_a_quota_beyond_what_there_is_is_what_there_is():
    service = begun({"red": 1 << 40}, limit=400)
    peer = joined(service, "red")
    read(service, peer)
    assert stored(service, "red") <= 400
    assert not any("--quota-bytes" in text for text in peer.notices)


def test_one_that_holds_not_even_a_block_keeps_nothing_and_all_is_read():
    service = begun({"red": 60})
    peer = joined(service, "red")
    read(service, peer)
    assert stored(service, "red") == 0


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(("red", "blue", "green")), st.sampled_from(PRINTS), st.integers(0, 2)),
        min_size=1,
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(("red", "blue")), st.integers(50, 1200), max_size=2),
    st.integers(400, 3000),
    st.integers(30, 200),
)
def test_quotas_hold_whatever_tenants_do(uses, quotas, limit, size):
    service = begun(quotas, limit)
    service.block_bytes = size
    for number, (tenant, fingerprint, hours) in enumerate(uses):
        room = limit - service.state.caches.taken
        before = {name: stored(service, name) for name in ("red", "blue", "green") if name != tenant}
        peer = joined(service, tenant, fingerprint, f"job{number}")
        read(service, peer, 2)
        service.say(inp.ConsumerSaid(peer.client, msg.LeaveJob()))
        if tenant in quotas and quotas[tenant] <= room:  # all that it may have did fit
            assert all(stored(service, name) == had for name, had in before.items())
        service.tick(hours * 3600.0)
    assert plain(service.replayed()) == plain(service.state)


def test_what_is_found_of_a_tenant_beyond_its_quota_goes_as_the_service_starts():
    service = Service(FakePlan(ITEMS), cache="/cache", cache_bytes=8000, byte_quotas={"red": 250})
    for tenant in ("red", "blue"):
        service.store[place_of(PRINTS[0], "", tenant)] = {f"b{n}": KeptBlock(f"b{n}", 100, 1) for n in range(6)}
    service.say(inp.Started("here:1"))
    service.answer_for_store()
    assert (stored(service, "red"), stored(service, "blue")) == (200, 600)


@pytest.mark.parametrize("tenant", ["", "a", "ba"])
def test_blocks_are_of_the_tenant_for_whom_they_were_made_and_of_no_other(tenant):
    place = place_of("f" * 32, "", tenant)
    assert [other for other in ("", "a", "ba") if is_of(place, other)] == [tenant]
    assert not is_of(place_of("f" * 32, "/own/folder", tenant), tenant), "the user's own folder is no part of the cache"
