"""Worker processes that a cluster runs and that never register."""

import pytest
from tests.unit.control.control_driver import Service

from millrace.control import actions as act
from millrace.control import inputs as inp

PATIENCE_S = 60.0


def ended(service, seconds, *running):
    """Workers that are to be ended as time passes, and what is said of them."""
    found = []
    for _ in range(round(seconds)):
        service.now += 1.0
        for name in service.workers:
            service.report(name)
        service.say(inp.Tick(list(running)))
        found += [(action.workers, action.reason) for action in service.last if isinstance(action, act.StopWorkers)]
    return found


def test_a_process_that_runs_and_does_not_register_is_ended_once_it_had_its_time():
    service = Service(patience_s=PATIENCE_S)
    service.add_worker("well")
    peer = service.join("c")
    assert not ended(service, PATIENCE_S, "well", "hung")
    [(workers, reason)] = ended(service, 2.0, "well", "hung")
    assert workers == ["hung"]
    assert reason == "has run for 60 s and did not register: it is ended, and another one is asked for"
    assert peer.notices == [f"a worker of this service {reason}"]


def test_who_registers_in_time_stays_and_who_only_waits_for_room_is_no_process():
    service = Service(patience_s=PATIENCE_S)
    assert not ended(service, PATIENCE_S - 1.0, "slow")
    service.add_worker("slow")
    assert not ended(service, 3 * PATIENCE_S, "slow")
    assert not ended(service, 3 * PATIENCE_S)


def test_each_that_is_ended_gives_the_next_one_longer_and_one_that_lives_on_is_ended_again():
    service = Service(patience_s=PATIENCE_S)
    assert len(ended(service, PATIENCE_S + 2.0, "first")) == 1
    assert not ended(service, 2 * PATIENCE_S - 2.0, "second")
    [(workers, reason)] = ended(service, 5.0, "second")
    assert (workers, "for 120 s" in reason) == (["second"], True)
    [(workers, _)] = ended(service, 4 * PATIENCE_S + 5.0, "second")
    assert workers == ["second"]


def test_after_one_that_registered_the_next_has_the_usual_time():
    service = Service(patience_s=PATIENCE_S)
    ended(service, PATIENCE_S + 2.0, "first")
    service.add_worker("second")
    ended(service, 1.0, "second")
    assert len(ended(service, PATIENCE_S + 2.0, "second", "third")) == 1


@pytest.mark.parametrize("hung", [0, 2])
def test_a_process_that_hangs_says_nothing_about_the_room_of_a_cluster(hung):
    service = Service(patience_s=PATIENCE_S, least_workers=1, most_workers=4, first_workers=4)
    service.say(inp.Started("here:1"))
    service.join("c")
    service.add_worker("one")
    service.add_worker("two")
    ended(service, 1.5 * PATIENCE_S, "one", "two", *(f"hung {number}" for number in range(hung)))
    assert (service.state.fleet.capacity is None) == bool(hung)
