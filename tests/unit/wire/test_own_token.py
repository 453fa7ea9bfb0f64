"""A user's own token: drawn once, kept for nobody else, and told to nobody else."""

from __future__ import annotations

import ipaddress
import os
import stat
import tempfile
from pathlib import Path

import pytest

from millrace.errors import AuthenticationError, ServiceError
from millrace.private_folder import make_private
from millrace.wire import own_token
from millrace.wire.listeners import Listener
from millrace.wire.own_token import check_listener, resolve


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    return tmp_path / "state" / "millrace"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_drawn_once_and_kept_for_nobody_else(state):
    token = own_token.own_token()
    assert own_token.own_token() == token
    assert len(token) == 64
    assert [each.name for each in state.iterdir()] == ["token"]
    assert (mode(state), mode(state / "token")) == (0o700, 0o600)


def test_whoever_is_faster_draws_it_for_all(state, monkeypatch):
    link = os.link

    def late(draft: str, path: str) -> None:
        Path(path).write_text("f" * 64)
        link(draft, path)

    monkeypatch.setattr(os, "link", late)
    assert own_token.own_token() == "f" * 64
    assert [each.name for each in state.iterdir()] == ["token"]


def test_what_others_could_read_is_closed_to_them(state):
    token = own_token.own_token()
    os.chmod(state, 0o755)
    os.chmod(state / "token", 0o644)
    assert own_token.own_token() == token
    assert (mode(state), mode(state / "token")) == (0o700, 0o600)


def test_without_a_home_it_lies_among_temporary_files(state, tmp_path):
    state.parent.write_text("no folder")
    token = own_token.own_token()
    assert (tmp_path / "temporary" / f".millrace-{os.geteuid()}" / "token").read_text() == token


def test_what_is_somebody_elses_is_not_believed(state, monkeypatch):
    own_token.own_token()
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    monkeypatch.setattr("millrace.private_folder.ROOT", -1)
    with pytest.raises(ServiceError, match=r"cannot be kept \(.*belongs to another user .*set MILLRACE_TOKEN or pass"):
        own_token.own_token()


@pytest.mark.parametrize("content", ["", "short"])
def test_a_damaged_one_is_not_replaced_under_running_services(state, tmp_path, content):
    own_token.own_token()
    (state / "token").write_text(content)
    (tmp_path / "temporary").write_text("no folder")
    with pytest.raises(ServiceError, match="the token in it is damaged; remove it while no service runs"):
        own_token.own_token()


def test_a_link_is_not_followed(state, tmp_path):
    state.mkdir(parents=True)
    (tmp_path / "mine").write_text("e" * 64)
    (state / "token").symlink_to(tmp_path / "mine")
    (tmp_path / "temporary").write_text("no folder")
    with pytest.raises(ServiceError, match="Too many levels of symbolic links"):
        own_token.own_token()


@pytest.mark.usefixtures("state")
def test_where_it_holds():
    token = own_token.own_token()
    for address in ("127.0.0.1:5050", "grpc://localhost:5050", "[::1]:5050"):
        assert resolve(address, None) == resolve(address, "") == (token, True)
        assert resolve(address, "secret") == ("secret", False)
    for address in ("10.0.0.7:5050", "grpc://dispatcher:5050", "0.0.0.0:5050"):
        assert resolve(address, None) == resolve(address, "") == (None, False)
        assert resolve(address, "secret") == ("secret", False)


def test_it_is_told_to_nobody_who_took_the_port(monkeypatch):
    here = ipaddress.ip_address("127.0.0.1")
    sockets = {5050: {Listener(here, os.geteuid())}, 5051: {Listener(here, 4242)}, 5053: {Listener(here, 0)}}
    monkeypatch.setattr(own_token, "listeners", lambda port: sockets.get(port, set()))
    for port in (5050, 5052, 5053):
        check_listener(f"127.0.0.1:{port}")
        check_listener(f"localhost:{port}")
    with pytest.raises(
        AuthenticationError, match=r"127\.0\.0\.1:5051 belongs to another user .*\(uid 4242\), who is not"
    ):
        check_listener("127.0.0.1:5051")


ADDRESSES = ("127.0.0.1", "127.0.0.2", "10.0.0.7", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1")


@pytest.mark.parametrize(
    ("host", "in_the_way"),
    [
        ("127.0.0.1", {"127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"}),
        ("127.0.0.2", {"127.0.0.2", "0.0.0.0", "::"}),
        ("[::1]", {"::1", "::"}),
        ("localhost", set(ADDRESSES)),
    ],
)
def test_a_stranger_who_listens_elsewhere_at_the_same_port_is_not_in_the_way(monkeypatch, host, in_the_way):
    found = set()
    for address in ADDRESSES:
        there = {Listener(ipaddress.ip_address(address), 4242)}
        monkeypatch.setattr(own_token, "listeners", lambda port, there=there: there)
        try:
            check_listener(f"{host}:5050")
        except AuthenticationError:
            found.add(address)
    assert found == in_the_way


@pytest.mark.parametrize("home", ["home", ""])
def test_a_folder_that_depends_on_the_current_directory_is_none(tmp_path, monkeypatch, home):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setattr(os.path, "expanduser", lambda path: str(tmp_path / home) if home else path)
    own_token.own_token()
    kept = tmp_path / "home/.local/state/millrace" if home else tmp_path / f"temporary/.millrace-{os.geteuid()}"
    assert [each.parent for each in tmp_path.rglob("token")] == [kept]


def test_a_folder_that_holds_other_files_keeps_its_mode_and_is_refused_if_others_write_there(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.chmod(0o775)
    (folder / "journal.db").touch()
    kept = {"journal.db"}.__contains__
    make_private(str(folder), kept)
    assert mode(folder) == 0o700
    (folder / "train.py").touch()
    folder.chmod(0o755)
    make_private(str(folder), kept)
    assert mode(folder) == 0o755
    folder.chmod(0o775)
    with pytest.raises(PermissionError, match=r"others may write there \(mode 775\).*such as train\.py: name a folder"):
        make_private(str(folder), kept)
    assert mode(folder) == 0o775


def test_a_folder_becomes_its_owners_alone(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    make_private(str(folder))
    assert mode(folder) == 0o700
    os.chmod(folder, 0o777)
    make_private(str(folder))
    assert mode(folder) == 0o700
    (tmp_path / "link").symlink_to(folder)
    make_private(str(tmp_path / "link"))
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    monkeypatch.setattr("millrace.private_folder.ROOT", -1)
    with pytest.raises(PermissionError, match="it belongs to another user"):
        make_private(str(folder))
