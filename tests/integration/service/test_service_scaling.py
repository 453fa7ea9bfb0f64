"""A service that runs as many workers as its jobs need, with real processes."""

import contextlib
import functools
import threading
from typing import Any, cast

import pytest
from tests.integration.service.service_driving import Service, job_of

import millrace as mr

COST_S = 0.04
OWN_S = 0.01


def waits(number, cost_s=COST_S):
    threading.Event().wait(cost_s)
    return number


@pytest.fixture
def scaled():
    with Service(local="1-8", heartbeat_s=0.5) as service:
        yield service


def settled(workers):
    return workers["phase"] == "settled" and workers["observed"] == workers["plan"]


def says_how_it_reads(job):
    """Whether its consumer has reported: one that was lost, on a busy machine, and has just come back has not yet."""
    return job["batch_time_s"] is not None


def enough(job):
    """As many are planned as the consumer needs, by what an element takes in a worker and in the consumer's loop.

    That is four, or fewer where this machine keeps the loop busy with something else: both are measured here.
    """
    [mapped] = [row for row in job["operators"] if "waits" in row["operator"]]
    own_s = job["batch_time_s"] * (1 - job["wait_share"])
    needed = mapped["active_s"] / mapped["elements"] / own_s
    return abs(job["workers"]["plan"] - needed) <= 1.0 + 0.25 * needed


def test_as_many_workers_as_feed_the_consumer(scaled):
    """It begins with all, as they are on this machine; those that are too many leave, and come when they are needed."""
    dataset = mr.Dataset.range(100_000).map(waits, num_parallel_calls=1)
    seen, numbers, job, workers = [], [], {}, {}
    with dataset.distribute(scaled.address, job_name="ours", tasks=5_000) as distributed:
        for number in distributed:
            seen.append(number)
            threading.Event().wait(OWN_S)
            if len(seen) % 50 == 0:
                job = job_of(scaled.status(), "ours")
                workers = job["workers"]
                numbers.append(workers["observed"])
                if settled(workers) and workers["plan"] < 8 and says_how_it_reads(job):
                    break
        assert workers["history"][0]["workers"] == 8  # fewer may be there, and be enough, before all have come
        assert workers["plan"] < 8, numbers
        assert enough(job), numbers
        fleet = scaled.until(lambda status: status["fleet"] if len(status["workers"]) == workers["plan"] else None)
        assert fleet["plan"] == workers["plan"]
        assert len(set(seen)) == len(seen)
        lost = job_of(scaled.status(), "ours")["lost"]
    assert lost == {"tasks": 0, "elements": 0}


def test_a_job_gets_no_more_than_its_user_says(scaled):
    dataset = mr.Dataset.range(400).map(waits, num_parallel_calls=1)
    with dataset.distribute(scaled.address, job_name="ours", workers=2, tasks=40) as distributed:
        assert sorted(distributed) == list(range(400))
        status = scaled.until(lambda status: status if len(status["workers"]) == 2 else None)
        assert job_of(status, "ours")["workers"]["plan"] == 2
        assert "ours 2" in status["fleet"]["why"]


@contextlib.contextmanager
def begun_with_one(*options):
    with Service(local="1-8", heartbeat_s=0.5, options=("--first-workers", "1", *options)) as service:
        yield service


def reads(service, own_s, cost_s, over, **parameters):
    """A consumer that takes an element each ``own_s`` until ``over`` of what is said of its job; returns that."""
    dataset = mr.Dataset.range(1_000_000).map(functools.partial(waits, cost_s=cost_s), num_parallel_calls=1)
    with dataset.distribute(service.address, job_name="ours", tasks=50_000, **parameters) as distributed:
        for number, _ in enumerate(distributed):
            threading.Event().wait(own_s)
            if number % 50 == 49:
                job = job_of(service.status(), "ours")
                if over(job["workers"]) and says_how_it_reads(job):
                    return job
    raise AssertionError("the data has come to its end")


def test_workers_that_make_an_element_cheapest(tmp_path):
    """Each brings as much as the one before, and a host costs as much as ninety of them: those that keep it busy."""
    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\n[worker]\nhour = 0.04\n[host]\nhour = 3.6\n')
    with begun_with_one("--prices", str(prices)) as service:
        workers = reads(service, OWN_S, COST_S, settled, workers="cheapest")["workers"]
        found = service.status()
    assert workers["policy"] == "cheapest"
    assert 2 <= workers["plan"] <= 8, workers  # about four, where nothing else keeps the machine busy
    assert "1,000 elements cost 0.0" in workers["why"]
    assert "EUR" in workers["why"]
    assert found["prices"]["host"]["hour"] == 3.6


def test_a_service_with_cachews_rules_adds_workers_one_by_one():
    with begun_with_one("--scaling-policy", "cachew") as service:
        workers = reads(service, OWN_S / 2, COST_S / 2, settled)["workers"]
    assert workers["policy"] == "cachew"
    numbers = [each["workers"] for each in workers["history"]]
    most = max(numbers)
    assert numbers in ([*range(1, most + 1)], [*range(1, most + 1), most - 1]), numbers
    assert workers["plan"] == numbers[-1]
    assert most >= 2  # about five, likewise, of which the last one brings nothing
    if numbers[-1] < most:
        why = workers["history"][-1]["why"]
        assert "the last worker brought less than" in why or "were there for" in why


def test_a_service_with_the_rule_of_kubernetes_does_not_see_that_a_consumer_waits_for_workers_that_wait():
    with begun_with_one("--scaling-policy", "hpa") as service:
        job = reads(service, 0.0, COST_S, lambda workers: "workers use" in workers["why"])
    assert (job["workers"]["policy"], job["workers"]["plan"]) == ("hpa", 1)
    assert "where 80 % is wanted" in job["workers"]["why"]
    assert job["wait_share"] > 0.5


def test_a_local_service_is_told_how_to_scale(tmp_path):
    with mr.LocalService(1, 2, scaling_policy="hpa") as service:
        assert service.status()["scaling_policy"] == "hpa"
    with pytest.raises(
        mr.PipelineError, match="scaling_policy is one of millrace, cachew, cachew-released, hpa, not 'magic'"
    ):
        mr.LocalService(1, 2, scaling_policy=cast("Any", "magic"))
    with pytest.raises(mr.ServiceError, match=r"prices cannot be read from .*none\.toml: No such file"):
        mr.LocalService(1, 2, prices=str(tmp_path / "none.toml"))
