"""Consumers that are to get equally many elements: dealt in turn where counts are known, held back where not."""

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control import messages as msg


def started(consumers=2, *, equal=False, **fields):
    plan = FakePlan(6)
    plan.equal = equal
    service = Service(plan)
    service.add_worker("w0")
    fields = {"num_consumers": consumers, "equal_steps": True, **fields}
    peers = [service.join(f"c{index}", **fields) for index in range(consumers)]
    service.plan_tasks(service.workers["w0"])
    return service, peers


def report(service, peer, arrived, *, all_here=False, epoch=0):
    """The consumer says what it has; returns what is told to whom."""
    message = msg.ConsumerReport(epoch, arrived=arrived, all_here=all_here)
    service.say(inp.ConsumerSaid(peer.client, message))
    return {action.client: action.message for action in service.last if isinstance(action.message, msg.StepsReady)}


def ready(steps, *, last=False, clients=("c0", "c1")):
    return {client: msg.StepsReady(0, steps, last) for client in clients}


def test_what_all_have_may_be_used():
    service, (one, two) = started()
    assert one.epoch.held
    assert report(service, one, 5) == {}
    assert report(service, two, 3) == ready(3)
    assert report(service, two, 3) == {}
    assert report(service, two, 9) == ready(5)
    assert report(service, two, 9, all_here=True) == {}
    assert report(service, one, 11) == ready(9, last=True)


def test_nobody_begins_before_all_are_there():
    service, _ = started(1, num_consumers=2)
    one = service.consumers["c0"]
    assert report(service, one, 5) == {}
    two = service.join("c1", num_consumers=2, equal_steps=True)
    assert report(service, two, 1) == ready(1)


def test_who_left_or_is_past_the_epoch_holds_nobody_up():
    service, (one, two, three) = started(3)
    report(service, one, 5)
    report(service, two, 3)
    assert report(service, three, 4) == ready(3, clients=("c0", "c1", "c2"))
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob()))
    assert {a.client: a.message for a in service.last if isinstance(getattr(a, "message", None), msg.StepsReady)} == (
        ready(4, clients=("c0", "c2"))
    )
    service.begin(three)
    assert report(service, one, 6) == ready(6, clients=("c0",))


def test_what_is_the_last_step_stays_so_when_others_leave():
    service, (one, two) = started()
    report(service, one, 5)
    report(service, two, 3)
    assert report(service, two, 3, all_here=True) == ready(3, last=True)
    service.say(inp.ConsumerSaid(two.client, msg.LeaveJob()))
    assert report(service, one, 8, all_here=True) == {}


def test_who_comes_back_is_told_again_also_by_another_dispatcher():
    service, (one, two) = started()
    report(service, one, 5)
    report(service, two, 3)
    service.say(inp.ClientSessionLost(one.client))
    service.rejoin(one)
    assert msg.StepsReady(0, 3) in [action.message for action in service.last if hasattr(action, "message")] or (
        one.epoch.held
    )
    service.restart()
    service.hello("w0")
    service.rejoin(one)
    report(service, one, 5)
    service.rejoin(two)
    assert report(service, two, 4) == ready(4)


def test_where_counts_are_known_tasks_are_dealt_in_turn_whoever_is_faster():
    service, (one, two) = started(equal=True)
    assert not one.epoch.held
    for _ in range(30):
        service.work(read=False)
        for task in service.readable(one):
            service.read(one, task)
    assert one.ends == [0, 2, 4]
    assert one.done
    service.run()
    assert two.ends == [1, 3, 5]
    assert service.replayed().snapshot() == service.state.snapshot()


@pytest.mark.parametrize("fields", [{"num_consumers": None}, {"visitation": "at_most_once"}])
def test_what_cannot_be_equal_is_refused(fields):
    service = Service()
    peer = service.join("c", **{"num_consumers": 2, "equal_steps": True, **fields})
    assert peer.failure.kind == "PipelineError"
    assert "equal_steps=True needs num_consumers" in peer.failure.message
