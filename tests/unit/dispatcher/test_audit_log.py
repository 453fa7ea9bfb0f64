import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.control.control_driver import FakePlan, Service
from tests.unit.control.membership.test_resume import states_of

from millrace.control import inputs as inp
from millrace.control.decide import decide
from millrace.dispatcher.audit_log import MOST_CHARS, MOST_NAMES, AuditLog
from millrace.errors import ServiceError
from millrace.protocol import messages as msg
from millrace.protocol.caller import Caller, Rights

ANNA = Caller("anna", "vision")
BERT = Caller("bert", "speech", Rights(run=False))


class Watched(Service):
    """A service whose decisions are written down."""

    def __init__(self, path: Path) -> None:
        super().__init__(FakePlan(8))
        self.log = AuditLog(str(path))

    def say(self, item: Any) -> list[Any]:
        events, actions = decide(self.state, self.observed, item, self.now)
        self.log.decided(item, events, actions)
        self.carry_out(events, actions)
        return actions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_who_did_what(path):
    service = Watched(path)
    service.say(inp.Started("here:1"))
    service.join("first", "a", caller=ANNA, seed=11, host="h", pid=7)
    service.join("second", "a", caller=BERT, seed=11)
    states = states_of(service, [service.consumers["first"]])
    service.join("third", "a", caller=ANNA, seed=11, num_consumers=1, states=states)
    for who in (BERT, ANNA):
        service.say(inp.WorkerSaid("w", msg.WorkerHello("w", "w:1", only="a" if who is ANNA else ""), who))
    service.say(inp.RemovalAsked(["p"] * 30, ANNA))
    service.log.refused(BERT, msg.Failure("AccessDeniedError", "no"))
    service.tick(1.0)
    lines = written(path)
    assert [(line["who"], line["tenant"], line["what"]) for line in lines] == [
        ("anna", "vision", "begin"),
        ("anna", "vision", "join"),
        ("bert", "speech", "refused"),
        ("anna", "vision", "end"),
        ("anna", "vision", "begin"),
        ("anna", "vision", "join"),
        ("anna", "vision", "load"),
        ("bert", "speech", "refused"),
        ("anna", "vision", "work"),
        ("anna", "vision", "remove"),
        ("bert", "speech", "refused"),
    ]
    assert lines[0] | {"at": ""} == {"at": "", "who": "anna", "tenant": "vision", "host": "h", "pid": 7} | {
        "what": "begin",
        "job": "a",
        "of": "vision",
    }
    assert lines[2]["error"] == "AccessDeniedError"
    assert (len(lines[9]["points"]), lines[9]["count"]) == (MOST_NAMES, 30)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_job_that_ends_by_itself_is_written_down_too(path):
    service = Watched(path)
    service.say(inp.Started("here:1"))
    service.join("first", "a", caller=ANNA)
    service.say(inp.ConsumerSaid("first", msg.LeaveJob()))
    assert written(path)[-1]["what"] == "end"
    assert written(path)[-1]["job"] == "a"


def test_lines_are_bounded(path):
    service = Watched(path)
    service.join("first", "a", caller=Caller("x" * 10_000, "y" * 10_000, Rights(run=False)), host="z" * 10_000)
    [line] = path.read_text().splitlines()
    assert len(line) < 6 * MOST_CHARS
    assert json.loads(line)["what"] == "refused"


def test_a_file_that_is_moved_aside_is_made_anew(path):
    log = AuditLog(str(path))
    path.rename(path.with_suffix(".1"))
    log.refused(ANNA, msg.Failure("AccessDeniedError", "no"))
    assert len(written(path)) == 1


def test_a_file_that_cannot_be_written(path, caplog):
    with pytest.raises(ServiceError, match=r"the audit log .* cannot be written: No such file"):
        AuditLog(str(path / "nowhere"))
    log = AuditLog(str(path))
    path.unlink()
    path.symlink_to("elsewhere")
    for _ in range(3):
        log.refused(ANNA, msg.Failure("AccessDeniedError", "no"))
    assert caplog.text.count("is not written: Too many levels of symbolic links") == 1
    assert not (path.parent / "elsewhere").exists()


def test_without_a_file_nothing_is_written(tmp_path):
    AuditLog().refused(ANNA, msg.Failure("AccessDeniedError", "no"))
    assert not list(tmp_path.iterdir())
