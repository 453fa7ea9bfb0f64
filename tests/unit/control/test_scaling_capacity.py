"""Jobs on clusters that can't hold all workers that are planned."""

from typing import Any

import pytest
from tests.unit.control.scaling.test_job_scaling import BEAT_S, Trainer, begun, resized

from millrace.control.journal.scaling_events import FleetPlanned
from millrace.control.journal.snapshot import plain
from millrace.policies.scaling.capacity import PAUSE
from millrace.policies.scaling.scaling_policies import SERVICES

PATIENCE_S = 60.0
ASKED = [{"scaling_policy": policy} for policy in SERVICES]


class Cramped(Trainer):
    """On a cluster that holds ``room`` workers."""

    def __init__(self, room: int, own_s: float, cost_s: float, **spec: Any) -> None:
        self.room = room
        super().__init__(own_s, cost_s, **spec)

    @property
    def fleet(self) -> Any:
        return self.service.state.fleet

    def pending(self) -> int:
        """Workers that were asked for and have no room."""
        return int(self.fleet.workers) - len(self.service.state.index.serving.workers)

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.beat()


def test_workers_that_are_enough_are_so_though_more_were_planned():
    """15 of 16 have room, and nobody waits."""
    trainer = Cramped(15, 0.02, 0.29, service=begun(first_workers=16))
    trainer.wait(PATIENCE_S - BEAT_S)
    assert (trainer.scaling.scale.workers, trainer.scaling.scale.phase) == (15, "settled"), trainer.scaling
    assert trainer.pending() == 0


def test_what_can_be_had_is_the_limit_and_what_was_asked_for_beyond_is_taken_back():
    trainer = Cramped(5, 0.02, 0.16)
    trainer.wait(2 * PATIENCE_S)
    assert (trainer.scaling.scale.workers, trainer.scaling.scale.phase) == (5, "settled")
    assert (trainer.fleet.workers, trainer.pending()) == (5, 0)
    why = "5 of 8 workers could be had for 60 s: that is the limit for 300 s, and then more are tried"
    assert trainer.scaling.reason == f"the consumer waits 38 % of the time, and it may have no more: {why}"
    assert why in [event.reason.partition("; ")[2] for event in trainer.service.events if type(event) is FleetPlanned]
    assert plain(trainer.service.replayed()) == plain(trainer.service.state)


@pytest.mark.parametrize("asked", [*ASKED, {"cheapest": True}], ids=lambda asked: "-".join(map(str, asked.values())))
def test_no_policy_freezes_and_what_comes_back_is_used(asked):
    spec = {key: value for key, value in asked.items() if key == "cheapest"}
    trainer = Cramped(5, 0.02, 0.2, service=begun(**{k: v for k, v in asked.items() if k not in spec}), **spec)
    trainer.queue, asked = 10.0, 0
    for _ in range(round(20 * PATIENCE_S / BEAT_S)):
        trainer.beat()
        asked += trainer.pending() > 0
    assert len(trainer.serving) == 5
    assert asked <= 0.5 * trainer.beats  # what has no room is asked for now and then, and not for ever
    settled = [event.workers for event in trainer.service.events if type(event) is FleetPlanned][-1]
    assert settled <= 10
    trainer.room = 100
    trainer.wait(60 * PATIENCE_S)
    assert len(trainer.serving) >= 9, trainer.scaling
    assert trainer.pending() == 0
    trainer.cost_s, trainer.queue = 0.04, 100.0  # and it is not frozen at what it has, either
    trainer.wait(60 * PATIENCE_S)
    assert len(trainer.serving) <= 5


def test_a_limit_is_tried_again_and_holds_longer_each_time():
    trainer = Cramped(5, 0.02, 0.16)
    trainer.wait(80 * PATIENCE_S)
    plans = [(event.at, event.workers) for event in trainer.service.events if type(event) is FleetPlanned]
    times = [at for at, workers in plans if workers != 5][1:], [at for at, workers in plans if workers == 5]
    waited = [limited - asked for asked, limited in zip(*times, strict=True)]
    assert waited == pytest.approx([PATIENCE_S * each for each in (1, 2, 4, 8)], abs=BEAT_S)
    held = [again - limited for again, limited in zip(times[0][1:], times[1], strict=False)]
    assert held == pytest.approx([PAUSE * PATIENCE_S * each for each in (1, 2, 4)], abs=BEAT_S)


def test_a_cluster_that_shrinks_is_the_limit_too():
    trainer = Cramped(100, 0.02, 0.16)
    trainer.run()
    assert len(trainer.serving) == 8
    trainer.room = 3
    for worker in [worker.id for worker in trainer.serving[3:]]:
        trainer.service.kill(worker)
    trainer.wait(3 * PATIENCE_S)
    assert (trainer.fleet.workers, trainer.pending(), trainer.scaling.scale.workers) == (3, 0, 3)


@pytest.mark.parametrize("needed", [8, 5])
def test_a_worker_that_comes_late_is_welcome_if_there_is_a_use_for_it(needed):
    trainer = Cramped(5, 0.02, 0.16)
    trainer.wait(2 * PATIENCE_S)
    assert trainer.fleet.workers == 5
    trainer.own_s = 0.16 / needed
    trainer.wait(2 * PATIENCE_S)
    trainer.room, before = 100, len(trainer.service.events)
    trainer.service.add_worker("late")
    trainer.wait(2 * PATIENCE_S)
    retired = [event.worker for event in trainer.service.events[before:] if type(event).__name__ == "WorkerRetiring"]
    assert bool(retired) == (needed == 5)
    assert abs(len(trainer.serving) - needed) <= 1


def test_what_the_operator_wants_at_least_is_asked_for_whatever_comes_of_it():
    trainer = Cramped(2, 0.02, 0.16, service=begun(least_workers=4, first_workers=4))
    trainer.wait(4 * PATIENCE_S)
    assert (trainer.fleet.workers, trainer.pending()) == (4, 2)


def test_a_cluster_that_starts_nothing_is_asked_for_one_worker():
    service = begun(first_workers=8)
    for _ in range(100):
        service.tick(1.0)
    assert service.state.fleet.workers == 1
    assert resized(service) == []


def test_two_jobs_share_what_can_be_had():
    service = begun()
    one = Cramped(6, 0.02, 0.16, job="one", service=service)
    two = Cramped(6, 0.02, 0.16, job="two", service=service)
    for _ in range(100):
        one.beat()
        two.beat(0.0)
    assert (service.state.fleet.workers, len(one.serving), len(two.serving)) == (6, 3, 3)
    one.own_s = 0.2  # it needs one alone, and that is seen though it never had all that were planned for it
    for _ in range(100):
        one.beat()
        two.beat(0.0)
    assert (len(one.serving), len(two.serving)) == (1, 5)


def test_a_restarted_dispatcher_keeps_to_the_limit():
    trainer = Cramped(5, 0.02, 0.16)
    trainer.wait(2 * PATIENCE_S)
    trainer.service.restart()
    assert resized(trainer.service) == [5]
