"""Estimates as they are printed, and beside what was counted."""

import io
import json
import os
import re
import shlex
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from millrace.blocks.samples.counters import SampleCounts
from millrace.cli import main
from millrace.clusters.service import scaling_options
from millrace.display import estimate
from millrace.display.cost import read_prices
from millrace.errors import PipelineError
from millrace.policies.cost_estimate import Conditions, Training
from millrace.policies.prices import PROVIDERS, BucketPrices, PriceTable
from millrace.sources import listing

ASKED = ["cost", "estimate", "--objects", "1000000", "--bytes", "100GiB", "--epochs", "10", "--rate", "2000"]
PRINTED = """\
1,000,000 objects of 100 GiB in all; 10 epochs of 8 min 20 s of computing, on 2 hosts.
Costs are in EUR.

                        requests         time  storage  fees  disks  compute  waiting  workers  together
local disk             2,002,000   1 h 53 min     2.00  0.81  20.00     5.56     2.01     0.00     30.37
bucket                10,002,000  18 h 47 min     2.00  4.01   0.00     5.56    69.58     0.00     81.15
bucket with prefetch   9,998,370   4 h 20 min     2.00  4.01   0.40     5.56    11.83     0.00     23.80
packed                 1,282,602   1 h 23 min     4.00  0.64   0.00     5.56     0.00     0.02     10.21
service, 4 workers    10,001,000   1 h 23 min     2.00  4.00   0.00     5.56     0.00     0.69     12.26

Cheapest: packed. Fastest: packed.

local disk: every host has all data on a disk of its own, and copies it there once.
bucket: 4 processes of each host read one object at a time.
bucket with prefetch: 16 requests at a time, into a cache that holds 20,000 objects on each host.
packed: a worker packs once and reads each object; packs are stored beside the objects, and pieces are shuffled.
service, 4 workers: 64 requests at a time in each worker; the dispatcher costs as much as a worker.

Assumed: a request waits 50 ms; a host gets 1 GiB a second from the bucket and 125 MiB a second from its disk.
The data is stored for 1 month, and the hosts are in the bucket's region.
Prices: here, of 2026-11-23; --json says where each is from.
"""
PRICES = """\
name = "here"
currency = "EUR"
[bucket]
gib_month = 0.02
thousand_writes = 0.005
thousand_reads = 0.0004
[disk]
gib_month = 0.1
[worker]
cores = 2
hour = 0.1
[host]
cores = 8
hour = 2.0
[sources."host.hour"]
date = "2026-11-23"
source = "our own"
"""


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    return str(path)


@pytest.fixture
def written(prices, tmp_path, capsys):
    """File that ``millrace cost estimate --json`` wrote."""
    assert main([*ASKED, "--prices", prices, "--workers", "3", "--json"]) == 0
    path = tmp_path / "estimate.json"
    path.write_text(capsys.readouterr().out)
    return str(path)


def test_what_is_said_of_costs_before_estimate_counts(prices, written, capsys):
    assert main(["cost", "--json", "--prices", prices, *ASKED[1:], "--workers", "3"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path(written).read_text())


def test_places_to_read_from_are_compared_in_a_table(prices, capsys):
    assert main([*ASKED, "--hosts", "2", "--preprocess", "0.004", "--prices", prices]) == 0
    assert capsys.readouterr().out == PRINTED


def test_the_example_of_the_page_is_what_is_printed(capsys):
    page = (Path(__file__).parents[3] / "docs/cost.md").read_text()
    block = re.search(r"^```console\n\$ (millrace cost estimate .*?[^\\])\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert main(shlex.split(block[1].replace("\\\n", " "))[1:]) == 0
    assert capsys.readouterr().out == block[2]


def test_json_has_all_that_it_rests_on(written):
    with open(written) as file:
        found = json.load(file)
    assert [option["name"] for option in found["options"]] == [
        "local disk",
        "bucket",
        "bucket with prefetch",
        "packed",
        "service, 3 workers",
    ]
    assert found["training"]["objects"] == 1_000_000
    assert found["training"]["compute_s"] == 500
    assert found["conditions"]["latency_s"] == 0.05
    assert found["prices"]["sources"]["host.hour"]["date"] == "2026-11-23"
    for option in found["options"]:
        parts = {name: amount for name, amount in option["charges"].items() if name != "total"}
        assert option["charges"]["total"] == pytest.approx(sum(parts.values()))
        consumed = option["consumed"]
        assert consumed["requests"] == consumed["lists"] + consumed["writes"] + consumed["reads"]
    assert {found["cheapest"], found["fastest"]} <= {option["name"] for option in found["options"]}
    assert isinstance(estimate.read(written), estimate.Report)


def test_what_is_listed_is_counted(tmp_path, prices, capsys):
    for number in range(7):
        (tmp_path / f"{number}.bin").write_bytes(bytes(1000))
    assert main(["cost", "estimate", f"{tmp_path}/*.bin", "--compute", "1", "--prices", prices, "--json"]) == 0
    training = json.loads(capsys.readouterr().out)["training"]
    assert (training["objects"], training["nbytes"]) == (7, 7000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compute", "1"], "say what is read: a path, URL or pattern, or both --objects and --bytes"),
        (["--compute", "1", "--objects", "5"], "or both --objects and --bytes"),
        (["--compute", "1", "/nope/*", "--objects", "5"], "for data that is not listed"),
        (["--compute", "1", "/nope/*"], "matches no file"),
        (["--compute", "1", "--objects", "5", "--bytes", "5", "--prices", "/nope"], "No such file"),
    ],
)
def test_what_can_not_be_estimated_is_said(arguments, words, capsys):
    assert main(["cost", "estimate", *arguments]) == 1
    assert words in capsys.readouterr().err


def test_the_scheme_of_a_url_names_the_provider(monkeypatch):
    monkeypatch.setattr(listing, "expand_many", lambda patterns, seen: iter(()))
    names = [estimate.measure([url], None, None)[2] for url in ("s3://b/*", "gs://b/*", "az://b/*", "/data/*")]
    assert names == ["aws", "gcp", "azure", "aws"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_each_price_that_comes_with_millrace_has_a_date_and_a_source(provider):
    table = read_prices(provider)
    free = PriceTable()
    changed = set()
    for part in ("bucket", "disk", "worker", "host", "prices"):
        values, defaults = (msgspec.to_builtins(getattr(each, part)) for each in (table, free))
        kept = {"page", "cores", "gib"} if part != "prices" else set()
        changed |= {f"{part}.{name}" for name in values if values[name] != defaults[name] and name not in kept}
    assert set(table.sources) == changed
    for source in table.sources.values():
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", source.date)
        assert source.source.startswith("https://")
    assert table.name
    assert table.currency == "USD"


def test_there_are_no_other_tables_of_prices():
    names = {each.name for each in (resources.files("millrace.display") / "prices").iterdir()}
    assert names == {f"{provider}.toml" for provider in PROVIDERS}


def test_a_service_is_given_a_name_as_it_is_and_a_file_wherever_it_is_started():
    assert scaling_options("millrace", "aws")[-2:] == ["--prices", "aws"]
    assert scaling_options("millrace", "own.toml")[-2:] == ["--prices", os.path.abspath("own.toml")]


def test_prices_that_are_missing_are_said():
    table = PriceTable(bucket=BucketPrices(gib_month=1.0))
    report = estimate.make(Training(10, 10), table, Conditions(), 1)
    assert estimate.lines(report)[-1] == "The table of prices says nothing of [disk]: it is counted as free."
    assert estimate.lines(report)[1] == "Costs are in the currency of the table of prices."


def test_a_service_is_set_beside_its_estimate_for_the_epochs_that_it_has_begun(written):
    spent = {"worker_hours": 0.2, "training_hours": 0.1, "service": 0.5, "training": None}
    rows = [{"job": "ours", "epoch": epoch, **spent} for epoch in (0, 1)]
    counts = ({"requests": 2_020_000, "stored_bytes": 20 << 30}, {"requests": 0, "stored_bytes": 0})
    status = {"jobs": [{"name": "ours", "operators": list(counts)}]}
    found = {row["what"]: row for row in estimate.beside_service(estimate.read(written), status, rows)}
    assert list(found) == [
        "worker hours, 2 epochs",
        "training hours, 2 epochs",
        "cost of the workers, 2 epochs",
        "requests that read, 2 epochs",
        "bytes read, 2 epochs",
    ]
    hours = found["worker hours, 2 epochs"]
    assert hours["counted"] == 0.4
    assert hours["estimated"] == pytest.approx(2 * 3 * (500 + 0.05) / 3600, rel=1e-6)
    assert hours["of_estimated"] == pytest.approx(hours["counted"] / hours["estimated"])
    assert found["requests that read, 2 epochs"]["of_estimated"] == pytest.approx(1.01)
    assert found["bytes read, 2 epochs"]["of_estimated"] == pytest.approx(0.1)
    out = io.StringIO()
    estimate.show_beside(list(found.values()), out)
    assert out.getvalue().splitlines()[0].split() == ["job", "what", "estimated", "counted", "of", "estimated"]


def test_a_job_on_local_data_has_counted_no_requests(written):
    spent = {"worker_hours": 0.2, "training_hours": 0.1, "service": None, "training": None}
    status = {"jobs": [{"name": "ours", "operators": [{"requests": 0, "stored_bytes": 0}]}]}
    found = estimate.beside_service(estimate.read(written), status, [{"job": "ours", "epoch": 0, **spent}])
    assert [row["what"] for row in found] == ["worker hours, 1 epoch", "training hours, 1 epoch"]


def test_what_caches_of_samples_have_counted_is_set_beside_the_estimate(written):
    counts = SampleCounts(hits=9_000_000, misses=1_000_000, fetched=9_900_000, waited_s=50.0)
    found = {row["what"]: row for row in estimate.beside_samples(estimate.read(written), counts)}
    assert found["samples read"]["of_estimated"] == 1.0
    assert found["requests that read"]["counted"] == 9_900_000
    assert found["requests that read"]["of_estimated"] == pytest.approx(0.99, abs=0.01)
    assert found["seconds waited"]["counted"] == 50.0


def test_an_estimate_that_is_none_is_refused(tmp_path, capsys):
    path = tmp_path / "none.json"
    path.write_text('{"training": 3}')
    with pytest.raises(PipelineError, match="is not what `millrace cost estimate --json` writes"):
        estimate.read(str(path))
    assert main(["cost", "--samples", str(tmp_path)]) == 1
    assert "--samples needs --estimate FILE" in capsys.readouterr().err


def test_a_folder_without_a_cache_of_samples_is_named(written, tmp_path, capsys):
    assert main(["cost", "--samples", str(tmp_path), "--estimate", written]) == 1
    assert f"{tmp_path} has no cache of samples" in capsys.readouterr().err
