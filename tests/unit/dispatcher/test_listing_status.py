"""A listing that takes long can be watched."""

from tests.unit.control.control_driver import Service

from millrace.control import inputs as inp
from millrace.dispatcher.status_report import status
from millrace.protocol import messages as msg


def seen(service):
    [job] = status(service.state, service.observed, service.now)["jobs"]
    return job["listed"], job["why"]


def test_the_status_says_how_many_files_were_listed_so_far():
    service = Service()
    service.join("x")
    assert seen(service)[0] is None
    worker = service.add_worker("w")
    assert seen(service) == (0, "job a waits for its sources to be listed by worker w")
    service.say(inp.WorkerSaid("w", msg.WorkerReport(job="a", listing="a", listed=1234567)))
    assert seen(service) == (1234567, "job a waits for its sources to be listed by worker w: 1,234,567 files so far")
    service.say(inp.WorkerSaid("w", msg.WorkerReport(job="a", listing="another", listed=7)))
    assert seen(service)[0] == 0
    service.plan_tasks(worker)
    assert seen(service)[0] is None
