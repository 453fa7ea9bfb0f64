"""Other policies for the number of workers than the service's own, as reports come in."""

import itertools

import msgspec
import pytest
from tests.unit.control.scaling.test_job_scaling import BEAT_S, Trainer, begun

from millrace.control import inputs as inp
from millrace.control.journal.scaling_events import ScaleChosen
from millrace.control.journal.snapshot import plain
from millrace.dispatcher.status_report import status
from millrace.policies.prices import Machine, PriceTable
from millrace.policies.scaling import hpa
from millrace.policies.scaling.autoscale import LOOK_ELEMENTS, PAUSE_ELEMENTS
from millrace.policies.scaling.cachew_scaling import CachewScale
from millrace.policies.scaling.cost_scaling import CheapScale
from millrace.policies.scaling.hpa import HpaScale
from millrace.protocol import messages as msg


class Hampered(Trainer):
    """Its workers share something: each makes an element dearer for all by a tenth of what one alone takes."""

    alone_s = 0.2

    def beat(self, seconds: float = BEAT_S) -> None:
        self.cost_s = self.alone_s * (1 + 0.1 * (len(self.serving) - 1))
        super().beat(seconds)


class Twins(Trainer):
    """The same with another consumer that reads as the first does."""

    def settle(self) -> None:
        if "other" not in self.service.consumers:
            self.service.join("other", self.job, num_consumers=2, cheapest=True)
        self.service.say(inp.ConsumerSaid("other", msg.ConsumerReport(0, pace=self.pace, arrived=self.pace.elements)))
        super().settle()


def hour(worker: float, host: float) -> PriceTable:
    return PriceTable(worker=Machine(hour=worker), host=Machine(hour=host), currency="USD")


def workers_of(trainer: Trainer) -> dict:
    jobs = status(trainer.service.state, trainer.service.observed, trainer.service.now)["jobs"]
    return next(job["workers"] for job in jobs if job["name"] == trainer.job)


# -- cheapest ----------------------------------------------------------------------------------------------------------


def test_where_a_training_is_dear_the_cheapest_is_to_keep_it_busy():
    trainer = Trainer(0.1, 1.0, cheapest=True)
    numbers = trainer.run()
    assert numbers[-1] == 10
    assert len(numbers) <= 5
    assert isinstance(trainer.scaling.other, CheapScale)
    assert trainer.service.state.fleet.workers == 10
    found = workers_of(trainer)
    assert (found["plan"], found["phase"], found["policy"]) == (10, "settled", "cheapest")
    assert "10 workers: 1,000 elements cost 0.107 USD, 10 % of it for workers" in found["why"]


@pytest.mark.parametrize(("host", "expected"), [(1.0, 3), (9.0, 9)])
def test_workers_that_hamper_each_other_are_as_many_as_the_training_is_worth(host, expected):
    trainer = Hampered(0.001, 0.2, service=begun(prices=hour(1.0, host)), cheapest=True)
    trainer.run()
    assert abs(len(trainer.serving) - expected) <= 1
    assert trainer.scaling.scale.phase == "settled"


def test_each_consumer_and_each_accelerator_makes_the_training_dearer():
    prices = PriceTable(msgspec.structs.replace(hour(1.0, 0.0).prices, accelerator=1.0), Machine(hour=1.0))
    few = Hampered(0.001, 0.2, service=begun(prices=prices), cheapest=True, accelerators=1)
    many = Hampered(0.001, 0.2, service=begun(prices=prices), cheapest=True, accelerators=16)
    assert many.run()[-1] >= few.run()[-1] + 5
    for kind, consumers, cost in ((Trainer, 1, 0.278), (Twins, 2, 0.5)):  # 0.2 s of a worker and of each host
        trainer = kind(0.001, 0.2, service=begun(prices=hour(1.0, 4.0)), cheapest=True, num_consumers=consumers)
        while trainer.scaling.scale.workers == 1:
            trainer.beat()
        assert trainer.scaling.reason.startswith(f"1,000 elements cost {cost} USD with 1 worker")


def test_a_search_for_the_cheapest_is_journalled_and_remembered():
    trainer = Hampered(0.001, 0.2, service=begun(prices=hour(1.0, 4.0)), cheapest=True)
    trainer.run(6)
    service = trainer.service
    assert plain(service.replayed()) == plain(service.state) == plain(service.restored())
    trainer.run()
    had, scaling = trainer.scaling.scale.workers, trainer.scaling
    service.restart()
    assert service.state.jobs["a"].scaling == scaling
    assert list(service.state.sizes.values()) == [had]


def test_other_prices_after_a_restart_are_followed_without_a_new_search():
    trainer = Hampered(0.001, 0.2, service=begun(prices=hour(1.0, 1.0)), cheapest=True)
    trainer.run()
    before, looks = len(trainer.serving), len(trainer.service.events)
    service = trainer.service
    service.settings = msgspec.structs.replace(service.settings, prices=hour(1.0, 16.0))
    service.restart()
    for name in service.workers:
        service.hello(name)
    service.rejoin(trainer.peer)
    trainer.run()
    assert len(trainer.serving) > 2 * before
    assert any(isinstance(event, ScaleChosen) for event in service.events[looks:])


def test_a_job_that_wants_to_be_cheap_keeps_to_the_limits_of_the_service():
    assert Trainer(0.1, 1.0, service=begun(most_workers=4), cheapest=True).run()[-1] == 4
    assert Trainer(0.1, 0.01, service=begun(least_workers=3), cheapest=True).run()[-1] == 3


# -- Cachew's rules ----------------------------------------------------------------------------------------------------


def test_cachew_adds_workers_one_by_one_and_takes_the_superfluous_one_away():
    trainer = Trainer(0.1, 0.4, service=begun(scaling_policy="cachew", first_workers=8))
    assert trainer.run(120)[-7:] == [1, 2, 3, 4, 5, 4]
    assert isinstance(trainer.scaling.other, CachewScale)
    found = workers_of(trainer)
    assert (found["plan"], found["phase"], found["policy"]) == (4, "settled", "cachew")


def test_cachew_looks_at_a_hundred_elements_after_a_pause_however_long_the_consumer_waits():
    trainer = Trainer(0.01, 1.0, service=begun(scaling_policy="cachew"))
    beats = 0
    while trainer.scaling.scale.workers == 1:
        trainer.beat()
        beats += 1
    assert trainer.pace.elements in range(PAUSE_ELEMENTS + LOOK_ELEMENTS, PAUSE_ELEMENTS + LOOK_ELEMENTS + 20)


def test_cachew_takes_workers_away_when_the_queue_has_grown():
    trainer = Trainer(0.1, 0.4, service=begun(scaling_policy="cachew"))
    trainer.queue = 10.0
    trainer.run(120)
    assert len(trainer.serving) == 4
    trainer.queue, trainer.cost_s = 15.0, 0.2
    trainer.run(120)
    assert len(trainer.serving) == 2


# -- Kubernetes' rule --------------------------------------------------------------------------------------------------


def test_the_hpa_goes_by_the_time_of_cores_alone():
    trainer = Trainer(0.1, 0.4, service=begun(scaling_policy="hpa"))
    assert trainer.run(60)[-1] == 5  # 4 would be enough, and use all of their cores
    assert isinstance(trainer.scaling.other, HpaScale)
    assert "workers use 80 % of their cores, where 80 % is wanted" in workers_of(trainer)["why"]
    assert workers_of(trainer)["phase"] == "settled"
    looks = [at for at, _ in trainer.scaling.other.desired]
    assert len(looks) > 10
    assert min(after - before for before, after in itertools.pairwise(looks[1:])) == hpa.PERIOD_S


def test_the_hpa_goes_by_what_control_groups_allow():
    trainer = Trainer(0.1, 0.4, service=begun(scaling_policy="hpa"))
    trainer.burns, trainer.host = 0.1, {"cores": 2, "cpu_quota": 0.2}  # of each of two cores
    assert trainer.run(60)[-1] == 5


def test_the_hpa_does_not_see_a_consumer_that_waits_for_workers_that_wait():
    trainer = Trainer(0.1, 0.4, service=begun(scaling_policy="hpa"))
    trainer.burns = 0.1
    assert trainer.run(60) == [1]
    assert "workers use 10 % of their cores" in trainer.scaling.reason


def test_the_hpa_takes_workers_away_after_five_minutes_of_being_too_many():
    trainer = Trainer(0.1, 0.4, service=begun(scaling_policy="hpa", first_workers=20))
    trainer.run(int(0.8 * hpa.STABILIZATION_S / BEAT_S))
    assert len(trainer.serving) == 20
    trainer.run(60)
    assert len(trainer.serving) == 5


def test_a_service_that_is_started_again_with_another_policy_looks_anew():
    trainer = Trainer(0.1, 1.0)
    trainer.run()
    service = trainer.service
    service.settings = msgspec.structs.replace(service.settings, scaling_policy="hpa")
    service.restart()
    for name in service.workers:
        service.hello(name)
    service.rejoin(trainer.peer)
    trainer.beat()
    assert trainer.scaling.other == HpaScale(10)
    assert plain(service.replayed()) == plain(service.state)
