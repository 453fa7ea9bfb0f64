"""Autoscaling policies against random jobs."""

import random

from millrace.policies.scaling.autoscale import Limits
from millrace.simulation import scaling
from millrace.simulation.scaling_workloads import Workload, workload


def test_the_least_number_is_the_least():
    for seed in range(50):
        job = workload(random.Random(seed))
        least = job.least()
        assert job.batch_s(least) <= 1.01 * job.batch_s(1000)
        if least > 1:
            assert job.batch_s(least - 1) > job.batch_s(least)


def test_more_workers_than_a_job_can_use_are_idle():
    job = Workload("splits", 0.01, 1.0, splits=10)
    assert job.busy(10) == 1.0
    assert job.busy(20) == 0.5


def test_ours_is_right_where_the_others_are_not():
    ours, cachew, hpa = (scaling.run(range(300), policy) for policy in ("millrace", "cachew", "hpa"))
    assert ours.right >= 0.98
    assert ours.decisions is not None
    assert ours.decisions <= 4
    assert ours.cost <= 1.05
    assert cachew.right < 0.7
    assert hpa.right < 0.4
    assert ours.cost < cachew.cost < hpa.cost


def test_the_cheapest_is_nearly_as_cheap_as_can_be_whatever_a_training_costs():
    cheapest, ours = (scaling.run(range(40), policy) for policy in ("cheapest", "millrace"))
    assert cheapest.right >= 0.98
    assert cheapest.element <= 1.005
    assert cheapest.cost <= 1.05
    assert cheapest.decisions is not None
    assert cheapest.decisions <= 4
    assert ours.element > 2 * cheapest.element - 1  # to keep a consumer busy that costs little is dear


def test_a_policy_that_never_moves_is_found_out(monkeypatch):
    monkeypatch.setattr(scaling.PolicyRun, "look", lambda *_: None)
    report = scaling.run(range(100))
    assert report.right < 0.3
    assert report.decisions is None
    assert sum(map(len, report.wrong.values())) == round(100 * (1 - report.right))


def test_the_same_seed_is_the_same_job():
    assert scaling.play(7) == scaling.play(7)
    assert Limits(1, 1000) == scaling.LIMITS
