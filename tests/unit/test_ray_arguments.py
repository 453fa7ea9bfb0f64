"""A service on Ray as the command line and ``RayService`` take it, and what they say of mistakes; without Ray."""

import argparse
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.cli import main
from millrace.cli.options import amount, named_amount
from millrace.clusters.service import Service


@pytest.fixture
def started(monkeypatch):
    """What a dispatcher would be started with: options and token."""
    calls: list[Any] = []
    monkeypatch.setattr(Service, "__init__", lambda self, options, token, tls: calls.append((options, token)))
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.delenv("MILLRACE_TOKEN", raising=False)
    return calls


def connected(*, by_client: bool, cpus: float = 8) -> Any:
    client = SimpleNamespace(ray=SimpleNamespace(is_connected=lambda: by_client))
    return SimpleNamespace(
        is_initialized=lambda: True,
        util=SimpleNamespace(client=client),
        cluster_resources=lambda: {"CPU": cpus},
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"),
    )


def test_amounts_are_read():
    assert [amount("0"), amount("0.5"), amount("3")] == [0, 0.5, 3]
    assert named_amount("near=the_data=2") == ("near=the_data", 2)


@pytest.mark.parametrize("text", ["", "-1", "two", "nan", "inf"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}' is not a number from 0 on"):
        amount(text)


@pytest.mark.parametrize("text", ["near", "=1", ""])
def test_a_resource_has_a_name_and_an_amount(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not NAME=AMOUNT"):
        named_amount(text)


def test_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "millrace.clusters.ray", raising=False)
    assert main(["dispatcher", "--cluster", "ray", "--workers", "1"]) == 1
    assert "pip install 'millrace[ray]'" in capsys.readouterr().err


def test_a_service_asks_for_what_it_was_told(started):
    mr.RayService(max_workers=3, num_cpus=2, memory=1000, resources={"near": 1}, work_dir="/there", port=7)
    ((options, token),) = started
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    assert pairs == {
        "--cluster": "ray",
        "--ray-address": "auto",
        "--worker-cpus": "2",
        "--worker-memory": "1000",
        "--worker-resource": "near=1",
        "--workers": "1-3",
        "--port": "7",
        "--work-dir": "/there",
        "--scaling-policy": "millrace",
    }
    assert len(token) == 64


def test_nodes_keep_what_is_read_where_they_are_told(started):
    mr.RayService(1, 1, source_cache="/nvme/millrace", source_cache_bytes=500)
    ((options, _),) = started
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    assert (pairs["--source-cache"], pairs["--source-cache-bytes"]) == ("/nvme/millrace", "500")
    with pytest.raises(mr.PipelineError, match="say where it is, with source_cache="):
        mr.RayService(1, 1, source_cache_bytes=500)


def test_a_token_is_drawn_only_where_there_is_none(started, monkeypatch):
    mr.RayService(1, 1, token="mine")
    monkeypatch.setenv("MILLRACE_TOKEN", "ours")
    mr.RayService(1, 1)
    assert [token for _, token in started] == ["mine", "ours"]


def test_a_driver_gets_workers_where_it_is_connected(started, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", connected(by_client=False))
    mr.RayService()
    mr.RayService(ray_address="10.0.0.2:6379")
    given = [dict(zip(options[::2], options[1::2], strict=True))["--ray-address"] for options, _ in started]
    assert given == ["10.0.0.1:6379", "10.0.0.2:6379"]


@pytest.mark.parametrize(
    ("arguments", "most"),
    [({}, 5), ({"num_cpus": 2}, 2), ({"min_workers": 7}, 7), ({"resources": {"near": 1}}, 1), ({"num_cpus": 0}, 1)],
)
def test_without_a_number_there_may_be_as_many_as_have_room(started, monkeypatch, arguments: dict[str, Any], most):
    monkeypatch.setitem(sys.modules, "ray", connected(by_client=False, cpus=5))
    mr.RayService(**arguments)
    ((options, _),) = started
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given["--workers"] == f"{arguments.get('min_workers', 1)}-{most}"


def test_without_a_connection_the_number_has_to_be_said(started):
    with pytest.raises(mr.PipelineError, match=r"max_workers has to be said"):
        mr.RayService()


def test_a_driver_behind_rays_client_is_told_where_to_run(started, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", connected(by_client=True))
    with pytest.raises(mr.ServiceError, match="ray job submit"):
        mr.RayService()
    assert started == []
