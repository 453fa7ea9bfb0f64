"""Autoscaling policies on clusters that hold fewer workers than a job needs."""

import json

import pytest

from millrace.cli import main
from millrace.policies.decision import Decision
from millrace.policies.scaling import capacity
from millrace.policies.scaling.capacity import Capacity
from millrace.policies.scaling.scaling_policies import KINDS
from millrace.simulation import full_cluster

SELDOM = 0.7
"""Share of the last quarter of an hour, with one try of four minutes in it, or of eight for a job that looks at other
numbers on the way, in which more is asked for than there is."""


@pytest.mark.parametrize("kind", KINDS)
def test_no_policy_asks_for_what_is_not_there_for_ever(kind):
    assert full_cluster.run(range(30), kind).pending <= SELDOM


@pytest.mark.parametrize("kind", ["millrace", "cheapest"])
def test_what_there_is_is_used_and_what_comes_back(kind):
    report = full_cluster.run(range(30), kind)
    assert (report.settled, report.recovered) == (1.0, 1.0), report.wrong


def test_a_cluster_whose_room_is_not_found_out_is_found_out(monkeypatch):
    monkeypatch.setattr(capacity, "watch", lambda known, short, *_, **__: (known, short))
    assert full_cluster.run(range(10)).pending == 1.0


def test_a_limit_that_is_never_tried_again_is_found_out(monkeypatch):
    def for_ever(known, planned, there, waited_s, now, *, least):
        return Decision(Capacity(max(least, there), float("inf")), "")

    monkeypatch.setattr(capacity, "found", for_ever)
    assert full_cluster.run(range(10)).recovered < 0.5


def test_the_command_says_both(capsys):
    assert main(["simulate", "autoscale", "--seeds", "2", "--policy", "millrace"]) == 0
    assert "workers pending" in capsys.readouterr().out
    assert main(["simulate", "autoscale", "--seeds", "2", "--policy", "hpa", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hpa"]["full_cluster"]["jobs"] == 2
