"""Rights: with each, without it, with another's, and as it is taken away. A refusal names the right that is missing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.control.control_driver import OTHER_STRUCTURE, FakePlan, Service
from tests.unit.control.membership.test_resume import states_of

from millrace.control import inputs as inp
from millrace.control.caching import cache_mode
from millrace.control.journal.cache_events import BlocksGivenUp
from millrace.control.journal.snapshot import plain
from millrace.control.membership import access
from millrace.control.membership.admission import Refused
from millrace.control.state.cache_state import place_of
from millrace.planning.cache_point import CachePoint
from millrace.protocol import messages as msg
from millrace.protocol.caller import ADMINISTRATOR, SCOPES, Caller, Rights

FINGERPRINT = "ab" * 16
NOTHING = Rights(run=False, join="none", control="none", status="none")


def caller(name: str = "anna", tenant: str = "vision", **rights: Any) -> Caller:
    return Caller(name, tenant, msgspec.structs.replace(NOTHING, **rights))


BEGINNER = caller(run=True, join="own", control="own")


def begun(**settings: Any) -> Service:
    service = Service(FakePlan(8), **settings)
    service.say(inp.Started("here:1"))
    return service


def holding(**spec: Any) -> Service:
    """A service in which anna has begun job a, and reads it."""
    service = begun()
    assert service.join("first", "a", caller=BEGINNER, seed=11, num_consumers=2, **spec).failure is None
    return service


ALL_JOBS = [
    ("own", caller, True),
    ("own", lambda **rights: caller("bert", **rights), False),
    ("own", lambda **rights: caller("anna", "speech", **rights), False),
    ("tenant", lambda **rights: caller("bert", **rights), True),
    ("tenant", lambda **rights: caller("bert", "speech", **rights), False),
    ("all", lambda **rights: caller("bert", "speech", **rights), True),
    ("none", caller, False),
]


@pytest.mark.parametrize(("scope", "who", "allowed"), ALL_JOBS)
def test_joining(scope, who, allowed):
    service = holding()
    peer = service.join("second", "a", caller=who(join=scope), seed=11, num_consumers=2)
    if allowed:
        assert peer.joined.consumer == 1
    else:
        assert peer.failure.kind == "AccessDeniedError"
        assert "lacks the right join = " in peer.failure.message
        assert "job 'a', which is of tenant 'vision' and was begun by 'anna'" in peer.failure.message
    assert plain(service.replayed()) == plain(service.state)


@pytest.mark.parametrize(("scope", "who", "allowed"), ALL_JOBS)
def test_loading_a_state_into_a_job_that_others_read(scope, who, allowed):
    service = holding()
    states = states_of(
        service, [service.consumers["first"], service.join("0", "a", num_consumers=2, seed=11, tenant="vision")]
    )
    peer = service.join(
        "second",
        "a",
        caller=who(run=True, join="all", control=scope),
        consumer=0,
        num_consumers=2,
        seed=11,
        states=states,
    )
    first = service.consumers["first"]
    if allowed:
        assert peer.failure is None
        assert first.failure.kind == "ConsumerConflictError"
        assert service.state.jobs["a"].owner == peer_name(who)
    else:
        assert f"{peer_name(who)!r} of tenant" in peer.failure.message
        assert "may not load a state into job 'a'" in peer.failure.message
        assert "lacks the right control = " in peer.failure.message
        assert first.failure is None
        assert service.state.jobs["a"].owner == "anna"


def peer_name(who):
    return who().name


@pytest.mark.parametrize(("scope", "who", "allowed"), ALL_JOBS)
def test_beginning_a_failed_job_anew(scope, who, allowed):
    service = holding()
    service.say(inp.Unsendable("a", msg.Failure("JobFailedError", "broken")))
    service.say(inp.ClientSessionLost("first"))
    peer = service.join("second", "a", caller=who(run=True, join="all", control=scope))
    assert (peer.failure is None) == allowed
    if not allowed:
        assert "may not begin anew job 'a'" in peer.failure.message


def test_beginning_jobs():
    service = begun()
    assert service.join("one", "a", caller=BEGINNER).failure is None
    peer = service.join("two", "b", caller=caller(join="all", control="all", status="all", work=True))
    assert peer.failure.kind == "AccessDeniedError"
    assert (
        "'anna' of tenant 'vision' may not begin job 'b': its token lacks the right run = true" in peer.failure.message
    )
    assert set(service.state.jobs) == {"a"}


def test_a_tenant_is_the_tokens_unless_an_administrator_says_another_one():
    service = begun()
    service.join("one", "a", caller=BEGINNER)
    service.join("two", "b", caller=BEGINNER, tenant="vision")
    service.join("three", "c", caller=ADMINISTRATOR)
    service.join("four", "d", caller=ADMINISTRATOR, tenant="speech")
    service.join("five", "e", caller=caller("root", "ops", admin=True))
    service.join("six", "f", caller=caller("root", "ops", admin=True), tenant="speech")
    jobs = {name: (job.spec.tenant, job.owner) for name, job in service.state.jobs.items()}
    assert jobs == {
        "a": ("vision", "anna"),
        "b": ("vision", "anna"),
        "c": ("default", "administrator"),
        "d": ("speech", "administrator"),
        "e": ("ops", "root"),
        "f": ("speech", "root"),
    }
    peer = service.join("seven", "g", caller=BEGINNER, tenant="speech")
    assert peer.failure.kind == "AccessDeniedError"
    assert "'anna' is of tenant 'vision', and asks for a job of tenant 'speech'" in peer.failure.message


def test_a_job_of_a_journal_of_before_is_an_administrators():
    service = holding()
    service.state.jobs["a"].owner = ""
    peer = service.join("second", "a", caller=caller(run=True, join="all", control="all"), num_consumers=2, seed=11)
    assert "was begun by nobody known: its token lacks the right admin = true" in peer.failure.message
    assert service.join("third", "a", num_consumers=2, seed=11, tenant="vision").failure is None


def test_who_comes_back_without_the_right_is_refused():
    service = holding()
    peer = service.consumers["first"]
    service.say(inp.ClientSessionLost("first"))
    back: dict[str, Any] = {"consumer": 0, "resume": True, "num_consumers": 2, "seed": 11, "begin": False}
    service.join("first", "a", caller=caller(join="none"), **back)
    assert 'lacks the right join = "own"' in peer.failure.message
    peer.failure = None
    service.join("first", "a", caller=caller(join="own"), **back)  # and need not have the right to begin jobs
    assert peer.failure is None


def test_being_a_worker():
    service = holding()

    def asks(who: Caller, **fields: Any) -> str:
        hello = msg.WorkerHello("w", "w:1", version="1", python="3.11", **fields)
        service.refused.pop("w", None)
        service.say(inp.WorkerSaid("w", hello, who))
        return service.refused["w"].message if "w" in service.refused else ""

    assert "'anna' of tenant 'vision' may not be a worker: its token lacks the right work = true" in asks(BEGINNER)
    assert "job 'b' is not there" in asks(BEGINNER, only="b")
    assert service.refused["w"].kind == "ServiceError"  # a worker tries on: its training may bring the job back
    assert "may not join job 'a'" in asks(caller("bert", run=True, join="own"), only="a")
    assert "lacks the right run = true" in asks(caller(join="own"), only="a")
    assert "w" not in service.state.workers
    assert asks(BEGINNER, only="a") == ""
    assert asks(caller(work=True)) == ""
    assert "w" in service.state.workers


KEEPS = [
    ("none", "vision", False),
    ("tenant", "vision", True),
    ("tenant", "speech", False),
    ("all", "speech", True),
]


@pytest.mark.parametrize(("scope", "tenant", "allowed"), KEEPS)
def test_removing_blocks(scope, tenant, allowed):
    service, asks = begun(cache="/cache", cache_bytes=1 << 20), caller("bert", tenant, remove=scope)
    service.points = [CachePoint(0, "map(f)", "cache", FINGERPRINT, items=8)]
    service.answer_for_store()
    service.add_worker("w0")
    service.join("first", "a", caller=BEGINNER)
    service.plan_tasks(service.workers["w0"])
    service.run()
    place = place_of(FINGERPRINT, "", "vision")
    assert service.state.caches.points[place].blocks
    before = len(service.events)
    service.say(inp.RemovalAsked([place], asks))
    assert any(isinstance(event, BlocksGivenUp) for event in service.events[before:]) == allowed
    if allowed:
        access.check_removal(asks, service.state, [place])
    else:
        with pytest.raises(
            Refused, match=r"may not delete what tenant 'vision' has kept: .* right remove = \"(all|tenant)\""
        ):
            access.check_removal(asks, service.state, [place, "gone"])


def test_reading_what_other_tenants_have_kept():
    service = begun(cache="/cache", cache_bytes=1 << 20, trust={"vision": ["ads"]})
    service.points = [CachePoint(0, "map(f)", "cache", FINGERPRINT, items=8)]
    service.answer_for_store()
    service.add_worker("w0")
    for name, who in (("a", BEGINNER), ("b", caller(run=True, join="own", read=("speech",)))):
        service.join(name, name, caller=who)
        service.plan_tasks(service.workers["w0"])
    found = {
        name: set(cache_mode.others(service.state, job, service.points[0]).values())
        for name, job in service.state.jobs.items()
    }
    assert found == {"a": {"ads"}, "b": {"ads", "speech"}}
    assert plain(service.replayed()) == plain(service.state)


def test_jobs_share_within_a_tenant_if_they_may_read_the_same():
    service = begun()
    spec: dict[str, Any] = {"sharing": "lockstep", "seed": 11}
    members = {
        "anna": BEGINNER,
        "bert": caller("bert", run=True),
        "cara": caller("cara", run=True, read=("speech",)),
        "dora": caller("dora", "speech", run=True),
    }
    for name, who in members.items():
        assert service.join(name, name, caller=who, **spec).failure is None
    groups = {name: service.consumers[name].joined.job for name in members}
    assert groups["anna"] == groups["bert"]
    assert len(set(groups.values())) == 3
    peer = service.join("emil", "emil", caller=caller("emil"), **spec)
    assert "lacks the right run = true, or join" in peer.failure.message
    peer = service.join("fred", "fred", caller=caller("fred"), structure=OTHER_STRUCTURE, **spec)
    assert "may not begin job 'lockstep-" in peer.failure.message
    group = service.state.jobs[groups["anna"]]
    with pytest.raises(Refused, match=r"lacks the right read = \['speech'\]"):
        access.check_group(members["anna"], service.state.jobs[groups["cara"]], group.spec, [])


PEOPLE = st.builds(
    caller,
    name=st.sampled_from(["anna", "bert"]),
    tenant=st.sampled_from(["vision", "speech"]),
    join=st.sampled_from(SCOPES),
    admin=st.booleans(),
)


@given(PEOPLE, st.sampled_from(["anna", "bert", ""]), st.sampled_from(["vision", "speech"]))
def test_a_wider_scope_covers_what_a_narrower_one_does(who, owner, tenant):
    covered = [who.covers(scope, owner, tenant) for scope in SCOPES]
    assert covered == sorted(covered)
    assert covered[0] == who.admin
    assert covered[-1] == (bool(owner) or who.admin)
