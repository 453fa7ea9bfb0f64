"""What a service says about itself while it works, and where one looks for it."""

import functools
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.integration.service.service_driving import Service, job_of
from tests.integration.service.service_gate import Gate, Keeper

import millrace as mr
from millrace.cli import main, parser

COUNT, BATCH = 600, 10
READ = COUNT // 2 // BATCH


def even(number: int) -> bool:
    return number % 2 == 0


def exact(number: int, status: dict[str, Any]) -> dict[str, Any] | None:
    """The status, once it counts all of an epoch."""
    rows = [row for row in job_of(status, "counted")["epochs"] if row["epoch"] == number]
    counts = [(row["elements"], [each["elements"] for each in row["operators"]]) for row in rows]
    return status if counts == [(READ, [COUNT, COUNT // 2, READ])] else None


@pytest.mark.parametrize("service", [2], indirect=True)
def test_counters_are_those_of_each_epoch(service: Service):
    dataset = mr.Dataset.range(COUNT).filter(even).batch(BATCH)
    with dataset.distribute(service.address, job_name="counted", tasks=20) as batches:
        for number in range(2):
            assert sum(1 for _ in batches) == READ
            status = service.until(functools.partial(exact, number))
            job = job_of(status, "counted")
            assert job["consumers"][0]["batches"] == READ
            assert job["progress"] == {"share": 1.0, "left_s": 0.0}
    (over,) = [job for job in service.status()["finished"] if job["name"] == "counted"]
    assert (over["epochs"], over["elements"], over["failure"]) == (2, 2 * READ, None)
    assert over["why"] == "its last consumer left"


@pytest.mark.parametrize("service", [2], indirect=True)
def test_why_of_a_worker_is_what_it_does(service: Service, gate: Gate, keeper: Keeper):
    def through(number: int) -> int:
        if number == 7:
            gate.pass_through()
        return number

    def says(status: dict[str, Any], words: str) -> bool:
        return any(words in worker["why"] for worker in status["workers"])

    with mr.Dataset.range(8).map(through).distribute(service.address, job_name="held", tasks=1) as numbers:
        reading = iter(numbers)
        keeper.wait()
        service.until(lambda status: says(status, "computes 1 task of held"))
        keeper.open()
        assert sorted(reading) == list(range(8))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_it_is_found_by_the_environment(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MILLRACE_SERVICE", service.address)
    assert main(["status", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["workers"]) == 2
    assert main(["status"]) == 0
    assert "workers:\n  worker " in capsys.readouterr().out


@pytest.mark.parametrize("command", [["status"], ["cost"], ["cache", "ls"], ["cache", "rm", "ab"]])
def test_without_a_word_it_is_the_usual_port_of_this_machine(command: list[str], monkeypatch: pytest.MonkeyPatch):
    for value in (None, ""):
        monkeypatch.delenv("MILLRACE_SERVICE", raising=False) if value is None else monkeypatch.setenv(
            "MILLRACE_SERVICE", value
        )
        assert parser().parse_args(command).service == "grpc://localhost:5050"


@pytest.mark.parametrize("service", [2], indirect=True)
def test_it_can_be_watched_until_an_interrupt(service: Service):
    command = [sys.executable, "-m", "millrace", "status", "--watch", "--json"]
    environment = {**os.environ, "MILLRACE_SERVICE": service.address}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        answers = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=30)
    assert [len(answer["workers"]) for answer in answers] == [2, 2]
    assert (watching.returncode, errors) == (130, "")
