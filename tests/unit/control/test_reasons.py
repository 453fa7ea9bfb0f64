"""What a consumer is told that waits for its first element."""

from tests.unit.control.control_driver import FakePlan, Service

from millrace.control.reasons import why_nothing


def why(service, client="c"):
    return why_nothing(service.state, service.observed, client, service.now)


def test_without_a_worker_that_is_said():
    service = Service(FakePlan(4))
    service.join("c")
    assert why(service).startswith("job a waits for a worker: none is registered")


def test_while_sources_are_listed_that_is_said():
    service = Service(FakePlan(4))
    service.add_worker("w")
    service.join("c")
    assert "waits for its sources to be listed by worker w" in why(service)


def test_then_it_is_what_is_still_to_be_computed():
    service = Service(FakePlan(4))
    worker = service.add_worker("w")
    service.join("c")
    service.plan_tasks(worker)
    assert "job a runs on 1 worker" in why(service)
    assert "tasks to read, 0 of them computed" in why(service)


def test_ranks_that_have_not_come_are_named_where_all_take_their_steps_together():
    service = Service(FakePlan(4))
    worker = service.add_worker("w")
    service.join("c", consumer=0, num_consumers=3, equal_steps=True)
    service.plan_tasks(worker)
    assert why(service).endswith(
        "with equal_steps=True nobody has a step before all have one, and consumers 1, 2 have not come yet"
    )


def test_whoever_is_no_consumer_is_told_nothing():
    assert why(Service(FakePlan(4)), "nobody") == ""
