"""What is made of the measures that workers and consumers report."""

import math

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.caching.profiling import look_at, look_of, measures, profile_of, tasks_ended, telling
from millrace.control.state.observed import CacheObservation
from millrace.dataset import Dataset
from millrace.graph.serialize import pack
from millrace.planning.cache_point import CachePoint
from millrace.policies.caching.autocache import BatchTime
from millrace.policies.caching.cache_cost_model import Passed
from millrace.protocol import messages as msg
from millrace.protocol.reports import NodeMeasure

STRUCTURE = pack(Dataset.range(100).batch(4).autocache().unbatch().__pipeline__().graph)[0]
RANGE, BATCH, POINT, UNBATCH = range(4)
POINTS = [CachePoint(POINT, "batch(4)", "auto", "ab" * 16, items=25)]


def reading(consumers=1, workers=2):
    service = Service(FakePlan(8))
    service.points = POINTS
    for number in range(workers):
        service.add_worker(f"w{number}", host="here", cores=8)
    for number in range(consumers):
        service.join(f"c{number}", structure=STRUCTURE, num_consumers=consumers)
    for worker in service.workers.values():
        service.plan_tasks(worker)
    return service, service.state.jobs["a"]


def worked(service, worker, elements, *, job="a", active_s=1.0, cpu_s=0.5, threads=0):
    nodes = [
        NodeMeasure(RANGE, "range", elements, 8 * elements, active_s, cpu_s, threads),
        NodeMeasure(POINT, "autocache", elements // 4, 32 * (elements // 4), 0.0),
        NodeMeasure(UNBATCH, "unbatch", elements, 8 * elements, 0.25, 0.25),
    ]
    service.say(inp.WorkerSaid(worker, msg.WorkerReport(job=job, nodes=nodes)))


def read(service, client, batch_s, wait_s):
    report = msg.ConsumerReport(0, [], 100, batch_s, wait_s)
    service.say(inp.ConsumerSaid(client, report))


def profile(service, job, observation=None):
    return profile_of(service.state, service.observed, job, observation or CacheObservation())


def seen(service, job):
    found = look_at(service.observed, job)
    assert found is not None
    return found.batch_s, found.wait_s


def test_a_profile_is_the_sum_of_what_workers_did():
    service, job = reading()
    worked(service, "w0", 400, active_s=1.0, cpu_s=0.5, threads=2)
    worked(service, "w1", 200, active_s=3.0, cpu_s=1.0, threads=3)
    read(service, "c0", 0.02, 0.01)
    found = profile(service, job)
    assert found is not None
    assert found.elements == 600
    assert found.passed == {POINT: Passed(150, 4800)}
    below = next(stage for stage in found.stages if POINT in stage.under and stage.seconds)
    assert (below.seconds, below.cpu_s, below.threads) == (4.0, 1.5, 3)
    above = next(stage for stage in found.stages if not stage.under)
    assert (above.seconds, above.cpu_s, above.threads) == (0.5, 0.5, 0)
    assert (found.batch_s, found.wait_s, found.cores) == (0.02, 0.01, 4)


def test_what_was_done_before_does_not_count():
    service, job = reading()
    worked(service, "w0", 400)
    observation = CacheObservation(before=measures(service.observed, "a"))
    read(service, "c0", 0.02, 0.01)
    assert profile(service, job, observation) is None
    worked(service, "w0", 500, active_s=1.5)
    found = profile(service, job, observation)
    assert found is not None
    assert found.elements == 100
    assert found.passed[POINT].elements == 25


def test_a_worker_that_loaded_the_job_anew_is_not_counted_backwards():
    service, job = reading()
    worked(service, "w0", 400)
    observation = CacheObservation(before=measures(service.observed, "a"))
    worked(service, "w0", 40, active_s=0.1)
    worked(service, "w1", 100)
    read(service, "c0", 0.02, 0.01)
    found = profile(service, job, observation)
    assert found is not None
    assert found.elements == 100


def test_other_jobs_are_left_out():
    service, _ = reading()
    worked(service, "w0", 400, job="another")
    assert measures(service.observed, "a") == {}


@pytest.mark.parametrize(("works", "reads"), [(True, False), (False, True)])
def test_there_is_no_profile_before_all_have_reported(works, reads):
    service, job = reading()
    if works:
        worked(service, "w0", 400)
    if reads:
        read(service, "c0", 0.02, 0.01)
    assert profile(service, job) is None


def test_a_look_is_the_mean_of_all_consumers_and_nobody_waits_longer_than_a_batch_takes():
    service, job = reading(consumers=2)
    assert look_at(service.observed, job) is None
    read(service, "c0", 0.02, 0.01)
    read(service, "c1", 0.04, 0.06)
    assert seen(service, job) == pytest.approx((0.03, 0.03))
    read(service, "c1", 0.04, 0.0)
    assert seen(service, job) == pytest.approx((0.03, 0.005))


def test_noise_is_the_standard_error_of_the_last_looks():
    service, job = reading()
    read(service, "c0", 0.02, 0.0)
    found = look_at(service.observed, job, [BatchTime(0.03, 0.0), BatchTime(0.01, 0.0)])
    assert found is not None
    assert found.noise == pytest.approx(0.01 / 0.02 / math.sqrt(3))


def test_tasks_are_counted_when_they_end():
    service, job = reading()
    assert tasks_ended(job) == 0
    service.work(read=False)
    done = tasks_ended(job)
    assert 0 < done < 8
    service.run()
    assert tasks_ended(job) >= 8


def test_a_group_is_as_fast_as_its_fastest_member_and_has_its_workers_for_itself():
    service = Service(FakePlan(8))
    service.points = POINTS
    service.add_worker("w0", host="here", cores=8)
    for number, batch_s in enumerate((0.5, 0.1)):
        service.join(f"c{number}", f"job{number}", structure=STRUCTURE, sharing="lockstep")
        said = msg.ConsumerReport(0, batches=500, batch_time_s=batch_s, wait_s=batch_s / 2)
        service.say(inp.ConsumerSaid(f"c{number}", said))
    service.plan_tasks(service.workers["w0"])
    (job,) = service.state.jobs.values()
    look = look_at(service.observed, job)
    assert look is not None
    assert (look.batch_s, look.wait_s) == (0.1, 0.05)
    assert list(telling(service.observed, job)) == [1]
    worked(service, "w0", 400, job=job.name)
    profile = profile_of(service.state, service.observed, job, CacheObservation())
    assert profile is not None
    assert profile.workers == 1


def test_what_lies_ready_in_a_window_makes_a_group_no_faster_than_its_workers():
    service = Service(FakePlan(8))
    service.points = POINTS
    service.add_worker("w0", host="here", cores=8)
    service.join("c0", "job0", structure=STRUCTURE, sharing="window", visitation="at_most_once")
    service.say(inp.ConsumerSaid("c0", msg.ConsumerReport(0, batches=500, batch_time_s=1e-6, wait_s=0.0)))
    service.plan_tasks(service.workers["w0"])
    (job,) = service.state.jobs.values()
    worked(service, "w0", 400, job=job.name)
    profile = profile_of(service.state, service.observed, job, CacheObservation())
    assert profile is not None
    assert profile.batch_s == pytest.approx(1.25 / 400)  # two operators, which one thread pulls
    assert profile.wait_s == pytest.approx(profile.batch_s, rel=1e-2)
    slow = msg.ConsumerReport(0, batches=1000, batch_time_s=9.0, wait_s=1.0)
    service.say(inp.ConsumerSaid("c0", slow))
    look = look_of(service.state, service.observed, job, CacheObservation())
    assert look is not None
    assert (look.batch_s, look.wait_s) == (9.0, 1.0)
