"""What the status says of jobs that share workers."""

from tests.unit.control.control_driver import FakePlan, Service

from millrace.dispatcher.status_report import status


def shared(workers, jobs, turns=0, **settings):
    """Status of jobs with these fields of their specs, which came one after the other, a second later."""
    service = Service(FakePlan(None), **settings)
    for number in range(workers):
        service.add_worker(f"w{number}")
    for name, fields in jobs.items():
        service.join(f"c-{name}", name, **fields)
        for worker in service.workers.values():
            service.plan_tasks(worker)
    for _ in range(turns):
        service.work()
        service.tick(1.0)
    service.tick(1.0)
    return {job["name"]: job for job in status(service.state, service.observed, service.now)["jobs"]}


def test_a_job_without_a_worker_says_that_nothing_is_known_of_its_caches():
    assert shared(0, {"a": {}})["a"]["cache"]["why"] == "its data is not listed yet"
    assert "no cache point" in shared(1, {"a": {}})["a"]["cache"]["why"]


def test_a_job_alone_says_no_more_than_it_did():
    job = shared(2, {"a": {}})["a"]
    assert job["why"] == "job a runs on 2 workers"
    assert job["division"]["share"] == 2
    assert job["division"]["waits_s"] is None


def test_who_waits_says_for_how_long_and_for_whom():
    jobs = shared(1, {"a": {}, "b": {"priority": 2.0, "tenant": "red"}, "c": {}})
    assert jobs["a"]["why"] == "job a runs on 1 worker; a is to have 0.25 of 1 worker for 3 jobs"
    assert jobs["b"]["division"] == {
        "tenant": "red",
        "priority": 2.0,
        "share": 0.5,
        "why": "b is to have 0.5 of 1 worker for 3 jobs, its priority being 2",
        "waits_s": 1.0,
        "waits_for": ["a"],
        "behind": [],
    }
    assert jobs["c"]["why"] == (
        "job c has waited 1 s for a worker: 1 worker, serving a; its turn comes at the end of a task, after b"
    )


def test_whose_tenant_has_its_quota_waits_for_its_own():
    jobs = shared(3, {"free": {}, "a": {"tenant": "red"}, "b": {"tenant": "red"}}, 5, quotas={"red": 1})
    waiting = next(job for job in jobs.values() if not job["workers"]["observed"])
    other = {"a": "b", "b": "a"}[waiting["name"]]
    assert waiting["division"]["waits_for"] == [other]
    assert "3 workers, of which tenant red may have 1, serving" in waiting["why"]
