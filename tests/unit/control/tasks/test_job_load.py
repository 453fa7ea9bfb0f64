"""What is made of reports for who asks what keeps a job from being faster."""

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.state.observed import WINDOW_S
from millrace.control.tasks.job_load import load_of, operator_rows, window_of
from millrace.dataset import Dataset
from millrace.graph.serialize import pack
from millrace.protocol import messages as msg
from millrace.protocol.reports import LaneReport, NodeMeasure


def same(element):
    return element


GRAPH = Dataset.range(100).map(same, num_parallel_calls=None).batch(4).__pipeline__().graph
RANGE, MAP, BATCH = range(3)


@pytest.fixture
def service():
    running = Service(FakePlan(8))
    for name in ("w0", "w1"):
        running.add_worker(name, host="here", cores=8)
    running.join("c0", structure=pack(GRAPH)[0])
    for worker in running.workers.values():
        running.plan_tasks(worker)
    return running


def worked(service, worker, seconds, *, cores=0, computing=1.0, filled=0.0):
    """A worker says what it has done since its job began, ``seconds`` ago; it makes ten elements a second."""
    nodes = [
        NodeMeasure(RANGE, "range", 40 * seconds, 320 * seconds, 0.1 * seconds, 0.1 * seconds, 0, 0.1 * seconds),
        NodeMeasure(MAP, "map(same)", 40 * seconds, 320 * seconds, 1.6 * seconds, 0.4 * seconds, 2, 0.8 * seconds),
        NodeMeasure(BATCH, "batch(4)", 10 * seconds, 320 * seconds, 0.1 * seconds, 0.1 * seconds, 0, 0.1 * seconds),
    ]
    lanes = [LaneReport(0, True, 0.0, 0, seconds, computing * seconds, filled * seconds)]
    service.say(inp.WorkerSaid(worker, msg.WorkerReport(job="a", nodes=nodes, lanes=lanes, cores=cores)))


def read(service, batch_s=0.1, wait_s=0.05):
    service.say(inp.ConsumerSaid("c0", msg.ConsumerReport(0, [], 100, batch_s, wait_s)))


def load(service, **fleet):
    job = service.state.jobs["a"]
    return load_of(service.state, service.observed, job, window_of(service.observed, "a"), **fleet)


def test_what_workers_did_is_added_up(service):
    worked(service, "w0", 1)
    worked(service, "w1", 1, computing=0.5, filled=0.4)
    read(service)
    found = load(service)
    source, mapped, _ = found.operators
    assert (mapped.label, mapped.elements, mapped.wall_s, mapped.active_s, mapped.cpu_s) == (
        "map(same)",
        *(80, 1.6, 3.2, 0.8),
    )
    assert (source.reads, source.sequential, mapped.reads, mapped.sequential) == (True, False, False, True)
    assert (found.batch_s, found.wait_s, found.workers) == (0.1, 0.05, 2)
    assert (found.computing, found.filled) == (0.75, 0.2)
    assert found.used == pytest.approx(1.2 / 1.5)
    assert found.link_bytes_s == pytest.approx(320)


def test_before_anything_was_said_nothing_is_known(service):
    found = load(service)
    assert (list(found.operators), found.batch_s, found.used, found.link_bytes_s) == ([], 0.0, 0.0, 0.0)


def test_what_was_long_ago_does_not_count(service):
    worked(service, "w0", 1, computing=0.0)
    worked(service, "w0", 100, computing=0.0)
    service.tick(WINDOW_S)
    worked(service, "w0", 200, computing=0.5)
    window = window_of(service.observed, "a")
    assert window.nodes[MAP].elements == 40 * 100
    assert (window.seconds, window.computed_s) == (100, 100)


def test_a_pipeline_that_was_loaded_anew_begins_anew(service):
    worked(service, "w0", 100)
    worked(service, "w0", 110)
    service.tick(WINDOW_S)
    worked(service, "w0", 120)
    worked(service, "w0", 1)
    assert window_of(service.observed, "a").nodes[MAP].elements == 40


@pytest.mark.parametrize(("said", "cores"), [(0, 4), (1, 1), (8, 4)])
def test_cores_are_those_that_a_worker_may_use_on_its_host(service, said, cores):
    worked(service, "w0", 1, cores=said)
    worked(service, "w1", 1, cores=said)
    assert load(service).cores == cores


def test_hosts_have_cores_to_spare_while_they_have_fewer_workers(service):
    assert load(service).spare
    for number in range(2, 8):
        service.add_worker(f"w{number}", host="here", cores=8)
    assert not load(service).spare


def test_delays_are_a_share_of_the_time_in_which_threads_could_run(service):
    def say(**report):
        service.say(inp.WorkerSaid("w0", msg.WorkerReport(job="a", **report)))

    say(cores=2, cpu_s=1.0, delayed_s=6.0)
    assert load(service).delayed == 0.75
    say(cores=2, cpu_s=2.0, delayed_s=1000.0)
    assert load(service).delayed == 0.95


def test_planned_workers_are_told(service):
    found = load(service, planned=6, requested=4)
    assert (found.planned, found.requested) == (6, 4)


def test_operators_have_shares_and_rates():
    all_time = {0: NodeMeasure(0, "range", 500, 4000, 1.0, 1.0), 1: NodeMeasure(1, "map(f)", 500, 4000, 9.0, 1.0, 3)}
    lately = {
        0: NodeMeasure(0, "range", 100, 800, 0.5, 0.5, 0, 0.5),
        1: NodeMeasure(1, "map(f)", 100, 800, 4.5, 0.5, 3),
    }
    first, second = operator_rows(all_time, lately, 4.0)
    assert (first["operator"], first["elements"], first["share"], first["elements_s"]) == ("range", 500, 0.25, 25.0)
    assert (second["share"], second["threads"], second["active_s"]) == (0.75, 3, 9.0)
    assert [row["share"] for row in operator_rows(all_time, {}, 0.0)] == [None, None]
    assert [row["elements_s"] for row in operator_rows(all_time, {}, 0.0)] == [None, None]
