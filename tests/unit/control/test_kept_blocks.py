"""Blocks in the store: what is there counts, what was given up is nobody's, whatever comes at the same time."""

from typing import Any

from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control import messages as msg
from millrace.control.cache_messages import CacheUsed
from millrace.control.cached import KeptBlock
from millrace.planning.points import CachePoint

PLACE = "f1"


def service(cache_bytes: int = 1000) -> Service:
    """A job whose every output is to be kept, with one worker that has leases and has not begun."""
    found = Service(FakePlan(8), cache="a store", cache_bytes=cache_bytes)
    found.points = [CachePoint(0, "map", "cache", PLACE, items=8)]
    found.say(inp.Started("here:1"))
    found.answer_for_store()
    found.add_worker("w")
    found.join("c", epochs=9)
    found.plan_tasks(found.workers["w"])
    assert leases(found)
    return found


def leases(service: Service) -> list[msg.LeaseTask]:
    return list(service.workers["w"].leases.values())


def used(service: Service, lease: msg.LeaseTask, **fields: Any) -> None:
    service.say(inp.WorkerSaid("w", CacheUsed("a", lease.lease, PLACE, **fields)))


def kept(service: Service) -> set[str]:
    cached = service.state.caches.points.get(PLACE)
    return set(cached.blocks) if cached is not None else set()


def asked(service: Service, kind: type) -> list[Any]:
    return [each for each in service.asked_of_store if isinstance(each, kind)]


def test_a_worker_forgets_what_was_given_up_while_it_was_away():
    there = service()
    used(there, leases(there)[0], blocks=[KeptBlock("b", 50, 1)])
    assert there.workers["w"].known[PLACE] == {"b"}
    there.say(inp.WorkerSessionLost("w"))
    there.workers["w"].connected = False
    there.say(inp.RemovalAsked([PLACE]))
    there.hello("w")
    there.run()
    assert "b" not in there.workers["w"].known[PLACE]
