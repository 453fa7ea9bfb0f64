"""Cache servers: who may be one, which are there, and that workers hear of each that comes or goes."""

from typing import Any

from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import actions as act
from millrace.control import inputs as inp
from millrace.control.decide import decide
from millrace.dispatcher.status_report import status
from millrace.protocol.cache_server_messages import (
    CacheServerHello,
    CacheServerReport,
    CacheServersKnown,
    CacheServerWelcome,
    SourceCounts,
)
from millrace.protocol.caller import Caller, Rights
from millrace.protocol.messages import WorkerHello, WorkerReport


def begun() -> Service:
    service = Service(FakePlan(6))
    service.say(inp.Started("here:1"))
    say_worker(service, "w0")
    return service


def say(service: Service, server: str, message: Any, **fields: Any) -> list[act.Action]:
    events, actions = decide(
        service.state, service.observed, inp.CacheServerSaid(server, message, **fields), service.now
    )
    assert not events, "nothing of it is journalled"
    return actions


def hello(server: str, address: str = "", **fields: Any) -> CacheServerHello:
    return CacheServerHello(server, address or f"{server}:1", **fields)


def known(actions: list[act.Action]) -> dict[str, list[str]]:
    """By worker, the addresses that it was told of last."""
    return {
        action.worker: action.message.addresses
        for action in actions
        if isinstance(action, act.SendToWorker) and isinstance(action.message, CacheServersKnown)
    }


def test_workers_hear_of_each_that_comes_and_goes():
    service = begun()
    say_worker(service, "w1")
    say_worker(service, "of an older version", asks=False)
    actions = say(service, "b", hello("b"))
    assert actions[0] == act.SendToCacheServer("b", CacheServerWelcome(service.state.settings.heartbeat_s))
    assert known(actions) == {"w0": ["b:1"], "w1": ["b:1"]}
    assert known(say(service, "a", hello("a"))) == {"w0": ["a:1", "b:1"], "w1": ["a:1", "b:1"]}
    _, actions = decide(service.state, service.observed, inp.CacheServerSessionLost("b"), service.now)
    assert known(actions) == {"w0": ["a:1"], "w1": ["a:1"]}
    _, actions = decide(service.state, service.observed, inp.CacheServerSessionLost("b"), service.now)
    assert not actions, "it had gone"
    _, actions = decide(service.state, service.observed, inp.CacheServerSessionLost("a"), service.now)
    assert known(actions) == {"w0": [], "w1": []}


def test_a_worker_that_comes_late_hears_of_those_that_are_there_and_else_goes_on_with_what_it_knew():
    service = begun()
    before = say_worker(service, "w1")
    assert not known(before)
    say(service, "a", hello("a"))
    assert known(say_worker(service, "w2")) == {"w2": ["a:1"]}
    assert not known(say_worker(service, "of an older version", asks=False))


def say_worker(service: Service, name: str, *, asks: bool = True, zone: str = "") -> list[act.Action]:
    item = inp.WorkerSaid(name, WorkerHello(name, f"{name}:1", asks_caches=asks, zone=zone))
    _, actions = decide(service.state, service.observed, item, service.now)
    return actions


def test_workers_hear_in_which_zones_the_servers_are():
    service = begun()
    say(service, "a", hello("a", zone="east"))
    (message,) = [each.message for each in say(service, "b", hello("b")) if isinstance(each, act.SendToWorker)]
    assert message == CacheServersKnown(["a:1", "b:1"], zones={"a:1": "east"})
    (message,) = [
        each.message for each in say(service, "b", hello("b", zone="west")) if isinstance(each, act.SendToWorker)
    ]
    assert message == CacheServersKnown(["a:1", "b:1"], zones={"a:1": "east", "b:1": "west"})


def test_the_status_says_in_which_zone_each_process_is():
    service = begun()
    say_worker(service, "w1", zone="east")
    say(service, "a", hello("a", zone="east"))
    say(service, "b", hello("b"))
    said = status(service.state, service.observed, service.now)
    assert {each["id"]: each["zone"] for each in said["workers"]} == {"w0": "", "w1": "east"}
    assert {each["name"]: each["zone"] for each in said["source_cache"]["servers"]} == {"a": "east", "b": ""}


def test_one_that_comes_back_elsewhere_takes_its_own_place():
    service = begun()
    say(service, "a", hello("a"))
    assert known(say(service, "a", hello("a", "elsewhere:2"))) == {"w0": ["elsewhere:2"]}


def test_one_that_is_silent_is_given_up():
    service = begun()
    say(service, "a", hello("a"))
    service.now += 2 * service.state.settings.heartbeat_s
    say(service, "a", CacheServerReport(SourceCounts(hits=3)))
    assert service.observed.cache_servers["a"].counts.hits == 3
    service.now += 2.4 * service.state.settings.heartbeat_s
    _, actions = decide(service.state, service.observed, inp.Tick(), service.now)
    assert not known(actions)
    service.now += 0.2 * service.state.settings.heartbeat_s
    _, actions = decide(service.state, service.observed, inp.Tick(), service.now)
    assert not service.observed.cache_servers
    (closed,) = [action for action in actions if isinstance(action, act.CloseCacheServer)]
    assert "was silent" in closed.failure.message
    assert not say(service, "a", CacheServerReport()), "its hello brings it back, a report alone does not"


def test_who_may_not_work_may_not_be_one():
    service = begun()
    (refused,) = say(service, "a", hello("a"), caller=Caller("anna", "vision", Rights()))
    assert isinstance(refused, act.CloseCacheServer)
    assert "work = true" in refused.failure.message
    assert not service.observed.cache_servers


def test_after_a_restart_workers_hear_of_servers_once_all_have_had_the_time_to_come_back():
    """Else what the others own would have other owners for a while, and be fetched anew."""
    service = begun()
    for server in ("a", "b"):
        say(service, server, hello(server))
    service.save()
    service.restart()
    assert not known(say_worker(service, "w0"))
    assert not known(say(service, "a", hello("a")))
    assert not known(say_worker(service, "another"))
    say(service, "b", hello("b"))
    told: dict[str, list[str]] = {}
    for _ in range(100):
        service.now += 1.0
        for server in ("a", "b"):
            say(service, server, CacheServerReport())
        for worker in ("w0", "another"):
            service.say(inp.WorkerSaid(worker, WorkerReport()))
        told.update(known(decide(service.state, service.observed, inp.Tick(), service.now)[1]))
        if told:
            break
    assert told == {"w0": ["a:1", "b:1"], "another": ["a:1", "b:1"]}
