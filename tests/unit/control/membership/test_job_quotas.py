"""How many jobs a tenant has at once: who comes twice, leaves, comes back, begins anew; a quota that was lowered."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.control.control_driver import OTHER_STRUCTURE, FakePlan, Service
from tests.unit.control.membership.test_resume import states_of

from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.protocol import messages as msg
from millrace.protocol.caller import Caller, Rights


def begun(quota: int = 2, **fields) -> Service:
    service = Service(FakePlan(6), job_quotas={"red": quota}, **fields)
    service.say(inp.Started("here:1"))
    service.add_worker("w")
    return service


def join(service, client, name="", tenant="red", **fields):
    return service.join(client, name, **{"tenant": tenant, **fields})


def leave(service, client):
    service.say(inp.ConsumerSaid(client, msg.LeaveJob()))


def there(service, tenant="red"):
    return sorted(job.name for job in service.state.jobs.values() if job.spec.tenant == tenant and not job.failure)


def test_one_job_more_is_refused_in_words_and_changes_nothing():
    service = begun()
    join(service, "c0", "a")
    join(service, "c1", "b")
    before = plain(service.state)
    peer = join(service, "c2", "c")
    assert peer.failure.kind == "AccessDeniedError"
    assert peer.failure.message == (
        "tenant 'red' has 2 jobs and may have 2 at once (--quota-jobs red=2 of the dispatcher): 'a', 'b'. End one of "
        "them, or wait until one is over; whoever runs the service can allow more"
    )
    assert plain(service.state) == before
    assert join(service, "c3", "c", tenant="blue").failure is None


def test_who_joins_a_job_or_comes_back_to_it_is_let_in_at_the_quota():
    service = begun(1)
    first = join(service, "c0", "a", num_consumers=2)
    assert join(service, "c1", "a", num_consumers=2).joined.consumer == 1
    service.say(inp.ClientSessionLost("c0"))
    service.rejoin(first)
    assert first.failure is None
    assert there(service) == ["a"]


def test_a_job_that_is_over_makes_room():
    service = begun(1)
    join(service, "c0", "a")
    assert join(service, "c1", "b").failure is not None
    leave(service, "c0")
    assert join(service, "c2", "b").failure is None


def test_a_job_that_nobody_reads_counts_and_the_refusal_says_until_when():
    service = begun(1, job_gc_timeout_s=300.0)
    join(service, "c0", "a")
    service.say(inp.ClientSessionLost("c0"))
    service.tick(100.0)
    text = join(service, "c1", "b").failure.message
    assert "'a' (nobody reads it now, and it is over in 3 min if nobody comes back)" in text
    assert join(service, "c2", "a").failure is None  # who comes under its name goes on with it
    leave(service, "c2")
    join(service, "c3")
    service.say(inp.ClientSessionLost("c3"))
    service.tick(4.0)
    assert "it is over in 6 s if" in join(service, "c4", "b").failure.message
    service.tick(7.0)
    assert join(service, "c5", "b").failure is None


def test_a_job_that_has_failed_does_not_count_and_is_begun_anew_under_its_name():
    service = begun(1)
    join(service, "c0", "a")
    service.say(inp.Unsendable("a", msg.Failure("PipelineError", "no")))
    assert join(service, "c1", "b").failure is None
    service.say(inp.ClientSessionLost("c0"))
    assert "may have 1 at once" in join(service, "c2", "a").failure.message
    leave(service, "c1")
    assert join(service, "c3", "a").failure is None


def test_a_state_is_loaded_into_a_job_in_its_place():
    service = begun(1)
    states = states_of(service, [join(service, "c0", "a", seed=11)])
    assert join(service, "c1", "b", states=states, seed=11).failure.kind == "AccessDeniedError"
    assert join(service, "c2", "a", states=states, seed=11).failure is None
    assert there(service) == ["a"]


def test_an_administrator_begins_a_job_of_another_tenant_within_that_ones_quota():
    service = begun(1)
    join(service, "c0", "a", tenant="blue", seed=11)
    states = states_of(service, [service.consumers["c0"]])
    join(service, "c1", "b")
    peer = join(service, "c2", "a", states=states, seed=11)
    assert "tenant 'red' has 1 job and may have 1 at once" in peer.failure.message
    assert there(service, "blue") == ["a"]  # and nobody has lost it


def test_a_lowered_quota_ends_no_job_and_lets_none_in_until_enough_are_over():
    service = begun(3)
    for number in range(3):
        join(service, f"c{number}", f"job{number}")
    service.settings = msgspec.structs.replace(service.settings, job_quotas={"red": 1})
    service.restart()
    for number in range(3):
        service.rejoin(service.consumers[f"c{number}"])
    assert len(there(service)) == 3
    for number in range(3):
        assert join(service, f"another{number}", "another").failure is not None
        leave(service, f"c{number}")
    assert join(service, "another", "another").failure is None


SHARED: dict[str, Any] = {"sharing": "lockstep"}


def test_each_job_that_shares_its_computation_counts():
    service = begun(2)
    join(service, "c0", "a", **SHARED)
    join(service, "c1", "b", **SHARED)
    assert len(service.state.jobs) == 1
    assert "'a', 'b'" in join(service, "c2", "c", **SHARED).failure.message
    assert join(service, "c3", "d").failure is not None
    leave(service, "c0")
    assert join(service, "c4", "c", **SHARED).failure is None
    service.say(inp.ClientSessionLost("c4"))
    assert join(service, "c5", "c", **SHARED).failure is None  # another process in its place


def detached(quota: int = 2, **fields) -> Service:
    """A tenant at its quota, of whose two jobs that share one is being detached: 'slow', which has not gone on yet."""
    service = begun(quota, **fields)
    fast, slow = join(service, "c0", "fast", **SHARED), join(service, "c1", "slow", **SHARED)
    service.work(read=False)
    service.read(fast, service.readable(fast)[0])
    while "c1" in service.state.clients:
        service.now += 2.0
        service.say(inp.ConsumerSaid("c0", msg.ConsumerReport(0, waits=True)))
        service.say(inp.ConsumerSaid("c1", msg.ConsumerReport(0)))
        service.tick()
    assert slow.failure.kind == "DetachedError"
    return service


def test_the_place_of_a_detached_job_is_kept_until_it_goes_on_alone():
    service = detached()
    text = join(service, "c2", "another").failure.message
    assert "'slow' (it was detached from those that it shared with, and may go on alone within 5 min)" in text
    assert join(service, "c3", "slower-alone-1").failure is not None
    assert join(service, "c4", "slow-alone-1").failure is None
    assert "2 at once" in join(service, "c5", "another").failure.message
    leave(service, "c4")
    assert join(service, "c6", "another").failure is None
    assert "2 at once" in join(service, "c7", "slow-alone-2").failure.message, "one place was kept, once"


def test_a_stranger_whose_job_is_named_like_a_detached_one_takes_no_place():
    service = detached()
    assert join(service, "c2", "slow-alone-1", tenant="blue").failure is None
    assert "2 at once" in join(service, "c3", "another").failure.message
    assert join(service, "c4", "slow-alone-2").failure is None


def test_the_place_of_a_detached_job_is_its_also_among_those_that_share():
    service = detached()
    assert join(service, "c2", "another", **SHARED).failure is not None
    assert join(service, "c3", "slow", **SHARED).failure is None
    assert "2 at once" in join(service, "c4", "slow-alone-1").failure.message
    leave(service, "c3")
    assert join(service, "c5", "another").failure is None


def test_the_place_of_a_detached_job_is_kept_as_long_as_that_of_a_job_that_nobody_reads():
    service = detached(job_gc_timeout_s=20.0)
    for _ in range(2):
        service.now += 8.0
        service.tick()
        assert join(service, f"c{service.now}", "another").failure is not None
    service.now += 8.0
    assert join(service, "c2", "another").failure is None


TOGETHER: dict[str, Any] = {"sharing": "lockstep", "coordinated": True, "deterministic": True, "num_consumers": 2}


def test_a_job_that_shares_counts_once_its_first_rank_has_come():
    service = begun(1)
    anna = Caller("anna", "red", Rights(run=True))  # whose jobs are of her tenant without a word
    first = service.join("c0", "a", consumer=0, caller=anna, **TOGETHER)
    assert first.failure is None
    other = service.join("c1", "b", consumer=0, caller=anna, **TOGETHER)
    assert "tenant 'red' has 1 job and may have 1 at once" in other.failure.message
    second = service.join("c2", "a", consumer=1, caller=anna, **TOGETHER)
    assert (first.joined.consumer, second.joined.consumer) == (0, 1)


STEP = st.tuples(
    st.sampled_from(("join", "share", "leave", "lose", "fail", "tick", "restart", "lower")),
    st.integers(0, 4),
    st.sampled_from(("red", "blue")),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(STEP, max_size=25), st.integers(1, 3))
def test_no_tenant_ever_begins_more_than_its_quota_and_others_are_never_refused(steps, quota):
    service = begun(quota, job_gc_timeout_s=20.0)
    clients: dict[str, str] = {}
    for at, (what, number, tenant) in enumerate(steps):
        name, client = f"{tenant}{number}", f"c{at}"
        before = _jobs(service)
        if what in {"join", "share"}:
            fields: dict[str, Any] = SHARED if what == "share" else {"structure": OTHER_STRUCTURE}
            peer = join(service, client, name, tenant=tenant, **fields)
            clients.setdefault(name, client)
            refused = peer.failure is not None and "at once" in peer.failure.message
            assert not (refused and (tenant == "blue" or before["red"] < quota))
            if _jobs(service)["red"] > before["red"]:
                assert _jobs(service)["red"] <= quota
        elif name in clients and what in {"leave", "lose"}:
            gone = clients.pop(name)
            service.say(inp.ConsumerSaid(gone, msg.LeaveJob()) if what == "leave" else inp.ClientSessionLost(gone))
        elif what == "fail" and name in service.state.jobs:
            service.say(inp.Unsendable(name, msg.Failure("PipelineError", "no")))
        elif what == "tick":
            service.tick(8.0)
        elif what == "restart":
            service.restart()
        elif what == "lower":
            quota = 1
            service.settings = msgspec.structs.replace(service.settings, job_quotas={"red": 1})
            service.restart()
    assert plain(service.replayed()) == plain(service.state)


def _jobs(service) -> Counter[str]:
    """What users call jobs, by tenant, counted by the test's own rule."""
    found: Counter[str] = Counter()
    for job in service.state.jobs.values():
        if job.failure is None:
            members = {place.member for place in job.consumers.values()}
            found[job.spec.tenant] += len(members) if job.spec.sharing else 1
    return found


@pytest.mark.parametrize("name", ["a", ""])
def test_without_a_quota_there_are_any_number(name):
    service = Service(FakePlan(6))
    service.add_worker("w")
    assert all(service.join(f"c{n}", f"{name}{n}" if name else "").failure is None for n in range(9))
