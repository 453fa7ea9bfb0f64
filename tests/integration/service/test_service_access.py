"""Rights in real processes: with each, without it, with another's, and as it is taken away while it is used."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.integration.service.service_driving import Service, wait_for_end

import millrace as mr
from millrace.cli import main
from millrace.client.status_query import fetch_status, remove_blocks
from millrace.clusters.child_process import hang_up, reap, spawn
from millrace.errors import AccessDeniedError, AuthenticationError
from millrace.protocol import messages as msg
from millrace.version import __version__
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.token_keys import draw_token, keys_of

TOKENS = {name: draw_token() for name in ("anna", "bert", "cara", "dora", "root", "node", "emil")}
PEOPLE: dict[str, dict[str, Any]] = {
    "anna": {"tenant": "vision"},
    "bert": {"tenant": "vision", "join": "own", "status": "own"},
    "cara": {"tenant": "vision", "run": False},
    "dora": {"tenant": "speech"},
    "emil": {"tenant": "vision"},
    "root": {"tenant": "ops", "admin": True},
    "node": {"tenant": "ops", "work": True, "run": False, "join": "none", "control": "none", "status": "none"},
}
NUMBERS = mr.Dataset.range(1000).map(lambda number: np.full(8, number)).batch(10)


def write(path: Path, people: dict[str, dict[str, Any]]) -> None:
    def value(it: object) -> str:
        return str(it).lower() if isinstance(it, bool) else repr(it)

    lines = []
    for name, fields in people.items():
        lines += ["[[token]]", f'name = "{name}"', f'hash = "{keys_of(TOKENS[name])}"']
        lines += [f"{field} = {value(it)}" for field, it in fields.items()]
    draft = path.with_suffix(".draft")
    draft.write_text("\n".join(lines))
    draft.chmod(0o600)
    draft.replace(path)


class Guarded(NamedTuple):
    service: Service
    tokens: Path

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.tokens.parent / "audit").read_text().splitlines()]

    def job(self, who: str, name: str, dataset: Any = NUMBERS, **options: Any) -> Any:
        return dataset.distribute(self.service.address, token=TOKENS[who], job_name=name, seed=1, **options)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    tokens = tmp_path / "tokens.toml"
    write(tokens, PEOPLE)
    options = ["--tokens", str(tokens), "--audit", str(tmp_path / "audit")]
    with Service(local="1", cache_dir=tmp_path / "cache", options=options) as service:
        yield Guarded(service, tokens)


def refused(error: type[Exception], said: str, act: Callable[[], Any]) -> None:
    with pytest.raises(error, match=said):
        act()


def begin(dataset: Any) -> None:
    next(iter(dataset))


def test_every_right_with_it_without_it_and_with_anothers(guarded):
    service = guarded.service
    with guarded.job("anna", "a", num_consumers=2) as mine, iter(mine) as first:
        next(first)
        listed = {
            who: {job["name"]: job["division"]["tenant"] for job in fetch_status(service.address, TOKENS[who])["jobs"]}
            for who in ("anna", "bert", "cara", "dora", "root")
        }
        seen = {"a": "vision"}
        assert listed == {"anna": seen, "bert": {}, "cara": seen, "dora": {}, "root": seen}
        said = 'lacks the right status = "own"'
        refused(AccessDeniedError, said, lambda: fetch_status(service.address, TOKENS["node"]))
        for who, right in (("bert", 'join = "tenant"'), ("dora", 'join = "all"')):
            said = f"may not join job 'a', .* begun by 'anna': its token lacks the right {right}"
            with guarded.job(who, "a", num_consumers=2) as theirs:
                refused(AccessDeniedError, said, functools.partial(begin, theirs))
        with guarded.job("cara", "a", num_consumers=2) as theirs, iter(theirs) as second:  # need not run anything
            next(second)
    for who, options, said in (
        ("cara", {}, "may not begin job 'b': its token lacks the right run = true"),
        ("anna", {"tenant": "speech"}, "asks for a job of tenant 'speech', which takes the right admin"),
    ):
        with guarded.job(who, "b", **options) as theirs:
            refused(AccessDeniedError, said, functools.partial(begin, theirs))
    with guarded.job("root", "d", tenant="speech") as theirs:
        assert len(list(theirs.epochs(1))) == 100
    for token in (draw_token(), keys_of(TOKENS["anna"]).stored.hex()):
        refused(AuthenticationError, "refused the token", functools.partial(fetch_status, service.address, token))


def test_a_state_is_loaded_into_a_job_by_who_controls_it(guarded):
    endless = NUMBERS.repeat()
    with guarded.job("anna", "a", endless) as mine, iter(mine) as first:
        next(first)
        state = first.state_dict()
        with guarded.job("emil", "a", endless) as theirs, iter(theirs) as thief:
            said = "may not load a state into job 'a', .* lacks the right control = \"tenant\""
            refused(AccessDeniedError, said, lambda: thief.load_state_dict(state))
        next(first)


def test_being_a_worker_and_taking_the_place_of_one(guarded):
    service = guarded.service
    [worker] = service.until(lambda status: status["workers"])
    hello = msg.WorkerHello(worker["id"], "127.0.0.1:1", version=__version__)
    with ControlChannel(service.address, TOKENS["anna"]) as channel:
        channel.connect()
        session = channel.open_session(msg.ToWorker)
        session.send(hello)
        refused(AccessDeniedError, "may not be a worker: its token lacks the right work = true", lambda: next(session))
    said = guarded.tokens.with_name("said")
    with said.open("wb") as stderr:
        process = spawn(["worker", "--dispatcher", service.address], worker=True, token=TOKENS["anna"], stderr=stderr)
    try:
        assert wait_for_end(process) == 1  # as it would be refused for ever
    finally:
        hang_up(process)
        reap(process)
    assert "may not be a worker: its token lacks the right work = true" in said.read_text()
    refusals = [line["who"] for line in guarded.audited() if line["what"] == "refused"]
    assert refusals == ["anna", "anna"]
    with guarded.job("anna", "a") as mine:
        assert len(list(mine.epochs(1))) == 100
    [there] = service.status()["workers"]
    assert (there["pid"], there["id"]) == (worker["pid"], worker["id"])
    with ControlChannel(service.address, TOKENS["node"]) as channel:
        channel.connect()
        session = channel.open_session(msg.ToWorker)
        session.send(msg.WorkerHello("another", "127.0.0.1:1", version=__version__))
        assert isinstance(next(session), msg.WorkerWelcome)


def test_removing_what_a_tenant_has_kept(guarded):
    service = guarded.service
    kept = mr.Dataset.range(100).map(lambda number: np.full(50, number)).cache()
    with guarded.job("anna", "a", kept) as mine:
        assert len(list(mine.epochs(1))) == 100
    service.until(lambda status: sum(point["items"] for point in status["cache"]["points"]) == 100)
    points = [point["point"] for point in service.status()["cache"]["points"]]
    assert [point["point"] for point in fetch_status(service.address, TOKENS["anna"])["cache"]["points"]] == points
    assert not fetch_status(service.address, TOKENS["dora"])["cache"]["points"]
    for who in ("anna", "dora"):
        refused(
            AccessDeniedError,
            "may not delete what tenant 'vision' has kept: its token lacks the right remove",
            functools.partial(remove_blocks, service.address, points, TOKENS[who]),
        )
    write(guarded.tokens, PEOPLE | {"anna": {"tenant": "vision", "remove": "tenant"}})
    assert remove_blocks(service.address, points, TOKENS["anna"]) > 0
    found = [(line.get("who", ""), line["what"]) for line in guarded.audited()]
    work = ("worker", "work")
    said = [("anna", "begin"), ("anna", "join"), ("anna", "refused"), ("dora", "refused"), ("anna", "remove")]
    assert [each for each in found if each != work and each[1] != "end"] == said
    assert work in found


def test_a_token_that_is_taken_away_ends_what_it_began(guarded):
    with guarded.job("anna", "a", NUMBERS.repeat()) as mine, iter(mine) as reading:
        next(reading)
        write(guarded.tokens, {name: fields for name, fields in PEOPLE.items() if name != "anna"})
        with pytest.raises(AuthenticationError, match="the token of 'anna' is not valid any more"):
            for _ in reading:
                pass
    with guarded.job("anna", "b") as mine:
        refused(AuthenticationError, "refused the token", lambda: begin(mine))


def test_a_right_that_is_taken_away_is_missed_by_who_uses_it(guarded):
    with guarded.job("anna", "a", NUMBERS.repeat()) as mine, iter(mine) as reading:
        next(reading)
        write(guarded.tokens, PEOPLE | {"anna": {"tenant": "vision", "join": "none"}})
        with pytest.raises(AccessDeniedError, match=r'may not join job .* lacks the right join = "own"'):
            for _ in reading:
                pass


def test_one_that_has_another_right_goes_on(guarded):
    """The session ends, the consumer comes back by itself, and no element is missing or comes twice."""
    with guarded.job("anna", "a", deterministic=True) as mine, iter(mine) as reading:
        got = [next(reading)]
        write(guarded.tokens, PEOPLE | {"anna": {"tenant": "vision", "remove": "tenant"}})
        got += list(reading)
    assert sorted(int(number) for batch in got for number in batch[:, 0]) == list(range(1000))


def test_a_service_for_other_machines_needs_a_token_or_a_file_of_them(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MILLRACE_TOKEN", raising=False)
    assert main(["dispatcher", "--host", "0.0.0.0", "--port", "0"]) == 1
    assert "without a token" in capsys.readouterr().err
    assert main(["dispatcher", "--port", "0", "--tokens", str(tmp_path / "none.toml")]) == 1
    assert "the file of tokens" in capsys.readouterr().err
