"""Cache servers in `millrace status` and among the metrics."""

import io
from typing import Any

from tests.unit.control.control_driver import FakePlan, Service
from tests.unit.display.test_status_tables import BUSY

from millrace.dispatcher.status_report import status
from millrace.display.status import show
from millrace.display.status_metrics import metrics

SERVER = {
    "name": "a1",
    "address": "h:9",
    "host": "h",
    "pid": 7,
    "most_bytes": 4 << 30,
    "seen_s": 1.0,
    "counts": {
        "hits": 700,
        "hit_bytes": 7000,
        "joined": 200,
        "misses": 100,
        "inserted": 100,
        "inserted_bytes": 1000,
        "refused": 3,
        "wrong": 0,
        "passed_on": 1,
        "items": 97,
        "bytes": 1 << 30,
    },
}


def text(status: dict[str, Any]) -> str:
    out = io.StringIO()
    show(status, out)
    return out.getvalue()


def with_server() -> dict[str, Any]:
    return {**BUSY, "source_cache": {"servers": [SERVER]}}


def test_a_cache_server_is_a_sentence():
    said = "cache server h:9: 97 items, 1 GiB of 4 GiB; of 1,000 that were asked for 90 % were not read again"
    assert said in text(with_server())
    assert "cache server" not in text(BUSY)


def test_its_zone_is_said_where_it_is_in_one():
    servers = [{**SERVER, "zone": "east"}, {**SERVER, "zone": "", "address": "i:9"}]
    said = text({**BUSY, "source_cache": {"servers": servers}})
    assert "cache server h:9 in zone east: 97 items" in said
    assert "cache server i:9: 97 items" in said
    service = Service(FakePlan(6))
    report = status(service.state, service.observed, service.now)
    written = metrics({**report, "source_cache": {"servers": servers}})
    assert 'millrace_source_cache_hits_total{server="h:9",zone="east"} 700' in written
    assert 'millrace_source_cache_hits_total{server="i:9"} 700' in written


def test_so_is_that_of_a_worker():
    workers = [{**BUSY["workers"][0], "zone": "east"}]
    assert f"{workers[0]['host']}:{workers[0]['pid']} in zone east" in text({**BUSY, "workers": workers})


def test_a_cache_server_has_metrics():
    service = Service(FakePlan(6))
    said = status(service.state, service.observed, service.now)
    assert "source_cache" not in metrics(said)
    written = metrics({**said, "source_cache": {"servers": [SERVER]}})
    assert 'millrace_source_cache_hits_total{server="h:9"} 700' in written
    assert 'millrace_source_cache_bytes{server="h:9"} 1073741824' in written
    assert "# TYPE millrace_source_cache_passed_on_total counter" in written


def test_data_in_chunks_are_a_sentence():
    data: dict[str, Any] = {
        "data": "ab",
        "chunks": 10,
        "kept": [3, 4],
        "jobs": {"b": 4, "a": 3},
        "why": "chunk 4 saves most",
    }
    data["why_chunks"] = "two of them fit"
    said = text({**BUSY, "source_cache": {"servers": [], "data": [data]}})
    kept = "of which 3 and 4 are kept (chunk 4 saves most)"
    assert f"data in 10 chunks (two of them fit), {kept}: a in chunk 3, b in chunk 4" in " ".join(said.split())
