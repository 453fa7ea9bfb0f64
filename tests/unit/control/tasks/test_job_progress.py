"""How far jobs have come, and what is remembered of those that are over."""

import pytest
from tests.unit.control.control_driver import FakePlan, Service

from millrace.control import inputs as inp
from millrace.control.state.state import FINISHED
from millrace.control.tasks.job_progress import EPOCHS, epochs, progress, share_of
from millrace.dataset import Dataset
from millrace.graph.serialize import pack
from millrace.protocol import messages as msg
from millrace.protocol.reports import Pace

STRUCTURE = pack(Dataset.range(100).batch(4).__pipeline__().graph)[0]
TASKS = 4


@pytest.fixture
def service():
    running = Service(FakePlan(TASKS))
    running.add_worker("w")
    return running


def joined(service, name="a", client="c"):
    peer = service.join(client, job=name, structure=STRUCTURE, begin=False)
    service.plan_tasks(service.workers["w"])
    return peer


def read(service, client, epoch, batches, seconds=1.0, waited=0.5):
    pace = Pace(batches, seconds, waited)
    service.say(inp.ConsumerSaid(client, msg.ConsumerReport(epoch, [], batches, pace=pace)))


def ended(service, epoch, task, passed, *, job="a", lease=10**6):
    service.say(inp.WorkerSaid("w", msg.TaskFinished(msg.TaskRef(job, epoch, task), lease, 4, passed=passed)))


def rows(service, name="a"):
    return epochs(service.observed, service.state.jobs[name])


@pytest.mark.parametrize(
    ("epoch", "begun"), [(2, "epoch 0 at most"), (2**53, "epoch 0 at most"), (-1, "epoch 0 at most")]
)
def test_a_report_of_an_epoch_that_nobody_can_read_counts_for_nothing_and_says_so(service, epoch, begun):
    peer = joined(service)
    service.begin(peer)
    read(service, "c", 0, 4)
    for number in range(2 * EPOCHS):  # as many as would push out those that are read
        read(service, "c", epoch + number * (epoch > 0), 7)
    assert [(row["epoch"], row["elements"]) for row in rows(service)] == [(0, 4)]
    assert f"reports about epoch {epoch}, and the job has begun epoch 0 at most" in peer.notices[0]
    before = len(peer.notices)
    read(service, "c", 9, 0)  # the word that it begins may come later
    read(service, "c", 1, 0)
    assert len(peer.notices) == before
    assert [row["epoch"] for row in rows(service)] == [0, 1]


def test_an_epochs_elements_are_counted_by_consumer_and_operator(service):
    peer = joined(service)
    service.begin(peer)
    ended(service, 0, 0, [8, 2])
    ended(service, 0, 1, [8, 2])
    ended(service, 1, 0, [8, 2])  # prepared, and nobody reads it yet
    read(service, "c", 0, 4)
    assert rows(service) == [
        {
            "epoch": 0,
            "elements": 4,
            "seconds": 1.0,
            "waited_s": 0.5,
            "operators": [{"operator": "range()", "elements": 16}, {"operator": "batch()", "elements": 4}],
        }
    ]


def test_a_task_that_runs_again_is_counted_once(service):
    peer = joined(service)
    service.begin(peer)
    for _ in range(3):
        ended(service, 0, 1, [8, 2])
    read(service, "c", 0, 1)
    assert [each["elements"] for each in rows(service)[0]["operators"]] == [8, 2]


def test_what_is_left_over_of_a_job_of_the_same_name_is_not_counted(service):
    service.begin(joined(service))
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    service.state.next_lease = 50
    peer = joined(service, client="d")
    service.begin(peer)
    ended(service, 0, 1, [8, 2], lease=49)
    read(service, "d", 0, 1)
    assert [each["elements"] for each in rows(service)[0]["operators"]] == [0, 0]


@pytest.mark.parametrize(("epoch", "task"), [(0, 1 << 52), (0, TASKS), (1 << 52, 0), (9, 0)])
def test_tasks_that_nobody_was_dealt_are_not_counted(service, epoch, task):
    service.begin(joined(service))
    ended(service, 0, 0, [8, 2])
    ended(service, epoch, task, [8, 2])
    observation = service.observed.progress["a"]
    assert list(observation.epochs) == [0]
    assert list(observation.epochs[0].counted) == [0]


def test_a_report_that_is_late_takes_nothing_back(service):
    peer = joined(service)
    service.begin(peer)
    read(service, "c", 0, 9)
    read(service, "c", 0, 0, 0.0, 0.0)
    assert rows(service)[0]["elements"] == 9


def test_old_epochs_are_added_up(service):
    peer = joined(service)
    for number in range(EPOCHS + 3):
        service.begin(peer, number)
        read(service, "c", number, 10)
    assert [each["epoch"] for each in rows(service)] == list(range(3, EPOCHS + 3))
    ended(service, 0, 0, [8, 2])
    assert len(rows(service)) == EPOCHS
    service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    (job,) = service.state.finished
    assert (job.epochs, job.elements, job.pace.elements) == (EPOCHS + 3, 10 * (EPOCHS + 3), 10 * (EPOCHS + 3))


def test_what_is_left_follows_from_the_pace_since_the_beginning(service):
    peer = joined(service)
    service.begin(peer)
    read(service, "c", 0, 0, 0.0, 0.0)
    job = service.state.jobs["a"]
    assert progress(service.state, service.observed, job, service.now) == {"share": 0.0, "left_s": None}
    service.tick(3.0)
    service.work(read=False)
    for task in service.readable(peer)[:1]:
        service.read(peer, task)
    share = share_of(service.state, job, 0)
    assert share == 1 / TASKS
    assert progress(service.state, service.observed, job, service.now)["left_s"] == pytest.approx(9.0)


def test_without_a_plan_there_is_no_share(service):
    service.join("c", structure=STRUCTURE)
    assert share_of(service.state, service.state.jobs["a"], 0) is None


def test_the_last_jobs_are_remembered_with_what_held_them_up(service):
    for number in range(FINISHED + 2):
        peer = joined(service, f"job{number}")
        service.begin(peer)
        read(service, "c", 0, 10, 2.0, 0.02)
        service.tick(1.0)
        service.say(inp.ConsumerSaid("c", msg.LeaveJob()))
    service.restart()
    assert [job.name for job in service.state.finished] == [f"job{number}" for number in range(2, FINISHED + 2)]
    last = service.state.finished[-1]
    assert (last.why, last.epochs, last.elements, last.failure) == ("its last consumer left", 1, 10, None)
    assert last.seconds >= 1.0
    assert last.bottleneck.startswith("the model; the loop waited 1 % of its time")
    assert not service.observed.progress


def test_a_job_that_failed_says_why(service):
    service.join("d", job="b", structure=STRUCTURE)
    service.say(inp.WorkerSaid("w", msg.SourcesFailed("b", msg.Failure("SourceError", "no files\nat all"))))
    service.say(inp.ConsumerSaid("d", msg.LeaveJob()))
    assert [job.failure for job in service.state.finished] == ["no files"]
