"""How many workers, jobs and bytes tenants may have, as services take it, and what they say of mistakes."""

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
    given = {"vision": 8, "a=b": 1}
    service(1, 2, quotas=given, job_quotas={"vision": 2}, byte_quotas={"a=b": 1 << 40})
    assert dict(options().quotas) == given
    assert dict(options().quota_jobs) == {"vision": 2}
    assert dict(options().quota_bytes) == {"a=b": 1 << 40}
    service(1, 2)
    assert options().quotas == options().quota_jobs == options().quota_bytes == []


@pytest.mark.parametrize("quotas", [{"": 1}, {"vision": 0}, {"vision": 1.5}, {"vision": "8"}, {7: 1}, {"vision": True}])
@pytest.mark.parametrize(("name", "what"), [("quotas", "workers"), ("job_quotas", "jobs"), ("byte_quotas", "bytes")])
def test_a_mistake_is_named_before_anything_starts(quotas, name, what, options):
    said = rf"{name} are whole numbers of {what} from 1 on, by the names of tenants, not"
    with pytest.raises(mr.PipelineError, match=said):
        mr.LocalService(**{name: quotas})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quota-jobs", "vision"], "'vision' is not a tenant and a number, such as vision=8"),
        (["--quota-jobs", "vision=0"], "0 is less than 1"),
        (["--quota-bytes", "=1GiB"], "'=1GiB' is not a tenant and a size, such as vision=200GiB"),
        (["--quota-bytes", "vision=much"], "'much' is not a size such as"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(words, said, capsys):
    with pytest.raises(SystemExit):
        parser().parse_args(["dispatcher", *words])
    assert said in capsys.readouterr().err


def test_sizes_have_units_on_the_command_line():
    assert parser().parse_args(["dispatcher", "--quota-bytes", "vision=2GiB"]).quota_bytes == [("vision", 2 << 30)]


def test_bytes_of_a_cache_that_is_not_there_are_refused():
    with pytest.raises(mr.PipelineError, match="say where it is, with --cache-dir"):
        options = parser().parse_args(["dispatcher", "--quota-bytes", "vision=2GiB"])
        options.run(options)
