"""Zones on the command line and in the environment."""

import pytest

from millrace.cli import main, parser

WORKER = ["worker", "--dispatcher", "here:1"]
SERVER = ["cache-server", "--dispatcher", "here:1", "--dir", "there"]


@pytest.mark.parametrize("command", [WORKER, SERVER, ["dispatcher"]])
def test_a_process_is_in_the_zone_that_it_is_told_or_that_its_environment_names(command, monkeypatch):
    monkeypatch.delenv("MILLRACE_ZONE", raising=False)
    assert parser().parse_args(command).zone == ""
    monkeypatch.setenv("MILLRACE_ZONE", "eu-central-1a")
    assert parser().parse_args(command).zone == "eu-central-1a"
    assert parser().parse_args([*command, "--zone", "rack-7"]).zone == "rack-7"
    assert parser().parse_args([*command, "--zone", ""]).zone == "", "none, whatever the environment says"
    monkeypatch.setenv("MILLRACE_ZONE", "")
    assert parser().parse_args(command).zone == "", "as a pod has it whose node has no such label"


@pytest.mark.parametrize("name", ["rack 7", "a\n", "x" * 64])
def test_what_is_no_name_is_refused(name, capsys):
    with pytest.raises(SystemExit):
        main([*WORKER, "--zone", name])
    assert "is not the name of a zone, of 63 characters at most and without spaces" in capsys.readouterr().err
