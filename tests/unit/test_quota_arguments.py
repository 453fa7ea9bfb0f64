"""How many workers tenants may have, as services take it, and what they say of mistakes."""

from typing import Any

import pytest

import millrace as mr
from millrace.cli import parser
from millrace.clusters.service import Service


@pytest.fixture
def options(monkeypatch):
    """What the last dispatcher would be started with, as its command line reads it."""
    started: list[Any] = []
    monkeypatch.setattr(Service, "__init__", lambda self, options, token, tls: started.append(options))
    return lambda: parser().parse_args(["dispatcher", *started[-1]])


@pytest.mark.parametrize("service", [mr.LocalService, mr.RayService])
def test_a_dispatcher_is_told_of_them_as_they_are(service, options):
    service(1, 2, quotas={"vision": 8, "a=b": 1})
    assert dict(options().quotas) == {"vision": 8, "a=b": 1}
    service(1, 2)
    assert options().quotas == []


@pytest.mark.parametrize("quotas", [{"": 1}, {"vision": 0}, {"vision": 1.5}, {"vision": "8"}, {7: 1}, {"vision": True}])
def test_a_mistake_is_named_before_anything_starts(quotas, options):
    with pytest.raises(mr.PipelineError, match=r"quotas are whole numbers .* from 1 on, by the names of tenants, not"):
        mr.LocalService(quotas=quotas)
