import io
import json

from millrace.control.observed import Observed
from millrace.control.state import State
from millrace.dispatcher.status import status
from millrace.observe.status import as_json, columns, job_rows, show, worker_rows

BUSY = {
    "version": "1",
    "heartbeat_s": 5.0,
    "jobs": [
        {
            "name": "resnet50",
            "epoch": 2,
            "mode": "compute",
            "cache": {"why": "computes everything, 4.1 ms/element", "history": [{"epoch": 0, "mode": "compute"}]},
            "workers": {"plan": None, "requested": None, "observed": 3},
            "batch_time_s": 0.25,
            "wait_share": 0.5,
            "consumers": [
                {
                    "index": 0,
                    "host": "h",
                    "pid": 7,
                    "epoch": 2,
                    "connected": True,
                    "batches": 12,
                    "why": "waits for a task",
                }
            ],
            "tasks": {"total": None, "done": 5, "leased": 2},
            "skipped": 4,
            "failure": None,
            "why": "job resnet50 runs on 3 workers",
            "notes": ["task 7 gave another element"],
        }
    ],
    "workers": [
        {
            "id": "0123456789abcdef",
            "host": "h",
            "pid": 8,
            "job": None,
            "local": False,
            "leases": 0,
            "lanes": [],
            "busy_share": None,
            "why": "waits for a job",
        }
    ],
    "fleet": {"plan": 3, "requested": 3, "observed": 3, "why": ""},
    "journal": {"work_dir": None, "why": ""},
    "cache": None,
}


def test_a_job_and_its_consumers_are_rows():
    job, consumer = job_rows(BUSY)
    assert job == (
        "resnet50",
        "2",
        "compute",
        "5/?",
        "3",
        "1",
        "250.0 ms",
        "50 %",
        "job resnet50 runs on 3 workers (4 elements skipped)",
    )
    assert consumer[0] == "  consumer 0"
    assert consumer[-1] == "12 elements read; waits for a task"


def test_a_worker_is_a_row():
    assert worker_rows(BUSY) == [("01234567", "h:8", "-", "0", "-", "0.0 MiB", "waits for a job")]


def test_columns_are_aligned():
    assert columns([("a", "b"), ("ccc", "d")]) == ["a    b", "ccc  d"]


def test_plain_output_without_a_terminal():
    out = io.StringIO()
    show(BUSY, out)
    assert "resnet50" in out.getvalue()
    assert "waits for a job" in out.getvalue()
    assert "job resnet50: task 7 gave another element\n" in out.getvalue()
    assert "job resnet50: computes everything, 4.1 ms/element\n" in out.getvalue()


def test_what_a_dispatcher_says_can_be_shown_from_its_first_moment():
    out = io.StringIO()
    found = status(State(), Observed(), 0.0)
    show(found, out)
    assert out.getvalue() == (
        "jobs: none\nworkers: none\nnothing outlives the dispatcher: it was started without a work_dir\n"
    )
    assert json.loads(as_json(found))["jobs"] == []
