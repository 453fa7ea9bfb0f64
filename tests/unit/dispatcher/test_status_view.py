from typing import Any

from msgspec.structs import replace
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.dispatcher.status_report import status
from millrace.dispatcher.status_view import HIDDEN, shown_to
from millrace.protocol.cache_server_messages import CacheServerHello
from millrace.protocol.caller import ADMINISTRATOR, Caller

ANNA = Caller("anna", "vision")
BERT = Caller("bert", "speech")


def reported(caller: Caller, *, after: inp.Input | None = None, **rights: Any) -> dict[str, Any]:
    """The status of a service in which both read a job, as somebody sees it."""
    service = Service(FakePlan(8))
    service.say(inp.Started("here:1"))
    for name, who in (("a", ANNA), ("b", BERT)):
        service.join(name, name, caller=who)
        service.add_worker(f"w{name}")
    service.tick(1.0)
    if after is not None:
        service.say(after)
    report = status(service.state, service.observed, service.now)
    assert {row["job"] for row in report["workers"]} == {"a", "b"}
    caller = replace(caller, rights=replace(caller.rights, **rights))
    return shown_to(caller, service.state, report)


def names(report: dict[str, Any]) -> set[str]:
    return {job["name"] for job in report["jobs"]}


def test_a_status_has_the_jobs_that_the_caller_may_see():
    assert names(reported(ADMINISTRATOR)) == names(reported(ANNA, status="all")) == {"a", "b"}
    assert names(reported(ANNA)) == names(reported(ANNA, status="own")) == {"a"}
    assert names(reported(Caller("cara", "vision"))) == {"a"}
    assert names(reported(Caller("cara", "vision"), status="own")) == set()


def test_cache_servers_and_their_counts_are_shown_to_who_may_see_all_jobs():
    hello = inp.CacheServerSaid("s", CacheServerHello("s", "h:9"))
    assert reported(ADMINISTRATOR, after=hello)["source_cache"]["servers"]
    assert reported(ANNA, after=hello, status="all")["source_cache"]["servers"]
    assert reported(ANNA, after=hello)["source_cache"] == {"servers": [], "rooms": [], "data": []}


def test_workers_of_others_are_there_and_say_nothing_of_what_they_do():
    rows = {row["job"]: row for row in reported(ANNA)["workers"]}
    assert set(rows) == {"a", None}
    assert (rows[None]["why"], rows[None]["assigned"], rows[None]["lanes"]) == (HIDDEN, HIDDEN, [])


def test_of_quotas_of_the_cache_each_sees_its_own_tenants():
    service = Service(FakePlan(8), cache="/cache", cache_bytes=1000, byte_quotas={"speech": 500, "vision": 700})
    service.say(inp.Started("here:1"))
    report = status(service.state, service.observed, service.now)
    assert [each["quota"] for each in report["cache"]["tenants"]] == [500, 700]
    shown = shown_to(BERT, service.state, report)["cache"]["tenants"]
    assert shown == [{"tenant": "speech", "taken": 0, "quota": 500}]
