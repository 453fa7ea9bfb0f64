"""What a worker knows of blocks, after it was away."""

from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.cache_messages import CacheUsed
from millrace.control.cached import KeptBlock
from millrace.planning.points import CachePoint


def test_a_worker_forgets_what_was_given_up_while_it_was_away():
    service = Service(FakePlan(8), cache="a store", cache_bytes=1000)
    service.points = [CachePoint(0, "map", "cache", "f1", items=8)]
    service.say(inp.Started("here:1"))
    worker = service.add_worker("w")
    service.join("c")
    service.plan_tasks(worker)
    lease = next(iter(worker.leases))
    service.say(inp.WorkerSaid("w", CacheUsed("a", lease, "f1", [KeptBlock("b", 50, 1)])))
    assert worker.known["f1"] == {"b"}
    service.say(inp.WorkerSessionLost("w"))
    worker.connected = False
    service.say(inp.RemovalAsked(["f1"]))
    service.hello("w")
    service.run()
    assert "b" not in worker.known["f1"]
