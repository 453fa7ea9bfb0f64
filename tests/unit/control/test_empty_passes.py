"""An endless repeat of nothing ends, whoever runs which part of a pass; one that gives something does not."""

from typing import Any

import msgspec
import pytest
from tests.unit.control.control_driver import FakePlan, Service
from tests.unit.control.membership.test_resume import states_of

from millrace.control import inputs as inp
from millrace.control.journal.epoch_events import EpochCut
from millrace.control.journal.snapshot import plain
from millrace.protocol import messages as msg

CYCLE = 5
KINDS: dict[str, dict[str, Any]] = {
    "any order": {},
    "in order": {"deterministic": True},
    "two": {"num_consumers": 2},
    "two in order": {"num_consumers": 2, "deterministic": True},
    "equal steps": {"num_consumers": 2, "equal_steps": True},
    "coordinated": {"num_consumers": 2, "deterministic": True, "coordinated": "drop", "cycle_length": 4},
    "static": {"sharding": "static"},
    "static in order": {"sharding": "static", "num_consumers": 2, "deterministic": True},
    "off": {"sharding": "off", "visitation": "zero_once_or_more"},
}


def reading(kind, *, gives=-1, workers=3, **fields):
    service = Service(FakePlan(None, cycle=CYCLE, gives=gives))
    for number in range(workers):
        service.add_worker(f"w{number}")
    ranks = range(kind.get("num_consumers", 1))
    return service, [service.join(f"x{rank}", consumer=rank, **kind, **fields) for rank in ranks]


def cuts(service):
    return [event for event in service.events if isinstance(event, EpochCut)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_pass_that_gives_nothing_ends_the_epoch_for_all(kind):
    service, peers = reading(kind)
    service.run()
    assert all(peer.done and peer.failure is None for peer in peers)
    assert len(cuts(service)) == 1
    assert plain(service.replayed()) == plain(service.state)
    for peer in peers:
        service.begin(peer)
    service.run()
    assert all(peer.done and peer.epoch.epoch == 1 for peer in peers)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("gives", range(CYCLE))
def test_a_pass_is_not_empty_if_one_of_its_tasks_gives_something(kind, gives):
    service, _ = reading(kind, gives=gives)
    for _ in range(12):
        assert service.work()
    assert not cuts(service)


def test_the_dispatcher_may_be_restarted_and_workers_may_die_in_between():
    service, (peer,) = reading({}, workers=1)
    service.plan_tasks(service.workers["w0"])
    for number in range(CYCLE - 1):
        (lease, *_) = service.workers[f"w{number}"].leases
        service.finish(service.workers[f"w{number}"], lease)
        service.add_worker(f"w{number + 1}")
        service.kill(f"w{number}")
        service.restart()
        service.hello(f"w{number + 1}")
        service.rejoin(peer)
    assert not cuts(service)
    service.run()
    assert peer.done


def test_what_gave_nothing_while_the_dispatcher_was_away_counts():
    service, (peer,) = reading({}, workers=1)
    (worker,) = service.workers.values()
    service.plan_tasks(worker)
    service.deaf = True
    service.finish(worker, min(worker.leases))
    service.deaf = False
    service.restart()
    service.hello(worker.name)
    service.rejoin(peer)
    assert service.state.jobs["a"].epochs[0].nothing == {0}
    service.run()
    assert peer.done


def test_a_rank_that_is_not_there_yet_has_a_part_of_each_pass():
    service = Service(FakePlan(None, cycle=40))
    service.add_worker("w")
    kind: dict[str, Any] = {"num_consumers": 2, "deterministic": True}
    here = service.join("here", consumer=0, **kind)
    for _ in range(20):
        service.work()
    assert not cuts(service)
    late = service.join("late", consumer=1, **kind)
    service.run()
    assert here.done
    assert late.done


def test_the_part_of_a_rank_that_has_left_is_nobodys():
    service, (stays, leaves) = reading({"num_consumers": 2, "deterministic": True})
    service.say(inp.ConsumerSaid(leaves.client, msg.LeaveJob()))
    service.run()
    assert stays.done


def test_an_epoch_that_was_cut_goes_on_where_a_rank_comes_back():
    service, peers = reading({"num_consumers": 2, "deterministic": True})
    service.run()
    for peer in peers:
        peer.connected = False
        service.say(inp.ClientSessionLost(peer.client))
    service.restart()
    for name in service.workers:
        service.hello(name)
    for peer in peers:
        peer.ends = None
        service.rejoin(peer)
        assert peer.done


def test_states_of_an_epoch_are_alike_before_it_is_cut_and_after():
    service, peers = reading({"num_consumers": 2, "deterministic": True})
    service.run()
    assert cuts(service)
    before, after = peers
    after.connected = False
    service.say(inp.ClientSessionLost(after.client))
    service.rejoin(after)
    assert before.epoch.tasks == after.epoch.tasks
    then = service.join("then", num_consumers=1, states=states_of(service, peers))
    service.run()
    assert then.failure is None
    assert then.done


def test_a_run_whose_outputs_were_read_before_a_resume_is_in_no_pass():
    service = Service(FakePlan(None, cycle=CYCLE))
    service.add_worker("w")
    first = service.join("first", num_consumers=1)
    service.plan_tasks(service.workers["w"])
    for task in range(CYCLE - 1):
        service.finish(service.workers["w"], min(service.workers["w"].leases))
        service.read(first, task)
    (state,) = states_of(service, [first])
    service.join("then", num_consumers=1, states=[msgspec.structs.replace(state, tasks=None)], begin=False)
    then = service.consumers["then"]
    service.begin(then, 0)
    service.run()
    assert then.done
    (cut,) = cuts(service)
    assert cut.tasks >= 2 * CYCLE
