import io
import json
from typing import Any

from millrace.control.state.observed import Observed
from millrace.control.state.state import State
from millrace.dispatcher.status_report import status
from millrace.display.status import as_json, columns, finished_rows, job_rows, operator_rows, show, watch, worker_rows

BUSY: dict[str, Any] = {
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
            "progress": {"share": 0.25, "left_s": 125.0},
            "operators": [
                {"operator": "range()", "share": 0.004, "elements_s": 12345.6, "threads": 0},
                {"operator": "map(decode)", "share": 0.996, "elements_s": None, "threads": 4, "padding_share": 0.125},
            ],
            "epochs": [
                {"epoch": 1, "operators": [{"elements": 7}, {"elements": 7}]},
                {"epoch": 2, "operators": [{"elements": 4000}, {"elements": 3999}]},
            ],
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
    "finished": [
        {
            "name": "bert",
            "ended_s": 61.3,
            "seconds": 3725.0,
            "epochs": 3,
            "elements": 30000,
            "wait_share": 0.031,
            "why": "its last consumer left",
            "failure": None,
            "bottleneck": "the model; the loop waited 3 % of its time",
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
        "25 %",
        "2 min 5 s",
        "compute",
        "5/?",
        "3",
        "1",
        "250 ms",
        "50 %",
        "job resnet50 runs on 3 workers (4 elements skipped)",
    )
    assert consumer[0] == "  consumer 0"
    assert consumer[-1] == "12 elements read; waits for a task"


def test_a_worker_is_a_row():
    assert worker_rows(BUSY) == [("01234567", "h:8", "-", "0", "-", "0 B", "waits for a job")]


def test_operators_are_rows_with_what_they_gave_in_this_epoch():
    assert operator_rows(BUSY["jobs"][0]) == [
        ("range()", "0.4 %", "4,000", "12,346", "-", "-"),
        ("map(decode)", "100 %", "3,999", "-", "4", "12 %"),
    ]


def test_jobs_that_are_over_are_rows():
    assert finished_rows(BUSY) == [
        (
            "bert",
            "1 min 1 s ago",
            "1 h 2 min",
            "3",
            "30,000",
            "3.1 %",
            "its last consumer left",
            "the model; the loop waited 3 % of its time",
        )
    ]
    failed = {**BUSY["finished"][0], "failure": "ElementError: map(decode) failed"}
    assert finished_rows({"finished": [failed]})[0][6] == "ElementError: map(decode) failed"


def test_watching_shows_one_answer_below_the_other_without_a_terminal():
    out = io.StringIO()
    watch(iter([BUSY, BUSY]), out)
    assert out.getvalue().count("job resnet50 runs on 3 workers") == 2
    assert "\x1b" not in out.getvalue()


def test_watching_is_a_line_of_json_for_each_answer_for_programs():
    out = io.StringIO()
    watch(iter([BUSY, BUSY]), out, as_lines=True)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [BUSY, BUSY]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_watching_draws_over_what_was_there_on_a_terminal():
    out = Terminal()
    watch(iter([BUSY, {**BUSY, "jobs": []}]), out)
    shown = out.getvalue()
    assert "resnet50" in shown
    assert "jobs: none" in shown
    assert shown.startswith("\x1b[?1049h")  # another screen, so that what was there comes back
    assert "\x1b[?1049l" in shown


def test_what_users_name_is_not_taken_for_markup():
    out = Terminal()
    show({**BUSY, "jobs": [{**BUSY["jobs"][0], "name": "[red]a[/red]"}]}, out)
    assert "[red]a[/red]" in out.getvalue()


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
