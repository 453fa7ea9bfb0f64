"""Tokens: what is kept of them, what a file of them may say, and what happens as it changes."""

import os
from functools import partial
from pathlib import Path

import pytest

from millrace.cli import main
from millrace.errors import AuthenticationError, ServiceError, ServiceUnreachableError
from millrace.protocol.caller import ADMINISTRATOR, Caller, Rights
from millrace.wire.token_keys import draw_token, keys_of, parse_keys
from millrace.wire.token_registry import WORKER, TokenEntry, TokenRegistry, parse_tokens


def entry(token: str = "secret", name: str = "anna", *lines: str) -> str:
    return "\n".join(["[[token]]", f'name = "{name}"', 'tenant = "vision"', f'hash = "{keys_of(token)}"', *lines, ""])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(entry())
    path.chmod(0o600)
    return path


def write(file: Path, text: str) -> None:
    """As editors do: another file in its place."""
    draft = file.with_suffix(".draft")
    draft.write_text(text)
    draft.chmod(0o600)
    draft.replace(file)


def test_keys_say_nothing_of_a_token_and_know_it_again():
    token = draw_token()
    assert len(token) == 46
    assert draw_token() != token
    keys = keys_of(token)
    assert parse_keys(str(keys)) == keys
    assert token not in str(keys)
    assert keys == keys_of(token) != keys_of(f"{token}.")
    # RFC 5802: StoredKey = H(ClientKey), and a name that is neither.
    assert keys.name not in str(keys)


@pytest.mark.parametrize("text", ["", "secret", "sha256:00:00", "scram-sha-256:00:00", f"scram-sha-256:{'z' * 64}:"])
def test_hashes_that_are_none(text):
    with pytest.raises(ValueError, match=r"a hash (is|has)|non-hexadecimal"):
        parse_keys(text)


def test_an_entry_has_rights():
    found = parse_tokens(entry("secret", "anna", 'join = "all"', 'read = ["ads"]', "run = false", 'remove = "tenant"'))
    rights = Rights(run=False, join="all", read=("ads",), remove="tenant")
    assert [each.caller for each in found.values()] == [Caller("anna", "vision", rights)]
    assert parse_tokens("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[token]", "it has to be TOML with entries"),
        ("[[tokens]]\nname = 'a'", "it has to be TOML with entries"),
        (entry("a", "anna", "joins = 'all'"), r"entry 1 \(anna\): .*joins"),
        (entry("a", "anna", "join = 'some'"), r"entry 1 \(anna\): Invalid enum value 'some'"),
        (entry("a", "anna", "remove = 'own'"), r"entry 1 \(anna\): Invalid enum value 'own'"),
        (entry("a", "anna", "admin = 'yes'"), r"entry 1 \(anna\): Expected `bool`"),
        (entry("a", "administrator"), "nobody else is called administrator or worker"),
        (entry("a", ""), "name and tenant are words"),
        (entry("a") + entry("a", "bert"), r"entry 2 \(bert\) has the token of another entry"),
        ("[[token]]\nname = 'a'\nhash = 'secret'", r"entry 1 \(a\): a hash is scram-sha-256"),
        ("[[token]]\nname = 'a'", r"entry 1 \(a\): .*hash"),
    ],
)
def test_mistakes_in_the_file_are_named(text, said):
    with pytest.raises(ServiceError, match=said):
        parse_tokens(text)


def found(registry: TokenRegistry, token: str) -> TokenEntry | None:
    return registry.find(keys_of(token).name)


def known(registry: TokenRegistry, token: str) -> TokenEntry:
    entry = found(registry, token)
    assert entry is not None
    assert entry.keys == keys_of(token)
    return entry


def test_who_has_which_token(file):
    registry = TokenRegistry(str(file), "shared", "workers")
    assert known(registry, "secret").caller.name == "anna"
    assert known(registry, "shared").caller == ADMINISTRATOR
    assert known(registry, "workers").caller == WORKER
    assert found(registry, "Secret") is None
    assert registry.find("secret") is None
    assert found(TokenRegistry(), "anything") is None
    registry = TokenRegistry(administrator="one", worker="one")
    assert known(registry, "one").caller == ADMINISTRATOR


def test_a_token_is_exchanged_for_another_without_a_restart(file):
    registry = TokenRegistry(str(file))
    before = known(registry, "secret")
    write(file, entry() + entry("newer"))
    assert known(registry, "newer").caller == before.caller
    assert registry.ended(before) is None
    write(file, entry("newer"))
    assert registry.refresh()
    assert not registry.refresh()
    ended = registry.ended(before)
    assert isinstance(ended, AuthenticationError)
    assert "the token of 'anna' is not valid any more" in str(ended)
    assert found(registry, "secret") is None
    assert registry.ended(known(registry, "newer")) is None


def test_other_rights_have_the_peer_come_back(file):
    registry = TokenRegistry(str(file))
    before = known(registry, "secret")
    write(file, entry("secret", "anna", 'join = "none"'))
    registry.refresh()
    assert isinstance(registry.ended(before), ServiceUnreachableError)
    assert known(registry, "secret").caller.rights.join == "none"


def test_a_mistake_changes_nothing_and_is_logged_once(file, caplog):
    registry = TokenRegistry(str(file))
    spoils = "[[token]", "", entry("newer") + "x"
    for spoil in (*(partial(write, file, text) for text in spoils), file.unlink):
        caplog.clear()
        spoil()
        for _ in range(3):
            assert known(registry, "secret").caller.name == "anna"
        assert caplog.text.count("Its former entries hold") == 1
    write(file, entry("newer"))
    assert known(registry, "newer").caller.name == "anna"


def test_a_file_that_others_may_write_is_refused(file):
    file.chmod(0o620)
    with pytest.raises(ServiceError, match=r"tokens.toml cannot be used: others may write it, .*: chmod go-w"):
        TokenRegistry(str(file))
    with pytest.raises(ServiceError, match=r"cannot be used: .*No such file"):
        TokenRegistry(str(file) + "?")


def test_the_command_draws_a_token_and_its_entry(tmp_path, capsys):
    assert main(["token", "new", "anna", "--tenant", "vision"]) == 0
    out, err = capsys.readouterr()
    token = err.split()[-1]
    [made] = parse_tokens(out).values()
    assert made.keys == keys_of(token)
    assert made.caller == Caller("anna", "vision")
    path = tmp_path / "token"
    for kind, rights in (("--admin", Rights(admin=True)), ("--worker", WORKER.rights)):
        path.unlink(missing_ok=True)
        assert main(["token", "new", "Jürgen 🙂", kind, "--out", str(path)]) == 0
        out, err = capsys.readouterr()
        assert (err, os.stat(path).st_mode & 0o777) == ("", 0o600)
        [made] = parse_tokens(out).values()
        assert made.keys == keys_of(path.read_text().strip())
        assert made.caller == Caller("Jürgen 🙂", "default", rights)
    assert main(["token", "new", "anna", "--out", str(path)]) == 1
    out, err = capsys.readouterr()
    assert (out, "the token cannot be written to" in err) == ("", True)
    assert main(["token", "new", "worker"]) == 1
    assert capsys.readouterr().out == ""
