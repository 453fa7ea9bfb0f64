"""What the status says of jobs that share one computation, and what falls to each."""

import io
from typing import Any

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.dispatcher.status_report import status
from millrace.display.cost import costs
from millrace.display.status import MEMBERS, columns, job_rows, member_rows, show
from millrace.display.status_metrics import HELP, metrics
from millrace.policies.prices import Machine, Prices, PriceTable
from millrace.protocol import messages as msg
from millrace.protocol.reports import LaneReport, NodeMeasure


@pytest.fixture
def service():
    """A worker, and two jobs that are alike."""
    service = Service(FakePlan(6), prices=PriceTable(prices=Prices(core=3600.0), worker=Machine(cores=1.0)))
    service.add_worker("w")
    service.tick(5.0)
    for client, name in (("c0", "fast"), ("c1", "slow")):
        service.join(client, name, sharing="lockstep")
        service.tick(1.0)
    return service


def says(service, client, batches, *, epoch=0, **fields):
    service.say(inp.ConsumerSaid(client, msg.ConsumerReport(epoch, batches=batches, **fields)))


def computes(service, outputs, *, cpu_s=0.0, **lane):
    """The worker says that it has made so many outputs, and finishes a task that gave them."""
    nodes = [NodeMeasure(0, "range", outputs, 8 * outputs, cpu_s, cpu_s)]
    lanes = [LaneReport(0, True, 0.0, **{"buffered_bytes": 0, **lane})]
    service.report("w", nodes=nodes, cpu_s=cpu_s, cores=1, lanes=lanes)


def reported(service) -> dict[str, Any]:
    return status(service.state, service.observed, service.now)


def group(service) -> dict[str, Any]:
    [job] = reported(service)["jobs"]
    found: dict[str, Any] = job["group"]
    return found


def by_name(service, what):
    return {each["member"]: each[what] for each in group(service)["members"]}


def test_a_job_alone_is_no_group():
    service = Service()
    service.join("c0", "alone")
    [job] = reported(service)["jobs"]
    assert job["group"] is None
    assert [each["member"] for each in job["consumers"]] == [None]


def test_a_group_has_its_fingerprint_and_says_who_reads_it_since_when(service):
    found = group(service)
    [name] = service.state.jobs
    assert f"lockstep-{found['fingerprint']}" == name
    assert by_name(service, "since_s") == {"fast": 2.0, "slow": 1.0}
    assert by_name(service, "epoch") == {"fast": 0, "slow": 0}


def test_since_when_somebody_reads_survives_its_coming_back_and_the_dispatcher(service):
    slow = service.consumers["c1"]
    service.say(inp.ClientSessionLost("c1"))
    service.rejoin(slow)
    assert by_name(service, "since_s")["slow"] == 1.0
    service.save()
    service.restart()
    service.rejoin(slow)
    assert by_name(service, "since_s")["slow"] == 1.0


def test_elements_of_all_epochs_are_counted_and_what_a_member_skipped(service):
    says(service, "c0", 50, missed=2)
    says(service, "c0", 90, missed=5)
    says(service, "c0", 10, epoch=1, missed=1)
    says(service, "c0", 90, missed=5)  # late: it has been counted
    assert by_name(service, "elements") == {"fast": 100, "slow": 0}
    assert by_name(service, "skipped") == {"fast": 6, "slow": 0}


def test_what_another_has_received_and_a_member_lacks_is_how_far_it_is_behind(service):
    service.work(read=False)
    fast = service.consumers["c0"]
    for task in service.readable(fast)[:2]:
        service.read(fast, task)
    assert by_name(service, "behind") == {"fast": 0, "slow": 2}


def test_outputs_given_beyond_those_produced_save_what_these_cost(service):
    computes(service, 100, cpu_s=5.0, buffered_bytes=7 << 20, hits=60)
    says(service, "c0", 100)
    assert (group(service)["made"], group(service)["given"], group(service)["saved_core_s"]) == (100, 100, 0.0)
    says(service, "c1", 60)
    found = group(service)
    assert (found["made"], found["given"], found["readers"]) == (100, 160, 1.6)
    assert found["saved_core_s"] == pytest.approx(5.0 * 0.6)
    assert found["window"] == {"bytes": 7 << 20, "hits": 60}
    service.say(inp.ConsumerSaid("c1", msg.LeaveJob()))
    assert group(service)["given"] == 160, "what was saved stays saved"


def test_what_was_read_before_the_dispatcher_was_started_again_saves_nothing_twice(service):
    says(service, "c0", 80)
    service.save()
    service.restart()
    for client in ("c0", "c1"):
        service.rejoin(service.consumers[client])
    says(service, "c0", 80)
    says(service, "c0", 90)
    assert by_name(service, "elements")["fast"] == 90
    assert group(service)["given"] == 10


def test_costs_are_divided_by_how_fast_members_read(service):
    spend(service, 0)
    seconds = {name: 3600 * sum(row["worker_hours"] for row in rows) for name, rows in spent(service).items()}
    assert seconds["fast"] == pytest.approx(seconds["slow"] + 1.0), "nobody reads yet; one came a second earlier"
    for fast, slow in ((0, 0), (30, 10)):
        service.now += 1.0
        says(service, "c0", fast)
        says(service, "c1", slow)
    service.say(inp.Tick())
    before = {name: 3600 * sum(row["worker_hours"] for row in rows) for name, rows in spent(service).items()}
    spend(service, 0)
    assert by_name(service, "share") == {"fast": 0.75, "slow": 0.25}
    seconds = {name: 3600 * sum(row["worker_hours"] for row in rows) for name, rows in spent(service).items()}
    assert seconds["fast"] - before["fast"] == pytest.approx(3 * (seconds["slow"] - before["slow"]))
    [job] = reported(service)["jobs"]
    assert sum(seconds.values()) == pytest.approx(3600 * sum(row["worker_hours"] for row in job["spent"]))


def spend(service, start):
    """Four seconds pass."""
    for number in range(start, start + 4):
        service.report("w", cpu_s=float(number), cores=1)
        service.now += 1.0
        service.say(inp.Tick())


def spent(service):
    found: dict[str, list[dict[str, Any]]] = {}
    for row in group(service)["spent"]:
        found.setdefault(row["member"], []).append(row)
    return found


def test_what_fell_to_somebody_who_left_stays_its_own_and_others_pay_all_from_then_on(service):
    spend(service, 0)
    before = spent(service)["slow"]
    service.say(inp.ConsumerSaid("c1", msg.LeaveJob()))
    spend(service, 4)
    assert spent(service)["slow"] == before
    assert by_name(service, "share") == {"fast": 1.0}


def test_each_job_that_shares_has_rows_of_its_own_in_what_was_spent(service):
    spend(service, 0)
    spend(service, 4)
    rows = costs(reported(service))
    assert {row["job"] for row in rows} == {"fast", "slow"}
    assert {row["group"] for row in rows} == set(service.state.jobs)
    assert sum(row["service"] for row in rows) == pytest.approx(reported(service)["jobs"][0]["spent"][0]["service"])


def test_who_was_detached_is_said(service):
    fast = service.consumers["c0"]
    service.work(read=False)
    service.read(fast, service.readable(fast)[0])
    for _ in range(20):
        service.now += 2.0
        says(service, "c0", 1, waits=True)
        service.tick()
        if len(group(service)["members"]) == 1:
            break
        says(service, "c1", 0)
    service.now += 4.0
    assert group(service)["detached"] == [{"member": "slow", "ago_s": 4.0, "why": "held up the others for 30 s"}]


def test_members_are_rows_and_what_they_save_is_a_sentence(service):
    computes(service, 100, cpu_s=5.0, buffered_bytes=7 << 20, hits=60)
    says(service, "c0", 100)
    says(service, "c1", 60)
    found = reported(service)
    rows = member_rows(found["jobs"][0]["group"])
    assert columns([MEMBERS, *rows])[0].split() == [
        "member",
        "on",
        "for",
        "epoch",
        "elements",
        "skipped",
        "behind",
        "pays",
    ]
    assert [(row[0], row[4]) for row in rows] == [("fast", "100"), ("slow", "60")]
    assert [row[0] for row in job_rows(found)[1:]] == ["  fast", "  slow"]
    out = io.StringIO()
    show(found, out)
    text = out.getvalue()
    assert "100 outputs produced and 160 given to members, 1.6 times each, which saves 3 s of processor time" in text
    assert "7 MiB in workers; 60 outputs sent that another member had been sent before" in text


def test_metrics_have_a_group_and_its_members(service):
    computes(service, 100, cpu_s=5.0, buffered_bytes=7 << 20, hits=60)
    says(service, "c0", 100)
    lines = metrics(reported(service)).splitlines()
    names = f'group="{group(service)["fingerprint"]}",sharing="lockstep"'
    assert f"millrace_group_members{{{names}}} 2" in lines
    assert f'millrace_member_elements_total{{{names},member="fast"}} 100' in lines
    assert "# TYPE millrace_group_window_bytes gauge" in lines
    assert "millrace_workers 1" in lines
    absent = ["job_wait_ratio", *(name for name in HELP if name.startswith("source_"))]
    missing = set(HELP) - {line.split()[2].removeprefix("millrace_") for line in lines if line.startswith("# TYPE")}
    assert missing == set(absent), "nobody has said how it waits, and no store is read"


def test_metrics_have_what_a_source_asked_its_store_for(service):
    computes(service, 100, cpu_s=5.0)
    found = reported(service)
    (job,) = found["jobs"]
    counts = {"requests": 40, "stored_bytes": 1 << 20, "retried": 3, "hedged": 2, "store_wait_s": 1.5, "under_way": 8}
    source, *others = job["operators"]
    found["jobs"] = [{**job, "operators": [{**source, **counts}, *others]}]
    lines = metrics(found).splitlines()
    names = f'job="{job["name"]}",number="0",operator="{source["operator"]}"'
    for name, value in [("requests_total", 40), ("retried_total", 3), ("hedged_total", 2), ("wait_seconds_total", 1.5)]:
        assert f"millrace_source_{name}{{{names}}} {value}" in lines
    assert f"millrace_source_requests_under_way{{{names}}} 8" in lines
    assert not any('number="1"' in line for line in lines if line.startswith("millrace_source_"))
