"""Jobs of one tenant with the same sources, which come at about the same time, share one listing."""

import pytest
from tests.unit.control.control_driver import Service

import millrace as mr
from millrace.control import inputs as inp
from millrace.control.journal.snapshot import plain
from millrace.control.reasons import why_nothing
from millrace.control.scheduling.shared_listings import SHARED_S
from millrace.graph.notation import graph_of
from millrace.graph.serialize import pack
from millrace.planning.split_table import positions_table
from millrace.protocol import messages as msg

BUCKET = "s3://bucket/train/*.jpg"


def structure(*patterns, shuffled=False, digest=None):
    dataset = mr.Dataset.from_files(list(patterns) or BUCKET, digest=digest)
    dataset = dataset.shuffle(100) if shuffled else dataset
    graph = graph_of(dataset)
    assert graph is not None
    return pack(graph)[0]


def service_of(jobs, **fields):
    """A service with four workers to which these jobs have come, and what workers were asked to list, by job."""
    service = Service()
    for name in ("t", "u", "v", "w"):
        service.add_worker(name)
    for job in jobs:
        service.join(f"client-{job}", job, begin=False, **{"structure": structure(), **fields})
    return service, asked_to_list(service)


def asked_to_list(service):
    asked = {}
    for worker in service.workers.values():
        while worker.planning:
            message = worker.planning.popleft()
            asked[message.job] = (worker.name, message.tables)
    return asked


def listed(service, job, worker, digest="tables"):
    tables = {0: positions_table(4).summary()}
    service.say(inp.WorkerSaid(worker, msg.SourcesListed(job, tables, digest=digest)))


def test_a_job_takes_the_listing_that_is_under_way():
    service, asked = service_of(["a", "b", "c"])
    assert [*asked] == ["a"]
    assert asked["a"][1] == ""
    why = why_nothing(service.state, service.observed, "client-b", service.now)
    assert why == "job b waits for the listing of job a, whose sources are the same"
    listed(service, "a", asked["a"][0])
    after = asked_to_list(service)
    assert {job: tables for job, (_, tables) in after.items()} == {"b": "tables", "c": "tables"}
    for job, (worker, _) in after.items():
        listed(service, job, worker)
    assert all(job.tables is not None for job in service.state.jobs.values())
    assert not service.observed.awaited_listings
    assert plain(service.replayed()) == plain(service.state)


@pytest.mark.parametrize(("later_s", "shared"), [(0.0, True), (SHARED_S, True), (SHARED_S + 0.1, False)])
def test_a_listing_that_began_long_before_a_job_came_is_not_taken(later_s, shared):
    service, _ = service_of(["a"])
    service.now += later_s
    service.join("client-b", "b", structure=structure())
    assert ("b" in asked_to_list(service)) is not shared


def test_a_listing_that_was_over_before_a_job_came_is_not_taken():
    """Files may have changed since."""
    service, asked = service_of(["a"])
    listed(service, "a", asked["a"][0])
    service.join("client-b", "b", structure=structure())
    assert asked_to_list(service)["b"][1] == ""


def test_what_is_taken_is_as_old_as_the_listing_that_gave_it():
    service, asked = service_of(["a", "b"])
    service.now += SHARED_S
    listed(service, "a", asked["a"][0])
    service.now += 0.1
    service.join("client-c", "c", structure=structure())
    asked = asked_to_list(service)
    assert {job: tables for job, (_, tables) in asked.items()} == {"b": "tables", "c": ""}


@pytest.mark.parametrize("ends", ["fails", "leaves", "its worker goes"])
def test_a_job_whose_awaited_listing_comes_to_nothing_lists_itself(ends):
    service, asked = service_of(["a", "b"])
    worker = asked["a"][0]
    if ends == "fails":
        failure = msg.Failure("SourceNotFoundError", "no such bucket")
        service.say(inp.WorkerSaid(worker, msg.SourcesFailed("a", failure)))
    elif ends == "leaves":
        service.say(inp.ConsumerSaid("client-a", msg.LeaveJob()))
    else:
        service.workers.pop(worker)
        service.say(inp.WorkerEnded(worker, "was killed"))
    after = asked_to_list(service)
    lists = [job for job, (_, tables) in after.items() if not tables]
    assert len(lists) == 1
    (job,) = lists
    listed(service, job, after[job][0])
    for other, (name, tables) in asked_to_list(service).items():
        assert tables == "tables"
        listed(service, other, name)
    assert all(each.tables is not None for each in service.state.jobs.values() if each.failure is None)
    assert not service.observed.awaited_listings


def alone(**fields):
    """Both jobs of such a pair list for themselves."""
    service, asked = service_of(["a"])
    service.join("client-b", "b", **{"structure": structure(), **fields})
    asked |= asked_to_list(service)
    assert {job: tables for job, (_, tables) in asked.items()} == {"a": "", "b": ""}


def test_listings_of_others_are_not_taken():
    alone(structure=structure("s3://bucket/validation/*.jpg"))
    alone(structure=structure(BUCKET, digest="s3://bucket/train.digest"))
    alone(tenant="others")


@pytest.mark.parametrize("patterns", [["/data/*.jpg"], ["file:///data/*.jpg"], [BUCKET, "data/*.jpg"], ["memory://x"]])
def test_files_of_a_host_are_listed_by_each_job(patterns):
    _, asked = service_of(["a", "b"], structure=structure(*patterns))
    assert {job: tables for job, (_, tables) in asked.items()} == {"a": "", "b": ""}


def test_what_is_done_with_the_elements_matters_not():
    service, asked = service_of(["a"])
    service.join("client-b", "b", structure=structure(shuffled=True))
    listed(service, "a", asked["a"][0])
    assert asked_to_list(service)["b"][1] == "tables"


def test_a_job_of_the_same_name_is_another_one():
    service, _ = service_of(["a", "b"])
    service.say(inp.ConsumerSaid("client-a", msg.LeaveJob()))
    service.join("client-c", "a", structure=structure("s3://bucket/others/*.jpg"))
    assert {job: tables for job, (_, tables) in asked_to_list(service).items()} == {"a": "", "b": ""}


def test_a_job_that_gets_the_name_of_an_awaited_one_gives_nothing():
    service, asked = service_of(["a", "b"])
    for worker in service.workers:
        if worker != asked["a"][0]:
            service.say(inp.WorkerEnded(worker, "was killed"))
    service.say(inp.ConsumerSaid("client-a", msg.LeaveJob()))
    service.say(inp.WorkerEnded(asked["a"][0], "was killed"))
    service.join("client-c", "a", structure=structure("s3://bucket/others/*.jpg"))
    service.add_worker("x")
    service.add_worker("y")
    asked = asked_to_list(service)
    listed(service, "a", asked["a"][0])
    assert {tables for _, tables in (asked | asked_to_list(service)).values()} == {""}
